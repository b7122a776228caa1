"""The text that a run is measured on, or fitted to: a split of its corpus, or a file that is read as the corpus was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bnce.corpus import opening
from bnce.corpus.store import Corpus, Part, first_part, is_corpus
from bnce.errors import UserError, argument
from bnce.runs.directory import Run
from bnce.settings import RunConfig
from bnce.text.sources import DOCSTRINGS, named


def open_part(
    run: Run,
    *,
    split: str = "valid",
    text: str | Path | None = None,
    corpus: str | Path | Corpus | None = None,
    max_words: int = 0,
    notice: Callable[[str], object] = lambda sentence: None,
) -> Part:
    """Give the ids of a file, cut into sentences and words as the run's corpus was, or else those of a split."""
    if text is not None:
        from bnce.corpus.prepare import encode_text  # which loads what cuts text: a split is there already
        from bnce.text.tokenised import TokenisedSigns

        signs = TokenisedSigns(run.normaliser)
        ids, statistics = encode_text(text, run.vocabulary, run.normaliser, signs)
        if (told := signs.notice(named(str(text)))) is not None:
            notice(f"{told} Use the text from before tokenisation.")
        return first_part(ids, run.vocabulary, statistics.num_bytes, max_words)
    if not isinstance(corpus, Corpus):
        corpus = open_corpus_of(run.path, run.config, None if corpus is None else str(corpus))
    run.check_words(corpus)
    return corpus.part(split, max_words)


def open_corpus_of(
    path: Path, config: RunConfig, given: str | None = None, open_corpus: Callable[[str], Corpus] = opening.open_corpus
) -> Corpus:
    """Open the corpus that is `given`, or else the one that a run was trained on, which may have been moved."""
    if not given:
        check_corpus_is_there(path, config)
    return open_corpus(given or config.corpus)


def check_corpus_is_there(path: Path, config: RunConfig, remedy: str = "") -> None:
    """Refuse to look for the corpus of a run where it is not any more."""
    if config.corpus != DOCSTRINGS and not is_corpus(config.corpus):
        remedy = remedy or f"give its new location with {argument('corpus')}"
        raise UserError(
            f"The run '{path}' was trained on the corpus '{config.corpus}', which is no longer there: {remedy}."
        )


def check_one_text(*, split: object, text: object, corpus: object) -> None:
    """Refuse to measure two texts at once."""
    if text is not None and (split or corpus):
        raise UserError(
            f"{argument('text')} replaces the corpus: leave out {argument('split')} and {argument('corpus')}."
        )
