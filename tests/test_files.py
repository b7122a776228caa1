"""Files and directories that appear whole or not at all."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from bnce import UserError, files

Atomic = Callable[[Path], AbstractContextManager[Path]]


def fill(partial: Path, text: str = "new") -> None:
    """Write to what an atomic context yields, file or directory."""
    (partial / "inside" if partial.is_dir() else partial).write_text(text)


def process_that_ended() -> int:
    """Give the number of a process that is no more."""
    with subprocess.Popen(["true"]) as process:
        pass
    return process.pid


def test_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with files.atomic_file(path) as partial:
        fill(partial)
        assert path.read_text() == "old", "the old one is there until the new one is whole"
        assert partial.parent.parent == tmp_path, "a rename is atomic only within one file system"
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


NOTED = "could not be written and was not changed; free some space, then run the same command again."
PLACE = "choose a place where you can write."


def error(number: int, *more: str) -> OSError:
    return OSError(number, os.strerror(number), *more)


@pytest.mark.parametrize("make", [files.atomic_file, files.atomic_directory])
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (RuntimeError("boom"), None),
        (KeyboardInterrupt(), None),
        (error(errno.EIO), None),
        (error(errno.EACCES, "source"), None),  # an input that cannot be read is no output that cannot be written
        (error(errno.ENOSPC), f"The disk is full: '{{}}' {NOTED}"),
        (error(errno.EDQUOT), f"The disk is full: '{{}}' {NOTED}"),
        (error(errno.EACCES), f"Cannot write '{{}}': Permission denied; {PLACE}"),
        (error(errno.EROFS), f"Cannot write '{{}}': Read-only file system; {PLACE}"),
        (error(errno.EFBIG), "Files may not be that large here: '{}' could not be written and was not changed; raise"),
    ],
    ids=str,
)
def test_a_failure_leaves_nothing(tmp_path: Path, make: Atomic, failure: BaseException, told: str | None) -> None:
    def write() -> None:
        with make(tmp_path / "a") as partial:
            fill(partial)
            raise failure

    with pytest.raises(type(failure) if told is None else UserError) as caught:
        write()
    assert caught.value is failure if told is None else told.format(tmp_path / "a") in str(caught.value)
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


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="Not a directory; choose a place where you can write"):
        files.write_text(tmp_path / "file" / "a", "text")


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, told in (
        (tmp_path / "file" / "a", f"Cannot write to the output directory '{tmp_path / 'file'}' (Not a directory)"),
        (tmp_path / "file" / "a" / "b", f"the output directory '{tmp_path / 'file' / 'a'}' (Not a directory)"),
        (tmp_path / ("a" * 300), f"Cannot write '{tmp_path / ('a' * 300)}': File name too long; {PLACE}"),
    ):
        with pytest.raises(UserError) as caught, files.atomic_directory(path):
            pytest.fail("nothing must be written")
        assert told in str(caught.value)
    assert os.listdir(tmp_path) == ["file"]


def test_an_existing_output_is_refused(tmp_path: Path) -> None:
    full, empty, file = tmp_path / "full", tmp_path / "empty", tmp_path / "file"
    full.mkdir()
    empty.mkdir()
    (full / "thesis").write_text("old")
    file.write_text("old")
    for path in (full, file):
        with pytest.raises(UserError) as caught, files.atomic_directory(path):
            pytest.fail("nothing must be written")
        assert str(caught.value) == f"The output '{path}' already exists: give another path, or remove it first."
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

    with pytest.raises(UserError, match="already exists"):
        write()
    assert os.listdir(tmp_path) == ["run"]
    assert os.listdir(path) == ["other"]


def test_a_place_to_write_to(tmp_path: Path) -> None:
    files.check_place(tmp_path / "new")
    with pytest.raises(UserError, match="is a directory: give the name of a file to write"):
        files.check_place(tmp_path)
    with pytest.raises(UserError, match=r"There is no directory '.*none' to write 'new' to: create it first"):
        files.check_place(tmp_path / "none" / "new")
    with pytest.raises(UserError, match="'-' stands for standard output, where this cannot be written: give the name"):
        files.check_place(Path("-"))


class TestStreams:
    """What is no regular file is written to and never replaced."""

    @pytest.fixture
    def pipe(self, tmp_path: Path) -> Path:
        os.mkfifo(tmp_path / "pipe")
        return tmp_path / "pipe"

    def test_a_device_stays_a_device(self) -> None:
        before = os.lstat("/dev/null")
        files.check_place(Path("/dev/null"))
        files.write_text(Path("/dev/null"), "text")
        assert stat.S_ISCHR(os.lstat("/dev/null").st_mode)
        assert os.lstat("/dev/null").st_ino == before.st_ino

    @pytest.mark.parametrize("linked", [False, True], ids=["itself", "link"])
    def test_a_pipe_gets_the_text(self, tmp_path: Path, pipe: Path, linked: bool) -> None:
        path = tmp_path / "link" if linked else pipe
        if linked:
            path.symlink_to("pipe")
        read: list[str] = []
        reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
        reader.start()
        files.check_place(path)
        files.write_text(path, "line\n" * 50_000)
        reader.join(timeout=60)
        assert read == ["line\n" * 50_000]
        assert stat.S_ISFIFO(os.lstat(pipe).st_mode)
        assert path.is_symlink() == linked
        assert list(tmp_path.glob(".*")) == []

    def test_what_was_not_finished_is_not_sent(self, tmp_path: Path, pipe: Path) -> None:

        def write() -> None:
            with files.atomic_file(pipe) as partial:
                partial.write_text("half")
                raise RuntimeError

        # Without a reader, to open the pipe would wait for ever.
        with pytest.raises(RuntimeError):
            write()
        assert os.listdir(tmp_path) == ["pipe"]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
    def test_a_full_device(self) -> None:
        with pytest.raises(UserError, match=r"^The disk is full: '/dev/full' could not be written"):
            files.write_text(Path("/dev/full"), "text")
        assert stat.S_ISCHR(os.lstat("/dev/full").st_mode)

    @pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="needs names for open files")
    @pytest.mark.parametrize("into", ["file", "pipe"])
    def test_standard_output_by_its_name(self, tmp_path: Path, into: str) -> None:
        script = (
            "from pathlib import Path; from bnce import files; print('before'); "
            "files.write_text(Path('/dev/stdout'), 'text\\n'); print('after')"
        )
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with open(tmp_path / "out", "w+b") as out:
            sink = out if into == "file" else subprocess.PIPE
            done = subprocess.run([sys.executable, "-c", script], env=environment, stdout=sink, check=True)
            printed = (tmp_path / "out").read_bytes() if into == "file" else done.stdout
        assert printed == b"before\ntext\nafter\n"
        assert os.listdir(tmp_path) == ["out"]


class TestLinks:
    """A link stays a link, and what it leads to is replaced whole."""

    def test_the_target_is_replaced_whole(self, tmp_path: Path) -> None:
        (tmp_path / "far").mkdir()
        target, link, second = tmp_path / "far" / "target", tmp_path / "link", tmp_path / "second"
        target.write_text("old")
        link.symlink_to("far/target")
        second.symlink_to("link")
        before = target.stat().st_ino
        with files.atomic_file(second) as partial:
            fill(partial)
            assert target.read_text() == "old"
            assert partial.parent.parent == target.parent, "a rename is atomic only within one file system"
        assert target.read_text() == "new"
        assert target.stat().st_ino != before
        assert link.is_symlink()
        assert second.is_symlink()
        assert sorted(os.listdir(tmp_path)) == ["far", "link", "second"]
        assert os.listdir(tmp_path / "far") == ["target"]

    def test_a_target_that_is_not_there_yet(self, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to("target")
        files.check_place(link)
        files.write_text(link, "new")
        assert link.is_symlink()
        assert (tmp_path / "target").read_text() == "new"

    def test_a_target_without_a_directory(self, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(tmp_path / "none" / "target")
        with pytest.raises(UserError, match=r"There is no directory '.*none' to write 'target' to: create it first"):
            files.check_place(link)
        with pytest.raises(UserError, match=r"^Cannot write '.*': No such file or directory"):
            files.write_text(link, "new")

    def test_links_in_a_circle(self, tmp_path: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to("link")
        for use in (files.check_place, lambda path: files.write_text(path, "new")):
            with pytest.raises(UserError, match="Too many levels of symbolic links; choose a place"):
                use(link)
        assert link.is_symlink()

    @pytest.mark.parametrize("exists", [True, False], ids=["empty", "missing"])
    def test_a_directory_behind_a_link(self, tmp_path: Path, exists: bool) -> None:
        link = tmp_path / "link"
        link.symlink_to("target")
        if exists:
            (tmp_path / "target").mkdir()
        with files.atomic_directory(link) as partial:
            fill(partial)
        assert link.is_symlink()
        assert (tmp_path / "target" / "inside").read_text() == "new"
        assert sorted(os.listdir(tmp_path)) == ["link", "target"]


def test_who_may_read_a_file_stays(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("old")
    path.chmod(0o600)
    files.write_text(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_current_directory_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path in (Path(), tmp_path):
        with pytest.raises(UserError, match="is the current directory: give the name of a new directory"):
            files.refuse_existing(path)


@pytest.mark.parametrize("make", [files.atomic_file, files.atomic_directory])
def test_what_killed_processes_left_is_removed(tmp_path: Path, make: Atomic) -> None:
    ended = process_that_ended()
    (tmp_path / f".a.{ended}.partial").mkdir()
    (tmp_path / f".a.{ended}.partial" / "a").write_text("half")
    kept = {f".a.{os.getppid()}.partial", f".b.{ended}.partial", f".a.b.{ended}.partial"}
    for name in kept:
        (tmp_path / name).mkdir()
    with files.held(tmp_path / f".a.{os.getppid()}.partial"), make(tmp_path / "a") as partial:
        fill(partial)
    assert set(os.listdir(tmp_path)) == {"a", *kept}


@pytest.mark.parametrize("kind", ["atomic_file", "atomic_directory"])
def test_a_writer_that_is_killed_leaves_nothing_for_long(tmp_path: Path, kind: str) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from bnce import files\n"
        f"with files.{kind}(Path(sys.argv[1])) as partial:\n"
        "    (partial / 'inside' if partial.is_dir() else partial).write_text('half')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "a"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run([sys.executable, "-c", script, str(path)], env=environment)
    assert killed.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 1
    with getattr(files, kind)(path) as partial:
        fill(partial)
    assert os.listdir(tmp_path) == ["a"]


class TestManifest:
    """What a directory says of its files, and of itself."""

    @pytest.fixture
    def written(self, tmp_path: Path) -> Path:
        (tmp_path / "a").write_text("words")
        digest = files.write_manifest(tmp_path, "it.json", {"format": 2, "size": 0.1, "loss": float("inf")}, ["a"])
        assert files.read_manifest(tmp_path, "it.json", 2)["sha256"] == digest
        return tmp_path

    def test_it_comes_back(self, written: Path) -> None:
        record = files.read_manifest(written, "it.json", 2)
        assert (record["format"], record["size"], record["loss"]) == (2, 0.1, None)
        assert record["files"] == {"a": {"sha256": files.digest_file(written / "a"), "bytes": 5}}
        files.verify(written, record, "a")

    def test_what_has_changed_is_named(self, written: Path) -> None:
        record = files.read_manifest(written, "it.json", 2)
        files.verify(written, record, "b")
        (written / "b").touch()
        with pytest.raises(ValueError, match=r"^b was added after it was written$"):
            files.verify(written, record, "b")
        (written / "a").write_text("Words")
        files.verify(written, record, "a", by_size=True)
        with pytest.raises(ValueError, match=r"^a has changed since it was written$"):
            files.verify(written, record, "a")
        (written / "a").write_text("word")
        with pytest.raises(ValueError, match=r"^a has 4 bytes, but 5 were written$"):
            files.verify(written, record, "a", by_size=True)
        (written / "a").unlink()
        with pytest.raises(ValueError, match=r"^a is missing$"):
            files.verify(written, record, "a")

    def test_a_manifest_of_another_format_or_that_has_changed(self, written: Path) -> None:
        with pytest.raises(ValueError, match=r"^it.json has format 2, and this version reads format 3$"):
            files.read_manifest(written, "it.json", 3)
        text = (written / "it.json").read_text()
        (written / "it.json").write_text(text.replace("0.1", "0.2"))
        with pytest.raises(ValueError, match=r"^it.json has changed since it was written$"):
            files.read_manifest(written, "it.json", 2)
        (written / "it.json").write_text(text[:-9])
        with pytest.raises(ValueError, match=r"^it.json cannot be read"):
            files.read_manifest(written, "it.json", 2)
        (written / "it.json").unlink()
        with pytest.raises(ValueError, match=r"^it.json is missing$"):
            files.read_manifest(written, "it.json", 2)
