"""The rows of the table of alternatives to the softmax: losses, their settings, and what is searched for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Setting = float | int | bool | str


@dataclass(frozen=True)
class Alternative:
    """One row: a loss, how it is set, and one setting of its own that is searched beside the learning rates."""

    name: str  # of its runs
    loss: str
    shown: str
    settings: Mapping[str, Setting] = field(default_factory=dict)
    knob: str | None = None  # the setting; None: the body's learning rate
    values: tuple[Setting, Setting] = (0.5, 2.0)  # that are tried beside the one it has; of a rate, as factors


def _adaptive(num_noise: int) -> Alternative:
    return Alternative(f"bnce-{num_noise}", "bnce", f"adaptive B-NCE, K = {num_noise:,}", {"loss.num_noise": num_noise})


# Every one has the same number of trials. Where the literature gives a value, that is the first one.
ALTERNATIVES = (
    Alternative("softmax", "softmax", "softmax"),
    Alternative(
        "self-normalised-softmax",
        "self-normalised-softmax",
        "self-normalised softmax",
        knob="loss.penalty",
        values=(0.02, 0.5),
    ),
    Alternative("adaptive-softmax", "adaptive-softmax", "adaptive softmax", knob="loss.div_value", values=(2.0, 8.0)),
    Alternative("class-softmax", "class-softmax", "class-factored softmax"),
    Alternative("hierarchical-softmax", "hierarchical-softmax", "hierarchical softmax"),
    Alternative("sampled-softmax", "sampled-softmax", "sampled softmax, log-uniform"),
    Alternative(
        "sampled-softmax-unigram",
        "sampled-softmax",
        "sampled softmax, unigram",
        {"loss.noise": "unigram", "loss.replacement": True},
    ),
    Alternative("nce", "nce", "NCE"),
    Alternative("nce-learned-z", "nce", "NCE, learned Z", {"loss.learn_log_z": True}),
    Alternative("snce", "snce", "S-NCE"),
    Alternative("blackout", "blackout", "BlackOut", knob="loss.noise_power", values=(0.2, 0.6)),
    Alternative(
        "negative-sampling", "negative-sampling", "negative sampling", knob="loss.noise_power", values=(0.5, 1.0)
    ),
    Alternative("bnce", "bnce", "B-NCE"),
    _adaptive(200),
    _adaptive(1000),
    _adaptive(4000),
    Alternative("chunk-bnce", "chunk-bnce", "chunk B-NCE"),
    Alternative("chunk-softmax-free", "chunk-softmax", "chunk softmax, no penalty", {"loss.penalty": 0.0}),
    Alternative("chunk-softmax", "chunk-softmax", "chunk softmax", knob="loss.penalty", values=(0.02, 0.2)),
)
