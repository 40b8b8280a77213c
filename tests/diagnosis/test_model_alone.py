"""What a model says of its tasks is the same with and without the rows of its fit."""

from dataclasses import replace

import numpy as np
import pytest

import sharedspan as ss
from sharedspan.diagnosis.model_view import ModelView


def rows_of(seed=0, *, noisy=False, far=False, n_tasks=40):
    """Rows of tasks whose levels and one slope vary: task 3 may be noisy, the level of 7 far."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(n_tasks), rng.integers(8, 40, n_tasks))
    centre = rng.standard_normal((n_tasks, 2))  # tasks have their features in different places
    X = centre[task] + rng.standard_normal((len(task), 2))
    level, slope = rng.standard_normal(n_tasks), 1 + 0.5 * rng.standard_normal(n_tasks)
    noise = np.exp(0.1 * rng.standard_normal(n_tasks))
    level[7] += 15 * far
    noise[3] *= 1 + 9 * noisy
    y = level[task] + slope[task] * X[:, 0] - X[:, 1] + noise[task] * rng.standard_normal(len(task))
    return X, y, task


@pytest.mark.parametrize("noise", ["per_task", "shared"])
def test_the_model_alone_names_the_same_tasks_as_with_its_rows(noise):
    X, y, task = rows_of(noisy=noise == "per_task", far=True)
    model = ss.AdaptiveSpanRegressor(noise=noise, outliers=False).fit(X, y, task=task)
    alone, both = ss.diagnose(model), ss.diagnose(model, X, y, task)
    assert alone.misfits == both.misfits
    assert alone.advice == both.advice
    assert (alone.most_different, alone.most_different_in) == (
        both.most_different,
        both.most_different_in,
    )
    assert {(m.task, m.what) for m in both.misfits} == {(7, "level")} | (
        {(3, "noise")} if noise == "per_task" else set()
    )
    if noise == "per_task":
        (noisy,) = (m for m in both.misfits if m.what == "noise")
        assert noisy.value == np.sqrt(model.noise_variance_[3])
        assert noisy.typical == pytest.approx(np.sqrt(np.median(model.noise_variance_)), rel=0.02)


def test_what_only_the_rows_can_tell_is_said():
    X, y, task = rows_of(noisy=True)
    model = ss.AdaptiveSpanRegressor(noise="shared").fit(X, y, task=task)
    alone, both = ss.diagnose(model), ss.diagnose(model, X, y, task)
    assert [(m.task, m.what) for m in both.misfits] == [(3, "noise")]
    assert (alone.rows_would_tell, both.rows_would_tell) == (True, False)
    said = "Tasks were judged from the model alone: give the rows of the fit (--data, in Python"
    assert said in " ".join(str(alone).split())
    assert said in alone._repr_html_()
    assert not both.judged_from
    own = ss.AdaptiveSpanRegressor(noise="per_task").fit(X, y, task=task)
    assert not ss.diagnose(own).judged_from
    counts = ss.AdaptiveSpanRegressor(family="poisson").fit(X, np.round(np.abs(y)), task=task)
    assert not ss.diagnose(counts).judged_from
    assert ss.diagnose(ss.SharedSpanRegressor(rank=1).fit(X, y, task=task)).judged_from


def test_rows_of_tasks_that_were_not_fitted_are_left_out_whatever_the_model_does_with_them():
    X, y, task = rows_of()
    model = ss.SharedSpanRegressor(rank=1).fit(X[task < 30], y[task < 30], task=task[task < 30])
    assert model.unseen == "error"
    assert len(ss.diagnose(model, X, y, task).rows_per_task) == 30


def test_a_task_far_from_the_middle_of_the_features_has_no_odd_level():
    for seed in range(4):
        X, y, task = rows_of(seed)
        X[task == 5, 0] += 40.0  # where its slope makes a level of its own
        slope = 1 + 0.5 * np.random.default_rng(seed).standard_normal(40)
        y = slope[task] * X[:, 0] + np.random.default_rng(seed + 9).standard_normal(len(task))
        y -= (slope * np.array([X[task == t, 0].mean() for t in range(40)]))[task]
        model = ss.AdaptiveSpanRegressor(noise="shared").fit(X, y, task=task)
        assert not [m for m in ss.diagnose(model).misfits if m.what == "level"]


def constant_features(seed=0):
    """Rows of 30 tasks, two features of rows and two of tasks; both slopes vary."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(30), 20)
    X = np.column_stack([rng.standard_normal((600, 2)), rng.standard_normal((30, 2))[task]])
    slopes = rng.standard_normal((30, 2)) * [3.0, 1.0]
    y = np.einsum("ij,ij->i", X[:, :2], slopes[task]) + rng.standard_normal(600)
    return X, y, task


