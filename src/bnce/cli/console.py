"""What every command shares: where words go, where JSON goes, and how progress looks."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bnce import files
from bnce.config import MAX_THREADS

# What is printed is text, such as a path that holds ':cat:': nothing in it stands for an emoji.
stdout = Console(highlight=False, soft_wrap=True, emoji=False)
stderr = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

_WIDE = 124  # columns that the longest line of progress needs, with its bar

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
]

ThreadsOption = Annotated[
    int,
    typer.Option(min=0, max=MAX_THREADS, metavar="N", help="Compute with N CPU threads.", show_default="one per core"),
]


def print_json(record: Mapping[str, Any]) -> None:
    """Write one JSON object; what is not finite becomes null, since JSON has no word for it."""
    sys.stdout.write(files.to_json(record) + "\n")


class LateProgress(Progress):
    """A bar that appears with its first update: what fails before then is answered by one sentence and no bar."""

    def __enter__(self) -> LateProgress:
        return self

    def update(self, task_id: TaskID, *args: Any, **kwargs: Any) -> None:
        """Change a task, and show the bar if it is not there yet."""
        self.start()
        super().update(task_id, *args, **kwargs)

    def stop(self) -> None:
        """Take the bar away if it is there."""
        if self.live.is_started:
            super().stop()


def progress_bar(*extra: str, where_there_is_room: Sequence[str] = ()) -> LateProgress:
    """Make a bar on standard error; `extra` are further columns, as rich templates over the task's fields.

    With these, a narrow terminal has no room for the bar, the time gone by and the lesser columns: rich would cut into
    the figures instead.
    """
    has_room = not extra or stderr.width >= _WIDE
    return LateProgress(
        TextColumn("[bold]{task.description}"),
        *([BarColumn(bar_width=24)] if has_room else []),
        TextColumn("{task.percentage:>3.0f}%"),
        *(TextColumn(column) for column in (*extra, *(where_there_is_room if has_room else ()))),
        *([TimeElapsedColumn()] if has_room else []),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=stderr,
        transient=False,
        # rich would send results to the terminal that the bar is on, past the file or the pipe that waits for them.
        redirect_stdout=False,
    )
