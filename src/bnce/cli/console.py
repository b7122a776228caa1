"""What every command shares: where words go, where JSON goes, and how progress looks."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from bnce import files

if TYPE_CHECKING:
    from bnce.cli.progress import LateProgress
    from bnce.corpus.store import Corpus
    from bnce.scoring.model import Model

# What is printed is text, such as a path that holds ':cat:' or '[b]': nothing in it is an emoji or markup.
stdout = Console(markup=False, highlight=False, soft_wrap=True, emoji=False)
stderr = Console(stderr=True, markup=False, highlight=False, soft_wrap=True, emoji=False)

JsonOption = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


def print_json(record: Mapping[str, Any]) -> None:
    """Write one JSON object; what is not finite becomes null, since JSON has no word for it."""
    sys.stdout.write(files.to_json(record) + "\n")


def progress_bar(*extra: str, where_there_is_room: Sequence[str] = ()) -> LateProgress:
    """Make a bar on standard error; `extra` are further columns: the names of the task's fields."""
    # Here, because rich takes its time, and most commands end without a bar.
    from bnce.cli.progress import make_bar

    return make_bar(stderr, *extra, where_there_is_room=where_there_is_room)


@contextlib.contextmanager
def shown_progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Give what shows how much is done of how much, which is 0 as long as nobody knows."""
    with progress_bar() as bar:
        task = bar.add_task(escape(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def open_model(path: Path, device: str) -> Model:
    """Open a run, a mixture or an n-gram model to compute with."""
    from bnce.scoring.loading import load

    model = load(path, device)
    if sys.modules.get("torch") is not None:  # it computes a part of the model
        from bnce.machine.threads import use_threads

        use_threads()
    return model


def open_corpus(name: str) -> Corpus:
    """Open a corpus by its name; the docstrings may have to be prepared first, which shows."""
    from bnce.corpus import opening

    with shown_progress("preparing docstrings") as progress:
        return opening.open_corpus(name, progress)
