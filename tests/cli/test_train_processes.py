"""`bnce train` in two processes that torchrun starts: one log, one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from command import call, run_command
from run_files import MODEL_FILE, states_of
from safetensors.torch import load_file

from tests.small_corpus import small_corpus

# What torchrun starts: `bnce`, of which the second process kills itself once, when there is a state to go on from.
KILLED_ONCE = """
import os, runpy, sys
from pathlib import Path
import torch
from kill_itself import kill_self_in

def has_a_state(*_):
    if not any(Path(sys.argv[sys.argv.index("--out") + 1]).glob("state-*.safetensors")):
        return False
    Path(__file__).with_name("killed").touch()
    return True

if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
    kill_self_in(torch.Tensor, "backward", has_a_state)
runpy.run_module("bnce", run_name="__main__")
"""
SETTINGS = ("training.groups=2", "training.batch_size=4", "training.num_steps=5", "model.hidden_size=8")


def command(corpus: Path, out: Path, *more: str) -> list[str]:
    """Write what somebody types."""
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return ["train", "small", "--corpus", str(corpus), "--out", str(out), *settings, *more]


def torchrun(*given: str) -> list[str]:
    """Write what starts it in two processes. By itself, torchrun would take port 29500, as others beside us would."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *given]


def test_two_processes_train_one_run_and_ctrl_c_saves_it_once(tmp_path: Path) -> None:
    """The first process tells and writes; a signal to the command stops all; --resume goes on to the end."""
    corpus = small_corpus(tmp_path / "corpus", num_train=4_000).directory
    out = tmp_path / "run"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    more = ["--set", "training.epochs=2000", "--set", "training.checkpoint_seconds=0.2"]
    began = subprocess.Popen(
        torchrun("-m", "bnce", *command(corpus, out, *more)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    deadline = time.monotonic() + 60
    while not states_of(out) and time.monotonic() < deadline and began.poll() is None:
        time.sleep(0.1)
    os.killpg(began.pid, signal.SIGINT)  # as a terminal does
    _, told = began.communicate(timeout=60)
    assert began.returncode in (128 + signal.SIGINT, 1), told
    assert told.count("Stopped and saved at step") == 1, told
    assert "Traceback" not in told.partition("Stopped and saved")[0]
    assert "Training on 2 processes, each on CPU, 1 thread; OMP_NUM_THREADS sets the number of threads of each" in told
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["status"] == "stopped"
    assert summary["processes"] == 2
    step = summary["step"]
    # In one process: that one goes on in two is tested with torchrun below.
    words = ["train", "--out", str(out), "--resume", "--json"]
    record = call(*words, "--set", "training.epochs=1", "--set", "training.evaluations_per_epoch=1").json
    assert record["status"] == "finished"
    assert record["step"] >= step
    assert record["test"]["ppl_f"] > 1


def test_groups_that_cannot_be_divided_are_one_sentence(tmp_path: Path) -> None:
    """The first process says why, the other one says nothing, and no run is left."""
    corpus = small_corpus(tmp_path / "corpus").directory
    ended = subprocess.run(
        torchrun("-m", "bnce", *command(corpus, tmp_path / "run", "--set", "training.groups=3")),
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 1
    (told,) = (line for line in ended.stderr.splitlines() if line.startswith("bnce: "))
    assert told.startswith("bnce: training.groups is 3, but the run has 2 processes")
    assert not (tmp_path / "run").exists()


def test_torchrun_starts_a_run_again_and_it_goes_on(tmp_path: Path) -> None:
    """One process is killed; all are started again with the same command, and the run ends as an unbroken one."""
    corpus = small_corpus(tmp_path / "corpus", num_train=4_000).directory
    settings = ("training.deterministic=true", "training.epochs=1", "training.evaluations_per_epoch=3")
    more = [word for setting in settings for word in ("--set", setting)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    # In one process: with gradients added up in order, the number of processes changes no bit.
    run_command(*command(corpus, tmp_path / "unbroken", *more))
    out = tmp_path / "run"
    script = tmp_path / "killed.py"
    script.write_text(KILLED_ONCE, encoding="utf-8")
    again = subprocess.run(
        torchrun("--max-restarts", "1", str(script), *command(corpus, out, *more)),
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "killed").exists()
    expected = load_file(tmp_path / "unbroken" / MODEL_FILE)
    for name, tensor in load_file(out / MODEL_FILE).items():
        assert torch.equal(tensor, expected[name]), name
