"""ONNX in onnxruntime against PyTorch: every model, in chunks of any size, with the state handed on.

Legend: T time steps, B streams, C context words, L = C + T, K chosen words, V vocabulary.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from small_corpus import VOCAB_SIZE
from torch import Tensor

from bnce import UserError
from bnce.corpus.vocabulary import Vocabulary
from bnce.export.onnx_graphs import ALIGNMENT_BYTES, WEIGHTS_FILE, write_graphs
from bnce.export.to_onnx import GRAPHS, OF_RECURRENT, compare, export_onnx, open_graph, run_graph
from bnce.models.recurrent import Recurrent
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model, save_weights
from bnce.runs.packed_rows import pack_rows, unpack_rows

from .exported_runs import MODELS, make_run

DEEP = ("rnn", "lstm", "relu-lstm")
CASES = [
    *((name, {}) for name in MODELS),
    ("ffnn", {"order": 2}),
    ("ffnn", {"order": 6}),
    *((name, {"num_layers": 2}) for name in DEEP),
]
# Two float32 results of the same sums, of numbers of the order of ten.
CLOSE = {"rtol": 0.0, "atol": 2e-5}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Run, Path]]:
    """Give each case's run and its export, by name."""
    directory = tmp_path_factory.mktemp("runs")
    made = {}
    for name, sizes in CASES:
        run = make_run(directory, name, **sizes)
        export_onnx(run, out := directory / "onnx" / run.path.name)
        made[run.path.name] = (run, out)
    return made


@pytest.fixture(params=["-".join([name, "bnce", *map(str, sizes.values())]) for name, sizes in CASES])
def case(request: pytest.FixtureRequest, exported: dict[str, tuple[Run, Path]]) -> tuple[Run, Path]:
    return exported[request.param]


def text(num_words: int, num_streams: int) -> Tensor:
    return torch.randint(VOCAB_SIZE, (num_words, num_streams), generator=torch.Generator().manual_seed(2))


def test_chosen_words_take_no_product_with_the_table(case: tuple[Run, Path]) -> None:
    _, out = case
    graph = onnx.load(out / "words.onnx", load_external_data=False).graph
    users = {node.op_type for node in graph.node for name in node.input if name.startswith("output_")}
    assert users == {"Gather"}
    for name in GRAPHS:
        tensors = onnx.load(out / f"{name}.onnx", load_external_data=False).graph.initializer
        inside = [tensor for tensor in tensors if tensor.data_location != onnx.TensorProto.EXTERNAL]
        assert sum(tensor.ByteSize() for tensor in inside) < 2000, "weights are in their own file"


def test_the_output_table_is_stored_once_and_can_be_mapped(case: tuple[Run, Path]) -> None:
    run, out = case
    places: dict[int, set[int]] = {}
    for name in GRAPHS:
        for tensor in onnx.load(out / f"{name}.onnx", load_external_data=False).graph.initializer:
            entries = {entry.key: entry.value for entry in tensor.external_data}
            if entries:
                assert entries["location"] == WEIGHTS_FILE
                assert int(entries["offset"]) % ALIGNMENT_BYTES == 0
                places.setdefault(int(entries["offset"]), set()).add(int(entries["length"]))
    model = load_model(run)
    assert all(len(lengths) == 1 for lengths in places.values())
    assert sum(max(lengths) for lengths in places.values()) == 4 * model.num_parameters


def test_the_record_beside_it(case: tuple[Run, Path]) -> None:
    run, out = case
    about = json.loads((out / "model.json").read_text(encoding="utf-8"))
    model = load_model(run)
    assert (about["model"], about["log_z"], about["self_normalised"]) == (run.config.model.name, 9.0, True)
    assert (about["vocab_size"], about["hidden_size"]) == (VOCAB_SIZE, model.output.hidden_size)
    assert about["num_context"] == model.num_context
    assert about["normaliser"] == run.normaliser.to_dict()
    shapes = [[part.shape[0], "B", *part.shape[2:]] for part in model.initial_state(1)]
    assert list(about["state"].values()) == shapes
    assert Vocabulary.read(out / "vocab.txt") == run.vocabulary
    for figures in about["check"]["graphs"].values():
        assert 0 <= figures["max_difference"] <= figures["tolerance"] < 1e-4
    graphs = {*GRAPHS, *OF_RECURRENT} if isinstance(model.body, Recurrent) else GRAPHS
    assert {file.name for file in out.iterdir()} == {
        *(f"{name}.onnx" for name in graphs), WEIGHTS_FILE, "vocab.txt", "vocab.index.npy", "model.json", "counts.npy",
        "spelling.safetensors",
    }  # fmt: skip


