"""A Transformer's body as nodes of an ONNX graph, with the keys and values of earlier words in and out.

Legend: T time steps, B streams, E embedding, D hidden, H heads, K = D / H, W words in the state, S = W + T, L layers.
"""

from __future__ import annotations

import numpy as np
import torch
from onnx import TensorProto, numpy_helper

from bnce.export.onnx_graphs import Graph, WeightsFile
from bnce.models.transformer import Block, Transformer, rotation_speeds

STATE_NAMES = ("state_keys", "state_values", "state_known")
_EPSILON = float(torch.finfo(torch.float32).eps)  # what PyTorch adds to a mean square in float32
_LAST = 2**63 - 1


def add_transformer(graph: Graph, weights: WeightsFile, body: Transformer, ids_TB: str, embedded_TBE: str) -> None:
    """Append the nodes from embedded words and a state to the last hidden layer and the state after it."""
    writer = _Writer(graph, weights, body)
    num_layers, W, D = len(body.blocks), body.context, body.output_size
    keys, values = (graph.input(name, TensorProto.FLOAT, [num_layers, "B", W, D]) for name in STATE_NAMES[:2])
    known_1B = graph.input(STATE_NAMES[2], TensorProto.FLOAT, [1, "B"])
    stream = graph.node("Transpose", embedded_TBE, perm=[1, 0, 2])
    if body.enter is not None:
        stream = writer.product("enter", body.enter, stream)
    stream = writer.normed(stream)
    writer.measure(ids_TB, known_1B)
    kept = []
    for number, block in enumerate(body.blocks):
        assert isinstance(block, Block)
        stream, *last = writer.layer(number, block, stream, keys, values)
        kept.append(last)
    graph.node("Transpose", writer.normed(stream), perm=[1, 0, 2], to="hidden")
    for name, parts in zip(STATE_NAMES[:2], zip(*kept, strict=True), strict=True):
        graph.node("Concat", *parts, axis=0, to=f"{name}_after")
        graph.output(f"{name}_after", [num_layers, "B", W, D])
    graph.node("Min", graph.node("Add", known_1B, writer.num_steps), graph.number(W), to="state_known_after")
    graph.output("state_known_after", [1, "B"])


