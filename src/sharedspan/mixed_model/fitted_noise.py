"""Fits with noise that grows with the fitted value: the variances and the covariance in turn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sharedspan.mixed_model.held_out import HeldOutRows
from sharedspan.mixed_model.likelihood import SMALLEST_NOISE, MixedTasks, RowVariances
from sharedspan.mixed_model.posterior import posterior_means
from sharedspan.mixed_model.search import RowNoise, SelectedModel, reconsider
from sharedspan.mixed_model.variance_function import VarianceFunction

TURNS = 4


def with_fitted_noise(
    model: SelectedModel, tasks: MixedTasks, held_out: HeldOutRows, least_gain: float = -np.inf
) -> SelectedModel | None:
    """The fits of a model compared again, with noise that grows with the fitted value.

    Parameters
    ----------
    model : SelectedModel
        Selected with one noise level.
    tasks : MixedTasks
        All tasks.
    held_out : HeldOutRows
        Rows of the searched tasks.
    least_gain : float
        The log likelihood of the leave-one-out errors must gain this, and the rows must not be
        predicted worse, or the result is None; minus infinity imposes no condition.
    """
    ids = held_out.ids
    for turn in range(TURNS):
        eta, leverage = held_out.fitted(model)
        # The variance of a leave-one-out error is that of the noise over 1 - leverage, both of one
        # repetition of the row.
        rest = np.maximum(1 - leverage / np.maximum(held_out.weight, 1.0), 1e-10)
        squares = np.maximum((held_out.y - eta) ** 2 / rest, SMALLEST_NOISE)
        # A row's own noise moves its fitted value, so the variance is related to the prediction
        # from the other rows.
        predicted = held_out.y - (held_out.y - eta) / rest
        function, gain = VarianceFunction.fitted(predicted, squares, held_out.weight)
        if gain < least_gain:
            return None
        row_noise = row_noise_of(model, function, tasks, held_out)
        tasks = row_noise.tasks
        searched = tasks if len(ids) == tasks.n_tasks else tasks.take(ids)
        related = replace(reconsider(model, searched), row_noise=row_noise)
        hopeless = held_out.squares(related).sum() > held_out.squares(model).sum()
        if turn == 0 and hopeless and least_gain > -np.inf:
            return None
        model = related
    return model


def row_noise_of(
    model: SelectedModel,
    function: VarianceFunction,
    tasks: MixedTasks,
    held_out: HeldOutRows,
) -> RowNoise:
    """The noise variances at the fitted values of all rows, and all tasks weighted by them."""
    rows, canonical = held_out.rows, held_out.canonical
    means, _ = posterior_means(tasks, replace(model, widening=1.0))
    eta, weight = np.empty(rows.n_rows), np.empty(rows.n_rows)
    for block in rows.blocks():
        X, _ = canonical.units.rows(block, canonical.P)
        owner = np.repeat(block.ids, np.diff(block.starts))
        Z = tasks.scaling.to_standard(X, tasks.intercept)
        eta[block.positions] = np.einsum("ij,ij->i", Z, means[owner])
        weight[block.positions] = block.weight
    # The sum of all weights remains that of the sample weights.
    scale = float(np.sum(weight / function(eta)) / weight.sum())
    function = replace(function, scale=scale * function.scale)
    relative = function(eta)
    by_row = np.ones(rows.X.shape[0])  # of which those that are not in the order are never read
    by_row[slice(None) if rows.order is None else rows.order] = weight / relative
    owner = np.repeat(np.arange(rows.n_tasks), np.diff(rows.starts))
    n, total, log_sum = (
        np.bincount(owner, weight * each, minlength=rows.n_tasks)
        for each in (np.ones_like(weight), relative, np.log(relative))
    )
    variances = RowVariances(n, total / n, log_sum)
    weighted = held_out.tasks_of(replace(rows, weight=by_row), variances)
    return RowNoise(function, relative, weighted)
