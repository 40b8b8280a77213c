import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import sharedspan as ss
from sharedspan.diagnosis.holdout_errors import HoldoutErrors, holdout_errors, random_folds
from sharedspan.diagnosis.model_view import ModelView
from sharedspan.diagnosis.rows import rows_by_task
from sharedspan.diagnosis.text import format_number, short
from sharedspan.report import facts as tables
from sharedspan.report.figures import as_svg, new_panel
from sharedspan.report.page import write_report

KINDS = (
    "SharedSpan", "AdaptiveSpan", "Curriculum", "Moment", "Spectral", "ARMUL", "PenalizedERM",
    "Pooled", "PerTask",
)  # fmt: skip
HOSTILE = [
    "<img src=x onerror=alert(1)>", "</script><script>alert(2)</script>", "<!--", "]]>",
    "<!-- <script x",
    "\"' onmouseover=alert(3)", "=1+1", 'a,"b"', "two\nlines\r\nand more", "שלום 123",
    "\u202eturned", "👩‍👩‍👧 family", "&lt;b&gt;", "{{ 7 * 7 }}", "z" * 10_000, "\u2028", "",
]  # fmt: skip


@pytest.fixture
def fitted(small):
    model = ss.SharedSpanRegressor(rank=2, solver="auto", random_state=0)
    return model.fit(small.X, small.y, task=small.task), small


def directions_of(model, X=None, y=None, task=None):
    return ModelView(model, X, y, task).directions


def read(path):
    return path.read_text("utf-8")


def data_of(page):
    return json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])


def numbers_of(page, name):
    data = data_of(page)
    column = next(c for c in data["columns"] if c["name"] == name)
    return np.frombuffer(base64.b64decode(column["data"]), f"<f{data['itemsize']}")


class Elements(HTMLParser):
    """Tags and attributes of a page, and the text that is neither style nor script."""

    def __init__(self, page):
        super().__init__()
        self.tags, self.attributes, self.words, self.skips = [], [], [], 0
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.skips += tag in ("script", "style")

    def handle_endtag(self, tag):
        self.skips -= tag in ("script", "style")

    def handle_data(self, text):
        if not self.skips:
            self.words.append(text)

    @property
    def text(self):
        return " ".join("".join(self.words).split())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_rows", [True, False])
def test_every_estimator_has_the_sections_that_it_can_fill_and_no_other(kind, with_rows, tmp_path):
    sim = ss.simulate(n_tasks=12, n_features=4, rank=2, n_samples=20, noise=0.5, random_state=0)
    model = getattr(ss, f"{kind}Regressor")().fit(sim.X, sim.y, task=sim.task)
    rows = (sim.X, sim.y, sim.task) if with_rows else ()
    path = write_report(model, tmp_path / "report.html", *rows)
    page = Elements(read(path))
    sections = [value for tag, name, value in page.attributes if (tag, name) == ("section", "id")]
    expected = ["rows", "common", "summary", "table"]
    expected += ["gains", "calibration"] * with_rows
    expected += ["residuals"] * (with_rows and model.shares == "population")
    expected += ["directions"] * (model.shares == "span" or bool(vars(model).get("rank_")))
    expected += ["map"] * (kind != "Pooled" or with_rows)
    assert set(sections) - {"advice", "misfits"} == set(expected)
    links = [value for tag, name, value in page.attributes if (tag, name) == ("a", "href")]
    assert links == [f"#{section}" for section in sections]
    assert len({value for _, name, value in page.attributes if name == "id"}) == len(
        [value for _, name, value in page.attributes if name == "id"]
    )
    assert ("Give the rows (--data)" in page.text) is not with_rows
    for word in ("nan", "None", "Undefined", "inf "):
        assert f" {word}" not in page.text.replace("None of its", "").split("Settings")[0]


def test_new_tasks_in_a_given_span_have_a_report(fitted, tmp_path):
    model, sim = fitted
    new = ss.NewTaskRegressor.from_model(model).fit(sim.X, sim.y, task=sim.task)
    path = write_report(new, tmp_path / "report.html", sim.X, sim.y, sim.task)
    assert "The span was given" in Elements(read(path)).text


