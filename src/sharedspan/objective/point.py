"""A pair of factors, and what the data says of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sharedspan.kernels.dense import RANK_TOLERANCE

if TYPE_CHECKING:
    from sharedspan.objective.base import Objective


@dataclass(frozen=True)
class Point:
    """A pair of factors with what the data says of it, asked for when first needed."""

    B: np.ndarray  # (d, k)
    W: np.ndarray  # (k, T)
    objective: Objective

    @cached_property
    def _gradients(self) -> tuple[float, np.ndarray, np.ndarray]:
        return self.objective.gradients(self.B, self.W)

    @property
    def loss(self) -> float:
        """loss(BW)."""
        return self._gradients[0]

    @property
    def grad_B(self) -> np.ndarray:
        """R W', (d, k)."""
        return self._gradients[1]

    @property
    def grad_W(self) -> np.ndarray:
        """B'R, (k, T)."""
        return self._gradients[2]

    @cached_property
    def R(self) -> np.ndarray:
        """Residual matrix at V = BW, (d, T): a pass of its own, for solvers that step in V."""
        return self.objective.residuals((self.W.T @ self.B.T).T)[0]

    @cached_property
    def WWt(self) -> np.ndarray:
        """WW', (k, k)."""
        return self.W @ self.W.T

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


def inverse_root(A: np.ndarray) -> np.ndarray:
    """M (k, r) with M'AM = I for a Gram matrix A (k, k) of rank r; null directions are left out."""
    eigenvalues, U = np.linalg.eigh(A)
    positive = eigenvalues > RANK_TOLERANCE * max(eigenvalues[-1], np.finfo(float).tiny)
    return U[:, positive] / np.sqrt(eigenvalues[positive])
