"""Posterior means and covariances of all tasks, given the covariance of their effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sharedspan.kernels.standard_errors import packed_row_forms, packed_task_forms
from sharedspan.kernels.threads import one_blas_thread, over_tasks
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.optimize import CovarianceFit
from sharedspan.mixed_model.outliers import FittedEffects
from sharedspan.mixed_model.population import (
    Population,
    Posteriors,
    plain_covariance,
    population_of,
    posteriors_at,
)
from sharedspan.mixed_model.structures import n_parameters
from sharedspan.mixed_model.terms import Covariance, Scaling, TaskTerms
from sharedspan.mixed_model.variance_function import VarianceFunction
from sharedspan.statistics.canonical import Canonical

DOUBLE_ENTRIES = 1 << 22  # entries of all covariances; more are stored in single precision
ROWS_AT_ONCE = 1 << 12  # rows whose standard deviations are computed together
NEGLIGIBLE_ERROR = 1e-3  # parameters of the covariance over tasks whose error is left out
EXACT_WORK = 2e8  # operations of the exact error of the covariance's parameters, in all tasks


@dataclass(frozen=True)
class Posterior:
    """Means and covariances of the coefficients of all tasks, in standard units."""

    mean: np.ndarray  # (T, p)
    packed: np.ndarray  # (T, p (p + 1) / 2) upper triangles of the covariances
    b: np.ndarray  # (p,)
    b_covariance: np.ndarray  # (p, p)
    new: np.ndarray  # (p, p), covariance of a task that was not fitted
    noise: np.ndarray  # (T,) variances, means over rows
    new_noise: float  # s2, the variance of a task that was not fitted
    degrees: np.ndarray  # (T,) degrees of freedom of the variances of the coefficients
    off: np.ndarray  # (T,) probability of an outlier
    degrees_of_freedom: float  # effective parameters
    canonical: Canonical
    scaling: Scaling
    variance_function: VarianceFunction | None  # of single rows, if their noise differs
    skew: np.ndarray | None = None  # (T, p) posterior means less the modes that ``mean`` holds
    between: np.ndarray | None = None  # (p, p), how tasks differ: ``new`` without errors of b, L
    noise_degrees: np.ndarray | None = None  # (T,) of the noise variances, if each task has its own
    # Entries beyond the T tasks are of outer groups.
    stored_axes = (
        "mean:mp packed:mq b:p b_covariance:pp new:pp noise:m degrees:m off:m skew:mp between:pp "
        "noise_degrees:m"
    )

    @staticmethod
    def upgraded(values: dict[str, Any]) -> dict[str, Any]:
        """The attributes, given those of version 0.1: dense covariances, or only variances."""
        values = {"skew": None, "between": None, "noise_degrees": None} | values
        if "covariance" in values:
            covariance, variance = values.pop("covariance"), values.pop("variance")
            if covariance is None:
                covariance = np.full((*variance.shape, variance.shape[1]), np.nan)
                np.einsum("tii->ti", covariance)[:] = variance
            i, j = np.triu_indices(variance.shape[1])
            values["packed"] = covariance[:, i, j]
            rows, n_tasks = values.pop("rows"), len(variance)
            degrees = max(rows - values["degrees_of_freedom"], 1.0)
            values["degrees"] = np.full(n_tasks, degrees)
            values["new_noise"] = values["noise"]
            values["noise"] = np.full(n_tasks, values["noise"])
            values["b_covariance"] = np.full_like(values["new"], np.nan)
            values["variance_function"] = None
        return values

    @property
    def coef_std(self) -> np.ndarray:
        """Standard errors in the user's units, (T, d)."""
        first = self.mean.shape[1] - len(self.scaling.scale)
        J = self.canonical.to_user(np.diag(self.scaling.y_scale / self.scaling.scale))  # (d, d')
        if self.canonical.P is None or not _mixes(self.canonical.P):
            p = len(self.b)
            diagonal = np.cumsum(np.append(0, np.arange(p, 1, -1)))[first:]
            variance = np.maximum(self.packed[:, diagonal].astype(float), 0.0)
            return np.sqrt(variance) * np.diag(J)  # a square might overflow
        std = np.empty((len(self.mean), len(J)))
        J = np.hstack([np.zeros((len(J), first)), J])

        def work(begin: int, end: int) -> None:
            packed_task_forms(J, self.packed, std, begin, end)
            part = std[begin:end]
            np.sqrt(np.maximum(part, 0.0, out=part), out=part)

        over_tasks(work, len(std), float(self.packed.size) * len(J))
        return std

    def representation_covariance(self, representation: np.ndarray) -> None:
        """None: the covariance of the entries of the span is not computed."""

    def response_std(self, X: np.ndarray, codes: np.ndarray) -> np.ndarray:
        """Standard deviations of new responses at rows X (m, d) of tasks ``codes`` (m,), (m,)."""
        variance, noise = np.empty(len(X)), np.append(self.noise, self.new_noise)[codes]
        if self.variance_function is not None:
            noise = np.empty(len(X))
        self._prediction_variances(X, codes, variance, noise)
        unit = self.scaling.y_scale / self.canonical.units.y_scale
        return unit * np.sqrt(np.maximum(variance, 0.0) + noise)

    def response_degrees(self, codes: np.ndarray, std: np.ndarray) -> np.ndarray | None:
        """Satterthwaite's degrees of freedom of standard deviations of responses, (m,).

        They are those of the coefficients and of the task's noise, by their shares of the variance;
        None if the noise is that of all tasks.

        Parameters
        ----------
        codes : ndarray of shape (m,)
        std : ndarray of shape (m,)
            As ``response_std`` gives them for these tasks.
        """
        if self.noise_degrees is None:
            return None
        unit = self.scaling.y_scale / self.canonical.units.y_scale
        share = np.clip(self.noise[codes] * (unit / std) ** 2, 0.0, 1.0)
        return 1 / (share**2 / self.noise_degrees[codes] + (1 - share) ** 2 / self.degrees[codes])

    def linear_predictor(self, X: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What posterior means add to the linear predictor of the modes, and its variance, (m,)."""
        variance, added = np.empty(len(X)), np.zeros(len(X))
        self._prediction_variances(X, codes, variance, np.empty(len(X)))
        if self.skew is not None:
            for begin in range(0, len(X), ROWS_AT_ONCE):
                rows = slice(begin, begin + ROWS_AT_ONCE)
                known = codes[rows] >= 0
                Z = self.standard_rows(X[rows])
                added[rows] = np.einsum("ij,ij->i", Z, self.skew[codes[rows]]) * known
        return added, np.maximum(variance, 0.0)

    def _prediction_variances(
        self, X: np.ndarray, codes: np.ndarray, variance: np.ndarray, noise: np.ndarray
    ) -> None:
        """Write the variances of predictions and, if it differs between rows, of the noise."""

        def work(first: int, last: int) -> None:
            for begin in range(first, last, ROWS_AT_ONCE):
                rows = slice(begin, min(begin + ROWS_AT_ONCE, last))
                Z, ids = np.ascontiguousarray(self.standard_rows(X[rows])), codes[rows]
                packed_row_forms(Z, ids, self.packed, variance[rows])
                new = ids < 0
                if new.any():
                    variance[rows][new] = np.einsum("ij,ij->i", Z[new] @ self.new, Z[new])
                if self.variance_function is not None:
                    means = self.mean[ids]
                    means[new] = self.b
                    noise[rows] = self.variance_function(np.einsum("ij,ij->i", Z, means))

        with one_blas_thread():
            over_tasks(work, len(X), len(X) * float(self.packed.shape[1]))
        if np.isnan(variance).any() and not np.isnan(self.packed).any():
            raise ValueError("The features of some rows are too large to predict from.")
        if np.isnan(variance).any():
            raise ValueError(
                "The model was saved by version 0.1, which did not store the covariances of so "
                "many tasks: fit it again to get standard deviations of predictions."
            )

    def feature_means(self) -> np.ndarray:
        """Means of the features over all rows of the fit, in the user's units, (d,)."""
        units, centre = self.canonical.units, self.scaling.centre
        if self.canonical.P is not None:
            centre = np.linalg.lstsq(self.canonical.P.T, centre, rcond=None)[0]
        return np.asarray(centre / units.scale + units.origin)

    def mean_std(self, X: np.ndarray) -> np.ndarray:
        """Standard errors of the linear predictor of the mean task, in the user's units, (m,)."""
        Z = self.standard_rows(X)
        variance = np.einsum("ij,ij->i", Z @ self.b_covariance, Z)
        return self.user_scale() * np.sqrt(np.maximum(variance, 0.0))

    def user_scale(self) -> float:
        """The unit of the linear predictor here, in the user's units."""
        return self.scaling.y_scale / self.canonical.units.y_scale

    def standard_rows(self, X: np.ndarray) -> np.ndarray:
        """Rows as [1, standardised features], (m, p)."""
        units = self.canonical.units
        features = (X - units.origin) * units.scale
        if self.canonical.P is not None:
            features = features @ self.canonical.P
        return self.scaling.to_standard(features, len(self.b) > len(self.scaling.scale))


def _mixes(P: np.ndarray) -> bool:
    return P.shape[0] != P.shape[1] or bool(np.any(P - np.diag(np.diag(P))))


def posterior_of(
    tasks: MixedTasks,
    canonical: Canonical,
    effects: FittedEffects,
    degrees: np.ndarray | None = None,
    variance_function: VarianceFunction | None = None,
) -> Posterior:
    """The posterior of all tasks, with b and the noise estimated from all of them.

    Parameters
    ----------
    tasks : MixedTasks
        All tasks, possibly more than the effects were fitted to.
    canonical : Canonical
        The way back to the user's units.
    effects : FittedEffects
    degrees : ndarray of shape (T,), optional
        Degrees of freedom of the noise variances; by default all that the model leaves.
    variance_function : VarianceFunction, optional
        Noise variances of single rows, relative to s2.
    """
    fit, T, p = effects.fit, tasks.n_tasks, tasks.p
    e, population_covariance = fit.evidence, fit.covariance
    C = population_covariance.scaled(effects.widening)
    covariances, off, population = population_of(tasks, effects)
    plain = plain_covariance(tasks, covariances)
    fit = replace(fit, covariance=C)
    mean, entries = np.empty((T, p)), p * (p + 1) // 2
    packed = np.empty((T, entries), dtype=float if T * entries <= DOUBLE_ENTRIES else np.float32)
    shrunk, triangle = np.empty(T), np.triu_indices(p)
    skew = np.empty((T, p) if tasks.working is not None else 0)
    error = _parameter_error(fit, population, T)

    def work(*terms: TaskTerms) -> tuple[float, float, float]:
        ids, extra = terms[0].ids, terms[-1] if plain else None
        scores, squares = terms[0].scores_and_squares(population.b)
        posteriors = posteriors_at(C, terms[0], extra, population)
        posteriors[1][:] += error(terms[0].K, scores)
        parameters = float((1 - off[ids]) @ posteriors[2])
        if effects.outliers is not None:
            outlying = posteriors_at(covariances[1], terms[1], extra, population)
            posteriors = _mixture(posteriors, outlying, off[ids], e.noise)
        mean[ids], within, used = posteriors
        if tasks.working is not None:
            skew[ids] = np.einsum("tij,tj->ti", within, tasks.working.linear[ids])
        packed[ids] = within[:, triangle[0], triangle[1]]
        shrunk[ids] = 1 - np.clip(used / p, 0.0, 1.0)
        return float((1 - off[ids]) @ squares), parameters, float(used.sum())

    parts = np.sum(tasks.map_terms(work, *covariances, *plain), axis=0)
    # The numbers of L were fitted, not integrated out, and take degrees of freedom with them: of
    # the rows that are left beside the effects, which the fitted covariance leaves room for.
    # Maximum likelihood, with its infinite tau, has no such correction.
    counted = float((1 - off) @ tasks.n)
    left = max(counted - parts[1], 1.0)
    spent = min(n_parameters(*C.loadings.shape), left / 2) if np.isfinite(fit.tau) else 0.0
    squares = parts[0] + population.prior_squares
    if effects.widening != 1 or tasks.restricted:
        # At the covariance that fits best, and with the degrees of freedom that b leaves.
        squares = e.noise * counted
    noise = squares / counted * left / (left - spent)
    noise = max(noise, float(np.finfo(float).tiny))
    if tasks.working is not None:
        noise, degrees = 1.0, np.full(T, np.inf)
    packed *= noise
    k, used = C.loadings.shape[1], parts[2] + spent
    own = degrees
    if degrees is None:
        degrees = np.full(T, max(float(tasks.n.sum()) - used, 1.0))
    # Satterthwaite's: as far as effects are shrunk, their variance is known from T tasks.
    degrees = 1 / ((1 - shrunk) ** 2 / degrees + shrunk**2 / max(T - 1, 1))
    if variance_function is not None:
        scale = float(variance_function.scale * noise)
        variance_function = replace(variance_function, scale=scale)
    return Posterior(
        mean=mean,
        packed=packed,
        b=population.b,
        b_covariance=population.inverse * noise,
        new=(population_covariance.matrix + population.inverse + k * population.flat) * noise,
        noise=noise * tasks.variances.mean,
        new_noise=noise * float(tasks.n @ tasks.levels / tasks.n.sum()),
        degrees=degrees,
        off=off,
        degrees_of_freedom=used,
        canonical=canonical,
        scaling=tasks.scaling,
        variance_function=variance_function,
        skew=None if tasks.working is None else skew,
        between=population_covariance.matrix * noise,
        noise_degrees=own,
    )


def _mixture(regular: Posteriors, outlying: Posteriors, q: np.ndarray, noise: float) -> Posteriors:
    """Posteriors of tasks that are outliers with probability q (T,)."""
    (mean, covariance, used), (other_mean, other_covariance, other_used) = regular, outlying
    gap, p = other_mean - mean, q[:, None, None]
    # Covariances are relative to the noise, the gap is not.
    between = p * (1 - p) * gap[:, :, None] * gap[:, None, :] / noise
    mixed = (1 - p) * covariance + p * other_covariance + between
    return mean + q[:, None] * gap, mixed, (1 - q) * used + q * other_used


def _parameter_error(
    fit: CovarianceFit, population: Population, n_tasks: int
) -> Callable[[np.ndarray, np.ndarray], np.ndarray | float]:
    """What the error of the fitted C adds to the covariances of the tasks, over the noise.

    A change dC moves u_t = C e_t by (I - C K_t) dC e_t. The changes of C have the covariance that
    is the inverse of the information on its parameters; they add about the number of parameters
    over the number of tasks to the variances, which is nothing if that is very small. If it is
    neither small nor cheap, the information on L, sum_t L'K_t L (x) K_t, is taken as the product of
    its means.

    Returns a function of K (m, p, p) and scores (m, p), whose result has shape (m, p, p).
    """
    varying, noise = fit.varying, fit.evidence.noise
    inside = np.ix_(varying, varying)
    L, D = fit.covariance.loadings[varying], fit.covariance.variances[varying]
    C, flat, (v, k) = fit.covariance.matrix[inside], population.flat[inside], L.shape
    member = fit.member[:, varying]
    m, g = len(fit.information), len(fit.member)
    exact = m == g + v * k and n_tasks * v * float(m) ** 2 <= EXACT_WORK
    if m < NEGLIGIBLE_ERROR * n_tasks:
        return lambda K, scores: 0.0
    between = np.linalg.pinv(population.inner)
    if exact:
        inverse = np.linalg.pinv(fit.information, rcond=1e-10, hermitian=True)

    def exact_error(K: np.ndarray, scores: np.ndarray) -> np.ndarray:
        rest = np.eye(v) - C @ K
        changes = np.empty((len(K), v, m))
        changes[:, :, :g] = (D * scores)[:, :, None] * member.T
        by_loadings = np.einsum("jl,tb->tjlb", np.eye(v), scores @ L)
        by_loadings += np.einsum("jb,tl->tjlb", L, scores)
        changes[:, :, g:] = by_loadings.reshape(len(K), v, v * k)
        moved = rest @ changes
        return (moved @ inverse) @ moved.transpose(0, 2, 1) / noise

    def approximate_error(K: np.ndarray, scores: np.ndarray) -> np.ndarray | float:
        if not k:
            return 0.0
        rest, weights = np.eye(v) - C @ K, scores @ L
        along = np.einsum("ti,ti->t", weights @ between, weights) / noise
        across = np.einsum("ti,ti->t", scores @ flat, scores) / noise
        moved = along[:, None, None] * flat
        moved = moved + across[:, None, None] * (L @ between @ L.T)
        return rest @ moved @ rest.transpose(0, 2, 1)

    error = exact_error if exact else approximate_error

    def embedded(K: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """The error of coefficients that vary; the others have none."""
        out, at = np.zeros_like(K), varying[:, None]
        out[:, at, varying] = error(K[:, at, varying], scores[:, varying])
        return out

    return error if v == len(fit.covariance.variances) else embedded


def map_posteriors(
    function: Callable[..., None], tasks: MixedTasks, effects: FittedEffects
) -> None:
    """Call ``function(ids, means, covariances over the noise, effective parameters)`` by chunks.

    Covariances of a task that may be an outlier are the mean of both, without what their means
    differ by: so they remain what turns responses into fitted values.
    """
    covariances, off, population = population_of(tasks, effects)
    plain = plain_covariance(tasks, covariances)

    def work(*terms: TaskTerms) -> None:
        ids, extra = terms[0].ids, terms[-1] if plain else None
        parts = [
            posteriors_at(C, each, extra, population)
            for C, each in zip(covariances, terms, strict=False)  # without the plain terms
        ]
        if len(parts) > 1:
            parts = [_mixture(parts[0], parts[1], off[ids], np.inf)]
        function(ids, *parts[0])

    tasks.map_terms(work, *covariances, *plain)


def posterior_means(tasks: MixedTasks, effects: FittedEffects) -> tuple[np.ndarray, np.ndarray]:
    """Posterior means (T, p) and effective parameters (T,) of all tasks."""
    means, used = np.empty((tasks.n_tasks, tasks.p)), np.empty(tasks.n_tasks)

    def store(ids: np.ndarray, mean: np.ndarray, _: np.ndarray, parameters: np.ndarray) -> None:
        means[ids], used[ids] = mean, parameters

    map_posteriors(store, tasks, effects)
    return means, used


def residual_squares(tasks: MixedTasks, effects: FittedEffects) -> tuple[np.ndarray, np.ndarray]:
    """Squares of the residuals at the posterior means, and effective parameters, both (T,)."""
    means, used = posterior_means(tasks, effects)
    squares = np.empty(tasks.n_tasks)

    def work(rows: TaskTerms) -> None:
        squares[rows.ids] = rows.scores_and_squares(means[rows.ids])[1]

    # Without effects the terms are those of the rows themselves.
    tasks.map_terms(work, Covariance(np.zeros(tasks.p), np.zeros((tasks.p, 0))))
    return squares * tasks.levels, used
