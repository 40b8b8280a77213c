"""Figures of simulated residuals, as DHARMa draws them.

Both panels show what a right model would give: residuals on the diagonal of a uniform distribution,
and quartiles that are level lines whatever the prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from sharedspan.diagnosis.residual_tests import ResidualTests, p_value_words, residual_tests
from sharedspan.diagnosis.simulated_residuals import residuals_at_draw
from sharedspan.report.figures import BLUE, DENSE, GREEN, GREY, ORANGE, blank_figure

MOST_POINTS = 10_000  # that are drawn; of more rows, as many at equal distances
QUARTILES = (0.25, 0.5, 0.75)
LINE_POINTS = 60  # of each line of a quartile
KOLMOGOROV = 1.358  # quantile 0.95 of the distance to the uniform distribution, times sqrt(rows)


def plot_residuals(
    model: Any, axes: Sequence[Any] | None = None, *, random_state: Any = 0
) -> list[Any]:
    """Simulated residuals of a fit, compared with their distribution under a correct model.

    The left panel is a Q-Q plot of the residuals against the uniform distribution, with a band that
    contains all points for 95 % of correct models. The right panel shows the residuals against the
    order of the predictions, with their quartiles. Lines are orange if a test has a p-value below
    0.05.

    Parameters
    ----------
    model : fitted model with a formula
    axes : sequence of two matplotlib axes, optional
    random_state : int, numpy.random.Generator or None, default=0
        Draws the residuals; see ``simulated_residuals``.

    Returns
    -------
    list of two matplotlib axes
    """
    residuals, predicted = residuals_at_draw(model, random_state)
    known = np.isfinite(residuals)
    residuals, predicted = residuals[known], predicted[known]
    left, right = _two_panels(axes)
    tests = residual_tests(residuals, predicted)
    draw_uniform_quantiles(left, residuals, tests)
    draw_residual_quartiles(right, residuals, predicted, tests)
    return [left, right]


def _two_panels(axes: Sequence[Any] | None) -> Sequence[Any]:
    """The axes that were given, or those of a new figure."""
    if axes is None:
        return blank_figure(1, 2, (9.6, 4.4))[1][0]
    if len(axes) != 2:
        raise ValueError(f"axes has {len(axes)} matplotlib axes: give two, or leave it out.")
    return axes


def draw_uniform_quantiles(panel: Any, residuals: np.ndarray, tests: ResidualTests) -> None:
    """Residuals in ascending order over the uniform quantiles, with the results of tests."""
    count, ends = len(residuals), np.array([0.0, 1.0])
    expected = (np.arange(count) + 0.5) / count
    shown = _evenly(count)
    reach = KOLMOGOROV / np.sqrt(count)
    panel.fill_between(ends, ends - reach, ends + reach, color=GREY, alpha=0.15, lw=0)
    panel.plot(ends, ends, color=GREY, ls="--", lw=1, zorder=1)
    colour = ORANGE if tests.uniformity.is_significant else BLUE
    panel.plot(expected[shown], np.sort(residuals)[shown], color=colour, lw=2.5, zorder=3)
    results = {
        "uniformity": tests.uniformity, "dispersion": tests.dispersion, "outliers": tests.outliers,
        "level by prediction": tests.trend, "spread by prediction": tests.spread,
    }  # fmt: skip
    done = [(name, test) for name, test in results.items() if test is not None]
    for line, (name, test) in enumerate(done):
        panel.annotate(
            f"{name}: {p_value_words(test.p_value)}", (0.03, 0.97 - 0.06 * line),
            xycoords="axes fraction", va="top", fontsize=9, gid="note",
            color=ORANGE if test.is_significant else GREY,
        )  # fmt: skip
    panel.set(xlabel="expected residual", ylabel="residual", xlim=(0, 1), ylim=(0, 1),
              title="Distribution of residuals")  # fmt: skip


def draw_residual_quartiles(
    panel: Any, residuals: np.ndarray, predicted: np.ndarray, tests: ResidualTests
) -> None:
    """Residuals over the rank of the predictions, with their quartiles."""
    order = np.argsort(predicted, kind="stable")
    rank, residuals = (np.arange(len(order)) + 0.5) / len(order), residuals[order]
    shown = _evenly(len(order))
    rank, residuals = rank[shown], residuals[shown]
    panel.scatter(rank, residuals, s=float(np.clip(4000 / len(rank), 4, 28)), lw=0, color=BLUE,
                  alpha=0.6 if len(rank) < DENSE else 0.35, rasterized=len(rank) > DENSE,
                  gid="points")  # fmt: skip
    dependent = [test is not None and test.is_significant for test in (tests.trend, tests.spread)]
    places, lines = running_quartiles(rank, residuals)
    for share, line in zip(QUARTILES, lines, strict=True):
        off = dependent[0] or (dependent[1] and share != QUARTILES[1])
        panel.axhline(share, color=GREY, ls="--", lw=1, zorder=2)
        panel.plot(places, line, color=ORANGE if off else GREEN, lw=2.5, zorder=3)
    panel.set(xlabel="rank of the prediction", ylabel="residual", xlim=(0, 1), ylim=(0, 1),
              title="Residuals by prediction")  # fmt: skip


def running_quartiles(rank: np.ndarray, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quartiles (3, places) of the residuals of rows near places (places,) among their ranks.

    Rows count less the farther they are, by a normal curve that is wider if there are few rows.
    """
    width = float(np.clip(0.5 * len(rank) ** -0.2, 0.06, 0.3))
    order = np.argsort(residuals)
    rank, residuals = rank[order], residuals[order]
    places = np.linspace(0, 1, LINE_POINTS)
    lines = np.empty((len(QUARTILES), LINE_POINTS))
    for i, place in enumerate(places):
        weight = np.exp(-0.5 * ((rank - place) / width) ** 2)
        below = np.cumsum(weight) - 0.5 * weight
        lines[:, i] = np.interp(QUARTILES, below / weight.sum(), residuals)
    return places, lines


def _evenly(count: int) -> np.ndarray:
    """Places of at most ``MOST_POINTS`` of so many points, at equal distances."""
    return np.linspace(0, count - 1, min(count, MOST_POINTS)).astype(int)
