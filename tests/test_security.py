"""What SECURITY.md promises of files: nothing in them is unpickled or run."""

from __future__ import annotations

import ast
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from run_files import MODEL_FILE
from small_corpus import small_corpus, small_run

import bnce
from bnce import Corpus
from manual import links

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
# Modules and calls that can run what a file says.
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
CALLS = {"eval", "exec", "torch.load", "np.load", "numpy.load", "runpy.run_path"}


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def test_the_source_unpickles_and_runs_nothing() -> None:
    found = set()
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & MODULES
            elif isinstance(node, ast.ImportFrom):
                found |= {str(node.module).partition(".")[0]} & MODULES
            elif isinstance(node, ast.Call):
                found |= {ast.unparse(node.func)} & CALLS
                found |= {"allow_pickle" for word in node.keywords if word.arg == "allow_pickle" and as_true(word)}
    assert found == set()


def as_true(word: ast.keyword) -> bool:
    return not (isinstance(word.value, ast.Constant) and word.value.value is False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    small_corpus(tmp_path / "corpus")
    run = small_run(tmp_path / "run", "relu-lstm")
    bnce.load(run)
    return run


def open_directory(path: Path) -> None:
    if path.name == "run":
        bnce.load(path)
    else:
        Corpus.open(path).verify()


@pytest.mark.parametrize("kind", ["pickle", "array"])
@pytest.mark.parametrize("name", ["run/counts.npy", f"run/{MODEL_FILE}", "corpus/counts.npy", "corpus/train.npy"])
def test_a_pickle_in_place_of_a_file_is_refused(run: Path, name: str, kind: str) -> None:
    made, path = run.parent / "made", run.parent / name
    path.unlink()
    with path.open("wb") as file:
        if kind == "pickle":
            pickle.dump(Bomb(made), file)
        else:
            np.save(file, np.array([Bomb(made)], dtype=object), allow_pickle=True)
    with pytest.raises(bnce.UserError):
        open_directory(path.parent)
    assert not made.exists()
    pickle.loads(pickle.dumps(Bomb(made)))
    assert made.exists(), "it would have"


def test_links_lead_somewhere() -> None:
    found = list(links.find_links(PAGE, "SECURITY.md"))
    assert found
    for link in found:
        assert link.anchor in links.anchors((ROOT / link.path).read_text(encoding="utf-8"))


def test_the_section_on_the_server_names_its_options() -> None:
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    (section,) = re.findall(r"^## Security\n(.*?)^## ", page, flags=re.DOTALL | re.MULTILINE)
    for word in ("127.0.0.1", "--host", "--allowed-host", "--token-file", "TLS", "no authentication", "(#limits)"):
        assert word in section, f"docs/serving.md does not speak of {word}"
