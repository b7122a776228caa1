"""Packed rows: the bound on each row's error holds, odd rows survive, and what is not packed keeps its bits."""

from __future__ import annotations

import pytest
import torch
from small_corpus import small_model
from torch import Tensor

from bnce import UserError
from bnce.runs.packed_rows import SCALE_SUFFIX, pack_rows, unpack_rows

TABLES = ("table", "bias")


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        "table": torch.randn(50, 8) * torch.logspace(-6, 3, 50)[:, None],
        "bias": torch.randn(50),
        "body": torch.randn(4, 4),
    }


def round_trip(table: Tensor, row_format: str) -> Tensor:
    return unpack_rows(pack_rows({"table": table}, TABLES, row_format))["table"]


def test_float32_is_the_same_tensors() -> None:
    given = tensors()
    packed = pack_rows(given, TABLES, "float32")
    assert all(packed[name] is tensor for name, tensor in given.items())
    assert packed.keys() == unpack_rows(packed).keys() == given.keys()


def test_int8_is_off_by_half_a_step_of_its_own_row() -> None:
    table = tensors()["table"]
    step = table.abs().amax(1, keepdim=True) / 127
    error = (round_trip(table, "int8").double() - table.double()).abs()
    assert torch.all(error <= step.double() * (0.5 + 1e-5))
    # A single scale for all rows would lose the small ones altogether.
    assert torch.all(error.amax(1) < 0.01 * table.abs().amax(1))


def test_float16_keeps_eleven_bits_and_refuses_what_is_too_large() -> None:
    table = torch.randn(50, 7)
    assert torch.all((round_trip(table, "float16") - table).abs() <= table.abs() * 2.0**-11 + 2.0**-24)
    with pytest.raises(UserError, match="The table 'table' has values that float16 cannot hold: use float32"):
        round_trip(torch.tensor([[1.0, 1e6]]), "float16")


def test_bf16_keeps_eight_bits() -> None:
    table = tensors()["table"]
    assert torch.all((round_trip(table, "bf16") - table).abs() <= table.abs() * 2.0**-8)


@pytest.mark.parametrize("row_format", ["bf16", "int8"])
def test_only_matrices_with_a_row_a_word_are_packed(row_format: str) -> None:
    given = tensors()
    packed = pack_rows(given, TABLES, row_format)
    assert packed["bias"] is given["bias"]
    assert packed["body"] is given["body"]
    assert packed["table"].dtype == (torch.int8 if row_format == "int8" else torch.bfloat16)
    unpacked = unpack_rows(packed)
    assert unpacked.keys() == given.keys()
    assert all(tensor.dtype == torch.float32 for tensor in unpacked.values())


def test_rows_of_zeros_and_of_the_smallest_numbers() -> None:
    table = torch.zeros(3, 4)
    table[1] = torch.finfo(torch.float32).smallest_normal * torch.tensor([1.0, -1.0, 0.5, 0.0])
    table[2, 0] = 5e-45  # its 127th part is none
    found = round_trip(table, "int8")
    assert torch.all(found[0] == 0)
    assert torch.allclose(found[1], table[1], rtol=0.01, atol=0)
    assert found.isfinite().all()


def test_the_largest_of_a_row_comes_back() -> None:
    table = tensors()["table"]
    torch.testing.assert_close(round_trip(table, "int8").abs().amax(1), table.abs().amax(1), rtol=1e-6, atol=0)


def test_refusals() -> None:
    with pytest.raises(UserError, match="Unknown row format 'int4': choose one of float32, float16, bf16, int8"):
        pack_rows({}, (), "int4")
    for bad in (float("nan"), float("inf")):
        with pytest.raises(UserError, match="The table 'table' has values that are not finite"):
            pack_rows({"table": torch.tensor([[1.0, bad]])}, TABLES, "int8")


def test_no_tensor_of_a_model_is_taken_for_a_scale() -> None:
    assert not [name for name in small_model("relu-lstm").state_dict() if name.endswith(SCALE_SUFFIX)]
