"""An exported run: opened like a run, says what the run says, and is computed without PyTorch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from export.exported_runs import make_run
from small_corpus import small_model

import bnce
from bnce import UserError
from bnce.export.to_onnx import export_onnx
from bnce.runs.model_file import save_weights
from bnce.scoring.export_record import is_exported
from bnce.scoring.exported import load_exported
from bnce.scoring.loading import needs_torch, write_mixture

TEXTS = ["w3 w4 w5", "", "w3 zebra w4", "w3 w4 w5"]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Give a run with a spelling model, and its export."""
    directory = tmp_path_factory.mktemp("runs")
    run = make_run(directory, "relu-lstm")
    save_weights(run, small_model("relu-lstm").state_dict(), step=1)
    export_onnx(run, directory / "out")
    return run.path, directory / "out"


def test_says_what_the_run_says(both: tuple[Path, Path]) -> None:
    run, exported = map(bnce.load, both)
    assert exported.kind == "run"
    assert (exported.log_z, exported.vocab_size, exported.device) == (run.log_z, run.vocab_size, "cpu")
    for options in ({}, {"normalised": True}, {"carry": True}, {"spell": True}):
        for some, others in zip(exported.score(TEXTS, **options), run.score(TEXTS, **options), strict=True):
            np.testing.assert_allclose(some.log10_probs, others.log10_probs, atol=1e-5)
            assert (some.words, some.ids, some.oov.tolist()) == (others.words, others.ids, others.oov.tolist())
            assert some.ngram_lengths == others.ngram_lengths
    assert [word.word for word in exported.next_words("w3", 5)] == [word.word for word in run.next_words("w3", 5)]
    hypotheses = [("w3 w4", -3.0), ("w3 w5", -3.5), ("w3 zebra", -1.0)]
    assert [one.place for one in exported.rescore(hypotheses)] == [one.place for one in run.rescore(hypotheses)]
    assert exported.log10_frequency("w3") == run.log10_frequency("w3")
    assert exported.is_known("w3")
    assert not exported.is_known("yak")


def test_a_mixture_with_it(both: tuple[Path, Path], tmp_path: Path) -> None:
    assert (is_exported(both[0]), is_exported(both[1])) == (False, True)
    assert [needs_torch(path) for path in both] == [True, False]
    write_mixture(tmp_path / "both.toml", both, [0.5, 0.5])
    write_mixture(tmp_path / "one.toml", both[1:], [1.0])
    assert needs_torch(tmp_path / "both.toml")
    assert not needs_torch(tmp_path / "one.toml")
    (found,) = bnce.load(tmp_path / "both.toml").score(["w3 w4"])
    (expected,) = bnce.load(both[0]).score(["w3 w4"])
    np.testing.assert_allclose(found.log10_probs, expected.log10_probs, atol=1e-5)


def test_nothing_imports_pytorch(both: tuple[Path, Path], tmp_path: Path) -> None:
    """In a process of its own, in which PyTorch cannot be imported: commands, and the front door."""
    (tmp_path / "text").write_text("w3 w4 zebra\nw3\n", encoding="utf-8")
    (tmp_path / "lists").write_text("a-1 w3 w4\na-2 w4\nb-1 w5\n", encoding="utf-8")
    (tmp_path / "table.tsv").write_text("word\nw3\nw4\n", encoding="utf-8")
    exported, text = str(both[1]), str(tmp_path / "text")
    commands = [
        ["score", exported, text, "--json"],
        ["score", exported, text, "--mode", "checked", "--spell"],
        ["score", exported, text, "--mode", "normalised", "--carry", "text"],
        ["rescore", exported, str(tmp_path / "lists"), "--format", "kaldi", "--json"],
        ["generate", exported, "--prompt", "w3", "--next", "4"],
        ["generate", exported, "--prompt", "w3", "--num", "2", "--max-words", "4"],
        ["surprisal", exported, str(tmp_path / "table.tsv"), "--out", str(tmp_path / "out.tsv"), "--entropy"],
    ]
    code = (
        "import json, sys\n"
        "sys.modules['torch'] = None\n"
        "import bnce\n"
        f"model = bnce.load({exported!r})\n"
        "model.score(['w3 w4'])\n"
        "from bnce.serve.app import make_app\n"
        "from bnce.serve.limits import Limits\n"
        "from bnce.__main__ import main\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['bnce', *command]\n"
        "    try: main()\n"
        "    except SystemExit as end: assert end.code == 0, command\n"
        "heavy = {'torch', 'pyarrow', 'onnx', 'matplotlib', 'transformers'}\n"
        "loaded = [name for name in sys.modules if name.partition('.')[0] in heavy]\n"
        "assert loaded == ['torch'], loaded\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout.splitlines()[0])
    assert record["num_oov"] == 1
    expected = sum(one.log10_prob for one in bnce.load(both[0]).score(["w3 w4 zebra", "w3"]))
    assert record["log10_prob"] == pytest.approx(expected, abs=1e-4)


def test_refusals(both: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"The device is 'cuda', but the exported run .* is computed on the CPU"):
        bnce.load(both[1], device="cuda")
    with monkeypatch.context() as context:
        context.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(UserError, match=r"An exported run needs the package 'onnxruntime', .* 'bnce\[score\]'"):
            bnce.load(both[1]).score(["w3"])
    damage = {
        "model.json": (b"{", r"another version: model.json cannot be read"),
        "vocab.txt": (
            b"other\n",
            r"another version: vocab.txt has 6 bytes, but [\d,]+ were written; export the run again",
        ),
        "body.onnx": (b"", r"another version: body.onnx has 0 bytes"),
        "weights.bin": (
            b"short",
            r"another version: weights.bin has 5 bytes, but [\d,]+ were written",
        ),
    }
    for name, (content, message) in damage.items():
        shutil.copytree(both[1], tmp_path / name)
        (tmp_path / name / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            load_exported(tmp_path / name)
    for name in ("vocab.txt", "model.json", "weights.bin"):
        (tmp_path / name / name).unlink()
        with pytest.raises(UserError, match=f"another version: {name} is missing; export the run again"):
            bnce.load(tmp_path / name)


def test_an_export_of_another_format_is_told_so(both: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(both[1], tmp_path / "old")
    record = json.loads((tmp_path / "old" / "model.json").read_text(encoding="utf-8"))
    record["format"] = 2
    (tmp_path / "old" / "model.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UserError, match=r"model.json has format 2, and this version reads format 4; export the run"):
        bnce.load(tmp_path / "old")
