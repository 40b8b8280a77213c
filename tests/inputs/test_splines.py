"""Splines: their basis, their knots, and fits against smoothing splines with dense matrices."""

import shutil
import subprocess

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.interpolate import CubicSpline
from scipy.optimize import minimize_scalar

import sharedspan as ss
from sharedspan.inputs.encoders import Encoding, Number
from sharedspan.inputs.splines import (
    DistinctSample,
    SplineBasis,
    inverse_splitmix64,
    splitmix64,
)
from sharedspan.inputs.table_columns import TableColumns

SAMPLES = {
    "normal": lambda rng: rng.standard_normal(500),
    "skewed": lambda rng: np.exp(3 * rng.standard_normal(500)),
    "far from zero": lambda rng: 1e6 + rng.uniform(size=300),
    "few values": lambda rng: np.array([1.0, 2.0, 4.0, 5.0]),
    "tiny": lambda rng: 1e-200 * rng.standard_normal(50),
    "huge": lambda rng: 1e200 * rng.standard_normal(50),
}


@pytest.fixture(params=SAMPLES)
def sample(request):
    return SAMPLES[request.param](np.random.default_rng(0))


def roughness(basis, column):
    """The integral of f''^2 over the knots, f'' being linear between them."""
    h, c = np.diff(basis.knots), basis.curvature[:, column]
    return np.sum(h * (c[:-1] ** 2 + c[:-1] * c[1:] + c[1:] ** 2) / 3)


def test_columns_are_natural_cubic_splines(sample):
    basis = SplineBasis.of(sample)
    expected = CubicSpline(basis.knots, basis.transform, bc_type="natural")
    x = np.linspace(basis.knots[0], basis.knots[-1], 201)
    found = basis.basis(basis.centre + basis.scale * x)
    assert_allclose(found, expected(x), atol=1e-7 * np.abs(basis.transform).max())
    low, high = basis.knots[[0, -1]]
    for end, outside in ((low, low - np.arange(3.0)), (high, high + np.arange(3.0))):
        line = expected(end) + (outside - end)[:, None] * expected(end, 1)
        found = basis.basis(basis.centre + basis.scale * outside)
        assert_allclose(found, line, atol=1e-6 * np.abs(line).max())


def test_columns_are_orthogonal_and_equal_variances_mean_smoothness(sample):
    basis = SplineBasis.of(sample)
    x = np.unique(sample)
    columns = basis.basis(x)
    line = np.column_stack([np.ones(len(x)), (x - basis.centre) / basis.scale])
    products = np.column_stack([line, columns]).T @ columns / len(x)
    assert_allclose(np.trace(products[2:]), 1.0)
    assert_allclose(products[2:], np.diag(np.diag(products[2:])), atol=1e-9)
    assert_allclose(products[:2], 0, atol=1e-9)
    assert (np.diff(np.diag(products[2:])) <= 1e-15).all()
    # One common factor makes the roughness of all of them one.
    rough = np.array([roughness(basis, j) for j in range(basis.n_columns)])
    assert_allclose(rough / rough[0], 1.0, rtol=1e-9)


def test_few_distinct_values_have_few_columns_or_none():
    counts = [SplineBasis.of(np.repeat(np.arange(n), 3.0)).n_columns for n in (1, 3, 4, 6, 10, 50)]
    assert counts == [0, 0, 2, 4, 8, 8]
    assert SplineBasis.of(np.array([np.nan, 1.0, np.inf])).basis(np.arange(3.0)).shape == (3, 0)


def test_the_basis_does_not_depend_on_order_or_repetitions_nor_much_on_units():
    rng = np.random.default_rng(1)
    x = rng.gamma(2, size=400)
    one, two = SplineBasis.of(x), SplineBasis.of(rng.permutation(np.append(x, x[:100])))
    assert_array_equal(one.basis(x), two.basis(x))
    assert_allclose(SplineBasis.of(1e5 * x - 7).basis(1e5 * x - 7), one.basis(x), atol=1e-9)


