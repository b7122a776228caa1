"""ONNX in onnxruntime against PyTorch: every model, in chunks of any size, with the state handed on.

Legend: T time steps, B streams, C context words, L = C + T, K chosen words, V vocabulary.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import pytest
import torch
from small_corpus import VOCAB_SIZE
from torch import Tensor

from bnce import UserError
from bnce.corpus.vocabulary import Vocabulary
from bnce.export.onnx_graphs import ALIGNMENT_BYTES, WEIGHTS_FILE, write_graphs
from bnce.export.to_onnx import GRAPHS, export_onnx, open_graph, run_graph
from bnce.language_model import LanguageModel
from bnce.runs.directory import Run
from bnce.runs.model_file import load_model, save_weights

from .exported_runs import MODELS, make_run

DEEP = ("rnn", "lstm", "relu-lstm")
CASES = [
    *((name, {}) for name in MODELS),
    ("ffnn", {"order": 2}),
    ("ffnn", {"order": 6}),
    *((name, {"num_layers": 2}) for name in DEEP),
    ("transformer", {"hidden_size": 10, "num_heads": 2}),
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
    files = {*(f"{name}.onnx" for name in GRAPHS), WEIGHTS_FILE, "vocab.txt"}
    assert {file.name for file in out.iterdir()} == {*files, "model.json"}
    assert about["files"].keys() == files


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


@pytest.mark.parametrize(
    ("graph", "name"), [("body", "embedding"), ("body", "state_weight_0"), ("words", "output_bias_less_log_z")]
)
def test_one_wrong_weight_is_noticed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, graph: str, name: str
) -> None:
    run = make_run(tmp_path, "rnn")

    def write(model: LanguageModel, directory: Path) -> None:
        write_graphs(model, directory)
        tensors = onnx.load(directory / f"{graph}.onnx", load_external_data=False).graph.initializer
        (place,) = ({each.key: each.value for each in one.external_data} for one in tensors if one.name == name)
        with open(directory / WEIGHTS_FILE, "r+b") as file:
            file.seek(int(place["offset"]))
            file.write(torch.full((30,), 5.0).numpy().tobytes())

    monkeypatch.setattr("bnce.export.onnx_graphs.write_graphs", write)
    with pytest.raises(UserError, match=rf"The ONNX graph '{graph}' differs from PyTorch by .* nothing was written"):
        export_onnx(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus", "rnn-bnce"]


def test_a_text_in_parts_goes_on_from_the_state(case: tuple[Run, Path]) -> None:
    run, out = case
    model, session = load_model(run), open_graph(out / "body.onnx")
    about = json.loads((out / "model.json").read_text(encoding="utf-8"))
    C, input_LB = model.num_context, text(model.num_context + 11, 2)
    start = {
        name: torch.zeros([2 if size == "B" else size for size in sizes]) for name, sizes in about["state"].items()
    }
    whole_TBD, *ends = run_graph(session, {"input_ids": input_LB, **start})
    parts, state = [], start
    for begin, end in ((0, 1), (1, 4), (4, 11)):
        rows_TBD, *after = run_graph(session, {"input_ids": input_LB[begin : C + end], **state})
        parts.append(rows_TBD)
        state = dict(zip(start, after, strict=True))
    with torch.no_grad():
        expected_TBD, expected_ends = model(input_LB, model.initial_state(2))
    for found_TBD, found_ends in ((whole_TBD, ends), (torch.cat(parts), list(state.values()))):
        torch.testing.assert_close(found_TBD, expected_TBD, **CLOSE)
        torch.testing.assert_close(found_ends, list(expected_ends), **CLOSE)


def test_graphs_have_no_functions_of_their_own(case: tuple[Run, Path]) -> None:
    """Programs that read ONNX need not know more than its operators."""
    for name in GRAPHS:
        model = onnx.load(case[1] / f"{name}.onnx", load_external_data=False)
        assert not model.functions
        assert {node.domain for node in model.graph.node} == {""}
        assert {each.domain: each.version for each in model.opset_import}[""] == 17
        assert model.ir_version == 8


def test_refusals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path, "rnn")
    with pytest.raises(UserError, match="already exists"):
        export_onnx(run, tmp_path / "corpus")
    for package in ("onnx", "onnxruntime"):
        with monkeypatch.context() as context:
            context.setitem(sys.modules, package, None)
            with pytest.raises(UserError, match=rf"ONNX needs the package '{package}', .* 'bnce\[export\]'"):
                export_onnx(run, tmp_path / "out")
