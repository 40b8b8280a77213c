"""``ss.mixed`` against lme4, lmerTest and glmmTMB: every number of their summaries."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from ours import REML, fitted
from reference import model_names, prediction_tables, reference, table
from sklearn.exceptions import ConvergenceWarning

import sharedspan as ss
from sharedspan.estimators.inference import infer

CASES = [(name, fit) for name in model_names() for fit in REML if fit in reference(name)]
LINEAR = [(name, fit) for name, fit in CASES if fit in ("reml", "ml")]
IDS = [f"{name}-{fit}" for name, fit in CASES]
LINEAR_IDS = [f"{name}-{fit}" for name, fit in LINEAR]


@pytest.fixture(scope="module")
def models():
    held = {}

    def get(name, fit):
        if (name, fit) not in held:
            held[name, fit] = fitted(name, fit)
        return held[name, fit]

    return get


def in_order(fixed, names):
    plain = [row["name"] for row in fixed]
    if all(name.replace("=", "") in plain for name in names):
        return [fixed[plain.index(name.replace("=", ""))] for name in names]
    assert len(fixed) == len(names)
    return fixed


def test_every_model_of_the_reference_is_here():
    assert len(CASES) >= 35


@pytest.mark.parametrize(("name", "fit"), CASES, ids=IDS)
def test_the_likelihood_is_the_published_one(models, name, fit):
    model, known = models(name, fit), reference(name)[fit]
    assert -2 * model.log_likelihood_ == pytest.approx(known["deviance"], abs=1e-4)
    assert model.converged_
    assert model.n_rows_ == known["n_rows"]


@pytest.mark.parametrize(("name", "fit"), CASES, ids=IDS)
def test_fixed_effects_and_errors_are_those_of_r(models, name, fit):
    table, known = models(name, fit).summary().fixed, reference(name)[fit]
    rows = in_order(known["fixed"], table.names)
    std = np.array([row["std_error"] for row in rows])
    estimate = np.array([row["estimate"] for row in rows])
    assert_allclose(table.std_error, std, rtol=1e-4)
    assert np.abs((table.estimate - estimate) / std).max() < 1e-4
    statistic = np.array([row["statistic"] for row in rows])
    assert_allclose(table.statistic, statistic, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize(("name", "fit"), LINEAR, ids=LINEAR_IDS)
def test_degrees_of_freedom_and_p_values_are_those_of_lmertest(models, name, fit):
    fixed, known = infer(models(name, fit)).fixed, reference(name)[fit]
    rows = in_order(known["fixed"], fixed.names)
    assert_allclose(fixed.degrees(), [row["df"] for row in rows], rtol=2e-3)
    assert_allclose(fixed.p_value, [row["p_value"] for row in rows], rtol=5e-3, atol=1e-12)


@pytest.mark.parametrize(("name", "fit"), LINEAR, ids=LINEAR_IDS)
def test_summaries_count_the_error_of_the_variances(models, name, fit):
    table, fixed = models(name, fit).summary().fixed, infer(models(name, fit)).fixed
    assert_array_equal(table.degrees, fixed.degrees())
    weak = fixed.p_value > 1e-4
    assert (table.p_value >= fixed.p_value * 0.999)[weak].all()
    plain = fixed.interval(0.95)
    assert (table.high - table.low >= (plain[:, 1] - plain[:, 0]) * 0.999).all()
    if name == "sleepstudy":  # balanced: nothing to count
        assert_allclose(table.p_value, fixed.p_value, rtol=1e-4)


@pytest.mark.parametrize(("name", "fit"), CASES, ids=IDS)
def test_variance_components_are_those_of_r(models, name, fit):
    summary, known = models(name, fit).summary(), reference(name)[fit]
    scale = known.get("residual_sd") or 1.0
    ours = sorted(np.concatenate([entry.std for entry in summary.variances]))
    theirs = sorted(np.concatenate([np.atleast_1d(entry["sd"]) for entry in known["variances"]]))
    assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * scale)
    if known.get("residual_sd"):
        assert summary.sigma.value == pytest.approx(known.get("residual_sd"), rel=1e-5)
    for entry in summary.variances:
        if entry.correlation is not None and len(entry.names) == 2:
            matching = [
                other
                for other in known["variances"]
                if len(np.atleast_1d(other["sd"])) == 2
                and np.allclose(other["sd"], entry.std, rtol=1e-3)
            ]
            expected = np.array(matching[0]["correlation"])[0, 1]
            assert entry.correlation[0, 1] == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize(("name", "fit"), CASES, ids=IDS)
def test_criteria_are_those_of_r(models, name, fit):
    summary, known = models(name, fit).summary(), reference(name)[fit]
    assert summary.aic == pytest.approx(known["aic"], abs=1e-3)
    assert summary.bic == pytest.approx(known["bic"], abs=1e-3)
    if fit != "glmmTMB_reml":  # which does not count the fixed effects there
        assert summary.residual_degrees == known["df_residual"]


@pytest.mark.parametrize(("name", "fit"), LINEAR, ids=LINEAR_IDS)
def test_scaled_residuals_and_correlations_are_those_of_lme4(models, name, fit):
    summary, known = models(name, fit).summary(), reference(name)[fit]
    assert_allclose(summary.residual_quantiles, known["scaled_residuals"], rtol=1e-3, atol=1e-3)
    if summary.fixed.correlation is not None:
        ours = np.sort(summary.fixed.correlation.ravel())
        assert_allclose(ours, np.sort(np.ravel(known["fixed_correlation"])), atol=1e-3)


def own_groups(known):
    """R's group of the tasks: the one with the most levels."""
    return max(known["groups"], key=lambda group: group["n_levels"])


