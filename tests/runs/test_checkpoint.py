"""Checkpoints: what is written comes back to the bit, and nothing torn, damaged or foreign is ever used."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from bnce import UserError
from bnce.runs import checkpoint
from bnce.runs.checkpoint import load_newest_state, read_model, read_tensors, save_state, state_files, write_tensors

ORIGIN = {"owner": "this run"}
TENSORS = {
    "weight": torch.arange(12.0).reshape(3, 4),
    "scalar": torch.tensor(2.5),
    "double": torch.tensor([1e-300], dtype=torch.float64),
    "half": torch.tensor([0.1, 0.2], dtype=torch.bfloat16),
    "count": torch.tensor([1, 2**60]),
    "flags": torch.tensor([True, False]),
    "bytes": torch.arange(256).to(torch.uint8),
    "empty": torch.zeros(0, 5),
    "nan": torch.tensor([float("nan"), float("inf"), -0.0]),
}
RECORD = {"step": 7, "best": float("inf"), "schedule": {"halvings": 1}}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    """Compare to the bit, so that NaN equals itself."""
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype
        and found[name].shape == tensor.shape
        and found[name].reshape(-1).view(torch.uint8).equal(tensor.contiguous().reshape(-1).view(torch.uint8))
        for name, tensor in expected.items()
    )


def refusal(path: Path, kind: str = "kind") -> str:
    with pytest.raises(UserError) as caught:
        read_tensors(path, kind)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.safetensors"
    write_tensors(path, TENSORS, "kind", {"note": "text"})
    return path


def test_round_trip(file: Path) -> None:
    tensors, metadata = read_tensors(file, "kind")
    assert same(tensors, TENSORS)
    assert metadata["note"] == "text"
    assert os.listdir(file.parent) == [file.name]


def test_any_layout_is_written(tmp_path: Path) -> None:
    """A transposed tensor, one that needs a gradient, and none at all."""
    turned = torch.arange(6.0).reshape(2, 3).t()
    write_tensors(tmp_path / "a", {"turned": turned, "leaf": torch.ones(2, requires_grad=True)}, "kind", {})
    tensors, _ = read_tensors(tmp_path / "a", "kind")
    assert torch.equal(tensors["turned"], turned)
    write_tensors(tmp_path / "b", {}, "kind", {})
    assert read_tensors(tmp_path / "b", "kind")[0] == {}


def test_others_may_read_it_as_any_new_file(tmp_path: Path, file: Path) -> None:
    (tmp_path / "ordinary").touch()
    assert stat.S_IMODE(file.stat().st_mode) == stat.S_IMODE((tmp_path / "ordinary").stat().st_mode)


def test_truncated_file_is_refused_at_every_length(file: Path) -> None:
    data = file.read_bytes()
    header_end = 8 + int.from_bytes(data[:8], "little")
    for length in (0, 1, 7, 8, 9, header_end // 2, header_end - 1, header_end, header_end + 1, len(data) - 1):
        file.write_bytes(data[:length])
        assert refusal(file).startswith(f"'{file}' is incomplete or not a safetensors file ("), length
    file.write_bytes(data + b"\0")
    refusal(file)


def test_every_flipped_bit_is_seen(tmp_path: Path) -> None:
    """Header, notes, names, shapes and numbers of a small file."""
    path = tmp_path / "a"
    write_tensors(path, {"a": torch.tensor([1.5]), "b": torch.tensor(3)}, "kind", {"record": '{"step": 7}'})
    data = path.read_bytes()
    # Two bits of each byte, in turn all eight, keep this below two seconds.
    for place in range(len(data)):
        for bit in (place % 8, (place + 3) % 8):
            damaged = bytearray(data)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            refusal(path)


def test_damage_is_called_damage(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 0x10
    file.write_bytes(data)
    assert refusal(file) == f"'{file}' is damaged: its checksum does not match its contents."


def test_other_kinds_are_refused(tmp_path: Path, file: Path) -> None:
    assert refusal(file, "other") == f"'{file}' is not a other file: it says 'kind'."
    foreign = tmp_path / "foreign"
    save_file({"a": torch.ones(1)}, foreign)
    assert refusal(foreign) == f"'{foreign}' is not a kind file: it says 'nothing'."


def test_text_and_missing_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("not tensors at all")
    assert "is incomplete or not a safetensors file" in refusal(text)
    assert "No such file" in refusal(tmp_path / "missing")


@pytest.fixture
def small_file_limit() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.usefixtures("small_file_limit")
def test_errors_of_the_system_keep_their_number(tmp_path: Path) -> None:
    """safetensors tells what failed in words only; a real failure must come out with its number."""
    with pytest.raises(UserError, match="Files may not be that large here") as caught:
        write_tensors(tmp_path / "a", {"a": torch.ones(100_000)}, "kind", {})
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EFBIG
    assert os.listdir(tmp_path) == []


def test_equal_tensors_give_equal_bytes(tmp_path: Path) -> None:
    """safetensors writes its metadata in an order that differs from process to process and from call to call."""
    metadata = {f"key {number}": f'välue \n \\ " {number}' for number in range(20)}
    for name in ("a", "b", "c"):
        write_tensors(tmp_path / name, TENSORS, "kind", metadata)
    written = (tmp_path / "a").read_bytes()
    assert (tmp_path / "b").read_bytes() == (tmp_path / "c").read_bytes() == written
    length = int.from_bytes(written[:8], "little")
    assert (8 + length) % 8 == 0, "tensors are aligned"
    assert list(json.loads(written[8 : 8 + length])["__metadata__"]) == sorted([*metadata, "format", "checksum"])
    assert same(read_tensors(tmp_path / "a", "kind")[0], TENSORS)


# States of a run.


def check(path: Path, origin: Mapping[str, str]) -> None:
    if origin["owner"] != ORIGIN["owner"]:
        raise UserError(f"'{path}' belongs to another run.")


def test_state_round_trip(tmp_path: Path) -> None:
    path = save_state(tmp_path, 7, TENSORS, RECORD, ORIGIN)
    state, refused = load_newest_state(tmp_path, check)
    assert (state.path, state.record, refused) == (path, RECORD, [])
    assert same(state.tensors, TENSORS)


def test_only_two_states_are_kept(tmp_path: Path) -> None:
    for step in (9, 10, 100, 1_000_000):
        save_state(tmp_path, step, {"step": torch.tensor(step)}, {}, ORIGIN)
    assert [path.name for path in state_files(tmp_path)] == [
        "state-000000000100.safetensors",
        "state-000001000000.safetensors",
    ]
    state, _ = load_newest_state(tmp_path, check)
    assert state.tensors["step"].item() == 1_000_000


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "record"])
def test_previous_state_is_used_where_the_newest_is_broken(tmp_path: Path, damage: str) -> None:
    save_state(tmp_path, 1, {"a": torch.tensor(1)}, {"step": 1}, ORIGIN)
    newest = save_state(tmp_path, 2, {"a": torch.tensor(2)}, {"step": 2}, ORIGIN)
    data = bytearray(newest.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "emptied":
        data = bytearray()
    elif damage == "record":
        data = data.replace(b'\\"step\\": 2', b'\\"step\\": 3')
        assert data != newest.read_bytes()
    else:
        data[-1] ^= 1
    newest.write_bytes(data)
    state, refused = load_newest_state(tmp_path, check)
    assert state.record == {"step": 1}
    assert state.tensors["a"].item() == 1
    assert len(refused) == 1
    assert refused[0].startswith(f"'{newest}' is ")


def test_state_of_another_run_is_refused(tmp_path: Path) -> None:
    path = save_state(tmp_path, 1, {}, {}, {"owner": "another run"})
    with pytest.raises(UserError) as caught:
        load_newest_state(tmp_path, check)
    assert str(caught.value) == (
        f"'{tmp_path}' has no checkpoint to resume from: start the run again with another out. "
        f"'{path}' belongs to another run."
    )


def test_no_state_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_newest_state(tmp_path, check)
    assert str(caught.value) == (
        f"'{tmp_path}' has no checkpoint to resume from: start the run again with another out."
    )


def test_half_written_state_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in the middle of writing leaves the states before it."""
    save_state(tmp_path, 1, {"a": torch.tensor(1)}, {}, ORIGIN)

    def crash(tensors: object, path: Path, header: object) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_file", crash)
    with pytest.raises(KeyboardInterrupt):
        save_state(tmp_path, 2, {"a": torch.tensor(2)}, {}, ORIGIN)
    assert os.listdir(tmp_path) == ["state-000000000001.safetensors"]


