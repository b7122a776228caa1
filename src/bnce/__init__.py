"""Train and use word language models with very large vocabularies.

`bnce.load(PATH)` opens a trained run, a mixture or an n-gram model for use. `bnce.OutputLayer` is the drop-in for any
PyTorch model; `bnce.noise` makes its noise. `bnce.prepare`, `bnce.train`, `bnce.evaluate` and `bnce.calibrate` do
what the commands of the same names do. `__all__` is everything there is to import; docs/api.md has an example of each.

PyTorch and other packages are loaded when a name first needs them, so that the command line answers at once.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bnce.errors import UserError
from bnce.version import __version__

if TYPE_CHECKING:
    import bnce.rescoring.kenlm as kenlm
    from bnce import noise
    from bnce.api import evaluate, train
    from bnce.corpus.prepare import prepare
    from bnce.corpus.store import Corpus
    from bnce.data.document_scorer import DocumentScorer
    from bnce.data.surprisal import surprisal
    from bnce.editing.calibrate import calibrate
    from bnce.engine.beam import Scorer
    from bnce.engine.sampling import Sampling
    from bnce.losses.loss import OutputBatch
    from bnce.noise import Noise
    from bnce.optimisers.exchange import RowExchange
    from bnce.optimisers.gradients import clip_grad_norm_
    from bnce.optimisers.rowwise import RowwiseAdagrad, RowwiseAdam
    from bnce.output_layer import OutputLayer
    from bnce.registry import (
        LOSSES,
        MODELS,
        OPTIMISERS,
        AdaptiveSoftmax,
        BatchNce,
        Chunk,
        Loss,
        Nce,
        SampledSoftmax,
        SharedNce,
        Softmax,
        register,
    )
    from bnce.rescoring.decoders import DecoderLanguageModel, ctc_decoder_lm
    from bnce.scoring.loading import load
    from bnce.scoring.model import Model
    from bnce.text.normalise import Normaliser

__all__ = [
    "LOSSES",
    "MODELS",
    "OPTIMISERS",
    "AdaptiveSoftmax",
    "BatchNce",
    "Chunk",
    "Corpus",
    "DecoderLanguageModel",
    "DocumentScorer",
    "Loss",
    "Model",
    "Nce",
    "Noise",
    "Normaliser",
    "OutputBatch",
    "OutputLayer",
    "RowExchange",
    "RowwiseAdagrad",
    "RowwiseAdam",
    "SampledSoftmax",
    "Sampling",
    "Scorer",
    "SharedNce",
    "Softmax",
    "UserError",
    "__version__",
    "calibrate",
    "clip_grad_norm_",
    "ctc_decoder_lm",
    "evaluate",
    "kenlm",
    "load",
    "noise",
    "prepare",
    "register",
    "surprisal",
    "train",
]

# Where each name lives, and the extra that brings what it needs.
_HOMES = {
    "Corpus": ("bnce.corpus.store", "train"),
    "DecoderLanguageModel": ("bnce.rescoring.decoders", "data"),
    "DocumentScorer": ("bnce.data.document_scorer", "data"),
    "Model": ("bnce.scoring.model", "data"),
    "Noise": ("bnce.noise", "layer"),
    "Normaliser": ("bnce.text.normalise", "layer"),
    "OutputBatch": ("bnce.losses.loss", "layer"),
    "OutputLayer": ("bnce.output_layer", "layer"),
    "RowExchange": ("bnce.optimisers.exchange", "layer"),
    "RowwiseAdagrad": ("bnce.optimisers.rowwise", "layer"),
    "RowwiseAdam": ("bnce.optimisers.rowwise", "layer"),
    "Sampling": ("bnce.engine.sampling", "data"),
    "Scorer": ("bnce.engine.beam", "data"),
    "calibrate": ("bnce.editing.calibrate", "train"),
    "clip_grad_norm_": ("bnce.optimisers.gradients", "layer"),
    "ctc_decoder_lm": ("bnce.rescoring.decoders", "data"),
    "evaluate": ("bnce.api", "train"),
    "kenlm": ("bnce.rescoring.kenlm", "data"),
    "load": ("bnce.scoring.loading", "data"),
    "noise": ("bnce.noise", "layer"),
    "prepare": ("bnce.corpus.prepare", "train"),
    "surprisal": ("bnce.data.surprisal", "data"),
    "train": ("bnce.api", "train"),
    "AdaptiveSoftmax": ("bnce.registry", "layer"),
    "BatchNce": ("bnce.registry", "layer"),
    "Chunk": ("bnce.registry", "layer"),
    "LOSSES": ("bnce.registry", "layer"),
    "Loss": ("bnce.registry", "layer"),
    "MODELS": ("bnce.registry", "layer"),
    "Nce": ("bnce.registry", "layer"),
    "OPTIMISERS": ("bnce.registry", "layer"),
    "SampledSoftmax": ("bnce.registry", "layer"),
    "SharedNce": ("bnce.registry", "layer"),
    "Softmax": ("bnce.registry", "layer"),
    "register": ("bnce.registry", "layer"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bnce' has no attribute '{name}'")
    home, extra = _HOMES[name]
    try:
        module = importlib.import_module(home)
    except ModuleNotFoundError as error:
        from bnce.machine.packages import explain_missing

        raise explain_missing(error, f"bnce.{name}", extra) from error
    return module if home in (f"bnce.{name}", f"bnce.rescoring.{name}") else getattr(module, name)


def __dir__() -> list[str]:
    return sorted(__all__)
