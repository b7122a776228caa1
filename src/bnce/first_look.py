"""A look at the first batches that an output layer trains on, for what would train a wrong model without a word.

Once, and not on a GPU, whose host would have to wait. Whether the targets of a time step are a sample of the noise p is
told by how often two of them are equal: over pairs i ≠ j of n targets,

    Σ_{i≠j} [w_i = w_j] − 2·(n − 1)·Σ_i p(w_i) + n·(n − 1)·Σ_w p(w)²

is n·(n − 1)·‖q − p‖² on average if they are drawn from q. Of p itself it is 0, give or take what chance explains.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch

from bnce.losses.loss import OutputBatch
from bnce.noise import Running

NUM_BATCHES = 32  # that are looked at
MAX_ERRORS, MAX_SHARE = 6.0, 0.25  # distances beyond this many standard errors, and this share of Σ p², are told of
NUM_POSITIONS = 8  # whose probabilities are looked at


class FirstLook:
    """Counts how far the targets of first time steps are from the noise."""

    def __init__(self) -> None:
        self.num_batches, self.distance, self.variance, self.most = 0, 0.0, 0.0, 0.0
        self.squares, self.cubes = 0.0, 0.0  # Σ p², Σ p³

    @torch.no_grad()
    def look(self, layer: Any, batch: OutputBatch) -> None:
        """Warn of probabilities that no start has, and of targets that are not the noise they are taken for."""
        if self.num_batches >= NUM_BATCHES or batch.target_TB.device.type != "cpu" or not batch.target_TB.numel():
            return
        self.num_batches += 1
        if self.num_batches == 1:
            prob_V = layer.noise.log_probs_V.double().exp()
            self.squares, self.cubes = float(prob_V.square().sum()), float(prob_V.pow(3).sum())
            if batch.target_TB.numel() >= NUM_POSITIONS:
                self._look_at_probabilities(layer, batch)
        if layer.loss.batch_noise == "none" or isinstance(layer.noise, Running):
            return
        # Where sequences lie side by side, all begin at the first step.
        target_n = batch.target_TB[0] if batch.valid_TB is None else batch.target_TB[0][batch.valid_TB[0]]
        pairs = len(target_n) * (len(target_n) - 1)
        count = target_n.unique(return_counts=True)[1]
        self.distance += float((count * (count - 1)).sum()) + pairs * self.squares
        self.distance -= 2 * max(0, len(target_n) - 1) * float(layer.noise.log_prob(target_n).double().exp().sum())
        self.variance += 2 * pairs * max(0.0, self.squares - 2 * self.cubes + self.squares**2)
        self.most += pairs * self.squares
        by_chance = max(MAX_ERRORS * math.sqrt(self.variance), MAX_SHARE * self.most)
        if self.num_batches == NUM_BATCHES and self.distance > by_chance > 0:
            warnings.warn(
                f"The targets of a time step are not the noise that {layer.loss.name} takes them for, so the model "
                f"will be wrong: in the first {NUM_BATCHES} batches they are {self.distance / by_chance:.1f} times as "
                "far from it as can be explained. Batches of streams or of shuffled positions are such noise; "
                "sequences that all begin at the first step are not: give their positions as (N, D), with streams to "
                "chunk-bnce.",
                stacklevel=6,
            )

    def _look_at_probabilities(self, layer: Any, batch: OutputBatch) -> None:
        hidden_ND, target_N = batch.hidden_TBD.flatten(0, 1), batch.target_TB.flatten()
        loss = -layer.log_probs(hidden_ND[:NUM_POSITIONS], target_N[:NUM_POSITIONS]).mean()
        by_unigram = -layer.noise.log_target_probs()[target_N[:NUM_POSITIONS]].mean()
        usual = max(math.log(layer.vocab_size), float(by_unigram))
        if loss > 1.5 * usual + 2:
            warnings.warn(
                f"The first targets have ln p = {-loss:.4g} on average, but a model that knows nothing gives them "
                f"{-usual:.3g}: the scores are too large. If the weight is tied to an embedding, it has to be the "
                "embedding that takes the layer's: embedding.weight = output.weight.",
                stacklevel=7,
            )
