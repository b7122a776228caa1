"""Adam on the body, over one flat buffer that its parameters are views of.

The body is small beside the tables: two million numbers in the paper's LTCB models. One buffer makes its norm, its
clipping and its step one operation each, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bnce import kernels

BETAS = (0.9, 0.99)
EPSILON = 1e-8


class FlatParameters:
    """Parameters laid end to end in one buffer; the modules go on using them as before."""

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self.parameters = dict(parameters)
        self.flat = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters.values()])
        begin = 0
        for parameter in self.parameters.values():
            end = begin + parameter.numel()
            parameter.data = self.flat[begin:end].view_as(parameter)
            begin = end

    def take_gradients(self) -> Tensor:
        """Lay the gradients end to end and take them off the parameters; what has none counts as zero."""
        grads = []
        for parameter in self.parameters.values():
            grads.append(
                torch.zeros_like(parameter).reshape(-1) if parameter.grad is None else parameter.grad.reshape(-1)
            )
            parameter.grad = None
        return torch.cat(grads)


class Adam:
    """Adam's state and step."""

    def __init__(self, flat: Tensor) -> None:
        self.flat = flat
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self.count = torch.zeros((), dtype=torch.float32, device=flat.device)

    def step(self, grad: Tensor, rate: Tensor, clip: Tensor) -> None:
        """Step against a gradient times `clip`."""
        self.count += 1
        adam_(self.flat, grad, self.mean, self.square, self.count, rate, clip, BETAS)

    def state_tensors(self) -> dict[str, Tensor]:
        """Name the tensors that a resumed run needs."""
        return {"mean": self.mean, "square": self.square, "count": self.count}


def adam_(
    parameter: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    count: Tensor,
    rate: Tensor,
    clip: Tensor,
    betas: tuple[float, float],
) -> None:
    """Clip and step flat parameters by Adam; `count` is the number of this step, from 1."""
    if kernels.usable(parameter):
        from bnce.kernels.elementwise import adam_ as fast

        fast(parameter, grad, mean, square, count, rate, clip, betas)
        return
    grad = grad * clip
    mean.lerp_(grad, 1 - betas[0])
    square.mul_(betas[1]).addcmul_(grad, grad, value=1 - betas[1])
    first_total, second_total = (1 - beta**count for beta in betas)
    parameter.sub_((mean * (rate / first_total)).div_((square / second_total).sqrt_().add_(EPSILON)))
