"""A pair of factors, and what the data says of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from sharedspan.kernels.dense import RANK_TOLERANCE

if TYPE_CHECKING:
    from sharedspan.objective.base import Objective


@dataclass(frozen=True)
class Point:
    """A pair of factors with the loss of V = BW and its gradients, as one pass gives them."""

    B: np.ndarray  # (d, k)
    W: Any  # (k, T), on the host, a device or a cluster
    objective: Objective = field(repr=False)
    loss: float
    grad_B: np.ndarray  # (d, k), R W'
    grad_W: Any  # (k, T), B'R
    WWt: np.ndarray  # (k, k)
    profiled: bool = False  # whether W has the least loss for B, so that B'R is zero

    @cached_property
    def R(self) -> np.ndarray:
        """Residual matrix at V = BW, (d, T): a pass of its own, for solvers that step in V."""
        return self.objective.residuals((self.W.T @ self.B.T).T)[0]

    @property
    def imbalance(self) -> np.ndarray:
        """B'B - WW', (k, k)."""
        return self.B.T @ self.B - self.WWt

    def value(self, balance: float) -> float:
        """Loss + balance |B'B - WW'|_F^2."""
        if balance == 0.0:
            return self.loss
        return self.loss + balance * float(np.sum(self.imbalance**2))

    def norm(self) -> float:
        """|BW|_F without forming BW."""
        return float(np.sqrt(max(np.sum((self.B.T @ self.B) * self.WWt), 0.0)))

    def tangent_gradient(self) -> float:
        """|P_T(R)|_F, the part of R that a rank-k change of V can follow.

        |Q_B'R|^2 + |R Q_W|^2 - |Q_B'R Q_W|^2 with Q_B = B M and Q_W = W'N bases of the columns of
        B and of W', so that sums of size d x k and k x k are all it takes.
        """
        M, N = inverse_root(self.B.T @ self.B), inverse_root(self.WWt)
        left = np.trace(M.T @ (self.grad_W @ self.grad_W.T) @ M)
        right = np.sum((self.grad_B @ N) ** 2)
        both = np.sum((M.T @ (self.B.T @ self.grad_B) @ N) ** 2)
        return float(np.sqrt(max(left + right - both, 0.0)))


class UnevaluatedPoint:
    """A point of a random solver, which needs no pass over all data unless one is asked for."""

    def __init__(self, B: np.ndarray, W: np.ndarray, objective: Objective) -> None:
        self.B, self.W, self.objective = B, W, objective
        self.profiled = False

    @cached_property
    def WWt(self) -> np.ndarray:
        """WW', (k, k)."""
        return self.W @ self.W.T

    @property
    def imbalance(self) -> np.ndarray:
        """B'B - WW', (k, k)."""
        return self.B.T @ self.B - self.WWt

    @cached_property
    def evaluated(self) -> Point:
        """The same point after a pass."""
        return self.objective.evaluate(self.B, self.W)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.evaluated, name)


def inverse_root(A: np.ndarray) -> np.ndarray:
    """M (k, r) with M'AM = I for a Gram matrix A (k, k) of rank r; null directions are left out."""
    eigenvalues, U = np.linalg.eigh(A)
    positive = eigenvalues > RANK_TOLERANCE * max(eigenvalues[-1], np.finfo(float).tiny)
    return U[:, positive] / np.sqrt(eigenvalues[positive])
