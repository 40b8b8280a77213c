"""Simulated tasks with known coefficients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Truth:
    """The truth behind simulated tasks."""

    coef: np.ndarray  # (T, d)
    representation: np.ndarray  # (d, k), orthonormal columns
    task_weights: np.ndarray  # (k, T)
    intercept: np.ndarray  # (T,)
    noise: np.ndarray  # (T,) standard deviations
    n_samples: np.ndarray  # (T,)
    singular_values: np.ndarray  # (k,) of representation @ task_weights
    mean_slope: np.ndarray  # (d,) shared by all tasks, zero by default
    is_outlier: np.ndarray  # (T,) tasks outside the span


@dataclass(frozen=True)
class Simulation(Truth):
    """Rows of simulated tasks and the truth behind them; see ``simulate``."""

    X: np.ndarray  # (rows, d)
    y: np.ndarray  # (rows,)
    task: np.ndarray  # (rows,) labels 0..T-1, task by task
    covariance: np.ndarray  # (d, d) of the features


def simulate(
    *,
    n_tasks: int = 100,
    n_features: int = 50,
    rank: int = 3,
    n_samples: Any = 100,
    noise: Any = 0.5,
    condition_number: float | None = 1.0,
    signal: float = 1.0,
    feature_condition: float = 1.0,
    degrees_of_freedom: float | None = None,
    intercept: float = 0.0,
    mean_slope: float = 0.0,
    outliers: float = 0.0,
    outlier_norm: float = 3.0,
    random_state: Any = None,
) -> Simulation:
    """Draw tasks whose coefficients share a span: y = intercept_t + x'v_t + noise, v_t = B w_t.

    Parameters
    ----------
    n_tasks, n_features, rank : int
        T, d and k.
    n_samples : int or array-like of shape (T,)
        Rows per task.
    noise : float or array-like of shape (T,)
        Standard deviation of the noise.
    condition_number : float or None
        s_1 / s_k of V = BW; singular values fall geometrically. None draws them: they are those of
        a product of Gaussian matrices of shapes (d, k) and (k, T).
    signal : float
        Root mean square of |v_t|.
    feature_condition : float
        Condition number of the feature covariance, whose eigenvalues fall geometrically around a
        mean of 1 in a random basis.
    degrees_of_freedom : float, optional
        Rows follow a multivariate t with these degrees of freedom (above 2), scaled to the same
        covariance, with heavy tails. None means Gaussian rows.
    intercept : float
        Standard deviation of the task intercepts.
    mean_slope : float
        Norm of a random slope vector that is added to every task and need not lie in the span.
    outliers : float
        Proportion of tasks whose coefficients are replaced by a random vector orthogonal to the
        span.
    outlier_norm : float
        Norm of these random vectors.
    random_state : int, numpy.random.Generator or None

    Returns
    -------
    Simulation
        Contains X, y, task and the truth: coef, representation, task_weights and more.
    """
    d = n_features
    if not feature_condition >= 1:
        raise ValueError(f"feature_condition={feature_condition} must be at least 1.")
    if degrees_of_freedom is not None and degrees_of_freedom <= 2:
        raise ValueError(
            f"degrees_of_freedom={degrees_of_freedom} must be above 2 for a finite covariance."
        )
    rng = np.random.default_rng(random_state)
    truth = draw_truth(
        rng, n_tasks=n_tasks, n_features=d, rank=rank, n_samples=n_samples, noise=noise,
        condition_number=condition_number, signal=signal, intercept=intercept,
        mean_slope=mean_slope, outliers=outliers, outlier_norm=outlier_norm,
    )  # fmt: skip

    task = np.repeat(np.arange(n_tasks), truth.n_samples)
    X = rng.standard_normal((len(task), d))
    covariance = np.eye(d)
    if feature_condition > 1:
        basis = _orthonormal(d, d, rng)
        spectrum = np.geomspace(1.0, 1.0 / feature_condition, d)
        spectrum *= d / spectrum.sum()
        covariance = basis * spectrum @ basis.T
        X = X @ (basis * np.sqrt(spectrum) @ basis.T)
    if degrees_of_freedom is not None:
        shrink = (degrees_of_freedom - 2) / rng.chisquare(degrees_of_freedom, len(task))
        X *= np.sqrt(shrink)[:, None]
    error = rng.standard_normal(len(task))
    y = truth.intercept[task] + truth.noise[task] * error
    ends = np.cumsum(truth.n_samples)
    for v, rows in zip(truth.coef, map(slice, ends - truth.n_samples, ends), strict=True):
        y[rows] += np.einsum("ij,j->i", X[rows], v)
    return Simulation(X=X, y=y, task=task, covariance=covariance, **vars(truth))


def draw_truth(
    rng: np.random.Generator,
    *,
    n_tasks: int,
    n_features: int,
    rank: int,
    n_samples: Any,
    noise: Any,
    condition_number: float | None = 1.0,
    signal: float = 1.0,
    intercept: float = 0.0,
    mean_slope: float = 0.0,
    outliers: float = 0.0,
    outlier_norm: float = 3.0,
) -> Truth:
    """Draw the coefficients of all tasks; see ``simulate`` for the parameters."""
    T, d, k = n_tasks, n_features, rank
    if not 1 <= k <= min(d, T):
        raise ValueError(f"rank={k} must be between 1 and min(n_features={d}, n_tasks={T}).")
    if condition_number is not None and not condition_number >= 1:
        raise ValueError(f"condition_number={condition_number} must be at least 1.")
    if not 0 <= outliers <= 1:
        raise ValueError(f"outliers={outliers} must be a proportion of the tasks, from 0 to 1.")
    sizes = _per_task(n_samples, T, "n_samples").astype(int)
    deviations = _per_task(noise, T, "noise").astype(float)
    if (sizes < 1).any():
        raise ValueError(f"n_samples must be at least 1 for every task, not {sizes.min()}.")
    wrong = deviations[~((deviations >= 0) & (deviations < np.inf))]
    if len(wrong):
        raise ValueError(f"noise must be finite and zero or more for every task, not {wrong[0]}.")

    B = _orthonormal(d, k, rng)
    if condition_number is None:
        factors = rng.standard_normal((d, k)) @ rng.standard_normal((k, T))
        s = np.linalg.svd(factors, compute_uv=False)[:k]
    else:
        s = np.geomspace(1.0, 1.0 / condition_number, k)
    s *= signal * np.sqrt(T / np.sum(s**2))
    W = s[:, None] * _orthonormal(T, k, rng).T
    slope = mean_slope * _unit(rng.standard_normal(d))
    coef = (B @ W).T + slope
    is_outlier = np.zeros(T, dtype=bool)
    is_outlier[rng.permutation(T)[: round(outliers * T)]] = True
    for t in np.flatnonzero(is_outlier):
        direction = rng.standard_normal(d)
        coef[t] = outlier_norm * _unit(direction - B @ (B.T @ direction))
    level = intercept * rng.standard_normal(T)
    return Truth(coef, B, W, level, deviations, sizes, s, slope, is_outlier)


def _per_task(value: Any, T: int, name: str) -> np.ndarray:
    values = np.asarray(value)
    if values.shape not in ((), (T,)):
        raise ValueError(
            f"{name} has shape {values.shape}, but must be one number or {T}, one per task."
        )
    return np.broadcast_to(values, (T,)).copy()


def _orthonormal(rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    Q, _ = np.linalg.qr(rng.standard_normal((rows, columns)))
    return Q


def _unit(vector: np.ndarray) -> np.ndarray:
    norm = np.linalg.norm(vector)
    return vector / norm if norm > 0 else vector
