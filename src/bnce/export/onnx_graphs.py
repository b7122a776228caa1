"""A language model as ONNX graphs: the body, the scores of chosen words, and the scores of all words.

The graphs are written in ONNX's own text form. It has operators for the recurrent layers and for all else that the
models do, so there is nothing to trace, and every size that may vary is free: T, B and K. What is alike in all models
is in functions.onnxtxt.

All weights are in one file beside the graphs, which refer to them by place. So the output table, which two of the
graphs need, is stored once, and no graph meets the 2 GB that a protobuf may have.

Legend: T time steps, B streams, C context words, L = C + T, K chosen words, E embedding, D last hidden layer,
V vocabulary; in a Transformer W words in the state, A heads, F = D / A.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx
import onnx.inliner
import onnx.parser
import torch
from torch import Tensor, nn

from bnce.language_model import LanguageModel
from bnce.models.feedforward import FeedForward
from bnce.models.recurrent import Recurrent
from bnce.models.transformer import Block, Transformer, rotation_speeds

WEIGHTS_FILE = "weights.bin"
ALIGNMENT_BYTES = 65536  # a place that every system can map into memory
# This file format is of the same time as the opset, so that runtimes some years old can read it.
_HEADER = '<ir_version: 8, opset_import: ["": 17, "bnce": 1], producer_name: "bnce">'
_FUNCTIONS_FILE = "functions.onnxtxt"
_LAST = 2**63 - 1


@dataclass
class Graph:
    """A graph as text, and the weights that it names."""

    inputs: list[str]  # each with its type and sizes
    outputs: list[str]
    weights: dict[str, Tensor]
    constants: list[str] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)

    def save(self, path: Path, declared: Mapping[str, str]) -> None:
        """Write the graph, checked against ONNX's own rules."""
        signature = f"{path.stem} ({_listed(self.inputs)}) => ({_listed(self.outputs)})"
        values = ",\n".join([*self.constants, *(declared[name] for name in self.weights)])
        nodes = "\n".join(self.nodes)
        functions = Path(__file__).with_name(_FUNCTIONS_FILE).read_text(encoding="utf-8")
        model = onnx.parser.parse_model(f"{_HEADER}\n{signature}\n<{values}>\n{{\n{nodes}\n}}\n{functions}")
        # Not every program that reads ONNX knows functions of a model.
        onnx.save(onnx.inliner.inline_local_functions(model), str(path))
        onnx.checker.check_model(str(path), full_check=True)


def write_graphs(model: LanguageModel, directory: Path) -> None:
    """Write body.onnx, words.onnx, all_words.onnx and their weights."""
    graphs = {"body": _body(model), "words": _words(model), "all_words": _all_words(model)}
    weights = {name: tensor for graph in graphs.values() for name, tensor in graph.weights.items()}
    declared = {}
    with open(directory / WEIGHTS_FILE, "wb") as file:
        for name, tensor in weights.items():
            file.write(b"\0" * (-file.tell() % ALIGNMENT_BYTES))
            values = tensor.detach().float().contiguous().numpy()
            place = f'"location": "{WEIGHTS_FILE}", "offset": "{file.tell()}", "length": "{values.nbytes}"'
            declared[name] = f"float[{_listed(values.shape)}] {name} = [{place}]"
            file.write(values.data)
    for name, graph in graphs.items():
        graph.save(directory / f"{name}.onnx", declared)


def state_sizes(model: LanguageModel) -> dict[str, list[int | str]]:
    """Give the sizes of the parts of a state, by their names as the body's inputs; its outputs have `_after` added."""
    names = ("keys", "values", "known") if isinstance(model.body, Transformer) else ("h", "c")
    start = zip(names, model.initial_state(1), strict=False)
    return {f"state_{name}": [part.shape[0], "B", *part.shape[2:]] for name, part in start}


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def _body(model: LanguageModel) -> Graph:
    """Make the graph with words and a state in, the last hidden layer and the state after them out."""
    body = model.body
    states = [f"float[{_listed(sizes)}] {name}" for name, sizes in state_sizes(model).items()]
    outputs = [f"float[T, B, {body.output_size}] hidden", *(f"{state}_after" for state in states)]
    graph = Graph(["int64[L, B] input_ids", *states], outputs, {"embedding": model.embedding})
    graph.nodes.append("embedded = Gather (embedding, input_ids)")
    if isinstance(body, FeedForward):
        _add_feed_forward(graph, body)
    elif isinstance(body, Transformer):
        _add_transformer(graph, body)
    else:
        assert isinstance(body, Recurrent)  # no other body can be exported
        _add_recurrent(graph, body)
    return graph


