"""What an output layer cannot be made with: each refusal says the value, what is allowed, and what to do."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from making import draws_all, layer_of

from bnce import LOSSES, OutputLayer, UserError, noise

V, D, K = 20, 4, 7
COUNTS = torch.arange(1, V + 1)


def build(loss: str = "bnce", **options: Any) -> OutputLayer:
    if draws_all(loss):
        options.setdefault("num_noise", K)
    return layer_of(D, V, COUNTS, loss, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log_z": float("nan")}, "log_z is nan: give a finite number."),
        ({"log_z": float("inf")}, "log_z is inf: give a finite number."),
        ({"log_z": None}, "log_z is None: give a finite number."),
        ({"log_z": "9"}, "log_z is '9': give a finite number."),
        ({"num_noise": -1}, "num_noise is -1: give 0 or more."),
        ({"num_noise": 2.5}, "num_noise is 2.5: give a whole number of 0 or more."),
        ({"penalty": float("nan")}, "penalty is nan: give a finite number."),
        ({"ignore_index": None}, "ignore_index is None: give a whole number."),
        ({"ignore_index": 1.5}, "ignore_index is 1.5: give a whole number."),
        ({"reduction": None}, "Unknown reduction None: choose one of mean, sum, none."),
        ({"reduction": "avg"}, "Unknown reduction 'avg': choose one of mean, sum, none."),
        ({"loss": "chunk-bnce", "num_noise": 5}, "num_noise is 5, but the loss chunk-bnce has no use for it: "),
        ({"loss": "softmax", "num_noise": 5}, "num_noise is 5, but the loss softmax has no use for it: leave it out."),
        ({"penalty": -1.0}, "penalty is -1"),
        ({"loss": "chunk-bnce", "penalty": 0.0}, "penalty is 0.0, but the loss chunk-bnce has no use for it: leave it"),
        ({"penalty": 0.5}, "penalty is 0.5, but the loss bnce has no use for it: leave it out."),
        ({"loss": "adaptive-softmax", "log_z": 3.0}, "log_z is 3.0, but the loss adaptive-softmax has no use for it: "),
        (
            {"loss": "adaptive-softmax", "learn_log_z": True},
            "learn_log_z is on, but adaptive-softmax is exactly normalised ",
        ),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        build(**options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("loss", LOSSES)
def test_what_is_as_it_would_be_anyway_is_taken(loss: str) -> None:
    build(loss, log_z=9.0, penalty=0.1, replacement=True)
    assert build("bnce", log_z=torch.tensor(2.5), num_noise=torch.tensor(3)).log_z.item() == 2.5


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((4.0, V), "hidden_size is 4.0: give a whole number of 1 or more."),
        ((0, V), "hidden_size is 0: give 1 or more."),
        ((D, "20"), "vocab_size is '20': give a whole number of 1 or more."),
    ],
)
def test_sizes_that_are_refused(sizes: tuple[Any, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        layer_of(*sizes, COUNTS)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("counts", "what"),
    [
        (dict.fromkeys(range(V), 1), "a dict"),
        (Counter(range(V)), "a Counter"),
        ((1 for _ in range(V)), "a generator"),
        ("unigram", "'unigram'"),
        (None, "None"),
        ([[1], [2, 3]], "a list"),
        (["one"] * V, "a list"),
    ],
)
def test_counts_that_are_no_numbers_by_class(counts: Any, what: str) -> None:
    with pytest.raises(UserError) as caught:
        layer_of(D, V, counts)
    assert str(caught.value).startswith(
        f"Counts or probabilities are {what}: give one number per class id, in a list, a tensor or an array"
    )


def test_a_layer_says_what_it_is() -> None:
    assert f"{build(log_z=9.21)}".startswith("layer_of(\n  hidden_size=4, vocab_size=20, loss='bnce', log_z=9.21\n")
    assert build("snce").extra_repr() == "hidden_size=4, vocab_size=20, loss='snce', num_noise=7, log_z=9"
    changed = build(sparse=True, batch_first=True, reduction="sum", ignore_index=0).extra_repr()
    assert changed.endswith("sparse=True, batch_first=True, reduction='sum', ignore_index=0, log_z=9")
    assert f"{build()}".endswith("\n  (noise): Noise(vocab_size=20)\n)")
    assert f"{noise.Running(5)}" == "Running(vocab_size=5, decay=0.9999, every=256)"
    assert build("adaptive-softmax").extra_repr() == "hidden_size=4, vocab_size=20, loss='adaptive-softmax'"
    with torch.device("meta"):
        assert build().extra_repr().endswith("log_z=unknown")
