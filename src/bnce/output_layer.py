"""The output layer: owns weight and bias, trains with any of the losses, and answers with log-probabilities.

Usable in any PyTorch model that ends in a choice among very many classes.

Legend: T time steps, B streams, N positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bnce import kernels
from bnce.errors import UserError, unknown_name, whole_number
from bnce.losses import Counted, compute, count_targets
from bnce.losses.counted import NO_INDEX
from bnce.losses.layer_input import as_chunk, as_positions, lacks_noise, no_noise, word_ids
from bnce.losses.output_batch import OutputBatch
from bnce.losses.scores import log_normaliser, score_all, score_words
from bnce.losses.structure import build_structure
from bnce.losses.wrong_targets import WrongTargets
from bnce.machine.precision import at_least_float32, fitted, sum_dtype
from bnce.noise import IGNORE_INDEX, Noise, Running, unigram
from bnce.registry import LOG_Z, LOSSES, Loss, find

REDUCTIONS = ("mean", "sum", "none")


class OutputLayer(nn.Module):
    """A linear layer over V words with a loss whose cost need not depend on V.

    `layer(hidden, targets)` is the mean loss over tokens. Hidden (T, B, D) takes the batch at each time step as noise,
    hidden (N, D) is one batch. `layer.log_probs(hidden, words)` gives ln p of given words, with the softmax or with
    the constant Z.
    """

    def __init__(
        self,
        hidden_size: int,
        vocab_size: int,
        noise: Noise | np.ndarray | Tensor | Sequence[float],
        loss: str | Loss = "bnce",
        *,
        drawn: Noise | None = None,
        sparse: bool = False,
        ignore_index: int = IGNORE_INDEX,
        batch_first: bool = False,
        reduction: str = "mean",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """`noise` is a `Noise` or the targets' counts; `sparse` gives weight and bias row-wise (sparse) gradients.

        `hidden_size` and `vocab_size` are `in_features` and `out_features` of `nn.Linear`. `loss` is a name in
        `bnce.LOSSES`, or a record with settings, such as `bnce.BatchNce(num_noise=100)`. `ignore_index` is the target
        of positions that do not count.
        `drawn` is the noise that `bnce` draws its `num_noise` words from, where that is not the targets' own.
        `batch_first` takes hidden (B, T, D) with targets (B, T). `reduction` is "mean" over the positions that count,
        "sum", or "none": one loss per position, in the shape of targets and 0 where a position does not count. "none"
        computes plainly, with every score at once, so it takes more time and memory.
        `device` and `dtype` are those of `nn.Linear`.
        """
        super().__init__()
        self.noise = noise if isinstance(noise, Noise) else unigram(noise)
        self.hidden_size = whole_number("hidden_size", hidden_size, 1)
        self.vocab_size = whole_number("vocab_size", vocab_size, 1)
        if len(self.noise) != vocab_size:
            raise UserError(
                f"The noise covers {len(self.noise)} words but vocab_size is {vocab_size}: give one count per word."
            )
        if reduction not in REDUCTIONS:
            raise unknown_name("reduction", reduction, REDUCTIONS)
        self.loss = loss if isinstance(loss, Loss) else find(Loss, loss)()
        self.num_noise: int = getattr(self.loss, "num_noise", 0)
        _check_noise(self.loss, self.noise, drawn)
        computed = compute(self.loss)
        self._loss, self._fused = computed.total, computed.fused if reduction != "none" else None
        self._each = computed.each if reduction == "none" else None
        self.drawn = drawn
        if isinstance(self.noise, Running) and self.num_noise:
            self.noise.prepare_to_draw()
        # Whether the constant Z can replace the softmax sum. Calibration can change it.
        self.normalises = self.loss.normalises
        self.structure = build_structure(self.loss, hidden_size, self.noise)
        if self.structure is not None:
            self.structure.sparse = sparse
        self.tries = None if getattr(self.loss, "replacement", True) else self.noise.tries(self.num_noise)
        self.sparse, self.batch_first, self.reduction = sparse, batch_first, reduction
        self.ignore_index = whole_number("ignore_index", ignore_index, None)
        self.max_distinct_targets: int | None = None
        num_rows = vocab_size if self.structure is None else self.structure.num_rows
        self.weight = nn.Parameter(torch.empty(num_rows, hidden_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_rows, device=device, dtype=dtype))
        self.log_z: Tensor
        self._initial_log_z = 0.0 if self.structure is not None else getattr(self.loss, "log_z", LOG_Z)
        constant = torch.tensor(self._initial_log_z, dtype=sum_dtype(self.weight.dtype))
        if getattr(self.loss, "learn_log_z", False):
            self.log_z = nn.Parameter(constant)
        else:
            self.register_buffer("log_z", constant)
        self._wrong_targets = WrongTargets()
        if device is not None or dtype is not None:
            self.to(device, dtype)
        self._start()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move as any module does, but keep the constant in float32 or wider: in bf16 9.03 is 9, and PPLn is 3% off."""
        before = self.log_z
        super()._apply(fn, recurse)
        if self.log_z.dtype.itemsize < 4 and not isinstance(before, nn.Parameter):
            self.log_z = before.to(self.log_z.device)
        return self

    def reset_parameters(self) -> None:
        """Initialise parameters, noise and ln Z again, for example after `to_empty`."""
        for part in self.children():
            if isinstance(part, Noise):
                part.reset_parameters()
        with torch.no_grad():
            self.log_z.fill_(self._initial_log_z)
        self._start()

    def _start(self) -> None:
        """Start at the unigram model u, self-normalised: bias = ln u + ln Z, and a small weight.

        Where scores are odds, that is ln u − ln(K · p_n).
        """
        if self.weight.is_meta:
            return  # no values to set; adding here would make PyTorch import SymPy, which takes a second
        with torch.no_grad():
            self.weight.uniform_(-0.05, 0.05)
            if self.structure is not None:
                self.structure.start_(self.bias)
                return
            self.bias.copy_(self.noise.log_target_probs())
            if self.loss.scores_odds:
                self.bias.sub_(self.noise.log_probs_V).sub_(math.log(self.num_noise))
            else:
                self.bias.add_(self.log_z)

    def tables(self) -> dict[str, nn.Parameter]:
        """Name the parameters that have a row per word, or per choice between words."""
        own = {} if self.structure is None else self.structure.tables()
        return {"weight": self.weight, "bias": self.bias, **{f"structure.{name}": own[name] for name in own}}

    @property
    def loss_name(self) -> str:
        """The name of the loss."""
        return self.loss.name

    def configure(self, *, max_distinct_targets: int | None = None, room: Sequence[int] | None = None) -> None:
        """Give counts of a text, which change how fast the loss is computed, not its value. None changes nothing.

        `max_distinct_targets` is the largest number of different targets in a chunk: with it the chunk losses merge
        equal ones on a GPU. A chunk with more of them has a loss of NaN, and the next call raises. `room` is, for each
        tail of `adaptive-softmax`, the largest number of targets that a chunk has there (`structure.places_CV` has the
        places that a word takes). On a GPU a chunk that needs more has a loss of NaN, and `check()` raises.
        """
        if max_distinct_targets is not None:
            self.max_distinct_targets = whole_number("max_distinct_targets", max_distinct_targets, 1)
        if room is not None:
            if self.structure is None or self.structure.places_CV is None:
                raise UserError(f"The loss {self.loss_name} has no parts to make room in: leave out room.")
            self.structure.set_room(room)

    def forward(
        self, hidden: Tensor, targets: Tensor, mask: Tensor | None = None, *, streams: Tensor | None = None
    ) -> Tensor:
        """Compute the loss of the positions whose target is not `ignore_index` and whose mask is true.

        The result is their mean, or as `reduction` says. A position without noise is left out: with `bnce` and no drawn
        words, one that is alone in its time step. Where no position counts, the loss is 0. `streams` has a number per
        position for `chunk-bnce`, the same for all positions of one sequence, so that a sequence is not its own noise:
        for sequences of different lengths as (N, D), without padding.
        """
        hidden_TBD, target_TB, mask_TB, stream_TB = as_chunk(
            self.loss, self.hidden_size, hidden, targets, mask, streams, batch_first=self.batch_first
        )
        hidden_TBD = fitted(hidden_TBD, self.weight)
        has_noise = not lacks_noise(self.loss, target_TB.shape[1], stream_TB)
        is_compiling = torch.compiler.is_compiling()
        if not is_compiling:
            self._tell_of_wrong_targets()
            if not has_noise and target_TB.numel():
                warnings.warn(no_noise(self.loss, target_TB.shape[1]), stacklevel=4)
        wants_counts = self.training and torch.is_grad_enabled() and not is_compiling
        running = self.noise if wants_counts and isinstance(self.noise, Running) else None
        if self._fused is not None and has_noise and running is None:
            batch = self._batch(hidden_TBD, target_TB, mask_TB, stream_TB, ignore_index=self.ignore_index)
            loss = self._fused(batch, self.reduction == "mean")
            if loss is not None:
                return loss
        if self._each is None and has_noise and self._all_count(target_TB, mask_TB, stream_TB):
            target_TB = self._in_range(target_TB)
            if running is not None:
                running.observe(target_TB)
            total = self._loss(self._batch(hidden_TBD, target_TB))
            return total if self.reduction == "sum" else total / target_TB.numel()
        counted = count_targets(
            self.loss, target_TB, mask_TB, self.ignore_index, stream_TB, sum_dtype(self.weight.dtype)
        )
        target_TB, zero = self._known_words(counted.target_TB)
        if running is not None:
            running.observe(target_TB, counted.is_trained)
        batch = self._batch(hidden_TBD, target_TB, counted.is_trained, stream_TB, counted=counted)
        if self._each is not None:
            loss_TB = self._each(batch) if zero is None else self._each(batch) + zero
            return (loss_TB.t() if self.batch_first and targets.ndim == 2 else loss_TB).reshape(targets.shape)
        total = self._loss(batch) if zero is None else self._loss(batch) + zero
        return total if self.reduction == "sum" else total / counted.num_positions.clamp(min=1)

    def _all_count(self, target_TB: Tensor, mask_TB: Tensor | None, stream_TB: Tensor | None) -> bool:
        """Say whether no position is left out, which is faster to compute; a GPU's host would have to wait to know."""
        if mask_TB is not None or stream_TB is not None or target_TB.device.type != "cpu":
            return False
        if torch.compiler.is_compiling() or target_TB.numel() == 0:
            return False
        return not bool((target_TB == self.ignore_index).any())

    def _known_words(self, target_TB: Tensor) -> tuple[Tensor, Tensor | None]:
        """Refuse targets that are not word ids; on a GPU with a word in their place, and what makes the loss NaN."""
        fast = None if target_TB.device.type == "cpu" else kernels.choose("targets", target_TB)
        if fast is None or target_TB.numel() == 0 or torch.compiler.is_compiling():
            return self._in_range(target_TB), None
        found: tuple[Tensor, Tensor] = fast.known_words(
            target_TB, self.vocab_size, self._wrong_targets.room(target_TB.device)
        )
        return found

    def _in_range(self, target_TB: Tensor, name: str = "targets") -> Tensor:
        """Refuse what is not a word id. On a GPU that would stall the host: kernels look, and tell later."""
        if torch.compiler.is_compiling():
            # Compiled code refuses an id that is too large, but counts a negative one from the end of the table.
            return torch.where(target_TB < 0, self.vocab_size, target_TB)
        if target_TB.device.type != "cpu" or target_TB.numel() == 0:
            return target_TB
        least, most = target_TB.aminmax()
        if least < 0 or most >= self.vocab_size:
            raise UserError(f"{name} hold {int(least if least < 0 else most)}, {self._words_there_are(name)}.")
        return target_TB

    def _words_there_are(self, name: str = "targets") -> str:
        told = f"but the layer has {self.vocab_size} words: give ids from 0 to {self.vocab_size - 1}"
        return told if name == "words" else f"{told}, or {self.ignore_index} for a position that does not count"

    def check(self) -> None:
        """Wait for the GPU, and raise if a step so far had targets for which the loss is NaN.

        The next call of the layer, `eval()` and `state_dict()` raise as well, but without waiting for the GPU.
        """
        if self.weight.is_cuda:
            torch.cuda.synchronize(self.weight.device)
        self._tell_of_wrong_targets()
        if self.structure is not None:
            self.structure.check()

    def _tell_of_wrong_targets(self) -> None:
        wrong = self._wrong_targets.take()
        if wrong is None:
            return
        if wrong.target:
            raise UserError(f"The targets of an earlier step held {wrong.target}, {self._words_there_are()}.")
        most = self.max_distinct_targets
        bound = "targets that follow the noise have" if most is None else f"max_distinct_targets says ({most})"
        raise UserError(
            f"A chunk of an earlier step had {wrong.num_distinct} different targets, more than {bound}, so its loss "
            f"was NaN. Call layer.configure(max_distinct_targets={wrong.num_distinct}) or more (the number of "
            "positions of a chunk is always enough), or noise with the counts of these targets."
        )

    def train(self, mode: bool = True) -> Self:
        """Change to training or evaluation, as any module."""
        self._tell_of_wrong_targets()
        return super().train(mode)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        self._tell_of_wrong_targets()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def loss_sum(self, hidden_TBD: Tensor, target_TB: Tensor, valid_TB: Tensor | None = None) -> Tensor:
        """Sum the loss over positions; without `valid_TB` every position counts, which is a little faster."""
        if not torch.compiler.is_compiling():
            self._tell_of_wrong_targets()
        return self._loss(self._batch(hidden_TBD, self._in_range(target_TB), valid_TB))

    def _batch(
        self,
        hidden_TBD: Tensor,
        target_TB: Tensor,
        valid_TB: Tensor | None = None,
        stream_TB: Tensor | None = None,
        *,
        counted: Counted | None = None,
        ignore_index: int = NO_INDEX,
    ) -> OutputBatch:
        return OutputBatch(
            hidden_TBD=hidden_TBD,
            target_TB=target_TB,
            valid_TB=valid_TB,
            weight_VD=self.weight,
            bias_V=self.bias,
            log_z=self.log_z,
            noise=self.noise,
            num_noise=self.num_noise,
            drawn=self.drawn,
            penalty=getattr(self.loss, "penalty", 0.0),
            tries=self.tries,
            sparse=self.sparse,
            counted=counted,
            stream_TB=stream_TB,
            ignore_index=ignore_index,
            wrong=self._wrong_targets,
            max_distinct_targets=self.max_distinct_targets,
            structure=self.structure,
        )

    def log_probs(self, hidden: Tensor, words: Tensor, normalised: bool = True) -> Tensor:
        """Compute ln p(word | hidden) for words (…) or (…, k) beside hidden (…, D).

        Normalised is Eq. (1), a pass over the vocabulary in bounded memory; otherwise Eq. (2), which reads the rows
        of the given words only. An id that is not a word is refused; on a GPU
        its result is NaN.
        """
        words = word_ids(words, "words")
        several = words.ndim == hidden.ndim
        if hidden.shape[:-1] != (words.shape[:-1] if several else words.shape) or hidden.shape[-1] != self.hidden_size:
            raise UserError(
                f"hidden {tuple(hidden.shape)} and words {tuple(words.shape)} do not fit: "
                f"give (…, {self.hidden_size}) with (…) or (…, k)."
            )
        words_k = words if several else words.unsqueeze(-1)
        if words.device.type == "cpu" or torch.compiler.is_compiling():
            score_k = self.scores(hidden, self._in_range(words_k, "words"))
        else:
            is_word_k = (words_k >= 0) & (words_k < self.vocab_size)
            score_k = self.scores(hidden, words_k.where(is_word_k, 0)).where(is_word_k, torch.nan)
        constant = self.log_normaliser(hidden).unsqueeze(-1) if normalised else self.log_z
        return (score_k - constant).reshape(words.shape)

    def scores(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Compute the raw scores h·w + c of words (…, k) beside hidden (…, D), in float32; ln p where that is exact."""
        hidden_ND, words = self._positions(hidden), word_ids(words, "words")
        if words.shape[:-1] != hidden.shape[:-1] or words.ndim != hidden.ndim:
            raise UserError(
                f"hidden {tuple(hidden.shape)} and words {tuple(words.shape)} do not fit: "
                f"give (…, {self.hidden_size}) with (…, k)."
            )
        words_NK = words.reshape(len(hidden_ND), words.shape[-1])
        if self.structure is not None:
            score_NK = self.structure.log_probs(hidden_ND, self.weight, self.bias, words_NK)
        else:
            score_NK = score_words(hidden_ND, self.weight, self.bias, words_NK)
        return score_NK.reshape(words.shape)

    def _positions(self, hidden: Tensor) -> Tensor:
        return fitted(as_positions(hidden, self.hidden_size), self.weight)

    def all_scores(self, hidden: Tensor) -> Tensor:
        """Compute the raw scores of every word for a few positions (…, D), in float32: (…, V)."""
        return self.scores_between(hidden, 0, self.vocab_size)

    def scores_between(self, hidden: Tensor, begin: int, end: int) -> Tensor:
        """Compute the raw scores of the words from `begin` up to, but not including, `end`, in float32."""
        hidden_ND = self._positions(hidden)
        if self.structure is not None:
            score_NV = self.structure.all_log_probs(hidden_ND, self.weight, self.bias)[:, begin:end]
        else:
            score_NV = score_all(hidden_ND, self.weight[begin:end], self.bias[begin:end])
        return score_NV.reshape(*hidden.shape[:-1], score_NV.shape[1])

    def normalise(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the log normaliser and the raw score of a target (…) for each position (…, D)."""
        return self.log_normaliser(hidden), self.scores(hidden, targets.unsqueeze(-1)).squeeze(-1)

    def log_normaliser(self, hidden: Tensor) -> Tensor:
        """Compute ln Σ_v exp(h·w_v + c_v) for each position (…, D), in bounded memory; 0 where ln p is exact."""
        hidden_ND = self._positions(hidden)
        if self.structure is not None:
            log_z_N = at_least_float32(hidden_ND.new_zeros(len(hidden_ND)))
        else:
            log_z_N = log_normaliser(hidden_ND, self.weight, self.bias)
        return log_z_N.reshape(hidden.shape[:-1])

    def extra_repr(self) -> str:
        """Say in `print(model)` what the layer is, and what is not as by default."""
        told = f"hidden_size={self.hidden_size}, vocab_size={self.vocab_size}, loss={self.loss}"
        usual = {"sparse": False, "batch_first": False, "reduction": "mean"}
        for name, value in (usual | {"ignore_index": IGNORE_INDEX}).items():
            if getattr(self, name) != value:
                told += f", {name}={getattr(self, name)!r}"
        if self.structure is not None:
            return told
        log_z = "unknown" if self.log_z.is_meta else f"{self.log_z.item():.4g}"
        return f"{told}, log_z={log_z}"


def _check_noise(loss: Loss, noise: Noise, drawn: Noise | None) -> None:
    """Refuse noise that cannot be what the loss sees: it would train a wrong model without a word."""
    num_noise = getattr(loss, "num_noise", 0)
    if loss.batch_noise != "none" and noise.bent:
        drawing = " or ".join(
            name for name, other in LOSSES.items() if "noise" in other.__struct_fields__ and other().normalises
        )
        also = ", give this noise as drawn" if num_noise else ""
        raise UserError(
            f"The loss {loss.name} takes the other targets of the batch as noise, so {noise.bent} would "
            "train a wrong model. Give how often each class is a target (bnce.noise.from_targets counts them)"
            f"{also}, or use the losses {drawing}, which draw their noise."
        )
    if drawn is not None and (loss.batch_noise == "none" or not num_noise):
        raise UserError(
            f"drawn is for bnce with num_noise above 0, but the loss is {loss}: leave it out, or give it as noise."
        )
    if drawn is not None and len(drawn) != len(noise):
        raise UserError(f"drawn covers {len(drawn)} words but vocab_size is {len(noise)}.")
