"""`bnce vocab`: a run with more words, as a new run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from bnce.cli.console import JsonOption, print_json, stdout
from bnce.cli.options import RunArgument, option

NUM_EXAMPLES = 5


def vocab(
    run: RunArgument,
    out: Annotated[Path, option("DIR", "Run directory to create.")],
    add: Annotated[str, option("FILE", "Words to add, one per line: WORD, or WORD TAB count.")],
    as_json: JsonOption = False,
) -> None:
    """Add words to a trained model.

    The result is a new run. It cannot be trained further. New words share the probability of <unk>. Write words as the
    run reads them: a lower-case run refuses 'Paris', because it reads 'paris'.

    \b
    Examples:
      bnce vocab runs/relu-lstm --out runs/more --add names.tsv
    """
    from bnce.editing.vocabulary import add_words, read_new_words
    from bnce.machine.threads import use_threads
    from bnce.runs.directory import Run

    use_threads()
    opened = Run.open(run)
    record = add_words(opened, out, read_new_words(add, opened))
    if as_json:
        print_json({"run": str(run), "out": str(out), **record})
    else:
        _print(record, out)


def _print(record: dict[str, Any], out: Path) -> None:
    stdout.print(f"{out}: {record['num_words_before']:,} words became {record['num_words_after']:,}")
    for what, words in (
        ("added", [added["word"] for added in record["added"]]),
        ("already known, not changed", record["already_known"]),
    ):
        if words:
            more = " …" if len(words) > NUM_EXAMPLES else ""
            stdout.print(f"  {len(words):,} {what}: {' '.join(words[:NUM_EXAMPLES])}{more}")
    if record["has_spelling"]:
        stdout.print("  'bnce score --spell' spells the words that are outside the new vocabulary")
    stdout.print("  the new run can be used and evaluated, but not trained further")