class _Writer:
    """What the nodes of all layers share."""

    def __init__(self, graph: Graph, weights: WeightsFile, body: Transformer) -> None:
        self.graph, self.weights, self.body = graph, weights, body
        self.head_size = body.output_size // body.num_heads

    def product(self, name: str, layer: torch.nn.Module, rows: str) -> str:
        """Multiply by the weight of a layer without bias."""
        assert isinstance(layer, torch.nn.Linear)
        return self.graph.node("MatMul", rows, self.graph.weight(self.weights.add(f"{name}_weight", layer.weight.t())))

    def normed(self, rows: str) -> str:
        """Divide each row by the root of its mean square."""
        graph = self.graph
        mean = graph.node("ReduceMean", graph.node("Mul", rows, rows), axes=[-1], keepdims=1)
        return graph.node("Div", rows, graph.node("Sqrt", graph.node("Add", mean, graph.number(_EPSILON))))

    def measure(self, ids_TB: str, known_1B: str) -> None:
        """Make what all layers need of places: their cosines and sines, and which of them a position sees."""
        graph, W = self.graph, self.body.context
        steps = graph.node("Gather", graph.node("Shape", ids_TB), graph.integers(0))
        self.num_steps = graph.node("Cast", steps, to_type=TensorProto.FLOAT)
        num_places = graph.node("Squeeze", graph.node("Add", self.num_steps, graph.number(W)), graph.integers(0))
        place_S = graph.node("Range", graph.number(0), num_places, graph.number(1))
        speed = rotation_speeds(self.head_size, torch.float32, torch.device("cpu")).numpy()
        graph.weights.append(numpy_helper.from_array(np.ascontiguousarray(speed), "rotation_speeds"))
        angle = graph.node("Mul", graph.node("Unsqueeze", place_S, graph.integers(1)), "rotation_speeds")
        angle = graph.node("Unsqueeze", angle, graph.integers(1))  # (S, 1, K / 2)
        self.all_turns = graph.node("Cos", angle), graph.node("Sin", angle)
        self.new_turns = tuple(self._after_state(turn) for turn in self.all_turns)
        place_T1 = graph.node("Unsqueeze", self._after_state(place_S), graph.integers(1))
        is_past = graph.node("LessOrEqual", place_S, place_T1)
        is_near = graph.node("Greater", place_S, graph.node("Sub", place_T1, graph.number(W)))
        first_B1 = graph.node("Sub", graph.number(W), graph.node("Transpose", known_1B, perm=[1, 0]))
        is_known_BS = graph.node("GreaterOrEqual", place_S, first_B1)
        is_known = graph.node("Unsqueeze", is_known_BS, graph.integers(1))
        is_seen = graph.node("And", graph.node("And", is_past, is_near), is_known)
        hidden = graph.node("Where", is_seen, graph.number(0.0), graph.number(-np.inf))
        self.penalty_B1TS = graph.node("Unsqueeze", hidden, graph.integers(1))

    def _after_state(self, rows: str) -> str:
        """Take what comes after the words of the state."""
        graph = self.graph
        ends = graph.integers(self.body.context), graph.integers(_LAST), graph.integers(0)
        return graph.node("Slice", rows, *ends)

    def _split(self, rows: str, begin: int, end: int) -> str:
        graph = self.graph
        return graph.node("Slice", rows, graph.integers(begin), graph.integers(end), graph.integers(-1))

    def _as_heads(self, rows: str) -> str:
        return self.graph.node("Reshape", rows, self.graph.integers(0, 0, self.body.num_heads, self.head_size))

    def _as_rows(self, heads: str) -> str:
        return self.graph.node("Reshape", heads, self.graph.integers(0, 0, self.body.output_size))

    def _rotate(self, heads: str, turns: tuple[str, ...]) -> str:
        graph, half, (cosine, sine) = self.graph, self.head_size // 2, turns
        first, second = self._split(heads, 0, half), self._split(heads, half, 2 * half)
        turned = [
            graph.node("Sub", graph.node("Mul", first, cosine), graph.node("Mul", second, sine)),
            graph.node("Add", graph.node("Mul", second, cosine), graph.node("Mul", first, sine)),
        ]
        if self.head_size % 2:
            turned.append(self._split(heads, 2 * half, self.head_size))
        return graph.node("Concat", *turned, axis=-1)

    def layer(self, number: int, block: Block, stream: str, keys: str, values: str) -> tuple[str, str, str]:
        """Append one layer; give the stream after it, and the keys and values that are kept of it."""
        graph, D, W = self.graph, self.body.output_size, self.body.context
        parts = self.product(f"layer_{number}_query_key_value", block.query_key_value, self.normed(stream))
        query = self.normed(self._as_heads(self._split(parts, 0, D)))
        key_BTD = self._as_rows(self.normed(self._as_heads(self._split(parts, D, 2 * D))))
        with_state = []
        for name, new in ((keys, key_BTD), (values, self._split(parts, 2 * D, 3 * D))):
            known = graph.node("Squeeze", graph.node("Gather", name, graph.integers(number)), graph.integers(0))
            with_state.append(graph.node("Concat", known, new, axis=1))
        key_BSD, value_BSD = with_state
        turned = self._rotate(self._as_heads(key_BSD), self.all_turns)
        query = graph.node("Transpose", self._rotate(query, self.new_turns), perm=[0, 2, 1, 3])
        score = graph.node("MatMul", query, graph.node("Transpose", turned, perm=[0, 2, 3, 1]))
        score = graph.node("Mul", score, graph.number(self.head_size**-0.5))
        weight = graph.node("Softmax", graph.node("Add", score, self.penalty_B1TS), axis=-1)
        value = graph.node("Transpose", self._as_heads(value_BSD), perm=[0, 2, 1, 3])
        found = graph.node("Transpose", graph.node("MatMul", weight, value), perm=[0, 2, 1, 3])
        stream = graph.node("Add", stream, self.product(f"layer_{number}_found", block.found, self._as_rows(found)))
        wide = graph.node("Relu", self.product(f"layer_{number}_up", block.up, self.normed(stream)))
        wide = self.product(f"layer_{number}_down", block.down, graph.node("Mul", wide, wide))
        kept = []
        for rows in with_state:
            last = graph.node("Slice", rows, graph.integers(-W), graph.integers(_LAST), graph.integers(1))
            kept.append(graph.node("Unsqueeze", last, graph.integers(0)))
        return graph.node("Add", stream, wide), kept[0], kept[1]
