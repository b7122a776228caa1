"""All steps of an LSTM or RNN in one launch: weights stay in registers, and groups of streams keep their own time.

`persistent.cu` says how; the kernels are in `lstm.cu` and `rnn.cu`. Here it is decided how a network is spread over a
GPU, and they are started. Gates come unit by unit, G = 4·unit + gate. What `recurrence` does step by step stays for
every other GPU and size.

It is chosen for the sizes at which it was measured to be faster (`FASTER`), unless NVIDIA's MPS is on: CTAs that wait
for each other must all be on the GPU, and MPS would let those of another process take some of the places. For the same
reason, layers of one process must not run this way on two streams at once: they would share counters, too.
BNCE_PERSISTENT=1 chooses it wherever it fits, BNCE_PERSISTENT=0 never.

Legend: T time steps, S = T + 1, B streams, H hidden, G = 4·H gates, N streams that a group has room for.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from bnce.kernels.hopper import nvrtc

MULTIPLE = 128  # of which the number of units must be
ROWS = 128
UNITS = {"lstm": ROWS // 4, "rnn": ROWS}  # of a CTA, forwards: a unit of an LSTM has a row for each of its gates
MAX_UNITS = 640  # whose weights fit in a CTA's registers beside the sums
MAX_STREAMS = 72  # of a group, by what registers and shared memory hold
CLUSTERS = {"lstm_forward": 4, "lstm_backward": 4}  # CTAs that load for each other, or split the columns
COUNTER_STRIDE = 16
SPIN_LIMIT = 1 << 26  # half a minute and more: whoever waits that long waits for a CTA that never started
# Padded units and streams between which one launch took less time than the steps, forwards and backwards, on an H200.
# With 1,600 streams the LSTM's backward pass took longer. Smaller networks were not measured.
FASTER = {"lstm": ((640, 640), (400, 800)), "rnn": ((640, 640), (400, 1600))}
MEASURED_CTAS = 132  # that an H200 has room for; a smaller GPU would need more passes
MPS_PIPES = "/tmp/nvidia-mps"  # where its daemon is found, unless the variable names another place
_FAILED: dict[torch.device, str] = {}  # why a GPU's kernels could not be compiled


@dataclass(frozen=True)
class Plan:
    """How one kernel spreads B streams of a network over a GPU."""

    name: str
    H: int
    num_ctas_per_group: int
    num_cluster_ctas: int
    num_groups: int  # that work at the same time
    num_passes: int  # one after the other
    group_size: int
    N: int

    @property
    def num_ctas(self) -> int:
        """The size of the grid; all must be resident."""
        return self.num_groups * self.num_ctas_per_group

    @property
    def num_counters(self) -> int:
        """Groups of streams, with a counter each."""
        return self.num_groups * self.num_passes

    @property
    def num_exchanged(self) -> int:
        """What all groups exchange, in numbers: the columns of N streams, in two buffers that take turns."""
        num_columns = 4 * self.H if self.name == "lstm_backward" else self.H
        return self.num_counters * 2 * self.N * num_columns

    def source(self, *, has_resets: bool) -> str:
        """The kernel's text."""
        network = self.name.split("_")[0]
        return nvrtc.source(["persistent", network], self.definitions(has_resets=has_resets))

    def definitions(self, *, has_resets: bool) -> dict[str, int]:
        """What the text leaves open."""
        return {
            f"KERNEL_{self.name.upper()}": 1,
            "H": self.H,
            "N": self.N,
            "P": self.num_cluster_ctas,
            "RESETS": int(has_resets),
            "SPIN_LIMIT": SPIN_LIMIT,
            "SHARED_BYTES": nvrtc.SHARED_BYTES,
        }


