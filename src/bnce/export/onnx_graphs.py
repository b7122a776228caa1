"""A language model as ONNX graphs: the body, the scores of chosen words, and the scores of all words.

The graphs are written node by node. ONNX has operators for the recurrent layers and for all else that the models do, so
that there is nothing to trace, and every size that may vary is free: T, B and K.

All weights are in one file beside the graphs, which refer to them by place. So the output table, which two of the
graphs need, is stored once, and no graph meets the 2 GB that a protobuf may have.

Legend: T time steps, B streams, C context words, L = C + T, K chosen words, E embedding, H recurrent layer,
D last hidden layer, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor, nn

from bnce.export.export_record import WEIGHTS_FILE
from bnce.language_model import LanguageModel
from bnce.models.feedforward import FeedForward
from bnce.models.recurrent import Recurrent
from bnce.models.transformer import Transformer
from bnce.runs.packed_rows import SCALE_SUFFIX

OPSET = 17
IR_VERSION = 8  # of the same time as the opset, so that runtimes some years old can read it
ALIGNMENT_BYTES = 65536  # a place that every system can map into memory
_LAST = 2**63 - 1
_PACKED = {torch.float16: TensorProto.FLOAT16, torch.int8: TensorProto.INT8}

Dimension = int | str


class WeightsFile:
    """The file with all weights, written once from front to back."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.places: dict[str, dict[str, Any]] = {}  # by name, as whoever maps the file needs them

    def add(self, name: str, tensor: Tensor) -> TensorProto:
        """Append a tensor, in float32 unless it is packed, and give what a graph holds in its place."""
        self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT_BYTES))
        offset = self._file.tell()
        kind = tensor.dtype if tensor.dtype in _PACKED else torch.float32
        values = tensor.detach().to("cpu", kind).contiguous().numpy()
        self._file.write(values.data)
        self.places[name] = {"dtype": values.dtype.name, "shape": list(values.shape), "offset": offset}
        reference = TensorProto(name=name, data_type=_PACKED.get(kind, TensorProto.FLOAT), dims=values.shape)
        reference.data_location = TensorProto.EXTERNAL
        for key, value in (("location", WEIGHTS_FILE), ("offset", offset), ("length", values.nbytes)):
            reference.external_data.add(key=key, value=str(value))
        return reference


class Table(NamedTuple):
    """A matrix with one row per word, as it is stored; int8 has a scale for each row."""

    values: TensorProto
    scale: TensorProto | None

    @classmethod
    def write(cls, weights: WeightsFile, name: str, packed: Mapping[str, Tensor], key: str) -> Table:
        """Append a table to the weights file."""
        scale = packed.get(key + SCALE_SUFFIX)
        values = weights.add(name, packed[key])
        return cls(values, None if scale is None else weights.add(f"{name}_scale", scale))

    def rows(self, graph: Graph, ids: str) -> str:
        """Append nodes that read the rows of words, and those alone."""
        rows = graph.node("Gather", graph.weight(self.values), ids)
        scale = None if self.scale is None else graph.node("Gather", graph.weight(self.scale), ids)
        return self._unpacked(graph, rows, scale)

    def whole(self, graph: Graph) -> str:
        """Append nodes that read all rows."""
        scale = None if self.scale is None else graph.weight(self.scale)
        return self._unpacked(graph, graph.weight(self.values), scale)

    def _unpacked(self, graph: Graph, rows: str, scale: str | None) -> str:
        if self.values.data_type == TensorProto.FLOAT:
            return rows
        rows = graph.node("Cast", rows, to_type=TensorProto.FLOAT)
        return rows if scale is None else graph.node("Mul", rows, graph.node("Unsqueeze", scale, graph.integers(-1)))