def test_embedded_coefficients_are_those_of_the_model(fitted, tmp_path):
    model, _ = fitted
    page = read(write_report(model, tmp_path / "report.html"))
    for j, name in enumerate(model.coef_names_):
        np.testing.assert_array_equal(numbers_of(page, name), model.coef_[:, j])
    np.testing.assert_array_equal(numbers_of(page, "intercept"), model.intercept_)
    assert data_of(page)["tasks"] == [str(label) for label in model.tasks_]


def test_same_model_and_rows_give_the_same_page(fitted, tmp_path):
    model, sim = fitted
    one = write_report(model, tmp_path / "one.html", sim.X, sim.y, sim.task)
    two = write_report(model, tmp_path / "two.html", sim.X, sim.y, sim.task)
    assert read(one) == read(two)


def test_page_names_nothing_to_load_and_forbids_it(fitted, tmp_path):
    model, sim = fitted
    page = Elements(read(write_report(model, tmp_path / "report.html", sim.X, sim.y, sim.task)))
    policy = next(v for t, n, v in page.attributes if n == "content" and "default-src" in v)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    loads = [v for _, n, v in page.attributes if n in ("src", "href", "action", "srcset", "data")]
    assert all(v.startswith(("#", "data:")) for v in loads)
    assert not [n for _, n, _ in page.attributes if n.startswith("on") or n == "style"]


def test_plots_are_vector_graphics_with_their_numbers_in_words(fitted, tmp_path):
    model, sim = fitted
    page = Elements(read(write_report(model, tmp_path / "report.html", sim.X, sim.y, sim.task)))
    told = [v for tag, n, v in page.attributes if (tag, n) == ("svg", "aria-label")]
    assert page.tags.count("svg") == len(told) >= 6
    assert "img" not in page.tags
    assert "canvas" not in page.tags
    best = directions_of(model).loadings[:, 0]
    first = next(words for words in told if words.startswith("Loadings of direction 1"))
    assert f"first: x{np.abs(best).argmax()} {format_number(np.abs(best).max(), 2)}" in first


def test_common_coefficients_are_told_with_those_of_most_tasks(tmp_path):
    sim = ss.simulate(n_tasks=30, n_features=3, rank=1, n_samples=30, random_state=0)
    X = sim.X * [1.0, 20.0, 0.1]
    model = ss.AdaptiveSpanRegressor().fit(X, sim.y, task=sim.task)
    page = Elements(read(write_report(model, tmp_path / "report.html", X, sim.y, sim.task)))
    told = next(v for _, n, v in page.attributes if n == "aria-label" and v.startswith("Common"))
    unit = directions_of(model).metric.deviation
    np.testing.assert_allclose(unit, X.std(axis=0), rtol=0.05)
    for j in range(3):
        low, high = np.quantile(model.coef_[:, j] * unit[j], [0.05, 0.95])
        value = format_number(model.mean_coef_[j] * unit[j], 2)
        assert f"x{j} {value} ({format_number(low, 2)} to {format_number(high, 2)})" in told


def test_hostile_names_stay_text(tmp_path):
    pd = pytest.importorskip("pandas")
    names = [name for name in HOSTILE if name]
    sim = ss.simulate(
        n_tasks=len(HOSTILE), n_features=len(names), rank=1, n_samples=40, random_state=0
    )
    frame = pd.DataFrame(sim.X, columns=names)
    labels = np.array(HOSTILE, dtype=object)[sim.task]
    model = ss.SharedSpanRegressor(rank=1, solver="auto").fit(frame, sim.y, task=labels)
    names_of_page = {"task_name": "<b>task</b>", "target_name": "<i>y</i>", "title": "<u>title"}
    path = write_report(model, tmp_path / "report.html", frame, sim.y, labels, **names_of_page)
    page, raw = Elements(read(path)), read(path)
    assert not {"img", "b", "i", "u"} & set(page.tags)
    assert page.tags.count("script") == 2
    assert not [n for _, n, _ in page.attributes if n.startswith("on")]
    assert " 49 " not in page.text  # no name is a template
    assert "\u202e" not in page.text
    data = data_of(raw)
    assert data["tasks"] == sorted(HOSTILE)
    assert [c["name"] for c in data["columns"]][1 : 1 + len(names)] == names


