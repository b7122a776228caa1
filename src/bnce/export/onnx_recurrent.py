"""Recurrent layers as nodes of an ONNX graph, with the state of all layers in and out.

Legend: T time steps, B streams, E embedding, H recurrent layer.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from onnx import TensorProto
from torch import Tensor, nn

from bnce.export.onnx_graphs import Graph, WeightsFile, add_dense
from bnce.models.recurrent import Recurrent


def add_recurrent(graph: Graph, weights: WeightsFile, body: Recurrent, embedded_TBE: str, names: Sequence[str]) -> None:
    """Append the nodes from embedded words and a state to the last hidden layer and the state after it."""
    layers, size = body.layers, body.cell.hidden_size
    states = [graph.input(name, TensorProto.FLOAT, [len(layers), "B", size]) for name in names]
    ends = [f"{name}_after" for name in names]
    last = "hidden" if body.bottleneck is None else ""
    if len(layers) == 1:
        rows_TBH = _layer(graph, weights, 0, body.cell, embedded_TBE, states, ends, to=last)
    else:
        rows_TBH = _layers(graph, weights, layers, embedded_TBE, states, ends, to=last)
    if body.bottleneck is not None:
        add_dense(graph, weights, "bottleneck", body.bottleneck, rows_TBH, to="hidden")
    for name in ends:
        graph.output(name, [len(layers), "B", size])


def _layers(
    graph: Graph,
    weights: WeightsFile,
    layers: Sequence[nn.RNN | nn.LSTM],
    rows: str,
    states: Sequence[str],
    ends: Sequence[str],
    to: str,
) -> str:
    """Append several layers: what a layer finds is added to what it read, but for the first."""
    found = []
    for number, layer in enumerate(layers):
        bounds = graph.integers(number), graph.integers(number + 1), graph.integers(0)
        before = [graph.node("Slice", state, *bounds) for state in states]
        found.append([f"{name}_{number}" for name in ends])
        hidden_TBH = _layer(graph, weights, number, layer, rows, before, found[-1])
        is_last = number == len(layers) - 1
        rows = graph.node("Add", rows, hidden_TBH, to=to if is_last else "") if number else hidden_TBH
    for parts, name in zip(zip(*found, strict=True), ends, strict=True):
        graph.node("Concat", *parts, axis=0, to=name)
    return rows


def _layer(
    graph: Graph,
    weights: WeightsFile,
    number: int,
    layer: nn.RNN | nn.LSTM,
    rows_TBE: str,
    states: Sequence[str],
    ends: Sequence[str],
    to: str = "",
) -> str:
    """Append one layer, from its state (1, B, H) to the one at its end."""
    is_lstm, size = isinstance(layer, nn.LSTM), layer.hidden_size
    input_weight, state_weight, input_bias, state_bias = (
        _reorder_gates(tensor, size) if is_lstm else tensor for tensor in layer.all_weights[0]
    )
    tensors = {
        "input_weight": input_weight,
        "state_weight": state_weight,
        "cell_bias": torch.cat([input_bias, state_bias]),
    }
    of_layer = f"_{number}" if number else ""
    parts = [graph.weight(weights.add(name + of_layer, tensor.unsqueeze(0))) for name, tensor in tensors.items()]
    all_steps = ""  # the place of the lengths of texts: none is shorter than the others
    inputs, outputs = (rows_TBE, *parts, all_steps, *states), [f"steps{of_layer}", *ends]
    run_T1BH = graph.node("LSTM" if is_lstm else "RNN", *inputs, to=outputs, hidden_size=size)
    return graph.node("Squeeze", run_T1BH, graph.integers(1), to=to)


def _reorder_gates(tensor: Tensor, size: int) -> Tensor:
    """PyTorch stacks an LSTM's gates as input, forget, cell, output; ONNX as input, output, forget, cell."""
    into, forget, cell, out = tensor.split(size)
    return torch.cat([into, out, forget, cell])