@pytest.mark.parametrize(("name", "fit"), LINEAR, ids=LINEAR_IDS)
def test_conditional_modes_are_those_of_lme4(models, name, fit):
    model, known = models(name, fit), reference(name)[fit]
    for group in known["groups"]:
        names = group["group"].split(":")
        ours = "/".join(reversed(names)) if len(names) > 1 else names[0]
        frame = model.task_effects(None if group is own_groups(known) else ours)
        labels = ["/".join(reversed(level.split(":"))) for level in group["levels"]]
        frame.index = frame.index.map(str)
        v = len(group["names"])
        modes = frame.loc[labels].to_numpy()[:, 0 : 2 * v : 2]
        errors = frame.loc[labels].to_numpy()[:, 1 : 2 * v : 2]
        own = [e for e in known["variances"] if e["group"].split(".")[0] == group["group"]]
        spread = np.maximum(np.concatenate([np.atleast_1d(e["sd"]) for e in own]), 1e-12)
        gap = np.abs((modes - np.array(group["values"])) / spread).max()
        assert gap < 1e-4 or known["singular"]
        if not known["singular"]:
            assert_allclose(errors, group["std_errors"], rtol=1e-3)


@pytest.mark.parametrize("fit", ["reml", "ml"])
@pytest.mark.parametrize("name", ["gapminder", "MathAchieve"])
def test_predictions_are_those_of_lme4_also_of_a_new_group(models, name, fit):
    model, known = models(name, fit), reference(name)[fit]
    _, new = prediction_tables(name)
    gap = np.abs(model.predict(new) - known["predictions"])
    assert gap.max() < 1e-4 * known.get("residual_sd")
    assert model.predict(new)[-5:] == pytest.approx(known["mean_predictions"][-5:], abs=1e-3)


def test_cbpp_by_quadrature_and_less_the_saturated_likelihood():
    about, saturated = reference("cbpp"), 83.95671
    rows = table("cbpp")
    laplace = ss.mixed(about["formula"], rows, family="binomial")
    quadrature = ss.mixed(about["formula"], rows, family="binomial", approximation="quadrature")
    assert -2 * laplace.log_likelihood_ - saturated == pytest.approx(100.09586, abs=1e-4)
    assert -2 * quadrature.log_likelihood_ - saturated == pytest.approx(100.01003, abs=1e-4)


