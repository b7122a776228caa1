"""Recurrent layers as nodes of an ONNX graph, with the state of all layers in and out.

Legend: T time steps, B streams, E embedding, H recurrent layer, G gates; in a step W different words, P different
states, and B pairs of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from onnx import TensorProto
from torch import Tensor, nn

from bnce.export.onnx_graphs import Graph, Table, WeightsFile, add_dense
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
    input_weight, state_weight, input_bias, state_bias = _gates(layer)
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


def make_enter(weights: WeightsFile, body: Recurrent, embedding: Table) -> Graph:
    """Make a graph of what words add to the gates of the first layer, wherever they stand."""
    graph = Graph("enter")
    rows_WE = embedding.rows(graph, graph.input("words", TensorProto.INT64, ["W"]))
    _input_gates(graph, weights, body.cell, 0, rows_WE, to="entered")
    graph.output("entered", ["W", body.cell.all_weights[0][0].shape[0]])
    return graph


def make_step(weights: WeightsFile, body: Recurrent, names: Sequence[str]) -> Graph:
    """Make a graph of one step into pairs of words and states: each is multiplied once, not once per pair."""
    graph = Graph("step")
    layers, size = body.layers, body.cell.hidden_size
    graph.output("hidden", ["B", body.output_size])
    entered_WG = graph.input("entered", TensorProto.FLOAT, ["W", body.cell.all_weights[0][0].shape[0]])
    word_B = graph.input("word_places", TensorProto.INT64, ["B"])
    parent_B = graph.input("parents", TensorProto.INT64, ["B"])
    states = [graph.input(name, TensorProto.FLOAT, [len(layers), "P", size]) for name in names]
    found, rows = [], ""
    for number, layer in enumerate(layers):
        if number:
            input_BG = _input_gates(graph, weights, layer, number, rows)
        else:
            input_BG = graph.node("Gather", entered_WG, word_B)
        before = [graph.node("Gather", state, graph.place(number)) for state in states]
        matrix = graph.weight(weights.add(f"step_{number}_state_weight", _gates(layer)[1].t()))
        state_BG = graph.node("Gather", graph.node("MatMul", before[0], matrix), parent_B)
        after = _cell(graph, graph.node("Add", input_BG, state_BG), before[1:], parent_B)
        found.append([graph.node("Unsqueeze", part, graph.integers(0)) for part in after])
        rows = graph.node("Add", rows, after[0]) if number else after[0]
    for name, parts in zip(names, zip(*found, strict=True), strict=True):
        graph.node("Concat", *parts, axis=0, to=f"{name}_after")
        graph.output(f"{name}_after", [len(layers), "B", size])
    if body.bottleneck is None:
        graph.node("Identity", rows, to="hidden")
    else:
        add_dense(graph, weights, "step_bottleneck", body.bottleneck, rows, to="hidden")
    return graph


def _gates(layer: nn.RNN | nn.LSTM) -> Sequence[Tensor]:
    """Give a layer's weights and biases, the gates in ONNX's order."""
    if not isinstance(layer, nn.LSTM):
        return layer.all_weights[0]
    # PyTorch stacks an LSTM's gates as input, forget, cell, output; ONNX as input, output, forget, cell.
    split = (tensor.split(layer.hidden_size) for tensor in layer.all_weights[0])
    return [torch.cat([into, out, forget, cell]) for into, forget, cell, out in split]


def _input_gates(
    graph: Graph, weights: WeightsFile, layer: nn.RNN | nn.LSTM, number: int, rows: str, to: str = ""
) -> str:
    input_weight, _, *biases = _gates(layer)
    matrix = graph.weight(weights.add(f"step_{number}_input_weight", input_weight.t()))
    bias = graph.weight(weights.add(f"step_{number}_bias", biases[0] + biases[1]))
    return graph.node("Gemm", rows, matrix, bias, to=to)


def _cell(graph: Graph, sum_BG: str, memory: Sequence[str], parent_B: str) -> list[str]:
    """Append a cell's arithmetic from the sums of its gates; give the parts of the state after it."""
    if not memory:
        return [graph.node("Tanh", sum_BG)]
    gates = [f"gate_{len(graph.nodes)}_{place}" for place in range(4)]
    graph.node("Split", sum_BG, to=gates, axis=1)
    into, out, forget = (graph.node("Sigmoid", gate) for gate in gates[:3])
    kept = graph.node("Mul", graph.node("Gather", memory[0], parent_B), forget)
    memory_BH = graph.node("Add", kept, graph.node("Mul", into, graph.node("Tanh", gates[3])))
    return [graph.node("Mul", out, graph.node("Tanh", memory_BH)), memory_BH]
