import re
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from sklearn.exceptions import NotFittedError

import sharedspan as ss
from sharedspan.report.figures import as_svg, draw_stems, draw_tasks, new_panel
from sharedspan.report.plots import (
    plot_convergence,
    plot_loadings,
    plot_rank_path,
    plot_spectrum,
    plot_tasks,
)

PLOTS = [plot_spectrum, plot_convergence, plot_rank_path, plot_tasks, plot_loadings]
STRANGE = [
    "$x_1", "$\\frac{1}{0}$", "a_b^c", "a\nb\tc", "\N{ROCKET}", "שלום עולם", "\u202eabc", "x" * 500,
    "", "\x00", "漢字", "100 %", "{}",
]  # fmt: skip


@pytest.fixture
def model(small):
    model = ss.SharedSpanRegressor(rank=2, solver="tpgd", random_state=0)
    return model.fit(small.X, small.y, small.task)


@pytest.fixture
def adaptive(small):
    return ss.AdaptiveSpanRegressor(rank=2).fit(small.X, small.y, small.task)


def text_of(ax):
    legend = ax.get_legend()
    return [t.get_text() for t in [*ax.texts, *(legend.get_texts() if legend else [])]]


def points_of(ax):
    return np.vstack([np.asarray(marks.get_offsets()) for marks in ax.collections])


@pytest.mark.parametrize("plot", PLOTS)
def test_every_plot_returns_axes_and_draws_on_those_given(plot, small, tmp_path):
    model = ss.SharedSpanRegressor(random_state=0).fit(small.X, small.y, small.task)
    ax = plot(model)
    ax.figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 5000
    mine = Figure().subplots()
    assert plot(model, mine) is mine
    assert mine.has_data()


def test_all_plots_look_alike_and_say_in_words_what_they_show(small):
    model = ss.SharedSpanRegressor(random_state=0).fit(small.X, small.y, small.task)
    curved = ss.AdaptiveSpanRegressor(columns=ss.Columns(spline=["x0"]))
    curve = ss.plot_curve(curved.fit(small.X, small.y, small.task), "x0")
    panels = [*(plot(model) for plot in PLOTS), curve]
    for panel in panels:
        assert len(panel.get_title()) > 15
        assert panel.get_xlabel()
        assert panel.get_ylabel() or panel.get_yticklabels()
        assert not panel.spines["top"].get_visible()
    for sizes in (
        {panel.title.get_fontsize() for panel in panels},
        {panel.title.get_ha() for panel in panels},
        {panel.xaxis.label.get_fontsize() for panel in panels},
        {text.get_fontsize() for p in panels if p.get_legend() for text in p.get_legend().texts},
    ):
        assert len(sizes) == 1


@pytest.mark.parametrize("rank", ["auto", "evidence", "threshold"])
def test_the_criterion_of_a_rank_is_named_in_words(rank):
    sim = ss.simulate(n_tasks=20, n_features=4, rank=2, n_samples=30, random_state=0)
    model = ss.SharedSpanRegressor(rank=rank, random_state=0)
    label = plot_rank_path(model.fit(sim.X, sim.y, sim.task)).get_ylabel()
    words = {"auto": "squared error", "evidence": "log evidence", "threshold": "singular value"}
    assert words[rank] in label
    assert not label.startswith("-")


def test_a_notebook_shows_a_plot_as_a_picture_without_pyplot(model):
    panel = plot_spectrum(model)
    for each in (panel, panel.figure):
        picture, size = each._repr_png_()
        assert picture.startswith(b"\x89PNG")
        assert size == {"width": 520, "height": 400}


def test_a_strip_of_tasks_has_no_line_at_a_height_without_meaning(small):
    model = ss.SharedSpanRegressor(rank=1, random_state=0).fit(small.X, small.y, small.task)
    assert len(plot_tasks(model).lines) == 1  # at weight zero