def test_the_published_summary_of_sleepstudy_is_printed():
    text = str(fitted("sleepstudy", "reml").summary())
    for line in (
        "Formula: Reaction ~ Days + (Days | Subject)",
        "REML criterion at convergence: 1743.6",
        "(Intercept)  251.405      6.825",
        "Days          10.467      1.546",
        "17   6.771 3.26e-06",
        "Number of obs: 180, groups: Subject, 18",
        "Days -0.138",
    ):
        assert line in text
    assert max(map(len, text.splitlines())) <= 80


# ---- what the formula means ----------------------------------------------------------------------


def test_tables_of_all_kinds_and_files_give_the_same_model(tmp_path):
    polars, pyarrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    formula, rows = "distance ~ age * Sex + (age | Subject)", table("Orthodont")
    rows["Sex"] = rows["Sex"].astype(str)
    rows.to_csv(tmp_path / "orthodont.csv", index=False)
    rows.to_parquet(tmp_path / "orthodont.parquet")
    frames = [
        rows, polars.DataFrame(rows.to_dict("list")), pyarrow.Table.from_pandas(rows),
        {name: rows[name].to_numpy() for name in rows}, tmp_path / "orthodont.csv",
        str(tmp_path / "orthodont.parquet"),
    ]  # fmt: skip
    first, *others = (ss.mixed(formula, frame) for frame in frames)
    for other in others:
        assert other.log_likelihood_ == first.log_likelihood_
        assert_array_equal(other.coef_, first.coef_)


def test_the_order_of_rows_and_groups_changes_nothing():
    formula, rows = reference("Exam")["formula"], table("Exam")
    one = ss.mixed(formula, rows)
    two = ss.mixed(formula, rows.sample(frac=1.0, random_state=0))
    assert two.log_likelihood_ == pytest.approx(one.log_likelihood_, abs=1e-8)
    assert_allclose(two.coef_, one.coef_, rtol=1e-6, atol=1e-8)


def test_another_reference_level_is_the_same_model():
    formula, rows = reference("Exam covariates")["formula"], table("Exam")
    one = ss.mixed(formula, rows, reml=False)
    two = ss.mixed(formula, rows, reml=False, columns=ss.Columns(reference={"schgend": "girls"}))
    assert two.log_likelihood_ == pytest.approx(one.log_likelihood_, abs=1e-7)
    assert_allclose(two.predict(rows), one.predict(rows), rtol=1e-6, atol=1e-7)


def test_weights_divide_the_noise_variance_as_in_lme4():
    # lmer(Reaction ~ Days + (Days | Subject), sleepstudy, weights = rep(c(1, 2, .5), 60))
    rows = table("sleepstudy").assign(w=np.tile([1.0, 2.0, 0.5], 60))
    model = ss.mixed(reference("sleepstudy")["formula"], rows, weights="w")
    assert -2 * model.log_likelihood_ == pytest.approx(1754.07866931, abs=1e-6)
    assert model.summary().sigma.value == pytest.approx(26.15375611, rel=1e-6)
    assert "\nWeights: w\n" in str(model.summary())
    assert_allclose([model.mean_intercept_, *model.mean_coef_], [251.47528816, 10.32824537],
                    rtol=1e-7)  # fmt: skip


def test_an_offset_of_the_formula_is_part_of_every_prediction():
    rng = np.random.default_rng(0)
    rows = pd.DataFrame({"g": np.repeat(np.arange(30), 20), "x": rng.standard_normal(600)})
    rows["t"] = rng.uniform(1, 5, 600)
    rate = np.exp(0.3 + 0.5 * rows["x"] + 0.4 * rng.standard_normal(30)[rows["g"]])
    rows["n"] = rng.poisson(rate * rows["t"])
    one = ss.mixed("n ~ x + offset(log(t)) + (1 | g)", rows, family="poisson")
    two = ss.mixed("n ~ x + (1 | g)", rows, family="poisson", exposure=rows["t"])
    assert one.log_likelihood_ == pytest.approx(two.log_likelihood_, abs=1e-8)
    assert_allclose(one.predict(rows), two.predict(rows, exposure=rows["t"]), rtol=1e-9)
    linear = ss.mixed("n ~ x + offset(t) + (1 | g)", rows)
    shifted = ss.mixed("I(n - t) ~ x + (1 | g)", rows)
    assert_allclose(linear.predict(rows), shifted.predict(rows) + rows["t"], rtol=1e-9)


