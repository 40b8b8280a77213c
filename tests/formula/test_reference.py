"""The stored values of R agree with published ones and with each other."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from published import PUBLISHED
from reference import comparison, model_names, prediction_tables, reference, table
from scipy import stats

FITS = ("reml", "ml", "glmmTMB", "glmmTMB_reml", "glmer", "glmer_quadrature")
# Optimisers that stopped before the last digit: the sd of intercepts of sleepstudy.
EARLY = {("ml", "23.7807"), ("reml", "24.741")}
# Those of other runs of lme4, MixedModels.jl and glmmTMB that are not in `published.py`.
DEVIANCES = {
    ("sleepstudy intercept", "ml"): 1794.0786,
    ("Dyestuff2", "reml"): 161.8283,
    ("Penicillin", "reml"): 330.8606,
    ("Exam", "ml"): 9316.8710,
    ("Hsb82", "ml"): 46710.9789,
    ("Chem97", "ml"): 141485.8900,
    ("Orthodont", "reml"): 432.5817,
    ("cbpp", "glmmTMB"): 184.05256,
    ("cbpp", "glmmTMB_reml"): 186.39813,
    ("Contraception", "glmmTMB"): 2361.54575,
    ("Contraception", "glmer_quadrature"): 2360.87601,
    ("Contraception slopes", "glmmTMB"): 2360.61029,
    ("epil poisson", "glmmTMB"): 1330.94885,
    ("epil nbinom2", "glmmTMB"): 1249.91424,
    ("grouseticks", "glmmTMB"): 1780.40700,
}


def every_fit():
    return [(model, fit) for model in model_names() for fit in FITS if fit in reference(model)]


def column(rows, name):
    return np.array([row[name] for row in rows])


# ---- published values ----------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "fit"), DEVIANCES)
def test_deviances_are_those_published(model, fit):
    digits = 5 if "glm" in fit else 4
    assert abs(reference(model)[fit]["deviance"] - DEVIANCES[model, fit]) <= 0.51 * 10**-digits


@pytest.mark.parametrize("figure", PUBLISHED, ids=lambda f: f"{f.model}-{f.fit}-{f.name}")
def test_values_of_r_round_to_figures_in_print(figure):
    known = reference(figure.model)
    values = known[figure.fit] | {"profile_intervals": known.get("profile_intervals")}
    early = (figure.fit, figure.printed) in EARLY
    assert figure.agrees(figure.of(values), 1.5 if early else 0.52)


def test_comparison_of_sleepstudy_is_lme4s():
    by_ml = comparison("ml")
    assert_allclose(by_ml["chi_squared"], 42.139, atol=5e-4)
    assert by_ml["df"] == 2
    assert_allclose(by_ml["p_value"], 7.072e-10, rtol=1e-3)
    assert_allclose(comparison("ranova")["p_value"][1], comparison("reml")["p_value"], rtol=1e-6)


def test_herds_vary_as_glmmtmb_says():
    assert_allclose(reference("cbpp")["glmmTMB"]["variances"][0]["sd"], [0.64226], atol=6e-6)


# ---- identities ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "fit"), every_fit())
def test_the_numbers_of_a_fit_belong_together(model, fit):
    values = reference(model)[fit]
    deviance, n_parameters = values["deviance"], values["n_parameters"]
    assert_allclose(deviance, -2 * values["log_likelihood"], rtol=1e-9)
    assert_allclose(values["aic"], deviance + 2 * n_parameters, rtol=1e-9)
    assert_allclose(values["bic"], deviance + np.log(values["n_rows"]) * n_parameters, rtol=1e-9)
    ratio = column(values["fixed"], "estimate") / column(values["fixed"], "std_error")
    assert_allclose(column(values["fixed"], "statistic"), ratio, rtol=1e-8)
    for group in values["groups"]:
        shape = (min(6, group["n_levels"]), len(group["names"]))
        assert np.shape(group["values"]) == np.shape(group["std_errors"]) == shape


@pytest.mark.parametrize(("model", "fit"), every_fit())
def test_p_values_are_those_of_t_or_normal_statistics(model, fit):
    fixed = reference(model)[fit]["fixed"]
    size = abs(column(fixed, "statistic"))
    linear = fit in ("reml", "ml")
    tail = stats.t.sf(size, column(fixed, "df")) if linear else stats.norm.sf(size)
    assert_allclose(column(fixed, "p_value"), 2 * tail, rtol=1e-6)


@pytest.mark.parametrize("model", model_names())
def test_a_fit_has_the_rows_of_its_table(model):
    values = reference(model)
    rows = prediction_tables(model)[0] if "held_out" in values else table(model)
    assert {values[fit]["n_rows"] for fit in FITS if fit in values} == {len(rows)}
    assert not rows.isna().any(axis=None)


@pytest.mark.parametrize("model", ["cbpp", "Contraception", "Contraception slopes", "epil poisson"])
def test_glmer_and_glmmtmb_find_the_same_laplace_optimum(model):
    first, second = reference(model)["glmer"], reference(model)["glmmTMB"]
    assert_allclose(first["deviance"], second["deviance"], atol=1e-5)
    std_error = column(second["fixed"], "std_error")
    assert_allclose(column(first["fixed"], "std_error"), std_error, rtol=1e-4)
    apart = column(first["fixed"], "estimate") - column(second["fixed"], "estimate")
    assert np.all(abs(apart) < 1e-3 * std_error)
    assert_allclose(first["fitted"], second["fitted"], rtol=1e-4)


@pytest.mark.parametrize("fit", ["reml", "ml"])
def test_fitted_values_of_sleepstudy_are_intercepts_and_slopes_of_subjects(fit):
    values = reference("sleepstudy")[fit]
    line = column(values["fixed"], "estimate") + values["groups"][0]["values"][0]
    assert_allclose(values["fitted"], line[0] + line[1] * np.arange(6), rtol=1e-8)


@pytest.mark.parametrize("fit", ["reml", "ml"])
def test_new_groups_are_predicted_by_the_fixed_effects(fit):
    values = reference("gapminder")[fit]
    assert values["predictions"][15:] == values["mean_predictions"][15:]
    rows = prediction_tables("gapminder")[1]
    design = np.column_stack([np.ones(20), np.log(rows["gdpPercap"]), rows["year"] - 1952])
    mean = design @ column(values["fixed"], "estimate")
    assert_allclose(values["mean_predictions"], mean, rtol=1e-8)
    assert set(rows["country"][15:]) == {"Norway"}


# ---- the likelihood itself, by a dense normal density --------------------------------------------


def random_design(model, group, names):
    """One column per level of a group and effect, for tables without factors."""
    rows = table(model)
    labels = rows[group.split(":")].astype(str).agg(":".join, axis=1).to_numpy()
    member = (labels[:, None] == np.unique(labels)).astype(float)
    values = [np.ones(len(rows)) if n == "(Intercept)" else rows[n].to_numpy() for n in names]
    return [member * value[:, None] for value in values]


@pytest.mark.parametrize(
    ("model", "response"),
    [
        ("sleepstudy", "Reaction"),
        ("sleepstudy uncorrelated", "Reaction"),
        ("Pastes", "strength"),
        ("Penicillin", "diameter"),
        ("nested", "y"),
        ("nested intercept", "y"),
    ],
)
def test_deviances_are_those_of_a_dense_normal_density(model, response):
    values, y = reference(model)["ml"], table(model)[response].to_numpy(float)
    covariance = values["residual_sd"] ** 2 * np.eye(len(y))
    for part in values["variances"]:
        columns = random_design(model, part["group"].removesuffix(".1"), part["names"])
        sigma = np.outer(part["sd"], part["sd"]) * part["correlation"]
        covariance += sum(
            sigma[i, j] * columns[i] @ columns[j].T
            for i in range(len(sigma))
            for j in range(len(sigma))
        )
    features = [row["name"] for row in values["fixed"][1:]]
    X = np.column_stack([np.ones(len(y)), *(table(model)[name] for name in features)])
    mean = X @ column(values["fixed"], "estimate")
    density = stats.multivariate_normal(mean, covariance).logpdf(y)
    assert_allclose(-2 * density, values["deviance"], rtol=1e-9)