def test_own_columns_step_aside_for_features_of_their_name(tmp_path):
    pd = pytest.importorskip("pandas")
    sim = ss.simulate(n_tasks=6, n_features=3, rank=1, n_samples=20, random_state=0)
    frame = pd.DataFrame(sim.X, columns=["intercept", "rows", "task"])
    model = ss.SharedSpanRegressor(rank=1, solver="auto").fit(frame, sim.y, task=sim.task)
    page = read(write_report(model, tmp_path / "report.html", frame, sim.y, sim.task))
    names = [column["name"] for column in data_of(page)["columns"]]
    assert len(names) == len(set(names))
    np.testing.assert_array_equal(numbers_of(page, "intercept"), model.coef_[:, 0])
    np.testing.assert_array_equal(numbers_of(page, "(intercept)"), model.intercept_)


def test_what_does_not_fit_the_page_is_left_out_and_said(fitted, tmp_path, monkeypatch):
    model, _ = fitted
    T, d = model.coef_.shape
    monkeypatch.setattr(tables, "NUMBERS", T * 4 * (d + 1) + T * 8 * 2)
    page = read(write_report(model, tmp_path / "single.html"))
    assert "Numbers have 7 digits" in page
    np.testing.assert_allclose(numbers_of(page, "x3"), model.coef_[:, 3], rtol=1e-6)

    monkeypatch.setattr(tables, "NUMBERS", T * 4 * 4 + T * 8 * 2)
    page = read(write_report(model, tmp_path / "few.html"))
    assert f"This table has the 3 of {d} features whose coefficients vary most" in page
    deviation = directions_of(model).metric.deviation
    most = np.sort(np.argsort(-(model.coef_ * deviation).std(axis=0))[:3])
    assert [c["name"] for c in data_of(page)["columns"]][1:4] == [f"x{j}" for j in most]

    monkeypatch.setattr(tables, "MOST_TASKS", 10)
    page = read(write_report(model, tmp_path / "tasks.html"))
    assert f"This page shows 10 of {T} tasks" in page
    assert len(data_of(page)["tasks"]) == 10


def test_gains_are_errors_of_refits_to_the_other_rows(fitted):
    model, sim = fitted
    rows = rows_by_task(model, sim.X, sim.y, sim.task)
    errors = holdout_errors(ModelView(model, sim.X, sim.y, sim.task))
    assert isinstance(errors, HoldoutErrors)
    fold = random_folds(np.bincount(rows.codes), np.random.default_rng(0))
    error = np.empty(len(rows.y))
    for i in range(4):
        held = fold == i
        again = ss.PerTaskRegressor().fit(rows.X[~held], rows.y[~held], task=rows.codes[~held])
        error[held] = rows.y[held] - again.predict(rows.X[held], task=rows.codes[held])
    assert errors.error("separate") == pytest.approx(np.sqrt(np.mean(error**2)))
    first = rows.codes == 0
    assert errors.task_error("separate")[0] == pytest.approx(np.sqrt(np.mean(error[first] ** 2)))
    change = errors.change("separate")
    assert change.gains + change.losses == len(model.tasks_)
    assert change.low < change.ratio < change.high
    ratio = errors.error("model") / errors.error("separate")
    assert change.ratio == pytest.approx(ratio, rel=1e-14)


def test_interval_of_a_gain_is_that_of_leaving_tasks_out(fitted):
    model, sim = fitted
    errors = holdout_errors(ModelView(model, sim.X, sim.y, sim.task))
    mine, other = errors.losses["model"], errors.losses["pooled"]
    T = len(mine)
    logs = np.array([0.5 * np.log(np.delete(mine, t).sum() / np.delete(other, t).sum())
                     for t in range(T)])  # fmt: skip
    jackknife = np.sqrt((T - 1) / T * np.sum((logs - logs.mean()) ** 2))
    change = errors.change("pooled")
    assert np.log(change.high / change.ratio) / 1.96 == pytest.approx(jackknife, rel=0.1)


def test_a_model_that_loses_is_said_to_lose(tmp_path):
    sim = ss.simulate(n_tasks=10, n_features=6, rank=6, n_samples=300, noise=0.1, random_state=0)
    model = ss.SharedSpanRegressor(rank=1, solver="auto", random_state=0)
    model.fit(sim.X, sim.y, task=sim.task)
    path = write_report(model, tmp_path / "report.html", sim.X, sim.y, sim.task)
    text = Elements(read(path)).text
    assert "Sharing does not help here. It raises the error" in text
    assert "use PerTaskRegressor (--estimator PerTaskRegressor)" in text
    assert "with one model per task, the error is smaller in 0 tasks and larger in 10" in text