def test_a_saved_model_predicts_and_prints_the_same(tmp_path):
    rows = table("Orthodont")
    model = ss.mixed("distance ~ age * Sex + (age | Subject)", rows)
    model.save(tmp_path / "m.span")
    loaded = ss.load(tmp_path / "m.span")
    assert str(loaded.summary()) == str(model.summary())
    assert_array_equal(loaded.predict(rows), model.predict(rows))
    pd.testing.assert_frame_equal(loaded.task_effects(), model.task_effects())
    with pytest.raises(ValueError, match=r"ss\.mixed"):
        loaded.simulate()


def test_a_low_rank_is_chosen_and_can_be_given():
    sim = ss.simulate(n_tasks=60, n_features=4, rank=1, n_samples=25, noise=0.5, random_state=1)
    rows = pd.DataFrame(sim.X, columns=list("abcd")).assign(y=sim.y, g=sim.task)
    fixed = "y ~ a + b + c + d + (1 | g) + "
    chosen = ss.mixed(fixed + "rr(0 + a + b + c + d | g)", rows, reml=False)
    given = ss.mixed(fixed + "rr(0 + a + b + c + d | g, 1)", rows, reml=False)
    assert chosen.rank_ == given.rank_ == 1
    assert chosen.log_likelihood_ == pytest.approx(given.log_likelihood_, abs=1e-5)
    assert "1 shared direction of" in str(chosen.summary())


def simulated(seed=0):
    rng = np.random.default_rng(seed)
    g, x = np.repeat(np.arange(30), 8), rng.standard_normal(240)
    u = rng.standard_normal((30, 2)) * [1.0, 0.5]
    y = 1 + x + u[g, 0] + u[g, 1] * x + rng.standard_normal(240)
    return pd.DataFrame({"g": g, "x": x, "y": y})


def test_fixed_effects_that_are_combinations_of_others_are_left_out():
    rows = simulated()
    rows = rows.assign(double=2 * rows.x, constant=3.0, z=np.arange(240) % 7)
    plain = ss.mixed("y ~ x + z + (1 | g)", rows)
    more = ss.mixed("y ~ x + constant + double + z + (1 | g)", rows)
    assert more.log_likelihood_ == pytest.approx(plain.log_likelihood_, abs=1e-9)
    assert more.summary().fixed.names == plain.summary().fixed.names
    assert_allclose(more.summary().fixed.std_error, plain.summary().fixed.std_error, rtol=1e-8)
    left_out = [note for note in more.summary().notes if "was left out" in note]
    assert [note.split()[0] for note in left_out] == ["constant", "double"]


def test_singular_fits_are_told_whatever_the_units():
    rows = simulated()
    rows["flat"] = 1 + rows.x + np.random.default_rng(1).standard_normal(240)
    for scale in (1e-6, 1.0, 1e6):
        tiny = rows.assign(x=rows.x * scale, y=rows.y / scale, flat=rows.flat / scale)
        notes = " ".join(ss.mixed("y ~ x + (x | g)", tiny).summary().notes)
        assert "zero" not in notes
        assert "combinations" not in notes
        notes = " ".join(ss.mixed("flat ~ x + (x || g)", tiny).summary().notes)
        assert "The standard deviation of" in notes
    far = rows.assign(x=rows.x * 10 + 2000)  # where correlations are near -1
    assert "combinations" not in " ".join(ss.mixed("y ~ x + (x | g)", far).summary().notes)


def test_a_slope_that_does_not_vary_is_found_far_from_zero():
    rng = np.random.default_rng(1)
    rows = pd.DataFrame({"g": np.repeat(np.arange(30), 8), "x": rng.integers(0, 12, 240) * 1.0})
    rows["y"] = 1 + 0.01 * rows.x + rng.standard_normal(240)
    level = ss.mixed("y ~ x + (1 | g)", rows, reml=False)
    for offset in (0.0, 100.0, 2000.0, 20_000.0):
        far = ss.mixed("y ~ x + (1 + x || g)", rows.assign(x=rows.x + offset), reml=False)
        assert far.log_likelihood_ >= level.log_likelihood_ - 1e-4
        assert far.summary().sigma.value == pytest.approx(level.summary().sigma.value, rel=1e-2)