def _add_feed_forward(graph: Graph, body: FeedForward) -> None:
    windows = [f"window_{place}" for place in range(body.num_words)]
    for place, window in enumerate(windows):
        # Each window has T words: the first ends C before the last word, the last with it.
        end = place - body.num_context if place < body.num_context else _LAST
        graph.constants.append(f"int64[1] begin_{place} = {{{place}}}, int64[1] end_{place} = {{{end}}}")
        graph.nodes.append(f"{window} = Slice (embedded, begin_{place}, end_{place}, begin_0)")
    graph.nodes.append(f"joined = Concat <axis = 2> ({_listed(windows)})")
    _add_dense(graph, "hidden_layer", body.hidden, "joined", "wide")
    _add_dense(graph, "bottleneck", body.bottleneck, "wide", "hidden")


def _add_dense(graph: Graph, name: str, layer: nn.Linear, rows: str, to: str) -> None:
    """Add a dense ReLu layer."""
    graph.weights |= {f"{name}_weight": layer.weight.t(), f"{name}_bias": layer.bias}
    graph.nodes.append(f"{to} = bnce.Dense ({rows}, {name}_weight, {name}_bias)")


def _add_recurrent(graph: Graph, body: Recurrent) -> None:
    """Add the layers: what a layer finds is added to what it read, but for the first."""
    kind, parts = ("LSTM", ("h", "c")) if isinstance(body.cell, nn.LSTM) else ("RNN", ("h",))
    numbers, rows = range(len(body.layers)), "embedded"
    graph.constants.append("int64[1] directions = {1}")
    for part in parts:
        graph.nodes.append(f"{_listed(f'{part}_{number}' for number in numbers)} = Split <axis = 0> (state_{part})")
    for number, layer in enumerate(body.layers):
        input_weight, state_weight, *biases = _gates(layer)
        tensors = {"input_weight": input_weight, "state_weight": state_weight, "cell_bias": torch.cat(biases)}
        weights = {f"{name}_{number}": tensor.unsqueeze(0) for name, tensor in tensors.items()}
        graph.weights |= weights
        before, after = ([f"{part}_{name}{number}" for part in parts] for name in ("", "after_"))
        # The empty place is that of the lengths of texts: none is shorter than the others.
        graph.nodes += [
            f"steps_{number}, {_listed(after)} = {kind} <hidden_size = {layer.hidden_size}> "
            f"({rows}, {_listed(weights)}, , {_listed(before)})",
            f"found_{number} = Squeeze (steps_{number}, directions)",
            f"rows_{number} = {f'Add ({rows}, found_{number})' if number else 'Identity (found_0)'}",
        ]
        rows = f"rows_{number}"
    for part in parts:
        ends = _listed(f"{part}_after_{number}" for number in numbers)
        graph.nodes.append(f"state_{part}_after = Concat <axis = 0> ({ends})")
    if body.bottleneck is None:
        graph.nodes.append(f"hidden = Identity ({rows})")
    else:
        _add_dense(graph, "bottleneck", body.bottleneck, rows, "hidden")


def _gates(layer: nn.RNN | nn.LSTM) -> Sequence[Tensor]:
    """Give a layer's weights and biases, the gates in ONNX's order."""
    if not isinstance(layer, nn.LSTM):
        return layer.all_weights[0]
    # PyTorch stacks an LSTM's gates as input, forget, cell, output; ONNX as input, output, forget, cell.
    split = (tensor.chunk(4) for tensor in layer.all_weights[0])
    return [torch.cat([into, out, forget, cell]) for into, forget, cell, out in split]


