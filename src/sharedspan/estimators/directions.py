"""Shared directions: loadings of standardised features with intervals, and places of tasks.

The span is rotated to its principal axes in the metric of predictions (metric.py): the strongest
first, each with one unit of prediction within tasks. A task's place along a direction is the
standard deviation of its predictions that comes from the direction, in units of the response, and a
loading is the coefficient, per standard deviation of the feature, of a task at place one:

    coefficient * deviation = sum_j place_j * loading_j,

except for collinear features, whose combined effect is shared evenly between them.

A summary, a diagnosis and a report say the same of a direction, whether they have rows or not: the
intervals follow from the model alone, which retains its statistics, or, in a file, their widths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from sharedspan.estimators.base import TaskEstimator, fitted_span_of
from sharedspan.estimators.metric import Metric, feature_metric
from sharedspan.families import Gaussian
from sharedspan.inference.span_errors import LARGEST_EXACT, SpanUncertainty
from sharedspan.inference.summary_names import shorten_middle, visible
from sharedspan.kernels.threads import one_blas_thread
from sharedspan.mixed_model.posterior import Posterior
from sharedspan.statistics.grams import GramStatistics
from sharedspan.statistics.task_statistics import TaskStatistics
from sharedspan.subspace import ordered_factors, orthonormal_basis

LEVEL = 0.95
UNDETERMINED = 1.0  # half width of an interval from which a loading is not determined
OUTLIER = 0.5  # probability from which a task is called an outlier
FAR = 5.0  # robust standard deviations from which the size of a task's coefficients is unusual
MOST_UNUSUAL = 0.25  # share of tasks up to which they are unusual, and not another kind of task
NAMED, LEAST = (
    3,
    0.1,
)  # features that name a direction, and their least share of the largest loading
LONGEST = 44  # characters of a name
ROUNDING = 1e-5  # of the largest eigenvalue of the root of the correlations
MOST_WORK = 3e8  # operations of the information on the directions; more tasks are sampled
NO_REACH = 1e-9  # of the largest loading, up to which half the width of an interval is rounding
TOLD = 3  # directions that have a sentence


class CoefficientView:
    """The coefficients of a fitted model, compared by their predictions.

    Attributes
    ----------
    model, span, params : estimator, its FittedSpan and its parameters
    names : list
        Names of the features.
    representation : ndarray of shape (d, k) or None
        None if tasks share no span; a prior on all slopes is not a span.
    metric : Metric
    coef, shift : ndarray of shape (T, d)
        R^(1/2) times standardised coefficients, and their deviations from the mean: the population
        mean if the model has one, otherwise the mean over tasks.
    basis : ndarray of shape (d, k)
        Orthonormal basis of the span in the same coordinates.
    """

    def __init__(
        self, model: Any, X: np.ndarray | None = None, codes: np.ndarray | None = None
    ) -> None:
        self.span = span = fitted_span_of(model)
        self.model: TaskEstimator = model
        self.params = model.get_params(deep=False)
        self.kind = type(model).__name__
        self.centred = bool(model.fit_intercept)
        self.family = model.response_family()
        self.is_normal = isinstance(self.family, Gaussian)
        self.is_population = model.shares == "population"
        self.names = [str(name) for name in model.coef_names_]
        self.representation = None if model.shares == "prior" else span.representation
        self.rank = None if self.representation is None else span.rank
        self.rows_of_tasks = None if X is None or codes is None else (X, codes)
        counts = None if codes is None else np.unique(codes, return_counts=True)[1]
        self.metric = metric = feature_metric(span, self.centred, X, counts)
        self.coef = metric.predictions(span.coef * metric.deviation)
        if span.mean_coef is None:
            self.shift = self.coef - self.coef.mean(axis=0)
        else:
            self.shift = metric.predictions((span.coef - span.mean_coef) * metric.deviation)
        self.basis = np.zeros((self.coef.shape[1], 0))
        if self.rank and self.representation is not None:
            directions = metric.predictions(self.representation.T * metric.deviation)
            self.basis = orthonormal_basis(directions.T)

    @cached_property
    def directions(self) -> SharedDirections:
        """The directions of the span."""
        return shared_directions(self)

    @cached_property
    def designs(self) -> Designs | None:
        """The designs of the tasks, from statistics that the model retains or else from rows."""
        held = vars(self.model).get("_statistics_")
        if held is not None and isinstance(held.statistics, GramStatistics):
            return Designs(held.statistics.n, partial(_retained_gram, held))
        if self.rows_of_tasks is None:
            return None
        X, codes = self.rows_of_tasks
        n = np.bincount(codes, minlength=len(self.coef)).astype(float)
        return Designs(n, partial(_gram_of_rows, X, np.append(0, np.cumsum(n)), self.centred))


@dataclass(frozen=True)
class Designs:
    """Numbers of rows of the tasks, and their Grams."""

    n: np.ndarray  # (T,) zero if a task has no rows
    gram: Callable[[int, np.ndarray], np.ndarray]  # of a task, for features in given units (d,)


def _retained_gram(held: TaskStatistics, t: int, unit: np.ndarray) -> np.ndarray:
    size = held.units.scale * unit
    return np.asarray(held.statistics.gram(t) / np.outer(size, size))


def _gram_of_rows(
    X: np.ndarray, starts: np.ndarray, centred: bool, t: int, unit: np.ndarray
) -> np.ndarray:
    Z = X[int(starts[t]) : int(starts[t + 1])] / unit
    Z = Z - Z.mean(axis=0) if centred else Z
    return np.asarray(Z.T @ Z)


@dataclass(frozen=True)
class SharedDirections:
    """The span in standardised features, and the places of the tasks in it."""

    metric: Metric  # deviations and correlations of the features, as far as they are known
    loadings: np.ndarray  # (d, k)
    places: np.ndarray  # (T, k)
    strength: np.ndarray  # (k,) norms of the places of the usual tasks
    usual: np.ndarray  # (T,) tasks that are not far from all others, which decide the axes
    reach: np.ndarray | None  # (d, k) half the width of the 95 % intervals of the loadings
    no_intervals: str  # the reason if there is no reach
    # (k,) of the variance within tasks predicted by all slopes, or by their deviations from the
    # mean if the model has one.
    share: np.ndarray
    coefficients: np.ndarray  # (T, d) those slopes or deviations
    about_mean: bool  # whether these are deviations from the mean_coef of the model

    @property
    def rank(self) -> int:
        """Number of directions."""
        return self.loadings.shape[1]

    @property
    def n_fit(self) -> int:
        """Number of the usual tasks."""
        return int(self.usual.sum())

    @cached_property
    def spectrum(self) -> np.ndarray:
        """Singular values of the coefficients of the usual tasks over the root of their number."""
        values = np.linalg.svd(self.coefficients[self.usual], compute_uv=False)
        return np.asarray(values / np.sqrt(self.n_fit))

    @property
    def determined(self) -> np.ndarray:
        """Mask (d, k) of the loadings with informative intervals; all if there are no intervals."""
        if self.reach is None:
            return np.ones(self.loadings.shape, dtype=bool)
        return self.reach <= np.maximum(UNDETERMINED, np.abs(self.loadings))

    def reach_of(self, f: int, j: int) -> float | None:
        """Half the width of the interval of a loading; None if it is not known, or zero."""
        if self.reach is None or self.reach[f, j] <= NO_REACH * np.abs(self.loadings).max():
            return None
        return float(self.reach[f, j])

    def leading(self, j: int) -> np.ndarray:
        """Numbers of the features that name a direction, the largest loading first.

        Their loadings are determined and differ from zero, and none is far below the largest.
        """
        size = np.where(self.determined[:, j], np.abs(self.loadings[:, j]), 0.0)
        reach = 0.0 if self.reach is None else self.reach[:, j]
        order = np.argsort(-size, kind="stable")[: NAMED if self.places[:, j].any() else 0]
        return order[(size > reach)[order] & (size[order] >= LEAST * size.max(initial=0.0))]

    def sentence(self, j: int, names: list[str]) -> str:
        """How the tasks along a direction differ, with loadings in brackets."""
        if not self.places[:, j].any():
            return "the coefficients along it are zero."
        leading = self.leading(j)
        if not len(leading):
            return "none of its largest loadings can be told from zero."
        parts = []
        for word, sign in (("more", 1), ("less", -1)):
            told = [
                f"{shorten_middle(visible(names[f]), LONGEST)} ({self.loadings[f, j]:+.3g})"
                for f in leading
                if np.sign(self.loadings[f, j]) == sign
            ]
            if told:
                listed = " and ".join([*([", ".join(told[:-1])] if told[1:] else []), told[-1]])
                parts.append(f"{word} to {listed}")
        return f"tasks further along it respond {' and '.join(parts)}."

    @property
    def whole(self) -> str:
        """What the shares are shares of."""
        if self.about_mean:
            return "how slopes differ between tasks"
        return "what the model's slopes predict"

    def sentences(self, names: list[str]) -> list[str]:
        """A sentence for each of the first directions, and one about the numbers in brackets."""
        if len(names) == 1:
            return []
        told = [
            f"Direction {j + 1}, {100 * self.share[j]:.0f} % of {self.whole}: "
            + self.sentence(j, names)
            for j in range(min(self.rank, TOLD))
        ]
        if self.metric.known and any("(" in sentence for sentence in told):
            told.append("Numbers are coefficients per standard deviation of the feature.")
        return told

    def about_equally_strong(self) -> list[tuple[int, int]]:
        """Runs of neighbouring directions, first and last, that are about equally strong.

        These have variances closer than their sampling error over tasks (North et al. 1982).
        """
        size = self.strength**2
        close = size[:-1] - size[1:] < size[:-1] * np.sqrt(2 / self.n_fit)
        ends = np.flatnonzero(np.diff(close.astype(int), prepend=0, append=0)).tolist()
        return list(zip(ends[::2], ends[1::2], strict=True))


def shared_directions(view: CoefficientView, *, all_alike: bool = False) -> SharedDirections:
    """The directions of a fitted model; none if it has no span or if ``all_alike`` is true.

    Principal axes and shares are computed without tasks that are far from all others.
    """
    metric, about_mean = view.metric, view.span.mean_coef is not None
    S = view.shift if about_mean else view.coef  # (T, d)
    d, k = view.basis.shape
    usual = _usual_tasks(view, S)
    fits = S[usual]
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
    return SharedDirections(
        metric, metric.shared_evenly(loadings.T).T, places, strength, usual, reach, why, share, S,
        about_mean,
    )  # fmt: skip


def _usual_tasks(view: CoefficientView, S: np.ndarray) -> np.ndarray:
    """Tasks (T,) that are no outliers of the model, with coefficients (T, d) of a usual size."""
    size = np.linalg.norm(S, axis=1)
    middle = np.median(size)
    usual = size <= middle + FAR * 1.4826 * np.median(np.abs(size - middle))
    usual &= view.span.extra.get("outlier_probability", np.zeros(len(S))) <= OUTLIER
    few = usual.sum() < max(view.basis.shape[1], (1 - MOST_UNUSUAL) * len(S))
    return np.ones(len(S), dtype=bool) if few or not S[usual].any() else usual


def _signs(places: np.ndarray, loadings: np.ndarray) -> np.ndarray:
    """Signs (k,) of the directions, such that the places of tasks are mostly positive.

    If tasks are on both sides of zero, the largest loading is positive.
    """
    mean, spread = places.mean(axis=0), places.std(axis=0)
    largest = np.abs(loadings).argmax(axis=0)
    leading = loadings[largest, np.arange(loadings.shape[1])]
    return np.where(np.where(np.abs(mean) > spread, mean, leading) < 0, -1.0, 1.0)


def _reach(
    view: CoefficientView, loadings: np.ndarray, axes: np.ndarray, places: np.ndarray
) -> tuple[np.ndarray | None, str]:
    """Half the widths of the intervals of the loadings (d, k), or the reason for their absence.

    Errors of a direction are outside the span, or rotations within it.
    """
    from scipy.stats import t

    uncertainty, metric = view.span.uncertainty, view.metric
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
    elif view.is_population and isinstance(uncertainty, Posterior):
        saved = view.span.extra.get("_loading_reach", np.empty(0))
        if "_statistics_" not in vars(view.model) and saved.shape == loadings.shape:
            return saved, ""
        if view.designs is None or not metric.known:
            return None, "Give the rows (--data) to see intervals."
        if loadings.size > LARGEST_EXACT:
            return None, f"Intervals are left out for more than {LARGEST_EXACT:,} loadings."
        n = np.where(view.designs.n > 0, view.designs.n, np.inf)
        error = (view.span.noise_variance / n)[:, None, None] * np.eye(loadings.shape[1])
        outside = _population_variances(view, view.designs, loadings, axes, places)
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


def covariances_of(posterior: Posterior, tasks: slice) -> np.ndarray:
    """Covariances of the coefficients of some tasks, in standard units, (m, p, p)."""
    p = len(posterior.b)
    upper, packed = np.triu_indices(p), posterior.packed[tasks].astype(float)
    covariance = np.zeros((len(packed), p, p))
    covariance[:, upper[0], upper[1]] = covariance[:, upper[1], upper[0]] = packed
    return covariance


def _population_variances(
    view: CoefficientView, designs: Designs, loadings: np.ndarray, axes: np.ndarray,
    places: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Variances (d, k) by the mixed model's information on the directions, places profiled out.

    A task's own least squares has covariance D + noise G_t^-1 around b + Q z_t, so

        H = sum_t z_t z_t' (x) S_t,   S_t = P_t - P_t Q (Q'P_t Q)^-1 Q'P_t,
        P_t = (D + noise G_t^-1)^-1 = G_t (D G_t + noise I)^-1.

    Of many tasks a part is added up.
    """
    Q, metric, extra = loadings, view.metric, view.span.extra
    (d, k), deviation = Q.shape, metric.deviation
    # Errors of an axis whose predictions are outside the span, in standardised features that vary.
    values, vectors = np.linalg.eigh(metric.root)
    inside = values > ROUNDING * values[-1]
    values, vectors = values[inside], vectors[:, inside]
    A = vectors / values @ np.linalg.qr(vectors.T @ axes, mode="complete")[0][:, k:]
    if not A.shape[1]:
        return np.zeros((d, k))
    D, unit = (
        ((extra["slope_std"] * deviation) ** 2)[:, None],
        np.where(deviation > 0, deviation, 1.0),
    )
    weight, noise = 1 - extra["outlier_probability"], np.asarray(view.span.noise_variance)
    some = np.flatnonzero(designs.n > 0)
    some = some[:: max(int(len(some) * d**3 / MOST_WORK), 1)]
    H = np.zeros((k, A.shape[1], k, A.shape[1]))
    with one_blas_thread():
        for t in some:
            G = designs.gram(int(t), unit)
            P = np.linalg.solve((D * G + noise[t] * np.eye(d)).T, G.T).T if noise[t] else G
            PQ = P @ Q
            S = P - PQ @ np.linalg.pinv(Q.T @ PQ, rcond=1e-10) @ PQ.T
            H += weight[t] * np.einsum("a,b,ij->aibj", places[t], places[t], A.T @ S @ A)
    H = H.reshape(k * A.shape[1], -1) * (np.sum(designs.n > 0) / max(len(some), 1))
    covariance = np.linalg.pinv((H + H.T) / 2, rcond=1e-10, hermitian=True)
    blocks = covariance.reshape(k, A.shape[1], k, -1)
    A = metric.shared_evenly(A.T).T
    return np.stack([np.einsum("fi,ij,fj->f", A, blocks[j, :, j], A) for j in range(k)], axis=1)


def loading_reach(model: TaskEstimator) -> np.ndarray | None:
    """Half the widths of the intervals of the loadings, (d, k), which need more than a file has."""
    if model.shares != "population" or not model.coef_.any() or not vars(model).get("rank_"):
        return None
    return CoefficientView(model).directions.reach
