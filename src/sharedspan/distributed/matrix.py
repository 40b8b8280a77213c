"""Matrices with a column per task, stored on the shards of a cluster.

On the driver such a matrix is a sum of small factors times numbered matrices on the shards. The
shards form the sum when the next pass needs it, so that an iteration is one message.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from sharedspan.distributed.actors import Shards
from sharedspan.distributed.shard import Shard, Terms, apply_factor
from sharedspan.kernels.remote_matrix import RemoteMatrix
from sharedspan.statistics.grams import Arrays


def sum_over_shards(parts: Iterable[Sequence[Any]]) -> Arrays:
    """Sum each entry of the shards' results, in the order of the shards."""
    return tuple(reduce(np.add, column) for column in zip(*parts, strict=True))


class MatrixNumber:
    """The number of a matrix (k, T) on the shards, which is freed with the last reference to it."""

    def __init__(self, value: int) -> None:
        self.value = value


@dataclass
class Cluster(Shards):
    """The shards of a fit, and the numbers of the objectives and matrices that they store."""

    n_numbers: int = 0  # assigned so far
    freed: list[int] = field(default_factory=list)  # numbers that the shards may free
    unused: set[int] = field(default_factory=set)  # freed since the last checkpoint
    matrices: set[int] = field(default_factory=set)  # numbers in use
    products: dict[tuple[int, int], np.ndarray] = field(default_factory=dict)  # MN', if computed
    n_passes: int = 0
    across_passes: bool = False  # whether the solver uses products across passes

    def split(self, *arrays: np.ndarray, axis: int = 0) -> list[Arrays] | None:
        """Each shard's parts of arrays with an entry per task along ``axis``."""
        parts = [np.split(array, self.source.bounds[1:-1], axis) for array in arrays]
        return list(zip(*parts, strict=True)) or None

    def new_numbers(self, count: int = 1) -> range:
        """Unused numbers."""
        self.n_numbers += count
        return range(self.n_numbers - count, self.n_numbers)

    def free_with(self, owner: Any, number: int) -> None:
        """Free a number when its owner is garbage-collected."""
        # An append is safe if the collector runs in another thread.
        weakref.finalize(owner, self.freed.append, number)

    def matrix(self, number: int, shape: tuple[int, int]) -> ClusterMatrix:
        """The matrix that the shards store under a number."""
        self.matrices.add(number)
        owner = MatrixNumber(number)
        self.free_with(owner, number)
        return ClusterMatrix(self, {owner: 1.0}, shape)

    def take_freed(self) -> tuple[int, ...]:
        """Numbers for the shards to free, returned once."""
        freed = tuple(self.freed)
        del self.freed[: len(freed)]
        gone = set(freed)
        self.matrices -= gone
        self.products = {pair: M for pair, M in self.products.items() if gone.isdisjoint(pair)}
        self.unused |= gone
        return freed

    def count_pass(self) -> None:
        """Count a pass over the data, and regularly copy all matrices to the driver."""
        self.n_passes += 1
        if self.n_passes % self.connection.engine.checkpoint_every == 0:
            parts = self.run(Shard.call, "matrices", "copy")
            self.checkpoint(Shard.call, [("matrices", "update", M) for M in parts], self.unused)
            self.unused = set()

    def product(self, first: int, second: int) -> np.ndarray:
        """MN' of two matrices; missing products of all matrices in use are computed with it."""
        if (first, second) not in self.products:
            self.across_passes, used = True, sorted(self.matrices)
            pairs = [(a, b) for a in used for b in used if a <= b and (a, b) not in self.products]
            values = sum_over_shards(self.run(Shard.products, pairs))
            for (a, b), value in zip(pairs, values, strict=True):
                self.add_products(a, [b], [value])
        return self.products[first, second]

    def add_products(self, first: int, others: Sequence[int], values: Any) -> None:
        """Store the products MN' of one matrix with others."""
        for second, value in zip(others, values, strict=True):
            self.products[first, second], self.products[second, first] = value, value.T


class ClusterMatrix(RemoteMatrix):
    """A (k, T) matrix on the cluster: a sum of factors times matrices that the shards store."""

    def __init__(
        self, cluster: Cluster, factors: dict[MatrixNumber, Any], shape: tuple[int, int]
    ) -> None:
        self.cluster, self.factors, self.shape = cluster, factors, shape

    @property
    def terms(self) -> Terms:
        """Factors and numbers, from which the shards form the sum."""
        return [(factor, number.value) for number, factor in self.factors.items()]

    def _with(self, factors: dict[MatrixNumber, Any], rows: int | None = None) -> ClusterMatrix:
        return ClusterMatrix(self.cluster, factors, (rows or self.shape[0], self.shape[1]))

    def __add__(self, other: ClusterMatrix) -> ClusterMatrix:
        if not isinstance(other, ClusterMatrix):
            return self if np.ndim(other) == 0 and other == 0 else NotImplemented
        factors, eye = dict(self.factors), np.eye(self.shape[0])
        for number, factor in other.factors.items():
            old = factors.get(number, 0.0)
            if np.ndim(old) != np.ndim(factor):
                old, factor = (f if np.ndim(f) else f * eye for f in (old, factor))
            factors[number] = old + factor
        return self._with(factors)

    def __sub__(self, other: ClusterMatrix) -> ClusterMatrix:
        return self + -1.0 * other

    def __mul__(self, other: float) -> ClusterMatrix:
        if np.ndim(other) != 0:
            return NotImplemented
        scale = float(other)
        return self._with({n: scale * f for n, f in self.factors.items()} if scale else {})

    def __truediv__(self, other: float) -> ClusterMatrix:
        return self * (1.0 / other)

    __radd__, __rmul__ = __add__, __mul__

    def __rmatmul__(self, other: np.ndarray) -> ClusterMatrix:
        factors = {n: other * f if np.ndim(f) == 0 else other @ f for n, f in self.factors.items()}
        return self._with(factors, len(other))

    def product(self, other: ClusterMatrix) -> np.ndarray:
        out = np.zeros((self.shape[0], other.shape[0]))
        for left, first in self.terms:
            for right, second in other.terms:
                out += apply_factor(
                    right, apply_factor(left, self.cluster.product(first, second)).T
                ).T
        return out

    def to_host(self) -> np.ndarray:
        parts = self.cluster.run(Shard.combine, self.terms, self.shape[0])
        return np.concatenate(parts, axis=1)
