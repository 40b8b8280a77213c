"""Variances and shared directions of a mixed model, by marginal likelihood.

The covariance of the task effects is C = D + LL', D diagonal, L (p, k), both relative to the noise
variance. D is found by Fisher scoring on the logarithms of its entries, L by a quasi-Newton search
from the directions in which the gradient says that tasks differ together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sharedspan.mixed_model.likelihood import Evidence, MixedTasks

KINDS = ("zero", "none", "isotropic", "diagonal")
SPREAD = 1.0  # prior deviation of the log variances of single slopes around their mean
LOWEST, HIGHEST = -18.0, 12.0  # of a log variance, relative to the noise
ZERO = -14.0  # log variances below are none
FIRST_VARIANCE = 0.03
ROUGH = 1e-2  # in log likelihood: good enough to compare fits by
SCORING_STEPS = 200
FIRST_STEPS, SEARCH_STEPS = 15, 60  # of the search for directions; the first tell if it pays
POLISH_STEPS = 500
SIGNIFICANT = 2.0  # standard errors by which one more direction must gain
SURPRISING = 6.0  # deviations beyond which a task may be an outlier
EM_ROUNDS = 30
LARGEST_SHARE = 0.4


@dataclass(frozen=True)
class Structure:
    """Which entries of D are one number, and how much free ones may differ.

    Attributes
    ----------
    groups : list of ndarray
        Entries of D that share a variance; entries in no group have none.
    spread : float
        Deviation of the log variances of single slopes around their mean, a prior; infinite means
        no prior at all.
    free : ndarray
        The groups that this prior ties together.
    """

    groups: list[np.ndarray]
    spread: float = math.inf
    free: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def structure_of(kind: str, p: int, intercept: bool, spread: float) -> Structure:
    """D of a kind: "zero", "none" (of the slopes), "isotropic" or "diagonal"."""
    groups = [np.array([0])] if intercept and kind != "zero" else []
    first = len(groups)
    slopes = np.arange(int(intercept), p)
    if kind == "isotropic" and len(slopes):
        groups.append(slopes)
    if kind == "diagonal":
        groups += [np.array([j]) for j in slopes]
        return Structure(groups, spread, np.arange(first, len(groups)))
    return Structure(groups)


@dataclass(frozen=True)
class Fit:
    """A covariance with its evidence.

    ``value`` is the log marginal likelihood and the log prior of the variances, ``penalty`` what
    integrating over what was fitted takes off it, on the scale of log probabilities.
    """

    kind: str
    variances: np.ndarray  # (p,) of D
    loadings: np.ndarray  # (p, k) L
    tau: float  # prior variance of the slopes of b, over the noise; infinite is flat
    evidence: Evidence
    value: float
    penalty: float
    n_iter: int
    converged: bool

    @property
    def covariance(self) -> np.ndarray:
        """C = D + LL', (p, p), relative to the noise variance."""
        return np.diag(self.variances) + self.loadings @ self.loadings.T

    @property
    def score(self) -> float:
        """What fits are compared by."""
        return self.value - self.penalty


