"""Matrices on a GPU with the arithmetic that solvers use, and errors for a lack of memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partialmethod
from typing import Any

import numpy as np
import torch

from sharedspan.kernels.remote_matrix import RemoteMatrix

SUM_PARTS = 1024  # independent parts of a sum over tasks


def free_memory(device: torch.device) -> int:
    """Bytes that are free for tensors on the device; a large number for the CPU."""
    if device.type != "cuda":
        return 1 << 60
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + cached


def out_of_memory(device: torch.device, size: int, tasks: int, block_size: int) -> MemoryError:
    """The error for ``tasks`` tasks that need ``size`` bytes, with a block size to try."""
    return MemoryError(
        f"The GPU is out of memory: {tasks:,} tasks need {size / 1e9:.3g} GB there and "
        f"{free_memory(device) / 1e9:.3g} GB are free; hold fewer tasks there at once with "
        f"backend=ss.TorchBackend(block_size={block_size}), or use backend='numpy'."
    )


@contextmanager
def taking(
    device: torch.device, size: int, tasks: int, block_size: Callable[[], int]
) -> Iterator[None]:
    """Turn a failed allocation on the device into a MemoryError with a remedy."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise out_of_memory(device, size, tasks, block_size()) from error


def empty_pinned(shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> torch.Tensor:
    """Memory of the host that is not initialised, pinned if possible."""
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=pinned)
    except RuntimeError:  # beyond the system's limit of locked memory: copies are slower then
        return torch.empty(shape, dtype=dtype)


def sum_of_products(X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    """XY' (k, l) of X (k, T) and Y (l, T), T large, in a fixed order.

    It is computed in parts, because a product with few rows would use a fraction of the GPU.
    """
    T = X.shape[1]
    parts = max(min(SUM_PARTS, T // 64), 1)
    m = T // parts
    X_parts = X[:, : m * parts].unflatten(1, (parts, m)).transpose(0, 1)
    Y_parts = Y[:, : m * parts].unflatten(1, (parts, m)).permute(1, 2, 0)
    return torch.bmm(X_parts, Y_parts).sum(0) + X[:, m * parts :] @ Y[:, m * parts :].T


class DeviceMatrix(RemoteMatrix):
    """A (k, T) float64 matrix on the device."""

    def __init__(self, data: torch.Tensor) -> None:
        self.data, self.shape = data, (data.shape[0], data.shape[1])

    def _allocating(self) -> Any:
        tasks = self.shape[1]
        return taking(self.data.device, 8 * self.data.numel(), tasks, lambda: max(tasks // 4, 1))

    def _combined(self, operation: Callable[[Any, Any], Any], other: Any) -> DeviceMatrix:
        """The operation with another matrix or a number, entry by entry."""
        if isinstance(other, DeviceMatrix):
            other = other.data
        elif np.ndim(other) == 0:
            other = float(other)
        else:
            return NotImplemented
        with self._allocating():
            return DeviceMatrix(operation(self.data, other))

    __add__ = partialmethod(_combined, operator.add)
    __sub__ = partialmethod(_combined, operator.sub)
    __mul__ = partialmethod(_combined, operator.mul)
    __truediv__ = partialmethod(_combined, operator.truediv)
    __radd__, __rmul__ = __add__, __mul__

    def __rmatmul__(self, other: np.ndarray) -> DeviceMatrix:
        small = torch.as_tensor(np.ascontiguousarray(other, float)).to(self.data.device)
        with self._allocating():
            return DeviceMatrix(small @ self.data)

    def product(self, other: DeviceMatrix) -> np.ndarray:
        with self._allocating():
            return sum_of_products(self.data, other.data).cpu().numpy()

    def to_host(self) -> np.ndarray:
        host = empty_pinned(self.data.shape, self.data.dtype, self.data.device.type == "cuda")
        return host.copy_(self.data).numpy()