def test_a_distinct_sample_depends_on_nothing_but_the_values():
    rng = np.random.default_rng(2)
    x = np.round(rng.standard_normal(5000), 3)
    whole = DistinctSample(size=300).add(x).values()
    assert len(np.unique(x)) > len(whole) == 300
    assert np.isin(whole, x).all()
    shuffled = rng.permutation(np.append(x, x[:1000]))
    parts = [DistinctSample(size=300).add(part) for part in np.array_split(shuffled, 7)]
    merged = parts[0]
    for part in parts[1:]:
        merged.merge(part)
    in_turn = DistinctSample(size=300)
    for part in np.array_split(shuffled, 13):
        in_turn.add(part)
    assert_array_equal(merged.values(), whole)
    assert_array_equal(in_turn.values(), whole)


def test_a_distinct_sample_below_its_size_is_exact():
    x = np.array([3.0, -0.0, 0.0, np.nan, 1.5, 3.0, np.inf, -2.0, 5e-324])
    assert_array_equal(DistinctSample().add(x).values(), [-2.0, 0.0, 5e-324, 1.5, 3.0])
    assert len(DistinctSample().values()) == 0
    with pytest.raises(ValueError, match="cannot be merged"):
        DistinctSample(5).merge(DistinctSample(6))


def test_a_distinct_sample_is_even_over_the_values():
    x = np.random.default_rng(3).permutation(200_000) / 200_000.0
    values = DistinctSample().add(x).values()
    assert len(values) == 10_000
    gap = np.abs(values - (np.arange(10_000) + 0.5) / 10_000).max()
    assert gap < 1.95 / np.sqrt(10_000)  # Kolmogorov's test at 0.1 percent


def test_hashes_are_those_of_splitmix64_and_can_be_inverted():
    # The first outputs of the generator for seed 1234567, as published with it.
    seeds = np.uint64(1234567) + np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert_array_equal(splitmix64(seeds), np.array(expected, dtype=np.uint64))
    bits = np.random.default_rng(4).integers(0, 2**64, 1000, dtype=np.uint64)
    assert_array_equal(inverse_splitmix64(splitmix64(bits)), bits)


def with_splines(groups, **options):
    """An estimator that is told which features are those of a spline."""
    columns = tuple(Number(f"x{j}") for j in range(len(groups)))
    encoding = Encoding(columns, coded_groups=tuple(map(int, groups)))
    return ss.AdaptiveSpanRegressor(
        columns=TableColumns(None, None, encoding, "VARCHAR"), **options
    )


def curve(n=200, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 4, n)
    return x, np.sin(2 * x) + 0.3 * x + 0.3 * rng.standard_normal(n)


def restricted_oracle(fixed, smooth, y):
    """b, smooth coefficients and variances by REML with dense matrices, one smooth variance."""
    n, p = fixed.shape

    def solve(log_tau):
        S = np.eye(n) + np.exp(log_tau) * smooth @ smooth.T
        inverse = np.linalg.inv(S)
        P = fixed.T @ inverse @ fixed
        b = np.linalg.solve(P, fixed.T @ inverse @ y)
        r = y - fixed @ b
        noise = r @ inverse @ r / (n - p)
        value = (n - p) * (np.log(2 * np.pi * noise) + 1)
        value += np.linalg.slogdet(S)[1] + np.linalg.slogdet(P)[1]
        return value, b, np.exp(log_tau) * smooth.T @ inverse @ r, noise

    best = minimize_scalar(lambda t: solve(t)[0], bounds=(-12, 12), options={"xatol": 1e-8})
    return best.fun, *solve(best.x)[1:]


def test_a_spline_of_one_task_is_the_smoothing_spline_by_restricted_likelihood():
    x, y = curve()
    z = SplineBasis.of(x, 12).basis(x)
    X = np.column_stack([x, z])
    groups = np.append(-1, np.zeros(z.shape[1]))
    model = with_splines(groups, method="reml", slopes="zero", rank=0).fit(X, y, task=np.zeros(200))
    deviance, b, smooth, noise = restricted_oracle(np.column_stack([np.ones(200), x]), z, y)
    assert_allclose(-2 * model.log_likelihood_, deviance, rtol=1e-7)
    assert_allclose(model.mean_coef_, np.append(b[1], smooth), rtol=1e-3, atol=1e-4)
    assert_allclose(model.mean_intercept_, b[0], rtol=1e-3)
    assert_allclose(model.noise_variance_[0], noise, rtol=1e-4)


