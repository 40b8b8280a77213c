"""Matrices outside the memory of this process, with the arithmetic that solvers use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Self

import numpy as np


class RemoteMatrix(ABC):
    """A (k, T) matrix on a GPU or on a cluster.

    Sums, multiples and ``D @ M`` with a small host matrix D stay there; ``M @ N.T`` is small and is
    returned to the host. ``numpy.asarray`` copies the whole matrix to the host.
    """

    __array_ufunc__ = None  # makes NumPy's operators defer to the methods of this class

    shape: tuple[int, int]

    @abstractmethod
    def to_host(self) -> np.ndarray:
        """A copy in the host's memory, (k, T)."""

    @abstractmethod
    def product(self, other: Self) -> np.ndarray:
        """MN' for another matrix N (l, T) on the same device or cluster, (k, l)."""

    @property
    def T(self) -> RemoteTransposed:
        return RemoteTransposed(self)

    def __matmul__(self, other: RemoteTransposed) -> np.ndarray:
        if not isinstance(other, RemoteTransposed):
            return NotImplemented
        return self.product(other.T)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            name = type(self).__name__
            raise ValueError(f"copy=False is not possible: a {name} is always copied to the host.")
        return np.asarray(self.to_host(), dtype=dtype)


class RemoteTransposed:
    """The transpose (T, k) of a ``RemoteMatrix``, for products; nothing is copied."""

    __array_ufunc__ = None

    def __init__(self, matrix: Any) -> None:
        self.T, self.shape = matrix, matrix.shape[::-1]

    def __matmul__(self, other: np.ndarray) -> np.ndarray:
        return np.asarray(self) @ np.asarray(other)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.T.__array__(dtype, copy).T
