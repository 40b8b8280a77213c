"""Matrices with a column per task that lie on the shards of a cluster.

To the driver such a matrix is a sum of small matrices times matrices that the shards hold. It is
formed there when the next pass needs it, so that an iteration is one message.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from sharedspan.distributed.engine import Shards
from sharedspan.distributed.shard import Term, fetch, products, restore_matrices, save_matrices
from sharedspan.statistics.grams import Arrays


def total_of(parts: Sequence[Arrays]) -> Arrays:
    """Sums over shards, in their order."""
    return tuple(reduce(np.add, column) for column in zip(*parts, strict=True))


@dataclass
class Cluster:
    """The shards of a fit, and the numbers under which they hold things."""

    shards: Shards
    bounds: np.ndarray = field(default_factory=lambda: np.zeros(1, dtype=int))  # (shards + 1,)
    given: int = 0  # numbers given out
    freed: list[int] = field(default_factory=list)  # numbers that the shards may forget
    dead: set[int] = field(default_factory=set)  # those that they have been told to
    live: set[int] = field(default_factory=set)  # matrices in use
    known: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # their products
    passes: int = 0
    curious: bool = False  # whether products of matrices of several passes are asked for

    def new(self, count: int = 1) -> int:
        """The first of ``count`` unused numbers."""
        self.given += count
        return self.given - count

    def cut(self, array: np.ndarray) -> list[np.ndarray]:
        """The rows of each shard's tasks of an array (T, ...)."""
        return np.split(array, self.bounds[1:-1])

    def handle(self, number: int) -> Handle:
        """A matrix in use; its number is freed when nobody uses it any more."""
        self.live.add(number)
        handle = Handle(number)
        # Nothing but an append: the collector may run in another thread.
        weakref.finalize(handle, lambda: self.freed.append(number))
        return handle

    def take_freed(self) -> tuple[int, ...]:
        """Numbers for the shards to forget, handed over once."""
        freed, self.freed = tuple(self.freed), []
        gone = set(freed)
        self.live -= gone
        self.known = {pair: M for pair, M in self.known.items() if not gone.intersection(pair)}
        self.dead |= gone
        return freed

    def count_pass(self) -> None:
        """A checkpoint of all matrices at times."""
        self.passes += 1
        if self.passes % self.shards.engine.checkpoint_every == 0:
            self.shards.checkpoint(save_matrices, restore_matrices, self.dead)
            self.dead = set()

    def product(self, first: int, second: int) -> np.ndarray:
        """MN' of two matrices; whatever else is not known yet of those in use comes along."""
        if (first, second) not in self.known:
            self.curious, live = True, sorted(self.live)
            pairs = [(a, b) for a in live for b in live if a <= b and (a, b) not in self.known]
            sums = total_of(self.shards.run(products, pairs))
            for (a, b), value in zip(pairs, sums, strict=True):
                self.know(a, [b], [value])
        return self.known[first, second]

    def compared(self) -> list[int]:
        """Matrices whose products with the next ones are likely to be asked for."""
        return sorted(self.live) if self.curious else []

    def know(self, first: int, others: Sequence[int], values: Any) -> None:
        """Remember products MN' of one matrix with others."""
        for second, value in zip(others, values, strict=True):
            self.known[first, second], self.known[second, first] = value, value.T


class Handle:
    """A matrix (k, T) on the shards."""

    def __init__(self, number: int) -> None:
        self.number = number


class ClusterMatrix:
    """A (k, T) matrix on the cluster: a sum of small matrices times matrices held there.

    Sums, multiples and ``D @ M`` with a small host matrix D are formed when they are needed;
    ``M @ N.T`` is small and comes to the driver. ``numpy.asarray`` brings all of it.
    """

    __array_ufunc__ = None  # NumPy's operators leave the work to the ones below

    def __init__(self, cluster: Cluster, terms: dict[Handle, Any], shape: tuple[int, int]) -> None:
        self.cluster, self.terms, self.shape = cluster, terms, shape

    @property
    def T(self) -> ClusterMatrixTransposed:
        return ClusterMatrixTransposed(self)

    @property
    def sent(self) -> list[Term]:
        """The terms as the shards know them."""
        return [(factor, handle.number) for handle, factor in self.terms.items()]

    def _with(self, terms: dict[Handle, Any], rows: int | None = None) -> ClusterMatrix:
        return ClusterMatrix(self.cluster, terms, (rows or self.shape[0], self.shape[1]))

    def __add__(self, other: ClusterMatrix) -> ClusterMatrix:
        if not isinstance(other, ClusterMatrix):
            return self if np.ndim(other) == 0 and other == 0 else NotImplemented
        terms, eye = dict(self.terms), np.eye(self.shape[0])
        for handle, factor in other.terms.items():
            mine = terms.get(handle, 0.0)
            if np.ndim(mine) != np.ndim(factor):
                mine, factor = (f if np.ndim(f) else f * eye for f in (mine, factor))
            terms[handle] = mine + factor
        return self._with(terms)

    def __sub__(self, other: ClusterMatrix) -> ClusterMatrix:
        return self + -1.0 * other

    def __mul__(self, other: float) -> ClusterMatrix:
        if np.ndim(other) != 0:
            return NotImplemented
        number = float(other)
        return self._with({h: number * f for h, f in self.terms.items()} if number else {})

    def __truediv__(self, other: float) -> ClusterMatrix:
        return self * (1.0 / other)

    __radd__, __rmul__ = __add__, __mul__

    def __matmul__(self, other: ClusterMatrixTransposed) -> np.ndarray:
        if not isinstance(other, ClusterMatrixTransposed):
            return NotImplemented
        out = np.zeros((self.shape[0], other.matrix.shape[0]))
        for mine, left in self.terms.items():
            for theirs, right in other.matrix.terms.items():
                M = self.cluster.product(mine.number, theirs.number)
                M = left * M if np.ndim(left) == 0 else left @ M
                out += M * right if np.ndim(right) == 0 else M @ right.T
        return out

    def __rmatmul__(self, other: np.ndarray) -> ClusterMatrix:
        terms = {h: other * f if np.ndim(f) == 0 else other @ f for h, f in self.terms.items()}
        return self._with(terms, len(other))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("A matrix on a cluster is always copied.")
        parts = self.cluster.shards.run(fetch, self.sent, self.shape[0])
        return np.concatenate(parts, axis=1, dtype=dtype)


class ClusterMatrixTransposed:
    """The transpose (T, k) of a ``ClusterMatrix``, for products; nothing is copied."""

    __array_ufunc__ = None

    def __init__(self, matrix: ClusterMatrix) -> None:
        self.matrix = matrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[::-1]

    @property
    def T(self) -> ClusterMatrix:
        return self.matrix

    def __matmul__(self, other: np.ndarray) -> np.ndarray:
        return np.asarray(self) @ np.asarray(other)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.matrix.__array__(dtype, copy).T
