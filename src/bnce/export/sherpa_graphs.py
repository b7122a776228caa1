"""The two graphs of sherpa-onnx's RNN language model, each in one file.

Legend: N hypotheses, L tokens of the longest, T = L + 1 steps, D last hidden layer, V tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from onnx import TensorProto, numpy_helper
from torch import Tensor

from bnce.export.onnx_graphs import Dimension, Graph
from bnce.export.onnx_recurrent import add_recurrent
from bnce.language_model import LanguageModel
from bnce.models.recurrent import Recurrent

_STATES = ("h0", "c0")


class _Inside:
    """Keeps weights inside the graph's own file: sherpa-onnx opens one file, and a phone one buffer."""

    def add(self, name: str, tensor: Tensor) -> TensorProto:
        """Give a tensor as a graph holds it."""
        return numpy_helper.from_array(np.ascontiguousarray(tensor.detach().float().cpu().numpy()), name)


class _Stateless(Graph):
    """A graph whose state is the start of a text, and not given from outside."""

    def input(self, name: str, kind: int, shape: Sequence[Dimension]) -> str:
        """Make zeros in place of a state."""
        if name not in _STATES:
            return super().input(name, kind, shape)
        num_N = self.node("Gather", self.node("Shape", "x"), self.integers(0))
        whole = self.node("Concat", self.integers(int(shape[0])), num_N, self.integers(int(shape[2])), axis=0)
        return self.node("Expand", self.number(0.0), whole)

    def output(self, name: str, shape: Sequence[Dimension]) -> None:
        """Leave out the state after the text."""
        if not name.endswith("_after"):
            super().output(name, shape)


def write_no_state(model: LanguageModel, end: int, path: Path, about: Mapping[str, str]) -> None:
    """Write the graph from tokens and their numbers to negative log-likelihoods."""
    graph, weights = _Stateless("no_state"), _Inside()
    graph.output("nll", ["N"])
    x_LN = graph.node("Transpose", graph.input("x", TensorProto.INT64, ["N", "L"]), perm=[1, 0])
    lens_N = graph.input("x_lens", TensorProto.INT64, ["N"])
    num_N = graph.node("Gather", graph.node("Shape", x_LN), graph.integers(1))
    ends_1N = graph.node("Expand", graph.integers(end), graph.node("Concat", graph.integers(1), num_N, axis=0))
    _add_body(graph, weights, model, graph.node("Concat", ends_1N, x_LN, axis=0))
    # After the last token of each hypothesis comes its end; what stands behind that does not count.
    padded_TN = graph.node("Concat", x_LN, ends_1N, axis=0)
    size = graph.node("Gather", graph.node("Shape", padded_TN), graph.place(0))
    place_T1 = graph.node("Unsqueeze", graph.node("Range", graph.place(0), size, graph.place(1)), graph.integers(1))
    target_TN = graph.node("Where", graph.node("Equal", place_T1, lens_N), graph.integers(end), padded_TN)
    if model.output.normalises:
        weight_VD = graph.weight(weights.add("output_weight", model.output.weight))
        rows_TND = graph.node("Gather", weight_VD, target_TN)
        product_TN = graph.node("ReduceSum", graph.node("Mul", "hidden", rows_TND), graph.integers(-1), keepdims=0)
        # The constant is taken off the bias once and for all.
        bias_V = graph.weight(weights.add("output_bias", model.output.bias - model.output.log_z))
        score_TN = graph.node("Add", product_TN, graph.node("Gather", bias_V, target_TN))
    else:
        every = graph.node("MatMul", "hidden", graph.weight(weights.add("output_columns", model.output.weight.t())))
        bias_V = graph.weight(weights.add("output_bias", model.output.bias))
        log_TNV = graph.node("LogSoftmax", graph.node("Add", every, bias_V), axis=-1)
        column = graph.node("Unsqueeze", target_TN, graph.integers(-1))
        score_TN = graph.node("Squeeze", graph.node("GatherElements", log_TNV, column, axis=2), graph.integers(-1))
    counts_TN = graph.node("LessOrEqual", place_T1, lens_N)
    kept_TN = graph.node("Where", counts_TN, score_TN, graph.number(0.0))
    graph.node("Neg", graph.node("ReduceSum", kept_TN, graph.integers(0), keepdims=0), to="nll")
    graph.save(path, about)


def write_with_state(model: LanguageModel, path: Path, about: Mapping[str, str]) -> None:
    """Write the graph from one token and a state to the log-probabilities of all tokens and the state after it."""
    graph, weights = Graph("with_state"), _Inside()
    graph.output("log_softmax", ["N", model.output.vocab_size])
    x_TN = graph.node("Transpose", graph.input("x", TensorProto.INT64, ["N", "L"]), perm=[1, 0])
    _add_body(graph, weights, model, x_TN)
    first_ND = graph.node("Squeeze", graph.node("Gather", "hidden", graph.integers(0)), graph.integers(0))
    columns = graph.weight(weights.add("output_columns", model.output.weight.t()))
    bias_V = graph.weight(weights.add("output_bias", model.output.bias))
    score_NV = graph.node("Add", graph.node("MatMul", first_ND, columns), bias_V)
    graph.node("LogSoftmax", score_NV, axis=-1, to="log_softmax")
    for value in graph.outputs:
        if value.name.endswith("_after"):
            name = f"next_{value.name.removesuffix('_after')}"
            graph.node("Identity", value.name, to=name)
            value.name = name
    graph.save(path, about)


def _add_body(graph: Graph, weights: _Inside, model: LanguageModel, x_TN: str) -> None:
    assert isinstance(model.body, Recurrent)
    embedded_TNE = graph.node("Gather", graph.weight(weights.add("embedding", model.embedding)), x_TN)
    add_recurrent(graph, weights, model.body, embedded_TNE, _STATES)
