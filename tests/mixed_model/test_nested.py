"""The likelihood and the posterior of groups within groups against dense Gaussians."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.linalg import null_space
from scipy.stats import multivariate_normal

from sharedspan.inputs.rows import validate_rows
from sharedspan.mixed_model import likelihood
from sharedspan.mixed_model.likelihood import MixedTasks
from sharedspan.mixed_model.nested import NestedTasks
from sharedspan.mixed_model.nested_factors import FactorEntries
from sharedspan.mixed_model.nested_fit import NestedFit
from sharedspan.mixed_model.nested_posterior import nested_modes, nested_posterior
from sharedspan.mixed_model.structures import Block, Coefficients
from sharedspan.mixed_model.terms import Covariance, Scaling
from sharedspan.statistics.canonical import Canonical
from sharedspan.statistics.task_statistics import Units, collect

PARENT = np.array([0, 0, 0, 1, 2, 2, 2, 2, 3])  # the second and the last district have one school
SIZES = np.array([1, 4, 6, 3, 2, 5, 1, 7, 2])


class Case:
    """Rows of nine schools in four districts, and the same as one Gaussian vector."""

    def __init__(
        self, p=2, kind="gram", restricted=False, taus=(np.inf,), fixed=None, zero=False, unit=1.0
    ):
        rng, intercept = np.random.default_rng(p), p > 1
        d, self.task = max(p - 1, 1), np.repeat(np.arange(9), SIZES)
        self.X = (rng.standard_normal((len(self.task), d)) + 0.5) * unit ** np.arange(d)
        self.y = 3 + 0.5 * self.task + rng.standard_normal(len(self.task))
        self.y += PARENT[self.task] * (2.0 - self.X[:, 0])
        groups = np.full(p, -1)
        groups[p - (len(taus) - 1) :] = 0
        coefficients = replace(Coefficients.plain(p), groups=groups)
        if fixed is not None:
            coefficients = replace(coefficients, fixed=np.array(fixed))
        units = Units(np.zeros(d), np.ones(d), 1.0)
        statistics = collect(validate_rows(self.X, self.y, self.task), units, intercept, kind)
        scaling = Scaling.of(statistics, intercept)
        if fixed is not None and not fixed[0]:
            scaling = replace(scaling, y_centre=0.0)
        self.canonical, self.restricted = Canonical(units, None), restricted
        self.tasks = MixedTasks(statistics, scaling, None, None, restricted, coefficients)
        self.nested = NestedTasks(self.tasks, PARENT)
        self.factors = [0.7 * np.tril(rng.standard_normal((p, p))) for _ in range(2)]
        if zero:
            self.factors[0][:], self.factors[1][:, 1:] = 0.0, 0.0
        self.taus = np.array(taus)
        self.Z = scaling.to_standard(self.X, intercept)
        self.u = (self.y - scaling.y_centre) / scaling.y_scale
        precision = self.tasks.prior_precision(self.taus)
        self.flat = (precision == 0) & coefficients.fixed

    def at(self, factors, taus):
        """The evidence at factors and prior variances."""
        outer, inner = (Covariance(np.zeros(len(F)), F) for F in factors)
        precision = self.tasks.prior_precision(taus)
        return self.nested.evaluate(outer, inner, precision, restricted=self.restricted)

    @property
    def labels(self):
        """Districts and schools of the rows."""
        return PARENT[self.task], self.task

    def shared(self, C, labels):
        """The covariance of rows that an effect of covariance C of each label gives them."""
        return (self.Z @ C @ self.Z.T) * (labels[:, None] == labels)

    def covariance(self, factors, taus):
        """That of all rows, over the noise, with the proper part of b."""
        S = np.eye(len(self.u))
        for F, labels in zip(factors, self.labels, strict=True):
            S += self.shared(F @ F.T, labels)
        precision = self.tasks.prior_precision(taus)
        for i in np.flatnonzero(precision):
            S += np.outer(self.Z[:, i], self.Z[:, i]) / precision[i]
        return S


CASES = [
    Case(p, kind, restricted)
    for p in (1, 2, 3)
    for kind in ("gram", "rows")
    for restricted in (False, True)
] + [
    Case(3, restricted=restricted, **options)
    for restricted in (False, True)
    for options in (
        {"zero": True}, {"unit": 1e-5}, {"unit": 1e5}, {"taus": (np.inf, 0.4)},
        {"fixed": (True, False, True)}, {"fixed": (False, True, True)},
    )
]  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_likelihood_is_that_of_a_dense_gaussian(case):
    e = case.at(case.factors, case.taus)
    S, flat = e.noise * case.covariance(case.factors, case.taus), case.Z[:, case.flat]
    if case.restricted:
        A = null_space(flat.T)
        expected = multivariate_normal(cov=A.T @ S @ A).logpdf(A.T @ case.u)
        expected -= 0.5 * np.linalg.slogdet(flat.T @ flat)[1]
    else:
        R = np.linalg.cholesky(np.linalg.inv(S)).T
        b = np.linalg.lstsq(R @ flat, R @ case.u, rcond=None)[0]
        expected = multivariate_normal(flat @ b, S).logpdf(case.u)
        assert_allclose(e.mean[case.flat], b, rtol=1e-7, atol=1e-9)
    assert_allclose(e.value, expected, rtol=1e-10)
    outer, inner = e.outer, e.inner
    for factor in (0.98, 1.02):  # the noise is at its best value
        options = {"restricted": case.restricted, "noise": factor * e.noise}
        assert case.nested.evaluate(outer, inner, e.precision, **options).value < e.value


def entries_of(case):
    p = len(case.factors[0])
    rows, columns = np.tril_indices(p)
    return tuple(FactorEntries(F, rows, columns) for F in case.factors)


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_is_that_of_finite_differences(case):
    e, entries = case.at(case.factors, case.taus), entries_of(case)
    d = case.nested.derivatives(e)
    pairs = zip((d.outer, d.inner), entries, strict=True)
    parts = [2 * (G @ f.factor)[f.rows, f.columns] for G, f in pairs]
    gradient = np.concatenate([*parts, d.prior[1:]])

    def value(i, size):
        factors, taus = [F.copy() for F in case.factors], case.taus.copy()
        q = len(entries[0].rows)
        if i < 2 * q:
            f = entries[i // q]
            factors[i // q][f.rows[i % q], f.columns[i % q]] += size
        else:
            taus[1 + i - 2 * q] *= np.exp(size)
        return case.at(factors, taus).value

    h, numeric = 1e-3, []
    for i in range(len(gradient)):
        near, far = (value(i, s * h) - value(i, -s * h) for s in (1, 2))
        numeric.append((8 * near - far) / (12 * h))
    assert_allclose(gradient, numeric, atol=1e-8 * np.abs(gradient).max())


@pytest.mark.parametrize("case", CASES)
def test_the_average_information_is_that_of_its_definition(case):
    e, entries = case.at(case.factors, case.taus), entries_of(case)
    information = case.nested.derivatives(e, entries).information
    flat = case.Z[:, case.flat]
    P = np.linalg.inv(case.covariance(case.factors, case.taus))
    P -= P @ flat @ np.linalg.solve(flat.T @ P @ flat, flat.T @ P)
    changes = []
    for f, labels in zip(entries, case.labels, strict=True):
        for i, c in zip(f.rows, f.columns, strict=True):
            dC = np.zeros_like(f.factor)
            dC[i] += f.factor[:, c]
            dC[:, i] += f.factor[:, c]
            changes.append(case.shared(dC, labels) @ P @ case.u)
    for group, tau in zip(case.tasks.prior_groups[1:], case.taus[1:], strict=True):
        changes.append(tau * case.Z[:, group] @ case.Z[:, group].T @ P @ case.u)
    W = np.array(changes)
    expected, common = 0.5 * W @ P @ W.T / e.noise, 0.5 * W @ P @ case.u / e.noise
    expected -= 2 / e.counted * np.outer(common, common)
    used = np.delete(np.arange(len(information)), 2 * len(entries[0].rows))  # slopes are flat
    inside = information[np.ix_(used, used)]
    assert_allclose(inside, expected, atol=1e-9 * np.abs(expected).max())


def test_a_district_of_one_school_has_one_effect():
    """Its two effects add up: only the sum of their covariances matters."""
    case = Case(3)
    alone = NestedTasks(case.tasks, np.arange(9))
    outer, inner = (Covariance(np.zeros(3), F) for F in case.factors)
    both = Covariance(np.zeros(3), np.hstack(case.factors))
    flat = np.zeros(3)
    expected = case.tasks.evaluate(both, flat, integrated=False)
    e = alone.evaluate(outer, inner, flat, restricted=False)
    assert_allclose([e.value, e.noise], [expected.value, expected.noise], rtol=1e-11)
    assert_allclose(e.mean, expected.mean, atol=1e-11)
    d = alone.derivatives(e)
    assert_allclose(d.outer, expected.gradient, atol=1e-9)
    assert_allclose(d.inner, expected.gradient, atol=1e-9)


def test_without_effects_of_districts_it_is_the_model_of_the_schools():
    case = Case(2)
    none, inner = Covariance(np.zeros(2), np.zeros((2, 0))), case.factors[1]
    expected = case.tasks.evaluate(Covariance(np.zeros(2), inner), np.zeros(2), integrated=False)
    e = case.nested.evaluate(none, Covariance(np.zeros(2), inner), np.zeros(2), restricted=False)
    assert_allclose(e.value, expected.value, rtol=1e-12)
    assert_allclose(case.nested.derivatives(e).inner, expected.gradient, atol=1e-9)


def test_the_order_of_schools_and_the_anchors_do_not_matter():
    case = Case(3)
    e, order = case.at(case.factors, case.taus), np.array([4, 8, 0, 5, 3, 1, 7, 2, 6])
    mixed = NestedTasks(case.tasks.take(order), PARENT[order])
    outer, inner = (Covariance(np.zeros(3), F) for F in case.factors)
    other = mixed.evaluate(outer, inner, np.zeros(3), restricted=False)
    assert_allclose(other.value, e.value, rtol=1e-12)
    assert_allclose(other.scores, e.scores, atol=1e-10)
    d, other_d = case.nested.derivatives(e), mixed.derivatives(other)
    assert_allclose(d.inner, other_d.inner, atol=1e-10)
    mixed.anchor = np.random.default_rng(0).standard_normal((4, 3))
    moved = mixed.evaluate(outer, inner, np.zeros(3), restricted=False)
    assert_allclose(moved.value, e.value, rtol=1e-11)


def test_tasks_in_chunks_and_weights_as_repetitions_change_nothing(monkeypatch):
    case, counts = Case(3), np.arange(SIZES.sum()) % 3 + 1
    units = case.canonical.units
    again = [np.repeat(each, counts, axis=0) for each in (case.X, case.y, case.task)]
    outer, inner = (Covariance(np.zeros(3), F) for F in case.factors)
    results = []
    for rows, weight in (((case.X, case.y, case.task), counts), (again, None)):
        statistics = collect(validate_rows(*rows, weight), units, True, "gram")
        scaling = Scaling.of(statistics, True)
        for size in (1 << 17, 1):
            monkeypatch.setattr(likelihood, "CHUNK_ENTRIES", size)  # a chunk has eight tasks, too
            nested = NestedTasks(MixedTasks(statistics, scaling), PARENT)
            e = nested.evaluate(outer, inner, np.zeros(3), restricted=True)
            d = nested.derivatives(e, entries_of(case))
            results.append([e.value, *d.inner.ravel(), *d.information.ravel()])
    assert_allclose(results, [results[0]] * 4, rtol=1e-8, atol=1e-8)


def test_effects_that_dwarf_the_noise_leave_digits():
    """Schools and districts of one level each, whose squares are 1e14 times those of the noise."""
    rng = np.random.default_rng(0)
    noise = rng.standard_normal(40)
    task, parent = np.repeat(np.arange(10), 4), np.repeat(np.arange(5), 2)
    level = 1e7 * np.array([1.0, -2.0, 0.5, 3.0, -1.0])[parent]
    X = np.zeros((40, 1))
    units = Units(np.zeros(1), np.ones(1), 1.0)
    outer, inner = (Covariance(np.array([v, 0.0]), np.zeros((2, 0))) for v in (1e14, 0.5))
    values = []
    for shift in (0.0, level):
        rows = validate_rows(X, noise + np.asarray(shift + np.zeros(10))[task], task)
        statistics = collect(rows, units, True, "gram")
        tasks = MixedTasks(statistics, Scaling(np.zeros(1), np.ones(1), 0.0, 1.0))
        nested = NestedTasks(tasks, parent)
        values.append(nested.evaluate(outer, inner, np.zeros(2), restricted=False, noise=1.0))
    # With districts that are free, their levels say nothing of the rest.
    gap = -0.5 * (5.0 - 1) * np.var(level[::2], ddof=1) / 1e14
    assert_allclose(values[1].value - values[0].value, gap, rtol=1e-6)
    assert_allclose(values[1].B, values[0].B, rtol=1e-12)


def fit_at(case):
    """A fit at the covariances of a case."""
    e = case.at(case.factors, case.taus)
    blocks = (Block("full", tuple(range(case.tasks.p))),)
    options = case.taus, e, case.restricted, 1, True
    return NestedFit(blocks, blocks, e.outer, e.inner, *options)


def dense_posterior(case, fit, cross, prior):
    """Mean and covariance of effects, given their prior and covariances with the rows.

    Over the noise and with b integrated out.
    """
    big = 1e8 * np.diag(case.flat.astype(float))  # nearly flat
    S = case.covariance(case.factors, case.taus) + case.Z @ big @ case.Z.T
    gain = np.linalg.solve(S, cross.T).T
    return gain @ case.u, fit.noise * (prior - gain @ cross.T)


@pytest.mark.parametrize("case", [Case(2), Case(2, "rows", True), Case(3, taus=(np.inf, 0.4))])
def test_posteriors_are_those_of_dense_conditioning(case):
    fit, p = fit_at(case), case.tasks.p
    post = nested_posterior(case.tasks, PARENT, fit, case.canonical)
    outer, inner = fit.outer.matrix, fit.inner.matrix
    prior_b = 1e8 * np.diag(case.flat.astype(float))
    precision = case.tasks.prior_precision(case.taus)
    prior_b[precision > 0, precision > 0] = 1 / precision[precision > 0]
    district, school = case.labels
    i, j = np.triu_indices(p)
    for r in range(4):
        cross = (prior_b + outer * (district == r)[:, None, None]) @ case.Z[:, :, None]
        mean, covariance = dense_posterior(case, fit, cross[:, :, 0].T, prior_b + outer)
        assert_allclose(post.outer_mean[r], mean, atol=1e-6)
        assert_allclose(post.outer_packed[r], covariance[i, j], atol=1e-6)
        new = post.stacked().packed[9 + r]
        assert_allclose(new, (covariance + fit.noise * inner)[i, j], atol=1e-6)
    trace = 0.0
    for s in range(9):
        own = outer * (district == PARENT[s])[:, None, None]
        own = own + inner * (school == s)[:, None, None]
        cross = ((prior_b + own) @ case.Z[:, :, None])[:, :, 0].T
        mean, covariance = dense_posterior(case, fit, cross, prior_b + outer + inner)
        assert_allclose(post.mean[s], mean, atol=1e-6)
        assert_allclose(post.packed[s], covariance[i, j], atol=1e-6)
        rows = case.Z[school == s]
        trace += np.trace(rows @ covariance @ rows.T) / fit.noise
    assert_allclose(post.degrees_of_freedom, trace, rtol=1e-5)
    assert_allclose(post.new, fit.noise * (outer + inner) + post.b_covariance, rtol=1e-12)
    assert len(post.stacked().noise) == len(post.stacked().degrees) == 13


def test_conditional_modes_take_the_fixed_effects_as_known():
    case = Case(2, restricted=True)
    fit, (district, school) = fit_at(case), case.labels
    S = case.covariance(case.factors, case.taus)
    residual = case.u - case.Z @ fit.mean
    scale = case.tasks.scaling
    J = np.diag(scale.y_scale / np.append(1.0, scale.scale))
    J[0, 1] = -scale.centre[0] * J[1, 1]
    for modes, labels, C in zip(
        nested_modes(case.tasks, PARENT, fit, case.canonical), (district, school),
        (fit.outer.matrix, fit.inner.matrix), strict=True,
    ):  # fmt: skip
        for g in range(labels.max() + 1):
            cross = C @ (case.Z * (labels == g)[:, None]).T
            gain = np.linalg.solve(S, cross.T).T
            assert_allclose(modes.mean[g], J @ gain @ residual, atol=1e-10)
            expected = fit.noise * J @ (C - gain @ cross.T) @ J.T
            assert_allclose(modes.covariance[g], expected, atol=1e-10)
            assert_allclose(modes.std[g] ** 2, np.diag(expected), atol=1e-10)
