"""The verdict at the head of the report, advice that agrees with it, and facts about the data."""

import re
from dataclasses import replace

import numpy as np
import pytest

import sharedspan as ss
from sharedspan.diagnosis.advice import advice_on
from sharedspan.diagnosis.compared_methods import IGNORED
from sharedspan.diagnosis.holdout_errors import random_folds
from sharedspan.diagnosis.leaderboard import leaderboard, recommend
from sharedspan.diagnosis.model_view import ModelView
from sharedspan.diagnosis.split_runs import Runs
from sharedspan.diagnosis.verdict import Gain, holdout_gains
from sharedspan.report.facts import Facts
from sharedspan.report.headline import advice, headline
from sharedspan.report.page import write_report
from sharedspan.report.text import candidates_reason, distinct_candidates, numbers


def facts_of(model, *rows, task_name="shop", target_name=None):
    return Facts(ModelView(model, *rows), task_name, target_name, lambda *told: None)


def text_of(path):
    page = re.sub(r"(?s)<(style|script)[^>]*>.*?</\\1>", "", path.read_text("utf-8"))
    return " ".join(re.sub(r"<[^>]+>", " ", page).split()).replace("\u00a0", " ")


def shared_rows(noise=1.0, rank=1):
    """Rows of 40 tasks whose slopes are all along one direction."""
    sim = ss.simulate(
        n_tasks=40, n_features=6, rank=rank, n_samples=12, noise=noise, random_state=0
    )
    return sim.X, sim.y, sim.task


