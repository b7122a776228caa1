"""What is published: an sdist, the wheel of it, and what runs where only some of the packages are installed."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from packaging.requirements import Requirement
from small_corpus import small_config, small_corpus, small_model

import bnce
from bnce.machine.packages import BASE, EXTRAS, missing
from bnce.runs.directory import Run
from bnce.runs.model_file import save_weights

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# What lies beside the directories of a source distribution.
BESIDE = {
    *("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "MANIFEST.in", "README.md", "SECURITY.md"),
    *("pyproject.toml", "setup.py"),
}
# Used where they are found, and never needed: triton comes with PyTorch for a GPU, the others are forms of the softmax.
NOT_NEEDED = {"triton"}
# Asks a server that it starts, and ends it.
SERVED = """
import json, subprocess, sys, urllib.request
command = [sys.executable, "-m", "bnce", "serve", sys.argv[1], "--port", "0", "--json"]
with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
    try:
        url, asked = json.loads(server.stdout.readline())["url"], json.dumps({"sentences": ["w3 w4"]}).encode()
        request = urllib.request.Request(f"{url}/score", asked, {"Content-Type": "application/json"})
        print(urllib.request.urlopen(request, timeout=60).read().decode())
    finally:
        server.terminate()
"""


def test_git_leaves_out_an_environment_that_is_a_link(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shutil.copy(ROOT / ".gitignore", tmp_path)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    listed = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert listed.stdout == "?? .gitignore\n"


def packages(extra: str) -> set[str]:
    """List what an extra of pyproject.toml brings, beside what is always there."""
    found = set()
    for line in PROJECT["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name == "bnce":
            found |= {name for other in requirement.extras for name in packages(other)}
        else:
            found.add(requirement.name.replace("-", "_"))
    return found


def test_messages_name_extras_that_bring_the_package() -> None:
    assert {Requirement(line).name.replace("-", "_") for line in PROJECT["dependencies"]} == set(BASE)
    assert {name: packages(name) for name in EXTRAS} == {name: set(brought) for name, brought in EXTRAS.items()}
    assert packages("all") == {name for brought in EXTRAS.values() for name in brought} <= packages("test")
    assert "run pip install 'bnce[ngram]'" in str(missing("kenlm", "An n-gram model"))
    assert "run pip install 'bnce[serve]'" in str(missing("fastapi", "bnce serve", "serve"))


def test_every_package_that_is_imported_is_declared() -> None:
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(str(node.module).split(".")[0])
    declared = {*BASE, *packages("all")}
    assert imported - sys.stdlib_module_names - {"bnce"} - NOT_NEEDED <= declared


@dataclass(frozen=True)
class Installed:
    """An environment into which the wheel was installed, and nothing else."""

    directory: Path
    sdist: Path
    wheel: Path

    def run(self, visible: tuple[str, ...], program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, to which some packages of ours are shown, with what they need."""
        shown = self.directory / "-".join(("with", *visible))
        shown.mkdir(exist_ok=True)
        for path in {path for name in visible for path in top_level(name, set())}:
            if not (shown / path.name).exists():
                (shown / path.name).symlink_to(path)
        return subprocess.run(
            [self.directory / "bin" / program, *arguments],
            cwd=self.directory,
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(shown), "COLUMNS": "80", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=100,
        )


