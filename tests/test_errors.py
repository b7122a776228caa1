"""The one error a user can cause: what it says."""

from __future__ import annotations

import pytest

from bnce.errors import UserError, unknown_name


def test_it_is_a_value_error() -> None:
    assert issubclass(UserError, ValueError)


@pytest.mark.parametrize(
    ("name", "hint"),
    [("lsmt", " Did you mean 'lstm'?"), ("relu_lstm", " Did you mean 'relu-lstm'?"), ("transformer", ""), ("", "")],
)
def test_unknown_name_lists_the_known_and_suggests_the_near_one(name: str, hint: str) -> None:
    error = unknown_name("model", name, iter(["rnn", "lstm", "relu-lstm"]))
    assert isinstance(error, UserError)
    assert str(error) == f"Unknown model '{name}': choose one of rnn, lstm, relu-lstm.{hint}"
