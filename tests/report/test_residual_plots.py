import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.diagnosis.residual_tests import residual_tests
from sharedspan.diagnosis.simulated_residuals import simulated_residuals
from sharedspan.mixed_model.structures import Block, Effects
from sharedspan.report import residual_plots
from sharedspan.report.figures import ORANGE, as_svg, new_panel
from sharedspan.report.residual_plots import (
    draw_residual_quartiles,
    draw_uniform_quantiles,
    plot_residuals,
    running_quartiles,
)


@pytest.fixture
def model(rng):
    task, X = np.repeat(np.arange(20), 15), rng.standard_normal((300, 1))
    y = X[:, 0] + rng.standard_normal(20)[task] + rng.standard_normal(300)
    effects = Effects((True, True), (Block("full", (0,)),))
    return ss.AdaptiveSpanRegressor(slopes=effects, method="reml").fit(X, y, task=task)


def colours(panel):
    return [line.get_color() for line in panel.lines]


def test_two_panels_show_the_residuals_of_the_model(model, tmp_path):
    left, right = plot_residuals(model)
    u = simulated_residuals(model)
    quantiles = left.lines[-1].get_ydata()
    assert_allclose(quantiles, np.sort(u))
    points = right.collections[0].get_offsets()
    assert_allclose(np.sort(points[:, 1]), np.sort(u))
    p_value = residual_tests(u).uniformity.p_value
    assert left.texts[0].get_text() == f"uniformity: p = {p_value:.2g}"
    left.figure.savefig(tmp_path / "residuals.png")
    assert (tmp_path / "residuals.png").stat().st_size > 10_000
    assert left.figure is right.figure


def test_residuals_are_drawn_on_axes_that_are_given(model):
    mine = Figure().subplots(2)
    assert list(plot_residuals(model, mine)) == list(mine)
    assert all(panel.has_data() for panel in mine)
    with pytest.raises(ValueError, match="axes has 1 matplotlib axes: give two"):
        plot_residuals(model, mine[:1])


def test_another_state_draws_other_residuals(model):
    one, other = (plot_residuals(model, random_state=i)[0].lines[-1].get_ydata() for i in (1, 2))
    assert np.abs(one - other).max() > 1e-3


def test_lines_are_orange_where_a_test_rejects(rng):
    u = rng.permutation(np.arange(2000) + 0.5) / 2000
    predicted = rng.standard_normal(2000)
    left, right = new_panel(), new_panel()
    tests = residual_tests(u, predicted)
    assert not any(t.is_significant for t in (tests.uniformity, tests.trend, tests.spread))
    draw_uniform_quantiles(left, u, tests)
    draw_residual_quartiles(right, u, predicted, tests)
    assert ORANGE not in colours(left) + colours(right)
    wrong = 0.5 + (u - 0.5) * np.argsort(np.argsort(predicted)) / 2000
    tests = residual_tests(wrong, predicted)
    left, right = new_panel(), new_panel()
    draw_uniform_quantiles(left, wrong, tests)
    draw_residual_quartiles(right, wrong, predicted, tests)
    assert colours(left)[-1] == ORANGE
    assert colours(right).count(ORANGE) == 2  # the median does not depend on the prediction


def test_running_quartiles_follow_the_quartiles(rng):
    rank = (np.arange(50_000) + 0.5) / 50_000
    places, lines = running_quartiles(rank, rng.random(50_000) * (1 + rank) / 2)
    inside = (places > 0.2) & (places < 0.8)
    for share, line in zip((0.25, 0.5, 0.75), lines, strict=True):
        assert_allclose(line[inside], share * (1 + places[inside]) / 2, atol=0.02)


def test_of_very_many_rows_some_are_drawn(rng, monkeypatch):
    monkeypatch.setattr(residual_plots, "MOST_POINTS", 100)
    u, predicted = rng.random(5000), rng.standard_normal(5000)
    panel = new_panel()
    draw_residual_quartiles(panel, u, predicted, residual_tests(u, predicted))
    assert len(panel.collections[0].get_offsets()) == 100


def test_panels_become_elements_of_the_page(rng):
    u, predicted = rng.random(300), rng.standard_normal(300)
    tests = residual_tests(u, predicted)
    left, right = new_panel(), new_panel()
    draw_uniform_quantiles(left, u, tests)
    draw_residual_quartiles(right, u, predicted, tests)
    assert "uniformity: p" in as_svg(left, "left", "residuals")
    assert 'class="points"' in as_svg(right, "right", "residuals")
