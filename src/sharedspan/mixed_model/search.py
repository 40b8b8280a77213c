"""Model selection: covariance structures and ranks compared by their scores, outliers set apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.optimize import CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.outliers import OutlierComponent, find_outliers

COMPARISON_TOL = 1e-2  # in log likelihood: accurate enough to compare fits
TRIAL_STEPS = 15  # of L-BFGS, to see whether one more direction pays
FINAL_STEPS = 500
SIGNIFICANT = 2.0  # standard errors by which directions must gain


def select_model(
    tasks: MixedTasks,
    structures: Sequence[str],
    ranks: tuple[int, int],
    *,
    flat: bool,
    outliers: bool,
    note: Callable[[CovarianceFit], None],
) -> tuple[CovarianceFit, OutlierComponent | None]:
    """The fit of the best score over structures of D and ranks of L, and the outlier tasks.

    Structures go from simple to rich, each from the one before. Then directions are added as long
    as the score test promises enough and the score rises; at the end D may become simpler again, if
    the directions explain as much.

    Parameters
    ----------
    tasks : MixedTasks
    structures : sequence of str
        One of ``STRUCTURES``, or all of them.
    ranks : (int, int)
        The smallest and the largest rank of L to consider.
    flat : bool
        Maximum likelihood, with no prior on b nor on D.
    outliers : bool
        Whether some tasks may have a covariance of their own.
    note : callable of CovarianceFit
        Called with each fit that is compared.
    """
    search = _ModelSearch(CovarianceOptimizer(tasks, flat), outliers, note)
    search.set_outliers_apart(search.best_structure(structures))
    search.add_directions(*ranks)
    k = search.fit.rank
    if k:
        selected = search.fit.structure
        for structure in structures:
            if structure != selected:
                search.try_structure(structure)
        if search.component is not None:
            search.set_outliers_apart(search.fit)
        search.fit = search.optimizer.fit_loadings(search.fit, k, steps=FINAL_STEPS)
    return search.fit, search.component


class _ModelSearch:
    """The selected fit so far, and the outlier tasks: each direction reveals more of them.

    Attributes
    ----------
    fit : CovarianceFit
    component : OutlierComponent or None
    optimizer : CovarianceOptimizer
        Weighs each task by its probability of being no outlier.
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

    def best_structure(self, structures: Sequence[str]) -> CovarianceFit:
        """The D of the best score without L."""
        fits: list[CovarianceFit] = []
        fit_variances = self.optimizer.fit_variances
        for structure in structures if len(structures) == 1 else structures[1:]:
            last = fits[-1] if fits else None
            fits.append(fit_variances(structure, start=last, tol=COMPARISON_TOL))
            self.note(fits[-1])
        best = max(fits, key=lambda fit: fit.score)
        # Perhaps tasks do not even differ in level. Where slopes gain much, that need not be asked.
        little = math.log(max(self.optimizer.tasks.n_tasks, 2)) + 5
        if len(structures) > 1 and best.score < fits[0].score + little:
            fits.append(fit_variances(structures[0], tol=COMPARISON_TOL))
            self.note(fits[-1])
            best = max(fits, key=lambda fit: fit.score)
        return fit_variances(best.structure, start=best)

    def set_outliers_apart(self, fit: CovarianceFit) -> None:
        """Select a fit, less the influence of outliers, before these become directions."""
        self.fit = fit
        if self.outliers:
            component, self.fit = find_outliers(self.all_tasks, fit)
            self.component = component or self.component
            if self.component is not None:
                self.optimizer = self.all_tasks.reweighted(1 - self.component.probability)

    def add_directions(self, smallest: int, largest: int) -> None:
        """Directions one by one while the score rises; all of them together must be significant.

        The first of several equal directions gains little over a D that holds them all, so that a
        test of each would stop too early.
        """
        if smallest:
            self.set_outliers_apart(self.optimizer.fit_loadings(self.fit, smallest))
            self.note(self.fit)
        price = self.all_tasks.parameter_price * self.all_tasks.p
        for k in range(smallest + 1, largest + 1):
            if self.optimizer.score_test(self.fit) < price:
                break
            richer = self.optimizer.fit_loadings(self.fit, k, steps=TRIAL_STEPS)
            if richer.value - self.fit.value > price / 2:
                richer = self.optimizer.fit_loadings(richer, k)
            self.note(richer)
            if richer.score <= self.fit.score:
                break
            if self.component is None:
                self.set_outliers_apart(richer)
            else:
                self.fit = richer
        if not smallest and self.fit.rank:
            plain = self.optimizer.fit_variances(self.fit.structure, tol=COMPARISON_TOL)
            if self.optimizer.standardised_gain(self.fit, plain) <= SIGNIFICANT:
                self.fit = self.optimizer.fit_variances(plain.structure, start=plain)

    def try_structure(self, structure: str) -> None:
        """The same directions with another structure of D, selected if its score is better."""
        start = replace(self.fit, structure=structure)
        other = self.optimizer.fit_loadings(start, self.fit.rank)
        self.note(other)
        self.fit = max(self.fit, other, key=lambda fit: fit.score)
