"""The covariance that a formula gives: its blocks are fitted as they are, without a search.

Only the rank of a block of low rank may be left open. Ranks are tried from one up, and the score of
the fits, their likelihood less Schwarz's price of the fitted numbers, selects one. Directions start
from an estimate of the block's covariance by moments.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from sharedspan.mixed_model.optimize import CovarianceFit, CovarianceOptimizer
from sharedspan.mixed_model.search import COMPARISON_TOL, SelectedModel, moment_covariance
from sharedspan.mixed_model.structures import Block
from sharedspan.mixed_model.terms import Covariance

DEPENDENT = 1e-12  # share of the variance of a column that others must leave unexplained
CONSTANT = 1e-13  # deviation over the level of a column that does not vary
MORE_RANKS = 2  # ranks without a better score after which no larger one is tried


def select_effects(
    optimizer: CovarianceOptimizer, note: Callable[[CovarianceFit], None]
) -> SelectedModel:
    """The fit of the blocks of a formula, with the ranks that it leaves open.

    Parameters
    ----------
    optimizer : CovarianceOptimizer
        Of tasks whose coefficients have blocks.
    note : callable of CovarianceFit
        Called with each fit that is compared.
    """
    blocks = optimizer.tasks.coefficients.blocks
    if not any(block.kind == "low_rank" for block in blocks):
        fit = optimizer.fit("given", tol=COMPARISON_TOL)
        note(fit)
        return SelectedModel(fit, tasks=optimizer.tasks, flat=optimizer.flat)
    start = moment_start(optimizer, blocks)
    best, best_at, failures = None, optimizer, 0
    for rank in range(1, max(len(block.members) for block in blocks) + 1):
        chosen = tuple(with_rank(block, rank) for block in blocks)
        at = with_blocks(optimizer, chosen)
        fit = at.fit("given", 0, start, tol=COMPARISON_TOL)
        note(fit)
        failures += 1
        if best is None or fit.score > best.score:
            best, best_at, failures = fit, at, 0
        if chosen == blocks or failures > MORE_RANKS:
            break
    assert best is not None
    return SelectedModel(best, tasks=best_at.tasks, flat=optimizer.flat)


def with_rank(block: Block, rank: int) -> Block:
    """The block with a rank, if it is of low rank and has none."""
    if block.kind != "low_rank" or block.rank is not None:
        return block
    return replace(block, rank=min(rank, len(block.members)))


def with_blocks(optimizer: CovarianceOptimizer, blocks: tuple[Block, ...]) -> CovarianceOptimizer:
    """A copy of the optimizer with other blocks of the same coefficients."""
    return optimizer.with_coefficients(replace(optimizer.tasks.coefficients, blocks=blocks))


def moment_start(optimizer: CovarianceOptimizer, blocks: tuple[Block, ...]) -> CovarianceFit:
    """A fit whose blocks of low rank have the covariance that moments suggest."""
    simple = tuple(
        Block("diagonal", block.members) if block.kind == "low_rank" else block for block in blocks
    )
    fit = with_blocks(optimizer, simple).fit("given", tol=COMPARISON_TOL)
    values, axes = np.linalg.eigh(moment_covariance(optimizer, fit))
    D = np.zeros(optimizer.p)
    for block in blocks:
        if block.kind == "diagonal":
            members = list(block.members)
            D[members] = fit.covariance.variances[members]
    return replace(fit, covariance=Covariance(D, axes * np.sqrt(np.maximum(values, 0.0))))


def dependent_columns(statistics: Any, flat: np.ndarray) -> np.ndarray:
    """Which fixed effects are combinations of those before them, (p,), as lme4 leaves them out.

    Parameters
    ----------
    statistics : Statistics
        Centred in each task if tasks have intercepts.
    flat : ndarray of bool of shape (p,)
        Fixed effects, the intercept first if there is one.
    """
    first, share = int(statistics.centred), statistics.n / statistics.n.sum()
    mean = share @ statistics.mean
    origin = mean if first and flat[0] else np.zeros_like(mean)
    gap = statistics.mean - origin
    moments = statistics.pooled_gram() / statistics.n.sum() + (gap.T * share) @ gap
    least = CONSTANT**2 * (np.diag(moments) + mean**2)
    dependent = np.zeros(len(flat), dtype=bool)
    factor = np.zeros((0, len(mean)))  # rows of a Cholesky factor, in the order of the columns
    for j in np.flatnonzero(flat[first:]):
        left = moments[j] - factor[:, j] @ factor
        if left[j] <= max(DEPENDENT * moments[j, j], least[j]):
            dependent[first + j] = True
        else:
            factor = np.vstack([factor, left / np.sqrt(left[j])])
    return dependent
