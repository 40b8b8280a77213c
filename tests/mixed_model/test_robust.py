"""Rows with outliers: Student's t and Huber's loss."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats
from scipy.integrate import quad
from scipy.optimize import approx_fprime, minimize

import sharedspan as ss
from sharedspan.families import FAMILIES, Huber, StudentT
from sharedspan.mixed_model import robust

ROBUST = ("student_t", "huber")
SEEDS = range(3)
# A fixed structure, so that small differences do not select another one.
FIXED = {"rank": 0, "slopes": "isotropic"}


def simulated(seed, noise="t", T=50, n=20):
    """X, y, task, coefficients and a function of X and task that draws new responses."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(T), n)
    X = rng.standard_normal((T * n, 3))
    coef = [1.0, -1.0, 0.5] + 0.4 * rng.standard_normal((T, 3))
    level = 2 + rng.standard_normal(T)

    def mean(X, task):
        return level[task] + np.einsum("ij,ij->i", X, coef[task])

    def respond(X, task):
        m = len(task)
        e = rng.standard_normal(m) if noise == "normal" else rng.standard_t(3, m)
        if noise == "outliers":
            e = np.where(rng.random(m) < 0.05, 20 * rng.standard_normal(m), rng.standard_t(6, m))
        return mean(X, task) + e

    respond.mean = mean
    return X, respond(X, task), task, coef, respond


def fitted(family, X, y, task, **options):
    return ss.AdaptiveSpanRegressor(family=family, **options).fit(X, y, task=task)


def rms(a, b):
    return np.sqrt(np.mean((a - b) ** 2))


@pytest.mark.parametrize("family", [StudentT(3.0), StudentT(30.0), Huber(), Huber(0.5)])
def test_psi_is_the_derivative_of_a_proper_log_density(family):
    assert_allclose(quad(lambda z: np.exp(family.log_density(z)), -np.inf, np.inf)[0], 1, rtol=1e-6)
    z = np.array([-4.0, -1.0, 0.3, 2.5])
    slope = [approx_fprime([x], lambda t: family.log_density(t)[0], 1e-7)[0] for x in z]
    assert_allclose(family.psi(z), -np.array(slope), atol=1e-6)
    slope = [approx_fprime([x], lambda t: family.psi(t)[0], 1e-7)[0] for x in z]
    assert_allclose(family.psi_slope(z), slope, atol=1e-6)
    if isinstance(family, Huber):
        square = quad(lambda z: family.psi(z) ** 2 * stats.norm.pdf(z), -10, 10)[0]
        assert_allclose(family.normal_square, square, rtol=1e-7)
    else:
        assert_allclose(family.log_density(z), stats.t.logpdf(z, family.degrees), rtol=1e-12)


def test_degrees_and_scale_have_the_largest_likelihood():
    e, weight = 2.5 * stats.t.rvs(4, size=800, random_state=0), np.arange(800) % 3 + 1.0
    family, scale = StudentT().fitted(e**2, weight, 1.0, 1e-7)
    degrees, _, other = stats.t.fit(e.repeat(weight.astype(int)), floc=0)
    assert_allclose([family.degrees, scale], [degrees, other], rtol=1e-3)


def likelihood_of_one_regression(X, y):
    """Coefficients, scale, degrees and value at the maximum of the likelihood of Student's t."""
    Z = np.column_stack([np.ones(len(y)), X])

    def loss(theta):
        scale, degrees = np.exp(theta[-2:])
        return -stats.t.logpdf(y - Z @ theta[:-2], degrees, scale=scale).sum()

    start = np.append(np.linalg.lstsq(Z, y, rcond=None)[0], [0.0, 1.5])
    best = minimize(loss, start, method="BFGS", options={"gtol": 1e-7})
    best = minimize(loss, best.x, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12,
                                                                 "maxiter": 20_000})  # fmt: skip
    return best.x[:-2], np.exp(best.x[-2]), np.exp(best.x[-1]), -best.fun