def pooled_rows():
    """Rows of 40 tasks that differ in their level alone."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(40), 12)
    X = rng.standard_normal((len(task), 3))
    return X, X @ [1.0, 2.0, 0.0] + task / 10 + rng.standard_normal(len(task)), task


def fit(kind, rows, **options):
    return getattr(ss, f"{kind}Regressor")(**options).fit(rows[0], rows[1], task=rows[2])


def test_a_gain_says_to_keep_the_model_and_names_all_simpler_ones_if_the_first_is_the_best():
    rows = shared_rows()
    said = headline(facts_of(fit("SharedSpan", rows, rank=1), *rows))
    pattern = (
        r"Sharing cuts the error by \d+ % against one model ignoring tasks, "
        r"by \d+ % against common slopes "
        r"\(with an intercept for each shop\) and by [\d.]+ % against "
    )
    assert said.outcome == "gain"
    assert re.fullmatch(pattern + "one model per shop: keep this model.",
                        said.sentence.replace("\u00a0", " "))  # fmt: skip
    assert "held out" in said.basis


def test_a_model_as_good_as_one_for_all_names_the_simpler_one():
    rows = pooled_rows()
    facts = facts_of(fit("AdaptiveSpan", rows), *rows)
    facts.gains = [Gain("pooled", 0.001, 0.01), Gain("separate", 0.2, 0.01)]
    said = headline(facts)
    use = "use PooledRegressor (--estimator PooledRegressor), which is simpler but has no "
    use += "prediction intervals."
    assert said.sentence.endswith(f"(with an intercept for each shop): keep this model, or {use}")
    facts.gains = [Gain("pooled", 0.001, 0.01), Gain("separate", 0.002, 0.01)]
    assert headline(facts).outcome == "even"
    assert headline(facts).sentence.endswith(f"one model per shop: keep this model, or {use}")
    facts = facts_of(fit("SharedSpan", rows, rank=1), *rows)
    facts.gains = [Gain("pooled", 0.001, 0.01), Gain("separate", 0.002, 0.01)]
    assert headline(facts).sentence.endswith(f"one model per shop: {use}")


def test_where_tasks_do_not_differ_the_report_names_one_model_that_ignores_them(tmp_path):
    rng = np.random.default_rng(0)
    X, task = rng.standard_normal((600, 3)), np.repeat(np.arange(40), 15)
    rows = X, X @ [1.0, 2.0, 0.0] + rng.standard_normal(600), task
    model = fit("AdaptiveSpan", rows)
    said = headline(facts_of(model, *rows))
    assert said.outcome == "even"
    assert said.sentence == (
        "The tasks hardly differ: one model that ignores them predicts as well. Keep this model, "
        "or use a ridge regression of all rows, ignoring tasks, which is simpler but has no "
        "prediction intervals."
    )
    text = text_of(write_report(model, tmp_path / "report.html", *rows))
    assert "by one ridge regression that ignores tasks" in text
    assert re.search(r"one model ignoring tasks [\d.]+ ±0", text)


def test_the_report_and_the_comparison_recommend_the_same_and_call_the_same_model_unstable():
    rows = shared_rows()
    facts = facts_of(fit("AdaptiveSpan", rows), *rows)
    losses = {"model": np.ones(40), "separate": np.ones(40), "pooled": np.full(40, 1.3),
              "ignored": np.full(40, 2.0)}  # fmt: skip
    losses["model"][7] = 80.0
    facts.errors = replace(facts.errors, losses=losses, rows=np.ones(40, dtype=int))
    facts.gains = holdout_gains(facts.errors)
    names = {"model": "AdaptiveSpanRegressor", "separate": "PerTaskRegressor",
             "pooled": "PooledRegressor", "ignored": IGNORED}  # fmt: skip
    runs = {names[key]: Runs(rmse=[1.0], task_losses=values, n_held=40)
            for key, values in losses.items()}  # fmt: skip
    entries = leaderboard(runs)
    assert recommend(entries).method == "PerTaskRegressor"
    said = headline(facts).sentence
    assert "use PerTaskRegressor (--estimator PerTaskRegressor), which has no prediction" in said
    (entry,) = [one for one in entries if one.unstable]
    assert said.endswith(f"This model is unstable on these rows: {entry.unstable} (7).")


def test_the_colour_of_the_first_tile_is_the_verdict(tmp_path):
    for rows, kind, options, outcome in (
        (shared_rows(), "SharedSpan", {"rank": 1}, "gain"),
        (pooled_rows(), "PerTask", {}, "loss"),
    ):
        model = fit(kind, rows, **options)
        page = write_report(model, tmp_path / "report.html", *rows).read_text("utf-8")
        first = re.search(r'<ul class="headline">\s*<li class="([^"]*)"', page)
        assert first[1] == f"verdict {outcome}"


def test_separate_models_are_not_said_to_share():
    rows = pooled_rows()
    said = headline(facts_of(fit("PerTask", rows), *rows))
    assert said.sentence.startswith("One model per task does not help here.")
    assert "Sharing" not in said.sentence
    assert "use PooledRegressor (--estimator PooledRegressor)" in said.sentence


def test_without_rows_the_verdict_asks_for_them():
    said = headline(facts_of(fit("Pooled", pooled_rows())))
    assert said.outcome == "unknown"
    assert "Give the rows (--data)" in said.basis


def test_advice_names_no_model_that_the_table_shows_to_be_worse():
    rows = pooled_rows()
    view = ModelView(fit("SharedSpan", rows, rank=1), *rows)
    diagnosis, good = ss.diagnose(view.model, *rows), np.ones(40, dtype=bool)
    assert any("PooledRegressor" in one for one in advice_on(view, diagnosis, good))
    assert not any("PooledRegressor" in one for one in advice_on(view, diagnosis, good, ["pooled"]))


@pytest.mark.parametrize("worse", [[], ["separate"]])
def test_separate_regressions_are_only_advised_if_they_may_do_as_well(worse):
    sim = ss.simulate(n_tasks=20, n_features=2, rank=2, n_samples=30, noise=0.5, random_state=0)
    view = ModelView(ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task))
    view.rank, view.params["rank"] = 3, "auto"
    diagnosis = ss.diagnose(view.model)
    said = " ".join(advice_on(view, diagnosis, np.ones(20, dtype=bool), worse))
    assert "is the largest that was tried" in said
    assert ("Separate regressions may do as well" in said) is not worse


@pytest.mark.parametrize(("inside", "what"), [(0.8, "too narrow"), (1.0, "too wide"), (0.95, "")])
def test_intervals_that_are_too_narrow_or_too_wide_are_told_with_a_remedy(inside, what):
    rows = pooled_rows()
    facts = facts_of(fit("AdaptiveSpan", rows), *rows)
    scored = facts.errors.scored
    covered = np.repeat((np.arange(len(scored.y)) < inside * len(scored.y))[:, None], 5, axis=1)
    facts.errors = replace(facts.errors, scored=scored._replace(covered=covered))
    said = [one for one in advice(facts) if one.startswith("95\u00a0% prediction intervals")]
    assert bool(said) is bool(what)
    assert all(what in one and "noise='per_task'" in one for one in said)


def test_intervals_of_a_right_model_contain_their_level_of_held_out_responses():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(60), 30)
    X = rng.standard_normal((len(task), 2))
    y = X[:, 0] * (1 + 0.5 * rng.standard_normal(60)[task]) + rng.standard_normal(len(task))
    covered = facts_of(fit("AdaptiveSpan", (X, y, task)), X, y, task).errors.scored.covered
    np.testing.assert_allclose(covered.mean(axis=0), [0.5, 0.8, 0.9, 0.95, 0.99], atol=0.03)


@pytest.mark.parametrize("kind", ["AdaptiveSpan", "SharedSpan", "Pooled", "PerTask"])
def test_tasks_of_one_row_have_a_sentence_in_place_of_errors_and_empty_plots(kind, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    rows = X, X @ [1.0, 2.0, 3.0] + rng.standard_normal(300), np.arange(300)
    path = write_report(fit(kind, rows), tmp_path / "report.html", *rows)
    page, said = path.read_text("utf-8"), text_of(path)
    assert "Each task has one row" in said
    assert "No task has more than one row" in said
    for word in ("standard deviation of the noise", "The 0 largest", "error 0", "noise 0",
                 "PooledRegressor, with one slope vector", "R² within tasks"):  # fmt: skip
        assert word not in said
    for section in ("gains", "calibration", "map"):
        assert f'<section id="{section}">' not in page
    assert ('<section id="common">' in page) is (kind == "AdaptiveSpan")  # which has main effects


def test_the_data_are_described_with_factors_dates_and_missing_values(tmp_path):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    n = 400
    days = pd.to_timedelta(rng.integers(0, 900, n), unit="D")
    frame = pd.DataFrame(
        {"region": rng.choice(["north", "south"], n), "opened": pd.Timestamp("2020-01-01") + days,
         "price": rng.standard_normal(n), "shop": np.arange(n) % 20}
    )  # fmt: skip
    y = pd.Series(frame.price + rng.standard_normal(n))
    frame.loc[:29, "price"] = np.nan
    columns = ss.Columns(missing="indicator")
    model = ss.AdaptiveSpanRegressor(task_column="shop", columns=columns).fit(frame, y)
    path = write_report(model, tmp_path / "report.html", frame, y, target_name="sales")
    said = text_of(path)
    assert "sales by shop" in said
    assert "one per shop, 20 rows each" in said
    assert re.search(r"factors 1 region \((north|south) 5\d % and (north|south) [45]\d %\)", said)
    assert "dates 1 opened" in said
    assert "missing values 1 column price in 30 rows" in said


def test_a_formula_gives_the_page_the_names_of_response_and_groups(tmp_path):
    pd = pytest.importorskip("pandas")
    X, y, task = pooled_rows()
    frame = pd.DataFrame({"score": y, "ses": X[:, 0], "school": [f"s{t}" for t in task]})
    model = ss.mixed("score ~ ses + (1 | school)", frame)
    said = text_of(write_report(model, tmp_path / "report.html", frame, frame["score"]))
    assert "score by school" in said
    assert "one model per school" in said
    assert "predicts score from 2 fixed effects and random effects of 40 groups of school" in said
    assert "units of units" not in said


def test_a_response_named_units_is_not_measured_in_units_of_units(tmp_path):
    rows = pooled_rows()
    path = write_report(fit("Pooled", rows), tmp_path / "r.html", *rows, target_name="units")
    assert "units of units" not in text_of(path)


def test_only_one_candidate_is_marked_as_chosen(tmp_path):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(30), 30)
    X = rng.standard_normal((len(task), 5))
    y = X[:, 0] * rng.standard_normal(30)[task] + X[:, 1] + rng.standard_normal(len(task))
    model = fit("AdaptiveSpan", (X, y, task))
    page = write_report(model, tmp_path / "report.html").read_text("utf-8")
    assert page.count("(chosen)") == 1


def test_noise_per_task_is_not_advised_for_a_model_that_has_it():
    rows = pooled_rows()
    for noise in ("shared", "per_task"):
        facts = facts_of(fit("AdaptiveSpan", rows, noise=noise), *rows)
        covered = np.zeros((len(facts.errors.scored.y), 5), dtype=bool)
        facts.errors = replace(facts.errors, scored=facts.errors.scored._replace(covered=covered))
        (said,) = (one for one in advice(facts) if one.startswith("95\u00a0% prediction intervals"))
        assert ("noise='per_task'" in said) is (noise == "shared")
        assert "family='student_t'" in said


def test_the_colour_of_the_verdict_agrees_with_the_interval_beside_it():
    rows = pooled_rows()
    facts = facts_of(fit("AdaptiveSpan", rows), *rows)
    for gain in facts.gains:
        change = facts.errors.change(gain.against)
        assert gain.interval == (1 - change.high, 1 - change.low)
        assert bool(gain.sign) == change.clear


@pytest.mark.parametrize("name", ["AdaptiveSpan", "Pooled"])
def test_the_page_always_says_which_tasks_are_unusual(name, tmp_path):
    rows = pooled_rows()
    path = write_report(fit(name, rows), tmp_path / "report.html", *rows)
    said = text_of(path)
    assert "No task is far from what the model expects of it." in said
    named = r"\d+ \((level|slope of x\d) [+−][\d.]+\)"
    assert re.search(
        rf"The most different, judging by their predictions, are {named}, {named} and {named}, in",
        said,
    )
    assert '<a href="#misfits">' in path.read_text("utf-8")


def with_effects_of_groups():
    """Rows of 60 tasks with a feature of rows and two of tasks, one of which has an effect."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(60), 10)
    X = np.column_stack([rng.standard_normal(600), rng.standard_normal((60, 2))[task] * [5, 1]])
    return X, X @ [1.0, 2.0, 0.0] + rng.standard_normal(60)[task] + rng.standard_normal(600), task