class Search:
    """Fits of one set of compressed tasks.

    Parameters
    ----------
    tasks : MixedTasks
    flat : bool
        No prior on b, which takes its best value, nor on D: maximum likelihood.
    weight : ndarray of shape (T,), optional
        Tasks count by so much.
    """

    def __init__(
        self, tasks: MixedTasks, flat: bool = False, weight: np.ndarray | None = None
    ) -> None:
        self.tasks, self.flat, self.weight = tasks, flat, weight
        self.spread = math.inf if flat else SPREAD
        self.p, self.intercept = tasks.p, int(tasks.intercept)

    def without(self, outliers: Outliers) -> Search:
        """The same search with outliers left out, as far as they are."""
        return Search(self.tasks, self.flat, 1 - outliers.probability)

    def precision(self, tau: float) -> np.ndarray:
        """Of the prior on b; the intercept's is flat."""
        precision = np.zeros(self.p)
        if math.isfinite(tau):
            precision[self.intercept :] = 1 / tau
        return precision

    def evaluate(self, C: np.ndarray, tau: float) -> Evidence:
        """The evidence at a covariance."""
        return self.tasks.evaluate(C, self.precision(tau), self.weight, not self.flat)

    def variances(
        self,
        kind: str,
        start: Fit | None = None,
        tol: float | None = None,
    ) -> Fit:
        """The best D of a kind without L, by Fisher scoring with damped steps.

        It ends when a step gains less than ``tol`` in the log likelihood; by default what no
        posterior notices, or, for maximum likelihood, what nobody else would find.
        """
        tol = (1e-8 if self.flat else 1e-4) if tol is None else tol
        structure = structure_of(kind, self.p, bool(self.intercept), self.spread)
        L = np.zeros((self.p, 0))
        theta = self._start(structure, kind, start)
        at = _Place(self, structure, theta, L)
        damping, converged, steps = 1e-3, False, 0
        while not converged and steps < SCORING_STEPS:
            steps += 1
            gradient, information = at.derivatives()
            # At its bound a variance that wants to be smaller stays there.
            stuck = (at.theta <= LOWEST) & (gradient <= 0) | (at.theta >= HIGHEST) & (gradient >= 0)
            move = ~stuck
            if not move.any():
                converged = True
                continue
            H = information[np.ix_(move, move)]
            H = H + np.diag(damping * np.diag(H) + 1e-10)
            step = np.zeros_like(at.theta)
            step[move] = np.clip(np.linalg.lstsq(H, gradient[move], rcond=None)[0], -3.0, 3.0)
            new = _Place(self, structure, np.clip(at.theta + step, LOWEST, HIGHEST), L)
            gain = new.value - at.value
            if gain >= 0:
                at, damping = new, max(damping / 10, 1e-9)
                converged = gain <= max(tol, 1e-12 * abs(at.value))
            else:
                damping = max(damping, 1e-4) * 10
                converged = damping > 1e9  # no step, however small, gains anything
        return at.fit(kind, steps, converged)

    def _start(self, structure: Structure, kind: str, start: Fit | None) -> np.ndarray:
        if start is None:
            theta = np.full(len(structure.groups), math.log(FIRST_VARIANCE))
            tau = 0.1
        else:
            D = start.variances
            typical = float(D[self.intercept :].mean()) or FIRST_VARIANCE
            least = 0.05 * typical if start.kind != kind else math.exp(LOWEST)
            theta = np.array([math.log(max(D[g].mean(), least)) for g in structure.groups])
            tau = start.tau
        if self.flat:
            return theta
        return np.append(theta, math.log(min(max(tau, 1e-6), 1e4)))

    def span(self, start: Fit, k: int, steps: int = SEARCH_STEPS) -> Fit:
        """D and L of rank k together, from ``start`` and the most promising new directions."""
        from scipy.optimize import minimize

        structure = structure_of(start.kind, self.p, bool(self.intercept), self.spread)
        L = np.column_stack([start.loadings, self.directions(start, k - start.loadings.shape[1])])
        theta = self._start(structure, start.kind, start)
        m = len(theta)

        def negative(x: np.ndarray) -> tuple[float, np.ndarray]:
            at = _Place(self, structure, x[:m], x[m:].reshape(self.p, k))
            gradient, _ = at.derivatives(information=False)
            slope = 2 * at.evidence.gradient @ at.loadings
            return -at.value, -np.concatenate([gradient, slope.ravel()])

        bounds = [(LOWEST, HIGHEST)] * m + [(None, None)] * (self.p * k)
        found = minimize(
            negative, np.concatenate([theta, L.ravel()]), jac=True, method="L-BFGS-B",
            bounds=bounds, options={"maxiter": steps, "maxcor": 20},
        )  # fmt: skip
        at = _Place(self, structure, found.x[:m], found.x[m:].reshape(self.p, k))
        return at.fit(start.kind, int(found.nit), bool(found.success))

    def directions(self, fit: Fit, count: int) -> np.ndarray:
        """New columns of L (p, count): where the gradient is steepest, each of a first size.

        Lengths are measured by the information, so units do not matter, and the size is that of
        the best step along the direction.
        """
        K = fit.evidence.information
        weight = np.ones(len(K)) if self.weight is None else self.weight
        mean = np.tensordot(weight, K, 1) / weight.sum()
        values, Q = np.linalg.eigh(mean)
        root = Q * (1 / np.sqrt(np.maximum(values, 1e-8 * values[-1])))
        slopes, directions = np.linalg.eigh(root.T @ fit.evidence.gradient @ root)
        columns = []
        for slope, u in zip(slopes[::-1][:count], directions.T[::-1][:count], strict=True):
            column = root @ u
            along = np.einsum("i,tij,j->t", column, K, column)
            size = max(slope, 1e-3) / max(0.5 * float(weight @ along**2), 1e-12)
            columns.append(math.sqrt(min(max(size, 1e-2), 1e2)) * column)
        return np.array(columns).reshape(count, self.p).T

    def promise(self, fit: Fit) -> float:
        """What one more direction may gain: the score test of the steepest one."""
        column = self.directions(fit, 1)[:, 0]
        weight = np.ones(self.tasks.n_tasks) if self.weight is None else self.weight
        along = np.einsum("i,tij,j->t", column, fit.evidence.information, column)
        slope = float(column @ fit.evidence.gradient @ column)
        return max(slope, 0.0) ** 2 / max(float(weight @ along**2), 1e-300)

    def gain(self, fit: Fit, over: Fit) -> float:
        """What a fit scores beyond another, in standard errors over the tasks.

        A gain that comes from a task or two has a large error: it may not be there next time.
        """
        n = self.tasks.n
        gaps = fit.evidence.task_values(n) - over.evidence.task_values(n)
        if self.weight is not None:
            gaps = gaps * self.weight
        error = math.sqrt(len(n)) * float(gaps.std())
        return (fit.score - over.score) / max(error, 1e-12)


