"""The line from text to model is straight: a file imports only from those before it; and no file is run as code."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import bnce

PACKAGE = Path(bnce.__file__).parent

# Rooms in the order the data goes through them. Within a room that is a package files may import each other.
ORDER = [
    "errors",
    "version",
    "files",
    "reading",
    "registry",
    "settings",
    "recipes",
    "machine",
    "text",
    "corpus",
    "kernels",
    "noise",
    "rows",
    "losses",
    "models",
    "first_look",
    "output_layer",
    "language_model",
    "engine",
    "optimisers",
    "evaluation",
    "runs",
    "training",
    "report",
    "ngrams",
    "scoring",
    "data",
    "rescoring",
    "editing",
    "export",
    "serve",
    "api",
    "cli",
    "__main__",
]
# The longest rooms have an order of their own.
ROOM_ORDERS = {
    "text": [
        "unpack",
        "sources",
        "spacing",
        "spoken_numbers",
        "spoken",
        "normalise",
        "tokenised",
        "docstrings",
        "records",
        "blocks",
        "markup",
        "wikipedia",
        "billion_words",
        "wikitext",
        "published",
        "intake",
        "shares",
        "fetch",
    ],
    "corpus": [
        "vocabulary",
        "spelling",
        "cutter",
        "meter",
        "manifest",
        "store",
        "numbering",
        "sharing",
        "tally",
        "word_choice",
        "encoding",
        "prepare",
        "opening",
        "streams",
        "audit",
    ],
}
MAX_MODULES = 13  # beside the rooms
UNPICKLERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}

FILES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
MODULES = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}


def imported(source: str) -> Iterator[str]:
    """List what a file imports from this package, wherever in it the import stands, without the leading `bnce.`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "an import names its module in full"
            module = node.module or ""
            names = [f"{module}.{alias.name}" for alias in node.names] if module == "bnce" else [module]
        else:
            continue
        yield from (name.removeprefix("bnce.") for name in names if name.split(".")[0] == "bnce")


def wrong_imports(module: str, source: str) -> list[str]:
    """List the imports of a file that go forward, or out of the order."""
    room, _, place = module.partition(".")
    wrong = []
    for target in imported(source):
        other, _, target_place = target.partition(".")
        if other not in ORDER:
            wrong.append(target)
        elif other == room and room in ROOM_ORDERS:
            order = ROOM_ORDERS[room]
            if order.index(target_place.split(".")[0]) >= order.index(place):
                wrong.append(target)
        elif other != room and ORDER.index(other) > ORDER.index(room):
            wrong.append(target)
    return wrong


