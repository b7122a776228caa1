"""A device by its name: what is there is taken, and what is not is refused."""

from __future__ import annotations

import pytest
import torch

from bnce import UserError
from bnce.machine.devices import choose_device, describe_device, find_device


def test_devices() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda")
    assert f"CPU, {torch.get_num_threads()} thread" in describe_device(torch.device("cpu"))
    for name in ("gpu", "", "meta", "cuda:x", "mps", "cpu:0", "cpu:3"):
        with pytest.raises(UserError, match=f"Unknown device '{name}': use auto, cpu, cuda or cuda:N"):
            choose_device(name)


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:1"):
        with pytest.raises(UserError, match=f"The device is '{name}', but .*use device='cpu'"):
            choose_device(name)


def test_a_gpu_by_its_number_becomes_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is captured or launched goes to the current device, not to that of its tensors."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    assert current == [torch.device("cuda:1")]
    with pytest.raises(UserError, match=r"'cuda:2', but the last GPU of this machine is cuda:1: use a GPU that exists"):
        choose_device("cuda:2")


def test_a_gpu_is_found_without_taking_memory_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context takes half a GiB of a GPU, and nobody needs one only to know that the GPU is there."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", None)
    assert find_device("cuda:1") == torch.device("cuda:1")