def test_powers_of_years_are_those_of_years_since_the_first():
    rng = np.random.default_rng(0)
    g, k = np.repeat(np.arange(25), 20), np.tile(np.arange(20), 25)
    rows = pd.DataFrame({"g": g, "k": k, "year": 1990 + k})
    rows["y"] = 0.3 * k - 0.01 * k**2 + rng.standard_normal(25)[g] + rng.standard_normal(500)
    near = ss.mixed("y ~ k + I(k^2) + (1 | g)", rows, reml=False)
    far = ss.mixed("y ~ year + I(year^2) + (1 | g)", rows, reml=False)
    assert far.log_likelihood_ == pytest.approx(near.log_likelihood_, abs=1e-5)
    statistics = [model.summary().fixed.statistic[-1] for model in (near, far)]
    assert statistics[1] == pytest.approx(statistics[0], rel=1e-5)


def test_missing_values_are_an_error_that_says_what_to_type():
    rows = table("sleepstudy").astype({"Days": float})
    rows.loc[3, "Days"] = np.nan
    with pytest.raises(ValueError, match=r"columns=ss\.Columns\(missing='drop'\)"):
        ss.mixed("Reaction ~ Days + (1 | Subject)", rows)
    left = ss.mixed("Reaction ~ Days + (1 | Subject)", rows, columns=ss.Columns(missing="drop"))
    complete = ss.mixed("Reaction ~ Days + (1 | Subject)", rows.dropna())
    assert left.log_likelihood_ == pytest.approx(complete.log_likelihood_, abs=1e-9)


@pytest.mark.parametrize(
    ("formula", "message"),
    [
        ("Reaction ~ Dys + (1 | Subject)", "Did you mean 'Days'"),
        ("Reaction ~ Days", "group"),
        ("Reaction ~ __import__('os') + (1 | Subject)", "The formula"),
        ("Reaction ~ Days + (1 | Subject", "The formula"),
        ("Reaction ~ Reaction + (1 | Subject)", "it is the response and a term"),
        ("Reaction ~ Days:Reaction + (1 | Subject)", "it is the response and a term"),
        ("Reaction ~ Days + (Reaction | Subject)", "it is the response and a term"),
    ],
)
def test_mistakes_end_in_one_sentence(formula, message):
    with pytest.raises(ValueError, match=message) as caught:
        ss.mixed(formula, table("sleepstudy"))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("family", ["student_t", "huber"])
def test_robust_noise_has_the_random_effects_of_the_formula_alone(family):
    rows = simulated()
    model = ss.mixed("y ~ x + (1 | g)", rows, family=family)
    (entry,) = model.summary().variances
    assert entry.names == ("(Intercept)",)
    assert_allclose(entry.std, model.intercept_std_, rtol=1e-9)
    assert list(model.task_effects()) == ["(Intercept)", "(Intercept) std"]
    (both,) = ss.mixed("y ~ x + (x | g)", rows, family=family).summary().variances
    assert both.names == ("(Intercept)", "x")


