"""A known span and a prior on the weights of new tasks: ridge and least squares in the span."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

RANK_TOL = 1e-11  # singular values below this share of the largest one count as zero
ROUNDING = 1e-13  # and below this one they are rounding


@dataclass(frozen=True)
class SpanPrior:
    """A known span with a prior on the weights of new tasks, and their estimator."""

    method: str
    intercept: bool
    B: np.ndarray  # (d, k)
    unit: np.ndarray  # (k, r): B @ unit is an orthonormal basis of the span, so that |v| = |u|
    mean: np.ndarray  # (k,) of the prior
    root: np.ndarray | None  # (k, k) root of the prior's covariance; None for a flat prior
    noise: float | None
    stored_axes = "B:dk unit:kr mean:k root:kk"

    @classmethod
    def of(cls, parameters: dict[str, Any], d: int) -> SpanPrior:
        """The parameters of a NewTaskRegressor as arrays, their shapes checked for d features."""
        B = np.eye(d)
        if parameters["representation"] is not None:
            B = given_representation(parameters["representation"])
        k, mean, root = B.shape[1], parameters["prior_mean"], parameters["prior_covariance"]
        noise = parameters["noise_variance"]
        return cls(
            parameters["method"], bool(parameters["fit_intercept"]), B, orthonormal_coordinates(B),
            np.zeros(k) if mean is None else as_array("prior_mean", mean, (k,)),
            None if root is None else covariance_root(as_array("prior_covariance", root, (k, k))),
            None if noise is None else float(noise),
        )  # fmt: skip

    def solve(self, R: np.ndarray, n: np.ndarray) -> tuple[np.ndarray, float]:
        """Weights (T, k) and the noise variance, from centred factors R (T, k + 1, k + 1).

        With Sigma = LL' and w = m + Lu, the prior's u minimises |b - Au|^2 + sigma^2 |u|^2 with
        A = F L and b = y - F m; no inverse of Sigma is needed.
        """
        F, y = R[:, :, :-1], R[:, :, -1]
        u, ranks = least_squares(F @ self.unit, y)
        weights = u @ self.unit.T
        free = np.maximum(n - self.intercept, 0.0)
        noise = self.noise
        if noise is None:
            degrees = float(np.maximum(free - ranks, 0.0).sum())
            if degrees > 0:
                noise = mean_square(y - np.einsum("tij,tj->ti", F, weights), degrees)
            else:
                noise = self._noise_without_spare_rows(F, y, free.sum())
        if self.method == "prior" and self.root is not None:
            u = ridge(F @ self.root, y - F @ self.mean, 0.0 if math.isnan(noise) else noise)
            weights = self.mean + u @ self.root.T
        return weights, float(noise)

    def _noise_without_spare_rows(self, F: np.ndarray, y: np.ndarray, free: float) -> float:
        """The variance of the responses beyond the prior: E |y - Fm|^2 = |FL|^2 + free sigma^2.

        For a flat prior the whole variance, an upper bound. NaN if no task has enough rows.
        """
        if free == 0:
            return math.nan
        if self.root is None:
            return mean_square(y, free)
        varied, explained = mean_square(y - F @ self.mean, free), mean_square(F @ self.root, free)
        return max(varied - explained, 0.0) if explained < math.inf else 0.0


def mean_square(values: np.ndarray, count: float) -> float:
    """Sum of squares over a count, infinite only if the result itself is too large."""
    largest = float(np.abs(values).max(initial=0.0))
    if largest == 0:
        return 0.0
    root = largest * math.sqrt(float(np.sum((values / largest) ** 2)) / count)
    return root * root


def column_scale(A: np.ndarray) -> np.ndarray:
    """Largest magnitude in each column, one for a column of zeros."""
    scale = np.abs(A).max(axis=-2)
    return np.where(scale > 0, scale, 1.0)


def orthonormal_coordinates(B: np.ndarray) -> np.ndarray:
    """U (k, r) such that BU is an orthonormal basis of the span of B."""
    scale = column_scale(B)
    _, s, Vt = np.linalg.svd(B / scale, full_matrices=False)
    positive = s > RANK_TOL * s[0]
    return Vt[positive].T / s[positive] / scale[:, None]


def ridge(A: np.ndarray, b: np.ndarray, penalty: float) -> np.ndarray:
    """Minimisers u (T, k) of |b - Au|^2 + penalty |u|^2, of minimum norm if not unique.

    Parameters
    ----------
    A : ndarray of shape (T, p, k)
    b : ndarray of shape (T, p)
    penalty : float
    """
    U, s, Vt = np.linalg.svd(A, full_matrices=False)
    positive = (s > RANK_TOL * s[:, :1]) & (s > 0)
    s = np.where(positive, s, 1.0)
    z = np.where(positive, np.einsum("tpr,tp->tr", U, b) / (s + penalty / s), 0.0)
    return np.einsum("trk,tr->tk", Vt, z)


def least_squares(A: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least squares u (T, k), of minimum norm if not unique, and the ranks of A (T,)."""
    scale = column_scale(A)[:, None, :]
    s = np.linalg.svd(A / scale, compute_uv=False)
    ranks = np.sum((s > RANK_TOL * s[:, :1]) & (s > 0), axis=1)
    small = (s > ROUNDING * s[:, :1]) & (s <= RANK_TOL * s[:, :1])
    if small.any():
        warnings.warn(
            f"In {np.count_nonzero(small.any(axis=1))} task(s) the features vary along some "
            f"directions by only {RANK_TOL:.0e} of the largest one or less, which counts as not at "
            "all, so effects of such small differences are lost: give the differences as features "
            "of their own.",
            UserWarning,
            stacklevel=8,
        )
    # A unique solution does not depend on the scale of the columns, its digits do.
    unique = (ranks == A.shape[2])[:, None, None]
    scale = np.where(unique, scale, 1.0)
    return ridge(A / scale, b, 0.0) / scale[:, 0, :], ranks