def test_common_effects_of_features_that_are_constant_within_tasks_are_drawn(tmp_path):
    rows = with_effects_of_groups()
    model = fit("AdaptiveSpan", rows)
    page = write_report(model, tmp_path / "report.html", *rows).read_text("utf-8")
    told = re.search(r'aria-label="(Common coefficients[^"]*)"', page)[1]
    effect = model.mean_coef_[1] * rows[0][:, 1].std()
    assert f": x1 {effect:.2g}" in told  # the largest of them
    assert "x1 and x2 do not vary within tasks: the effect is per standard deviation" in page
    page = write_report(model, tmp_path / "report.html").read_text("utf-8")
    assert "x1 and x2 do not vary within tasks and are left out" in page


def test_a_choice_against_the_best_score_has_its_reason_and_no_candidate_is_shown_twice():
    rows = [("zero", 2, -99.0), ("isotropic", 2, -102.0), ("isotropic", 2, -104.0),
            ("isotropic", 0, -108.0)]  # fmt: skip
    candidates = [
        {"slopes": slopes, "rank": rank, "n_varying": 4, "log_likelihood": score, "score": score}
        for slopes, rank, score in rows
    ]
    extra = {"candidates": candidates, "slopes": "isotropic", "log_likelihood": -108.0}
    shown = [(row["slopes"], row["rank"], row["score"]) for row in distinct_candidates(extra, 0)]
    assert shown == [rows[0], rows[1], rows[3]]
    said = " ".join(candidates_reason(extra, 0))
    assert "compared 3 descriptions" in said
    assert "rank 2 and “zero” has a score that is 9.0 higher, but rows held out" in said
    assert "preferred the one chosen" in said
    extra["slopes"] = "zero"
    assert "preferred" not in " ".join(candidates_reason(extra, 2))


