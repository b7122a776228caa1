"""One thread beside the loop for what takes long: reading large bodies, cutting long texts, writing long answers.

It is one, so that long requests take turns: more of them would only take the interpreter from the loop more often.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class SideThread:
    """Runs functions one after the other, in the order they come; one that nobody waits for any more is left out."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="side")

    async def run(self, function: Callable[[], Result]) -> Result:
        """Wait for what a function gives."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def stop(self) -> None:
        """End the thread once it has nothing to do."""
        self._thread.shutdown()
