"""The command line uses a run of every body where PyTorch is not installed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import httpx
import numpy as np
import pytest
from cli.server_process import serving
from export.exported_runs import MODELS, make_run
from small_corpus import UNK, trained_model

from bnce.corpus.vocabulary import END
from bnce.engine.packer import score
from bnce.engine.torch_network import TorchNetwork

# Python imports a module of this name when it starts; with None in its place, a package is as if not installed.
SITE = "import sys; sys.modules['torch'] = sys.modules['pyarrow'] = None\n"
# All commands in one process, whose start takes longer than they do.
PROGRAM = """
import sys
from bnce.__main__ import main
for command in sys.argv[1:]:
    sys.argv[1:] = command.split()
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
"""
COMMANDS = (
    "score RUN text.txt --layout jsonl",
    "score RUN text.txt --mode normalised --carry text --spell --json",
    "rescore RUN lists.jsonl --json --out best.txt",
    "surprisal RUN table.tsv --entropy --json --out surprisal.tsv",
    "filter RUN shards --json --out filtered",
    "generate RUN --num 2 --max-words 5 --json",
    "generate RUN --prompt w3 --next 3 --json",
)
FILES = {
    "sitecustomize.py": SITE,
    "text.txt": "w3 w4 zebra\n",
    "lists.jsonl": '{"utt": "u", "hyps": ["w3 w4", "w5"]}\n',
    "table.tsv": "word\nw3\nw4\n",
    "shards/a.jsonl": '{"text": "w3 w4"}\n',
}


@pytest.mark.parametrize("body", MODELS)
def test_every_command_and_the_server(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, body).path
    (tmp_path / "shards").mkdir()
    for name, content in FILES.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH")))))
    commands = [command.replace("RUN", str(run)) for command in COMMANDS]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *commands], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    printed = list(map(json.loads, done.stdout.splitlines()))
    assert len(printed) == len(COMMANDS)
    assert len((tmp_path / "surprisal.tsv").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "filtered" / "a.jsonl").read_text())["num_words"] == 2
    with serving(run) as server:
        answer = httpx.post(f"{server.url}/score", json={"sentences": ["w3 w4 zebra"]}, timeout=60)
        (served,) = answer.json()["sentences"]
        assert server.stop()[0] == 0
    network = TorchNetwork(trained_model(run))
    expected = score(network, [np.array([3, 4, UNK, END])]).log_probs(network.log_z)
    for found in (printed[0], served):
        np.testing.assert_allclose(np.array(found["log10_probs"]) * math.log(10), expected, atol=1e-5)