def test_directions_of_all_features_that_vary_have_no_errors_outside_them(tmp_path):
    X, y, task = constant_features()
    model = ss.AdaptiveSpanRegressor(rank=2).fit(X, y, task=task)
    spans = ModelView(model).directions
    assert np.isfinite(spans.reach).all()
    assert spans.determined.all()
    assert spans.leading(0)[0] == 0
    assert spans.reach_of(2, 0) is None
    page = ss.write_report(model, tmp_path / "r.html", X, y, task).read_text("utf-8")
    assert "±0<" not in page
    loadings = page[page.index("All loadings in numbers") :]
    loadings = loadings[: loadings.index("</table>")]
    assert "x1" in loadings
    assert "<bdi>x2</bdi></th>" not in loadings  # which has no loading


def test_a_saved_model_describes_its_directions_as_the_fit_did(tmp_path):
    X, y, task = constant_features()
    X = np.column_stack([X, X[:, 0] + 3 * np.random.default_rng(5).standard_normal(len(y))])
    model = ss.AdaptiveSpanRegressor(rank=1).fit(X, y, task=task)
    model.save(tmp_path / "m.span")
    loaded = ss.load(tmp_path / "m.span")
    assert "_statistics_" not in vars(loaded)
    plain = ss.AdaptiveSpanRegressor(rank=1, keep_statistics=False).fit(X, y, task=task)
    expected = ModelView(model).directions
    for view in (ModelView(loaded), ModelView(loaded, X, y, task), ModelView(plain, X, y, task)):
        np.testing.assert_allclose(view.directions.reach, expected.reach, rtol=1e-6, atol=1e-12)
    assert loaded.summary().span == model.summary().span
    assert len(expected.leading(0)) > 0
    assert ModelView(plain).directions.reach is None
    assert "--data" in ModelView(plain).directions.no_intervals


def test_loadings_of_collinear_features_have_no_error_along_their_own_direction():
    X, y, task = constant_features()
    Z = np.column_stack([X, X[:, 0] + X[:, 1]])  # exactly, and two features do not vary
    for rows in (X, Z):
        spans = ModelView(ss.AdaptiveSpanRegressor(rank=1).fit(rows, y, task=task)).directions
        largest = np.abs(spans.loadings[:, 0]).argmax()
        assert spans.reach[largest, 0] < 0.3 * np.abs(spans.loadings[largest, 0])


def test_a_feature_whose_loading_is_not_determined_names_no_direction():
    X, y, task = constant_features()
    model = ss.AdaptiveSpanRegressor(rank=2).fit(X, y, task=task)
    spans = ModelView(model).directions
    reach = spans.reach.copy()
    reach[0] = 9.0
    unclear = replace(spans, reach=reach)
    assert 0 not in unclear.leading(0)
    assert "x0" not in unclear.sentence(0, ["x0", "x1", "x2", "x3"])
    reach[:] = 9.0
    said = replace(spans, reach=reach).sentence(0, ["x0", "x1", "x2", "x3"])
    assert said == "none of its largest loadings can be told from zero."


def test_intervals_of_loadings_hold_for_tasks_of_very_different_sizes():
    covered = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        sizes = np.where(np.arange(60) < 8, 200, rng.integers(3, 12, 60))
        sim = ss.simulate(n_tasks=60, n_features=5, rank=1, n_samples=sizes, noise=1.0,
                          random_state=seed)  # fmt: skip
        model = ss.AdaptiveSpanRegressor(rank=1).fit(sim.X, sim.y, task=sim.task)
        spans = ModelView(model).directions
        V = (sim.coef - sim.coef.mean(axis=0)) * spans.metric.deviation
        axis = np.linalg.svd(spans.metric.predictions(V), full_matrices=False)[2][0]
        true = np.linalg.solve(spans.metric.root, axis)
        true *= np.sign(true @ spans.loadings[:, 0])
        covered.append(np.abs(true - spans.loadings[:, 0]) <= spans.reach[:, 0])
    assert np.mean(covered) > 0.85