class Graph:
    """A graph in the making: nodes in the order they run, and what they refer to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Any] = []
        self.weights: list[TensorProto] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self._constants: set[str] = set()

    def input(self, name: str, kind: int, shape: Sequence[Dimension]) -> str:
        """Declare an input; a dimension with a name may have any size."""
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, name: str, shape: Sequence[Dimension]) -> None:
        """Declare an output."""
        self.outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def weight(self, reference: TensorProto) -> str:
        """Refer to a tensor in the weights file."""
        self.weights.append(reference)
        return str(reference.name)

    def integers(self, *values: int) -> str:
        """Make a small constant, or give the one that is there."""
        return self._constant("integers", TensorProto.INT64, [len(values)], values)

    def place(self, place: int) -> str:
        """Make a constant of one whole number without dimensions, which `Gather` takes one place by."""
        return self._constant("place", TensorProto.INT64, [], (place,))

    def number(self, value: float) -> str:
        """Make a constant of one number, or give the one that is there."""
        return self._constant("number", TensorProto.FLOAT, [], (value,))

    def _constant(self, name: str, kind: int, shape: list[int], values: tuple[float, ...]) -> str:
        name = "_".join([name, *map(str, values)])
        if name not in self._constants:
            self._constants.add(name)
            self.weights.append(helper.make_tensor(name, kind, shape, values))
        return name

    def node(self, kind: str, *inputs: str, to: str | Sequence[str] = "", **attributes: Any) -> str:
        """Append a node and give the name of its first output; `to_type` is what ONNX calls `to`."""
        if "to_type" in attributes:
            attributes["to"] = attributes.pop("to_type")
        outputs = [to or f"{kind.lower()}_{len(self.nodes)}"] if isinstance(to, str) else list(to)
        node = helper.make_node(kind, list(inputs), outputs)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in attributes.items())
        self.nodes.append(node)
        return outputs[0]

    def save(self, path: Path) -> None:
        """Write the graph, checked against ONNX's own rules."""
        graph = helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="bnce"
        )
        onnx.save(model, str(path))
        onnx.checker.check_model(str(path), full_check=True)


def write_graphs(model: LanguageModel, directory: Path, packed: Mapping[str, Tensor]) -> dict[str, dict[str, Any]]:
    """Write body.onnx, words.onnx, all_words.onnx, the enter.onnx and step.onnx of recurrent bodies, and all weights.

    `packed` has the tables as they are to be stored. Returns where in the weights file each tensor is.
    """
    output = model.output
    with open(directory / WEIGHTS_FILE, "wb") as file:
        weights = WeightsFile(file)
        embedding = Table.write(weights, "embedding", packed, "embedding")
        graphs = {"body": _body(model, weights, embedding)}
        if isinstance(model.body, Recurrent):
            from bnce.export.onnx_recurrent import make_enter, make_step

            graphs["enter"] = make_enter(weights, model.body, embedding)
            graphs["step"] = make_step(weights, model.body, state_names(model))
        weight_VD = Table.write(weights, "output_weight", packed, "output.weight")
        # Every score has ln Z taken off, so the bias has it taken off once and for all.
        bias_V = weights.add("output_bias_less_log_z", output.bias - output.log_z)
    graphs["words"] = _words(output.hidden_size, weight_VD, bias_V)
    graphs["all_words"] = _all_words(output.hidden_size, output.vocab_size, weight_VD, bias_V)
    for name, graph in graphs.items():
        graph.save(directory / f"{name}.onnx")
    return weights.places


def state_names(model: LanguageModel) -> list[str]:
    """Name the parts of the state, as the body's inputs; its outputs have `_after` added."""
    parts = ("keys", "values", "known") if isinstance(model.body, Transformer) else ("h", "c")
    return [f"state_{part}" for part, _ in zip(parts, model.initial_state(1), strict=False)]


def _body(model: LanguageModel, weights: WeightsFile, embedding: Table) -> Graph:
    """Input words and state in, last hidden layer and state out."""
    graph = Graph("body")
    graph.output("hidden", ["T", "B", model.body.output_size])
    ids_LB = graph.input("input_ids", TensorProto.INT64, ["L", "B"])
    embedded_LBE = embedding.rows(graph, ids_LB)
    if isinstance(model.body, FeedForward):
        _feed_forward(graph, weights, model.body, embedded_LBE)
    elif isinstance(model.body, Transformer):
        from bnce.export.onnx_transformer import add_transformer

        add_transformer(graph, weights, model.body, ids_LB, embedded_LBE)
    else:
        assert isinstance(model.body, Recurrent)  # whatever else there is has no "onnx" in its record
        from bnce.export.onnx_recurrent import add_recurrent

        add_recurrent(graph, weights, model.body, embedded_LBE, state_names(model))
    return graph


