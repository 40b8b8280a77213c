"""Mixed models whose rows have outliers: Student's t and Huber's loss, by turns over the rows.

A turn reads the rows, gives each a working weight or a working response at the current fit, and
fits the Gaussian mixed model to the sums of these. m_i is the sample weight of a row, v_t = b + u_t
the coefficients of its task, r_i = y_i - z_i'v_t, s^2 the noise variance and s^2 C the covariance
of u_t, as in ``likelihood.py``.

**Student's t** with nu degrees of freedom is the normal distribution of variance s^2 / omega_i,
omega_i ~ Gamma(nu / 2, nu / 2). The objective is the lower bound

    F = log p(y | omega = w) + sum_i m_i gain(w_i)
      = sum_i m_i log t_nu(E r_i^2 / s^2) - (N / 2) log s^2 - KL(q(v, b), p(v, b)),

of the log marginal likelihood, with independent distributions q(v, b), which is normal, and
q(omega_i) of mean w_i. The first line holds at the Gaussian fit with the row variances s^2 / w_i,
whose log marginal likelihood is its first term, the second at the best

    w_i = (nu + 1) / (nu + E r_i^2 / s^2),     E r_i^2 = (y_i - z_i'E v_t)^2 + z_i'Var(v_t) z_i.

A turn maximises the second line over nu, s^2 and w, while s^2 C and q(v, b) stay, and then the
first over q(v, b), C and s^2, while w stays; so F never falls at a given structure. The only
approximation is that v and omega are independent in q. Without effects and by maximum likelihood
E r_i^2 = r_i^2, and F is the log likelihood itself.

**Huber's loss** gives rows the working responses

    y_i* = z_i'v_t + s psi(r_i / s) / a,     psi(z) = max(-k, min(z, k)),

with a the share of rows of |r_i| <= k s, and fits them as normal ones of noise variance s*^2. Where
the turns end, the effects solve

    u_t = C (s / a) sum_i m_i psi(r_i / s) z_i,     s^2 = a^2 s*^2 / E psi(Z)^2,  Z normal,

so that, given the other parameters, they minimise the convex sum of
a / (mean of psi(r_i / s)^2) m_i rho(r_i / s), rho' = psi, and of u_t'u_t in the metric of their
prior. The second equation is Huber's proposal 2 for the scale s. s*^2 = s^2 mean(psi^2) / a^2 makes
the posterior covariances those of M-estimates. There is no likelihood, so C is that of the working
responses. Weights min(1, k s / |r_i|) have the same effects at given s* and C, but the noise
variance of rows weighted so grows with the largest errors without bound, and the effects would be
shrunk ever more.

New responses have Student's distribution around their mean. For Huber's loss its scale and degrees
of freedom are fitted to E r_i^2 after the last turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sharedspan.families import Huber, StudentT
from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.standard_errors import packed_row_forms
from sharedspan.kernels.threads import over_tasks
from sharedspan.mixed_model.likelihood import SMALLEST_NOISE, MixedTasks, RowVariances
from sharedspan.mixed_model.optimize import CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.posterior import estimate_population, task_posteriors
from sharedspan.mixed_model.terms import TaskTerms
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.grams import GramStatistics
from sharedspan.statistics.task_statistics import collect

MAX_TURNS = 100
SHARE_TURNS = 10  # after which a, which jumps, stays
LEAST_SHARE = 0.5  # for which steps of working responses are never too long
FIRST_TOL, TOL, FLAT_TOL = 1.0, 1e-3, 1e-8  # gains of F that are not worth another turn
FIRST_CHANGE, CHANGE = 1e-2, 1e-7  # of fitted values over s, by Huber's loss


class RobustRows:
    """All rows in the order of tasks, to be read in every turn.

    Parameters
    ----------
    rows : TaskRows
    canonical : Canonical
    tasks : MixedTasks
        The statistics of these rows.
    """

    def __init__(self, rows: TaskRows, canonical: Canonical, tasks: MixedTasks) -> None:
        self.rows, self.canonical, self.tasks = rows, canonical, tasks
        self.y, self.weight = np.empty(rows.n_rows), np.empty(rows.n_rows)
        for block in rows.blocks():
            self.y[block.positions] = block.y * canonical.units.y_scale
            self.weight[block.positions] = block.weight
        self.y = (self.y - tasks.scaling.y_centre) / tasks.scaling.y_scale
        self.owner = np.repeat(np.arange(rows.n_tasks), np.diff(rows.starts))

    def fitted(
        self, tasks: MixedTasks, fit: CovarianceFit, flat: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Posterior means of z_i'v_t and variances over the noise, both (rows,).

        b is known if its prior is ``flat``: it takes its best value.
        """
        p = tasks.p
        population = estimate_population(tasks, fit, np.zeros(tasks.n_tasks))
        if flat:
            population = replace(population, inverse=np.zeros((p, p)))
        means, triangle = np.empty((tasks.n_tasks, p)), np.triu_indices(p)
        packed = np.empty((tasks.n_tasks, len(triangle[0])))

        def posterior(terms: TaskTerms) -> None:
            scores, _ = terms.scores_and_squares(population.b)
            mean, V, _ = task_posteriors(fit.covariance.matrix, terms.K, scores, population)
            means[terms.ids], packed[terms.ids] = mean, V[:, triangle[0], triangle[1]]

        tasks.map_terms(posterior, fit.covariance)
        eta, variance = np.empty(len(self.y)), np.empty(len(self.y))

        def work(first: int, last: int) -> None:
            for block in self.rows.blocks(first, last):
                X, _ = self.canonical.units.rows(block, self.canonical.P)
                Z = np.ascontiguousarray(tasks.scaling.to_standard(X, tasks.intercept))
                owner = self.owner[block.positions]
                eta[block.positions] = np.einsum("ij,ij->i", Z, means[owner])
                packed_row_forms(Z, owner, packed, variance[block.positions])

        over_tasks(work, self.rows.n_tasks, float(len(self.y)) * p**2)
        return eta, np.maximum(variance, 0.0)

    def weighted(self, weight: np.ndarray) -> tuple[TaskRows, MixedTasks]:
        """The rows, and all tasks, with noise variances s^2 over ``weight`` (rows,)."""
        rows = replace(self.rows, weight=self._by_row(self.weight * weight))
        n, total, log_sum = (
            np.bincount(self.owner, self.weight * each, minlength=self.rows.n_tasks)
            for each in (np.ones_like(weight), 1 / weight, -np.log(weight))
        )
        return rows, self._tasks_of(rows, RowVariances(n, total / n, log_sum))

    def responding(self, y: np.ndarray) -> tuple[TaskRows, MixedTasks]:
        """The rows, and all tasks, with the responses y (rows,) in standard units."""
        scaling, unit = self.tasks.scaling, self.canonical.units.y_scale
        rows = replace(self.rows, y=self._by_row((y * scaling.y_scale + scaling.y_centre) / unit))
        return rows, self._tasks_of(rows)

    def _by_row(self, values: np.ndarray) -> np.ndarray:
        """Values in the order of tasks as the rows were given; those left out are never read."""
        if self.rows.order is None:
            return values
        by_row = np.ones(self.rows.X.shape[0])
        by_row[self.rows.order] = values
        return by_row

    def _tasks_of(self, rows: TaskRows, variances: RowVariances | None = None) -> MixedTasks:
        kind = "gram" if isinstance(self.tasks.statistics, GramStatistics) else "rows"
        statistics = collect(rows, self.canonical.units, self.tasks.intercept, kind)
        if self.canonical.P is not None:
            statistics.transform(self.canonical.P)
        return MixedTasks(statistics, self.tasks.scaling, variances=variances)