def test_a_model_of_a_single_feature_has_a_report(tmp_path):
    rng = np.random.default_rng(0)
    task, x = np.repeat(np.arange(26), 9), np.tile(np.linspace(-1, 1, 9), 26)
    y = rng.standard_normal(26)[task] + (6 + rng.standard_normal(26)[task]) * x
    rows = x[:, None], y + 0.1 * rng.standard_normal(len(x)), task
    said = text_of(write_report(fit("AdaptiveSpan", rows), tmp_path / "report.html", *rows))
    assert "predicts the response from 1 feature, in 26 tasks" in said


def rows_of_unequal_tasks():
    """Features, levels and labels of 60 tasks of two to eight rows."""
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(60), rng.integers(2, 9, 60))
    return rng.standard_normal((len(task), 2)), rng.standard_normal(60)[task], task, rng


def test_a_model_that_predicts_the_means_of_tasks_explains_nothing():
    X, level, task, rng = rows_of_unequal_tasks()
    y = level + rng.standard_normal(len(task))
    facts = facts_of(fit("Pooled", (X, y, task), alpha=1e12), X, y, task)
    assert abs(facts.errors.explained) < 1e-6
    shown = {name: value for name, value, _ in numbers(facts)}
    assert shown["gain on means"] in ("0\u00a0%", "<0.1\u00a0%")


def test_means_of_classes_have_one_row_of_the_level_of_all_so_that_none_is_certain():
    X, level, task, rng = rows_of_unequal_tasks()
    y = rng.binomial(1, 1 / (1 + np.exp(-2 * level))).astype(float)
    model = ss.AdaptiveSpanRegressor(family="binomial").fit(X, y, task=task)
    fold, total = random_folds(np.bincount(task), np.random.default_rng(0)), 0.0
    for i in range(len(y)):
        others = y[(task == task[i]) & (fold != fold[i])]
        p = (others.sum() + y.mean()) / (len(others) + 1)
        total -= np.log(p if y[i] else 1 - p)
    assert facts_of(model, X, y, task).errors.total == pytest.approx(total)


def test_what_is_predicted_is_told_against_the_means_of_tasks(tmp_path):
    rows = pooled_rows()
    path = tmp_path / "report.html"
    said = text_of(write_report(fit("AdaptiveSpan", rows), path, *rows))
    assert re.search(r" \d+ % less squared error than the means of the tasks", said)
    assert "of the variance within tasks is predicted" not in said
    y = np.random.default_rng(1).standard_normal(480) + rows[2]
    noise = rows[0], y, rows[2]
    said = text_of(write_report(fit("PerTask", noise, alpha=0), path, *noise))
    assert re.search(r" \d+ % more squared error than the means of the tasks", said)
