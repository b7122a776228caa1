"""What every command shares: where words go, where JSON goes, and how progress looks."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from bnce import files

stdout = Console(highlight=False, soft_wrap=True)
stderr = Console(stderr=True, highlight=False, soft_wrap=True)

JsonOption = Annotated[
    bool, typer.Option("--json", help="Print one JSON object on standard output and nothing else there.")
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


def progress_bar(*extra: str) -> LateProgress:
    """Make a bar on standard error; `extra` are further columns, as rich templates over the task's fields."""
    return LateProgress(
        TextColumn("[bold]{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        *(TextColumn(column) for column in extra),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=stderr,
        transient=False,
    )