@pytest.mark.parametrize("family", ["gaussian", "student_t", "huber"])
@pytest.mark.parametrize(
    ("formula", "n_rows", "message"),
    [
        ("y ~ x + (1 | id)", 240, "`id` has 240 groups and the table 240 rows"),
        ("y ~ x + (1 | one)", 240, "All rows are in one group of `one`"),
        ("y ~ x + (1 | g)", 3, "All rows are in one group of `g`"),
        ("y ~ x + (1 | g)", 1, "All rows are in one group of `g`"),
        ("y ~ x + (1 | id)", 3, "`id` has 3 groups and the table 3 rows"),
        (
            "y ~ x + (1 + x | pair)",
            240,
            "240 random effects .2 in each of 120 groups. and the table 240",
        ),
        ("y ~ x + I(x^2) + (1 | two)", 3, "3 fixed effects and the table 3 rows"),
    ],
)
def test_effects_that_rows_cannot_tell_from_noise_are_refused(family, formula, n_rows, message):
    at = np.arange(240)
    rows = simulated().assign(id=at, one=1, pair=at // 2, two=at % 2).iloc[:n_rows]
    with pytest.raises(ValueError, match=message) as caught:
        ss.mixed(formula, rows, family=family)
    assert len(str(caught.value)) < 250


def test_groups_of_one_row_each_are_refused_on_every_level():
    rows = simulated().assign(id=np.arange(240), half=np.arange(240) % 2, one=1)
    for formula in ("y ~ x + (1 | g/id)", "y ~ x + (1 | half) + (1 | id)"):
        with pytest.raises(ValueError, match="240 groups and the table 240 rows"):
            ss.mixed(formula, rows)
    with pytest.raises(ValueError, match="All rows are in one group of `one`"):
        ss.mixed("y ~ x + (1 | one/g)", rows)


def test_counts_may_have_an_effect_of_each_row_and_independent_effects_two_in_two():
    rows = simulated().assign(id=np.arange(240), pair=np.arange(240) // 2)
    rows["n"] = np.random.default_rng(0).poisson(np.exp(rows.y / 2))
    assert ss.mixed("n ~ x + (1 | id)", rows, family="poisson").intercept_std_ > 0
    assert ss.mixed("y ~ x + (1 + x || pair)", rows).converged_  # as in lme4
    with pytest.raises(ValueError, match="All rows are in one group of `pair`"):
        ss.mixed("n ~ x + (1 | pair)", rows[:2], family="poisson")


def test_a_fitted_formula_is_shown_in_short_and_other_models_as_scikit_learn_does():
    rows = simulated()
    model = ss.mixed("y ~ x + (1 + x | g)", rows)
    assert repr(model) == (
        "AdaptiveSpanRegressor of y ~ x + (1 + x | g): 240 rows, groups: g, 30; see\n  summary()"
    )
    long = ss.mixed("y ~ " + " + ".join(f"I(x^{i})" for i in range(2, 6)) + " + (1 | g)", rows)
    assert max(map(len, repr(long).splitlines())) <= 80
    assert repr(ss.AdaptiveSpanRegressor(rank=2)) == "AdaptiveSpanRegressor(rank=2)"
    assert str(model.summary()).startswith("Linear mixed model")


@pytest.mark.parametrize("as_columns", [np.asarray, list])
def test_a_dict_of_columns_is_a_table_in_predictions_too(as_columns):
    rows = simulated().assign(c=np.where(np.arange(240) % 3, "a", "b"), t=2.0)
    for formula in ("y ~ x + (1 | g)", "y ~ x + c + offset(t) + (1 + x | g)"):
        model = ss.mixed(formula, rows)
        some = rows[["x", "c", "t", "g"]][:7]
        held = {name: as_columns(some[name]) for name in some}
        assert_array_equal(model.predict(held), model.predict(some))
        assert_array_equal(model.predict_interval(held), model.predict_interval(some))
        assert model.simulate(2, held).shape == (7, 2)
        assert len(ss.effects(model, "x", data=held).estimate) == 5


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"y": [1.0, 2.0], "x": [1.0], "g": [1, 2]}, "'y' has 2 values and 'x' 1"),
        ({"y": [1.0, 2.0], "x": 3.0, "g": [1, 2]}, "'x' is 3.0: give one value per row"),
        ({"y": [1.0, 2.0], "x": "low", "g": [1, 2]}, "'x' is 'low': give one value per row"),
        (
            pd.DataFrame({"y": [1.0], "x": [1.0], "g": [1], 3: [1]}),
            "named 3, which is not a string",
        ),
    ],
)
def test_tables_that_are_none_are_refused_in_a_sentence(data, message):
    with pytest.raises((ValueError, TypeError), match=message):
        ss.mixed("y ~ x + (1 | g)", data)


