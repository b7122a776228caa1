"""CUDA C++ compiled when it is first needed, for Hopper's tensor cores, whose barriers and clusters Triton has not.

NVRTC, which comes with PyTorch, compiles; the driver loads and launches. Both are called through `ctypes`. What was
compiled is kept in the user's cache, as Triton keeps its kernels: it takes about a second for each.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.resources
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from bnce import files
from bnce.errors import UserError

ARCHITECTURE = "sm_90a"
THREADS = 256
SHARED_BYTES = 227 * 1024  # what a block can have of 228 KB
_MAX_DYNAMIC_SHARED_SIZE, _CLUSTER_DIMENSION = 8, 4
_DIGEST_BYTES = 32


class CannotCompileError(RuntimeError):
    """NVRTC or the driver is missing, or refused a kernel. Whoever asked has another way."""


class Kernel:
    """A loaded kernel of one CTA per multiprocessor."""

    def __init__(self, binary: bytes, name: str, num_cluster_ctas: int) -> None:
        self.name, self.num_cluster_ctas = name, num_cluster_ctas
        self._driver = _driver()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._check(self._driver.cuModuleLoadData(ctypes.byref(module), binary))
        self._check(self._driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
        self._check(self._driver.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_SIZE, SHARED_BYTES))
        self._function = function

    def max_ctas(self, device: torch.device) -> int:
        """How many of its CTAs can run at once, in whole clusters."""
        if self.num_cluster_ctas == 1:
            return int(torch.cuda.get_device_properties(device).multi_processor_count)
        attribute = _Attribute(_CLUSTER_DIMENSION, b"", _Value((self.num_cluster_ctas, 1, 1)))
        config = _Config(
            (self.num_cluster_ctas, 1, 1), (THREADS, 1, 1), SHARED_BYTES, None, ctypes.pointer(attribute), 1
        )
        number = ctypes.c_int()
        self._check(
            self._driver.cuOccupancyMaxActiveClusters(ctypes.byref(number), self._function, ctypes.byref(config))
        )
        return number.value * self.num_cluster_ctas

    def launch(self, num_ctas: int, arguments: Sequence[Tensor | int]) -> None:
        """Start it on the current stream: tensors as their addresses, numbers as 32 bits."""
        values = [
            ctypes.c_void_p(value.data_ptr()) if isinstance(value, Tensor) else ctypes.c_int(value)
            for value in arguments
        ]
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        self._check(
            self._driver.cuLaunchKernel(
                self._function, num_ctas, 1, 1, THREADS, 1, 1, SHARED_BYTES, stream, pointers, None
            )
        )

    def _check(self, status: int) -> None:
        if status:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorString(status, ctypes.byref(text))
            raise CannotCompileError(f"{self.name}: {(text.value or b'CUDA error').decode()} ({status}).")


class _Value(ctypes.Union):
    _fields_ = [("cluster", ctypes.c_uint * 3), ("bytes", ctypes.c_char * 64)]


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", _Value)]


class _Config(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    ]


def source(names: Sequence[str], definitions: Mapping[str, int]) -> str:
    """Put together a kernel's text: its numbers, what Hopper does, the product of 16 columns, and the files `names`."""
    lines = [f"#define {key} {value}" for key, value in definitions.items()]
    home = importlib.resources.files("bnce.kernels.hopper")
    hopper, *texts = ((home / f"{name}.cu").read_text(encoding="utf-8") for name in ("hopper", *names))
    return "\n".join([*lines, hopper, _multiply_16(definitions["N"]), *texts])


def _multiply_16(N: int) -> str:
    """The tensor cores' product of 64 rows, in registers, and N rows of 16 columns; its instruction lists every sum."""
    num = N // 2
    places = ", ".join(f"%{i}" for i in range(num))
    rows = ", ".join(f"%{num + i}" for i in range(4))
    sums = ", ".join(f'"+f"(sum[{i}])' for i in range(num))
    given = ", ".join(f'"r"(left[{i}])' for i in range(4))
    shape = f"m64n{N}k16.f32.bf16.bf16"
    return (
        f"__device__ __forceinline__ void multiply_16(float (&sum)[{num}], const u32 (&left)[4], u64 right) {{\n"
        f'    asm volatile("wgmma.mma_async.sync.aligned.{shape} {{{places}}}, {{{rows}}}, %{num + 4}, 1, 1, 1, 0;"\n'
        f'                 : {sums} : {given}, "l"(right));\n}}\n'
    )


def compile_source(text: str) -> bytes:
    """Compile CUDA C++ to machine code, or take what was compiled of the same text before."""
    kept = _place_of(text)
    if kept is None:
        return _compile(text)
    with contextlib.suppress(OSError):
        found = kept.read_bytes()
        # A damaged file must not reach the driver: its digest stands before it.
        if hashlib.sha256(found[_DIGEST_BYTES:]).digest() == found[:_DIGEST_BYTES]:
            return found[_DIGEST_BYTES:]
    binary = _compile(text)
    with contextlib.suppress(OSError, UserError):  # or it is compiled every time
        files.make_directory(kept.parent)
        with files.atomic_file(kept) as partial:
            partial.write_bytes(hashlib.sha256(binary).digest() + binary)
    return binary


def _place_of(text: str) -> Path | None:
    """Say where the machine code of a text is kept; it depends on the compiler as well. None: this user has no home."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    key = "\n".join((ARCHITECTURE, str(torch.version.cuda), text))
    return home / "bnce" / "kernels" / f"{hashlib.sha256(key.encode()).hexdigest()}.kernel"


def _compile(text: str) -> bytes:
    nvrtc = _nvrtc()
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"bnce.cu", 0, None, None)
    options = [f"-arch={ARCHITECTURE}".encode(), b"--std=c++17"]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    if status:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise CannotCompileError(log.value.decode())
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    binary = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, binary)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return binary.raw


@functools.cache
def _driver() -> ctypes.CDLL:
    return _open(["libcuda.so.1"])


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """Find NVRTC where PyTorch has it from: beside its other libraries, or where the system keeps CUDA's."""
    major = (torch.version.cuda or "").split(".")[0]
    name = f"libnvrtc.so.{major}"
    beside = [path for entry in sys.path for path in sorted(Path(entry).glob(f"nvidia/*/lib/{name}"))]
    for path in beside:
        # It looks for this one by its name alone, which works once it is loaded.
        for builtins in sorted(path.parent.glob(f"libnvrtc-builtins.so.{major}*")):
            _open([str(builtins)])
    system = [f"/usr/local/cuda/lib64/{name}", f"/usr/local/cuda-{major}/lib64/{name}"]
    return _open([*(str(path) for path in beside), name, *system])


def _open(names: Sequence[str]) -> ctypes.CDLL:
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise CannotCompileError(f"{names[-1]} was not found.")