class _Place:
    """A point of the search: log variances (and the log of tau), L, and the evidence there."""

    def __init__(
        self, search: Search, structure: Structure, theta: np.ndarray, loadings: np.ndarray
    ) -> None:
        self.search, self.structure, self.theta, self.loadings = search, structure, theta, loadings
        self.n_groups = len(structure.groups)
        self.D = np.zeros(search.p)
        for group, value in zip(structure.groups, np.exp(theta), strict=False):
            self.D[group] = value
        self.tau = math.inf if search.flat else math.exp(theta[-1])
        C = np.diag(self.D) + loadings @ loadings.T
        self.evidence = search.evaluate(C, self.tau)
        self.value = self.evidence.value - 0.5 * float(np.sum(self._deviations() ** 2))

    def _deviations(self) -> np.ndarray:
        """Log variances about their mean, in deviations of the prior."""
        theta = self.theta[self.structure.free]
        if not len(theta) or not math.isfinite(self.structure.spread):
            return np.zeros(0)
        return (theta - theta.mean()) / self.structure.spread

    def derivatives(self, information: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and expected information of ``value`` in theta."""
        e, groups, n = self.evidence, self.structure.groups, self.n_groups
        slope = np.diag(e.gradient) * self.D
        gradient = np.array([slope[group].sum() for group in groups])
        H = np.zeros((n, n))
        if information:
            weight = self.search.weight
            w = np.ones(len(e.information)) if weight is None else weight
            M = 0.5 * np.einsum("t,tij,tij->ij", w, e.information, e.information)
            M *= self.D[:, None] * self.D
            member = np.zeros((n, len(M)))
            for i, group in enumerate(groups):
                member[i, group] = 1.0
            H = member @ M @ member.T
            # The noise variance follows: what it explains is no information on theta.
            common = 0.5 * member @ (np.einsum("t,tii->i", w, e.information) * self.D)
            H -= 2 * np.outer(common, common) / float(w @ self.search.tasks.n)
        deviations = self._deviations()
        if len(deviations):
            free, spread = self.structure.free, self.structure.spread
            gradient[free] -= deviations / spread
            centring = np.eye(len(free)) - 1 / len(free)
            H[np.ix_(free, free)] += centring / spread**2
        if self.search.flat:
            return gradient, H
        H = np.pad(H, (0, 1))
        H[-1, -1] = e.prior_information
        return np.append(gradient, e.prior_gradient), H

    def fit(self, kind: str, n_iter: int, converged: bool) -> Fit:
        """The fit here: variances that are next to nothing become nothing."""
        D = np.where(math.exp(ZERO) < self.D, self.D, 0.0)
        return Fit(
            kind, D, self.loadings, self.tau, self.evidence, self.value, self._penalty(), n_iter,
            converged,
        )  # fmt: skip

    def _penalty(self) -> float:
        """Laplace's price of single log variances; log T / 2 for each number of L."""
        _, H = self.derivatives()
        free, spread = self.structure.free, self.structure.spread
        penalty = 0.5 * math.log(max(self.search.tasks.n_tasks, 2)) * len(self.structure.groups)
        if len(free) and math.isfinite(spread):
            centring = np.eye(len(free)) - 1 / len(free)
            inside = H[np.ix_(free, free)] - centring / spread**2
            _, log_det = np.linalg.slogdet(
                np.eye(len(free)) + spread**2 * centring @ inside @ centring
            )
            penalty = 0.5 * log_det + 0.5 * math.log(max(self.search.tasks.n_tasks, 2)) * (
                len(self.structure.groups) - len(free) + 1
            )
        k = self.loadings.shape[1]
        numbers = k * self.search.p - k * (k - 1) // 2
        return penalty + 0.5 * math.log(max(self.search.tasks.n_tasks, 2)) * numbers


@dataclass(frozen=True)
class Outliers:
    """Tasks with u_t ~ N(0, s2 (C + variance I)): any task is one with probability ``share``."""

    probability: np.ndarray  # (T,) of each task
    share: float
    variance: float
    gain: float  # in log likelihood over a model without

    def covariance(self, C: np.ndarray) -> np.ndarray:
        """Theirs, relative to the noise."""
        return C + self.variance * np.eye(len(C))


def find_outliers(search: Search, fit: Fit) -> tuple[Outliers | None, Fit]:
    """A second component for tasks that do not fit, and the fit of the others, if that pays.

    Expectation maximisation over memberships, the component's share and its variance, while D and L
    follow. Effects have heavy tails in most tables; an outlier is a task that is decisively off.
    """
    tasks, T = search.tasks, search.tasks.n_tasks
    if surprise(fit, tasks.n).max() < SURPRISING:
        return None, fit

    def price(found: Outliers) -> float:
        """Each coefficient that is set free must bring a factor of e."""
        return math.log(max(T, 2)) + float(found.probability @ np.minimum(tasks.n, search.p))

    plain, best = fit, None
    alone = float(plain.evidence.task_values(tasks.n).sum())
    share, total = 0.05, -math.inf
    variance = 10 * max(float(np.trace(fit.covariance)) / search.p, 1e-3)
    for round_ in range(EM_ROUNDS):
        e, C = fit.evidence, fit.covariance
        own, _, _ = tasks.at_mean(C, e.mean, e.noise)
        other, scores, K = tasks.at_mean(C + variance * np.eye(search.p), e.mean, e.noise)
        joint = np.logaddexp(math.log1p(-share) + own, math.log(share) + other)
        probability = np.exp(math.log(share) + other - joint)
        last, total = total, float(joint.sum())
        best = Outliers(probability, share, variance, total - alone)
        if probability.sum() < 0.5 or probability.mean() > LARGEST_SHARE:
            return None, plain
        if round_ > 3 and total - last < 1e-2:
            break
        share = float(np.clip(probability.mean(), 0.5 / T, LARGEST_SHARE))
        size = variance**2 * np.sum(scores**2, axis=1) / e.noise
        size += variance * search.p - variance**2 * np.einsum("tii->t", K)
        variance = float(probability @ size / (search.p * probability.sum()))
        variance = min(max(variance, 1e-6), math.exp(HIGHEST))
        if round_ == 2 and best.gain < 0.5 * price(best):
            return None, plain
        if round_ >= 2:
            inner, k = search.without(best), fit.loadings.shape[1]
            fit = inner.span(fit, k, steps=10) if k else inner.variances(fit.kind, start=fit)
    assert best is not None
    return (best, fit) if best.gain > price(best) else (None, plain)


def surprise(fit: Fit, n: np.ndarray) -> np.ndarray:
    """How far each task is beyond its covariance, in deviations, (T,).

    The larger of two: its effects against C, and, since these may lie outside of C, its rows
    against theirs.
    """
    e, C = fit.evidence, fit.covariance
    CK = C @ e.information
    size = np.einsum("ti,ij,tj->t", e.scores, C, e.scores) / e.noise
    expected = np.einsum("tii->t", CK)
    spread = np.sqrt(np.maximum(2 * np.einsum("tij,tji->t", CK, CK), 1e-12))
    rows = (e.squares / e.noise - n) / np.sqrt(2 * np.maximum(n, 1.0))
    return np.maximum((size - expected) / spread, rows)


def adapt(
    search: Search,
    kinds: Sequence[str],
    ranks: tuple[int, int],
    outliers: bool,
    note: Callable[[Fit], None] = lambda fit: None,
) -> tuple[Fit, Outliers | None]:
    """The fit of the best score over kinds of D and ranks of L, and the tasks that are off it.

    Kinds go from simple to rich, each from the one before. Then directions are added as long as
    the score test promises enough and the score rises; at the end D may become simpler again, if
    the directions say it all.

    Parameters
    ----------
    search : Search
    kinds : sequence of str
        Of ``KINDS``.
    ranks : (int, int)
        The smallest and the largest rank of L to look at.
    outliers : bool
        Whether to look for tasks with a covariance of their own.
    note : callable of Fit
        Told every fit that was looked at.
    """
    fits: list[Fit] = []
    for kind in kinds if len(kinds) == 1 else kinds[1:]:
        fits.append(search.variances(kind, start=fits[-1] if fits else None, tol=ROUGH))
        note(fits[-1])
    chosen = max(fits, key=lambda fit: fit.score)
    # Perhaps tasks do not even differ in level. Where slopes gain much, that need not be asked.
    if len(kinds) > 1 and chosen.score < fits[0].score + math.log(max(search.tasks.n_tasks, 2)) + 5:
        fits.append(search.variances("zero", tol=ROUGH))
        note(fits[-1])
        chosen = max(fits, key=lambda fit: fit.score)
    chosen = search.variances(chosen.kind, start=chosen)
    found = Directions(search, outliers, note)
    found.look_for_outliers(chosen)
    chosen = found.grow(*ranks)
    k = chosen.loadings.shape[1]
    for kind in kinds if k else ():
        if kind != chosen.kind:
            found.consider(kind, k)
    if k and found.off is not None:
        found.look_for_outliers(found.fit)
    if k:
        found.fit = found.search.span(found.fit, k, steps=POLISH_STEPS)
    return found.fit, found.off


class Directions:
    """The search for L, and for outliers on the way: each direction shows more of them."""

    def __init__(self, search: Search, outliers: bool, note: Callable[[Fit], None]) -> None:
        self.whole = self.search = search
        self.outliers, self.note = outliers, note
        self.off: Outliers | None = None
        self.fit: Fit

    def look_for_outliers(self, fit: Fit) -> None:
        """Set them apart, if there are any, before they become directions."""
        self.fit = fit
        if self.outliers:
            off, self.fit = find_outliers(self.whole, fit)
            self.off = off or self.off
            self.search = self.whole if self.off is None else self.whole.without(self.off)

    def grow(self, smallest: int, largest: int) -> Fit:
        """Directions one by one while the score rises; all of them together must be significant.

        The first of several equal directions gains little over a D that holds them all, so that a
        test of each would stop too early.
        """
        if smallest:
            self.look_for_outliers(self.search.span(self.fit, smallest))
            self.note(self.fit)
        price = 0.5 * math.log(max(self.whole.tasks.n_tasks, 2)) * self.whole.p
        for k in range(smallest + 1, largest + 1):
            if self.search.promise(self.fit) < price:
                break
            richer = self.search.span(self.fit, k, steps=FIRST_STEPS)
            if richer.value - self.fit.value > price / 2:
                richer = self.search.span(richer, k)
            self.note(richer)
            if richer.score <= self.fit.score:
                break
            if self.off is None:
                self.look_for_outliers(richer)
            else:
                self.fit = richer
        if not smallest and self.fit.loadings.shape[1]:
            plain = self.search.variances(self.fit.kind, tol=ROUGH)
            if self.search.gain(self.fit, plain) <= SIGNIFICANT:
                self.fit = self.search.variances(plain.kind, start=plain)
        return self.fit

    def consider(self, kind: str, k: int) -> None:
        """The same directions with another kind of D: they may say it all."""
        other = self.search.span(replace(self.fit, kind=kind), k)
        self.note(other)
        self.fit = max(self.fit, other, key=lambda fit: fit.score)
