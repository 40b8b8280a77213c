"""A matrix on a device with the arithmetic that solvers use, and errors of its memory."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

SUM_PARTS = 1024  # independent parts of a sum over tasks


def free_memory(device: torch.device) -> int:
    """Bytes that tensors may still take on the device; a large number for the CPU."""
    if device.type != "cuda":
        return 1 << 60
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def out_of_memory(device: torch.device, size: int, tasks: int, block_size: int) -> MemoryError:
    """The error for ``size`` bytes for ``tasks`` tasks, with a block size to try."""
    return MemoryError(
        f"The GPU is out of memory: {tasks:,} tasks need {size / 1e9:.3g} GB there and "
        f"{free_memory(device) / 1e9:.3g} GB are free; hold fewer tasks there at once with "
        f"backend=ss.TorchBackend(block_size={block_size}), or use backend='numpy'."
    )


@contextmanager
def taking(
    device: torch.device, size: int, tasks: int, block_size: Callable[[], int]
) -> Iterator[None]:
    """Turn a failed allocation on the device into a MemoryError that says what to do."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise out_of_memory(device, size, tasks, block_size()) from error


def sum_of_products(X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    """XY' (k, l) of X (k, T) and Y (l, T), T large, in a fixed order.

    In parts, because a matrix product with so few rows would run on a corner of the GPU.
    """
    T = X.shape[1]
    parts = max(min(SUM_PARTS, T // 64), 1)
    m = T // parts
    X_parts = X[:, : m * parts].unflatten(1, (parts, m)).transpose(0, 1)
    Y_parts = Y[:, : m * parts].unflatten(1, (parts, m)).permute(1, 2, 0)
    return torch.bmm(X_parts, Y_parts).sum(0) + X[:, m * parts :] @ Y[:, m * parts :].T


class DeviceMatrix:
    """A (k, T) float64 matrix on the device.

    Sums and multiples stay on the device, and so does ``D @ M`` with a small host matrix D;
    ``M @ N.T`` is small and comes to the host. ``numpy.asarray`` copies it to the host.
    """

    __array_ufunc__ = None  # NumPy's operators leave the work to the ones below

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, int]:
        return (self.data.shape[0], self.data.shape[1])

    @property
    def T(self) -> DeviceMatrixTransposed:
        return DeviceMatrixTransposed(self)

    def _taking(self) -> Any:
        tasks = self.shape[1]
        return taking(self.data.device, 8 * self.data.numel(), tasks, lambda: max(tasks // 4, 1))

    def _combined(self, operation: Callable[[Any, Any], Any], other: Any) -> DeviceMatrix:
        """With another matrix or a number, entry by entry."""
        if isinstance(other, DeviceMatrix):
            other = other.data
        elif np.ndim(other) == 0:
            other = float(other)
        else:
            return NotImplemented
        with self._taking():
            return DeviceMatrix(operation(self.data, other))

    def __add__(self, other: DeviceMatrix | float) -> DeviceMatrix:
        return self._combined(operator.add, other)

    def __sub__(self, other: DeviceMatrix | float) -> DeviceMatrix:
        return self._combined(operator.sub, other)

    def __mul__(self, other: DeviceMatrix | float) -> DeviceMatrix:
        return self._combined(operator.mul, other)

    def __truediv__(self, other: DeviceMatrix | float) -> DeviceMatrix:
        return self._combined(operator.truediv, other)

    __radd__, __rmul__ = __add__, __mul__

    def __matmul__(self, other: DeviceMatrixTransposed) -> np.ndarray:
        if not isinstance(other, DeviceMatrixTransposed):
            return NotImplemented
        with self._taking():
            return sum_of_products(self.data, other.matrix.data).cpu().numpy()

    def __rmatmul__(self, other: np.ndarray) -> DeviceMatrix:
        small = torch.as_tensor(np.ascontiguousarray(other, float)).to(self.data.device)
        with self._taking():
            return DeviceMatrix(small @ self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("A matrix on the device is always copied.")
        return np.array(self.data.cpu().numpy(), dtype=dtype)


class DeviceMatrixTransposed:
    """The transpose (T, k) of a ``DeviceMatrix``, for products; nothing is copied."""

    __array_ufunc__ = None

    def __init__(self, matrix: DeviceMatrix) -> None:
        self.matrix = matrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[::-1]

    @property
    def T(self) -> DeviceMatrix:
        return self.matrix

    def __matmul__(self, other: np.ndarray) -> np.ndarray:
        return np.asarray(self) @ np.asarray(other)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.matrix.__array__(dtype, copy).T
