"""`bnce.load`: whatever can be asked for probabilities, opened by its path."""

from __future__ import annotations

from pathlib import Path

from bnce.machine.devices import choose_device
from bnce.scoring import model
from bnce.scoring.any_model import open_any
from bnce.scoring.mixture_model import MixtureModel
from bnce.scoring.text_model import TextModel


def load(path: str | Path, device: str = "cpu") -> TextModel:
    """Open a run directory, a mixture (.toml) or an n-gram model; the device is auto, cpu, cuda or cuda:N."""
    path = Path(path)
    if not path.is_file():
        return model.load(path, device)
    chosen = str(choose_device(device))
    return MixtureModel(open_any(path, normalised=True, device=chosen), chosen)
