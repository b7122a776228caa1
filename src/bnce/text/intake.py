"""Any source by its name: which files it means, how large they are, and the documents of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

from bnce.errors import UserError
from bnce.text.docstrings import installed_modules, read_docstrings
from bnce.text.published import BENCHMARKS
from bnce.text.records import DEFAULT_FIELD, holds_records, read_records
from bnce.text.sources import (
    Advance,
    Document,
    check_source,
    expand_sources,
    read_documents,
    read_lines,
    refuse_second_stdin,
    source_bytes,
)

DOCSTRINGS = "docstrings"


def find_files(names: Sequence[str]) -> list[str]:
    """List the files that sources name, refusing those that cannot be read."""
    if not names:
        raise UserError(f"There is no text to prepare: give files, '{DOCSTRINGS}', or one of {', '.join(BENCHMARKS)}.")
    refuse_second_stdin(names)
    files = [name for given in names for name in ([given] if given == DOCSTRINGS else expand_sources([given]))]
    for name in files:
        if name != DOCSTRINGS:
            check_source(name)
    return files


def read_text(
    name: str, field: str, errors: str = "strict", num_workers: int = 1, advance: Advance | None = None
) -> Iterator[Document]:
    """Stream the documents of one source, whatever kind of file it is."""
    if name == DOCSTRINGS:
        return read_docstrings(installed_modules(), num_workers, advance)
    if holds_records(name):
        return read_records(name, field, errors, advance)
    return read_documents(name, errors, advance)


def read_passages(
    name: str, field: str = DEFAULT_FIELD, blank_ends: bool = False, advance: Advance | None = None
) -> Iterator[Iterable[str]]:
    """Stream the lines of one source as they stand, blank ones among them, by document.

    A record is a document. A text of lines is one document, or with `blank_ends` blank lines end one and are no part
    of any.
    """
    if name == DOCSTRINGS or holds_records(name):
        yield from read_text(name, field, advance=advance)
        return
    lines = read_lines(name, advance=advance)
    for is_blank, document in itertools.groupby(lines, key=lambda line: blank_ends and not line.strip()):
        if not is_blank:
            yield document


def text_bytes(name: str) -> int:
    """Tell how large a source is on disk, for progress; 0 where that cannot be known."""
    if name == DOCSTRINGS:
        return sum(source_bytes(str(path)) for path in installed_modules())
    return source_bytes(name)