@pytest.mark.parametrize("seed", SEEDS)
def test_one_regression_by_students_t_has_the_largest_likelihood(seed):
    X, y, _, _, _ = simulated(seed, T=1, n=300)
    model = fitted("student_t", X, y, None, method="ml", slopes="zero", rank=0)
    coef, scale, degrees, value = likelihood_of_one_regression(X, y)
    assert_allclose(np.append(model.intercept_, model.coef_[0]), coef, atol=1e-5)
    assert_allclose(model.noise_degrees_of_freedom_, degrees, rtol=1e-4)
    assert_allclose(model.noise_variance_, scale**2 * degrees / (degrees - 2), rtol=1e-4)
    assert_allclose(model.log_likelihood_, value, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_regression_by_hubers_loss_is_that_of_statsmodels(seed):
    sm = pytest.importorskip("statsmodels.api")
    X, y, _, _, _ = simulated(seed, "outliers", T=1, n=200)
    family, scales = Huber(), [1.0]

    def proposal_2(_, resid):
        """The scale whose mean square of psi is that of normal errors."""
        for _ in range(300):
            mean = np.mean(np.clip(resid, -1.345 * scales[0], 1.345 * scales[0]) ** 2)
            scales[0] = np.sqrt(mean / family.normal_square)
        return scales[0]

    other = sm.RLM(y, sm.add_constant(X), M=sm.robust.norms.HuberT(1.345)).fit(
        scale_est=proposal_2, tol=1e-12, maxiter=500
    )
    model = fitted("huber", X, y, None, method="ml", slopes="zero", rank=0)
    assert_allclose(np.append(model.intercept_, model.coef_[0]), other.params, atol=1e-6)
    assert_allclose(model.mean_coef_std_, other.bse[1:], rtol=0.05)


@pytest.fixture(params=ROBUST)
def turns(request, monkeypatch):
    """The last turn of a fit with effects, and the optimiser."""
    ends = []
    fit = robust.RobustOptimizer.fit

    def watched(self, at, first=False):
        ends.append((self, fit(self, at, first)))
        return ends[-1][1]

    monkeypatch.setattr(robust.RobustOptimizer, "fit", watched)
    monkeypatch.setattr(robust, "TOL", 1e-9)
    X, y, task, _, _ = simulated(0, "outliers", T=20)
    rng = np.random.default_rng(0)
    ss.AdaptiveSpanRegressor(family=request.param, slopes="diagonal", rank=1).fit(
        X, y, task=task, sample_weight=rng.integers(1, 3, len(y))
    )
    return ends[-1]


def test_effects_are_a_stationary_point_of_the_stated_criterion(turns):
    optimizer, at = turns
    source, family, noise = optimizer.source, at.family, at.fit.evidence.noise
    C, b = at.fit.covariance.matrix, at.fit.evidence.mean
    X = np.concatenate([block.X for block in source.rows.blocks()])
    units, scaling = source.canonical.units, at.tasks.scaling
    Z = scaling.to_standard((X - units.origin) * units.scale, True)
    eta, _ = source.fitted(at.tasks, at.fit, False)
    score = source.weight * family.psi((source.y - eta) / at.scale)
    assert at.converged
    for t in range(20):
        of = source.owner == t
        v = np.linalg.lstsq(Z[of], eta[of], rcond=None)[0]
        expected = C @ Z[of].T @ score[of] * at.scale / at.slope
        assert_allclose(v - b, expected, atol=1e-6 * np.abs(v - b).max())

        def criterion(u, of=of):
            losses = -family.log_density((source.y[of] - Z[of] @ (b + u)) / at.scale)
            factor = at.scale**2 / noise / at.slope
            return factor * source.weight[of] @ losses + 0.5 * u @ np.linalg.solve(noise * C, u)

        best = criterion(v - b)
        for step in 1e-2 * np.eye(4):
            assert min(criterion(v - b + step), criterion(v - b - step)) > best
    if isinstance(family, Huber):  # proposal 2
        _, squares = optimizer.expected_squares(at)
        mean = np.average(family.psi(np.sqrt(squares) / at.scale) ** 2, weights=source.weight)
        assert_allclose(mean, family.normal_square, rtol=1e-6)


@pytest.mark.parametrize(
    "family", [StudentT(1e6, estimated=False), Huber(20.0)], ids=lambda each: each.name
)
@pytest.mark.parametrize("method", ["evidence", "ml"])
def test_without_heavy_tails_it_is_the_gaussian_fit(family, method, monkeypatch):
    monkeypatch.setitem(FAMILIES, family.name, family)
    X, y, task, _, _ = simulated(0, "normal")
    model = fitted(family.name, X, y, task, method=method, **FIXED)
    other = fitted("gaussian", X, y, task, method=method, noise="shared", outliers=False, **FIXED)
    assert_allclose(model.coef_, other.coef_, atol=1e-3)
    assert_allclose(model.coef_std_, other.coef_std_, rtol=1e-3)
    assert_allclose(model.slope_std_, other.slope_std_, rtol=1e-3)
    assert_allclose(model.log_likelihood_, other.log_likelihood_, atol=0.2)
    new = X[:100], task[:100]
    for one, two in zip(model.predict_interval(*new), other.predict_interval(*new), strict=True):
        assert_allclose(one, two, atol=0.1)


@pytest.mark.filterwarnings("ignore:Of .* rows, .* of the squared errors")  # of the Gaussian fit
@pytest.mark.parametrize("family", ROBUST)
@pytest.mark.parametrize("seed", SEEDS)
def test_outliers_among_the_rows_do_little_harm(family, seed):
    X, y, task, coef, _ = simulated(seed, "outliers")
    model = fitted(family, X, y, task)
    for noise, ratio in (("shared", 0.7), ("auto", 0.9)):
        plain = fitted("gaussian", X, y, task, noise=noise)
        assert rms(model.coef_, coef) < ratio * rms(plain.coef_, coef)
    assert_allclose(model.slope_std_, 0.4, atol=0.12)
    far = np.where(np.abs(y) > 15, 1e4 * y, y)  # outliers that are still larger change nothing
    assert_allclose(fitted(family, X, far, task).coef_, model.coef_, atol=0.1)


@pytest.mark.parametrize("family", ROBUST)
@pytest.mark.parametrize("n", [5, 20])
def test_outliers_no_larger_than_the_levels_of_tasks_are_no_effects(family, n):
    rng = np.random.default_rng(1)
    X, y, task, coef, _ = simulated(1, "normal", T=60, n=n)
    far = np.where(rng.random(len(y)) < 0.1, 50 * rng.standard_normal(len(y)), 0.0)
    model = fitted(family, X, y + 30 * rng.standard_normal(60)[task] + far, task)
    assert model.converged_
    assert rms(model.coef_, coef) < 0.5


@pytest.mark.parametrize("family", ROBUST)
@pytest.mark.parametrize("n", [8, 30])
def test_intervals_cover_with_heavy_tails(family, n):
    responses, coefs = [], []
    for seed in SEEDS:
        X, y, task, coef, respond = simulated(seed, n=n, T=80)
        model = fitted(family, X, y, task, **FIXED)
        new, of = np.random.default_rng(9).standard_normal((4000, 3)), np.arange(4000) % 80
        low, high = model.predict_interval(new, of)
        target = respond(new, of)
        responses.append(np.mean((low <= target) & (target <= high)))
        low, high = model.coef_interval()
        coefs.append(np.mean((low <= coef) & (coef <= high)))
        _, std = model.predict(new, of, return_std=True)
        assert (std**2 > model.noise_variance_[0]).all()
    assert 0.93 <= np.mean(responses) <= 0.97
    assert 0.91 <= np.mean(coefs) <= 0.97


@pytest.mark.parametrize("family", ["gaussian", *ROBUST])
def test_intervals_of_means_cover_them(family):
    covered = []
    for seed in SEEDS:
        X, y, task, _, respond = simulated(seed, T=80)
        model = fitted(family, X, 1e3 * y, task, **FIXED)
        low, high = model.mean_interval(X, task)
        mean = 1e3 * respond.mean(X, task)
        covered.append(np.mean((low <= mean) & (mean <= high)))
        assert_allclose((low + high) / 2, model.predict(X, task))
    assert 0.92 < np.mean(covered) < 0.97


@pytest.mark.parametrize("family", ROBUST)
def test_units_shifts_and_the_order_of_rows_do_not_matter(family):
    X, y, task, _, _ = simulated(0)
    order = np.random.default_rng(0).permutation(len(y))
    model = fitted(family, X, y, task)
    other = fitted(family, X[order], 1e3 * y[order] + 5e4, task[order])
    assert_allclose(other.coef_, 1e3 * model.coef_, rtol=1e-3, atol=0.3)
    assert_allclose(other.intercept_, 1e3 * model.intercept_ + 5e4, rtol=1e-5)
    assert_allclose(other.noise_variance_, 1e6 * model.noise_variance_, rtol=1e-3)
    shift = len(y) * np.log(1e3)
    assert_allclose(other.log_likelihood_, model.log_likelihood_ - shift, atol=0.05)
    offset = fitted(family, X, y, task)
    offset.fit(X, y + 3, task=task, offset=np.full(len(y), 3.0))
    assert_allclose(offset.coef_, model.coef_, atol=1e-6)


@pytest.mark.parametrize("family", ROBUST)
def test_weights_count_as_repetitions(family):
    X, y, task, _, _ = simulated(1, "outliers")
    weight = np.random.default_rng(0).integers(0, 3, len(y))
    weighted = ss.AdaptiveSpanRegressor(family=family, **FIXED)
    spoilt = np.where(weight > 0, y, 1e6)
    weighted.fit(X, spoilt, task=task, sample_weight=weight)
    repeated = fitted(family, X.repeat(weight, axis=0), y.repeat(weight), task.repeat(weight),
                      **FIXED)  # fmt: skip
    assert_allclose(weighted.coef_, repeated.coef_, atol=1e-5)
    assert_allclose(weighted.noise_variance_, repeated.noise_variance_, rtol=1e-5)
    assert_allclose(weighted.log_likelihood_, repeated.log_likelihood_, rtol=1e-7)


@pytest.mark.parametrize("family", ROBUST)
def test_few_rows_of_many_tasks_and_whitened_features(family):
    X, y, task, coef, _ = simulated(0, "outliers", T=300, n=3)
    model = fitted(family, X, y, task, whiten=True)
    assert rms(model.coef_, coef) < 0.45


@pytest.mark.parametrize("family", ROBUST)
def test_a_saved_model_predicts_the_same(family, tmp_path):
    X, y, task, _, _ = simulated(0)
    model = fitted(family, X, y, task, unseen="mean", **FIXED)
    model.save(tmp_path / "m.span")
    same = ss.load(tmp_path / "m.span")
    assert same.noise_degrees_of_freedom_ == model.noise_degrees_of_freedom_
    for of in (task, np.full(len(y), -1)):
        for one, two in zip(model.predict_interval(X, of), same.predict_interval(X, of),
                            strict=True):  # fmt: skip
            assert np.array_equal(one, two)


@pytest.mark.parametrize("family", ROBUST)
def test_files_give_the_same_fit(family, tmp_path):
    pd = pytest.importorskip("pandas")
    X, y, task, _, _ = simulated(0, T=15)
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y, task=task)
    frame.sample(frac=1, random_state=0).to_csv(tmp_path / "rows.csv", index=False)
    model = ss.AdaptiveSpanRegressor(family=family, **FIXED)
    model.fit_file(tmp_path / "rows.csv", target="y", task="task")
    assert_allclose(model.coef_, fitted(family, X, y, task, **FIXED).coef_, atol=1e-4)


