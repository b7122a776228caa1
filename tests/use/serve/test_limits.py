"""Limits are positive."""

from __future__ import annotations

import pytest

from bnce.errors import UserError
from bnce.use.serve.limits import Limits


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_a_limit_is_above_zero(value: float) -> None:
    with pytest.raises(UserError, match=rf"The limit body_seconds is {value}: it must be above 0"):
        Limits(body_seconds=value)
