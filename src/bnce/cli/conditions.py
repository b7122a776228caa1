"""What commands that score text say of it: what a word is predicted from, what is counted, and odd text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bnce.cli.console import stderr

if TYPE_CHECKING:
    from bnce.text.normalise import Normaliser
    from bnce.text.tokenised import TokenisedSigns

TokenisedOption = Annotated[
    bool,
    typer.Option(
        "--tokenised",
        help="The text is tokenised: read <unk> as the unknown word, and undo marks such as @-@ and &apos;s.",
    ),
]

MAY_EXCEED = (
    "unnormalised: probabilities sum to 1 only approximately, and a single one may be above 1 (its logarithm above 0)"
)


def read_as(normaliser: Normaliser, tokenised: bool) -> Normaliser:
    """Choose how the text is read."""
    from bnce.text.tokenised import for_tokenised

    return for_tokenised(normaliser) if tokenised else normaliser


def warn_of_tokenised(signs: TokenisedSigns, name: str) -> None:
    """Say that a text looks tokenised, if it does, and what to do."""
    told = signs.notice(name)
    if told is not None:
        stderr.print(f"Warning: {told} Give --tokenised, or use the text from before tokenisation.")


def seen_by_score(context: str, num_words: int | None, unit: str = "word") -> str:
    """Say what a word is predicted from by `bnce score`."""
    seen = {
        "line": "the words before it in its line, not from earlier lines (use --carry for that)",
        "sentence": "the words before it in its sentence, not from earlier sentences (use --carry for that)",
        "text": "all words before it in the text, across sentences",
        "document": "all words before it in its document, across sentences; a blank line ends a document",
    }[context]
    return f"Each word is predicted from {seen}{_at_most(num_words, unit)}."


def seen_by_evaluate(min_context: int, max_context: int, unit: str = "word") -> str:
    """Say what a word or piece is predicted from by `bnce evaluate`."""
    if min_context == max_context:
        return f"each {unit} is predicted from the {max_context} {unit}s before it, across sentences"
    return (
        f"each {unit} is predicted from the {min_context} to {max_context} {unit}s before it, across sentences "
        "(from all of them at the start of the text)"
    )


def _at_most(num_words: int | None, unit: str) -> str:
    return "" if num_words is None else f"; from at most {num_words} {'of them' if unit == 'word' else f'{unit}s'}"
