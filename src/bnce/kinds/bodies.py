"""The bodies, which `model.name` chooses: the layers from embedded words to the last hidden layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bnce.kinds.kind import Kind, Registry


@dataclass(frozen=True, kw_only=True)
class Body(Kind):
    """One body. It is built from its sizes and `dropout`, with the record's options beside them, all by keyword."""

    family: str  # tables draw a line between families
    layers: str  # as the paper's Tables 1 and 3 write them, with names of settings in braces
    sizes: tuple[str, ...]  # the settings of `[model]` that decide the shapes of its weights
    carries_state: bool  # from chunk to chunk in training, so that it reads on where the stream left off
    embedding_range: float = 0.1  # an embedding's numbers start between minus this and this
    num_layers: int = 1  # if it can have more, how many it has unless they are set
    resets: bool = False  # whether its `forward` takes the places where texts begin anew
    attends: bool = False  # to `context` words before a position, of which a chunk must have as many
    options: Mapping[str, Any] = field(default_factory=dict)
    tables: tuple[str, ...] = ()  # of the paper's, that it has rows in
    tables_with_softmax: tuple[str, ...] = ()  # where it has one for the full softmax, too
    exports: tuple[str, ...] = ()  # what it can be exported to, beside its weights


_EXPORTS = ("onnx", "transformers")


def _recurrent(cell: str, *, has_bottleneck: bool, help: str, tables_with_softmax: tuple[str, ...] = ("ltcb",)) -> Body:
    """Describe layers of RNN or LSTM, with or without the paper's ReLu layer after the last."""
    return Body(
        name=f"relu-{cell}" if has_bottleneck else cell,
        shown=f"ReLu-{cell.upper()}" if has_bottleneck else cell.upper(),
        help=help,
        built_by=f"bnce.models.recurrent:{cell}",
        family=cell,
        layers="{embedding_size}–{repeated}{hidden_size}(R)–" + ("{bottleneck_size}(B)–V" if has_bottleneck else "V"),
        sizes=("embedding_size", "hidden_size", *(["bottleneck_size"] if has_bottleneck else []), "num_layers"),
        carries_state=True,
        resets=True,
        tables=("ltcb", "obwb"),
        tables_with_softmax=tables_with_softmax,
        exports=_EXPORTS,
    )


BODIES: Registry[Body] = Registry(
    "model",
    Body(
        name="ffnn",
        shown="FFNN",
        help="n-gram feed-forward network",
        built_by="bnce.models.feedforward:FeedForward",
        family="feed-forward",
        layers="{num_words}×{embedding_size}–{hidden_size}–{bottleneck_size}(B)–V",
        sizes=("embedding_size", "hidden_size", "bottleneck_size", "order"),
        carries_state=False,
        resets=True,
        tables=("ltcb", "obwb"),
        tables_with_softmax=("ltcb",),
        exports=_EXPORTS,
    ),
    _recurrent("rnn", has_bottleneck=False, help="tanh RNN layers"),
    _recurrent("rnn", has_bottleneck=True, help="RNN, then a smaller ReLu layer"),
    _recurrent("lstm", has_bottleneck=False, help="LSTM layers"),
    _recurrent(
        "lstm",
        has_bottleneck=True,
        help="LSTM, then a smaller ReLu layer",
        # The paper could not run the softmax over 0.8M words; this one shows what it costs.
        tables_with_softmax=("ltcb", "obwb"),
    ),
    Body(
        name="transformer",
        shown="Transformer",
        help="decoder-only Transformer",
        built_by="bnce.models.transformer:Transformer",
        family="transformer",
        layers="{embedding_size}–{num_layers}×{hidden_size}(T)–V",
        sizes=("embedding_size", "hidden_size", "num_layers", "num_heads"),
        carries_state=False,
        resets=True,
        # A row is normed before the first layer, so its length only decides how far a step turns it: from 0.1 a run on
        # 25.6M words ended at a validation perplexity of 62.3, from 0.035 at 60.5, from 0.01 at 59.9.
        embedding_range=0.01,
        num_layers=6,
        attends=True,
        exports=_EXPORTS,
    ),
)