def _add_transformer(graph: Graph, body: Transformer) -> None:
    A, D, W = body.num_heads, body.output_size, body.context
    F, numbers = D // A, range(len(body.blocks))
    # The first of each pair of numbers has the negative angle; the last number of an odd size stays as it is.
    speeds = rotation_speeds(F, torch.float32, torch.device("cpu")).tolist()
    turned = [*(-speed for speed in speeds), *speeds, *[0.0] * (F % 2)]
    graph.constants += [
        "int64 zero = {0}, int64 one = {1}, int64[1] axis_1 = {1}",
        f"int64[1] context = {{{W}}}, int64[1] first_kept = {{{-W}}}, int64[1] last = {{{_LAST}}}",
        f"int64[4] heads = {{0, 0, {A}, {F}}}, int64[3] rows = {{0, 0, {D}}}",
        f"int64[4] state_heads = {{-1, {W}, {A}, {F}}}, int64[4] state_rows = {{1, -1, {W}, {D}}}",
        f"float[{F}] speeds = {{{_listed(turned)}}}, int64[3] pair_sizes = {{{F // 2}, {F // 2}, {F % 2}}}",
        f"float scale = {{{F**-0.5}}}, float lowest = {{-1e30}}",  # of which the softmax makes zero
    ]
    graph.nodes += [
        "is_seen, cosine, sine, new_cosine, new_sine, state_known_after = bnce.Places "
        "(input_ids, state_known, context, speeds, zero, one, axis_1, last)",
        f"{_listed(f'keys_{number}' for number in numbers)} = Split <axis = 0> (state_keys)",
        f"{_listed(f'values_{number}' for number in numbers)} = Split <axis = 0> (state_values)",
        "read = Transpose <perm = [1, 0, 2]> (embedded)",
    ]
    if body.enter is not None:
        graph.weights["enter_weight"] = body.enter.weight.t()
        graph.nodes.append("entered = MatMul (read, enter_weight)")
    graph.nodes.append(f"stream_0 = bnce.Normed ({'read' if body.enter is None else 'entered'})")
    for number, block in enumerate(body.blocks):
        assert isinstance(block, Block)
        parts = {"query_key_value": block.query_key_value, "found": block.found, "up": block.up, "down": block.down}
        weights = {f"layer_{number}_{name}": part.weight.t() for name, part in parts.items()}
        graph.weights |= weights
        graph.nodes.append(
            f"stream_{number + 1}, keys_after_{number}, values_after_{number} = bnce.Layer "
            f"(stream_{number}, keys_{number}, values_{number}, {_listed(weights)}, is_seen, cosine, sine, new_cosine, "
            "new_sine, pair_sizes, heads, rows, state_heads, state_rows, first_kept, last, axis_1, scale, lowest)"
        )
    graph.nodes += [
        f"hidden_BTD = bnce.Normed (stream_{len(numbers)})",
        "hidden = Transpose <perm = [1, 0, 2]> (hidden_BTD)",
        f"state_keys_after = Concat <axis = 0> ({_listed(f'keys_after_{number}' for number in numbers)})",
        f"state_values_after = Concat <axis = 0> ({_listed(f'values_after_{number}' for number in numbers)})",
    ]


def _output(model: LanguageModel) -> dict[str, Tensor]:
    layer = model.output
    # Every score has ln Z taken off, so the bias has it taken off once and for all.
    return {"output_weight": layer.weight, "output_bias_less_log_z": layer.bias - layer.log_z}


def _words(model: LanguageModel) -> Graph:
    """Make the graph that scores chosen words: only their rows are read."""
    inputs = [f"float[T, B, {model.output.hidden_size}] hidden", "int64[T, B, K] words"]
    nodes = ["log_probs = bnce.Words (hidden, words, output_weight, output_bias_less_log_z)"]
    return Graph(inputs, ["float[T, B, K] log_probs"], _output(model), nodes=nodes)


def _all_words(model: LanguageModel) -> Graph:
    """Make the graph that scores all words, and gives the logarithm of the sum."""
    inputs = [f"float[T, B, {model.output.hidden_size}] hidden"]
    outputs = [f"float[T, B, {model.output.vocab_size}] log_probs", "float[T, B] log_sum"]
    nodes = ["log_probs, log_sum = bnce.AllWords (hidden, output_weight, output_bias_less_log_z)"]
    return Graph(inputs, outputs, _output(model), nodes=nodes)
