"""How a network is spread over a GPU, which needs none; what the kernels compute is tested on one (tests/gpu)."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bnce.kernels.hopper import persistent

KERNELS = ["lstm_forward", "lstm_backward", "rnn_forward", "rnn_backward"]


@pytest.mark.parametrize("name", KERNELS)
def test_every_stream_has_its_place(name: str) -> None:
    for H, B, max_ctas in itertools.product((128, 384, 640), (1, 37, 400, 500, 1600, 9999), (20, 120, 132)):
        plan, of = persistent.make_plan(name, H, B, max_ctas), f"H={H}, B={B}, max_ctas={max_ctas}"
        assert plan.num_ctas <= max_ctas, of
        assert plan.num_ctas_per_group % plan.num_cluster_ctas == 0, f"a cluster works for one group: {of}"
        assert plan.num_counters * plan.group_size >= B, of
        assert plan.group_size <= plan.N <= persistent.MAX_STREAMS, of
        assert plan.N % 8 == 0, f"the tensor cores take streams by eight: {of}"


def test_streams_are_spread_over_all_groups_before_there_is_a_second_pass() -> None:
    assert persistent.make_plan("lstm_forward", 640, 432, 120).num_passes == 1
    plan = persistent.make_plan("lstm_forward", 640, 433, 120)
    assert (plan.num_groups, plan.num_passes, plan.N) == (6, 2, 40)


def test_only_what_was_measured_to_be_faster_is_chosen() -> None:
    assert persistent.faster("lstm", 640, 400)
    assert persistent.faster("rnn", 640, 1600)
    assert not persistent.faster("lstm", 640, 1600), "slower backwards"
    assert not persistent.faster("rnn", 1536, 500)
    assert not persistent.faster("lstm", 128, 400), "not measured"
    assert not persistent.faster("lstm", 640, 64), "not measured"


def test_processes_that_compute_at_the_same_time_take_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """CTAs that wait for each other would wait forever if another process had their places."""
    monkeypatch.delenv("BNCE_PERSISTENT", raising=False)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(persistent, "MPS_PIPES", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    on_gpu: Any = SimpleNamespace(is_cuda=True)

    def chosen() -> bool:
        return persistent.available(on_gpu, torch.bfloat16, "lstm", 640, 400)

    assert chosen()
    (tmp_path / "control").touch()
    assert not chosen()
    monkeypatch.setenv("BNCE_PERSISTENT", "1")
    assert chosen()
    monkeypatch.setenv("BNCE_PERSISTENT", "0")
    (tmp_path / "control").unlink()
    assert not chosen()
    monkeypatch.delenv("BNCE_PERSISTENT")
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert not chosen()


@pytest.mark.parametrize("name", ["lstm", "rnn"])
def test_larger_networks_do_not_fit(name: str) -> None:
    assert persistent.fits(name, 640, 132)
    assert not persistent.fits(name, 768, 132)
    assert not persistent.fits(name, 600, 132), "units come padded"