def test_fits_to_folds_that_do_not_converge_are_told(small, tmp_path):
    model = ss.SharedSpanRegressor(rank=2, solver="tpgd", max_iter=3, random_state=0)
    with pytest.warns(match="did not converge"):
        model.fit(small.X, small.y, task=small.task)
    path = write_report(model, tmp_path / "report.html", small.X, small.y, small.task)
    assert "the model warned 4 times" in Elements(read(path)).text


def test_small_tasks_are_fitted_but_not_scored(tmp_path):
    sizes = [1, 1] + [30] * 8
    sim = ss.simulate(n_tasks=10, n_features=4, rank=1, n_samples=sizes, random_state=0)
    model = ss.SharedSpanRegressor(rank=1, solver="auto").fit(sim.X, sim.y, task=sim.task)
    errors = holdout_errors(ModelView(model, sim.X, sim.y, sim.task))
    assert errors.small == 2
    assert errors.rows.tolist() == [0, 0] + [30] * 8
    page = read(write_report(model, tmp_path / "report.html", sim.X, sim.y, sim.task))
    assert "2 tasks with fewer than 2 rows were fitted but not scored" in Elements(page).text
    assert np.isnan(numbers_of(page, "held-out error")[:2]).all()


@pytest.mark.parametrize("kind", ["SharedSpan", "AdaptiveSpan"])
def test_loadings_do_not_depend_on_the_units_of_features(kind):
    sim = ss.simulate(n_tasks=40, n_features=5, rank=2, n_samples=40, noise=0.5, random_state=1)
    units = np.array([1e-3, 1.0, 10.0, 1e4, 0.3])
    spans = []
    for X in (sim.X, sim.X * units):
        options = {"random_state": 0} | ({"solver": "auto"} if kind == "SharedSpan" else {})
        model = getattr(ss, f"{kind}Regressor")(rank=2, **options).fit(X, sim.y, task=sim.task)
        spans.append(directions_of(model, X, sim.y, sim.task))
    np.testing.assert_allclose(spans[0].loadings, spans[1].loadings, atol=1e-4)
    np.testing.assert_allclose(spans[0].reach, spans[1].reach, rtol=1e-2)
    np.testing.assert_allclose(spans[0].places, spans[1].places, atol=1e-4)


@pytest.mark.parametrize("kind", ["SharedSpan", "AdaptiveSpan"])
@pytest.mark.parametrize("kappa", [1.3, 3.0])
def test_intervals_of_loadings_cover_the_true_principal_axes(kind, kappa):
    covered = []
    for seed in range(16):
        sim = ss.simulate(n_tasks=50, n_features=8, rank=2, n_samples=40, noise=1.0,
                          condition_number=kappa, random_state=seed)  # fmt: skip
        model = getattr(ss, f"{kind}Regressor")(rank=2).fit(sim.X, sim.y, task=sim.task)
        spans = directions_of(model, sim.X, sim.y, sim.task)
        V = sim.coef * spans.metric.deviation
        V = V - V.mean(axis=0) if spans.about_mean else V
        axes = np.linalg.svd(spans.metric.predictions(V), full_matrices=False)[2][:2].T
        true = np.linalg.solve(spans.metric.root, axes)
        true *= np.sign(np.sum(true * spans.loadings, axis=0))
        covered.append(np.abs(true - spans.loadings) <= spans.reach)
    assert 0.87 < np.mean(covered) < 0.99


def test_outliers_have_no_say_in_shares():
    sim = ss.simulate(n_tasks=60, n_features=20, rank=2, n_samples=50, outliers=0.05,
                      random_state=0)  # fmt: skip
    model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    diagnosis = ss.diagnose(model)
    assert sorted(diagnosis.outliers) == np.flatnonzero(sim.is_outlier).tolist()
    spans = directions_of(model)
    np.testing.assert_array_equal(spans.usual, ~sim.is_outlier)
    assert spans.share.sum() == pytest.approx(diagnosis.span_share)
    everywhere = np.sum(spans.places**2) / np.sum(spans.coefficients**2)
    assert everywhere < 0.9 * spans.share.sum()


