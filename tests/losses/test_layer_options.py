"""What an output layer cannot be made with: each refusal says the value, what is allowed, and what to do."""

from __future__ import annotations

import inspect
from collections import Counter
from typing import Any

import pytest
import torch
from making import draws_all, layer_of

import bnce
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
        ({"ignore_index": None}, "ignore_index is None: give a whole number."),
        ({"ignore_index": 1.5}, "ignore_index is 1.5: give a whole number."),
        ({"reduction": None}, "Unknown reduction None: choose one of mean, sum, none."),
        ({"reduction": "avg"}, "Unknown reduction 'avg': choose one of mean, sum, none."),
        ({"loss": "softmx"}, "Unknown loss 'softmx': choose one of softmax, "),
        ({"loss": bnce.BatchNce}, "Unknown loss <class 'bnce.registry.BatchNce'>: choose one of softmax, "),
    ],
)
def test_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        OutputLayer(D, V, COUNTS, **options)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("loss", ["softmax", "sampled-softmax"])
def test_a_constant_that_nothing_is_held_at_is_not_learned(loss: str) -> None:
    """It was taken once, and trained nothing."""
    with pytest.raises(UserError, match=f"^loss.learn_log_z is on, but {loss} has no constant Z as it is set: leave"):
        build(loss, learn_log_z=True)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_is_a_name_or_a_record(loss: str) -> None:
    by_name, by_record = OutputLayer(D, V, COUNTS, loss), OutputLayer(D, V, COUNTS, LOSSES[loss]())
    assert by_name.loss == by_record.loss
    assert by_name.loss_name == loss
    assert len(inspect.signature(OutputLayer).parameters) <= 13


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
    told = "OutputLayer(\n  hidden_size=4, vocab_size=20, loss=BatchNce(log_z=9.21), log_z=9.21\n"
    assert f"{build(log_z=9.21)}".startswith(told)
    assert build("snce").extra_repr() == "hidden_size=4, vocab_size=20, loss=SharedNce(num_noise=7), log_z=9"
    changed = build(sparse=True, batch_first=True, reduction="sum", ignore_index=0).extra_repr()
    assert changed.endswith("sparse=True, batch_first=True, reduction='sum', ignore_index=0, log_z=9")
    assert f"{build()}".endswith("\n  (noise): Noise(vocab_size=20)\n)")
    assert f"{noise.Running(5)}" == "Running(vocab_size=5)"
    assert build("adaptive-softmax").extra_repr() == "hidden_size=4, vocab_size=20, loss=AdaptiveSoftmax()"
    with torch.device("meta"):
        assert build().extra_repr().endswith("log_z=unknown")
