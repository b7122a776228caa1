"""The docstrings of a small tree of Python files."""

from __future__ import annotations

from pathlib import Path

import pytest

from bnce.text import docstrings
from bnce.text.docstrings import find_docstrings, installed_modules, python_files, read_docstrings, unwrap

MODULE = b'''
"""The module.

Wrapped over
two lines.
"""

class Thing:
    """A thing."""

    def method(self):
        """A method."""
        def inner():
            "An inner one."

    async def wait(self):
        """Waits."""

try:
    pass
except ValueError:
    def in_handler(): "In a handler."
else:
    def in_else(): "In an else."
finally:
    def in_finally(): "In a finally."

match 1:
    case 1:
        def in_case(): "In a case."

with open("x") as f:
    for i in f:
        while i:
            if i:
                def deep(): "Deep down."

"not a docstring"
def numbers():
    1
'''


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "package" / "tests").mkdir(parents=True)
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "package" / "b.py").write_bytes(MODULE)
    (tmp_path / "package" / "a.py").write_text('"""First."""\ndef f(): """A thing."""\n')
    (tmp_path / "package" / "broken.py").write_text('"""Lost."""\ndef f(:\n')
    (tmp_path / "package" / "nul.py").write_bytes(b'"""Lost."""\0')
    (tmp_path / "package" / "data.txt").write_text('"""No Python."""')
    (tmp_path / "package" / "tests" / "test.py").write_text('"""A test."""')
    (tmp_path / "site-packages" / "other.py").write_text('"""Not ours."""')
    (tmp_path / "package" / "dangling.py").symlink_to(tmp_path / "nowhere.py")
    return tmp_path


def test_files_are_sorted_and_chosen(tree: Path) -> None:
    names = [path.name for path in python_files(tree)]
    assert names == ["a.py", "b.py", "broken.py", "nul.py"]


def test_docstrings_are_found_wherever_a_definition_is() -> None:
    first, *others = find_docstrings(MODULE)
    assert first.startswith("The module.")
    found = "A thing. A method. An inner one. Waits. In a handler. In an else. In a finally. In a case. Deep down."
    assert " ".join(others) == found


def test_bad_escapes_give_no_warning() -> None:
    assert find_docstrings(b'"""A \\d."""') == ["A \\d."]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_every_text_once(tree: Path, monkeypatch: pytest.MonkeyPatch, num_workers: int) -> None:
    monkeypatch.setattr(docstrings, "_JOB_BYTES", 10)
    files = python_files(tree)
    steps: list[int] = []
    documents = list(read_docstrings(files, num_workers, steps.append))
    assert all(document in documents for document in (["First."], ["The module.", "Wrapped over two lines."]))
    assert documents == list(read_docstrings(files[::-1])), "the order is that of the texts, not of the files"
    assert sum(document == ["A thing."] for document in documents) == 1
    assert not any("Lost." in document for document in documents)
    assert sum(steps) == sum(path.stat().st_size for path in files)


def test_file_that_vanishes_is_skipped(tree: Path) -> None:
    files = python_files(tree)
    documents = read_docstrings(files)
    (tree / "package" / "b.py").unlink()
    assert sorted(documents) == [["A thing."], ["First."]]


@pytest.mark.parametrize(
    ("docstring", "lines"),
    [
        ("One.\n\n    Two\n    lines.\n", ["One.", "Two lines."]),
        (
            "Parameters\n----------\nx : int\n    The\n    first.\ny : int\n    The second.",
            ["Parameters", "x : int", "The first.", "y : int", "The second."],
        ),
        (
            "Args:\n    a (int): one\n    b: two\n    **kwargs: more",
            ["Args:", "a (int): one", "b: two", "**kwargs: more"],
        ),
        ("- one\n- two\n* three\n1. four", ["- one", "- two", "* three", "1. four"]),
        (":param x: one\n:returns: two\n.. note:: three", [":param x: one", ":returns: two", ".. note:: three"]),
        ("Sum.\n\n>>> 1 + 1\n2\n\nMore.\n\n>>> f(\n... )\n", ["Sum.", "More."]),
        ("See :func:`~math.sin` and ``cos(x)``.", ["See ~math.sin and cos(x)."]),
        ("a\0b \ud800c", ["a b ?c"]),
        ("line\x0cfeed\u2028", ["line\x0cfeed"]),
        ("  \n  ", []),
        (">>> only(code)", []),
    ],
)
def test_unwrapping(docstring: str, lines: list[str]) -> None:
    assert unwrap(docstring) == lines


def test_installed_modules_are_there() -> None:
    modules = installed_modules()
    names = {"/".join(path.parts[-2:]) for path in modules}
    assert {"json/decoder.py", "numpy/__init__.py", "torch/functional.py", "nn/init.py"} <= names
    assert len(set(modules)) == len(modules) > 1000