def test_a_model_is_read_in_any_form_it_may_have(tmp_path: Path) -> None:
    path, table = tmp_path / "model.safetensors", torch.randn(5, 3)
    packed = {"table": torch.tensor([[127, -127], [1, 0]], dtype=torch.int8), "table.scale": torch.tensor([0.5, 2.0])}
    write_tensors(path, packed, checkpoint.MODEL_FORMAT, {})
    tensors, _ = read_model(path)
    assert tensors["table"].tolist() == [[63.5, -63.5], [2.0, 0.0]]
    assert tensors.keys() == {"table"}
    # As transformers saves it, without a checksum, and as an export for transformers is, with one.
    save_file({"table": table.bfloat16()}, path, {"format": "pt"})
    assert read_model(path)[0]["table"].equal(table.bfloat16().float())
    write_tensors(path, {"table": table}, checkpoint.TRANSFORMERS_FORMAT, {})
    assert read_model(path)[0]["table"].equal(table)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match="is damaged: its checksum does not match"):
        read_model(path)


@pytest.mark.parametrize("kind", [checkpoint.STATE_FORMAT, "np"])
def test_a_file_that_is_no_model_is_refused_as_one(tmp_path: Path, kind: str) -> None:
    write_tensors(tmp_path / "a", TENSORS, kind, {})
    with pytest.raises(UserError, match=f"is not a bnce-model-2 file: it says '{kind}'"):
        read_model(tmp_path / "a")
