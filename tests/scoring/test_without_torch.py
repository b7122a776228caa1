"""A run is used without PyTorch, as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from export.exported_runs import MODELS, make_run

PROGRAM = """
import sys
sys.modules["torch"] = None  # an import of it fails
import bnce
for path in sys.argv[1:]:
    model = bnce.load(path)
    sentences = model.score(["w3 w4 zebra", ""], mode="normalised") + model.score(["w3"], carry=True)
    assert all(one.log_prob < 0 for one in sentences), path
    assert len(model.rescore(["w3 w4", ("w5", -1.0)])) == 2
    assert len(model.next_words("w3", 4)) == 4
    assert model.generate("w3", num_texts=2, seed=3) == model.generate("w3", num_texts=2, seed=3)
    print(path)
"""


def test_every_body(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    runs = [str(make_run(tmp_path, body).path) for body in MODELS]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *runs], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, runs), done.stderr