def _feed_forward(graph: Graph, weights: WeightsFile, body: FeedForward, embedded_LBE: str) -> None:
    windows = []
    for offset in range(body.num_words):
        # Each window has T words: the first ends C before the last word, the last with it.
        end = offset - body.num_context if offset < body.num_context else _LAST
        windows.append(
            graph.node("Slice", embedded_LBE, graph.integers(offset), graph.integers(end), graph.integers(0))
        )
    joined = graph.node("Concat", *windows, axis=2)
    hidden = add_dense(graph, weights, "hidden_layer", body.hidden, joined)
    add_dense(graph, weights, "bottleneck", body.bottleneck, hidden, to="hidden")


def add_dense(graph: Graph, weights: WeightsFile, name: str, layer: nn.Linear, rows: str, to: str = "") -> str:
    """Append a dense ReLu layer."""
    product = graph.node("MatMul", rows, graph.weight(weights.add(f"{name}_weight", layer.weight.t())))
    shifted = graph.node("Add", product, graph.weight(weights.add(f"{name}_bias", layer.bias)))
    return graph.node("Relu", shifted, to=to)


def _words(hidden_size: int, weight_VD: Table, bias_V: TensorProto) -> Graph:
    """Score chosen words: only their rows are read."""
    graph = Graph("words")
    hidden_TBD = graph.input("hidden", TensorProto.FLOAT, ["T", "B", hidden_size])
    words_TBK = graph.input("words", TensorProto.INT64, ["T", "B", "K"])
    rows_TBKD = weight_VD.rows(graph, words_TBK)
    column_TBD1 = graph.node("Unsqueeze", hidden_TBD, graph.integers(-1))
    product_TBK1 = graph.node("MatMul", rows_TBKD, column_TBD1)
    product_TBK = graph.node("Squeeze", product_TBK1, graph.integers(-1))
    bias_TBK = graph.node("Gather", graph.weight(bias_V), words_TBK)
    graph.node("Add", product_TBK, bias_TBK, to="log_probs")
    graph.output("log_probs", ["T", "B", "K"])
    return graph


def _all_words(hidden_size: int, vocab_size: int, weight_VD: Table, bias_V: TensorProto) -> Graph:
    """Score every word, and sum: what is left of one, by logarithm, makes the scores exact."""
    graph = Graph("all_words")
    hidden_TBD = graph.input("hidden", TensorProto.FLOAT, ["T", "B", hidden_size])
    hidden_ND = graph.node("Reshape", hidden_TBD, graph.integers(-1, hidden_size))
    # This product takes the table as it is; the one for more dimensions would need a transposed copy.
    score_NV = graph.node("Gemm", hidden_ND, weight_VD.whole(graph), graph.weight(bias_V), transB=1)
    batch = graph.node("Slice", graph.node("Shape", hidden_TBD), graph.integers(0), graph.integers(2))
    shape = graph.node("Concat", batch, graph.integers(vocab_size), axis=0)
    score_TBV = graph.node("Reshape", score_NV, shape, to="log_probs")
    # In steps: with ReduceLogSumExp for all of them, onnxruntime 1.31 was 0.001 off at V = 800K, and is 5e-6 off so.
    highest_TB1 = graph.node("ReduceMax", score_TBV, axes=[2])
    share_TBV = graph.node("Exp", graph.node("Sub", score_TBV, highest_TB1))
    sum_TB1 = graph.node("ReduceSum", share_TBV, graph.integers(2))
    log_sum_TB1 = graph.node("Add", graph.node("Log", sum_TB1), highest_TB1)
    graph.node("Squeeze", log_sum_TB1, graph.integers(2), to="log_sum")
    graph.output("log_probs", ["T", "B", vocab_size])
    graph.output("log_sum", ["T", "B"])
    return graph
