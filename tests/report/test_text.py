"""Sentences and captions of the report for unusual models."""

import base64
import json
import re
from html.parser import HTMLParser
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import sharedspan as ss
from sharedspan.diagnosis.holdout_errors import HoldoutErrors
from sharedspan.diagnosis.text import setting
from sharedspan.report.figures import as_svg
from sharedspan.report.page import write_report
from sharedspan.report.prediction_plots import holdout_plot
from sharedspan.report.text import holdout_reading


class Page(HTMLParser):
    """Text of a page by section, descriptions of its plots, and its data."""

    def __init__(self, path):
        super().__init__()
        self.parts, self.alternatives, self.skips, self.section = {}, [], 0, "head"
        whole = path.read_text("utf-8")
        self.data = json.loads(re.search(r'id="data">(.*?)</script>', whole, re.DOTALL)[1])
        self.title = re.search(r"<title>(.*?)</title>", whole, re.DOTALL)[1]
        self.feed(whole)

    def handle_starttag(self, tag, attrs):
        self.skips += tag in ("script", "style")
        if tag == "section":
            self.section = dict(attrs)["id"]
        if tag == "svg":
            self.alternatives.append(dict(attrs)["aria-label"])
        self.handle_data(" " if tag in ("td", "th", "p", "li", "tr") else "")

    def handle_endtag(self, tag):
        self.skips -= tag in ("script", "style")

    def handle_data(self, text):
        if not self.skips:
            self.parts.setdefault(self.section, []).append(text)

    def __getitem__(self, section):
        return " ".join("".join(self.parts[section]).split())

    @property
    def text(self):
        return " ".join(self[section] for section in self.parts)

    def column(self, name):
        column = next(c for c in self.data["columns"] if c["name"] == name)
        return np.frombuffer(base64.b64decode(column["data"]), f"<f{self.data['itemsize']}")


@pytest.fixture
def page_of(tmp_path):
    """The page on a model, with the rows if they are given."""

    def write(model, *rows, **names):
        return Page(write_report(model, tmp_path / "report.html", *rows, **names))

    return write


def rows_of(n_tasks=12, n_features=4, rank=2, n_samples=20, **options):
    options = {"noise": 0.5, "random_state": 0} | options
    sim = ss.simulate(
        n_tasks=n_tasks, n_features=n_features, rank=rank, n_samples=n_samples, **options
    )
    return sim.X, sim.y, sim.task


def fitted(kind, rows, **options):
    return getattr(ss, f"{kind}Regressor")(**options).fit(rows[0], rows[1], task=rows[2])


def errors_of(mine, other):
    n = len(mine)
    squares = {"model": np.asarray(mine), "pooled": np.asarray(other)}
    return HoldoutErrors(squares, np.full(n, 9), 100.0, 0, ())


# Gains


def test_interval_of_a_gain_is_that_of_students_t():
    mine, other = np.array([1.0, 2.0, 1.5, 0.7, 1.1, 3.0]), np.full(6, 2.0)
    change = errors_of(mine, other).change("pooled")
    influence = 0.5 * (mine / mine.mean() - other / other.mean())  # of a task on the log ratio
    low, high = stats.t.interval(0.95, 5, np.log(change.ratio), stats.sem(influence))
    assert (change.low, change.high) == pytest.approx((np.exp(low), np.exp(high)))


@pytest.mark.parametrize(("n_tasks", "bounded"), [(2, False), (4, False), (5, True)])
def test_few_tasks_have_no_interval(n_tasks, bounded):
    other = np.linspace(1, 2, n_tasks)
    errors = errors_of(0.5 * other, other)
    assert errors.change("pooled").bounded == errors.change("pooled").clear == bounded


def test_the_table_of_gains_says_that_two_tasks_are_too_few(page_of):
    rows = rows_of(n_tasks=2, rank=1, n_samples=40)
    page = page_of(fitted("SharedSpan", rows, rank=1, solver="auto"), *rows)
    assert "too few tasks" in page["gains"]
    assert "Intervals are computed" not in page["gains"]
    assert "(2 tasks are too few for an interval)" in page["head"]
    assert "intervals of the change" not in page["head"]


def test_scales_that_cannot_be_logarithmic_are_not_said_to_be():
    other = np.linspace(1, 2, 6)
    facts = SimpleNamespace(diagnosis=SimpleNamespace(rank=None))
    none = np.zeros(6)
    for mine, baseline, logarithmic in ((0.5 * other, other, True), (none, other, False),
                                      (none, none, False)):  # fmt: skip
        errors = errors_of(mine, baseline)
        said = " ".join(holdout_reading(facts, errors))
        assert ("logarithmic" in said) is logarithmic
        panel = holdout_plot(errors, "pooled", np.arange(6), "common slopes").panel
        assert panel.get_xscale() == panel.get_yscale() == ("log" if logarithmic else "linear")
        labels = re.findall(r"<text[^>]*>([^<]*)</text>", as_svg(panel, "key", "words"))
        assert "error of this model" in labels
        assert not [label for label in labels if label.startswith("−")]