@pytest.mark.parametrize("family", ROBUST)
def test_what_is_not_available_says_why(family):
    X, y, task, _, _ = simulated(0, T=5)
    for noise in ("per_task", "fitted"):
        with pytest.raises(ValueError, match="has a single noise scale"):
            fitted(family, X, y, task, noise=noise)
    with pytest.raises(ValueError, match="method='reml'"):
        fitted(family, X, y, task, method="reml")
    model = ss.AdaptiveSpanRegressor(family=family)
    with pytest.raises(ValueError, match="the workers of a cluster keep only their statistics"):
        model._check_robust(rows=None)
    for method in ("partial_fit", "merge"):
        with pytest.raises(AttributeError) as error:
            getattr(model, method)
        assert "the statistics of the rows depend on the fit" in str(error.value)
    assert fitted(family, X, y, task).noise_ == "shared"


@pytest.mark.parametrize("family", ROBUST)
@pytest.mark.parametrize("y", ["constant", "exact", "one row", "one task", "one outlier"])
def test_hard_rows_are_no_obstacle(family, y):
    rng = np.random.default_rng(0)
    X, task = rng.standard_normal((60, 2)), np.arange(60) // 6
    plain = X @ [1.0, 2.0]
    y, task = {
        "constant": (np.full(60, 3.0), task),
        "exact": (plain + task, task),
        "one row": (plain + rng.standard_normal(60), np.arange(60)),
        "one task": (plain + rng.standard_normal(60), np.zeros(60)),
        "one outlier": (plain + np.where(np.arange(60) == 7, 1e9, 0.0), task),
    }[y]
    model = fitted(family, X, y, task)
    mean, std = model.predict(X, task=task, return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    assert np.isfinite(np.concatenate(model.predict_interval(X, task))).all()
