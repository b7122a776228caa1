"""`bnce prepare --workers ADDRESS`: the bytes of a local run whatever happens to workers, or one sentence."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow
import pytest
from command import Command, Refused
from dask_machines import Machines

from bnce import UserError, prepare
from bnce.machine import cluster
from bnce.machine.cluster import connected
from bnce.text import blocks, shares
from tests.text.published import dump

pytest.importorskip("distributed", reason="the extra cluster is not installed: Dask is not tested")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    started = Machines(tmp_path_factory.mktemp("machines"))
    yield started
    started.stop()


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(f"Document {n}. It says word{n % 91}, and word{n % 7}!\n" for n in range(300)))
    return path


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def write_gzip(text: Path) -> list[str]:
    packed = text.with_name("text.txt.gz")
    packed.write_bytes(gzip.compress(text.read_bytes()))
    return [str(packed)]


def write_zstandard(text: Path) -> list[str]:
    packed = text.with_name("text.txt.zst")
    with pyarrow.CompressedOutputStream(str(packed), "zstd") as file:
        file.write(text.read_bytes())
    return [str(packed)]


def write_dump(text: Path) -> list[str]:
    text.with_name("enwik9").write_bytes(dump(60))
    return ["ltcb", str(text.with_name("enwik9"))]


@pytest.mark.parametrize("sources", [lambda text: [text], write_gzip, write_zstandard, write_dump])
def test_same_bytes(
    bnce: Command,
    machines: Machines,
    text: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    sources: Callable[[Path], list[str]],
) -> None:
    given = sources(text)
    assert bnce("prepare", *given, "--out", place / "local", "--workers", 1).status == 0
    monkeypatch.setattr(blocks, "BLOCK_CHARACTERS", 1000)
    monkeypatch.setattr(shares, "SHARE_BYTES", 1000)
    monkeypatch.chdir(place)
    outcome = bnce("prepare", *given, "--out", "remote", "--workers", machines.file, "--json")
    assert outcome.json["corpus"] == "remote"
    assert outcome.stderr == ""
    assert files_of(place / "local") == files_of(place / "remote")
    assert {path.name for path in place.iterdir()} == {"local", "remote"}


# Lambdas, which travel by value.
num_lost = lambda dask_scheduler: sum(prefix.suspicious for prefix in dask_scheduler.task_prefixes.values())  # noqa: E731
is_victim_busy = lambda dask_scheduler: any(  # noqa: E731
    worker.name == "w0" and worker.processing for worker in dask_scheduler.workers.values()
)


def test_lost_worker_and_lost_scheduler(text: Path, place: Path, tmp_path: Path, monkeypatch) -> None:
    """What a killed worker was at is done by the others; without its scheduler a cluster does nothing."""
    prepare([text], place / "local")
    monkeypatch.setattr(shares, "SHARE_BYTES", 300)  # so many that there are tasks for the victim, however late it is
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 2)
    place_of_logs = tmp_path / "machines"
    place_of_logs.mkdir()
    machines = Machines(place_of_logs)
    killed: list[int] = []

    def kill_worker(*_: int) -> None:
        if not killed:
            victim = machines.workers[0]
            killed.append(victim.pid)
            # It stands still in the middle of a task, and is given more, before it ends.
            os.kill(victim.pid, signal.SIGSTOP)
            threading.Thread(target=end, args=(victim,), daemon=True).start()

    def end(victim: subprocess.Popen[bytes]) -> None:
        time.sleep(1)
        while not executor.client.run_on_scheduler(is_victim_busy):
            time.sleep(0.1)
        victim.kill()

    def kill_scheduler(done: int, total: int) -> None:
        machines.scheduler.kill()

    try:
        with connected(str(machines.file)) as executor:
            prepare([text], place / "remote", executor=executor, progress=kill_worker)
            assert machines.workers[0].wait(30) == -signal.SIGKILL
            # Tasks were lost with it, and so were run again.
            assert executor.client.run_on_scheduler(num_lost) > 0
        assert files_of(place / "local") == files_of(place / "remote")
        with pytest.raises(UserError) as caught, connected(str(machines.file)) as executor:
            prepare([text], place / "never", executor=executor, progress=kill_scheduler)
        told = f"The scheduler '{machines.address}' was lost or stopped: start it and its workers, and run it again."
        assert str(caught.value) == told
        assert {path.name for path in place.iterdir()} == {"local", "remote"}
    finally:
        machines.stop()


def test_interrupt_leaves_nothing(machines: Machines, place: Path) -> None:
    command = [sys.executable, "-m", "bnce", "prepare", "-", "--out", str(place / "c"), "--workers", machines.address]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdin is not None
    # More blocks than wait for their turn.
    process.stdin.write(b"some words of text\n" * 500_000)
    process.stdin.flush()
    while not any(path.stat().st_size for path in place.glob(".c.*.partial/scratch/*.numbers")):
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out) == (130, b"")
    assert err == b"bnce: Stopped by Ctrl-C before the end.\n"
    assert list(place.iterdir()) == []


def test_task_errors_are_the_users(bnce: Command, machines: Machines, text: Path, place: Path) -> None:
    text.write_bytes(text.read_bytes() + b"\xff\n")
    outcome = bnce("prepare", text, "--out", place / "c", "--workers", machines.file)
    assert outcome.status == 2
    assert "invalid UTF-8" in outcome.stderr
    assert list(place.iterdir()) == []


def test_versions_must_be_the_same(
    refused: Refused, machines: Machines, text: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = cluster.__version__
    monkeypatch.setattr(cluster, "__version__", "99.1")
    told = refused("prepare", text, "--out", place / "c", "--workers", machines.file)
    assert f" has bnce {own} on Python 3." in told
    assert " but this is bnce 99.1 on Python 3." in told
    assert told.endswith(": install the same version wherever workers run.")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nonsense://x", "nowhere", "", "text.txt"])
def test_nobody_answers(
    refused: Refused, text: Path, place: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr("distributed.Client", None)  # which takes long to give up
    monkeypatch.chdir(text.parent)
    told = refused("prepare", text, "--out", place / "c", "--workers", address)
    assert f"No Dask scheduler answers at '{address}': start one with 'dask scheduler'" in told
    assert list(place.iterdir()) == []


def test_cluster_without_workers(
    refused: Refused, text: Path, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "ANSWER_SECONDS", 2)
    (tmp_path / "machines").mkdir()
    machines = Machines(tmp_path / "machines", num_workers=0)
    try:
        told = refused("prepare", text, "--out", place / "c", "--workers", machines.file)
    finally:
        machines.stop()
    assert told == f"bnce: The cluster has no workers: start some with 'dask worker {machines.address}'."
    assert list(place.iterdir()) == []


def test_missing_package(refused: Refused, text: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    told = refused("prepare", text, "--out", place / "c", "--workers", "tcp://host:8786")
    assert told == (
        "bnce: A Dask cluster needs the package 'distributed', which is not installed: run pip install 'bnce[cluster]'."
    )