def make_plan(name: str, H: int, B: int, max_ctas: int) -> Plan:
    """Spread streams over as many groups as there is room for, and over passes where a group would be too large."""
    per_group = H // UNITS[name.split("_")[0]]
    num_groups = min(max_ctas // per_group, -(-B // 8))
    num_passes = -(-B // (num_groups * MAX_STREAMS))
    size = -(-B // (num_groups * num_passes))
    return Plan(name, H, per_group, CLUSTERS.get(name, 1), num_groups, num_passes, size, -(-size // 8) * 8)


def fits(name: str, wide_H: int, max_ctas: int) -> bool:
    """Say whether a network's weights fit on a GPU once."""
    return wide_H % MULTIPLE == 0 and wide_H <= MAX_UNITS and wide_H // UNITS[name] <= max_ctas


def faster(name: str, wide_H: int, B: int) -> bool:
    """Say whether one launch is the faster way, by what was measured."""
    (min_H, max_H), (min_B, max_B) = FASTER[name]
    return min_H <= wide_H <= max_H and min_B <= B <= max_B


def _shares_gpu() -> bool:
    """Say whether processes may compute on the GPU at the same time, and not only in turns."""
    return "CUDA_MPS_PIPE_DIRECTORY" in os.environ or Path(MPS_PIPES, "control").exists()


def available(tensor: Tensor, dtype: torch.dtype, name: str, wide_H: int, B: int) -> bool:
    """Say whether a network is to be run this way: on a Hopper GPU, in bf16, at sizes that fit and are faster so."""
    setting = os.environ.get("BNCE_PERSISTENT")
    if dtype != torch.bfloat16 or not tensor.is_cuda or setting == "0":
        return False
    if setting != "1" and (not faster(name, wide_H, B) or _shares_gpu()):
        return False
    if torch.compiler.is_compiling() or torch.cuda.get_device_capability() != (9, 0):
        return False
    device = torch.device("cuda", torch.cuda.current_device())
    max_ctas = torch.cuda.get_device_properties(device).multi_processor_count
    if setting != "1" and max_ctas < MEASURED_CTAS:
        return False
    return device not in _FAILED and fits(name, wide_H, max_ctas)


class _Ready:
    """A plan with its kernel loaded, and its groups' exchange and counters, which nothing else writes to."""

    def __init__(self, name: str, H: int, B: int, has_resets: bool, device: torch.device) -> None:
        max_ctas = torch.cuda.get_device_properties(device).multi_processor_count
        while True:
            self.plan = make_plan(name, H, B, max_ctas)
            text = self.plan.source(has_resets=has_resets)
            self.kernel = nvrtc.Kernel(nvrtc.compile_source(text), name, self.plan.num_cluster_ctas)
            # Clusters need neighbours, of which a GPU may have fewer than multiprocessors.
            max_ctas = min(max_ctas, self.kernel.max_ctas(device))
            if self.plan.num_ctas <= max_ctas:
                break
            if max_ctas < self.plan.num_ctas_per_group:
                raise nvrtc.CannotCompileError(f"{name}: {max_ctas} thread blocks run at once, and one group has more.")
        self.exchange = torch.zeros(self.plan.num_exchanged, dtype=torch.bfloat16, device=device)
        self.arrived = torch.zeros(self.plan.num_counters * COUNTER_STRIDE, dtype=torch.int64, device=device)

    def launch(self, tensors: tuple[Tensor, ...], T: int, B: int) -> None:
        buffers = self.exchange, self.arrived
        self.kernel.launch(self.plan.num_ctas, (*tensors, *buffers, T, B, self.plan.group_size, self.plan.num_passes))


_READY: dict[tuple[str, int, int, bool, torch.device], _Ready] = {}


def prepare(name: str, wide_H: int, B: int, *, has_resets: bool) -> bool:
    """Compile a network's two kernels, if that is not done. False where it cannot be: use the other way."""
    device = torch.device("cuda", torch.cuda.current_device())
    keys = [(f"{name}_{direction}", wide_H, B, has_resets, device) for direction in ("forward", "backward")]
    if all(key in _READY for key in keys):
        return True
    if torch.cuda.is_current_stream_capturing():
        return False
    try:
        for key in keys:
            _READY[key] = _Ready(*key)
    except nvrtc.CannotCompileError as error:
        _FAILED[device] = str(error)
        reason = str(error).strip().partition("\n")[0]
        warnings.warn(f"Recurrent layers run step by step, which is slower. {reason}", RuntimeWarning, stacklevel=2)
        return False
    return True


def _launch(name: str, tensors: tuple[Tensor, ...], T: int, B: int, H: int, keep_SB: Tensor | None) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    _READY[name, H, B, keep_SB is not None, device].launch(tensors, T, B)


def lstm_forward(
    gate_TBG: Tensor,
    weight_GH: Tensor,
    hidden_SBH: Tensor,
    before_SBH: Tensor,
    cell_SBH: Tensor,
    keep_SB: Tensor | None,
) -> None:
    """Turn the gates' sums into their values, in place, and fill the states after each step."""
    T, B, _ = gate_TBG.shape
    keep = hidden_SBH if keep_SB is None else keep_SB
    tensors = weight_GH, gate_TBG, hidden_SBH, before_SBH, cell_SBH, keep
    _launch("lstm_forward", tensors, T, B, weight_GH.shape[1], keep_SB)


def lstm_backward(
    gate_TBG: Tensor, weight_GH: Tensor, grad_TBH: Tensor, cell_SBH: Tensor, keep_SB: Tensor | None
) -> None:
    """Turn the gates' values into the gradients of their sums, in place."""
    T, B, _ = gate_TBG.shape
    tensors = weight_GH, gate_TBG, grad_TBH, cell_SBH, gate_TBG if keep_SB is None else keep_SB
    _launch("lstm_backward", tensors, T, B, weight_GH.shape[1], keep_SB)


def rnn_forward(
    sum_TBH: Tensor, weight_HH: Tensor, hidden_SBH: Tensor, before_SBH: Tensor, keep_SB: Tensor | None
) -> None:
    """Fill the hidden states after each step."""
    T, B, H = sum_TBH.shape
    tensors = weight_HH, sum_TBH, hidden_SBH, before_SBH, hidden_SBH if keep_SB is None else keep_SB
    _launch("rnn_forward", tensors, T, B, H, keep_SB)


def rnn_backward(
    sum_grad_TBH: Tensor, weight_HH: Tensor, grad_TBH: Tensor, hidden_SBH: Tensor, keep_SB: Tensor | None
) -> None:
    """Fill the gradients of the sums."""
    T, B, H = grad_TBH.shape
    tensors = weight_HH, sum_grad_TBH, grad_TBH, hidden_SBH, hidden_SBH if keep_SB is None else keep_SB
    _launch("rnn_backward", tensors, T, B, H, keep_SB)
