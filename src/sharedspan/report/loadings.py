"""What each shared direction means: loadings of standardised features, with intervals.

Coefficients in units of standardised features are s_t = v_t * deviation, and the span is turned to
its principal axes there: orthonormal, the strongest first, the largest loading positive. So a
feature in grams loads as much as the same one in tons, and a task's place along a direction is in
units of the response per standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sharedspan.engine.local import one_blas_thread
from sharedspan.report.rows import TaskRows, feature_deviations
from sharedspan.subspace import ordered_factors, orthonormal_basis
from sharedspan.uncertainty import LARGEST_EXACT, SpanUncertainty

LEVEL = 0.95


@dataclass(frozen=True)
class Directions:
    """The span in standardised features, and where the tasks lie in it.

    Attributes
    ----------
    deviation : ndarray of shape (d,)
        Standard deviations of the features; all one where they are not known.
    standardised : bool
        Whether they are known: from the fit where the model kept them, or from rows.
    loadings : ndarray of shape (d, k)
        Orthonormal.
    places : ndarray of shape (T, k)
    strength : ndarray of shape (k,)
        Norms of the places of the ``n_fit`` tasks that fit.
    n_fit : int
    reach : ndarray of shape (d, k) or None
        Half the width of the 95 % intervals of the loadings.
    no_intervals : str
        Why there is no reach.
    share : ndarray of shape (k,)
        Of the squares of all coefficients, less their mean where the model has one.
    spectrum : ndarray of shape (min(d, T),)
        Singular values of these coefficients over sqrt(T).
    about_mean : bool
        Whether they are deviations from a mean that the model has.
    """

    deviation: np.ndarray
    standardised: bool
    loadings: np.ndarray
    places: np.ndarray
    strength: np.ndarray
    n_fit: int
    reach: np.ndarray | None
    no_intervals: str
    share: np.ndarray
    spectrum: np.ndarray
    about_mean: bool

    @property
    def rank(self) -> int:
        """Number of directions."""
        return self.loadings.shape[1]

    def hard_to_tell_apart(self) -> list[tuple[int, int]]:
        """Runs of neighbouring directions, first and last, that are about equally strong.

        By the rule of North et al. (1982): variances closer than their sampling error over tasks.
        """
        size = self.strength**2
        close = size[:-1] - size[1:] < size[:-1] * np.sqrt(2 / self.n_fit)
        runs: list[tuple[int, int]] = []
        for j in np.flatnonzero(close).tolist():
            if runs and runs[-1][1] == j:
                runs[-1] = (runs[-1][0], j + 1)
            else:
                runs.append((j, j + 1))
        return runs


def find_directions(model: Any, rows: TaskRows | None, odd: Sequence[int] = ()) -> Directions:
    """The directions of a fitted model; those of no span are none.

    Tasks ``odd`` do not fit and have no say in which axes are principal, nor in shares.
    """
    deviation = feature_deviations(model, rows)
    centre = getattr(model, "mean_coef_", None)
    S = (model.coef_ if centre is None else model.coef_ - centre) * deviation  # (T, d)
    span = getattr(model, "representation_", np.zeros((len(deviation), 0)))
    loadings = np.zeros((len(deviation), 0))
    fits = np.delete(S, list(odd), axis=0)
    fits = S if len(fits) < span.shape[1] or not fits.any() else fits
    if span.size and 0 < span.shape[1] <= len(S):
        basis = orthonormal_basis(span * deviation[:, None])
        loadings, _ = ordered_factors(basis, basis.T @ fits.T)
    places, total = S @ loadings, float(np.sum(fits**2))
    strength = np.linalg.norm(fits @ loadings, axis=0)
    share = strength**2 / total if total > 0 else np.zeros(len(strength))
    reach, why = None, ""
    if loadings.shape[1]:
        errors, why = _standard_errors(model, rows, deviation, loadings, places)
        reach = None if errors is None else _quantile(model) * errors
    spectrum = np.linalg.svd(fits, compute_uv=False) / np.sqrt(len(fits))
    return Directions(
        deviation, rows is not None or bool(np.any(deviation != 1)), loadings, places, strength,
        len(fits), reach, why, share, spectrum, centre is not None,
    )  # fmt: skip


def _quantile(model: Any) -> float:
    from scipy.stats import t

    kept = getattr(model, "_uncertainty_", None) or getattr(model, "_posterior_", None)
    degrees = 1e6 if kept is None else float(np.median(kept.degrees))
    return float(t.ppf(0.5 + LEVEL / 2, min(degrees, 1e6)))


def _standard_errors(
    model: Any, rows: TaskRows | None, deviation: np.ndarray, Q: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray | None, str]:
    """Standard errors of the loadings (d, k), or why there are none."""
    kept = getattr(model, "_uncertainty_", None)
    if isinstance(kept, SpanUncertainty):
        return _of_span(kept, deviation, Q), ""
    if hasattr(model, "slope_std_"):
        if rows is None:
            return None, "Give the rows (--data) to see intervals."
        if Q.size > LARGEST_EXACT:
            return None, f"Intervals are left out for more than {LARGEST_EXACT:,} loadings."
        return _of_mixed(model, rows, deviation, Q, places), ""
    if type(model).__name__ == "NewTaskRegressor":
        return None, "The span was given to this model, not estimated: it has no intervals."
    name = type(model).__name__
    if name == "SharedSpanRegressor":
        return None, "This model came without what intervals are made of: fit it again for them."
    return None, (
        f"{name} gives no intervals for its directions; SharedSpanRegressor and "
        "AdaptiveSpanRegressor do."
    )


def _of_span(kept: SpanUncertainty, deviation: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """From what the fit kept: the error of the basis is A D change, D the error that is known."""
    B, A = kept.canonical.to_user(kept.B), kept.canonical.to_user(kept.Q)
    B, A = B * deviation[:, None], A * deviation[:, None]
    change = np.linalg.lstsq(B, Q, rcond=None)[0]
    return np.sqrt(np.maximum(kept.span_covariance.diagonal(change.T, A), 0.0)).T


def _of_mixed(
    model: Any, rows: TaskRows, deviation: np.ndarray, Q: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """From the information of the mixed model on the directions, places profiled out.

    A task's own least squares has covariance D + noise G_t^-1 around b + Q z_t, so

        H = sum_t z_t z_t' (x) S_t,   S_t = P_t - P_t Q (Q'P_t Q)^-1 Q'P_t,
        P_t = (D + noise G_t^-1)^-1 = G_t (D G_t + noise I)^-1.
    """
    d, k = Q.shape
    A = np.linalg.qr(Q, mode="complete")[0][:, k:]
    D, noise = (model.slope_std_ * deviation) ** 2, float(model.noise_variance_[0])
    safe = np.where(deviation > 0, deviation, 1.0)
    H = np.zeros((k, d - k, k, d - k))
    with one_blas_thread():
        for t, X, _ in rows.tasks(bool(model.fit_intercept)):
            G = (X / safe).T @ (X / safe)
            P = np.linalg.solve((D[:, None] * G + noise * np.eye(d)).T, G.T).T if noise else G
            PQ = P @ Q
            S = P - PQ @ np.linalg.pinv(Q.T @ PQ, rcond=1e-10) @ PQ.T
            weight = 1 - model.outlier_probability_[t]
            H += weight * np.einsum("a,b,ij->aibj", places[t], places[t], A.T @ S @ A)
    H = H.reshape(k * (d - k), -1)
    covariance = np.linalg.pinv((H + H.T) / 2, rcond=1e-10, hermitian=True)
    blocks = covariance.reshape(k, d - k, k, d - k)
    own = np.stack([np.einsum("fi,ij,fj->f", A, blocks[j, :, j], A) for j in range(k)], axis=1)
    return np.sqrt(np.maximum(own, 0.0))
