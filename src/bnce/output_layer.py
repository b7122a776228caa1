"""The output layer: owns weight and bias, trains with any of the losses, and answers with log-probabilities.

Usable in any PyTorch model that ends in a choice among very many classes.

Legend: T time steps, B streams, N positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from bnce.errors import UserError, unknown_name, whole_number
from bnce.first_look import FirstLook
from bnce.losses.chunk import num_merged
from bnce.losses.layer_input import check_hidden, check_noise, time_first, word_ids
from bnce.losses.loss import OutputBatch, count_noise
from bnce.losses.scores import BLOCK_POSITIONS, BLOCK_WORDS, log_normaliser, score_all, score_words
from bnce.machine.precision import at_least_float32, fitted, sum_dtype
from bnce.noise import IGNORE_INDEX, Noise, Running, unigram
from bnce.registry import LOG_Z, Loss, find, load

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
        loss: str | Loss = "chunk-bnce",
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
        of positions that do not count; a class that it names is left out of the counts.
        `drawn` is the noise that `bnce` draws its `num_noise` words from, where that is not the targets' own.
        `batch_first` takes hidden (B, T, D) with targets (B, T). `reduction` is "mean" over the positions that count,
        "sum", or "none": one loss per position, in the shape of targets and 0 where a position does not count.
        `device` and `dtype` are those of `nn.Linear`.
        """
        super().__init__()
        self.ignore_index = whole_number("ignore_index", ignore_index, None)
        self.noise = noise if isinstance(noise, Noise) else unigram(noise, ignore_index=self.ignore_index)
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
        check_noise(self.loss, self.noise, drawn, self.ignore_index)
        self._compute = load(self.loss.code)
        # As PyTorch's compiler reads them in any version.
        self._settings = SimpleNamespace(**msgspec.structs.asdict(self.loss))
        self.drawn = drawn
        if isinstance(self.noise, Running) and self.num_noise:
            self.noise.prepare_to_draw()
        # Whether the constant Z can replace the softmax sum. Calibration can change it.
        self.normalises = self.loss.normalises
        self.structure: Any = None
        if self.loss.structure:
            self.structure = load(self.loss.structure)(hidden_size, self.noise, **vars(self._settings))
        self._num_draws = None if getattr(self.loss, "replacement", True) else self.noise.num_draws(self.num_noise)
        self.sparse, self.batch_first, self.reduction = sparse, batch_first, reduction
        self.max_distinct_targets: int | None = None
        self._first_look = FirstLook()
        self._latest: tuple[Tensor, Tensor | None] | None = None  # targets and mask that nobody has looked at
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

    def configure(self, *, max_distinct_targets: int | None = None, capacities: Sequence[int] | None = None) -> None:
        """Give counts of a text, which change how fast the loss is computed, not its value. None changes nothing.

        `max_distinct_targets` is the largest number of different targets in a chunk: with it the chunk losses merge
        equal ones on a GPU. `capacities` are, for each tail of `adaptive-softmax`, the largest number of targets that a
        chunk has there (`structure.places_CV` has the places that a word takes); without them a GPU's host waits in
        every step. A chunk that needs more than was given has a loss of NaN, and `check()` raises.
        """
        if max_distinct_targets is not None:
            self.max_distinct_targets = whole_number("max_distinct_targets", max_distinct_targets, 1)
        if capacities is not None:
            if self.structure is None or len(capacities) != len(self.structure.most_C) or min(capacities) < 0:
                raise UserError(
                    f"capacities are {list(capacities)}: give one number of 0 or more per tail of adaptive-softmax, "
                    "and to no other loss."
                )
            self.structure.capacities = tuple(int(size) for size in capacities)

    def forward(
        self, hidden: Tensor, targets: Tensor, mask: Tensor | None = None, *, streams: Tensor | None = None
    ) -> Tensor:
        """Compute the loss of the positions whose target is not `ignore_index` and whose mask is true.

        The result is their mean, or as `reduction` says. A position without noise is left out: with `bnce` and no drawn
        words, one that is alone in its time step. Where no position counts, the loss is 0. `streams` has a number per
        position for `chunk-bnce`, the same for all positions of one sequence, so that a sequence is not its own noise:
        for sequences of different lengths as (N, D), without padding.
        """
        hidden_TBD, target_TB, mask_TB, stream_TB = time_first(self, hidden, targets, mask, streams)
        is_eager, is_counted = not torch.compiler.is_compiling(), target_TB != self.ignore_index
        valid_TB = is_counted if mask_TB is None else is_counted & mask_TB
        if is_eager and target_TB.device.type != "cpu":
            self._latest = target_TB, mask_TB
        elif is_eager and bool(valid_TB.all()):
            valid_TB = None  # which is a little faster; a GPU's host would have to wait to know
        target_TB = self._in_range(target_TB if valid_TB is None else torch.where(valid_TB, target_TB, 0))
        batch = self._batch(fitted(hidden_TBD, self.weight), target_TB, valid_TB, stream_TB)
        trained_TB = self._find_noise(batch)
        if is_eager and self.training and torch.is_grad_enabled():
            if isinstance(self.noise, Running):
                self.noise.observe(target_TB.clamp(0, self.vocab_size - 1), trained_TB)
            self._first_look.look(self, batch)
        loss_TB: Tensor = self._compute(batch, self._settings)
        if self.reduction == "none":
            return (loss_TB.t() if self.batch_first and targets.ndim == 2 else loss_TB).reshape(targets.shape)
        if self.reduction == "sum":
            return loss_TB.sum()
        return loss_TB.sum() / (max(1, target_TB.numel()) if trained_TB is None else trained_TB.sum().clamp(min=1))

    def _find_noise(self, batch: OutputBatch) -> Tensor | None:
        """Say which positions are trained on: those that count, and find noise; None: all. Warn if none can."""
        target_TB, streams, by_stream = batch.target_TB, batch.stream_TB, self.loss.batch_noise == "streams"
        if self.loss.batch_noise == "none":
            return batch.valid_TB
        if not torch.compiler.is_compiling() and target_TB.numel():
            is_alone = target_TB.shape[1] + self.num_noise < 2
            if streams is not None:  # a GPU's host would have to wait to know
                is_alone = streams.device.type == "cpu" and bool((streams == streams[0, 0]).all())
            if is_alone:
                what = "one stream" if by_stream else f"a time step of {target_TB.shape[1]} target"
                drawn = ", or set num_noise above 0" if hasattr(self.loss, "num_noise") else ""
                warnings.warn(
                    f"The loss {self.loss.name} takes the other targets of the batch as noise, but this batch has "
                    f"{what}: its loss is 0, and nothing is learned from it. Use batches of 2 or more{drawn}, or leave "
                    "out such a batch.",
                    stacklevel=5,
                )
        return count_noise(batch, batch.valid_TB, None if by_stream else self.num_noise)[0]

    def _in_range(self, words: Tensor, name: str = "targets") -> Tensor:
        """Refuse what is not a word id. On a GPU that would stall the host: there the loss is NaN."""
        if torch.compiler.is_compiling():
            # Compiled code refuses an id that is too large, but counts a negative one from the end of the table.
            return torch.where(words < 0, self.vocab_size, words)
        if words.device.type != "cpu" or words.numel() == 0:
            return words
        least, most = words.aminmax()
        if least < 0 or most >= self.vocab_size:
            also = "" if name == "words" else f", or {self.ignore_index} for a position that does not count"
            raise UserError(
                f"{name} hold {int(least if least < 0 else most)}, but the layer has {self.vocab_size} words: give ids "
                f"from 0 to {self.vocab_size - 1}{also}."
            )
        return words

    def check(self) -> None:
        """Wait for the GPU, and say why a loss was NaN: a step was beyond a capacity, or the latest has wrong targets.

        On a CPU wrong targets are refused at once.
        """
        if self.structure is not None:
            self.structure.check()
        if self._latest is None:
            return
        target_TB, mask_TB = self._latest
        valid_TB = target_TB != self.ignore_index if mask_TB is None else (target_TB != self.ignore_index) & mask_TB
        words, most = self._in_range(target_TB[valid_TB].unique().cpu()), self.max_distinct_targets
        bound = "targets that follow the noise have" if most is None else f"max_distinct_targets says ({most})"
        if self.loss.batch_noise == "streams" and len(words) > num_merged(self.noise, target_TB.numel(), most) > 0:
            raise UserError(
                f"The latest chunk had {len(words)} different targets, more than {bound}, so its loss was NaN. Call "
                f"layer.configure(max_distinct_targets={len(words)}) or more (the number of positions of a chunk is "
                "always enough), or give noise with the counts of these targets."
            )

    def loss_sum(self, hidden_TBD: Tensor, target_TB: Tensor) -> Tensor:
        """Sum the loss over positions, all of which count: for a training loop whose targets are words."""
        if target_TB.device.type != "cpu" and not torch.compiler.is_compiling():
            self._latest = target_TB, None
        loss_TB: Tensor = self._compute(self._batch(hidden_TBD, self._in_range(target_TB)), self._settings)
        return loss_TB.sum()

    def _batch(
        self, hidden_TBD: Tensor, target_TB: Tensor, valid_TB: Tensor | None = None, stream_TB: Tensor | None = None
    ) -> OutputBatch:
        if self.structure is not None:
            self.structure.bring(self.weight.device)
        tables = self.weight, self.bias, self.log_z, self.noise
        state: Any = self.max_distinct_targets if self.loss.batch_noise == "streams" else self._num_draws
        for kept in (self.structure, self.drawn):
            state = state if kept is None else kept
        return OutputBatch(hidden_TBD, target_TB, valid_TB, stream_TB, *tables, self.sparse, state)

    def log_probs(self, hidden: Tensor, words: Tensor, normalised: bool = True) -> Tensor:
        """Compute ln p(word | hidden) for words (…) or (…, k) beside hidden (…, D).

        Normalised is Eq. (1), a pass over the vocabulary in bounded memory; otherwise Eq. (2), which reads the rows
        of the given words only. An id that is not a word is refused; on a GPU its result is NaN.
        """
        words, is_word = word_ids(words, "words"), None
        if words.device.type == "cpu" or torch.compiler.is_compiling():
            words = self._in_range(words, "words")
        else:
            is_word = (words >= 0) & (words < self.vocab_size)
            words = words.where(is_word, 0)
        log_prob = self.scores(hidden, words)
        constant = self.log_normaliser(hidden) if normalised else self.log_z
        log_prob = log_prob - (constant.unsqueeze(-1) if normalised and words.ndim == hidden.ndim else constant)
        return log_prob if is_word is None else log_prob.where(is_word, torch.nan)

    def scores(self, hidden: Tensor, words: Tensor) -> Tensor:
        """Compute the raw scores h·w + c of words (…) or (…, k) beside hidden (…, D), in float32 or wider.

        Where a loss is normalised exactly, they are ln p.
        """
        hidden_ND, words = self._positions(hidden), word_ids(words, "words")
        if hidden.shape[:-1] != (words.shape[:-1] if words.ndim == hidden.ndim else words.shape):
            raise UserError(
                f"hidden {tuple(hidden.shape)} and words {tuple(words.shape)} do not fit: "
                f"give (…, {self.hidden_size}) with (…) or (…, k)."
            )
        words_NK = words.reshape(hidden_ND.shape[0], words.shape[-1] if words.ndim == hidden.ndim else 1)
        score: Callable[..., Tensor] = score_words if self.structure is None else self.structure.log_probs
        return score(hidden_ND, self.weight, self.bias, words_NK).reshape(words.shape)

    def _positions(self, hidden: Tensor) -> Tensor:
        check_hidden(hidden)
        if hidden.shape[-1:] != (self.hidden_size,):
            raise UserError(f"hidden {tuple(hidden.shape)} does not fit: give (…, {self.hidden_size}).")
        if self.structure is not None:
            self.structure.bring(self.weight.device)
        return fitted(hidden.reshape(-1, self.hidden_size), self.weight)

    def all_scores(self, hidden: Tensor) -> Tensor:
        """Compute the raw scores of every word for a few positions (…, D), in float32: (…, V)."""
        return self.scores_between(hidden, 0, self.vocab_size)

    def scores_between(self, hidden: Tensor, begin: int, end: int) -> Tensor:
        """Compute the raw scores of the words from `begin` up to, but not including, `end`, in float32."""
        hidden_ND = self._positions(hidden)
        if self.structure is not None:
            score_NV: Tensor = self.structure.all_log_probs(hidden_ND, self.weight, self.bias)[:, begin:end]
        else:
            score_NV = score_all(hidden_ND, self.weight[begin:end], self.bias[begin:end])
        return score_NV.reshape(*hidden.shape[:-1], score_NV.shape[1])

    def topk(self, hidden: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Find the k highest scores of each position (…, D) and their words, best first, in bounded memory."""
        hidden_ND, V = self._positions(hidden), self.vocab_size
        size = max(min(k, V), BLOCK_WORDS.get(hidden.device.type, BLOCK_WORDS["cuda"]))
        size, num_rows = (size, BLOCK_POSITIONS) if self.structure is None else (V, max(1, 2**22 // V))
        parts = []
        for part_ND in hidden_ND.split(num_rows):
            best, words = part_ND.new_empty(len(part_ND), 0), torch.empty(0, dtype=torch.int64, device=hidden.device)
            for begin in range(0, V, size):
                score = self.scores_between(part_ND, begin, min(begin + size, V))
                ids = torch.arange(begin, begin + score.shape[1], device=hidden.device).expand(score.shape)
                words = torch.cat([words.view(best.shape), ids], 1)
                best, place = torch.cat([best.to(score.dtype), score], 1).topk(min(k, words.shape[1]))
                words = words.gather(1, place)
            parts.append((best, words))
        shape = *hidden.shape[:-1], min(k, V)
        score, found = (torch.cat(part).view(shape) for part in zip(*parts, strict=True))
        return score, found

    def normalise(self, hidden: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the log normaliser and the raw score of a target (…) for each position (…, D)."""
        return self.log_normaliser(hidden), self.scores(hidden, targets)

    def log_normaliser(self, hidden: Tensor) -> Tensor:
        """Compute ln Σ_v exp(h·w_v + c_v) for each position (…, D), in bounded memory; 0 where ln p is exact."""
        hidden_ND = self._positions(hidden)
        if self.structure is not None:
            log_z_N = at_least_float32(hidden_ND.new_zeros(hidden_ND.shape[0]))
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
        return f"{told}, log_z={'unknown' if self.log_z.is_meta else format(self.log_z.item(), '.4g')}"