def test_a_learned_constant_and_a_softmax_model(tmp_path: Path) -> None:
    run = make_run(tmp_path, "lstm", loss="softmax")
    model = load_model(run)
    with torch.no_grad():
        model.output.log_z.fill_(-2.5)
    save_weights(run, model.state_dict(), step=2)
    export_onnx(run, tmp_path / "out")
    about = json.loads((tmp_path / "out" / "model.json").read_text(encoding="utf-8"))
    assert (about["log_z"], about["self_normalised"]) == (-2.5, False)
    hidden, words = torch.randn(2, 1, 8), text(2, 1).unsqueeze(2)
    (found,) = run_graph(open_graph(tmp_path / "out" / "words.onnx"), {"hidden": hidden, "words": words})
    torch.testing.assert_close(found, model.output.log_probs(hidden, words, normalised=False).detach(), **CLOSE)


@pytest.mark.parametrize("name", ["embedding", "input_weight", "step_0_state_weight", "step_0_bias"])
def test_one_wrong_weight_is_noticed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = make_run(tmp_path, "rnn")
    places: dict[str, Any] = {}

    def write(model: object, directory: Path, packed: object) -> object:
        places.update(write_graphs(model, directory, packed))  # type: ignore[arg-type]
        return places

    def corrupt(model: object, directory: Path) -> object:
        place = places[name]
        with open(directory / WEIGHTS_FILE, "r+b") as file:
            file.seek(place["offset"])
            file.write(torch.full((30,), 5.0).numpy().tobytes())
        return compare(model, directory)  # type: ignore[arg-type]

    monkeypatch.setattr("bnce.export.onnx_graphs.write_graphs", write)
    monkeypatch.setattr("bnce.export.to_onnx.compare", corrupt)
    with pytest.raises(UserError, match=r"The ONNX graph 'body' differs from PyTorch by .* nothing was written"):
        export_onnx(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "rnn-bnce"]


@pytest.mark.parametrize(("rows", "kind", "largest"), [("float16", torch.float16, 1e-2), ("int8", torch.int8, 2e-2)])
@pytest.mark.parametrize("name", ["relu-lstm", "ffnn", "transformer"])
def test_tables_in_fewer_bits(tmp_path: Path, name: str, rows: str, kind: torch.dtype, largest: float) -> None:
    """The graphs compute with the rounded tables, as PyTorch does when they are unpacked."""
    run = make_run(tmp_path, name)
    result = export_onnx(run, tmp_path / "out", rows)
    assert set(result["max_row_error"]) == {"embedding", "output.weight"}
    assert all(0 < error < largest for error in result["max_row_error"].values())
    about = json.loads((tmp_path / "out" / "model.json").read_text(encoding="utf-8"))
    assert about["rows"] == rows
    assert {about["weights"][name]["dtype"] for name in ("embedding", "output_weight")} == {str(kind)[6:]}
    assert ("embedding_scale" in about["weights"]) == (rows == "int8")
    model = load_model(run)
    tensors = model.state_dict()
    model.load_state_dict(unpack_rows(pack_rows(tensors, model.tables(), rows)))
    hidden, words = torch.randn(2, 1, model.output.hidden_size), text(2, 1).unsqueeze(2)
    (found,) = run_graph(open_graph(tmp_path / "out" / "words.onnx"), {"hidden": hidden, "words": words})
    torch.testing.assert_close(found, model.output.log_probs(hidden, words, normalised=False).detach(), **CLOSE)


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "rnn")
    with pytest.raises(UserError, match="already exists"):
        export_onnx(run, tmp_path / "corpus")
    with pytest.raises(UserError, match=r"Unknown row format of ONNX 'bf16': choose one of float32, float16, int8"):
        export_onnx(run, tmp_path / "out", "bf16")
    for package in ("onnx", "onnxruntime"):
        with monkeypatch.context() as context:
            context.setitem(sys.modules, package, None)
            with pytest.raises(UserError, match=rf"ONNX needs the package '{package}', .* 'bnce\[export\]'"):
                export_onnx(run, tmp_path / "out")