def given_representation(value: Any) -> np.ndarray:
    """The parameter ``representation`` as a matrix (d, k)."""
    B = as_array("representation", value, None)
    if B.ndim != 2 or B.size == 0:
        raise ValueError(
            f"representation has shape {B.shape}: expected (d, k), one row per feature and at "
            "least one column."
        )
    return B


def given_covariance(value: Any, size: int) -> np.ndarray:
    """The parameter ``representation_covariance`` as a matrix (size, size)."""
    name = "representation_covariance"
    C = as_array(name, value, (size, size))
    largest = np.abs(C).max()
    if np.abs(C - C.T).max() > 1e-8 * largest or np.diag(C).min() < -1e-8 * largest:
        raise ValueError(
            f"{name} is not a covariance: it must be symmetric without negative variances. Give "
            "such a matrix, or None to take the representation as exact."
        )
    return C


def as_array(name: str, value: Any, shape: tuple[int, ...] | None) -> np.ndarray:
    """A copy of an array parameter in double precision, finite and of the given shape, if any."""
    if hasattr(value, "get_params"):
        kind = value.__name__ if isinstance(value, type) else type(value).__name__
        raise TypeError(
            f"{name} is an estimator, a {kind}: give an array of numbers, such as the "
            "representation_ of the fitted model, or use NewTaskRegressor.from_model(model), which "
            "also takes the prior."
        )
    try:
        array = np.array(value, dtype=float)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name} is not an array of numbers: {error}") from error
    if shape is not None and array.shape != shape:
        raise ValueError(
            f"{name} has shape {array.shape}: expected {shape}, to match the representation."
        )
    if not np.isfinite(array).all():
        raise ValueError(f"{name} contains NaN or infinity: give finite numbers.")
    return array


def covariance_root(covariance: np.ndarray) -> np.ndarray:
    """L with LL' equal to the covariance, which may be singular."""
    deviation = np.sqrt(np.maximum(np.diag(covariance), 0.0))
    deviation[deviation == 0] = 1.0
    correlation = covariance / deviation / deviation[:, None]
    eigenvalues, Q = np.linalg.eigh((correlation + correlation.T) / 2)
    if np.abs(correlation - correlation.T).max() > 1e-8 or eigenvalues[0] < -1e-8:
        raise ValueError(
            "prior_covariance is not a covariance: it must be symmetric without negative "
            f"eigenvalues, but the smallest one of its correlations is {eigenvalues[0]:.3g}. Give "
            "such a matrix, or None for a flat prior."
        )
    return deviation[:, None] * Q * np.sqrt(np.maximum(eigenvalues, 0.0))
