"""The canonical problem: isotropic features, equal sizes, one noise level.

Two changes of variable bring any table there without touching the rank:

    left    V' = P^+ V     pooled within-task whitening, P = S^(-1/2) on the span of the features
    right   v'_t = r_t v_t  with r_t = sqrt(n_t / (nbar sigma_t^2))

Solvers see only (V', R'); this module maps there and back.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.threads import tall_product
from sharedspan.statistics.folds import N_FOLDS, Folds, RowFolds, hash_key
from sharedspan.statistics.grams import GramStatistics
from sharedspan.statistics.task_statistics import TaskStatistics, Units

# A direction of the standardised features with less than this share of the largest variance
# counts as absent: its coefficient would be rounding noise, so it is zero (a pseudo-inverse).
COLLINEAR = 1e-10
SLOW = 1e-7  # without whitening, gradients along it are too small for a solver's tolerance
SUMS_ROUNDING = 1e-14  # a share of the largest variance that sums of squares tell from zero
ROUNDINGS = 64.0  # units of rounding that a sum over features may be off
ROWS_TO_JUDGE = 5000  # rows that show whether features vary in a direction

LARGEST_COVARIANCE = 500  # features whose covariance matrix is stored


def whitening(statistics: Any) -> np.ndarray:
    """P (d, d') with P'SP = I, S the pooled within-task covariance.

    Features are standardised first, so the threshold ``COLLINEAR`` does not depend on units.
    """
    return _whitening(*statistics.principal_axes())


def _whitening(scale: np.ndarray, variance: np.ndarray, axes: np.ndarray) -> np.ndarray:
    """The map of ``whitening`` from the principal axes (d, r) of the standardised features."""
    independent = _is_independent(variance)
    # An empty span has one null direction: its coefficients stay zero.
    if not independent.any():
        return np.zeros((len(scale), 1))
    return scale[:, None] * (axes[:, independent] / np.sqrt(variance[independent]))


def _is_independent(variance: np.ndarray, share: float = COLLINEAR) -> np.ndarray:
    return variance > share * variance.max(initial=0.0)


def warn_of_small_directions(
    statistics: TaskStatistics,
    scale: np.ndarray,
    variance: np.ndarray,
    axes: np.ndarray,
    *,
    share: float = COLLINEAR,
    outcome: str = "are set to zero, so effects of such small differences are lost",
) -> None:
    """Warn if features vary, beyond rounding, along directions that a fit cannot find.

    Exactly collinear features have directions without variance, whose loss changes no prediction.
    Sums of squares cannot distinguish these from small ones, so some of the rows are read, if they
    are at hand.
    """
    left_out = ~_is_independent(variance, share)
    if not left_out.any() or left_out.all():
        return
    if isinstance(statistics.rows, TaskRows):
        varied = _varied(statistics, scale[:, None] * axes[:, left_out], axes.shape[0])
    else:
        varied = variance[left_out] > SUMS_ROUNDING * variance.max()
    if not varied.any():
        return
    loadings = np.abs(axes[:, left_out][:, varied]).max(axis=1)
    names = [repr(statistics.names[j]) for j in np.argsort(-loadings, kind="stable")[:3]]
    warnings.warn(
        f"Features such as {', '.join(names)} are nearly linear combinations of others: in "
        f"{varied.sum()} direction(s) they vary, but by less than {share**0.5:.0e} of the largest "
        f"direction. Coefficients along these {outcome}: give the differences between such "
        "features as features of their own.",
        UserWarning,
        stacklevel=6,
    )


def _varied(statistics: TaskStatistics, directions: np.ndarray, d: int) -> np.ndarray:
    """Whether standardised features vary along directions (d, r) beyond rounding, (r,)."""
    rows, units = statistics.rows, statistics.units
    kind = rows.X.dtype if isinstance(rows.X, np.ndarray) else np.dtype(float)
    eps = max(np.finfo(kind).eps if kind.kind == "f" else 0.0, np.finfo(float).eps)
    seen, (squares, rounding) = 0, np.zeros((2, directions.shape[1]))
    for block in rows.blocks():
        level = np.abs(block.X) * units.scale
        X = units.rows(block, None)[0]
        owner = np.repeat(np.arange(len(block.ids)), np.diff(block.starts))
        for t in np.unique(owner) if statistics.statistics.centred else ():
            X[owner == t] -= X[owner == t].mean(axis=0)
        squares += np.sum((X @ directions) ** 2, axis=0)
        rounding += np.sum((level @ np.abs(directions)) ** 2, axis=0)
        seen += len(X)
        if seen >= ROWS_TO_JUDGE:
            break
    # The directions themselves are known to rounding, relative to the largest, which is near d.
    allowed = (ROUNDINGS * eps) ** 2 * rounding + d * (ROUNDINGS * np.finfo(float).eps) ** 2 * seen
    return squares > allowed


def common_scaling(statistics: Any) -> np.ndarray | None:
    """The power of two, times the identity, that brings the features' deviation near one.

    None if that is one already, as in the paper's problems: these stay exactly as they are.
    """
    if not statistics.n_features:
        return None
    deviation = np.sqrt(statistics.variances().mean())
    factor = 2.0 ** -np.round(np.log2(deviation)) if deviation > 0 else 1.0
    return None if factor == 1.0 else factor * np.eye(statistics.n_features)


def feature_covariance(statistics: TaskStatistics) -> np.ndarray | None:
    """Pooled covariance of the features within tasks (d, d), for reports; None if too large."""
    sums, scale = statistics.statistics, statistics.units.scale
    if len(scale) > LARGEST_COVARIANCE:
        return None
    covariance = sums.pooled_gram() / sums.n.sum()
    constant = sums.inverse_deviations(np.diag(covariance)) == 0  # up to rounding
    covariance[constant] = covariance[:, constant] = 0.0
    with np.errstate(over="ignore"):
        covariance = covariance / scale / scale[:, None]
    # Squares of very large features cannot be represented.
    return covariance if np.isfinite(covariance).all() else None


@dataclass(frozen=True)
class Canonical:
    """The map from canonical factors back to the user's units."""

    units: Units
    P: np.ndarray | None  # (d, d')
    stored_axes = "P:dp"

    def widen(self, B: np.ndarray) -> np.ndarray:
        """Canonical rows (d', .) to rows in the units of the statistics, (d, .)."""
        return B if self.P is None else self.P @ B

    def zero(self) -> np.ndarray:
        """The canonical features of a row of zeros in the user's units, (d',)."""
        row = -self.units.origin * self.units.scale
        return row if self.P is None else row @ self.P

    def to_user(self, B: np.ndarray) -> np.ndarray:
        """Canonical rows (d', .) to rows in the user's units, (d, .)."""
        return self.units.scale[:, None] * self.widen(B) / self.units.y_scale

    def intercept_to_user(
        self, intercept: np.ndarray, V: np.ndarray, W: np.ndarray | None = None
    ) -> np.ndarray:
        """Intercepts (T,) in the units of the statistics to the user's.

        The coefficients, in the user's units, are V (d, T), or VW of factors (d, k) and (k, T).
        """
        origin = self.units.origin
        level = tall_product(V, origin[None])[:, 0] if W is None else (origin @ V) @ W
        return intercept / self.units.y_scale - level


@dataclass(frozen=True)
class Problem:
    """A canonical problem: the input of an estimator, once the rows have been read."""

    statistics: Any  # Statistics of the canonical features, in this process or on a cluster
    canonical: Any  # Canonical; None, and no statistics, for an estimator that reads bare rows
    labels: Sequence[Hashable]  # (T,)
    rng: np.random.Generator
    rows: Any = None  # TaskRows, or the rows of a cluster, if they can be read again
    moments: Any = None  # further moments, collected in the pass over the rows
    previous: PreviousFit | None = None  # result of the last fit, for a warm start
    checkpoints: Any = None  # Checkpoints of the run, if it can be resumed
    retained: bool = False  # whether the model will retain statistics for later passes over them

    @property
    def largest_rank(self) -> int:
        """The largest rank that the data can identify."""
        return min(self.statistics.n_features, self.statistics.n_tasks)

    def take(self, ids: np.ndarray) -> Problem:
        """The problem of some tasks, whose rows are in this process."""
        labels = tuple(self.labels[t] for t in ids)
        return replace(
            self, statistics=self.statistics.take(ids), labels=labels, rows=self.rows.take(ids)
        )

    def make_folds(self, rng: np.random.Generator) -> Folds:
        """The rows in ``N_FOLDS`` folds."""
        key = hash_key(len(self.canonical.units.scale), rng)
        if isinstance(self.rows, TaskRows):
            return RowFolds(self.rows, key, N_FOLDS)
        return self.rows.make_folds(key, N_FOLDS)


@dataclass(frozen=True)
class PreviousFit:
    """Result of the last fit in the user's units, from which a refit may start."""

    labels: tuple[Any, ...]
    representation: np.ndarray  # (d, k)
    task_weights: np.ndarray  # (k, T)
    rows: float  # sum of weights in the last fit from scratch


def canonical(
    statistics: TaskStatistics,
    features: str,
    rng: np.random.Generator,
    P: np.ndarray | None = None,
    retained: bool = False,
    **context: Any,
) -> Problem:
    """Build the canonical problem; the statistics are transformed in place unless retained.

    Parameters
    ----------
    statistics : TaskStatistics
    features : {"whitened", "scaled", "plain"}
        How the features are transformed: by ``whitening``, by ``common_scaling``, or not at all.
    rng : numpy.random.Generator
    P : ndarray of shape (d, d'), optional
        A map of the features to use instead of computing one, for a resumed fit.
    retained : bool
        Whether the given statistics must not change, because the model retains them.
    **context
        Further fields of the Problem.
    """
    sums = statistics.statistics
    if P is None and features == "whitened":
        axes = sums.principal_axes()
        warn_of_small_directions(statistics, *axes)
        P = _whitening(*axes)
    elif P is None and features == "scaled":
        P = common_scaling(sums)
    if P is not None:
        if retained and isinstance(sums, GramStatistics):
            sums = sums.transformed(P)
        else:
            sums.transform(P)
    return Problem(
        sums, Canonical(statistics.units, P), statistics.labels, rng,
        statistics.rows, statistics.moments, retained=retained, **context,
    )  # fmt: skip
