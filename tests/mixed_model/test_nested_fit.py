"""Fits of groups within groups: published values, lme4, zero variances, and their objective."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sharedspan.inference.fixed_effects import fixed_effects
from sharedspan.inference.profile import profile_intervals
from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model import nested_fit
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested_fit import fit_nested
from sharedspan.mixed_model.nested_objective import NestedObjective
from sharedspan.mixed_model.nested_posterior import nested_modes, nested_posterior
from sharedspan.mixed_model.objective import EffectNames
from sharedspan.mixed_model.structures import Block, Coefficients
from sharedspan.mixed_model.terms import Scaling
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import Units, collect

# lme4's Pastes: two assays of each of three casks of ten batches (Davies and Goldsmith, 1972).
PASTES = [
    62.8, 62.6, 60.1, 62.3, 62.7, 63.1, 60.0, 61.4, 57.5, 56.9, 61.1, 58.9, 58.7, 57.5, 63.9,
    63.1, 65.4, 63.7, 57.1, 56.4, 56.9, 58.6, 64.7, 64.5, 55.1, 55.1, 54.7, 54.2, 58.8, 57.5,
    63.4, 64.9, 59.3, 58.1, 60.5, 60.0, 62.5, 62.6, 61.0, 58.7, 56.9, 57.7, 59.2, 59.4, 65.2,
    66.0, 64.8, 64.1, 54.8, 54.8, 64.0, 64.0, 57.7, 56.8, 58.3, 59.3, 59.2, 59.2, 58.9, 56.6,
]  # fmt: skip
LEVEL = (Block("full", (0,)),)
SLOPE = (Block("full", (0, 1)),)


class Fitted:
    """A nested model of rows in the user's units, its effects measured at the features' origin."""

    def __init__(
        self, X, y, task, parent, outer, inner, *, restricted=False, fixed=None, groups=None,
        units=None, kind="gram",
    ):  # fmt: skip
        X = np.asarray(X, dtype=float)
        d = X.shape[1]
        units = units or Units(np.zeros(d), np.ones(d), 1.0)
        statistics = collect(validate_rows(X, y, task), units, True, kind)
        coefficients = replace(
            Coefficients.plain(d + 1),
            fixed=np.ones(d + 1, dtype=bool) if fixed is None else np.array(fixed),
            groups=np.append(-1, np.full(d, -1) if groups is None else groups).astype(int),
        )
        scaling = Scaling.of(statistics, True, [g - 1 for g in coefficients.members])
        centre = -units.origin * units.scale
        y_centre = scaling.y_centre * coefficients.fixed[0]
        scaling = replace(scaling, centre=centre, y_centre=y_centre)
        self.tasks = MixedTasks(statistics, scaling, None, None, restricted, coefficients)
        self.rows = X, np.asarray(y, dtype=float), np.asarray(task)
        self.parent, self.canonical = np.asarray(parent), Canonical(units, None)
        self.fit = fit_nested(self.tasks, self.parent, outer, inner, restricted=restricted)
        names = EffectNames(
            ["(Intercept)", *(f"x{i}" for i in range(1, d + 1))],
            ("d", "s:d"),
            [f"group {i}" for i in range(len(coefficients.members))],
        )
        self.objective = NestedObjective(self.tasks, self.parent, self.fit, self.canonical, names)

    @property
    def deviance(self):
        """-2 log L or the REML criterion, in the user's units."""
        return self.objective.deviance(self.objective.theta, restricted=self.fit.restricted)[0]

    @property
    def components(self):
        return self.objective.components(self.objective.theta)