def top_level(name: str, seen: set[str]) -> Iterator[Path]:
    """List the files and directories that an installed package, and those it requires, have in site-packages."""
    if name in seen:
        return
    seen.add(name)
    found = distribution(name)
    for first in {path.parts[0] for path in found.files or []} - {"..", "__pycache__"}:
        yield Path(str(found.locate_file(first)))
    for line in found.requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from top_level(requirement.name, seen)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Build the sdist of what is here, the wheel from the sdist, and install that into an empty environment."""
    place = tmp_path_factory.mktemp("packaging")
    source, dist, environment = place / "source", place / "dist", place / "environment"

    # pip would find these sources on it, and take them for an install.
    without_path = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*command: str | Path, cwd: Path = place) -> str:
        done = subprocess.run(
            list(map(str, command)), cwd=cwd, env=without_path, capture_output=True, text=True, timeout=200
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def build(kind: str, directory: Path) -> Path:
        code = f"import sys; from setuptools import build_meta; print(build_meta.build_{kind}(sys.argv[1]))"
        return dist / run(sys.executable, "-c", code, dist, cwd=directory).splitlines()[-1]

    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "*.partial")
    for name in ("src", "docs", "benchmarks", "examples", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=left_out)
    for path in ROOT.iterdir():
        if path.is_file():
            shutil.copy(path, source)
    sdist = build("sdist", source)
    with tarfile.open(sdist) as archive:
        archive.extractall(place / "unpacked", filter="data")
    (unpacked,) = (place / "unpacked").iterdir()
    wheel = build("wheel", unpacked)
    run(sys.executable, "-m", "venv", "--without-pip", environment)
    program = environment / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", program, "install", *quiet, "--no-deps", "--no-index", wheel)
    return Installed(environment, sdist, wheel)


def test_the_files_hold_what_they_should(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        inside = set(archive.namelist())
        (name,) = (name for name in inside if name.endswith(".dist-info/METADATA"))
        description = archive.read(name).decode("utf-8")
    tracked = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "bnce").rglob("*")}
    data = {
        name for name in tracked if name.endswith((".py", ".toml", ".typed", ".cu", ".html", ".css", ".js", ".onnxtxt"))
    }
    assert {name for name in inside if ".dist-info/" not in name} == data
    assert "Description-Content-Type: text/markdown\n" in description
    # On a package index nothing stands beside the README.
    links = re.findall(r"\]\(([^)]+)\)", description)
    assert [link for link in links if not link.startswith(("https://", "#"))] == []
    with tarfile.open(installed.sdist) as archive:
        packed = {file.name.partition("/")[2] for file in archive if file.isfile()}
    assert {f"src/{name}" for name in data} <= packed
    linked = re.findall(r"\]\(([^)#:]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert {"README.md", "LICENSE", "pyproject.toml", *linked} <= packed
    others = {name for name in packed if not name.startswith(("src/", "docs/", "examples/", "benchmarks/results/"))}
    assert others == {*BESIDE, "PKG-INFO", "setup.cfg"}
    # Our own tables and figures: no text, word list or model of others.
    kinds = {Path(name).suffix for name in packed if name.startswith("benchmarks/")}
    assert kinds <= {".md", ".json", ".jsonl", ".tsv"}


def test_what_is_published_is_built_and_checked_before_the_tests() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^\t\$\(BIN\)/python -m (build|twine) (.*)$", makefile, flags=re.MULTILINE)
    assert commands == [("build", "--no-isolation"), ("twine", "check --strict dist/*")]
    steps = re.findall(r"^make (\S+)$", (ROOT / ".ci" / "run").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert steps.index("dist") < steps.index("test")
    assert re.search(r"^\trm -rf .* dist ", makefile.partition("\nclean:\n")[2], flags=re.MULTILINE)
    needed = {Requirement(line).name for line in PROJECT["optional-dependencies"]["dist"]}
    assert needed == {"build", "setuptools", "twine"}


def test_the_layer_needs_pytorch_numpy_and_msgspec_alone(installed: Installed) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    check = "\nimport sys; assert not {'typer', 'rich', 'safetensors', 'pyarrow', 'tomli_w'} & set(sys.modules)"
    done = installed.run(("torch", "numpy", "msgspec"), "python", "-W", "error", "-c", code + check)
    assert done.returncode == 0, done.stderr
    done = installed.run(("torch", "numpy", "msgspec"), "bnce", "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(
        r"bnce: The command line needs the package '\w+', which is not installed: run pip install 'bnce\[train\]'\.\n",
        done.stderr,
    )


def test_the_base_says_what_each_extra_brings(installed: Installed) -> None:
    done = installed.run(BASE, "bnce", "--help")
    assert done.returncode == 0, done.stderr
    needed = (("train", "torch", "train"), ("info", "torch", "train"), ("serve", "fastapi", "serve"))
    for command, package, extra in needed:
        done = installed.run(BASE, "bnce", command, "small")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"bnce: {missing(package, f'bnce {command}', extra)}\n"
    done = installed.run(BASE, "python", "-c", "import bnce; print(bnce.__version__); from bnce import OutputLayer")
    assert done.stdout.strip() == bnce.__version__
    assert "bnce.OutputLayer needs the package 'torch', which is not installed: run pip install 'bnce[layer]'." in (
        done.stderr
    )


def test_a_run_is_used_by_the_base_alone(installed: Installed, tmp_path: Path) -> None:
    """As docs/usage.md says: what was trained needs neither PyTorch nor any other package of an extra."""
    corpus = small_corpus(tmp_path / "corpus")
    made = Run.create(tmp_path / "run", small_config(corpus), corpus)
    save_weights(made, small_model("relu-lstm").state_dict(), 1)
    contents = {
        "text.txt": "w3 w4\n",
        "table.tsv": "word\nw3\n",
        "lists": "a-1 w3\na-2 w4\n",
        "words": "yak\n",
        "shard.jsonl": '{"text": "w3"}\n',
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")

    def run(visible: tuple[str, ...], *commands: str) -> None:
        written = [command.replace("PLACE", str(tmp_path)).split() for command in commands]
        code = (
            "import sys\n"
            "from bnce.__main__ import main\n"
            f"for command in {written!r}:\n"
            "    sys.argv = ['bnce', *command]\n"
            "    try: main()\n"
            "    except SystemExit as end: assert end.code == 0, command\n"
        )
        done = installed.run(visible, "python", "-c", code)
        assert done.returncode == 0, done.stderr

    run(
        BASE,
        "score PLACE/run PLACE/text.txt",
        "rescore PLACE/run PLACE/lists --format kaldi --json",
        "generate PLACE/run --max-words 3",
        "surprisal PLACE/run PLACE/table.tsv --out PLACE/surprisal.tsv",
        "filter PLACE/run PLACE/shard.jsonl --out PLACE/filtered",
        "info PLACE/run",
    )
    pyarrow.parquet.write_table(pyarrow.table({"word": ["w3"]}), tmp_path / "table.parquet")
    run((*BASE, *EXTRAS["data"]), "surprisal PLACE/run PLACE/table.parquet --out PLACE/surprisal.parquet")
    run((*BASE, *EXTRAS["layer"]), "vocab PLACE/run --add PLACE/words --out PLACE/more")
    assert (tmp_path / "more" / "vocab.txt").is_file()
    served = installed.run((*BASE, *EXTRAS["serve"]), "python", "-c", SERVED, str(made.path))
    assert served.returncode == 0, served.stderr
    assert json.loads(served.stdout)["sentences"][0]["words"] == ["w3", "w4", "</s>"]
