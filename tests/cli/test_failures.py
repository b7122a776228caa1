"""What a machine cannot do, and what nobody can: one sentence and status 2, whichever command meets it."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from command import Command, Refused, settings

from bnce import UserError, cli

HUGE = "9" * 23
LONG = "x" * 5000


def error_of(make: Callable[..., object], *sizes: int) -> Exception:
    """Ask a library for more memory than there can be."""
    with pytest.raises((MemoryError, RuntimeError)) as caught:
        make(*sizes)
    return caught.value


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: error_of(torch.empty, 2**50), "full (4,194,304.0 GiB more were requested): give smaller sizes"),
        (lambda: error_of(np.empty, 2**58), "bnce: The memory is full: give smaller sizes or less text, or close"),
        (MemoryError, "bnce: The memory is full: give smaller sizes or less text, or close other programs."),
        (lambda: OSError(errno.ENOMEM, os.strerror(errno.ENOMEM), "ids.npy"), "bnce: The memory is full: give"),
        (lambda: ImportError("libtorch.so: failed to map segment from shared object"), "bnce: The memory is full"),
        (lambda: RuntimeError("CUDA out of memory. Tried"), "bnce: The GPU's memory is full: give smaller sizes"),
        (lambda: error_of(torch.empty, 2**40, 2**40), "bnce: A number or a size is too large ("),
        (lambda: OverflowError("Python int too large to convert to C long"), "is too large (Python int too large"),
        (lambda: RecursionError("maximum recursion depth exceeded"), "bnce: A file is nested too deeply"),
        (lambda: RuntimeError("can't start new thread"), "bnce: No more threads can be started"),
        (lambda: OSError(errno.EIO, os.strerror(errno.EIO)), "bnce: Cannot read or write a file (Input/output error)"),
        (
            lambda: PermissionError(errno.EACCES, os.strerror(errno.EACCES), "secret.txt"),
            "bnce: Cannot read or write 'secret.txt' (Permission denied): check its permissions.",
        ),
        (
            lambda: IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), b"text\xff"),
            "bnce: Cannot read or write 'text\\udcff' (Is a directory): give the name of a file.",
        ),
        (
            lambda: OSError(errno.EFBIG, os.strerror(errno.EFBIG), "out"),
            "bnce: Cannot read or write 'out' (File too large): raise the limit (ulimit -f).",
        ),
        (
            lambda: OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), LONG),
            f"bnce: Cannot read or write '{'x' * 59}…{'x' * 59}' (File name too long): give a shorter path.",
        ),
        (lambda: OSError("3002 requested and 1520 written"), "a file (3002 requested and 1520 written): check the"),
        (lambda: UserError("A path has\na line\x1b[0m in it."), "bnce: A path has\\na line\\x1b[0m in it."),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Exception], told: str
) -> None:
    def run(app: object) -> None:
        raise make()

    monkeypatch.setattr(cli, "run_app", run)
    assert told in refused("info", "ltcb")


def test_an_error_that_nobody_foresaw_is_one_sentence_that_says_how_to_see_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(app: object) -> None:
        raise KeyError("colour\nof the sky")

    monkeypatch.setattr(cli, "run_app", run)
    monkeypatch.delenv("BNCE_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    assert ended.value.code == 1
    assert printed.out == ""
    assert printed.err == (
        "bnce: Unexpected error, KeyError ('colour\\nof the sky'): run the command again with "
        "BNCE_DEBUG=1 to see where it comes from, and report it.\n"
    )
    monkeypatch.setenv("BNCE_DEBUG", "1")
    with pytest.raises(SystemExit):
        cli.main()
    told = capsys.readouterr().err
    assert told.startswith("Traceback (most recent call last)")
    assert "in run\n" in told
    assert told.endswith("and report it.\n")


@pytest.mark.parametrize(
    "error", [ValueError("wrong"), RuntimeError("shapes differ"), TypeError("int + str"), KeyError("x")]
)
def test_a_bug_is_not_explained_away(bnce: Command, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run(app: object) -> None:
        raise error

    monkeypatch.setattr(cli, "run_app", run)
    with pytest.raises(type(error)):  # which the fixture gives back where it is said to be unexpected
        bnce("info")


# Every command, by what it is given: {run} and {text} are there and whole.
NUMBERS = [
    ["evaluate", "{run}", "--max-words", HUGE],
    ["generate", "{run}", "--top-k", HUGE],
    ["generate", "{run}", "--next", HUGE],
    ["generate", "{run}", "--seed", HUGE],
    ["generate", "{run}", "--temperature", "inf"],
    ["rescore", "{run}", "{text}", "--weight", "lm=nan"],
    ["prepare", "{text}", "--out", "out", "--vocab-size", HUGE],
    ["prepare", "{text}", "--out", "out", "--workers", HUGE],
    ["prepare", "{text}", "--out", "out", "--fraction", "inf"],
    ["info", "wiki", "--vocab-size", HUGE],
    ["info", "wiki", "--set", f"model.hidden_size={HUGE}"],
    ["train", "wiki", "--corpus", "{corpus}", "--out", "out", "--set", f"training.batch_size={10**30}"],
    ["train", "wiki", "--corpus", "{corpus}", "--out", "out", "--set", f"training.seed={HUGE}"],
    ["train", "wiki", "--corpus", "{corpus}", "--out", "out", "--set", f"optimiser.learning_rate={'9' * 400}"],
    ["train", "wiki", "--corpus", "{corpus}", "--out", "out", "--set", f"training.epochs={'9' * 5000}"],
    ["train", "wiki", "--corpus", "{corpus}", "--out", "out", "--set", f"training.epochs={'[' * 5000}"],
    ["serve", "{run}", "--port", HUGE],
    ["serve", "{run}", "--max-wait-ms", "inf"],
]


@pytest.mark.parametrize("arguments", NUMBERS, ids=lambda arguments: " ".join(arguments)[:60])
def test_numbers_that_nothing_can_be(
    refused: Refused,
    trained: Path,
    corpus: Path,
    texts: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    monkeypatch.chdir(place)
    paths = {"{run}": str(trained), "{text}": str(texts / "test.txt"), "{corpus}": str(corpus)}
    told = refused(*(paths.get(argument, argument) for argument in arguments))
    assert len(told) < 500
    assert list(place.iterdir()) == []


def test_a_number_is_named_by_its_option(refused: Refused, trained: Path) -> None:
    assert "--next has 23 digits: give a number up to 9,223,372,036,854,775,807." in refused(
        "generate", trained, "--next", HUGE
    )
    assert "--top-p is nan: give a finite number." in refused("generate", trained, "--top-p", "nan")


PATHS = [
    ["evaluate", "{bad}"],
    ["evaluate", "{run}", "--text", "{bad}"],
    ["evaluate", "{run}", "--corpus", "{bad}"],
    ["calibrate", "{bad}", "--text", "{text}", "--out", "out"],
    ["calibrate", "{run}", "--text", "{bad}", "--out", "out"],
    ["score", "{bad}", "{text}"],
    ["score", "{run}", "{bad}"],
    ["rescore", "{bad}", "{text}"],
    ["rescore", "{run}", "{bad}"],
    ["rescore", "{run}", "{text}", "--out", "{bad}"],
    ["rescore", "{run}", "{text}", "--weights", "{bad}"],
    ["generate", "{bad}"],
    ["info", "{bad}"],
    ["compare", "{bad}"],
    ["vocab", "{run}", "--out", "out", "--add", "{bad}"],
    ["export", "{bad}", "--to", "onnx", "--out", "out"],
    ["serve", "{bad}", "--port", "0"],
    ["prepare", "{bad}", "--out", "out"],
    ["prepare", "{text}", "--out", "out", "--vocab", "{bad}"],
    ["prepare", "obwb", "{bad}", "--out", "out"],
    ["prepare", "wikitext", "{bad}", "--out", "out"],
    ["train", "{bad}"],
    ["train", "wiki", "--corpus", "{bad}"],
    ["train", "--resume", "--out", "{bad}"],
    ["experiment", "ltcb", "--corpus", "{bad}", "--out", "out"],
    ["interpolate", "{run}", "{bad}", "--valid", "{text}"],
    ["interpolate", "{run}", "{run}", "--valid", "{bad}"],
    ["fetch", "ltcb", "--from", "{bad}", "--cache", "out"],
]


@pytest.mark.parametrize("bad", [LONG, "/".join(["y" * 200] * 30), "."], ids=["long", "deep", "directory"])
@pytest.mark.parametrize("arguments", PATHS, ids=lambda arguments: " ".join(arguments))
def test_paths_that_lead_nowhere(
    refused: Refused,
    trained: Path,
    texts: Path,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    bad: str,
) -> None:
    monkeypatch.chdir(place)
    paths = {"{run}": str(trained), "{text}": str(texts / "test.txt"), "{bad}": bad}
    assert len(refused(*(paths.get(argument, argument) for argument in arguments))) < 1000
    assert list(place.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
@pytest.mark.parametrize("arguments", [argument for argument in PATHS if argument[0] in ("score", "evaluate", "info")])
def test_a_file_that_breaks_while_it_is_read(
    refused: Refused, trained: Path, texts: Path, arguments: list[str]
) -> None:
    paths = {"{run}": str(trained), "{text}": str(texts / "test.txt"), "{bad}": "/proc/self/mem"}
    refused(*(paths.get(argument, argument) for argument in arguments))


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read")
def test_a_recipe_that_cannot_be_read(refused: Refused, corpus: Path, place: Path) -> None:
    told = refused("train", "/proc/self/mem", "--corpus", corpus, "--out", place / "run")
    assert told.startswith("bnce: Cannot read '/proc/self/mem': Input/output error")
    assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    "arguments", [["info", "{run}"], ["train", "--resume", "--out", "{run}"]], ids=["info", "train"]
)
def test_a_run_with_a_file_that_cannot_be_read(
    refused: Refused, trained: Path, tmp_path: Path, arguments: list[str]
) -> None:
    """A directory stands for a file that one may not read, which root always may."""
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    told = refused(*(str(run) if argument == "{run}" else argument for argument in arguments))
    assert f"'{run / 'metrics.jsonl'}' (Is a directory)" in told


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """Let no file grow, for as long as it takes: pytest's own output may be one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_that_grows_larger_than_it_may(refused: Refused, trained: Path, texts: Path, place: Path) -> None:
    for arguments in (
        ["prepare", texts / "train.txt", "--out", place / "c", "--valid", texts / "valid.txt", "--workers", "1"],
        ["export", trained, "--to", "safetensors", "--out", place / "e"],
    ):
        with small_files():
            told = refused(*arguments)
        assert "raise the limit (ulimit -f)" in told
    assert list(place.iterdir()) == []


def test_a_run_that_does_not_fit_into_memory(bnce: Command, corpus: Path, place: Path) -> None:
    options = ["--corpus", corpus, "--out", place / "run", "--device", "cpu"]
    outcome = bnce("train", "wiki", *options, *settings("model.hidden_size=1000000"))
    assert outcome.status == 2
    assert "Traceback" not in outcome.stderr
    assert outcome.stderr.splitlines()[-1] == (
        "bnce: The memory is full: relu-lstm with chunk-bnce does not fit. Lower training.batch_size (8) or the "
        "model's sizes, or stop other programs there."
    )
    # The corrected command is not refused by what the failed one left.
    assert bnce("train", "wiki", *options, *settings()).status == 0