def test_one_task_is_one_task():
    other = np.linspace(1, 2, 6)
    errors = errors_of(other * [0.5, 2, 2, 2, 2, 2], other)
    plot = holdout_plot(errors, "pooled", np.arange(6), "common slopes")
    assert "in 1 task and larger in 5" in plot.caption


@pytest.mark.parametrize(
    ("kind", "fits", "other"),
    [("Pooled", "that ignores tasks and by one ridge regression per task.", "by pooled slopes"),
     ("PerTask", "that ignores tasks and by pooled slopes", "by one ridge regression per task")],
)  # fmt: skip
def test_the_fits_told_are_those_of_the_table(kind, fits, other, page_of):
    rows = rows_of()
    said = page_of(fitted(kind, rows), *rows)["gains"]
    assert fits in said
    assert other not in said


@pytest.mark.parametrize("rank", [2, "auto"])
def test_only_a_rank_that_was_selected_is_said_to_be(rank, page_of):
    rows = rows_of()
    said = page_of(fitted("SharedSpan", rows, rank=rank, solver="auto"), *rows)["gains"]
    assert ("its rank selected anew" in said) is (rank == "auto")


# Advice


@pytest.mark.parametrize(("rank", "beaten"), [(1, True), (6, False)])
def test_the_page_begins_with_the_simpler_model_that_predicts_better(rank, beaten, page_of):
    rows = rows_of(n_tasks=10, n_features=6, rank=6, n_samples=300, noise=0.1)
    page = page_of(fitted("SharedSpan", rows, rank=rank, solver="auto", random_state=0), *rows)
    assert ("use PerTaskRegressor (--estimator PerTaskRegressor)" in page["head"]) is beaten
    assert ("See whether AdaptiveSpanRegressor does better" in page.text) is beaten


def test_advice_on_noise_reaches_the_page_with_its_option(page_of):
    X, _, task = rows_of(n_tasks=30, n_samples=60)
    rng = np.random.default_rng(0)
    y = X[:, 0] * (1 + task % 3) + rng.normal(size=len(X)) * np.where(task % 2, 0.05, 1.0)
    model = fitted("SharedSpan", (X, y, task), rank=1, solver="auto")
    assert "noise='per_task' (--noise-per-task)" in page_of(model, X, y, task)["advice"]


# Models without a span


@pytest.mark.parametrize("n_new", [8, 40])  # fewer and more tasks than features
def test_a_prior_on_all_slopes_is_not_called_a_span(n_new, page_of):
    X, y, task = rows_of(n_tasks=60, n_features=10, n_samples=11)
    old = task >= n_new
    model = ss.AdaptiveSpanRegressor().fit(X[old], y[old], task=task[old])
    new = ss.NewTaskRegressor.from_model(model).fit(X[~old], y[~old], task=task[~old])
    page = page_of(new, X[~old], y[~old], task[~old])
    assert "a prior on all slopes" in page["head"]
    assert "directions" not in page.parts
    for word in ("10 shared directions", "rank 10", "Direction 1", "has no shared directions"):
        assert word not in page.text
    assert "direction 1" not in [column["name"] for column in page.data["columns"]]


def test_slopes_that_all_share_are_not_told_as_differences(page_of):
    rows = rows_of()
    page = page_of(fitted("Pooled", rows), *rows)
    assert "same slopes" in page["head"]
    assert "middle 90" not in page["common"]
    assert not any(words.startswith("Size of the coefficients") for words in page.alternatives)
    told = next(words for words in page.alternatives if words.startswith("Common coefficients"))
    assert " to " not in told
    assert "differ in their level, and in nothing else" in page["map"]


@pytest.mark.parametrize("kind", ["Pooled", "PerTask"])
def test_levels_are_predictions_at_the_average_of_the_rows(kind, page_of):
    X, y, task = rows_of(intercept=3.0)
    model = fitted(kind, (X, y, task))
    page = page_of(model, X, y, task)
    average = np.tile(X.mean(axis=0), (12, 1))
    expected = model.predict(average, task=model.tasks_)
    np.testing.assert_allclose(page.column("level at average features"), expected)
    assert "levels" in page.data["plots"]
    assert ("slopes" in page.data["plots"]) is (kind == "PerTask")


def test_tasks_that_do_not_differ_at_all_are_said_to_be_alike(page_of):
    rng = np.random.default_rng(0)
    X, task = rng.standard_normal((600, 3)), np.repeat(np.arange(30), 20)
    model = ss.AdaptiveSpanRegressor(slopes="zero", rank=0).fit(X, X.sum(axis=1) + 1, task=task)
    head = page_of(model)["head"]
    assert "the same slopes and the same intercept" in head
    assert "differ only in their intercepts" not in head


