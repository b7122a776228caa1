"""Noise distributions p_n: log-probabilities and exact O(1) sampling, on the device of the model.

Legend: V vocabulary.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from bnce.errors import UserError, finite_number, shown, whole_number
from bnce.machine.precision import sum_dtype
from bnce.registry import Loss

# What is for users; the rest is for the package.
__all__ = ["Noise", "Running", "from_targets", "log_uniform", "uniform", "unigram"]

IGNORE_INDEX = -100  # the target of a position that does not count, as PyTorch has it


class Noise(nn.Module):
    """A distribution over word ids, known by its log-probabilities, sampled by the alias method."""

    log_probs_V: Tensor
    keep_V: Tensor
    alias_V: Tensor

    def __init__(self, probs: np.ndarray | Tensor | Sequence[float], *, bent: str | None = None) -> None:
        """`bent` says in words why the targets of a batch cannot follow this noise; None: they may."""
        super().__init__()
        self.bent = bent
        self._targets_V: np.ndarray | None = None
        probs_V = _numbers("probability", probs)
        if not np.all(probs_V):
            raise UserError(
                f"The probability of class {np.flatnonzero(probs_V == 0)[0]} is 0, so it could never be noise: give "
                "numbers above 0, or counts to bnce.noise.unigram, which smooths counts of 0."
            )
        self._probs_V = probs_V / probs_V.sum()
        self._max_distinct: dict[int, int] = {}
        # Not part of a state_dict: the noise is data, rebuilt from the same counts.
        for name in ("log_probs_V", "keep_V", "alias_V"):
            self.register_buffer(name, torch.empty(0, device="cpu"), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Compute the tables again in place, after `to_empty`; ln p_n in float32, or in float64 after `double`."""
        device = self.log_probs_V.device
        if device.type == "meta":
            return
        log_probs_V = torch.from_numpy(np.log(self._probs_V))
        self._buffers["log_probs_V"] = log_probs_V.to(device, sum_dtype(self.log_probs_V.dtype))
        self._write_alias_table(self._probs_V)

    def _write_alias_table(self, probs_V: np.ndarray) -> None:
        keep_V, alias_V = alias_table(probs_V)
        self._buffers["keep_V"] = torch.from_numpy(keep_V).to(self.log_probs_V.device, torch.float32)
        self._buffers["alias_V"] = torch.from_numpy(alias_V).to(self.log_probs_V.device)

    def __setattr__(self, name: str, value: Any) -> None:
        """Write the tables anew where one is replaced: `from_pretrained` of transformers puts empty memory there."""
        super().__setattr__(name, value)
        if isinstance(value, Tensor) and name in self._non_persistent_buffers_set:
            self._remake()

    def _remake(self) -> None:
        self.reset_parameters()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the tables as any module's, but keep their values: a narrow type or `to_empty` would harm the loss."""
        before = self.log_probs_V
        super()._apply(fn, recurse)
        if self.log_probs_V is not before:
            self.reset_parameters()
        return self

    def __len__(self) -> int:
        return len(self.log_probs_V)

    def extra_repr(self) -> str:
        """Say in `print(model)` how many words there are."""
        return f"vocab_size={len(self)}"

    def log_prob(self, words: Tensor) -> Tensor:
        """Look up ln p_n of each word."""
        return self.log_probs_V[words]

    def max_distinct(self, num_drawn: int) -> int:
        """Bound the number of different words among `num_drawn` drawn ones: its mean + 6 standard deviations."""
        if num_drawn not in self._max_distinct:
            log_missing_V = num_drawn * torch.log1p(-self.log_probs_V.double().exp())
            missing_V = log_missing_V.exp()  # the probability that a word is not among them
            mean, variance = (1 - missing_V).sum(), (missing_V * (1 - missing_V)).sum()
            bound = math.ceil(float(mean + 6 * variance.sqrt()))
            self._max_distinct[num_drawn] = min(bound, num_drawn, len(self))
        return self._max_distinct[num_drawn]

    def num_draws(self, num_distinct: int) -> int:
        """Find how many draws give `num_distinct` different words on average, at most half of all words."""
        log_missing_V = np.log1p(-np.minimum(self.log_probs_V.double().exp().cpu().numpy(), 1 - 1e-12))
        most = wanted = min(num_distinct, max(1, len(self) // 2))

        def is_enough(num_draws: int) -> bool:
            return bool(-np.expm1(num_draws * log_missing_V).sum() >= wanted)

        while not is_enough(most):
            most *= 2
        num_draws = bisect.bisect_left(range(most), True, lo=wanted, key=is_enough)
        self.max_distinct(num_draws)  # kept from now on: a compiled step could not find it out
        return num_draws

    def for_targets(self, counts: np.ndarray | Tensor | Sequence[float]) -> Self:
        """Store how often each word is a target, if this noise differs from it: biases start from it."""
        self._targets_V = _smooth(_numbers("count", counts))
        return self

    def log_target_probs(self) -> Tensor:
        """Give ln of how often each word is a target (V,); by default ln p_n."""
        if self._targets_V is None:
            return self.log_probs_V
        return torch.from_numpy(np.log(self._targets_V / self._targets_V.sum())).to(self.log_probs_V)

    def sample(self, shape: Sequence[int]) -> Tensor:
        """Draw words independently, by the alias method."""
        slot = torch.randint(len(self), tuple(shape), device=self.keep_V.device)
        coin = torch.rand(tuple(shape), dtype=torch.float32, device=self.keep_V.device)
        return torch.where(coin < self.keep_V[slot], slot, self.alias_V[slot])


class Running(Noise):
    """Noise for targets with unknown counts: they are counted while the layer trains.

    `layer(hidden, targets)` in training mode counts the targets; call `observe` yourself if a
    step is compiled. A step adds to the counts of its targets only. Counts are multiplied by `decay` per step,
    so about the last 1 / (1 − decay) steps count. ln p_n is computed again, in one pass over the vocabulary, after
    steps 1, 2, 4, 8 and so on, and after every `every` steps, and with it the table that words are drawn from, where
    any are. Unseen words get a share (Witten-Bell): p = (c + d/V) / (Σc + d), where d is the
    number of different words seen.
    """

    counts_V: Tensor

    def __init__(self, vocab_size: int, *, decay: float = 0.9999, every: int = 256) -> None:
        """Start from uniform noise."""
        whole_number("vocab_size", vocab_size, 1)
        if not 0.9 <= finite_number("decay", decay) <= 1.0:
            raise UserError(f"decay is {decay}: give a number from 0.9 to 1, where 1 counts all steps.")
        if not 1 <= whole_number("every", every, None) <= 4096:
            raise UserError(f"every is {every}: give a number of steps from 1 to 4096.")
        super().__init__([1.0])
        self.decay, self.every, self._draws = decay, every, False
        # Unlike counts of a text these cannot be made again, so they are kept with the model.
        self.register_buffer("counts_V", torch.zeros(vocab_size, dtype=torch.float64))
        self.register_buffer("log_probs_V", torch.zeros(vocab_size, dtype=sum_dtype(torch.get_default_dtype())))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forget all targets."""
        self._num_steps, self._weight = 0, 1.0  # what a target of the latest step counts
        if "counts_V" in self._buffers and not self.counts_V.is_meta:
            self.counts_V = torch.zeros_like(self.counts_V, dtype=torch.float64)
            self._renew()

    @torch.no_grad()
    def observe(self, targets: Tensor, valid: Tensor | None = None) -> None:
        """Count the targets of one step, where `valid` is true."""
        # Later targets weigh more, instead of all earlier ones less: that would take a pass over the vocabulary.
        self._weight /= self.decay
        weight_N = torch.full((targets.numel(),), self._weight, dtype=torch.float64, device=targets.device)
        if valid is not None:
            weight_N *= valid.reshape(-1)
        self.counts_V.index_add_(0, targets.reshape(-1), weight_N)
        self._num_steps += 1
        is_power_of_2 = self._num_steps & (self._num_steps - 1) == 0
        if self._num_steps % self.every == 0 or (self._num_steps < self.every and is_power_of_2):
            self._renew()

    @torch.no_grad()
    def _renew(self) -> None:
        self.counts_V /= self._weight
        self._weight = 1.0
        num_different = self.counts_V.clamp(max=1.0).sum().clamp(min=1.0)
        smoothed_V = self.counts_V + num_different / len(self)
        self.log_probs_V.copy_((smoothed_V / (self.counts_V.sum() + num_different)).log())
        self._make_table()

    def max_distinct(self, num_drawn: int) -> int:
        """Bound the number of different words by what cannot be exceeded: a stream may change."""
        return min(num_drawn, len(self))

    def sample(self, shape: Sequence[int]) -> Tensor:
        """Draw words independently, from ln p_n as it was last renewed."""
        if not self._draws:
            self.prepare_to_draw()
        return super().sample(shape)

    def num_draws(self, num_distinct: int) -> int:
        """Refuse: how many draws give so many different words changes while the layer trains."""
        raise UserError("Running noise draws with replacement only: leave out replacement=False.")

    def prepare_to_draw(self) -> None:
        """Make the table that words are drawn from, now and whenever ln p_n is renewed; a compiled step cannot."""
        self._draws = True
        self._make_table()

    def _make_table(self) -> None:
        if self._draws and not self.log_probs_V.is_meta:
            probs_V = self.log_probs_V.double().exp().cpu().numpy()
            self._write_alias_table(probs_V / probs_V.sum())

    def _remake(self) -> None:
        # Not before words are drawn: ln p_n itself may still have to be loaded.
        self._draws = False

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move as any module does, with counts in float64 and ln p_n in float32 or wider."""
        counts_V, log_probs_V = self.counts_V, self.log_probs_V
        nn.Module._apply(self, fn, recurse)
        if counts_V.is_meta:
            self.reset_parameters()
        elif not self.counts_V.is_meta:
            self.counts_V = counts_V.to(self.counts_V.device)
            self.log_probs_V = log_probs_V.to(self.counts_V.device, sum_dtype(self.log_probs_V.dtype))
            self._make_table()
        return self

    def get_extra_state(self) -> Tensor:
        """Give what a state_dict keeps beside the tables."""
        return torch.tensor([self._num_steps, self._weight], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Go on where a state_dict was taken."""
        self._num_steps, self._weight = int(state[0]), float(state[1])
        self._make_table()


def unigram(
    counts: np.ndarray | Tensor | Sequence[float], power: float = 1.0, *, ignore_index: int = IGNORE_INDEX
) -> Noise:
    """Make noise that follows the target counts, flattened by `power`; unseen words get a share of Good and Turing.

    The class `ignore_index`, if it is one, is no target: however often it is counted, it gets next to nothing.
    """
    finite_number("power", power)
    counts_V = _numbers("count", counts)
    if 0 <= ignore_index < len(counts_V) > 1:
        smoothed_V = _smooth(np.delete(counts_V, ignore_index))
        smoothed_V = np.insert(smoothed_V, ignore_index, 1e-6 * smoothed_V.min())  # of 0 there is no logarithm
    else:
        smoothed_V = _smooth(counts_V)
    bent = None if power == 1 else f"unigram noise to the power {power:g}"
    noise = Noise((smoothed_V / smoothed_V.max()) ** power, bent=bent)
    return noise if bent is None else noise.for_targets(smoothed_V)


def _smooth(counts_V: np.ndarray) -> np.ndarray:
    """Give all unseen words together what Good and Turing expect of them: n₁/N, with n₁ words seen once in N targets.

    B-NCE and the chunk losses never move a word that is never a target, so it keeps for ever what it gets here.
    Witten-Bell's share d/(N + d), with d different words, takes its place where n₁ is 0 or all words were seen once.
    """
    seen = counts_V > 0
    if not np.any(seen):
        raise UserError("Counts must not all be zero: count the targets of the training text.")
    if np.all(seen):
        return counts_V.copy()
    if np.any(counts_V % 1):  # frequencies: the rarest word counts as seen once
        counts_V = counts_V / counts_V[seen].min()
    num_targets, num_once, num_different = counts_V.sum(), np.sum(counts_V == 1), np.sum(seen)
    unseen = num_once / (1 - num_once / num_targets) if 0 < num_once < num_different else num_different
    return np.where(seen, counts_V, unseen / np.sum(~seen))


def from_targets(
    targets: np.ndarray | Tensor | Iterable[np.ndarray | Tensor | Sequence[int]],
    vocab_size: int,
    ignore_index: int = IGNORE_INDEX,
) -> Noise:
    """Make noise by counting targets: one tensor of any shape, or one after the other, such as those of a loader."""
    several = [targets] if isinstance(targets, (np.ndarray, Tensor)) else targets
    counts_V = np.zeros(whole_number("vocab_size", vocab_size, 1), dtype=np.int64)
    for given in several:
        try:
            ids_N = torch.as_tensor(given).detach().cpu().reshape(-1).numpy()
        except (TypeError, ValueError, RuntimeError) as error:
            raise UserError(
                f"Targets must be tensors of word ids, but one is a {type(given).__name__}: pick the targets out of a "
                'batch, such as (batch["labels"] for batch in loader).'
            ) from error
        if not np.issubdtype(ids_N.dtype, np.integer):
            raise UserError(f"Targets must be whole numbers, but they are {ids_N.dtype}.")
        ids_N = ids_N[ids_N != ignore_index]
        wrong_N = ids_N[(ids_N < 0) | (ids_N >= vocab_size)]
        if len(wrong_N):
            raise UserError(
                f"targets hold {wrong_N[0]}, but vocab_size is {vocab_size}: give ids from 0 to {vocab_size - 1}."
            )
        counts_V += np.bincount(ids_N, minlength=vocab_size)
    return unigram(counts_V, ignore_index=ignore_index)


def uniform(vocab_size: int) -> Noise:
    """Make noise in which every word is equally likely."""
    return Noise(np.ones(whole_number("vocab_size", vocab_size, 1)), bent="uniform noise")


def log_uniform(vocab_size: int) -> Noise:
    """Make noise that follows Zipf's law, for ids sorted by frequency: p(w) = ln((w + 2)/(w + 1)) / ln(V + 1)."""
    ids_V = np.arange(whole_number("vocab_size", vocab_size, 1), dtype=np.float64)
    return Noise(np.log1p(1.0 / (ids_V + 1.0)) / math.log(vocab_size + 1.0), bent="log-uniform noise")


def make_noise(loss: Loss, counts: np.ndarray | Tensor) -> Noise:
    """Make the noise of a loss for targets with these counts: the unigram, unless its settings name another."""
    name = getattr(loss, "noise", "unigram")
    if name == "unigram":
        return unigram(counts, getattr(loss, "noise_power", 1.0))
    return {"uniform": uniform, "log-uniform": log_uniform}[name](len(counts)).for_targets(counts)


def alias_table(probs_V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Build Walker's alias table: slot i holds word i with probability keep[i], else alias[i].

    Slots below average take what they lack from the first slot above average that still has some to give, and a giver
    left below average takes from the next one. Running sums of what is lacking and what can be given say where each
    hand-over falls, so the whole table is a few vector operations (about 0.1 s at V = 800K) instead of a loop over V.
    """
    scaled_V = probs_V * len(probs_V)
    takers = np.flatnonzero(scaled_V < 1.0)
    givers = np.flatnonzero(scaled_V > 1.0)
    keep_V = np.ones_like(scaled_V)
    alias_V = np.arange(len(scaled_V))
    # Rounding can put equal probabilities a hair below average, all of them.
    if len(takers) == 0 or len(givers) == 0:
        return keep_V, alias_V
    lacking = np.cumsum(1.0 - scaled_V[takers])
    to_give = np.cumsum(scaled_V[givers] - 1.0)
    # The giver of a taker is the first whose running sum exceeds what earlier takers have already had.
    had_before = np.concatenate([[0.0], lacking[:-1]])
    giver = np.minimum(np.searchsorted(to_give, had_before, side="right"), len(givers) - 1)
    keep_V[takers] = scaled_V[takers]
    alias_V[takers] = givers[giver]
    # A giver overdrawn by some taker keeps the rest and takes the difference from the next giver. One that a taker
    # empties to the last bit is that taker's, not the next one's: hence left here and right above.
    overdrawn_by = np.searchsorted(lacking, to_give, side="left")
    overdrawn = np.flatnonzero((overdrawn_by < len(takers)) & (np.arange(len(givers)) < len(givers) - 1))
    keep_V[givers[overdrawn]] = 1.0 + to_give[overdrawn] - lacking[overdrawn_by[overdrawn]]
    alias_V[givers[overdrawn]] = givers[overdrawn + 1]
    return np.clip(keep_V, 0.0, 1.0), alias_V


def _numbers(name: str, values: Any) -> np.ndarray:
    """Read one finite number of 0 or more per class, in float64; refuse what is none."""
    if isinstance(values, Tensor):
        if values.is_meta:
            raise UserError("The noise is on the meta device, which has no values: give counts that have some.")
        values = values.detach().cpu().double().numpy()
    try:
        if values is None or isinstance(values, Mapping | str):  # NumPy takes None for NaN, and a dict for one object
            raise TypeError
        value_V = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        what = shown(values) if values is None or isinstance(values, str) else f"a {type(values).__name__}"
        raise UserError(
            f"Counts or probabilities are {what}: give one number per class id, in a list, a tensor or an array, such "
            "as [counts.get(word, 0) for word in range(vocab_size)]."
        ) from None
    if value_V.ndim != 1 or len(value_V) == 0:
        raise UserError(f"The noise has the shape {value_V.shape}: give one {name} per class, (vocab_size,).")
    wrong = np.flatnonzero(~(np.isfinite(value_V) & (value_V >= 0)))
    if len(wrong):
        raise UserError(
            f"The {name} of class {wrong[0]} is {value_V[wrong[0]]:g}: give a finite number of 0 or more per class."
        )
    return value_V
