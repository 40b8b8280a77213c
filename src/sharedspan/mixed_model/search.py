"""Model selection: covariance structures and ranks compared by their scores, outliers set apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import numpy as np

from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.optimize import CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.outliers import (
    LARGEST_SHARE,
    FittedEffects,
    OutlierComponent,
    find_outliers,
)
from sharedspan.mixed_model.terms import Covariance
from sharedspan.mixed_model.variance_function import VarianceFunction

COMPARISON_TOL = 1e-1  # in log likelihood: accurate enough to compare fits
TRIAL_STEPS = 6  # of the fit of each rank
PATIENCE = 2  # ranks without a better score after which the first that scores less is the last
FEWEST_LEVELS = 5  # tasks whose levels have a variance without question, if noise is known
DIRECTED_RIVALS = 3  # other ranks that are compared by left out rows
INTERPOLATING = 1e4  # largest variance of an effect over the noise from which this may vanish
SMALLER = (1.0, 1e-2, 1e-4, 1e-6, 1e-8)  # factors on its variances
LARGEST_FULL = 12  # coefficients of an unrestricted covariance that is tried unasked


@dataclass(frozen=True)
class RowNoise:
    """Noise variances of the rows as a function of their fitted values."""

    function: VarianceFunction
    relative: np.ndarray  # (rows,) variances over s2 of the rows of all tasks, in task order
    tasks: MixedTasks  # all tasks, with rows weighted accordingly


@dataclass(frozen=True)
class SelectedModel(FittedEffects):
    """The selected covariance, the outlier tasks, and the best fits that were not selected."""

    _: KW_ONLY
    tasks: MixedTasks  # that were searched
    flat: bool
    rivals: tuple[CovarianceFit, ...] = ()
    row_noise: RowNoise | None = None  # if the noise differs between rows

    @property
    def noise(self) -> str:
        """The kind of noise: "shared", "per_task" or "fitted"."""
        if self.row_noise is not None:
            return "fitted"
        return "per_task" if np.ptp(self.tasks.levels) else "shared"

    def with_fit(self, fit: CovarianceFit) -> SelectedModel:
        """The model with another covariance, and then without its outliers."""
        return self if fit is self.fit else replace(self, fit=fit, outliers=None)

    def refined(self, tasks: MixedTasks, tol: float | None = None) -> SelectedModel:
        """The covariance of the selected structure and rank, fitted to all tasks to the end.

        ``tol`` ends it earlier, as in ``CovarianceOptimizer.fit``.
        """
        fit, weight = self.fit, None
        if self.outliers is not None:
            wide, e = self.outliers.covariance(fit.covariance), fit.evidence
            values = [tasks.task_values(c, e.mean, e.noise)[0] for c in (fit.covariance, wide)]
            probability = self.outliers.probabilities(*values)
            if probability.mean() > LARGEST_SHARE:  # of a fit that was selected for other reasons
                return replace(self, outliers=None).refined(tasks, tol)
            weight = 1 - probability
        optimizer = CovarianceOptimizer(tasks, self.flat, weight)
        columns = fit.covariance.loadings.shape[1]
        return replace(self, tasks=tasks, fit=optimizer.fit(fit.structure, columns, fit, tol=tol))


def select_model(
    optimizer: CovarianceOptimizer,
    structures: Sequence[str],
    ranks: tuple[int, int],
    *,
    outliers: bool,
    note: Callable[[CovarianceFit], None],
) -> SelectedModel:
    """The fit of the best score over structures of D and ranks of L, and the outlier tasks.

    Structures are fitted from simple to rich, each starting from the one before. Then directions
    are added until the score has stopped rising; in the end D may become simpler again, if the
    directions explain as much.

    Parameters
    ----------
    optimizer : CovarianceOptimizer
        Fits one structure and rank to the tasks.
    structures : sequence of str
        One of ``STRUCTURES``, or all of them.
    ranks : (int, int)
        The smallest and the largest rank of L to consider.
    outliers : bool
        Whether some tasks may have a covariance of their own.
    note : callable of CovarianceFit
        Called with each fit that is compared.
    """
    search = _ModelSearch(optimizer, outliers, note)
    search.select_structure(structures)
    if search.fit.structure != "full" or len(structures) > 1:
        search.select_rank(*ranks)
    if search.fit.rank and len(structures) > 1:
        selected = search.fit.structure
        for structure in structures[:-1]:
            if structure != selected:
                search.try_structure(structure)
    if len(structures) > 1 and not ranks[0]:
        search.try_unrestricted()
    if search.component is not None:
        search.set_outliers_apart(search.fit)
    rivals = tuple(
        fit
        for fit in search.rivals()
        if ranks[0] <= fit.rank <= ranks[1] and fit.structure in structures
    )
    return SelectedModel(
        search.fit, search.component, tasks=optimizer.tasks, flat=optimizer.flat, rivals=rivals
    )


def reconsider(model: SelectedModel, tasks: MixedTasks) -> SelectedModel:
    """Compare the same fits, with the same outliers, again on the same tasks with other noise."""
    weight = None if model.outliers is None else 1 - model.outliers.probability
    optimizer = CovarianceOptimizer(tasks, model.flat, weight)
    fits = [
        optimizer.fit(fit.structure, fit.covariance.loadings.shape[1], fit, tol=COMPARISON_TOL)
        for fit in (model.fit, *model.rivals)
    ]
    best = max(fits, key=lambda fit: fit.score)
    rivals = tuple(fit for fit in fits if fit is not best)
    return SelectedModel(best, model.outliers, tasks=tasks, flat=model.flat, rivals=rivals)


class _ModelSearch:
    """The selected fit so far, and the outlier tasks: each direction reveals more of them.

    Attributes
    ----------
    fit : CovarianceFit
    component : OutlierComponent or None
    optimizer : CovarianceOptimizer
        Weighs each task by its probability of not being an outlier.
    compared : dict
        The last fit of each structure and rank.
    """

    fit: CovarianceFit

    def __init__(
        self,
        optimizer: CovarianceOptimizer,
        outliers: bool,
        note: Callable[[CovarianceFit], None],
    ) -> None:
        self.all_tasks = self.optimizer = optimizer
        self.outliers, self.note = outliers, note
        self.component: OutlierComponent | None = None
        self.compared: dict[tuple[str, int], CovarianceFit] = {}

    def compare(self, fit: CovarianceFit) -> CovarianceFit:
        """Remember a fit among those that were compared."""
        self.note(fit)
        self.compared[fit.structure, fit.rank] = fit
        return fit

    def select_structure(self, structures: Sequence[str]) -> None:
        """Select the D with the best score without L."""
        fits: list[CovarianceFit] = []
        candidates = structures if len(structures) == 1 else structures[1:-1]
        for structure in candidates:
            last = fits[-1] if fits else None
            fits.append(self.compare(self.optimizer.fit(structure, 0, last, tol=COMPARISON_TOL)))
        best = max(fits, key=lambda fit: fit.score)
        # Perhaps tasks do not even differ in level. If slopes gain much, that need not be tried.
        # Few rows of classes or counts hardly show what levels of tasks gain.
        tasks = self.optimizer.tasks
        little = math.log(max(tasks.n_tasks, 2)) + 5
        shown = tasks.working is None or tasks.n_tasks < FEWEST_LEVELS
        if len(structures) > 1 and shown and best.score < fits[0].score + little:
            fits.append(self.compare(self.optimizer.fit(structures[0], tol=COMPARISON_TOL)))
            best = max(fits, key=lambda fit: fit.score)
        self.set_outliers_apart(best)

    def set_outliers_apart(self, fit: CovarianceFit) -> None:
        """Select a fit, without the influence of outliers, before these become directions."""
        self.fit = fit
        if self.outliers:
            component, self.fit = find_outliers(self.all_tasks, fit)
            self.component = component or self.component
            if self.component is not None:
                self.optimizer = self.all_tasks.reweighted(1 - self.component.probability)

    def select_rank(self, smallest: int, largest: int) -> None:
        """Select the rank of the best score, along a path from the covariance that moments suggest.

        The first of several equal directions gains little over a D that holds them all, so the path
        does not end at the first rank that gains nothing.
        """
        if not largest:
            return
        base = current = self.fit
        best, failures, last = None if smallest else base, 0, base.score
        suggested = moment_covariance(self.optimizer, base)
        for k in range(max(smallest, 1), largest + 1):
            starts = [truncated(self.optimizer, base, suggested, k)]
            if current.rank:
                starts.append(current)
            starts = [self.optimizer.fit(base.structure, k, start, steps=0) for start in starts]
            start = max(starts, key=lambda fit: fit.value)
            current = self.optimizer.fit(
                base.structure, k, start, tol=COMPARISON_TOL, steps=TRIAL_STEPS
            )
            self.compare(current)
            failures += 1
            if best is None or current.score > best.score:
                best, failures = current, 0
                if self.component is None:
                    self.set_outliers_apart(current)
                    if self.component is not None:  # which bend the path: start again
                        self.fit = self.optimizer.fit(base.structure, 0, base, tol=COMPARISON_TOL)
                        self.select_rank(smallest, largest)
                        return
            if failures > PATIENCE and current.score < last:
                break
            last = current.score
        assert best is not None
        self.fit = best
        if best.rank:
            self.fit = self.optimizer.fit(best.structure, best.rank, best, tol=COMPARISON_TOL)
            self.compare(self.fit)

    def try_structure(self, structure: str) -> None:
        """Try another structure of D with the same directions; keep it if its score is better."""
        other = self._restructured(self.fit, structure)
        self.compare(other)
        self.fit = max(self.fit, other, key=lambda fit: fit.score)

    def try_unrestricted(self) -> None:
        """Try an unrestricted covariance, if it has few entries relative to the number of tasks."""
        p, T = int(self.optimizer.tasks.coefficients.directed.sum()), self.optimizer.tasks.n_tasks
        if not 0 < p <= LARGEST_FULL or p * (p + 1) // 2 > T:
            return
        full = self.optimizer.fit("full", 0, self.fit, tol=COMPARISON_TOL)
        self.compare(full)
        if full.score > self.fit.score:
            self.fit = full

    def rivals(self) -> tuple[CovarianceFit, ...]:
        """Other fits: all without directions, simpler ones of the same rank, and other ranks.

        If there are outliers, the selected fit without them is another.
        """
        selected = self.fit.structure, self.fit.rank
        others = {key: fit for key, fit in self.compared.items() if key != selected}
        of_rank: dict[int, CovarianceFit] = {}
        for fit in sorted(others.values(), key=lambda fit: fit.score):
            of_rank[fit.rank] = fit
        directed = [fit for rank, fit in of_rank.items() if rank and rank != self.fit.rank]
        directed = sorted(directed, key=lambda fit: -fit.score)[:DIRECTED_RIVALS]
        directed = [self._like_selected(fit) for fit in directed]
        plain = [
            fit
            for fit in others.values()
            if not fit.rank or (fit.rank == self.fit.rank and fit.penalty < self.fit.penalty)
        ]
        if self.component is not None:
            columns = self.fit.covariance.loadings.shape[1]
            plain.append(
                self.all_tasks.fit(self.fit.structure, columns, self.fit, tol=COMPARISON_TOL)
            )
        return (*plain, *directed)

    def _like_selected(self, fit: CovarianceFit) -> CovarianceFit:
        """The better of a fit of a lower rank and one with the structure that was selected."""
        structure = self.fit.structure
        if fit.structure == structure or structure == "full" or fit.rank > self.fit.rank:
            return fit
        other = self._restructured(fit, structure)
        return max(fit, self.compare(other), key=lambda each: each.score)

    def _restructured(self, fit: CovarianceFit, structure: str) -> CovarianceFit:
        """The directions of a fit with another structure of D.

        A rich D may leave hardly any noise, by which all variances are measured; without it the
        noise is larger, and so the same directions are smaller.
        """
        start = replace(fit, structure=structure)
        if np.diag(fit.covariance.matrix).max() > INTERPOLATING:
            sizes = (start.covariance.scaled(size) for size in SMALLER)
            starts = [replace(start, covariance=covariance) for covariance in sizes]
            trials = [self.optimizer.fit(structure, fit.rank, each, steps=0) for each in starts]
            start = max(trials, key=lambda trial: trial.value)
        return self.optimizer.fit(structure, fit.rank, start, tol=COMPARISON_TOL)


def moment_covariance(optimizer: CovarianceOptimizer, fit: CovarianceFit) -> np.ndarray:
    """An unrestricted covariance (p, p): one step of Fisher scoring from the covariance of a fit.

    The information on C is taken as the product of the mean of all K with itself, as it is if all
    tasks have the same design; the step is then an estimate by moments.
    """
    e, total = fit.evidence, float(optimizer.weight.sum())
    directed = optimizer.tasks.coefficients.directed
    inside = np.ix_(directed, directed)
    inverse = np.linalg.pinv(e.total[inside] / total, hermitian=True)
    suggested = fit.covariance.matrix
    suggested[inside] += 2 / total * inverse @ e.gradient[inside] @ inverse
    return suggested


def truncated(
    optimizer: CovarianceOptimizer, fit: CovarianceFit, suggested: np.ndarray, k: int
) -> CovarianceFit:
    """A start with the k leading directions of a covariance, what they leave staying in D."""
    directed = optimizer.tasks.coefficients.directed
    inside = np.ix_(directed, directed)
    mean = fit.evidence.total[inside] / float(optimizer.weight.sum())
    values, Q = np.linalg.eigh(mean)
    values = np.maximum(values, 1e-8 * values[-1])
    half, back = (Q * np.sqrt(values)) @ Q.T, (Q / np.sqrt(values)) @ Q.T
    size, axes = np.linalg.eigh(half @ suggested[inside] @ half)
    size, axes = np.maximum(size[::-1], 1e-3), axes[:, ::-1]
    L = optimizer.embedded(back @ (axes[:, :k] * np.sqrt(size[:k])))
    share = float(size[k:].sum() / size.sum())
    D = fit.covariance.variances * min(max(share, 0.02), 1.0)
    return replace(fit, covariance=Covariance(D, L))
