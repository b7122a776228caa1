"""`bnce vocab`: a run with other words, as a new run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from bnce.cli.console import JsonOption, print_json, stdout
from bnce.cli.options import option
from bnce.errors import UserError

if TYPE_CHECKING:
    from bnce.lexicon.change_words import LexiconChange
    from bnce.lexicon.word_list import NewWord
    from bnce.spelling.model import SpellingModel

NUM_EXAMPLES = 5


def vocab(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run directory. It is not changed.")],
    out: Annotated[Path, option("DIR", "Run directory to create.")],
    add: Annotated[
        str | None,
        option(
            "FILE",
            "Words to add, one per line: WORD, or WORD TAB count, or WORD TAB count TAB similar words, separated by "
            "commas.",
        ),
    ] = None,
    drop: Annotated[str | None, option("FILE", "Words to remove, one per line.")] = None,
    unk_list: Annotated[
        str | None, option("FILE", "Words that share the probability of <unk>, one per line: WORD, or WORD TAB weight.")
    ] = None,
    unk_rest: Annotated[
        float,
        option(
            "F", "With --unk-list: fraction of the probability of <unk> for words that are not listed, from 0 to 1."
        ),
    ] = 0.0,
    unk_rest_words: Annotated[
        int | None,
        option(
            "N", "With --unk-rest: number of words that share this fraction.", min=1, show_default="as many as listed"
        ),
    ] = None,
    spelling: Annotated[
        str | None,
        option(
            "FILE",
            "Train the spelling model of unknown words on these words, one per line: WORD, or WORD TAB count. "
            "'bnce score --spell' uses it.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Add words to a trained model, or remove words.

    The result is a new run. It cannot be trained further. Write words as the run reads them: a lower-case run refuses
    'Paris', because it reads 'paris'.

    \b
    Examples:
      bnce vocab runs/relu-lstm --out runs/more --add names.tsv
      bnce vocab runs/relu-lstm --out runs/clean --drop rude.txt --json
      bnce vocab runs/relu-lstm --out runs/open --unk-list lexicon.tsv \\
          --unk-rest 0.1
      bnce vocab runs/relu-lstm --out runs/spelt --spelling names.tsv
    """
    from bnce.lexicon.change_words import change_words
    from bnce.lexicon.word_list import read_new_words, read_weighted_words, read_words
    from bnce.machine.threads import use_threads
    from bnce.runs.directory import RunDirectory
    from bnce.runs.unknown_words import UnknownWords

    if add is None and drop is None and unk_list is None and spelling is None:
        raise UserError("There is nothing to change: give --add, --drop, --unk-list or --spelling.")
    if unk_list is None and (unk_rest or unk_rest_words is not None):
        raise UserError(
            "--unk-rest and --unk-rest-words work only with --unk-list: give --unk-list, or leave them out."
        )
    use_threads()
    opened = RunDirectory.open(run)
    shared = None
    if unk_list is not None:
        shared = UnknownWords(read_weighted_words(unk_list, opened.normaliser), unk_rest, unk_rest_words)
    change = change_words(
        opened,
        out,
        add=[] if add is None else read_new_words(add, opened.normaliser),
        drop=[] if drop is None else read_words(drop),
        unknown_words=shared,
        spelling=None if spelling is None else _train_spelling(spelling, read_new_words(spelling, opened.normaliser)),
    )
    if as_json:
        print_json({"run": str(run), "out": str(out), **change.to_dict()})
    else:
        _print(change, out)


def _train_spelling(path: str, words: Sequence[NewWord]) -> SpellingModel:
    import numpy as np

    from bnce.spelling.model import SpellingModel

    if not words:
        raise UserError(f"'{path}' has no words: give words, one per line.")
    return SpellingModel.train([new.word for new in words], np.array([new.count or 1 for new in words]))


def _print(change: LexiconChange, out: Path) -> None:
    stdout.print(f"{out}: {change.num_words_before:,} words became {change.num_words_after:,}")
    for what, words in (
        ("added", [added.word for added in change.added]),
        ("already known, not changed", change.already_known),
        ("dropped", change.dropped),
        ("to drop, but not known", change.not_known),
    ):
        if words:
            more = " …" if len(words) > NUM_EXAMPLES else ""
            stdout.print(f"  {len(words):,} {what}: {' '.join(words[:NUM_EXAMPLES])}{more}")
    for added in change.added[:NUM_EXAMPLES]:
        near = ", ".join(f"{word} {similarity:.2f}" for word, similarity in added.neighbours[:NUM_EXAMPLES])
        stdout.print(
            f"  {added.word} (count {added.count:,}) starts from "
            f"{near or '<unk> alone: no word has a similar spelling'}"
        )
    if change.unknown_words is not None:
        rest = f", {change.unknown_words.rest:.2%} of it for other words" if change.unknown_words.rest else ""
        stdout.print(f"  <unk> is shared by {len(change.unknown_words):,} listed words{rest}")
    if change.has_spelling:
        stdout.print("  'bnce score --spell' spells the words that are outside the new vocabulary")
    stdout.print("  the new run can be used and evaluated, but not trained further")
