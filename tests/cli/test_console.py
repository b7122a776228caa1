"""What every command shares: JSON that any program reads, bars that appear late, and errors as one sentence."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import Command, Refused
from rich.console import Console

from bnce import __version__, cli
from bnce.cli.console import print_json, progress_bar
from bnce.cli.display import Display
from bnce.cli.help import HelpCommand
from bnce.recipes import load_recipe


def test_json_is_one_line_of_plain_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": float("nan"), "b": [1.5, float("inf"), (float("-inf"), 2)], "c": {"d": float("nan")}, "e": "ü"})
    printed = capsys.readouterr()
    assert printed.out == '{"a": null, "b": [1.5, null, [null, 2]], "c": {"d": null}, "e": "ü"}\n'
    assert printed.err == ""
    assert json.loads(printed.out)["e"] == "ü"


def test_a_bar_that_never_moves_never_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("bnce.cli.console.stderr", Console(file=written, width=100, force_terminal=True))
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar() as bar:
        task = bar.add_task("working", total=2)
    assert written.getvalue() == ""
    with progress_bar("extra") as bar:
        task = bar.add_task("working", total=2, extra="")
        bar.update(task, completed=2, extra="nearly done")
    for shown in ("working", "100%", "nearly done"):
        assert shown in written.getvalue()


def test_without_a_terminal_there_is_one_line_per_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("bnce.cli.progress.time.monotonic", lambda: now)
    with progress_bar("extra") as bar:
        task = bar.add_task("working [bold]hard[/bold]", total=200, extra="")
        for second in range(151):
            now = 1000.0 + second
            bar.update(task, completed=second, extra=f"at {second}")
    printed = capsys.readouterr()
    assert printed.out == ""
    # Two minutes, and nothing at the end: what was done says so itself.
    assert [line.partition(", 0:")[0] for line in printed.err.splitlines()] == [
        "working hard 30%: at 60",
        "working hard 60%: at 120",
    ]


def test_a_run_without_a_terminal_tells_of_every_evaluation(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr("bnce.cli.progress.time.monotonic", lambda: now)
    display = Display(load_recipe("wiki", model="relu-lstm", loss="chunk-bnce"), 100_000)
    record = {"step": 1200, "epoch": 0.5, "loss": 5.25, "ppl_n": 99.04, "ppl_f": 98.06, "words_per_second": 15_000.0}
    display.advanced(tokens=100_000, words_per_second=15_000.0, loss=5.25, seconds_left=None)
    display.evaluating("valid", 0, 1000)
    now += 61
    display.evaluating("valid", 500, 1000)
    display.evaluating("valid", 1000, 1000)
    display.evaluated(record)
    now += 61
    display.evaluating("test", 0, 1000)  # which has just begun, and has nothing to tell
    display.advanced(tokens=150_000, words_per_second=15_000.0, loss=5.25, seconds_left=3723.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[2].endswith(", 1:02:03 left"), "as the training tells, with what its evaluations take"
    first, second, third = (re.sub(r", \d:\d\d:\d\d (so far|left)", "", line) for line in lines)
    assert first.startswith("evaluating on valid 50%: ")
    assert (
        second
        == "relu-lstm chunk-bnce step 1,200, epoch 0.50: loss 5.250, validation PPLn 99.0 PPLf 98.1, 15,000 words/s"
    )
    assert third == "relu-lstm chunk-bnce 75%: 15,000 w/s, PPLn 99.0 PPLf 98.1, loss 5.250"


def test_an_evaluation_has_a_bar_of_its_own_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("bnce.cli.console.stderr", Console(file=written, width=130, force_terminal=True))
    monkeypatch.setenv("TERM", "xterm")
    display = Display(load_recipe("wiki", model="relu-lstm", loss="chunk-bnce"), 100_000)
    display.advanced(tokens=100_000, words_per_second=15_000.0, loss=5.25, seconds_left=None)
    for split in ("valid", "test"):
        written.truncate(0)
        for num_done in (250, 500):
            display.evaluating(split, num_done, 1000)
            display.bar.refresh()
        assert f"evaluating on {split}" in written.getvalue()
        display.evaluating(split, 1000, 1000)
        written.truncate(0)
        display.bar.refresh()
        assert "evaluating" not in written.getvalue()
    display.bar.stop()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["trian"], "'trian'"),
        (["train", "--modle", "lstm"], "--modle"),
        (["train", "wiki", "--device"], "'?--device'? requires an argument: see 'bnce train --help'"),
        (
            ["experiment", "ltcb", "--corpus", "--out", "g"],
            "'--corpus' requires an argument, but the option '--out' follows it: see 'bnce experiment --help'",
        ),
        (
            ["experiment", "ltcb", "--corpus", "--out=g"],
            "'--corpus' requires an argument, but the option '--out=g' follows it: see 'bnce experiment --help'",
        ),
        (
            ["train", "-o", "--ordre", "3"],
            "'-o' requires an argument, but '--ordre' follows it, which looks like an option: give the argument; if "
            "'--ordre' is it, write '--out=--ordre'",
        ),
        (["ngram", "text", "--", "--out", "g"], "Missing option '--out': see 'bnce ngram --help'"),
        (["train", "-o", "--json"], "'-o' requires an argument, but the option '--json' follows it"),
        (["ngram", "text"], "Missing option '--out': see 'bnce ngram --help'"),
        (["interpolate"], "Missing "),
        (["evaluate", "run", "--max-words", "many"], "--max-words received 'many': give a whole number in digits"),
        (["train", "--epochs", "2"], "No such option: --epochs.*such as --set training.epochs=VALUE: see 'bnce train"),
        (["score", "run", "--seed", "2"], "No such option: --seed(?!.*--set)"),
        (["evaluate", "run", "--max-words=-1"], "--max-words received '-1': .*0"),
        (["generate", "run", "other"], "unexpected extra argument"),
        (["--none"], "--none"),
    ],
)
def test_a_wrong_command_line_is_one_sentence(refused: Refused, arguments: list[str], told: str) -> None:
    assert re.search(told, refused(*arguments))


def test_only_the_command_that_was_typed_is_built(bnce: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """To build all of them takes longer than some need to run."""
    built: list[str] = []
    plain = HelpCommand.__init__

    def note(self: HelpCommand, *arguments: Any, **options: Any) -> None:
        plain(self, *arguments, **options)
        built.append(str(self.name))

    monkeypatch.setattr(HelpCommand, "__init__", note)
    assert bnce("info", "--help").status == 0
    assert built == ["info"]
    assert bnce("--help").status == 0
    assert len(built) == 1 + len(cli.app.registered_commands)


def test_without_a_command_there_is_help(bnce: Command) -> None:
    alone, asked = bnce(), bnce("--help")
    assert (alone.status, alone.stderr) == (0, "")
    assert alone.stdout == asked.stdout
    assert "Usage: bnce [OPTIONS] COMMAND" in alone.stdout


def test_a_reader_that_leaves_is_no_error_of_ours(bnce: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*arguments: object, **keywords: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(cli, "run_app", gone)
    outcome = bnce("info", "ltcb")
    assert (outcome.status, outcome.stderr) == (1, "")


def test_the_program_itself(tmp_path: Path) -> None:
    # Once for real: the module runs, the status is the process's, and help needs neither PyTorch nor NumPy.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-m", "bnce", "prepare", "missing.txt", "--out", "corpus"]
    refused = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr == "bnce: There is no file 'missing.txt': check the path.\n"
    assert list(tmp_path.iterdir()) == []
    script = "import sys, bnce.cli; sys.exit(any(name in sys.modules for name in ('torch', 'numpy', 'pyarrow')))"
    light = subprocess.run([sys.executable, "-c", script], env=environment, timeout=120)
    assert light.returncode == 0


def test_output_is_utf8_in_every_locale_and_json_whatever_a_path_holds() -> None:
    script = (
        "from bnce.cli import console, streams; streams.open_streams(); "
        "console.print_json({'text': 'naïve 漢字', 'run': b'runs/\\xff'.decode('utf-8', 'surrogateescape')})"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"}
    printed = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    record = json.loads(printed.stdout.decode("utf-8"))
    assert record == {"text": "naïve 漢字", "run": "runs/\udcff"}


def test_the_version(bnce: Command) -> None:
    outcome = bnce("--version")
    assert (outcome.status, outcome.stdout, outcome.stderr) == (0, f"bnce {__version__}\n", "")


@pytest.mark.parametrize("width", [80, 130])
def test_progress_of_training_is_whole_on_a_narrow_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest line: every figure that is shown is shown in full, and a wide terminal shows more."""
    written = io.StringIO()
    shown = Console(file=written, width=width, force_terminal=True, color_system=None)
    monkeypatch.setattr("bnce.cli.console.stderr", shown)
    config = load_recipe("wiki", model="relu-lstm", loss="chunk-bnce")
    display = Display(config, 108_954_513)
    display.evaluated({"ppl_n": 1234.56, "ppl_f": 1234.56})
    display.advanced(tokens=108_954_513, words_per_second=12_345_678.0, loss=12.345, seconds_left=3723.0)
    display.bar.stop()
    line = [line for line in written.getvalue().splitlines() if "chunk-bnce" in line][-1]
    assert "…" not in line
    assert "12,345,678 w/s" in line
    assert "PPLn 1234.6 PPLf 1234.6" in line
    assert line.rstrip().endswith("left 1:02:03")
    assert ("loss 12.345" in line) == ("━" in line) == (width == 130)