@pytest.mark.parametrize("kind", ["gram", "rows"])
@pytest.mark.parametrize("restricted", [False, True])
def test_pastes_has_the_published_values(restricted, kind):
    """strength ~ 1 + (1 | batch/cask), lme4's manual of version 1.1."""
    task, parent = np.repeat(np.arange(30), 2), np.repeat(np.arange(10), 3)
    options = {"restricted": restricted, "fixed": [True, False], "kind": kind}
    model = Fitted(np.zeros((60, 1)), PASTES, task, parent, LEVEL, LEVEL, **options)
    expected = [1.287365, 2.904078, 0.823408] if restricted else [1.0951, 2.9041, 0.8234]
    assert_allclose(model.deviance, 246.990746 if restricted else 247.9945, atol=1e-4)
    assert_allclose([each.std[0] for each in model.components], expected, atol=1e-4)
    estimate, covariance = model.objective.fixed(model.objective.theta)
    assert_allclose(estimate, [60.0533], atol=1e-4)
    assert_allclose(np.sqrt(covariance[0, 0]), 0.6769 if restricted else 0.6421, atol=1e-4)
    assert model.fit.converged


def uniforms(seed=1):
    """Uniform numbers of mean zero and variance one, as the R code below draws them."""
    while True:
        seed = 16807 * seed % 2147483647
        yield (seed / 2147483647 - 0.5) * 12**0.5


# In R, with lme4 1.1-31, xtol_abs and ftol_abs of 1e-12:
#   u <- 1
#   draw <- function(n) { out <- numeric(n); for (i in seq_len(n)) {
#     u <<- (16807 * u) %% 2147483647; out[i] <- (u / 2147483647 - 0.5) * sqrt(12) }; out }
#   rows <- NULL; s <- 0
#   for (d in 0:11) { top <- draw(2)
#     for (j in seq_len((7 * d) %% 5 + 1)) { own <- draw(2)
#       for (i in seq_len((3 * s) %% 7 + 2)) { e <- draw(3)
#         y <- 1 + 0.5 * e[1] + 1.2 * top[1] + 0.5 * top[2] * e[1] + 0.8 * own[1] +
#           0.6 * own[2] * e[1] + e[3]
#         rows <- rbind(rows, c(d, s, e[1], e[2], y)) }
#       s <- s + 1 } }
#   data <- data.frame(d = factor(rows[, 1]), s = factor(rows[, 2]), x = rows[, 3],
#                      w = 10 + 3 * rows[, 4], y = rows[, 5])
def unbalanced():
    """169 rows of 34 schools in 12 districts: X (x and w), y, schools, and their districts."""
    numbers, rows, parent = uniforms(), [], []
    draw = lambda n: [next(numbers) for _ in range(n)]  # noqa: E731
    for d in range(12):
        top = draw(2)
        for _ in range(7 * d % 5 + 1):
            own = draw(2)
            for _ in range(3 * len(parent) % 7 + 2):
                e = draw(3)
                y = 1 + 0.5 * e[0] + 1.2 * top[0] + 0.5 * top[1] * e[0] + 0.8 * own[0]
                rows.append((len(parent), e[0], 10 + 3 * e[1], y + 0.6 * own[1] * e[0] + e[2]))
            parent.append(d)
    task, x, w, y = np.array(rows).T
    return np.column_stack([x, w]), y, task.astype(int), np.array(parent)


def own(*members):
    """Effects that vary independently."""
    return (Block("diagonal", members),)