def test_a_model_without_scales_says_that_its_loadings_have_units(fitted, tmp_path):
    _, sim = fitted
    model = ss.MomentRegressor(rank=2).fit(sim.X, sim.y, task=sim.task)
    said = "features in their own units"
    assert said in Elements(read(write_report(model, tmp_path / "report.html"))).text
    path = write_report(model, tmp_path / "report.html", sim.X, sim.y, sim.task)
    assert said not in Elements(read(path)).text


def test_task_column_of_a_frame_is_the_task(small, tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(small.X, columns=[f"f{j}" for j in range(8)]).assign(unit=small.task)
    model = ss.SharedSpanRegressor(rank=2, solver="auto", task_column="unit", random_state=0)
    model.fit(frame, small.y)
    page = read(write_report(model, tmp_path / "report.html", frame, small.y))
    alone = ss.SharedSpanRegressor(rank=2, solver="auto", random_state=0)
    alone.fit(small.X, small.y, task=small.task)
    other = read(write_report(alone, tmp_path / "other.html", small.X, small.y, small.task))
    np.testing.assert_allclose(
        numbers_of(page, "held-out error"), numbers_of(other, "held-out error")
    )


def test_directions_of_equal_strength_are_said_to_be_alike():
    sim = ss.simulate(n_tasks=60, n_features=6, rank=3, n_samples=60, noise=0.1, random_state=0)
    sim.coef[:] = np.linalg.qr(sim.coef.T @ sim.coef)[0][:, :3].T[np.arange(60) % 3]
    y = np.einsum("ij,ij->i", sim.X, sim.coef[sim.task])
    model = ss.SharedSpanRegressor(rank=3, solver="auto").fit(sim.X, y, task=sim.task)
    assert directions_of(model).about_equally_strong() == [(0, 2)]


def test_nonsense_is_refused(fitted, tmp_path):
    model, sim = fitted
    path = tmp_path / "report.html"
    with pytest.raises(ValueError, match="X was given without y"):
        write_report(model, path, sim.X)
    with pytest.raises(ValueError, match="y was given without X"):
        write_report(model, path, y=sim.y)
    with pytest.raises(ValueError, match="task was given without X"):
        write_report(model, path, task=sim.task)
    with pytest.raises(TypeError, match="give a sharedspan estimator"):
        write_report("model", path)
    with pytest.raises(ValueError, match="not fitted"):
        write_report(ss.SharedSpanRegressor(), path)
    assert list(tmp_path.iterdir()) == []


def test_progress_is_told(fitted, tmp_path):
    model, sim = fitted
    told = []
    write_report(model, tmp_path / "report.html", sim.X, sim.y, sim.task,
                 progress=lambda *said: told.append(said))  # fmt: skip
    assert [done for what, done, total in told if what == "held-out errors"] == list(range(16))
    assert told[-1] == ("drawing", 0, 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (1234.5, "1,234"), (-0.012345, "−0.0123"), (9.999, "10.0"), (1.5e9, "1.50×10⁹"),
     (-2e-7, "−2.00×10⁻⁷"), (float("nan"), "–"), (float("inf"), "∞")],
)  # fmt: skip
def test_numbers_are_written_for_readers(value, text):
    assert format_number(value) == text


def test_short_names_keep_both_ends_and_hide_nothing():
    assert short("plain") == "plain"
    assert short("a" * 30 + "b" * 9_970, 30) == "a" * 19 + "…" + "b" * 10
    assert short("a\r\nb\tc\x00") == "a↵b⇥c\ufffd"
    assert short("\u202eabc\u2066") == "abc"
    assert short("") == "(empty)"
    assert short("\ud800x") == "?x"


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("ends", [(0.013, 0.94), (1.0, 1.0), (3.2, 3.3), (1e-12, 1e6), (5.0, 9e8)])
def test_ticks_lie_within_their_scale(ends, log):
    panel = new_panel()
    panel.plot(ends, ends)
    if log:
        panel.set(xscale="log", yscale="log")
    drawn = as_svg(panel, "key", "words")
    for axis in (panel.xaxis, panel.yaxis):
        low, high = axis.get_view_interval()
        ticks = np.array([tick for tick in axis.get_majorticklocs() if low <= tick <= high])
        labels = [axis.get_major_formatter()(tick) for tick in ticks]
        assert 1 <= len(ticks) <= 8
        assert len(set(labels)) == len(labels)
        assert all(f">{label}</text>" in drawn for label in labels)


