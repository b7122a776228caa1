"""The paper's SGD, one rate for tables and body.

Legend: V rows of a table, N touched rows, D columns.
"""

from __future__ import annotations

from torch import Tensor

from bnce import rows
from bnce.optimisers.base import Optimiser
from bnce.optimisers.clip import Gradients


class Sgd(Optimiser):
    """Stochastic gradient descent; it keeps nothing from step to step."""

    def _step(self, gradients: Gradients, clip: Tensor) -> None:
        for name, (words_N, grad_ND) in gradients.touched.items():
            rows.sgd_(self.tables[name], words_N, grad_ND, self.rate, clip)
        for name, grad_VD in gradients.dense.items():
            self.tables[name].sub_(grad_VD.mul_(self.rate * clip))
        self.body.flat.sub_(gradients.body * (self.rate * clip))
