"""The text that a run is measured on, or fitted to: a split of its corpus, or a file that is read as the corpus was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bnce.corpus import opening
from bnce.corpus.prepare import encode_text
from bnce.corpus.store import Corpus, Part, first_part
from bnce.errors import UserError, argument
from bnce.runs.directory import RunDirectory
from bnce.text.sources import named
from bnce.text.tokenised import TokenisedSigns, for_tokenised


def open_part(
    run: RunDirectory,
    *,
    split: str,
    text: str | Path | None = None,
    corpus: str | Path | Corpus | None = None,
    max_tokens: int = 0,
    max_words: int = 0,
    errors: str = "strict",
    tokenised: bool = False,
    notice: Callable[[str], object] = lambda sentence: None,
) -> Part:
    """Give the ids of a file, cut into sentences and words as the run's corpus was, or else those of a split."""
    if text is not None:
        normaliser = for_tokenised(run.normaliser) if tokenised else run.normaliser
        signs = TokenisedSigns(normaliser)
        ids, statistics = encode_text(text, run.vocabulary, normaliser, errors, signs)
        if (told := signs.notice(named(str(text)))) is not None:
            notice(f"{told} Give {argument('tokenised', True)}, or use the text from before tokenisation.")
        return first_part(ids, run.vocabulary, statistics.num_bytes, max_tokens, max_words)
    if not isinstance(corpus, Corpus):
        corpus = opening.open_corpus(str(corpus or run.config.corpus))
    run.check_vocabulary(corpus)
    return corpus.part(split, max_tokens, max_words)


def check_one_text(*, split: object, text: object, corpus: object, tokenised: bool) -> None:
    """Refuse to measure two texts at once."""
    if text is not None and (split or corpus):
        raise UserError(
            f"{argument('text')} replaces the corpus: leave out {argument('split')} and {argument('corpus')}."
        )
    if tokenised and text is None:
        raise UserError(
            f"{argument('tokenised', True)} works only with {argument('text')}: give {argument('text')}, or leave out "
            f"{argument('tokenised')}."
        )
