"""Shared directions: loadings of standardised features with intervals, and places of tasks.

The span is rotated to its principal axes in the metric of predictions (metric.py): the strongest
first, each with one unit of prediction within tasks. A task's place along a direction is the
standard deviation of its predictions that comes from the direction, in units of the response, and a
loading is the coefficient, per standard deviation of the feature, of a task at place one:

    coefficient * deviation = sum_j place_j * loading_j,

except for collinear features, whose combined effect is shared evenly between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sharedspan.diagnosis.metric import Metric
from sharedspan.diagnosis.model_view import ModelView
from sharedspan.inference.span_errors import LARGEST_EXACT, SpanUncertainty
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.subspace import ordered_factors

LEVEL = 0.95
UNDETERMINED = 1.0  # half width of an interval from which a loading is not determined


@dataclass(frozen=True)
class SharedDirections:
    """The span in standardised features, and the places of the tasks in it."""

    metric: Metric  # deviations and correlations of the features, as far as they are known
    loadings: np.ndarray  # (d, k)
    places: np.ndarray  # (T, k)
    strength: np.ndarray  # (k,) norms of the places of the tasks that fit
    n_fit: int  # number of the tasks that fit
    reach: np.ndarray | None  # (d, k) half the width of the 95 % intervals of the loadings
    no_intervals: str  # the reason if there is no reach
    # (k,) of the variance within tasks predicted by all slopes, or by their deviations from the
    # mean if the model has one.
    share: np.ndarray
    spectrum: np.ndarray  # (min(d, T),) singular values of these predictions over sqrt(T)
    about_mean: bool  # whether these are deviations from the mean_coef of the model

    @property
    def rank(self) -> int:
        """Number of directions."""
        return self.loadings.shape[1]

    @property
    def determined(self) -> np.ndarray:
        """Mask (d, k) of the loadings with informative intervals; all if there are no intervals."""
        if self.reach is None:
            return np.ones(self.loadings.shape, dtype=bool)
        return self.reach <= np.maximum(UNDETERMINED, np.abs(self.loadings))

    def leading(self, j: int, names: Sequence[str], most: int = 3) -> tuple[list[str], list[str]]:
        """Names of the largest positive and negative loadings that differ from zero."""
        values = self.loadings[:, j]
        reach = np.zeros(len(values)) if self.reach is None else self.reach[:, j]
        size = np.where(self.determined[:, j], np.abs(values), 0.0)
        order = np.argsort(-size, kind="stable")[: most if self.places[:, j].any() else 0]
        more, less = values > reach, values < -reach
        return [names[f] for f in order[more[order]]], [names[f] for f in order[less[order]]]

    def about_equally_strong(self) -> list[tuple[int, int]]:
        """Runs of neighbouring directions, first and last, that are about equally strong.

        These have variances closer than their sampling error over tasks (North et al. 1982).
        """
        size = self.strength**2
        close = size[:-1] - size[1:] < size[:-1] * np.sqrt(2 / self.n_fit)
        ends = np.flatnonzero(np.diff(close.astype(int), prepend=0, append=0)).tolist()
        return list(zip(ends[::2], ends[1::2], strict=True))


def shared_directions(
    view: ModelView, odd: Sequence[int] = (), *, all_alike: bool = False
) -> SharedDirections:
    """The directions of a fitted model; none if it has no span or if ``all_alike`` is true.

    Principal axes and shares are computed without the tasks ``odd``, which do not fit.
    """
    metric, about_mean = view.metric, view.span.mean_coef is not None
    S = view.shift if about_mean else view.coef  # (T, d)
    d, k = view.basis.shape
    fits = np.delete(S, list(odd), axis=0)
    fits = S if len(fits) < k or not fits.any() else fits
    axes = loadings = np.zeros((d, 0))
    if view.representation is not None and 0 < k <= len(S) and not all_alike:
        span = view.representation * metric.deviation[:, None]
        axes, _ = ordered_factors(view.basis, view.basis.T @ fits.T)
        loadings = span @ np.linalg.lstsq(metric.predictions(span.T).T, axes, rcond=None)[0]
        sign = _signs(fits @ axes, metric.shared_evenly(loadings.T).T)
        axes, loadings = axes * sign, loadings * sign
    places, total = S @ axes, float(np.sum(fits**2))
    strength = np.linalg.norm(fits @ axes, axis=0)
    share = strength**2 / total if total > 0 else np.zeros(len(strength))
    reach, why = _reach(view, loadings, axes, places) if loadings.shape[1] else (None, "")
    spectrum = np.linalg.svd(fits, compute_uv=False) / np.sqrt(len(fits))
    return SharedDirections(
        metric, metric.shared_evenly(loadings.T).T, places, strength, len(fits), reach, why, share,
        spectrum, about_mean,
    )  # fmt: skip


def _signs(places: np.ndarray, loadings: np.ndarray) -> np.ndarray:
    """Signs (k,) of the directions, such that the places of tasks are mostly positive.

    If tasks are on both sides of zero, the largest loading is positive.
    """
    mean, spread = places.mean(axis=0), places.std(axis=0)
    largest = np.abs(loadings).argmax(axis=0)
    leading = loadings[largest, np.arange(loadings.shape[1])]
    return np.where(np.where(np.abs(mean) > spread, mean, leading) < 0, -1.0, 1.0)


def _reach(
    view: ModelView, loadings: np.ndarray, axes: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray | None, str]:
    """Half the widths of the intervals of the loadings (d, k), or the reason for their absence.

    Errors of a direction are outside the span, or rotations within it.
    """
    from scipy.stats import t

    uncertainty, metric, rows = view.span.uncertainty, view.metric, view.rows
    if not view.is_normal:
        return None, "Loadings have intervals only for normal responses."
    if isinstance(uncertainty, SpanUncertainty):
        # Errors outside the span are A D change, where the covariance of the error D is known.
        to_user, deviation = uncertainty.canonical.to_user, metric.deviation[:, None]
        B, A = to_user(uncertainty.B) * deviation, to_user(uncertainty.Q) * deviation
        change = np.linalg.lstsq(B, loadings, rcond=None)[0]
        outside = uncertainty.span_covariance.diagonal(change.T, metric.shared_evenly(A.T).T).T
        J = axes.T @ metric.predictions(B.T).T
        error = J @ (uncertainty.noise[:, None, None] * uncertainty.inverse) @ J.T
    elif view.is_population and uncertainty is not None:
        if rows is None:
            return None, "Give the rows (--data) to see intervals."
        if loadings.size > LARGEST_EXACT:
            return None, f"Intervals are left out for more than {LARGEST_EXACT:,} loadings."
        ids, counts = rows.sizes
        k = loadings.shape[1]
        error = np.zeros((len(places), k, k))
        variance = np.asarray(view.span.noise_variance)
        error[ids] = (variance[ids] / counts)[:, None, None] * np.eye(k)
        outside = _population_variances(view, loadings, axes, places)
    elif "representation" in view.params:
        return None, "The span was given to this model, not estimated: it has no intervals."
    else:
        return None, (
            f"This {view.kind} has no intervals for its directions: SharedSpanRegressor and "
            "AdaptiveSpanRegressor have them once they are fitted."
        )
    variance = outside + _turned(error, loadings, places, metric)
    degrees = min(float(np.median(uncertainty.degrees)), 1e6)
    return float(t.ppf(0.5 + LEVEL / 2, degrees)) * np.sqrt(np.maximum(variance, 0.0)), ""


def _turned(
    error: np.ndarray, loadings: np.ndarray, places: np.ndarray, metric: Metric
) -> np.ndarray:
    """Variances (d, k) of rotations within the span, from covariances (T, k, k) of the places.

    Principal axes i and j rotate towards each other by sum_t (z_i e_j + z_j e_i) / (l_i - l_j),
    with places z, their errors e and the sums of squares l of z.
    """
    size, own = np.sum(places**2, axis=0), np.einsum("tii->ti", error)
    moved = places.T**2 @ own
    crossed = np.einsum("ti,tj,tij->ij", places, places, error)
    gap = (size[:, None] - size) ** 2
    np.fill_diagonal(gap, np.inf)
    # The squared cosine of a random rotation in a plane has mean one half.
    angle = np.minimum((moved + moved.T + 2 * crossed) / np.maximum(gap, 1e-300), 0.5)
    return metric.shared_evenly(loadings.T).T ** 2 @ angle


def _population_variances(
    view: ModelView, loadings: np.ndarray, axes: np.ndarray, places: np.ndarray
) -> np.ndarray:
    """Variances (d, k) by the mixed model's information on the directions, places profiled out.

    A task's own least squares has covariance D + noise G_t^-1 around b + Q z_t, so

        H = sum_t z_t z_t' (x) S_t,   S_t = P_t - P_t Q (Q'P_t Q)^-1 Q'P_t,
        P_t = (D + noise G_t^-1)^-1 = G_t (D G_t + noise I)^-1.
    """
    assert view.rows is not None
    Q, metric, extra = loadings, view.metric, view.span.extra
    d, k = Q.shape
    if k == d:  # nothing is outside a span of all features
        return np.zeros((d, k))
    # Errors of an axis whose predictions are outside the span, in standardised features.
    A = np.linalg.pinv(metric.root, rcond=1e-5) @ np.linalg.qr(axes, mode="complete")[0][:, k:]
    deviation = metric.deviation
    D = (extra["slope_std"] * deviation) ** 2
    noise = float(np.asarray(view.span.noise_variance)[0])
    safe = np.where(deviation > 0, deviation, 1.0)
    H = np.zeros((k, d - k, k, d - k))
    with one_blas_thread():
        for t, X, _ in view.rows.tasks(view.centred):
            G = (X / safe).T @ (X / safe)
            P = np.linalg.solve((D[:, None] * G + noise * np.eye(d)).T, G.T).T if noise else G
            PQ = P @ Q
            S = P - PQ @ np.linalg.pinv(Q.T @ PQ, rcond=1e-10) @ PQ.T
            weight = 1 - extra["outlier_probability"][t]
            H += weight * np.einsum("a,b,ij->aibj", places[t], places[t], A.T @ S @ A)
    H = H.reshape(k * (d - k), -1)
    covariance = np.linalg.pinv((H + H.T) / 2, rcond=1e-10, hermitian=True)
    blocks = covariance.reshape(k, d - k, k, d - k)
    A = metric.shared_evenly(A.T).T
    return np.stack([np.einsum("fi,ij,fj->f", A, blocks[j, :, j], A) for j in range(k)], axis=1)
