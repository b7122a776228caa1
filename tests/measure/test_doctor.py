"""The check-up: quiet when all is well, and loud when a loss, the noise or the disk is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bnce import LOSSES, Noise
from bnce.losses import OutputBatch, get_loss
from bnce.measure import doctor
from bnce.measure.doctor import TOLERANCE, Finding, examine, loss_error
from bnce.models import State
from bnce.models.recurrent import Recurrent
from bnce.optimisers.sgd import Sgd

CPU = torch.device("cpu")


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def replace_loss(monkeypatch: pytest.MonkeyPatch, name: str, loss: Callable[[OutputBatch], torch.Tensor]) -> None:
    monkeypatch.setattr(LOSSES.find(name).built_by.replace(":", "."), loss)


@pytest.mark.parametrize("name", LOSSES.names)
def test_every_loss_is_exact(name: str) -> None:
    kind = LOSSES.find(name)
    for num_noise in {"never": (0,), "may": (0, 8), "must": (8,)}[kind.draws]:
        assert loss_error(kind, num_noise, CPU) < TOLERANCE


@pytest.mark.parametrize("name", LOSSES.names)
def test_a_wrong_loss_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = get_loss(name)
    replace_loss(monkeypatch, name, lambda batch: plain(batch) * 1.0001)
    finding = by_name(examine(CPU))[f"loss {name}"]
    assert not finding.well
    assert "relative error compared with float64 1.0e-04, allowed 1e-05" in finding.detail


def test_a_missing_ln_m_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("batch_nce", "sampled_nce"):
        monkeypatch.setattr(f"bnce.losses.{module}.math", SimpleNamespace(log=lambda count: 0.0))
    findings = by_name(examine(CPU))
    assert findings["loss softmax"].well
    assert not any(findings[f"loss {name}"].well for name in ("nce", "snce", "bnce"))


def test_bent_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert by_name(examine(CPU))["noise sampling"].well
    sample = Noise.sample

    def bent(self: Noise, *arguments: Any) -> torch.Tensor:
        words = sample(self, *arguments)
        # One in two hundred becomes the rarest word.
        return torch.where(torch.arange(words.numel()).reshape(words.shape) % 200 == 0, len(self) - 1, words)

    monkeypatch.setattr(Noise, "sample", bent)
    assert not by_name(examine(CPU))["noise sampling"].well


def test_a_full_disk_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**29))
    finding = by_name(examine(CPU))["disk"]
    assert not finding.well
    assert finding.detail.startswith("0.5 GiB free here")


def test_a_check_that_breaks_is_a_finding_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(batch: OutputBatch) -> torch.Tensor:
        raise RuntimeError("out of order")

    replace_loss(monkeypatch, "nce", broken)
    findings = by_name(examine(CPU))
    assert findings["loss nce"] == Finding("loss nce", False, "RuntimeError: out of order")
    assert findings["loss bnce"].well


def test_a_body_that_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Recurrent.forward

    def forgetful(self: Recurrent, embedded_TBE: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        return plain(self, embedded_TBE, tuple(torch.zeros_like(part) for part in state))

    monkeypatch.setattr(Recurrent, "forward", forgetful)
    findings = by_name(examine(CPU))
    assert findings["model ffnn"].well
    assert not any(findings[f"model {name}"].well for name in ("rnn", "relu-rnn", "lstm", "relu-lstm"))


def test_an_optimiser_that_goes_uphill_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Sgd._step
    monkeypatch.setattr(Sgd, "_step", lambda self, gradients, clip: plain(self, gradients, -clip))
    findings = by_name(examine(CPU))
    assert not findings["optimiser sgd"].well
    assert findings["optimiser rowwise"].well


def test_versions_and_machine_are_named() -> None:
    findings = by_name(examine(CPU))
    assert f"torch {torch.__version__}" in findings["versions"].detail
    assert findings["device"].detail.startswith("CPU")


def test_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise doctor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.importlib.metadata, "version", missing)
    assert "bnce from source" in by_name(examine(CPU))["versions"].detail
