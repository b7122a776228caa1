"""The losses: how each gets its noise, whether it learns to normalise itself, and what it costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from bnce.kinds.kind import Kind, Registry


@dataclass(frozen=True)
class BatchShape:
    """The sizes that decide how many columns a loss has."""

    vocab_size: int  # V
    batch_size: int  # B
    num_steps: int  # T
    num_noise: int  # K
    num_distinct: int  # the most different targets of a chunk; T·B where nobody has counted them


@dataclass(frozen=True, kw_only=True)
class Loss(Kind):
    """One loss. It is built by a function from an `OutputBatch` to the sum over its positions."""

    each_by: str | None = None  # a function with the same arguments that gives the loss of every position (T, B)
    self_normalises: bool  # whether the constant Z may replace the sum over the vocabulary
    columns: Callable[[BatchShape], int]  # the words that a position is scored against, its own among them
    draws: Literal["never", "may", "must"] = "never"  # noise words, K of them
    draws_for: Literal["position", "step", "chunk"] = "step"  # whose positions share the words
    usual_num_noise: str = "the paper uses 100"  # K, for messages
    scores_odds: bool = False  # its scores are ln p − ln(K · p_n), no log-probabilities less a constant
    caveat: str | None = None  # what must be said beside its perplexity
    batch_is_noise: bool = False  # the other targets of the batch are noise, which is then the unigram
    whole_chunk: bool = False  # trains on all time steps of a chunk together, not on one at a time
    merges_targets: bool = False  # wants to know the most different targets of a chunk
    scores_all_words: bool = False  # so that its cost grows with the vocabulary
    penalises: bool = False  # how far ln Z(context), or the batch's estimate, is from the constant: `loss.penalty`
    structure: str | None = None  # a class that finds the rows of a word; the layer is then exactly normalised
    settings: tuple[str, ...] = ()  # of `[loss]`, that this loss has and not all
    is_baseline: bool = False  # speeds and qualities are told relative to it
    tables: tuple[str, ...] = ()  # of the paper's, that it has rows in
    shown_with_drawn: str | None = None  # what it is called where it may draw words and does

    def has(self, setting: str) -> bool:
        """Whether the loss has a use for a setting that not all losses have."""
        shared = {
            "num_noise": self.draws != "never",
            "penalty": self.penalises,
            "log_z": self.structure is None,
            "learn_log_z": self.structure is None,
        }
        return shared.get(setting, setting in self.settings)

    @property
    def needs_whole_output(self) -> bool:
        """Whether a step needs more rows of the output layer than those of its words."""
        return self.scores_all_words or self.structure is not None


TABLES = ("ltcb", "obwb")

LOSSES: Registry[Loss] = Registry(
    "loss",
    Loss(
        name="softmax",
        shown="softmax",
        help="exact; slow for large vocabularies",
        built_by="bnce.losses.softmax:softmax",
        each_by="bnce.losses.softmax:softmax_each",
        self_normalises=False,
        columns=lambda shape: shape.vocab_size,
        scores_all_words=True,
        is_baseline=True,
        tables=TABLES,
    ),
    Loss(
        name="self-normalised-softmax",
        shown="self-normalised softmax",
        help="softmax with a penalty that keeps its sum near the constant Z; as slow as softmax",
        built_by="bnce.losses.self_normalised_softmax:self_normalised_softmax",
        each_by="bnce.losses.self_normalised_softmax:self_normalised_softmax_each",
        self_normalises=True,
        columns=lambda shape: shape.vocab_size,
        scores_all_words=True,
        penalises=True,
    ),
    Loss(
        name="nce",
        shown="NCE",
        help="separate noise words for each position",
        built_by="bnce.losses.sampled_nce:nce",
        each_by="bnce.losses.sampled_nce:nce_each",
        self_normalises=True,
        columns=lambda shape: shape.num_noise + 1,
        draws="must",
        draws_for="position",
    ),
    Loss(
        name="snce",
        shown="S-NCE",
        help="noise words shared by the batch",
        built_by="bnce.losses.sampled_nce:shared_nce",
        each_by="bnce.losses.sampled_nce:shared_nce_each",
        self_normalises=True,
        columns=lambda shape: shape.num_noise + 1,
        draws="must",
        tables=TABLES,
    ),
    Loss(
        name="sampled-softmax",
        shown="sampled softmax",
        help="softmax over drawn words that all positions of a chunk share",
        built_by="bnce.losses.sampled_softmax:sampled_softmax",
        each_by="bnce.losses.sampled_softmax:sampled_softmax_each",
        self_normalises=False,
        columns=lambda shape: min(shape.num_noise, shape.vocab_size) + 1,
        draws="must",
        draws_for="chunk",
        usual_num_noise="the recipes use 8192",
        settings=("replacement",),
    ),
    Loss(
        name="bnce",
        shown="B-NCE",
        help="the other target words of the batch are the noise; with loss.num_noise > 0, drawn words are added",
        built_by="bnce.losses.batch_nce:batch_nce",
        each_by="bnce.losses.batch_nce:batch_nce_each",
        self_normalises=True,
        columns=lambda shape: shape.batch_size + shape.num_noise,
        draws="may",
        batch_is_noise=True,
        tables=TABLES,
        shown_with_drawn="adaptive B-NCE",
    ),
    Loss(
        name="chunk-bnce",  # ours; beside the paper's in its tables
        shown="chunk B-NCE",
        help="the target words of the other streams, at all time steps of the chunk, are the noise",
        built_by="bnce.losses.chunk_nce:chunk_nce",
        each_by="bnce.losses.chunk_nce:chunk_nce_each",
        self_normalises=True,
        columns=lambda shape: shape.num_distinct,
        batch_is_noise=True,
        whole_chunk=True,
        merges_targets=True,
        tables=TABLES,
    ),
    Loss(
        name="chunk-softmax",  # ours
        shown="chunk softmax",
        help="softmax over the target words of the other streams, at all time steps of the chunk",
        built_by="bnce.losses.chunk_softmax:chunk_softmax",
        each_by="bnce.losses.chunk_softmax:chunk_softmax_each",
        self_normalises=True,
        columns=lambda shape: shape.num_distinct,
        batch_is_noise=True,
        whole_chunk=True,
        merges_targets=True,
        penalises=True,
    ),
    Loss(
        name="adaptive-softmax",
        shown="adaptive softmax",
        help="exact; one softmax over the frequent words, smaller ones over groups of rare words",
        built_by="bnce.losses.adaptive_softmax:adaptive_softmax",
        each_by="bnce.losses.adaptive_softmax:adaptive_softmax_each",
        structure="bnce.losses.adaptive_softmax:AdaptiveSoftmax",
        settings=("cutoffs", "div_value"),
        self_normalises=True,
        columns=lambda shape: shape.vocab_size,
    ),
)