@dataclass(frozen=True)
class RobustFit:
    """A covariance that was fitted to working rows.

    ``scale`` is s, ``share`` is a of Huber's loss, and ``objective`` is F, for Huber's loss the log
    marginal likelihood of the working responses.
    """

    family: Any  # StudentT, with its degrees of freedom, or Huber
    rows: TaskRows  # with working weights or responses
    tasks: MixedTasks
    fit: CovarianceFit
    scale: float
    share: float = 1.0
    objective: float = -math.inf
    eta: np.ndarray | None = None  # (rows,) fitted values that the working rows were made at
    n_turns: int = 0
    converged: bool = False


class RobustOptimizer:
    """Fits a covariance structure to rows with outliers, turn by turn.

    Parameters
    ----------
    source : RobustRows
    flat : bool
        No prior on b, which takes its best value, nor on D: maximum likelihood.
    """

    def __init__(self, source: RobustRows, flat: bool) -> None:
        self.source, self.flat = source, flat

    def start(self, family: StudentT | Huber, fit: CovarianceFit) -> RobustFit:
        """A Gaussian fit to the rows as they are."""
        source = self.source
        return RobustFit(family, source.rows, source.tasks, fit, math.sqrt(fit.evidence.noise))

    def fit(self, at: RobustFit, first: bool = False) -> RobustFit:
        """Turns from a fit until they change nothing; ``first`` ends them early."""
        turn = self.student_turn if isinstance(at.family, StudentT) else self.huber_turn
        for count in range(1, MAX_TURNS + 1):
            before, at = at, turn(at, keep_share=count > SHARE_TURNS)
            if isinstance(at.family, StudentT):
                tol = FIRST_TOL if first else FLAT_TOL if self.flat else TOL
                gain = at.objective - before.objective
                converged = gain <= max(tol, 1e-12 * abs(at.objective))
            else:
                change = np.inf
                if before.eta is not None and at.eta is not None:
                    change = float(np.abs(at.eta - before.eta).max()) / at.scale
                converged = change <= (FIRST_CHANGE if first else CHANGE)
            if converged and count > 1:
                break
        return replace(at, n_turns=count, converged=converged and at.fit.converged)

    def expected_squares(self, at: RobustFit) -> tuple[np.ndarray, np.ndarray]:
        """Fitted values and E r_i^2, both (rows,)."""
        eta, variance = self.source.fitted(at.tasks, at.fit, self.flat)
        squares = (self.source.y - eta) ** 2 + at.fit.evidence.noise * variance
        return eta, np.maximum(squares, SMALLEST_NOISE)

    def student_turn(self, at: RobustFit, keep_share: bool = False) -> RobustFit:
        """Degrees, scale and weights at the fit, then the fit at these weights."""
        source, noise = self.source, at.fit.evidence.noise
        eta, squares = self.expected_squares(at)
        family, scale = at.family.fitted(squares, source.weight, at.scale**2, SMALLEST_NOISE)
        weight = family.weight(squares / scale)
        rows, tasks = source.weighted(weight)
        fit = self._fit(tasks, rescaled(at.fit, noise / scale))
        objective = fit.value + float(source.weight @ family.gain(weight))
        scale = math.sqrt(fit.evidence.noise)
        return RobustFit(family, rows, tasks, fit, scale, objective=objective, eta=eta)

    def huber_turn(self, at: RobustFit, keep_share: bool = False) -> RobustFit:
        """Working responses at the fit, then the fit to them."""
        source, family, scale = self.source, at.family, at.scale
        eta, _ = source.fitted(at.tasks, at.fit, self.flat)
        z, share = (source.y - eta) / scale, at.share
        if not keep_share:
            inside = source.weight @ (np.abs(z) <= family.threshold) / source.weight.sum()
            share = max(float(inside), LEAST_SHARE)
        rows, tasks = source.responding(eta + scale * family.psi(z) / share)
        fit = self._fit(tasks, at.fit)
        scale = share * math.sqrt(fit.evidence.noise / family.normal_square)
        return RobustFit(family, rows, tasks, fit, scale, share, fit.value, eta)

    def _fit(self, tasks: MixedTasks, start: CovarianceFit) -> CovarianceFit:
        columns = start.covariance.loadings.shape[1]
        return CovarianceOptimizer(tasks, self.flat).fit(start.structure, columns, start)

    def response_noise(self, at: RobustFit) -> tuple[StudentT, float]:
        """The distribution of a new response around its mean, and its s^2."""
        if isinstance(at.family, StudentT):
            return at.family, at.fit.evidence.noise
        _, squares = self.expected_squares(at)
        return StudentT().fitted(squares, self.source.weight, at.scale**2, SMALLEST_NOISE)


def rescaled(fit: CovarianceFit, factor: float) -> CovarianceFit:
    """The same covariances relative to a noise variance that is smaller by ``factor``."""
    return replace(fit, covariance=fit.covariance.scaled(factor), tau=fit.tau * factor)
