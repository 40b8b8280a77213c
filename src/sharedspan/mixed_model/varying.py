"""Which coefficients differ between tasks, if nothing is said: a choice by marginal likelihood.

Features come in units that vary together or not at all: a single number, the levels of a factor,
the penalised columns of a spline. From a fit in which only intercepts vary, a first variance s of
all coefficients of a unit would gain, by Rao's score test,

    g^2 / 2i,     g = d l / ds > 0,     i the expected information on s,

in log likelihood. Units that gain decisively join those that vary, the covariance is fitted again,
and so on until no unit gains enough: the ``sparse`` choice. The ``dense`` one lets all numbers
vary, beside factors and splines that gain decisively. The structure and the rank are searched with
both, and the sparse choice wins if its score is better by more than 10, less the log of the number
of such choices. Smaller leads do not tell which one predicts better in real tables, in most of
which many coefficients vary a little.

Of a few features, and without factors and splines, the dense choice is all of them. The model in
which only the feature varies that gains most is another candidate, which held-out rows judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sharedspan.mixed_model.optimize import CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.search import COMPARISON_TOL, SelectedModel
from sharedspan.mixed_model.structures import Coefficients

FEW_FEATURES = 12  # all of which may vary without being tested
DECISIVE = 10.0  # by which the log score of fewer varying coefficients must be better
MOST_ROUNDS = 10
NEAR_BEST = 0.5  # of the largest gain of a round: features that are correlated share their gains

Search = Callable[[CovarianceOptimizer, bool], SelectedModel]  # of structure; with outliers or not


def select_varying(
    optimizer: CovarianceOptimizer, units: Sequence[np.ndarray], search: Search
) -> SelectedModel:
    """The best model over the choices of coefficients that vary.

    Parameters
    ----------
    optimizer : CovarianceOptimizer
        Of tasks whose intercepts vary, if there are any.
    units : sequence of ndarray of int
        Coefficients that vary together or not at all.
    search : callable
        Selects the structure and the rank for an optimizer, and outlier tasks if asked.
    """
    numbers = [i for i, unit in enumerate(units) if len(unit) == 1]
    if len(numbers) <= FEW_FEATURES and len(numbers) == len(units):
        return search(optimizer, True)
    chosen = decisive_units(optimizer, units)
    dense = search(only(optimizer, units, {*numbers, *chosen}), True)
    # Outliers would make the scores those of different tasks.
    if len(numbers) <= FEW_FEATURES or dense.outliers is not None or 2 * len(chosen) > len(units):
        return dense
    sparse = search(only(optimizer, units, chosen), False)
    choices = math.log(len(units) + 1) + math.log(math.comb(len(units), len(chosen)))
    return sparse if sparse.fit.score - choices > dense.fit.score + DECISIVE else dense


def strongest_unit(
    optimizer: CovarianceOptimizer, units: Sequence[np.ndarray], search: Search
) -> SelectedModel | None:
    """The model of a few features in which only the unit varies that gains most by it.

    It is what people write as (1 + x | g). None if there is no choice, if there are many features,
    for which ``select_varying`` compares sparse choices, or if no unit gains anything. Fits without
    the influence of outliers would have scores of other tasks, so no tasks are set apart.
    """
    if not 2 <= len(units) <= FEW_FEATURES:
        return None
    structure = "none" if optimizer.intercept else "zero"
    fit = only(optimizer, units, set()).fit(structure, tol=COMPARISON_TOL)
    gains = unit_gains(optimizer, fit, units)
    if gains.max() <= optimizer.parameter_price + math.log(len(units)):
        return None
    model = search(only(optimizer, units, {int(np.argmax(gains))}), False)
    return replace(model, rivals=())


def decisive_units(optimizer: CovarianceOptimizer, units: Sequence[np.ndarray]) -> set[int]:
    """Units that gain decisively by varying, round by round; many if more than half of them do."""
    least = optimizer.parameter_price + math.log(len(units))
    chosen: set[int] = set()
    structure = "none" if optimizer.intercept else "zero"
    fit = only(optimizer, units, chosen).fit(structure, tol=COMPARISON_TOL)
    for _ in range(MOST_ROUNDS):
        gains = unit_gains(optimizer, fit, units)
        gains[list(chosen)] = 0.0
        new = np.flatnonzero(gains > max(least, NEAR_BEST * gains.max()))
        if not len(new):
            break
        chosen |= set(new.tolist())
        if 2 * len(chosen) > len(units):
            break
        fit = only(optimizer, units, chosen).fit("diagonal", 0, fit, tol=COMPARISON_TOL)
    return chosen


def unit_gains(
    optimizer: CovarianceOptimizer, fit: CovarianceFit, units: Sequence[np.ndarray]
) -> np.ndarray:
    """Gains in log likelihood by one more variance for each unit, by Rao's score test, (units,)."""
    tasks = optimizer.tasks if fit.modes is None else fit.modes.tasks
    tasks = tasks.with_coefficients(replace(tasks.coefficients, varying=np.ones(tasks.p, bool)))
    e = tasks.evaluate(
        fit.covariance, tasks.prior_precision(fit.taus), optimizer.weight,
        integrated=not optimizer.flat or tasks.restricted, information=True,
    )  # fmt: skip
    assert e.information is not None
    member = np.zeros((len(units), tasks.p))
    for row, unit in zip(member, units, strict=True):
        row[unit] = 1.0
    slope = member @ np.diag(e.gradient)
    information = 0.5 * np.einsum("ui,ij,uj->u", member, e.information.squared, member)
    if tasks.working is None:  # what the noise explains carries no information about a variance
        n_rows = float(optimizer.weight @ tasks.n)
        information -= 0.5 * (member @ np.diag(e.total)) ** 2 / n_rows
    usable = (slope > 0) & (information > 0)
    return np.divide(0.5 * slope**2, information, out=np.zeros(len(units)), where=usable)


def only(
    optimizer: CovarianceOptimizer, units: Sequence[np.ndarray], chosen: set[int]
) -> CovarianceOptimizer:
    """A copy of the optimizer in which, of the units, only the chosen ones vary."""
    coefficients: Coefficients = optimizer.tasks.coefficients
    varying = coefficients.varying.copy()
    for i, unit in enumerate(units):
        varying[unit] = i in chosen
    return optimizer.with_coefficients(replace(coefficients, varying=varying))
