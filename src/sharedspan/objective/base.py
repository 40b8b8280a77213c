"""The objective interface between data and solvers: loss, residual matrix, least squares in a span.

    loss(V)  =  sum_t  weight_t / 2 |r_t y_t - X_t v_t|^2,     V = BW,  v_t = B w_t
    R(V)     =  [weight_t X_t'(X_t v_t - r_t y_t)]_t           (d x T)
    grad_B   =  R W',     grad_W = B'R

with weight_t = 1 / n_t and r_t the task scale of the canonical form, so that every task's
curvature is near the identity. These are all the quantities that a solver uses; whether they are
computed from Grams, from rows, on a GPU or on a cluster makes no difference to it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.statistics.grams import Arrays


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

    def relative_gradient(self) -> float:
        """|P_T(R)|_F / |BW|_F, and zero at BW = 0."""
        norm = self.norm()
        return self.tangent_gradient() / norm if norm > 0 else 0.0


# Attributes of a point that need a pass over the data.
EVALUATED = (
    "loss", "grad_B", "grad_W", "R", "value", "norm", "tangent_gradient", "relative_gradient",
)  # fmt: skip


class UnevaluatedPoint:
    """A point of a random solver; a pass over all data is made only if its loss is used."""

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
        if name not in EVALUATED:
            raise AttributeError(name)
        return getattr(self.evaluated, name)


def inverse_root(A: np.ndarray) -> np.ndarray:
    """M (k, r) with M'AM = I for a Gram matrix A (k, k) of rank r; null directions are left out."""
    eigenvalues, U = np.linalg.eigh(A)
    positive = eigenvalues > RANK_TOLERANCE * max(eigenvalues[-1], np.finfo(float).tiny)
    return U[:, positive] / np.sqrt(eigenvalues[positive])


class Objective(ABC):
    """The interface of solvers to the data.

    Attributes
    ----------
    n : ndarray of shape (T,)
        Sizes (sums of weights).
    response : ndarray of shape (T,)
        r_t, by which the responses of each task are multiplied.
    weights : ndarray of shape (T,)
        weight_t = 1 / n_t; zero for a task without rows.
    """

    def __init__(self, statistics: Any, noise: np.ndarray | None) -> None:
        self.statistics = statistics
        self.n: np.ndarray = statistics.n
        self.n_tasks, self.n_features = len(statistics.n), int(statistics.n_features)
        self.response = task_scale(statistics.n, noise)
        self.weights = np.divide(1.0, self.n, out=np.zeros(self.n_tasks), where=self.n > 0)

    @abstractmethod
    def residuals(
        self, V: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """R(V) (d, T) and each task's loss (T,); R' is written to ``out`` (T, d), if given."""

    @abstractmethod
    def gradients(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        """loss(BW), R W' (d, k) and B'R (k, T)."""

    @abstractmethod
    def profile(self, B: np.ndarray, W: Any) -> tuple[float, np.ndarray, Any]:
        """The minimum of loss(BW) over W for this B, its gradient R W' (d, k), and that W (k, T).

        W is the start, as in ``solve_W``.
        """

    def moments(self) -> np.ndarray:
        """CC' (d, d), C = [weight_t r_t X_t'y_t]: in a canonical problem C is V* plus noise."""
        C, _ = self.residuals(np.zeros((self.n_features, self.n_tasks)))
        return C @ C.T

    @abstractmethod
    def normal_matrices(self, B: np.ndarray) -> np.ndarray:
        """weight_t B'X_t'X_t B for each task, (T, k, k)."""

    @abstractmethod
    def curvature(self, t: int) -> np.ndarray:
        """weight_t X_t'X_t, the Hessian of one task's loss, (d, d)."""

    def evaluate(self, B: np.ndarray, W: Any) -> Point:
        """The point V = BW, with its loss and gradients."""
        loss, grad_B, grad_W = self.gradients(B, W)
        return Point(B, W, self, loss, grad_B, grad_W, W @ W.T)

    def evaluate_profile(self, B: np.ndarray, W: Any) -> Point:
        """The point of this B and of the W of minimum loss, found by one pass from the given W."""
        loss, grad_B, W = self.profile(B, W)
        return Point(B, W, self, loss, grad_B, 0.0 * W, W @ W.T, profiled=True)

    def map_shards(
        self, function: Callable[..., tuple[Arrays, Arrays]], *arrays: np.ndarray
    ) -> tuple[Arrays, Arrays]:
        """``function(objective, *arrays)``, part by part; see ``TaskMeans.map_shards``."""
        return function(self, *arrays)

    def zero_weights(self, k: int) -> Any:
        """W = 0 (k, T), on the device or cluster that holds W."""
        return self.to_device(np.zeros((k, self.n_tasks)))

    def to_device(self, W: Any) -> Any:
        """Copy a matrix (k, T) from the host to the device or cluster that holds W."""
        return W

    def squares(self, B: np.ndarray, W: np.ndarray) -> np.ndarray:
        """Residual sum of squares of each task, of the responses as given, (T,)."""
        _, losses = self.residuals((W.T @ B.T).T)
        return np.maximum(2 * losses * self.n / self.response**2, 0.0)

    def solve_W(self, B: np.ndarray, W: np.ndarray | None = None) -> np.ndarray:
        """Argmin over W of loss(BW), (k, T), nearest to the given W if it is not unique.

        One Newton step on a quadratic is exact, and taken from a good W it keeps the digits that
        the normal equations from zero would lose.
        """
        if W is None:
            W = np.zeros((B.shape[1], self.n_tasks))
        gradient = self.gradients(B, W)[2]
        eigenvalues, U = np.linalg.eigh(self.normal_matrices(B))
        positive = eigenvalues > RANK_TOLERANCE * eigenvalues[:, -1:].clip(min=0.0)
        inverse = np.divide(1.0, eigenvalues, out=np.zeros_like(eigenvalues), where=positive)
        return W - np.einsum("tij,tj,tlj,lt->it", U, inverse, U, gradient, optimize=True)


def task_scale(n: np.ndarray, noise: np.ndarray | None) -> np.ndarray:
    """r_t = sqrt(n_t / (nbar sigma_t^2)), (T,); ``noise`` holds the variances, up to a factor."""
    filled = n > 0
    level = n.mean() if filled.all() else n[filled].mean()
    scale = np.where(filled, n, 1.0)
    scale /= level if noise is None else level * (noise / np.exp(np.log(noise).mean()))
    return np.sqrt(scale, out=scale)