# Collinear features


def doubled(rounding):
    """Rows whose last feature is three times the one before it, up to rounding.

    The tasks differ in the first feature; the collinear pair has one effect in all of them.
    """
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(40), 60)
    X = rng.standard_normal((len(task), 5))
    X[:, 4] = 3 * X[:, 3] + rounding * rng.standard_normal(len(task))
    slopes = np.zeros((40, 5))
    slopes[:, 0], slopes[:, 3] = 3 * rng.standard_normal(40), 1.0
    y = np.einsum("ij,ij->i", X, slopes[task]) + 0.5 * rng.standard_normal(len(task))
    return X, y, task


def direction_by_predictions(model, X, task):
    """Shares of the variance within tasks that slopes predict, computed from rows alone."""
    centred = X - np.array([X[task == t].mean(axis=0) for t in model.tasks_])[task]
    predicted = np.linalg.svd(centred, full_matrices=False)
    root = (predicted.S[:, None] * predicted.Vh) / np.sqrt(len(X))
    values = np.linalg.svd(model.coef_ @ root.T, compute_uv=False) ** 2
    return values[:2] / values.sum()


@pytest.mark.parametrize("rounding", [0.0, 1e-4])
@pytest.mark.parametrize("with_rows", [True, False])
def test_directions_are_ordered_by_what_they_predict(rounding, with_rows):
    X, y, task = doubled(rounding)
    model = ss.SharedSpanRegressor(rank=2, solver="auto", random_state=0).fit(X, y, task=task)
    spans = directions_of(model, *((X, y, task) if with_rows else ()))
    np.testing.assert_allclose(spans.share, direction_by_predictions(model, X, task), rtol=1e-6)
    assert np.abs(spans.loadings[:, 0]).argmax() == 0
    assert np.abs(spans.loadings).max() < 1.1
    np.testing.assert_allclose(spans.loadings[3], spans.loadings[4], atol=1e-3)
    assert spans.metric.groups == [[3, 4]]


def test_places_times_loadings_are_the_coefficients_of_standardised_features():
    rng = np.random.default_rng(0)
    sim = ss.simulate(n_tasks=30, n_features=5, rank=2, n_samples=30, random_state=0)
    X = sim.X @ (np.eye(5) + 0.5 * rng.standard_normal((5, 5)))
    model = ss.SharedSpanRegressor(rank=2, solver="auto", random_state=0).fit(X, sim.y, sim.task)
    spans = directions_of(model)
    np.testing.assert_allclose(
        spans.places @ spans.loadings.T, model.coef_ * spans.metric.deviation
    )
    R = spans.metric.correlation
    np.testing.assert_allclose(spans.loadings.T @ R @ spans.loadings, np.eye(2), atol=1e-10)


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("Moment", "Pooled")])
def test_deviations_are_those_within_tasks_for_every_estimator(kind):
    sim = ss.simulate(n_tasks=12, n_features=4, rank=1, n_samples=20, noise=0.5, random_state=0)
    X = sim.X + 5 * np.random.default_rng(0).standard_normal((12, 4))[sim.task]
    X[:, 2] = X[:, 0] + X[:, 1]
    X[:, 3] = 0.1 * sim.task
    centred = X - np.array([X[sim.task == t].mean(axis=0) for t in range(12)])[sim.task]
    model = getattr(ss, f"{kind}Regressor")().fit(X, sim.y, task=sim.task)
    rows = X, sim.y, sim.task
    for given in (rows, ()):
        deviation = directions_of(model, *given).metric.deviation
        np.testing.assert_allclose(deviation, centred.std(axis=0), rtol=1e-9, atol=1e-13)
    assert directions_of(model, *rows).metric.deviation[3] == 0


def test_collinear_features_are_named_beside_what_they_concern(tmp_path):
    pd = pytest.importorskip("pandas")
    X, y, task = doubled(1e-4)
    frame = pd.DataFrame(X, columns=["a", "b", "c", "one", "triple"])
    model = ss.SharedSpanRegressor(rank=2, solver="auto", random_state=0).fit(frame, y, task=task)
    page = Elements(read(write_report(model, tmp_path / "report.html", frame, y, task)))
    assert page.text.count("one and triple cannot be distinguished") == 3
    told = next(v for _, n, v in page.attributes if n == "aria-label" and v.startswith("Common"))
    for name in ("one", "triple"):
        value = float(re.search(rf"{name} ([\d.]+) ", told)[1])
        assert value == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("kind", ["SharedSpan", "AdaptiveSpan"])
