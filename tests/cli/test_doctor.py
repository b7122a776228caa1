"""`bnce doctor`: a status and a line for everything looked at."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from command import Command

from bnce import BODIES, LOSSES, OPTIMISERS
from bnce.measure import doctor

Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def _roomy_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be space, whatever machine this is."""
    monkeypatch.setattr(doctor, "_disk", lambda device: doctor.Finding("disk", True, "roomy"))


def test_all_is_well(bnce: Command) -> None:
    record = bnce("doctor", "--device", "cpu", "--json").json
    assert record["well"] is True
    assert [finding["name"] for finding in record["findings"]] == [
        "versions", "device", "disk", *(f"loss {name}" for name in LOSSES.names), "loss adaptive bnce",
        *(f"model {name}" for name in BODIES.names), *(f"optimiser {name}" for name in OPTIMISERS.names),
        "noise sampling",
    ]  # fmt: skip
    plain = bnce("doctor", "--device", "cpu")
    assert plain.status == 0
    assert all(line.startswith("ok ") for line in plain.stdout.splitlines())


def test_something_is_wrong(bnce: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(device: object) -> None:
        raise RuntimeError("no [/such] thing")

    monkeypatch.setattr(doctor, "_sampling", broken)
    outcome = bnce("doctor", "--device", "cpu", "--json")
    assert outcome.status == 1
    record = json.loads(outcome.stdout)
    assert record["well"] is False
    assert record["findings"][-1]["detail"] == "RuntimeError: no [/such] thing"
    plain = bnce("doctor", "--device", "cpu")
    assert plain.status == 1
    assert plain.stdout.splitlines()[-1] == "wrong noise sampling: RuntimeError: no [/such] thing"


def test_an_unknown_device(refused: Refused) -> None:
    assert "Unknown device 'x'" in refused("doctor", "--device", "x")


def test_a_corpus_that_is_whole(bnce: Command, corpus: Path) -> None:
    record = bnce("doctor", corpus, "--json").json
    assert (record["path"], record["kind"], record["well"]) == (str(corpus), "corpus", True)
    names = ["corpus.json", "vocab.txt", "train.npy", "valid.npy", "test.npy", "counts.npy", "spelling.safetensors"]
    assert [finding["name"] for finding in record["findings"]] == names
    plain = bnce("doctor", corpus)
    assert plain.status == 0
    assert plain.stdout.splitlines()[-1] == f"The corpus '{corpus}' is complete and undamaged."


def test_a_run_that_is_whole(bnce: Command, trained: Path) -> None:
    record = bnce("doctor", trained, "--json").json
    assert (record["path"], record["kind"], record["well"]) == (str(trained), "run", True)
    names = {finding["name"] for finding in record["findings"]}
    assert names == {path.name for path in trained.iterdir() if path.is_file()}


def test_what_is_damaged_is_named(bnce: Command, corpus: Path, trained: Path, tmp_path: Path) -> None:
    for directory in (corpus, trained):
        copy = shutil.copytree(directory, tmp_path / directory.parent.name)
        files = [path.name for path in copy.iterdir() if path.is_file()]
        for name in files:
            content = (copy / name).read_bytes()
            (copy / name).write_bytes(content[: len(content) // 2])
            outcome = bnce("doctor", copy)
            assert outcome.status == 1
            assert outcome.stderr == ""
            assert f"wrong {name}: " in outcome.stdout
            verdict = outcome.stdout.splitlines()[-1]
            assert f"'{copy}' is damaged: " in verdict
            assert name in verdict
            (copy / name).write_bytes(content)
        (copy / "vocab.txt").unlink()
        outcome = bnce("doctor", copy, "--json")
        assert outcome.status == 1
        assert json.loads(outcome.stdout)["well"] is False


def test_an_exported_run(bnce: Command, trained: Path, tmp_path: Path) -> None:
    exported = tmp_path / "exported"
    bnce("export", trained, "--to", "onnx", "--out", exported)
    whole = bnce("doctor", exported)
    assert whole.status == 0
    assert whole.stdout.splitlines()[-1] == f"The exported run '{exported}' is complete and undamaged."
    with open(exported / "weights.bin", "r+b") as file:
        file.write(b"\xff")
    assert bnce("generate", exported, "--next", 1).status == 0, "opening it is quick, and reads no tables"
    outcome = bnce("doctor", exported)
    assert outcome.status == 1
    assert outcome.stdout.splitlines()[-1] == (
        f"The exported run '{exported}' is damaged: weights.bin. Restore the damaged files, or export the run again."
    )


def test_neither_a_corpus_nor_a_run(refused: Refused, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        assert "is neither a corpus nor a run" in refused("doctor", path)