def code_from_data(source: str) -> list[str]:
    """List what would run data as code: pickles, `torch.load`, `eval` and `exec`, NumPy with pickles allowed."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in UNPICKLERS]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNPICKLERS:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if name in ("eval", "exec", "torch.load", "torch.save"):
                found.append(name)
            if name in ("np.load", "np.save") and options.get("allow_pickle") != "False":
                found.append(f"{name} with pickles")
    return found


def test_every_module_has_a_place() -> None:
    rooms = {module.split(".")[0] for module in MODULES} - {"__init__"}
    assert rooms - set(ORDER) == set(), "put the new module into ORDER, where the data comes by it"
    assert len(ORDER) == len(set(ORDER))
    for room, order in ROOM_ORDERS.items():
        assert {module.split(".")[1] for module in MODULES if module.startswith(f"{room}.")} == set(order)
    assert len(list(PACKAGE.glob("*.py"))) <= MAX_MODULES, "a new module belongs in a room"


def test_imports_go_one_way() -> None:
    sources = {module: (PACKAGE / path).read_text(encoding="utf-8") for module, path in MODULES.items()}
    wrong = {module: wrong_imports(module, source) for module, source in sources.items() if module != "__init__"}
    assert {module: found for module, found in wrong.items() if found} == {}


def test_a_wrong_import_is_seen() -> None:
    """Wherever it hides: at the top, in a function, as a whole module, or through the front door."""
    assert wrong_imports("noise", "from bnce.cli.console import stdout") == ["cli.console"]
    assert wrong_imports("noise", "def f():\n    import bnce.training.trainer") == ["training.trainer"]
    assert wrong_imports("noise", "from bnce import training, errors") == ["training"]
    assert wrong_imports("noise", "from bnce import OutputLayer") == ["OutputLayer"]
    assert wrong_imports("corpus.store", "from bnce.corpus.prepare import prepare") == ["corpus.prepare"]
    assert wrong_imports("corpus.prepare", "from bnce.corpus.store import Corpus\nimport numpy, bnce.errors") == []


def test_kernels_are_imported_only_where_they_are_used() -> None:
    """Inside a function that has asked whether kernels are usable: Triton is not there for everybody."""
    for module, path in MODULES.items():
        if module.partition(".")[0] == "kernels":
            continue
        tree = ast.parse((PACKAGE / path).read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        users = [node for node in functions if any(name.startswith("kernels.") for name in imported(ast.unparse(node)))]
        assert all("usable(" in ast.unparse(node) for node in users), module
        outside = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom | ast.Import)]
        inside = {id(part) for node in functions for part in ast.walk(node)}
        at_once = ast.unparse(ast.Module([node for node in outside if id(node) not in inside], []))
        assert not [name for name in imported(at_once) if name.startswith("kernels.")], module


def test_bodies_need_torch_and_kernels_alone() -> None:
    """Exported models have copies of their files."""
    for module, path in MODULES.items():
        if module.startswith("models."):
            names = set(imported((PACKAGE / path).read_text(encoding="utf-8")))
            assert {name.partition(".")[0] for name in names} <= {"kernels", "models"}, module


def test_the_front_door_names_only_lazy_ones() -> None:
    """`bnce/__init__.py` loads errors and version; what needs other packages it imports for type checkers alone."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    at_run_time = ast.unparse(ast.Module([node for node in tree.body if not isinstance(node, ast.If)], []))
    assert sorted(imported(at_run_time)) == ["errors", "machine.packages", "version"]
    for_checkers = ast.unparse(ast.Module([node for node in tree.body if isinstance(node, ast.If)], []))
    assert {f"bnce.{name}" for name in imported(for_checkers)} == {home for home, _ in bnce._HOMES.values()}
    assert set(bnce.__all__) == {"UserError", "__version__", *bnce._HOMES}
    assert all(getattr(bnce, name) is not None for name in bnce.__all__)
    assert dir(bnce) == sorted(bnce.__all__)
    with pytest.raises(AttributeError, match="module 'bnce' has no attribute 'Sofmax'"):
        _ = bnce.Sofmax


def test_the_front_door_opens_before_anything_is_loaded() -> None:
    check = (
        "import sys, bnce; bnce.LOSSES, bnce.UserError; "
        "print([name for name in ('typer', 'rich', 'numpy', 'torch', 'pyarrow') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_command_line_answers_without_torch() -> None:
    """And without all else that takes long: `bnce --help` has a quarter of a second, and completion no more."""
    late = ("torch", "pyarrow", "matplotlib", "numpy", "safetensors", "pydantic", "rich.progress", "bnce.settings")
    check = f"import sys, bnce.cli; print([name for name in {late} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_names_say_what_is_inside() -> None:
    parts = {part for path in FILES for part in path.with_suffix("").parts}
    assert parts & {"utils", "util", "helpers", "helper", "common", "misc"} == set()
    assert not [part for part in parts if part.endswith(("_v2", "_legacy", "_old", "_new"))]


def test_files_are_data_not_code() -> None:
    found = {path: code_from_data((PACKAGE / path).read_text(encoding="utf-8")) for path in FILES}
    assert {path: names for path, names in found.items() if names} == {}


def test_code_from_data_is_seen() -> None:
    for source in ("import pickle", "from joblib import load", "eval(text)", "exec(text)", "x = torch.load(path)"):
        assert code_from_data(source), source
    assert code_from_data("np.load(path)") == ["np.load with pickles"]
    assert code_from_data("np.load(path, allow_pickle=True)") == ["np.load with pickles"]
    assert code_from_data("model.eval()\nnp.load(path, allow_pickle=False)") == []