def test_the_unit_of_a_spline_does_not_matter_but_that_of_one_column_does():
    x, y = curve()
    z = SplineBasis.of(x).basis(x)
    X, groups = np.column_stack([x, z]), np.append(-1, np.zeros(z.shape[1]))

    def prediction(factor):
        model = with_splines(groups, method="reml", slopes="zero").fit(X * factor, y)
        return model.predict(X * factor)

    one = prediction(1.0)
    assert_allclose(prediction(np.append(7, np.full(8, 1e4))), one, atol=1e-4)
    assert np.abs(prediction(np.append(np.ones(8), 1e4)) - one).max() > 1e-3


def test_a_straight_line_needs_no_spline_by_any_method():
    rng = np.random.default_rng(1)
    x, task = rng.uniform(size=300), np.repeat(np.arange(10), 30)
    y = 2 * x + rng.standard_normal(10)[task] + 0.5 * rng.standard_normal(300)
    z = SplineBasis.of(x).basis(x)
    for method in ("evidence", "ml", "reml"):
        model = with_splines(np.append(-1, np.zeros(8)), method=method, slopes="none")
        model.fit(np.column_stack([x, z]), y, task=task)
        assert np.ptp(z @ model.mean_coef_[1:]) < 0.15
        assert_allclose(model.mean_coef_[0], 2, atol=0.25)


@pytest.mark.parametrize("family", ["gaussian", "student_t", "huber", "binomial", "poisson"])
def test_a_curve_that_differs_between_tasks_is_found_by_all_families(family):
    rng = np.random.default_rng(2)
    T, n = 30, 60
    task, x = np.repeat(np.arange(T), n), rng.uniform(0, 4, T * n)
    size = rng.normal(1.0, 0.6, T)
    eta = size[task] * np.sin(1.6 * x) + 0.5
    y = eta + 0.3 * rng.standard_normal(T * n)
    if family == "binomial":
        y = (rng.uniform(size=T * n) < 1 / (1 + np.exp(-2 * eta))).astype(float)
    if family == "poisson":
        y = rng.poisson(np.exp(eta)).astype(float)
    z = SplineBasis.of(x).basis(x)
    X, groups = np.column_stack([x, z]), np.append(-1, np.zeros(8))
    errors = {}
    for varying in ([0], [0, 1]):
        model = with_splines(groups, family=family, varying=varying).fit(X, y, task=task)
        deviations = model.slope_std_[1:]
        assert (np.ptp(deviations) < 1e-9 * (1 + deviations.max())).all()  # one variance
        assert (deviations > 0).all() == (len(varying) == 2)
        fitted = model.intercept_[task] + np.einsum("ij,ij->i", X, model.coef_[task])
        errors[len(varying)] = np.mean((fitted - eta * (2 if family == "binomial" else 1)) ** 2)
    # Classes tell less of curves.
    assert errors[2] < (1.0 if family == "binomial" else 0.8) * errors[1]


def test_whitened_features_have_no_splines(small):
    d = small.X.shape[1]
    with pytest.raises(ValueError, match="whiten"):
        with_splines(np.zeros(d), whiten=True).fit(small.X, small.y, task=small.task)


@pytest.mark.skipif(shutil.which("Rscript") is None, reason="R is not installed")
def test_fitted_curves_are_near_those_of_mgcv(tmp_path):
    x, y = curve()
    np.savetxt(tmp_path / "xy.csv", np.column_stack([x, y]), delimiter=",", header="x,y")
    script = (
        "library(mgcv); d <- read.csv('xy.csv'); names(d) <- c('x', 'y');"
        "m <- gam(y ~ s(x, bs = 'cr', k = 12), data = d, method = 'REML');"
        "write.table(fitted(m), 'fitted.csv', row.names = FALSE, col.names = FALSE)"
    )
    run = subprocess.run(["Rscript", "-e", script], cwd=tmp_path, capture_output=True, text=True)
    if run.returncode:
        pytest.skip(f"mgcv is not installed: {run.stderr[-200:]}")
    z = SplineBasis.of(x, 12).basis(x)
    groups = np.append(-1, np.zeros(z.shape[1]))
    model = with_splines(groups, method="reml", slopes="zero")
    X = np.column_stack([x, z])
    assert_allclose(model.fit(X, y).predict(X), np.loadtxt(tmp_path / "fitted.csv"), atol=1e-3)
