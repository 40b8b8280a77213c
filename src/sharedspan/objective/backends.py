"""Backends of the pass over tasks: the CPU, or PyTorch on a GPU."""

from __future__ import annotations

import ctypes.util
import functools
import importlib.util
import numbers
import os
import re
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.threads import n_threads
from sharedspan.objective.base import Point
from sharedspan.objective.local import GramObjective
from sharedspan.statistics.grams import GramStatistics


@dataclass(frozen=True)
class TorchBackend:
    """PyTorch, and how it is used: a value of ``backend``.

    Parameters
    ----------
    device : str, optional
        "cuda", "cuda:1", "cpu", ...; by default a GPU if there is one.
    block_size : int, optional
        How many tasks to hold on the device at once. Blocks beyond that wait in the host's memory
        and are copied in each pass while the one before is computed. By default all tasks, or as
        many as fit.

    Examples
    --------
    >>> import sharedspan as ss
    >>> ss.TorchBackend(device="cuda", block_size=100_000)
    TorchBackend(device='cuda', block_size=100000)
    """

    device: str | None = None
    block_size: int | None = None

    def __post_init__(self) -> None:
        size = self.block_size
        whole = isinstance(size, numbers.Integral) and not isinstance(size, bool)
        if size is not None and not (whole and size >= 1):
            raise ValueError(f"block_size={size!r} must be an integer of at least 1, or None.")
        if self.device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?", str(self.device)):
            raise ValueError(f"device={self.device!r} is unknown: use 'cpu', 'cuda', 'cuda:1', ...")


class TorchObjective(GramObjective):
    """The objective with its passes on a device.

    W and matrices of its shape stay there (``DeviceMatrix``); B and small sums are NumPy arrays.
    Quantities that a solver needs once, or not at all, are computed from the host's statistics.
    """

    def __init__(
        self,
        statistics: GramStatistics,
        noise: np.ndarray | None,
        dtype: str,
        backend: TorchBackend,
    ) -> None:
        super().__init__(statistics, noise)
        from sharedspan.kernels.gpu import DeviceGrams

        s = statistics
        self.grams = DeviceGrams(
            s.packed, s.anchor, s.g, s.q, self.response, self.weights,
            device=backend.device, dtype=dtype, block_size=backend.block_size,
        )  # fmt: skip

    def evaluate(self, B: np.ndarray, W: Any) -> Point:
        """See Objective; one copy brings the loss, R W' and WW' from the device."""
        W = self.to_device(W)
        return Point(B, W, self, *self.grams.gradients(B, W))

    def to_device(self, W: Any) -> Any:
        """See Objective."""
        return self.grams.to_device(W)

    def zero_weights(self, k: int) -> Any:
        """See Objective."""
        return self.grams.zeros(k)

    def gradients(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        """See Objective."""
        return self.grams.gradients(B, W)[:3]

    def profile(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        """See Objective."""
        return self.grams.profile(B, W)

    def moments(self) -> np.ndarray:
        """See Objective."""
        return self.grams.moments()


def choose_backend(backend: str | TorchBackend) -> TorchBackend | None:
    """The backend for Grams that are large enough; None for the kernels of the CPU."""
    if isinstance(backend, TorchBackend):
        return backend
    if backend == "torch":
        return TorchBackend()
    if backend == "auto" and _may_have_gpu():
        import torch

        if torch.cuda.is_available():
            return TorchBackend("cuda")
    return None


# "auto" sums rows on a GPU if that is faster, by rates measured on 16 cores beside an H200: a core
# sums four billion products of two features a second, rows travel at 20 GB/s, the first use of a
# GPU in a process takes four seconds, and each fit some hundredths of a second.
CORE_RATE = 4e9
COPY_RATE = 2e10
FIRST_USE = 4.0
EACH_USE = 0.05


def rows_gain(backend: str | TorchBackend, rows: TaskRows) -> bool:
    """Whether the statistics of rows in memory are built faster on the backend's GPU."""
    if not isinstance(rows.X, np.ndarray):
        return False
    if backend != "auto":
        return True
    d = rows.n_features
    torch = sys.modules.get("torch")
    started = torch is not None and torch.cuda.is_initialized()
    here = rows.n_rows * d * (d + 20) / CORE_RATE / n_threads()
    there = rows.n_rows * d * rows.X.itemsize / COPY_RATE + (EACH_USE if started else FIRST_USE)
    return there < here and _may_have_gpu()


@functools.cache
def _may_have_gpu() -> bool:
    """Whether PyTorch and an NVIDIA driver are installed, without the cost of loading them."""
    if importlib.util.find_spec("torch") is None:
        return False
    if os.path.exists("/proc/driver/nvidia"):
        return True
    return any(ctypes.util.find_library(name) for name in ("cuda", "nvcuda"))


def require_device(backend: str | TorchBackend) -> None:
    """Raise for an unknown backend, and if PyTorch or the requested GPU is missing."""
    if not isinstance(backend, TorchBackend) and backend != "torch":
        raise ValueError(
            f"backend={backend!r} is unknown: use 'auto', 'numpy', 'torch' or "
            "ss.TorchBackend(device=..., block_size=...)."
        )
    if importlib.util.find_spec("torch") is None:
        raise ImportError(
            "backend='torch' needs PyTorch, which is not installed: "
            "pip install 'sharedspan[gpu]', or use backend='numpy'."
        )
    device = backend.device if isinstance(backend, TorchBackend) else None
    if device is None or device == "cpu":
        return
    import torch

    count = torch.cuda.device_count()
    if int(device.partition(":")[2] or 0) >= count:
        raise ValueError(
            f"device={device!r} is not available: PyTorch sees {count} GPUs. Use another device, "
            "device='cpu', or backend='numpy'."
        )
