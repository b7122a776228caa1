"""Text that needs no file: the docstrings of the standard library, NumPy, PyTorch and their company."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from bnce.machine.workers import map_in_order
from bnce.text.sources import Advance, Document, batches, source_bytes

# PyTorch brings the last three along, so they are wherever this program is.
PACKAGES = ("matplotlib", "numpy", "torch", "networkx", "mpmath", "sympy")

_SKIPPED_DIRECTORIES = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}
# Several files a job, or handing them over would take longer than reading them.
_JOB_BYTES = 2**18

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_STATEMENTS = ("body", "handlers", "orelse", "finalbody", "cases")

_RULE = re.compile(r"\W{3,}")
# A list's item, a directive, a field, a numbered point, or a parameter: such a line begins something new.
_ITEM = re.compile(r"[-*+|]\s|\.\.\s|:\w+[^:]*:\s|\(?\d+[.)]+\s|\*{0,2}\w+(?:\s\([^)]*\))?\s?:(?!:)")
# reStructuredText's roles and quotes say how a word looks, not what is said.
_MARKUP = re.compile(r":[\w:]+:(?=`)|`")
_PROMPT = (">>>", "...")


@functools.cache
def installed_modules() -> tuple[Path, ...]:
    """List the .py files that docstrings are taken from, in an order that is the same on every run."""
    roots = [Path(sysconfig.get_path("stdlib"))]
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        roots += [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return tuple(path for root in roots for path in python_files(root))


def python_files(root: Path) -> list[Path]:
    """List the .py files under a directory, tests and other people's packages left out, sorted."""
    found = []
    for directory, subdirectories, names in os.walk(root):
        subdirectories[:] = [name for name in subdirectories if name not in _SKIPPED_DIRECTORIES]
        paths = [Path(directory, name) for name in names if name.endswith(".py")]
        found += [path for path in paths if path.is_file()]
    return sorted(found)


def read_docstrings(paths: Sequence[Path], num_workers: int = 1, advance: Advance | None = None) -> Iterator[Document]:
    """Yield the docstrings of Python files as documents, each text only once, shuffled by their hash.

    In that order any part of the text is a fair sample of the whole, whatever the packages are called.
    """
    found: dict[bytes, Document] = {}
    jobs = batches(paths, lambda path: source_bytes(str(path)), _JOB_BYTES)
    for num_bytes, documents in map_in_order(_read_job, jobs, num_workers):
        for document in documents:
            found[hashlib.blake2b("\n".join(document).encode(), digest_size=16).digest()] = document
        if advance is not None:
            advance(num_bytes)
    for key in sorted(found):
        yield found[key]


def _read_job(paths: list[Path]) -> tuple[int, list[Document]]:
    documents = []
    num_bytes = 0
    for path in paths:
        try:
            source = path.read_bytes()
        except OSError:
            continue
        num_bytes += len(source)
        documents += [document for text in find_docstrings(source) if (document := unwrap(text))]
    return num_bytes, documents


def find_docstrings(source: bytes) -> list[str]:
    """Find the docstrings of a module, its classes and its functions, in the order of the file."""
    try:
        with warnings.catch_warnings():
            # Bad escapes in other people's sources are not the user's concern.
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = []
    # Definitions stand among statements only: visiting the expressions too would take far longer.
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, _DOCUMENTED):
            text = ast.get_docstring(node, clean=False)
            if text:
                found.append(text)
        inside = [inner for name in _STATEMENTS for inner in getattr(node, name, ())]
        waiting += reversed(inside)
    return found


def unwrap(docstring: str) -> Document:
    """Join the wrapped lines of a docstring's paragraphs, and leave out its examples and rules."""
    # Escapes can put what is no text into a docstring: NULs, halves of surrogate pairs.
    text = docstring.encode("utf-8", "replace").decode("utf-8").replace("\0", " ")
    lines: Document = []
    previous_indent = -1
    in_example = False
    for line in inspect.cleandoc(text).split("\n"):
        content = _MARKUP.sub("", line).strip()
        if not content or _RULE.fullmatch(content):
            previous_indent = -1
            in_example = in_example and bool(content)
            continue
        # What an example prints goes on to the next blank line.
        in_example = in_example or content.startswith(_PROMPT)
        if in_example:
            continue
        indent = len(line) - len(line.lstrip())
        if indent == previous_indent and not _ITEM.match(content):
            lines[-1] += " " + content
        else:
            lines.append(content)
        previous_indent = indent
    return lines