def test_a_model_without_a_span_shows_the_slopes_that_vary_most(page_of):
    X, y, task = rows_of(n_features=12, rank=12, n_samples=60)
    X = X * np.where(np.arange(12) == 5, 1e-3, 1.0)  # its coefficients are large, its effect not
    model = fitted("PerTask", (X, y, task))
    page = page_of(model, X, y, task)
    told = next(words for words in page.alternatives if "those that vary most" in words)
    spread = (model.coef_ * X.std(axis=0)).std(axis=0)
    names = re.findall(r"(x\d+) from", told)
    assert sorted(names) == sorted(f"x{j}" for j in np.argsort(-spread)[:8])
    assert page.data["plots"]["slopes"]["tasks"] == list(range(12)) * 8
    assert "The 8 of 12 coefficients that vary most." in page["map"]


def test_without_rows_a_pooled_model_has_no_section_on_differences(page_of):
    page = page_of(fitted("Pooled", rows_of()))
    assert "map" not in page.parts
    assert "Give the rows (--data)" in page["head"]


@pytest.mark.parametrize("levels", [0.0, 1.0])
def test_a_response_that_does_not_vary_is_told_in_one_sentence(levels, page_of):
    X, _, task = rows_of()
    rows = X, 3.0 + levels * task, task
    page = page_of(fitted("SharedSpan", rows, rank=1, solver="auto"), *rows)
    said = "The response does not vary within tasks"
    assert said in page["head"]
    assert "gains" not in page.parts
    for word in (
        "nan",
        "±0",
        "may be chance",
        "respond more",
        "logarithmic",
        "Direction 1",
        "isometry",
    ):
        assert word not in page.text
    assert ("levels" in page.data["plots"]) is (levels > 0)


# Captions and numbers


@pytest.mark.parametrize(
    ("n_samples", "given", "words"),
    [(8, True, "by construction: no task has the 12 rows needed to measure it"),
     (8, False, "by construction: rows (--data) would measure it"),
     (30, True, "")],
)  # fmt: skip
def test_what_was_not_measured_is_said_with_the_reason(n_samples, given, words, page_of):
    rows = rows_of(n_tasks=40, n_features=6, n_samples=n_samples)
    model = fitted("SharedSpan", rows, rank=2, solver="auto")
    said = page_of(model, *(rows if given else ()))["summary"]
    assert words in said
    assert ("by construction" in said) is bool(words)


def test_common_coefficients_say_how_many_are_shown_and_what_is_open(page_of):
    rows = rows_of(n_tasks=15, n_features=27, n_samples=60)
    said = page_of(fitted("AdaptiveSpan", rows), *rows)["common"]
    assert "The 20 largest of 27 features." in said
    assert "An open circle means that the effect is positive in some of these tasks" in said


def test_choice_of_the_rank_has_a_quantity_and_a_unit(page_of):
    rows = rows_of(n_tasks=30)
    page = page_of(fitted("SharedSpan", rows, solver="auto"), *rows, target_name="price")
    assert any(words.startswith("Excess squared error by rank") for words in page.alternatives)
    assert "Mean squared error on held-out rows" in page["summary"]
    assert "in squared units of the response" in page["summary"]


@pytest.mark.parametrize("method", ["evidence", "threshold"])
def test_other_ways_to_choose_a_rank_are_drawn_in_words_too(method, page_of):
    rows = rows_of(n_tasks=30, n_samples=40)
    page = page_of(fitted("SharedSpan", rows, rank=method, solver="auto"), *rows)
    name = {"evidence": "Misfit per row", "threshold": "Strength left out"}[method]
    assert any(words.startswith(f"{name} by rank") for words in page.alternatives)


@pytest.mark.parametrize("kind", ["SharedSpan", "AdaptiveSpan"])
def test_plain_words_stand_before_technical_ones(kind, page_of):
    rows = rows_of(n_tasks=40, n_samples=40)
    page = page_of(fitted(kind, rows), *rows)
    for word in ("in logs", "paid for", "matrices of this rank", "separate regressions have"):
        assert word not in page.text
    for word in ("signal to noise", "condition number", "isometry"):
        assert f"({word})" in page["summary"]
        assert page["summary"].count(word) == 1


def test_circles_of_the_spectrum_are_explained(page_of):
    rows = rows_of()
    page = page_of(fitted("SharedSpan", rows, rank=2, solver="auto"), *rows)
    assert "it shrinks coefficients, so that circles may be below points" in page["summary"]


def test_settings_that_are_arrays_are_told_by_their_shape(page_of):
    assert setting(np.zeros((1000, 2))) == "array of 1,000 × 2 numbers"
    assert setting(0.5) == "0.5"
    rows = rows_of()
    model = ss.NewTaskRegressor.from_model(fitted("SharedSpan", rows, rank=2, solver="auto"))
    said = page_of(model.fit(rows[0], rows[1], task=rows[2]))["summary"]
    said = said[said.index("Settings of the model") :]
    assert "array(" not in said
    assert "array of 4 × 2 numbers" in said


def test_a_title_does_not_turn_the_direction_of_text(page_of):
    page = page_of(fitted("Pooled", rows_of()), title="a\u202eb\x07")
    assert page.title == "ab\ufffd"
