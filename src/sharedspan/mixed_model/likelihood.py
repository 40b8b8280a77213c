"""The marginal likelihood of a mixed model, from the sufficient statistics of its tasks.

    y_t = Z_t (b + u_t) + noise,     u_t ~ N(0, s2 C),     b ~ N(0, s2 / precision),

Z_t = [1, X_t] with standardised features, s2 the noise variance, which is profiled out, and
C = D + LL'. With S_t = I + Z_t C Z_t' and r_t = y_t - Z_t a_t, the residuals at an anchor a_t,

    K_t = Z_t' S_t^-1 Z_t,     h_t = Z_t' S_t^-1 r_t,
    b = (precision + sum K_t)^-1 sum (K_t a_t + h_t),

and the scores e_t = K_t (a_t - b) + h_t give the posterior means u_t = C e_t. The terms of a task
come from its Gram matrix, or from its rows if it has few; nothing of the size of all K is stored.

Tasks of a family other than the Gaussian have working statistics (``modes.py``): s2 is one, each
task is anchored at its mode, and a linear term a_t'(b + u_t - mode) is added to its value. With
rho_t = (I - K_t C) a_t it shifts the best b by P^-1 sum rho_t, and the gradient in C gains the
symmetric part of sum q_t e_t', q_t = rho_t, minus K_t P^-1 sum rho_t if b is integrated out.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.threads import over_tasks
from sharedspan.mixed_model.structures import Coefficients
from sharedspan.mixed_model.terms import (
    Covariance,
    GramTerms,
    RowTerms,
    Scaling,
    TaskTerms,
    WorkingTerms,
)
from sharedspan.statistics.grams import GramStatistics
from sharedspan.statistics.rows import Statistics
from sharedspan.statistics.working import WorkingStatistics

SMALLEST_NOISE = 1e-14  # in standard units: what is left of an exact fit is rounding
LARGEST_RATIO = 1e12  # of the squares of a task's effects to its noise: K_t needs some digits
LARGEST_RATIO_OF_LEVELS = 2.5e6  # the same where a task has the noise level of an exact fit
CHUNK_ENTRIES = 1 << 17  # numbers T p^2 of the tasks that are processed together
CACHED_ENTRIES = 1 << 22  # numbers T p^2 that are held between the two passes of an evaluation
LARGEST_EFFECT = 5.0  # standard deviation on the scale of the linear predictor, if noise is known
LARGEST_EXACT = 1500  # entries of L whose information is computed in full

Result = TypeVar("Result")


@dataclass(frozen=True)
class Information:
    """Sums over tasks, with weights w_t, that the expected information on D and L consists of.

    It is information on the v coefficients that vary.
    """

    squared: np.ndarray  # (v, v) K_ij^2
    crossed: np.ndarray  # (v, v, k) K_ij (KL)_ib
    loadings: np.ndarray  # (v k, v k) of the entries of L, empty if they are very many


@dataclass(frozen=True)
class Evidence:
    """The log marginal likelihood at a covariance, with its gradient."""

    value: float
    noise: float  # s2
    mean: np.ndarray  # (p,) b
    mean_covariance: np.ndarray  # (p, p) of what is integrated out of b, over s2
    gradient: np.ndarray  # (p, p) in C, symmetric; zero for coefficients that do not vary
    prior_gradient: np.ndarray  # (m,) in the logs of the prior variances of b
    prior_information: np.ndarray  # (m, m)
    total: np.ndarray  # (p, p) sum of w_t K_t
    information: Information | None
    scores: np.ndarray  # (T, p) e_t
    task_values: np.ndarray  # (T,) log likelihoods of the tasks at b


class RowVariances(NamedTuple):
    """Noise variances relative to s2 of the rows of each task, from their sample weights."""

    n: np.ndarray  # (T,) sums of sample weights
    mean: np.ndarray  # (T,)
    log_sum: np.ndarray  # (T,) sums of the logarithms

    @classmethod
    def of_weights(cls, rows: TaskRows) -> RowVariances:
        """Variances of rows whose noise variances are one over their weights."""
        T, n = rows.n_tasks, np.diff(rows.starts).astype(float)
        total, log_sum = np.zeros(T), np.zeros(T)
        for block in rows.blocks():
            owner = np.repeat(block.ids, np.diff(block.starts))
            total += np.bincount(owner, 1 / block.weight, minlength=T)
            log_sum -= np.bincount(owner, np.log(block.weight), minlength=T)
        return cls(n, total / n, log_sum)

    def take(self, ids: np.ndarray) -> RowVariances:
        """The variances of the tasks ``ids``."""
        return RowVariances(*(each[ids] for each in self))


class MixedTasks:
    """The tasks of a mixed model in standard units; see the top of this module.

    Parameters
    ----------
    statistics : GramStatistics, RowStatistics or WorkingStatistics
        Statistics of the rows, centred if tasks have intercepts. With working statistics the noise
        is known: s2 is one.
    scaling : Scaling
    levels : ndarray of shape (T,), optional
        Noise variances of the tasks relative to s2; by default one each.
    variances : RowVariances, optional
        If the weights of the statistics are sample weights over noise variances.
    restricted : bool
        Whether b is integrated out also where its prior is flat (REML): the noise variance then
        has as many degrees of freedom less as b has such coefficients.
    coefficients : Coefficients, optional
        Which coefficients differ between tasks, and which form groups; by default all, and none.
    """

    def __init__(
        self,
        statistics: Statistics | WorkingStatistics,
        scaling: Scaling,
        levels: np.ndarray | None = None,
        variances: RowVariances | None = None,
        restricted: bool = False,
        coefficients: Coefficients | None = None,
    ) -> None:
        self.statistics, self.scaling, self.restricted = statistics, scaling, restricted
        self.levels = np.ones(statistics.n_tasks) if levels is None else levels
        self.intercept = statistics.centred
        n = statistics.n
        self.variances = variances or RowVariances(n, self.levels, n * np.log(self.levels))
        self.n = self.variances.n
        self.p = statistics.n_features + self.intercept
        self.coefficients = coefficients or Coefficients.plain(self.p)
        self.size = max(CHUNK_ENTRIES // self.p**2 // 8 * 8, 8)  # tasks of a chunk
        self.working = statistics if isinstance(statistics, WorkingStatistics) else None
        options = scaling, 1 / self.levels, self.size
        self._terms: WorkingTerms | GramTerms | RowTerms
        if isinstance(statistics, WorkingStatistics):
            self._terms = WorkingTerms(statistics, self.size)
        elif isinstance(statistics, GramStatistics):
            self._terms = GramTerms(statistics, *options)
        else:
            self._terms = RowTerms(statistics, *options)

    @property
    def n_tasks(self) -> int:
        return len(self.n)

    @cached_property
    def largest_variance(self) -> float:
        """The largest variance of an effect, over the noise, that is considered.

        Rounding leaves room for no more. If the noise is known, effects that separate the
        responses of a task would be infinite.
        """
        largest = LARGEST_RATIO / max(self._largest_squares().max(initial=0.0), 1e-300)
        return largest if self.working is None else min(largest, LARGEST_EFFECT**2)

    def _largest_squares(self) -> np.ndarray:
        """The largest sum of squares of a column over each task's noise level, (T,)."""
        none, out = Covariance(np.zeros(self.p), np.zeros((self.p, 0))), np.zeros(self.n_tasks)

        def work(terms: TaskTerms) -> None:
            out[terms.ids] = np.einsum("tii->ti", terms.K).max(axis=1)

        self.map_terms(work, none)
        return out

    def smallest_levels(self, covariance: Covariance) -> np.ndarray:
        """Noise levels (T,) below which they change the effects of no task.

        A task that is fitted exactly has no noise: at that level it alone would say what all tasks
        have in common, and leave ``largest_variance`` below the variances that the others show.
        """
        variance = float(np.diag(covariance.matrix).max(initial=0.0))
        return variance * self.levels * self._largest_squares() / LARGEST_RATIO_OF_LEVELS

    def with_noise(self, levels: np.ndarray) -> MixedTasks:
        """A copy with other noise variances (T,), relative to s2."""
        options = levels, None, self.restricted, self.coefficients
        return MixedTasks(self.statistics, self.scaling, *options)

    def with_coefficients(self, coefficients: Coefficients) -> MixedTasks:
        """A copy in which other coefficients vary, with the same groups."""
        other = copy.copy(self)
        other.coefficients = coefficients
        return other

    def take(self, ids: np.ndarray) -> MixedTasks:
        """The tasks ``ids``, with their statistics and noise levels."""
        statistics, variances = self.statistics.take(ids), self.variances.take(ids)
        options = self.levels[ids], variances, self.restricted, self.coefficients
        return MixedTasks(statistics, self.scaling, *options)

    @cached_property
    def prior_groups(self) -> list[np.ndarray]:
        """Coefficients whose means in b share a prior variance: slopes, then each group."""
        slopes = self.coefficients.fixed & (self.coefficients.groups < 0)
        slopes[: int(self.intercept)] = False
        return [np.flatnonzero(slopes), *self.coefficients.members]

    def prior_precision(self, taus: np.ndarray) -> np.ndarray:
        """Precision (p,) of a prior on b: slopes and groups of variances taus, the intercept flat.

        If the noise is known, the intercept has the largest variance of an effect, so that
        responses which are all the same have a finite one.
        """
        precision = np.zeros(self.p)
        for group, tau in zip(self.prior_groups, taus, strict=True):
            precision[group] = 1 / tau
        if math.isfinite(taus[0]) and self.working is not None and self.intercept:
            precision[0] = 1 / LARGEST_EFFECT**2
        return precision

    def map_terms(self, function: Callable[..., Result], *covariances: Covariance) -> list[Result]:
        """``function`` of the terms of all tasks at each covariance, chunk by chunk in threads."""
        return self._map_chunks(
            lambda i: function(*(self._terms.at(i, C) for C in covariances)), self._terms.n_chunks
        )

    def _map_chunks(self, function: Callable[[int], Result], n_chunks: int) -> list[Result]:
        """``function`` of the number of each chunk, in threads."""
        results: list[Any] = [None] * n_chunks

        def work(first: int, last: int) -> None:
            for i in range(first, last):
                results[i] = function(i)

        over_tasks(work, n_chunks, 4.0 * self.n_tasks * self.p**3)
        return results

    def task_values(
        self, covariance: Covariance, b: np.ndarray, noise: float
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Log likelihoods (T,), scores (T, p) and traces of K (T,) at known b and noise.

        The traces are over the coefficients that vary.
        """
        values, scores = np.empty(self.n_tasks), np.empty((self.n_tasks, self.p))
        traces = np.empty(self.n_tasks)

        def work(terms: TaskTerms) -> None:
            ids = terms.ids
            scores[ids], squares = terms.scores_and_squares(b)
            constant = self._constants(noise)[ids]
            values[ids] = constant - 0.5 * (terms.log_determinants + squares / noise)
            traces[ids] = np.einsum("tii->ti", terms.K) @ self.coefficients.varying

        self.map_terms(work, covariance)
        return values, scores, traces

    def _constants(self, noise: float) -> np.ndarray:
        """Log likelihoods (T,) at residuals of zero with the noise variance s2, or at the modes."""
        if self.working is not None:
            return self.working.value
        return -0.5 * (self.n * math.log(2 * math.pi * noise) + self.variances.log_sum)

    def evaluate(
        self,
        covariance: Covariance,
        precision: np.ndarray,
        weight: np.ndarray | None = None,
        integrated: bool = True,
        information: bool = False,
    ) -> Evidence:
        """The log marginal likelihood and its gradient, of tasks with weights (T,) in it.

        The precision (p,) is that of the prior on b, relative: zero is flat, and tau infinite. If b
        is not integrated out, what has a flat prior takes its best value (maximum likelihood). The
        sums of the expected information are computed on request.
        """
        w = np.ones(self.n_tasks) if weight is None else weight
        p = self.p
        chunks: list[TaskTerms] = []
        if self.n_tasks * p**2 <= CACHED_ENTRIES:
            chunks = self.map_terms(lambda terms: terms, covariance)

        def each(function: Callable[[TaskTerms], Result]) -> list[Result]:
            if chunks:
                return self._map_chunks(lambda i: function(chunks[i]), len(chunks))
            return self.map_terms(function, covariance)

        linear = None if self.working is None else self.working.linear
        C, varying = covariance.matrix, np.flatnonzero(self.coefficients.varying)
        inside = np.ix_(varying, varying)

        def moved_linear(terms: TaskTerms) -> np.ndarray:
            """rho_t, (m, p)."""
            assert linear is not None
            a = linear[terms.ids]
            return a - np.einsum("tij,tj->ti", terms.K, a @ C)

        def first_sums(terms: TaskTerms) -> tuple[np.ndarray, ...]:
            weights = w[terms.ids]
            flat = terms.K.reshape(len(weights), -1)
            moved = np.zeros(p) if linear is None else weights @ moved_linear(terms)
            return (weights @ flat).reshape(p, p), weights @ terms.right_sides(), moved

        total, right, moved = added(each(first_sums))
        proper = bool((precision[int(self.intercept) :] > 0).all())
        P = total + np.diag(precision)
        fixed = self.coefficients.fixed
        inverse, root, log_determinant, rank = inverse_precision(P, proper, fixed)
        inner = inverse  # covariance of what is integrated out, given the rest
        if not integrated:
            inner, root, log_determinant, _ = inverse_precision(P, True, precision > 0)
        shift = inner @ moved
        b = refined_product(inverse, P, right, fixed) + (inverse @ moved - shift)
        scores, squares = np.empty((self.n_tasks, p)), np.empty(self.n_tasks)
        log_determinants = np.empty(self.n_tasks)

        def second_sums(terms: TaskTerms) -> tuple[np.ndarray, ...]:
            ids, weights = terms.ids, w[terms.ids]
            e, squares[ids] = terms.scores_and_squares(b)
            scores[ids], log_determinants[ids] = e, terms.log_determinants
            outer = (e.T * weights) @ e
            added_linear = np.zeros(1)
            if linear is not None:
                q = moved_linear(terms)
                q -= terms.K @ shift
                cross = (q.T * weights) @ e
                outer = outer + cross + cross.T
                gap = b + e @ C - terms.anchor
                added_linear[0] = weights @ np.einsum("ti,ti->t", linear[ids], gap)
            shrunk = np.zeros((len(varying), len(varying)))
            if root.size and len(varying):
                # sum K P^-1 K; K is symmetric, so the product's rows and columns may be exchanged.
                K = terms.K if len(varying) == p else terms.K[:, varying]
                half = (np.sqrt(weights)[:, None, None] * K).reshape(-1, p) @ root
                half = half.reshape(*K.shape[:2], -1).transpose(0, 2, 1).reshape(-1, len(varying))
                shrunk = half.T @ half
            sums: tuple[np.ndarray, ...] = ()
            if information:
                K = terms.K if len(varying) == p else terms.K[:, varying[:, None], varying]
                sums = information_sums(K, covariance.loadings[varying], weights)
            return outer, shrunk, added_linear, *sums

        outer, shrunk, added_linear, *sums = added(each(second_sums))
        N, noise = float(w @ self.n), 1.0
        if self.restricted:
            N = max(N - (rank - np.count_nonzero(precision)), 1.0)
        all_squares = w @ squares + b @ (precision * b)
        if self.working is None:
            noise = max(all_squares / N, SMALLEST_NOISE)
            value = -0.5 * (N * (math.log(2 * math.pi * noise) + 1) + w @ log_determinants)
            value -= 0.5 * float(w @ self.variances.log_sum)
        else:
            value = w @ self.working.value - 0.5 * (w @ log_determinants + all_squares)
            value += added_linear[0]
        value -= 0.5 * (log_determinant - np.log(precision[precision > 0]).sum())
        gradient = np.zeros((p, p))
        gradient[inside] = 0.5 * ((outer / noise - total)[inside] + shrunk)
        member = np.zeros((len(self.prior_groups), p))
        for row, group in zip(member, self.prior_groups, strict=True):
            row[group] = precision[group] > 0
        b_squares = (b**2 + 2 * b * shift) / noise + np.diag(inner)
        half = np.sqrt(precision)
        unknown = (np.eye(p) - half[:, None] * inner * half) ** 2
        return Evidence(
            value=float(value),
            noise=float(noise),
            mean=b,
            mean_covariance=inner,
            gradient=gradient,
            prior_gradient=0.5 * member @ (precision * b_squares - 1.0),
            prior_information=0.5 * member @ unknown @ member.T,
            total=total,
            information=Information(*sums) if information else None,
            scores=scores,
            task_values=self._constants(noise) - 0.5 * (log_determinants + squares / noise),
        )


def information_sums(K: np.ndarray, L: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, ...]:
    """The sums of ``Information`` over some tasks of K (m, p, p) with weights w (m,).

    The information on two changes dC_1 and dC_2 of C is 1/2 sum_t tr(K_t dC_1 K_t dC_2). Changes
    E_1 and E_2 of L, dC = E L' + L E', have tr(K E_1 L'Y E_2') + tr(E_1 Y'E_2 Y') with Y = K L.
    """
    m, (p, k) = len(K), L.shape
    flat = K.reshape(m, p * p)
    squared = (w @ flat**2).reshape(p, p)
    Y = (K.reshape(m * p, p) @ L).reshape(m, p, k)
    weighted = w[:, None, None] * Y
    crossed = K.transpose(1, 2, 0) @ weighted.transpose(1, 0, 2)
    if p * k > LARGEST_EXACT:
        return squared, crossed, np.zeros(0)
    # L'Y is symmetric, and one product takes far less time than one for each task.
    inner = np.ascontiguousarray(weighted.transpose(0, 2, 1)).reshape(m * k, p) @ L
    inner = inner.reshape(m, k * k)
    direct = (flat.T @ inner).reshape(p, p, k, k).transpose(0, 2, 1, 3)
    swapped = Y.reshape(m, p * k).T @ weighted.reshape(m, p * k)  # (j a, i b)
    swapped = swapped.reshape(p, k, p, k).transpose(2, 1, 0, 3)
    return squared, crossed, (direct + swapped).reshape(p * k, p * k)


def added(parts: list[tuple[np.ndarray, ...]]) -> list[np.ndarray]:
    """Sums over chunks, in their order, of each of the arrays that a chunk gives."""
    total = [array.copy() for array in parts[0]]
    for part in parts[1:]:
        for array, more in zip(total, part, strict=True):
            array += more
    return total


def refined_product(
    inverse: np.ndarray, P: np.ndarray, right: np.ndarray, among: np.ndarray
) -> np.ndarray:
    """P^-1 times the right side, refined once: a weak prior makes P nearly singular."""
    b = inverse @ right
    return np.asarray(b + inverse @ np.where(among, right - P @ b, 0.0))


def inverse_precision(
    P: np.ndarray, proper: bool, among: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, float, int]:
    """The inverse of the precision P (p, p) of b, its root R, P^-1 = RR', log |P|, and its rank.

    If the prior is improper, P is singular for collinear features and the inverse is a
    pseudo-inverse, as the determinant is; otherwise only rounding can make it so. With ``among``,
    a mask (p,), the other entries of b are zero.
    """
    if among is not None and not among.all():
        at = np.flatnonzero(among)
        inverse, root = np.zeros_like(P), np.zeros((len(P), len(at)))
        inverse[np.ix_(at, at)], root[at], log_determinant, rank = inverse_precision(
            P[np.ix_(at, at)], proper
        )
        return inverse, root, log_determinant, rank
    values, axes = np.linalg.eigh(P)
    least = values.max(initial=0.0) * len(P) * np.finfo(float).eps
    if proper:
        values = np.maximum(values, least)
    used = (values >= least) & (values > 0)
    inverse = np.divide(1.0, values, out=np.zeros_like(values), where=used)
    root = axes * np.sqrt(inverse)
    return root @ root.T, root, float(np.log(values[used]).sum()), int(used.sum())
