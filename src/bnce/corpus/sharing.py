"""What is shared with workers on other machines: the disk, which they must see, and the text, which they read.

Every document has a number in its text, by which it is drawn into a split. So workers first count the documents of
their shares, and then number the words. That reads text twice, but reading is a tenth of the work.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from bnce.errors import UserError
from bnce.machine.cluster import Cluster
from bnce.text.blocks import Block, gather
from bnce.text.shares import Share, count_documents, deal, explain, read_share
from bnce.text.sources import Document, named, no_words, source_bytes
from bnce.text.tokenised import TokenisedSigns

_FILES_TRIED = 20


def _ask_all(executor: Executor, function: Callable[..., Any], *given: Any) -> dict[str, Any]:
    """Run a short function on every worker of a cluster, or once; give answers and errors by the worker."""
    if isinstance(executor, Cluster):
        answers: dict[str, Any] = executor.client.run(function, *given, on_error="return")
        return answers
    future = executor.submit(function, *given)
    return {"": future.exception() or future.result()}


def check_shared(executor: Executor, directory: Path) -> None:
    """Refuse workers that do not see a directory, or cannot write to it."""
    # Every machine has a /tmp, but only the shared one holds this file.
    sign = directory / f"{uuid.uuid4().hex}.sign"
    sign.touch()
    for worker, complaint in _ask_all(executor, look_around, sign).items():
        if isinstance(complaint, BaseException):
            raise complaint
        if complaint is not None:
            raise UserError(
                f"{f'The worker {worker}' if worker else 'A worker'} {complaint}: the output must be in a directory "
                "that all workers share, under the same path."
            )
    sign.unlink()


def look_around(sign: Path) -> str | None:
    """Say what keeps this process from working in the directory of a sign; nothing if all is well."""
    if not sign.is_file():
        return f"does not see the directory '{_output(sign)}' as this machine does"
    trial = sign.with_name(f"{uuid.uuid4().hex}.trial")
    try:
        with contextlib.ExitStack() as stack:
            stack.callback(trial.unlink, missing_ok=True)
            trial.write_bytes(b"x")
    except OSError as error:
        return f"cannot write to the directory '{_output(sign)}' ({error.strerror})"
    return None


def _output(sign: Path) -> Path:
    """Name the directory that the user knows: the sign is in the scratch directory of what is not finished there."""
    return sign.parents[2]


def see_files(executor: Executor, names: Iterable[str]) -> bool:
    """Say whether workers of other machines can read files for themselves; some stand for all."""
    sizes = {os.path.abspath(name): num_bytes for name in names if (num_bytes := source_bytes(name))}
    tried = dict(itertools.islice(sizes.items(), 0, None, 1 + len(sizes) // _FILES_TRIED))
    return all(answer is True for answer in _ask_all(executor, have_sizes, tried).values())


def have_sizes(sizes: dict[str, int]) -> bool:
    """Say whether files are as large here."""
    return all(source_bytes(path) == num_bytes for path, num_bytes in sizes.items())


def deal_out(
    in_order: Callable[..., Generator[Any]],
    names: Sequence[str],
    split: str | None,
    read: Callable[[str], Iterator[Document]],
    signs: TokenisedSigns,
    field: str,
    errors: str,
    advance: Callable[[int], None],
) -> Iterator[Block | Share]:
    """Yield a text in shares that workers read, and in blocks of those files that are read here; `in_order` maps."""
    first = 0
    count = functools.partial(count_documents, field=field, errors=errors)
    for is_here, group in itertools.groupby(deal(names), key=lambda dealt: isinstance(dealt, str)):
        if is_here:
            for block in gather(signs.watch(itertools.chain.from_iterable(map(read, map(str, group)))), split, first):
                yield block
                first += block.num_documents
            continue
        ahead, shares = itertools.tee(Share(split, 0, tuple(parts)) for parts in group if not isinstance(parts, str))
        with contextlib.closing(in_order(count, ahead)) as counts:
            num_in_file = 0
            for share in shares:
                try:
                    if not signs.are_clear:
                        _look(signs, share, field, errors)
                    found = next(counts)
                except UserError:
                    explain(share, field, errors)
                    raise
                for part, num_documents in zip(share.parts, found, strict=True):
                    num_in_file = num_documents + (num_in_file if part.begin else 0)
                    if part.end == part.file_bytes and not num_in_file:
                        raise no_words(named(part.name))
                advance(share.num_bytes)
                yield share._replace(first_document=first)
                first += sum(found)


def _look(signs: TokenisedSigns, share: Share, field: str, errors: str) -> None:
    for _ in signs.watch(read_share(share, field, errors)):
        if signs.are_clear:
            return
