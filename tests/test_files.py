"""Files and directories that appear whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bnce import files
from bnce.errors import UserError

Atomic = Callable[[Path], AbstractContextManager[Path]]


def fill(partial: Path, text: str = "new") -> None:
    """Write to what an atomic context yields, file or directory."""
    (partial / "inside" if partial.is_dir() else partial).write_text(text)


def test_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with files.atomic_file(path) as partial:
        fill(partial)
        assert path.read_text() == "old", "the old one is there until the new one is whole"
        assert partial.parent == tmp_path, "a rename is atomic only within one file system"
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_write_text_writes_utf8(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a", "ünd\n")
    assert (tmp_path / "a").read_bytes() == "ünd\n".encode()


def test_directory_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "run"
    with files.atomic_directory(path) as partial:
        fill(partial)
        assert not path.exists()
    assert (path / "inside").read_text() == "new"
    assert os.listdir(path.parent) == ["run"]


@pytest.mark.parametrize("make", [files.atomic_file, files.atomic_directory])
@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
def test_a_failure_leaves_nothing(tmp_path: Path, make: Atomic, error: BaseException) -> None:
    def write() -> None:
        with make(tmp_path / "a") as partial:
            fill(partial)
            raise error

    with pytest.raises(type(error)):
        write()
    assert os.listdir(tmp_path) == []


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")

    def write() -> None:
        with files.atomic_file(path) as partial:
            fill(partial)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_that_was_never_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), files.atomic_file(tmp_path / "a"):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_told_in_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def write() -> None:
        with files.atomic_file(path) as partial:
            partial.symlink_to("/dev/full")
            partial.write_text("new")

    with pytest.raises(UserError) as caught:
        write()
    assert str(caught.value) == (
        f"The disk is full: '{path}' could not be written, and what was there is as it was; "
        "free some space, then run the same command again."
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make", [files.atomic_file, files.atomic_directory])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_or_quota_is_a_user_error(tmp_path: Path, make: Atomic, number: int) -> None:
    def write() -> None:
        with make(tmp_path / "a") as partial:
            fill(partial)
            raise OSError(number, os.strerror(number))

    with pytest.raises(UserError, match=r"^The disk is full: .* free some space, then run the same command again.$"):
        write()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("make", [files.atomic_file, files.atomic_directory])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_place_one_may_not_write_to(tmp_path: Path, make: Atomic, number: int) -> None:
    def write() -> None:
        with make(tmp_path / "a"):
            raise OSError(number, os.strerror(number))

    with pytest.raises(UserError) as caught:
        write()
    assert str(caught.value) == (
        f"Cannot write '{tmp_path / 'a'}': {os.strerror(number)}; choose a place you may write to."
    )


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Not a directory; choose a place you may write to"):
        files.write_text(tmp_path / "file" / "a", "text")


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, reason in (
        (tmp_path / "file" / "a", errno.ENOTDIR),
        (tmp_path / "file" / "a" / "b", errno.ENOTDIR),
        (tmp_path / ("a" * 250), errno.ENAMETOOLONG),  # long enough for what is written beside it
        (tmp_path / ("a" * 300), errno.ENAMETOOLONG),
    ):
        with pytest.raises(UserError) as caught, files.atomic_directory(path):
            pytest.fail("nothing must be written")
        assert str(caught.value) == f"Cannot write '{path}': {os.strerror(reason)}; choose a place you may write to."
    assert os.listdir(tmp_path) == ["file"]


def test_other_errors_are_not_explained_away(tmp_path: Path) -> None:
    def write() -> None:
        with files.atomic_file(tmp_path / "a"):
            raise OSError(errno.EIO, "broken disk")

    with pytest.raises(OSError, match="broken disk"):
        write()


def test_an_existing_output_is_refused(tmp_path: Path) -> None:
    full, empty, file = tmp_path / "full", tmp_path / "empty", tmp_path / "file"
    full.mkdir()
    empty.mkdir()
    (full / "thesis").write_text("old")
    file.write_text("old")
    for path in (full, file):
        with pytest.raises(UserError) as caught, files.atomic_directory(path):
            pytest.fail("nothing must be written")
        assert str(caught.value) == f"The output '{path}' exists already: give another path, or remove it first."
    assert (full / "thesis").read_text() == "old"
    with files.atomic_directory(empty) as partial:
        fill(partial)
    assert (empty / "inside").read_text() == "new"


def test_an_output_that_appeared_meanwhile_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"

    def write() -> None:
        with files.atomic_directory(path):
            path.mkdir()
            (path / "other").write_text("of another process")

    with pytest.raises(UserError, match="exists already"):
        write()
    assert os.listdir(tmp_path) == ["run"]
    assert os.listdir(path) == ["other"]


def test_a_place_to_write_to(tmp_path: Path) -> None:
    files.check_place(tmp_path / "new")
    with pytest.raises(UserError, match="is a directory: give the name of a file to write"):
        files.check_place(tmp_path)
    with pytest.raises(UserError, match=r"There is no directory '.*none' to write 'new' into: make it first"):
        files.check_place(tmp_path / "none" / "new")
