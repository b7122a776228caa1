"""How progress looks: a bar on a terminal, and one line per minute where there is none."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

LINE_SECONDS = 60.0  # between two lines of progress where there is no terminal
_WIDE = 124  # columns that the longest line of progress needs, with its bar


class LateProgress(Progress):
    """Progress on standard error: a bar on a terminal, and one line per minute where there is none.

    The bar appears with its first update: what fails before then is answered by one sentence and no bar.
    """

    def __init__(self, *columns: ProgressColumn, console: Console, told: Sequence[str]) -> None:
        # rich would send results to the terminal that the bar is on, past the file or the pipe that waits for them.
        super().__init__(*columns, console=console, redirect_stdout=False, disable=not has_bar(console))
        self.told = told  # what a line says besides how much is done: fields of the task
        self._told_at = time.monotonic()
        self._begun_at: dict[TaskID, float] = {}

    def __enter__(self) -> LateProgress:
        return self

    def update(self, task_id: TaskID, *args: Any, **kwargs: Any) -> None:
        """Change a task, and show the bar if it is not there yet, or a line if it is time for one."""
        self.start()
        super().update(task_id, *args, **kwargs)
        task = self._tasks[task_id]
        # One that has just begun, such as an evaluation after a minute of training, has nothing to tell yet.
        if self.disable and time.monotonic() - max(self._told_at, self._begun_at[task_id]) >= LINE_SECONDS:
            self.tell(self._describe(task))

    def add_task(self, *args: Any, **kwargs: Any) -> TaskID:
        """Begin a task."""
        task_id = super().add_task(*args, **kwargs)
        self._begun_at[task_id] = time.monotonic()
        return task_id

    def reset(self, task_id: TaskID, *args: Any, **kwargs: Any) -> None:
        """Begin a task anew."""
        self._begun_at[task_id] = time.monotonic()
        super().reset(task_id, *args, **kwargs)

    def tell(self, line: str) -> None:
        """Print a line: above the bar, or instead of it."""
        self._told_at = time.monotonic()
        self.console.print(line, markup=False)

    def _describe(self, task: Task) -> str:
        share = f" {task.percentage:.0f}%" if task.total else ""
        facts = [str(task.fields[name]) for name in self.told if task.fields.get(name)]
        if task.elapsed is not None:
            facts.append(f"{_clock(task.elapsed)} so far")
        if task.total and (left := _seconds_left(task)) is not None:
            facts.append(f"{_clock(left)} left")
        return f"{Text.from_markup(task.description).plain}{share}: {', '.join(facts)}"

    def stop(self) -> None:
        """Take the bar away if it is there."""
        if self.live.is_started:
            super().stop()


class TimeLeftColumn(ProgressColumn):
    """The time that is left."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Show hours, minutes and seconds."""
        left = _seconds_left(task)
        return Text("-:--:--" if left is None else _clock(left), style="progress.remaining")


def _seconds_left(task: Task) -> float | None:
    """Give the time that a task is told to have left, if it is told, or else by its speed so far."""
    told: float | None = task.fields.get("seconds_left")
    return task.time_remaining if told is None else told


def has_bar(console: Console) -> bool:
    """Say whether a bar can be drawn: a file keeps every frame of it."""
    return console.is_terminal and not console.is_dumb_terminal


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"


def make_bar(stderr: Console, *extra: str, where_there_is_room: Sequence[str] = ()) -> LateProgress:
    """Make a bar on standard error; `extra` are further columns: the names of the task's fields.

    With these, a narrow terminal has no room for the bar, the time gone by and the lesser columns: rich would cut into
    the figures instead.
    """
    has_room = not extra or stderr.width >= _WIDE
    return LateProgress(
        TextColumn("[bold]{task.description}"),
        *([BarColumn(bar_width=24)] if has_room else []),
        TextColumn("{task.percentage:>3.0f}%"),
        *(TextColumn(f"{{task.fields[{name}]}}") for name in (*extra, *(where_there_is_room if has_room else ()))),
        *([TimeElapsedColumn()] if has_room else []),
        TextColumn("left"),
        TimeLeftColumn(),
        console=stderr,
        told=(*extra, *where_there_is_room),
    )