def test_the_summary_names_weights_also_of_other_families_and_after_a_file(tmp_path):
    rows = simulated().assign(w=2.0)
    rows["n"] = np.random.default_rng(0).poisson(np.exp(rows.y / 2))
    for family in ("gaussian", "student_t", "poisson"):
        response = "n" if family == "poisson" else "y"
        model = ss.mixed(f"{response} ~ x + (1 | g)", rows, family=family, weights="w")
        model.save(tmp_path / "m.span")
        assert "Weights: w\n" in str(ss.load(tmp_path / "m.span").summary())
    given = ss.mixed("y ~ x + (1 | g)", rows, weights=rows.w.to_numpy())
    assert "Weights: an array\n" in str(given.summary())
    assert "Weights" not in str(ss.mixed("y ~ x + (1 | g)", rows).summary())


def test_shares_of_the_variance_take_the_variance_of_a_sample_as_mumin_does():
    model, rows = fitted("sleepstudy", "reml"), table("sleepstudy")
    inferred, summary = infer(model), model.summary()
    fixed = np.var(model.mean_coef_[0] * rows["Days"], ddof=1)
    total = fixed + inferred.effect_variance + inferred.residual_variance
    assert summary.r2_marginal == pytest.approx(fixed / total, rel=1e-9)
    assert summary.r2_marginal == pytest.approx(0.2787, abs=5e-5)


@pytest.mark.parametrize("family", ["gaussian", "student_t", "poisson"])
def test_words_are_no_response_of_numbers(family):
    rows = simulated()
    rows["t"] = np.where(rows.y > 1, "b", "a")
    with pytest.raises(ValueError, match=r"'t' holds 'a' and 'b'.*family='binomial'"):
        ss.mixed("t ~ x + (1 | g)", rows, family=family)
    assert ss.mixed("t ~ x + (1 | g)", rows, family="binomial").mean_coef_[0] > 0


def test_the_table_says_if_p_values_are_not_those_of_the_printed_t_and_df():
    model = ss.mixed("y ~ x + (1 + x | g)", simulated().query("g < 6"))
    table, fixed = model.summary().fixed, infer(model).fixed
    assert f"{table.p_value[0]:.3g}" != f"{fixed.p_value[0]:.3g}"
    title = "Fixed effects (p-values and bounds allow for the error of the variances):"
    assert title in str(model.summary()).splitlines()
    assert "Intervals and p-values allow for the error" in " ".join(model.summary().notes)
    plain = fitted("sleepstudy", "reml")
    assert_allclose(plain.summary().fixed.p_value, infer(plain).fixed.p_value, rtol=1e-4)
    assert "Fixed effects:" in str(plain.summary()).splitlines()


def test_an_advised_column_has_intercepts_on_three_levels():
    rows = simulated().assign(a=lambda d: d.g // 10, b=lambda d: d.g // 5 % 2)
    with pytest.raises(ValueError, match=r"write \(1 \| a\) \+ \(1 \| a_b/g\)"):
        ss.mixed("y ~ x + (1 | a/b/g)", rows)
    rows["a_b"] = rows.a.astype(str) + ":" + rows.b.astype(str)
    model = ss.mixed("y ~ x + (1 | a) + (1 | a_b/g)", rows)
    assert {entry.group for entry in model.summary().variances} == {"a_b", "a_b/g", "a"}


def test_an_option_of_lme4_is_named_as_ours():
    with pytest.raises(TypeError, match=r"no option 'REML'.*Did you mean 'reml'"):
        ss.mixed("y ~ x + (1 | g)", simulated(), REML=False)


def test_effects_of_a_formula_without_columns_are_none():
    model = ss.mixed("y ~ 1 + (1 | g)", simulated())
    with pytest.raises(ValueError, match="no columns but those of groups"):
        ss.effects(model, "x")


def test_residuals_are_numbers_where_features_separate_the_classes():
    rows = simulated().assign(b=lambda d: (d.x > 0) * 1)
    with pytest.warns(ConvergenceWarning, match="separate the classes"):
        model = ss.mixed("b ~ x + (1 | g)", rows, family="binomial")
    assert np.abs(model.summary().residual_quantiles).max() < 0.1