def test_plots_leave_the_state_of_pyplot_alone():
    code = (
        "import sys, sharedspan as ss; from sharedspan.report import plots; "
        "sim = ss.simulate(n_tasks=6, n_features=4, rank=2, n_samples=20, random_state=0); "
        "model = ss.SharedSpanRegressor(random_state=0).fit(sim.X, sim.y, sim.task); "
        "names = {n for n in dir(plots) if n.startswith('plot_')} - {'plot_curve'}; "
        "[getattr(plots, name)(model) for name in names]; "
        "curved = ss.AdaptiveSpanRegressor(columns=ss.Columns(spline=['x0'])); "
        "ss.plot_curve(curved.fit(sim.X, sim.y, sim.task), 'x0'); "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("plot", PLOTS)
def test_a_model_that_was_not_fitted_is_refused(plot):
    with pytest.raises(NotFittedError):
        plot(ss.SharedSpanRegressor())


@pytest.mark.parametrize("plot", PLOTS)
def test_what_is_no_model_is_refused(plot):
    with pytest.raises(TypeError, match="not an estimator"):
        plot(np.eye(3))


@pytest.mark.parametrize(
    ("plot", "message"),
    [
        (plot_convergence, "PooledRegressor has no trace"),
        (plot_rank_path, "no path of ranks"),
        (plot_tasks, "PooledRegressor has no span"),
        (plot_loadings, "PooledRegressor has no span"),
    ],
)
def test_a_model_that_has_nothing_to_show_is_told_so(plot, message, small):
    with pytest.raises(ValueError, match=message):
        plot(ss.PooledRegressor().fit(small.X, small.y, small.task))


def test_the_spectrum_of_a_low_rank_model_has_as_many_values_as_its_rank(model):
    ax = plot_spectrum(model)
    expected = np.linalg.svd(model.coef_, compute_uv=False)[:2]
    assert_allclose(ax.lines[0].get_xydata(), np.column_stack([[1, 2], expected]))
    assert text_of(ax) == ["in the span: rank 2", "beyond it: zero"]


def test_the_spectrum_of_an_adaptive_model_is_that_of_deviations(adaptive):
    ax = plot_spectrum(adaptive)
    values = np.linalg.svd(adaptive.coef_ - adaptive.mean_coef_, compute_uv=False)
    drawn = np.concatenate([line.get_ydata() for line in ax.lines[:2]])
    assert_allclose(drawn, values[values > 1e-9 * values[0]])
    assert "deviations from the mean" in ax.get_title()


def test_the_spectrum_of_separate_regressions_has_no_rank(small):
    model = ss.PerTaskRegressor().fit(small.X, small.y, small.task)
    ax = plot_spectrum(model)
    assert_allclose(ax.lines[0].get_ydata(), np.linalg.svd(model.coef_, compute_uv=False))
    assert text_of(ax) == []


def test_a_wide_spectrum_is_drawn_on_a_logarithmic_scale(model):
    assert plot_spectrum(model).get_yscale() == "linear"
    model.coef_ = (model.representation_ @ np.diag([1, 1e-3]) @ model.task_weights_).T
    assert plot_spectrum(model).get_yscale() == "log"


def test_a_model_without_directions_has_a_spectrum_and_no_more(small):
    model = ss.AdaptiveSpanRegressor(rank=0, slopes="none").fit(small.X, small.y, small.task)
    assert text_of(plot_spectrum(model)) == ["all are zero"]
    for plot in (plot_tasks, plot_loadings):
        with pytest.raises(ValueError, match="no direction"):
            plot(model)


def test_convergence_shows_what_is_left_of_the_loss_and_the_gradient(model):
    ax = plot_convergence(model)
    loss, gradient = ax.lines[0].get_xydata(), ax.lines[1].get_xydata()
    trace = model.trace_
    left = (trace["loss"] - trace["loss"].min()) / (trace["loss"][0] - trace["loss"].min())
    known = np.isfinite(loss[:, 1])
    assert loss[0].tolist() == [0, 1]
    assert_allclose(loss[known, 1], left[known])
    assert left[~known].max() < 1e-12
    measured = np.isfinite(trace["gradient"])
    assert_allclose(
        gradient, np.column_stack([np.flatnonzero(measured), trace["gradient"][measured]])
    )
    assert ax.get_yscale() == "log"
    assert "Phase II" in text_of(ax)


def test_convergence_of_a_long_run_shows_its_start(small):
    model = ss.SharedSpanRegressor(rank=2, max_iter=1200, tol=0, random_state=0)
    ax = plot_convergence(model.fit(small.X, small.y, small.task))
    assert ax.get_xscale() == "symlog"
    assert ax.get_xlim()[0] == 0
    assert not any(label.startswith("tol") for label in text_of(ax))


@pytest.mark.parametrize(
    "estimator", [ss.ARMULRegressor(rank=2, penalty=1.0), ss.PenalizedERMRegressor(rank=2)]
)
def test_convergence_of_an_objective(estimator, small):
    model = estimator.set_params(random_state=0).fit(small.X, small.y, small.task)
    ax = plot_convergence(model)
    assert len(ax.lines) == 1
    assert "objective" in text_of(ax)[0]
    assert np.nanmax(ax.lines[0].get_ydata()) == 1


def test_tasks_lie_at_their_weights(model):
    ax = plot_tasks(model)
    assert_allclose(points_of(ax), model.task_weights_.T)
    swapped = plot_tasks(model, directions=[1, 0], names=[])
    assert_allclose(points_of(swapped), model.task_weights_[::-1].T)
    assert text_of(swapped) == []


def test_the_tasks_farthest_out_are_named_unless_others_are_asked_for(model):
    W = model.task_weights_
    farthest = np.argmax(np.abs(W[0] - np.median(W[0])))
    assert str(farthest) in text_of(plot_tasks(model, directions=(0,)))
    assert text_of(plot_tasks(model, names=[3, 31])) == ["3", "31"]
    with pytest.raises(ValueError, match="no task 'nobody'"):
        plot_tasks(model, names=["nobody"])


def test_outliers_are_named_and_marked_first(adaptive):
    adaptive.outlier_probability_ = np.where(np.arange(40) == 17, 0.9, 0.1)
    ax = plot_tasks(adaptive)
    assert text_of(ax)[0] == "17"
    assert "outlier" in text_of(ax)
    assert_allclose(ax.collections[1].get_offsets(), [adaptive.task_weights_[:, 17]])


def test_one_direction_is_a_strip(small):
    model = ss.SharedSpanRegressor(rank=1, random_state=0).fit(small.X, small.y, small.task)
    ax = plot_tasks(model)
    assert_allclose(points_of(ax)[:, 0], model.task_weights_[0])
    assert not ax.get_yticks().size


@pytest.mark.parametrize("directions", [(0, 2), (-1, 0), (2,)])
def test_directions_that_are_not_there_are_refused(directions, model):
    with pytest.raises(ValueError, match="out of range: give an integer from 0 to 1"):
        plot_tasks(model, directions=directions)
    with pytest.raises(ValueError, match="out of range"):
        plot_loadings(model, direction=max(directions, key=lambda j: abs(j - 0.5)))


def test_three_directions_do_not_fit_on_a_page(model):
    with pytest.raises(ValueError, match="must be one or two integers"):
        plot_tasks(model, directions=(0, 1, 0))


def test_loadings_are_the_largest_entries_of_a_direction_with_their_intervals(model):
    ax = plot_loadings(model, direction=1, n_features=3, level=0.9)
    column, std = model.representation_[:, 1], np.sqrt(np.diag(model.representation_covariance_))
    largest = np.argsort(-np.abs(column))[:3]
    assert [label.get_text() for label in ax.get_yticklabels()] == [f"x{j}" for j in largest]
    assert_allclose(ax.collections[-1].get_offsets()[:, 0], column[largest])
    reach = 1.6448536269514722 * std[8:][largest]
    drawn = np.array([bar[:, 0] for bar in ax.containers[0].lines[2][0].get_segments()])
    assert_allclose(drawn, column[largest, None] + reach[:, None] * [-1, 1])
    assert "90 % intervals" in ax.get_xlabel()


def test_no_interval_reaches_beyond_the_length_of_the_direction(model):
    new = ss.NewTaskRegressor(model.representation_, representation_covariance=9 * np.eye(16))
    rng = np.random.default_rng(0)
    ax = plot_loadings(new.fit(rng.standard_normal((30, 8)), rng.standard_normal(30)))
    for bar in ax.containers[0].lines[2][0].get_segments():
        assert_allclose(bar[:, 0], [-1, 1])


@pytest.mark.parametrize(
    "estimator", [ss.AdaptiveSpanRegressor(rank=2), ss.MomentRegressor(rank=2, random_state=0)]
)
def test_loadings_without_intervals_where_a_model_knows_none(estimator, small):
    ax = plot_loadings(estimator.fit(small.X, small.y, small.task))
    assert not ax.containers
    assert "interval" not in ax.get_xlabel()


@pytest.mark.parametrize("wrong", [{"n_features": 0}, {"level": 1.0}, {"level": float("nan")}])
def test_settings_of_loadings_that_mean_nothing_are_refused(wrong, model):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        plot_loadings(model, **wrong)


def test_names_of_any_kind_are_drawn_as_they_are(tmp_path):
    sim = ss.simulate(n_tasks=13, n_features=13, rank=2, n_samples=30, random_state=0)
    X = pd.DataFrame(sim.X, columns=STRANGE)
    model = ss.SharedSpanRegressor(rank=2, random_state=0)
    model.fit(X, sim.y, task=np.array(STRANGE, dtype=object)[sim.task])
    for ax in (plot_tasks(model, names=STRANGE), plot_loadings(model)):
        ax.figure.savefig(tmp_path / "plot.png")  # a character that the font lacks would warn
        texts = [*ax.texts, *ax.get_yticklabels()]
        names = {text.get_text() for text in texts if not text.get_parse_math()}
        assert {"$x_1", "a_b^c", "100 %", "{}"} <= names
        assert all("\n" not in name and len(name) <= 28 for name in names)


def test_many_points_are_a_few_paths_on_the_page_in_their_order():
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 12_000))
    panel = new_panel(width=4.6)
    draw_tasks(panel, x, y, np.zeros(len(x), dtype=bool))
    drawn = as_svg(panel, "key", "words")
    assert "<image" not in drawn
    assert drawn.count('class="points"') == 8
    steps = re.findall(r"M([\d.]+) ([\d.]+)h0", drawn)
    at = np.array(steps, dtype=float)
    assert_allclose(np.corrcoef(at[:, 0], x)[0, 1], 1, rtol=1e-6)  # to a tenth of a point
    assert_allclose(np.corrcoef(at[:, 1], y)[0, 1], -1, rtol=1e-6)


def test_names_and_styles_of_a_plot_stay_within_a_page_without_inline_styles():
    panel = new_panel()
    draw_stems(panel, ['" style="x', "<b>bold</b>", "a & b"], np.array([1.0, -1.0, 2.0]))
    panel.set_title("a title that the page has as a heading")
    drawn = as_svg(panel, "key", 'say "words" & <more>')
    assert not re.search(r"<[^>]* style=", drawn)
    assert "<b>" not in drawn
    assert "&lt;b&gt;bold&lt;/b&gt;" in drawn
    assert "heading" not in drawn
    assert 'aria-label="say &quot;words&quot; &amp; &lt;more&gt;"' in drawn
    again = new_panel()
    draw_stems(again, ["a"], np.array([1.0]))
    ids = [set(re.findall(r' id="([^"]+)"', as_svg(again, key, ""))) for key in ("one", "two")]
    assert ids[0]
    assert not ids[0] & ids[1]