@pytest.mark.parametrize("rounding", [0.0, 1e-2])
def test_collinear_features_without_effect_are_not_told_from_zero(kind, rounding):
    told = []
    for seed in range(6):
        sim = ss.simulate(n_tasks=40, n_features=5, rank=2, n_samples=40, random_state=seed)
        rng = np.random.default_rng(seed)
        X = np.column_stack([sim.X, rng.standard_normal(len(sim.y))])
        X = np.column_stack([X, 3 * X[:, 5] + rounding * rng.standard_normal(len(sim.y))])
        model = getattr(ss, f"{kind}Regressor")(rank=2).fit(X, sim.y, task=sim.task)
        spans = directions_of(model, X, sim.y, sim.task)
        assert spans.metric.groups == [[5, 6]]
        told.append(np.abs(spans.loadings[5:]) > spans.reach[5:])
    assert np.mean(told) < 0.15


def test_directions_are_turned_so_that_most_tasks_lie_ahead():
    sim = ss.simulate(n_tasks=30, n_features=4, rank=1, n_samples=30, random_state=0)
    for sign in (1, -1):
        slopes = sign * np.outer(2 + sim.coef[:, 0] / 10, [1.0, 0.5, -3.0, 0.0])
        y = np.einsum("ij,ij->i", sim.X, slopes[sim.task])
        y += 0.1 * np.random.default_rng(0).standard_normal(len(y))
        model = ss.SharedSpanRegressor(rank=1, random_state=0).fit(sim.X, y, task=sim.task)
        spans = directions_of(model)
        assert (spans.places > 0).all()
        np.testing.assert_array_equal(np.sign(spans.loadings[:3, 0]), sign * np.array([1, 1, -1]))


def test_loadings_that_are_not_determined_are_said_to_be_none(tmp_path):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(20), 12)
    X = rng.standard_normal((len(task), 4))
    X[:, 3] = X[:, 2] + 0.12 * rng.standard_normal(len(task))  # inflated by 70: not collinear yet
    y = X[:, 0] * rng.standard_normal(20)[task] + 5 * rng.standard_normal(len(task))
    model = ss.SharedSpanRegressor(rank=1, solver="auto", random_state=0).fit(X, y, task=task)
    spans = directions_of(model)
    assert spans.metric.groups == []
    assert not spans.determined[2:].any()
    page = Elements(read(write_report(model, tmp_path / "report.html", X, y, task)))
    assert "not determined" in page.text
    assert not re.search(r"±\d\d", page.text)


def test_shares_of_different_wholes_are_told_apart(tmp_path):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(40), 60)
    X = rng.standard_normal((len(task), 5))
    y = np.einsum("ij,ij->i", X, 3 + rng.standard_normal((40, 5))[task])
    y += rng.standard_normal(len(task))
    model = ss.SharedSpanRegressor(rank=1, solver="auto", random_state=0).fit(X, y, task=task)
    page = Elements(read(write_report(model, tmp_path / "report.html", X, y, task)))
    text = page.text.replace("\u00a0", " ")
    share = re.search(
        r"which accounts for (\d+) % of the variation of slopes between tasks; the model", text
    )
    assert int(share[1]) < 60
    assert "100 % of what the model's slopes predict" in text


def test_groups_within_groups_have_a_report(tmp_path):
    rng = np.random.default_rng(0)
    inner = np.repeat(np.arange(24), 8)
    frame = pd.DataFrame({"x": rng.standard_normal(len(inner)), "a": inner // 4, "b": inner})
    level = rng.standard_normal(6)[inner // 4] + rng.standard_normal(24)[inner]
    frame["y"] = level + frame["x"] + rng.standard_normal(len(inner))
    model = ss.mixed("y ~ x + (1 | a/b)", frame)
    page = read(write_report(model, tmp_path / "report.html", frame.drop(columns="y"), frame["y"]))
    assert "held-out" in page