# lmer(formula, data, REML = ...): formula, columns of X, blocks of the districts and of the
# schools, REML; criterion; standard deviations and correlations of schools, then of districts, and
# sigma; estimates, their standard errors; modes and their conditional deviations of the first three
# schools and districts.
LME4 = {
    "y ~ x + (1 + x | d/s), ML": (
        [0], SLOPE, SLOPE, False, 557.51527210,
        [[0.658786, 0.588477], 0.018042, [0.785175, 0.269816], 0.531907, 0.983441],
        [0.730320, 0.861069], [0.276001, 0.163601],
        [[-0.44035541, 0.092400001], [0.62097398, -0.726486865], [0.11471093, 0.116582767]],
        [[0.56560522, 0.56774251], [0.46527242, 0.33537694], [0.43987179, 0.38795922]],
        [[-0.59599846, -0.093935227], [-0.10876244, -0.203601220], [-1.34577492, -0.241555865]],
        [[0.59886912, 0.24679754], [0.39290694, 0.20795278], [0.33602070, 0.19659879]],
    ),
    "y ~ x + (1 + x | d/s), REML": (
        [0], SLOPE, SLOPE, True, 559.99805170,
        [[0.660018, 0.585178], 0.023615, [0.831977, 0.322829], 0.449054, 0.983933],
        [0.726131, 0.862313], [0.287741, 0.172501],
        [[-0.42114035, 0.094592714], [0.60414547, -0.669244375], [0.11008644, 0.159536701]],
        [[0.57101810, 0.56506586], [0.46907406, 0.34788864], [0.44355374, 0.39419211]],
        [[-0.637108533, -0.085872468], [-0.091045839, -0.276669378], [-1.371679106, -0.236116478]],
        [[0.62071864, 0.29863609], [0.39988740, 0.24182921], [0.34071493, 0.22589726]],
    ),
    "y ~ x + w + (1 | d/s), REML": (
        [0, 1], LEVEL, LEVEL, True, 592.12371644,
        [[0.710012], None, [0.847552], None, 1.193835],
        [0.786070, 0.838504, -0.010156], [0.455111, 0.101308, 0.034419],
        [[-0.385849724], [0.870365447], [-0.027480273]],
        [[0.61056320], [0.50918401], [0.48465840]],
        [[-0.54981901], [0.11966662], [-1.51347246]],
        [[0.67207127], [0.43489971], [0.37104092]],
    ),
    "y ~ x + (x || d) + (1 | s), REML": (
        [0], own(0, 1), LEVEL, True, 575.31957575,
        [[0.643256], None, [0.860312, 0.500914], None, 1.105583],
        [0.670392, 0.862317], [0.295710, 0.182773],
        [[-0.349170715], [0.573195454], [0.097883938]],
        [[0.56440244], [0.47845437], [0.44970026]],
        [[-0.62457177, 0.052179319], [0.10967281, -0.691513734], [-1.54038583, -0.208200832]],
        [[0.65988655, 0.48991859], [0.40743068, 0.23477668], [0.34590040, 0.18894043]],
    ),
    # The slope of the districts has no variance.
    "y ~ w + (1 + w || d) + (0 + w | s), ML": (
        [1], own(0, 1), (Block("full", (1,)),), False, 641.80189127,
        [[0.069502], None, [0.770615, 0.0], None, 1.442941],
        [0.331949, 0.031939], [0.480101, 0.042768],
        [[-0.0121622463], [0.0389547636], [0.0081067959]],
        [[0.06115530], [0.04995659], [0.04525165]],
        [[-0.36436899, 0.0], [0.12576760, 0.0], [-1.37359897, 0.0]],
        [[0.64992837, 0.0], [0.45369083, 0.0], [0.37891027, 0.0]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("formula", LME4)
def test_lme4_has_the_same_numbers(formula):
    (columns, outer, inner, restricted, criterion, stds, estimates, errors, school, school_std,
     district, district_std) = LME4[formula]  # fmt: skip
    X, y, task, parent = unbalanced()
    model = Fitted(X[:, columns], y, task, parent, outer, inner, restricted=restricted)
    assert_allclose(model.deviance, criterion, rtol=1e-9)
    of_district, of_school, residual = model.components
    for each, std, correlation in (
        (of_school, stds[0], stds[1]), (of_district, stds[2], stds[3]), (residual, [stds[4]], None),
    ):  # fmt: skip
        assert_allclose(each.std, std, atol=1e-4)
        if correlation is not None:
            assert_allclose(each.correlation[0, 1], correlation, atol=1e-3)
    fixed, covariance = model.objective.fixed(model.objective.theta)
    assert_allclose(fixed, estimates, atol=1e-4)
    assert_allclose(np.sqrt(np.diag(covariance)), errors, atol=1e-4)
    modes = nested_modes(model.tasks, parent, model.fit, model.canonical)
    for each, mean, std in zip(modes, (district, school), (district_std, school_std), strict=True):
        assert_allclose(each.mean[:3], mean, atol=2e-4)
        assert_allclose(each.std[:3], std, atol=2e-4)


# lmerTest 3.1-3: coef(summary(lmer(formula, data))), and lme4's confint.
def test_tests_and_intervals_are_those_of_lmertest_and_lme4():
    X, y, task, parent = unbalanced()
    slopes = Fitted(X[:, [0]], y, task, parent, SLOPE, SLOPE, restricted=True)
    effects = fixed_effects(slopes.objective, ("(Intercept)", "x"))
    assert_allclose(effects.degrees(), [11.6510291, 9.5675531], rtol=1e-4)
    assert_allclose(effects.p_value, [0.0272460, 6.1526e-4], rtol=1e-3)
    levels = Fitted(X, y, task, parent, LEVEL, LEVEL, restricted=True)
    effects = fixed_effects(levels.objective, ("(Intercept)", "x", "w"))
    assert_allclose(effects.degrees(), [55.048457, 151.024243, 152.564810], rtol=1e-4)
    intervals = [(each.lower, each.upper) for each in profile_intervals(levels.objective)]
    expected = [(0.41652, 1.42807), (0.42861, 1.07475), (1.05850, 1.34044)]
    assert_allclose(intervals[:3], expected, atol=1e-4)


def test_units_of_features_and_responses_change_nothing_else():
    X, y, task, parent = unbalanced()
    units = Units(np.array([0.25, 8.0]), np.array([2.0, 0.5]), 4.0)
    plain = Fitted(X, y, task, parent, SLOPE, SLOPE, restricted=True)
    moved = Fitted(X, y, task, parent, SLOPE, SLOPE, restricted=True, units=units)
    assert_allclose(moved.deviance, plain.deviance, rtol=1e-10)
    assert_allclose(moved.objective.theta, plain.objective.theta, atol=1e-4)
    scaled = Fitted(X * [1e6, 1e-6], 1e3 * y, task, parent, SLOPE, SLOPE, restricted=True)
    volume = 2 * np.log([1e3, 1e-3, 1e9]).sum()
    expected = plain.deviance + 2 * len(y) * np.log(1e3) - volume
    assert_allclose(scaled.deviance, expected, rtol=1e-9)


def test_variances_of_zero_are_found():
    """Levels of schools that vary less than those of samples from one population."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((12, 8))
    y = (noise - noise.mean(axis=1, keepdims=True)).ravel()
    task, parent = np.repeat(np.arange(12), 8), np.repeat(np.arange(4), 3)
    model = Fitted(np.zeros((96, 1)), y, task, parent, LEVEL, LEVEL, fixed=[True, False])
    assert [each.std[0] for each in model.components[:2]] == [0.0, 0.0]
    expected = 96 * (np.log(2 * np.pi * np.mean(y**2)) + 1)
    assert_allclose(model.deviance, expected, rtol=1e-12)
    modes = nested_modes(model.tasks, parent, model.fit, model.canonical)
    assert not any(each.mean.any() or each.std.any() for each in modes)


@pytest.mark.parametrize("start", [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0)])
def test_a_variance_of_zero_is_left_if_the_likelihood_rises(start, monkeypatch):
    """Where a factor is zero its gradient is, too."""
    X, y, task, parent = unbalanced()
    expected = Fitted(X, y, task, parent, SLOPE, SLOPE)
    monkeypatch.setattr(nested_fit, "STARTS", (start,))
    model = Fitted(X, y, task, parent, SLOPE, SLOPE)
    assert model.fit.converged
    assert_allclose(model.deviance, expected.deviance, rtol=1e-9)


@pytest.mark.parametrize(("outer", "inner"), [((), SLOPE), (SLOPE, ()), ((), ())])
def test_a_level_may_have_no_effects(outer, inner):
    X, y, task, parent = unbalanced()
    model, both = (Fitted(X, y, task, parent, *each) for each in ((outer, inner), (SLOPE, SLOPE)))
    assert model.fit.converged
    assert model.deviance > both.deviance
    if inner:
        alone = Fitted(X, y, task, np.arange(34), (), inner)
        assert_allclose(model.deviance, alone.deviance, rtol=1e-10)


@pytest.mark.parametrize(
    "change",
    [
        lambda X, y, task, parent: (X, np.full(len(y), 3.0), task, parent),
        lambda X, y, task, parent: (X, 2 + X[:, 0], task, parent),
        lambda X, y, task, parent: (X[:, [0, 0]], y, task, parent),
        lambda X, y, task, parent: (X[:40], y[:40], np.arange(40), np.arange(40) // 5),
        lambda X, y, task, parent: (X, y, task, 0 * parent),
        lambda X, y, task, parent: (X, y, task, 3 * parent),
        lambda X, y, task, parent: (X, 1e150 * y, task, parent),
    ],
    ids=["constant", "exact", "collinear", "row each", "one district", "gaps", "huge"],
)
@pytest.mark.parametrize("restricted", [False, True])
def test_hard_tables_have_a_fit_and_a_posterior(change, restricted):
    model = Fitted(*change(*unbalanced()), SLOPE, SLOPE, restricted=restricted)
    posterior = nested_posterior(model.tasks, model.parent, model.fit, model.canonical)
    assert model.fit.converged
    assert np.isfinite(posterior.packed).all()
    assert np.isfinite(posterior.mean).all()
    assert np.isfinite(model.deviance)


def simulated(seed, n_outer=150, slope=True):
    """Rows of eight schools in each district, with x, and what they were drawn from."""
    rng = np.random.default_rng(seed)
    parent = np.repeat(np.arange(n_outer), 8)
    task = np.repeat(np.arange(len(parent)), 10)
    x = rng.standard_normal(len(task)) + 1.0
    roots = [np.array([[1.0, 0.0], [0.4, 0.5]]), np.array([[0.8, 0.0], [-0.3, 0.6]])]
    effects = rng.standard_normal((n_outer, 2)) @ roots[0].T
    effects = effects[parent] + rng.standard_normal((len(parent), 2)) @ roots[1].T
    y = 2 - x + effects[task, 0] + slope * effects[task, 1] * x
    y += 1.5 * rng.standard_normal(len(task))
    return x[:, None], y, task, parent, np.array([1.0, 0.4, 0.5, 0.8, -0.3, 0.6, np.log(1.5)])


def test_simulated_covariances_are_recovered_within_their_errors():
    """The errors of theta have the information's covariance, so that their squares are chi2."""
    X, y, task, parent, truth = simulated(0)
    for restricted in (False, True):
        model = Fitted(X, y, task, parent, SLOPE, SLOPE, restricted=restricted)
        theta, objective = model.objective.theta, model.objective
        H = np.empty((7, 7))
        for i, step in enumerate(1e-4 * np.eye(7)):
            up, down = (
                objective.deviance(theta + s * step, restricted=restricted)[1] for s in (1, -1)
            )
            H[i] = (up - down) / 4e-4  # half the deviance's second derivatives
        error = theta - truth
        assert 0.2 < error @ H @ error < 25  # both bounds are passed once in a thousand


def test_effects_of_low_rank_are_those_of_the_full_covariance_if_that_has_it():
    rng = np.random.default_rng(0)
    X, y, task, parent, _ = simulated(3, n_outer=40)
    full = Fitted(X, y, task, parent, LEVEL, SLOPE)
    low = Fitted(X, y, task, parent, LEVEL, (Block("low_rank", (0, 1), 2),))
    assert_allclose(low.deviance, full.deviance, rtol=1e-9)
    one = Fitted(X, y, task, parent, LEVEL, (Block("low_rank", (0, 1), 1),))
    assert one.deviance > full.deviance
    level = rng.standard_normal(len(parent))
    flat = 2 - X[:, 0] + level[task] * (1 + 0.5 * X[:, 0]) + 0.5 * rng.standard_normal(len(task))
    one = Fitted(X, flat, task, parent, LEVEL, (Block("low_rank", (0, 1), 1),))
    full = Fitted(X, flat, task, parent, LEVEL, SLOPE)
    assert one.deviance - full.deviance < 8
    assert_allclose(one.components[1].correlation[0, 1], 1.0)


def test_a_low_rank_without_a_number_is_refused():
    X, y, task, parent = unbalanced()
    with pytest.raises(ValueError, match="write the rank"):
        Fitted(X, y, task, parent, LEVEL, (Block("low_rank", (0, 1)),))


MODELS = {
    "full": (SLOPE, SLOPE, {}),
    "mixed": ((Block("diagonal", (1,)), LEVEL[0]), (Block("full", (1, 0)),), {}),
    "low rank": ((Block("low_rank", (0, 1), 1),), LEVEL, {}),
    "groups": (LEVEL, LEVEL, {"groups": [0, 0]}),
    "no intercept": (LEVEL, SLOPE, {"fixed": [False, True, True]}),
    "no slope": (LEVEL, own(0, 1), {"fixed": [True, False, True]}),
}


@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_objective_is_that_of_a_dense_gaussian(name, restricted):
    outer, inner, options = MODELS[name]
    X, y, task, parent = unbalanced()
    units = Units(np.array([0.5, 8.0]), np.array([0.25, 0.25]), 2.0)
    model = Fitted(X, y, task, parent, outer, inner, units=units, **options)
    objective, coefficients = model.objective, model.tasks.coefficients
    theta = objective.theta + 0.1 * np.random.default_rng(0).standard_normal(len(objective.theta))
    Z = np.column_stack([np.ones(len(y)), X])
    S = np.exp(2 * theta[-1]) * np.eye(len(y))
    labels = [(parent[task], b) for b in outer] + [(task, b) for b in inner]
    for component, (label, block) in zip(objective.components(theta), labels, strict=False):
        z = Z[:, list(block.members)]
        S += (z @ component.covariance @ z.T) * (label[:, None] == label)
    for component in objective.components(theta):
        if component.kind == "variance":
            grouped = Z[:, coefficients.groups == 0]
            S += component.covariance[0, 0] * grouped @ grouped.T
    flat = Z[:, coefficients.fixed & (coefficients.groups < 0)]
    P = np.linalg.inv(S)
    V = np.linalg.inv(flat.T @ P @ flat)
    b = V @ flat.T @ P @ y
    expected = (y - flat @ b) @ P @ (y - flat @ b) + np.linalg.slogdet(S)[1]
    count = len(y) - flat.shape[1] * restricted
    expected += count * np.log(2 * np.pi) - restricted * np.linalg.slogdet(V)[1]
    value, gradient = objective.deviance(theta, restricted=restricted)
    assert_allclose(value, expected, rtol=1e-9)
    estimate, covariance = objective.fixed(theta)
    assert_allclose(estimate, b, rtol=1e-7)
    assert_allclose(covariance, V, rtol=1e-7)
    for i, step in enumerate(1e-3 * np.eye(len(theta))):
        near, far = (
            objective.deviance(theta + s * step, restricted=restricted)[0]
            - objective.deviance(theta - s * step, restricted=restricted)[0]
            for s in (1, 2)
        )
        numeric = (8 * near - far) / 12e-3
        assert_allclose(gradient[i], numeric, atol=1e-7 * np.abs(gradient).max())


@pytest.mark.parametrize("restricted", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_fit_is_where_the_deviance_is_flat(name, restricted):
    outer, inner, options = MODELS[name]
    model = Fitted(*unbalanced(), outer, inner, restricted=restricted, **options)
    theta, step = model.objective.theta, 1e-3
    value, gradient = model.objective.deviance(theta, restricted=restricted)
    assert model.fit.converged
    for i in range(len(theta)):
        moved = theta + step * (np.arange(len(theta)) == i)
        other, slope = model.objective.deviance(moved, restricted=restricted)
        assert other > value - 1e-7
        if theta[i]:  # a Newton step along the axis gains nothing
            assert gradient[i] ** 2 * step / max(slope[i] - gradient[i], 1e-300) < 1e-5
