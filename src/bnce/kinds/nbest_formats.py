"""The formats of n-best lists, which `bnce rescore --format` chooses."""

from __future__ import annotations

from dataclasses import dataclass

from bnce.kinds.kind import Kind, Registry, load


@dataclass(frozen=True, kw_only=True)
class NBestFormat(Kind):
    """One format. It is read by a function of a `Source` and the `Extras` that belong to it.

    Beside that one, `recognise` tells from a `Source` whether it has this format.
    """

    endings: tuple[str, ...] = ()  # of file names, packing aside, that are of this format or one of a few
    extras: tuple[str, ...] = ()  # the arguments of `read_nbest` that it takes

    def recognises(self, source: object) -> bool:
        """Tell whether lists look like this format."""
        module, _, _ = self.built_by.partition(":")
        return bool(load(f"{module}:recognise")(source))


# In the order in which they are tried: Kaldi text, which is what anything may be, comes last.
NBEST_FORMATS: Registry[NBestFormat] = Registry(
    "format of n-best lists",
    NBestFormat(
        name="espnet",
        shown="an ESPnet decode directory",
        help="ESPnet's 1best_recog, 2best_recog, … directories",
        built_by="bnce.rescoring.formats.espnet:read",
    ),
    NBestFormat(
        name="jsonl",
        shown="JSON lines",
        help="one JSON object per utterance",
        built_by="bnce.rescoring.formats.json_lines:read",
        endings=(".jsonl", ".json", ".ndjson"),
    ),
    NBestFormat(
        name="k2",
        shown="icefall text",
        help="icefall's ref= and hyp= lines",
        built_by="bnce.rescoring.formats.k2:read",
    ),
    NBestFormat(
        name="tsv",
        shown="TSV",
        help="utterance, scores and hypothesis separated by tabs",
        built_by="bnce.rescoring.formats.table:read",
        endings=(".tsv",),
    ),
    NBestFormat(
        name="nemo",
        shown="NeMo beams",
        help="NeMo's text, tab, score",
        built_by="bnce.rescoring.formats.nemo:read",
        endings=(".tsv",),
        extras=("manifest", "beam_size"),
    ),
    NBestFormat(
        name="trn",
        shown="SCTK transcripts",
        help="SCTK's words and (utterance)",
        built_by="bnce.rescoring.formats.trn:read",
        endings=(".trn",),
    ),
    NBestFormat(
        name="kaldi",
        shown="Kaldi text",
        help="key and words, scores in their own files",
        built_by="bnce.rescoring.formats.kaldi:read",
        extras=("keys", "am_scores", "lm_scores", "score_files"),
    ),
)
