import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.utils.estimator_checks import check_estimator

import sharedspan as ss
from sharedspan.estimators.curriculum import noise_levels, refit_level
from sharedspan.inputs.rows import validate_rows
from sharedspan.objective import build_objective
from sharedspan.statistics.task_statistics import Units, collect

NOISE = np.repeat([0.1, 0.5, 1.0], 60)
LEVELS = dict(enumerate(np.repeat([1, 2, 3], 60).tolist()))


def three_levels(seed):
    return ss.simulate(
        n_tasks=180, n_features=50, rank=3, n_samples=200, noise=NOISE, condition_number=1.5,
        random_state=seed,
    )  # fmt: skip


def error(model, sim):
    return ss.parameter_error(model.fit(sim.X, sim.y, task=sim.task).coef_, sim.coef)


@pytest.mark.parametrize("levels", [LEVELS, "auto"], ids=["given", "found"])
@pytest.mark.parametrize("variant", ["freeze", "weighted"])
def test_freezing_and_weighting_beat_pooling_by_a_tenth(variant, levels):
    for seed in range(2):
        sim = three_levels(seed)
        pooled = error(ss.SharedSpanRegressor(rank=3, random_state=0), sim)
        model = ss.CurriculumRegressor(rank=3, variant=variant, levels=levels, random_state=0)
        assert error(model, sim) < 0.9 * pooled


def test_the_printed_algorithm_loses_to_pooling_as_the_documentation_says():
    sim = three_levels(0)
    pooled = error(ss.SharedSpanRegressor(rank=3, random_state=0), sim)
    for variant in ("pair", "literal"):
        model = ss.CurriculumRegressor(rank=3, variant=variant, levels=LEVELS, random_state=0)
        assert error(model, sim) > pooled


def test_levels_are_found_from_the_noise():
    sim = three_levels(1)
    model = ss.CurriculumRegressor(rank=3, random_state=0).fit(sim.X, sim.y, task=sim.task)
    assert np.array_equal(model.levels_, np.repeat([1, 2, 3], 60))
    assert_allclose(np.unique(model.noise_variance_), [0.01, 0.25, 1.0], rtol=0.05)


def test_equal_noise_is_one_level():
    degrees = np.full(80, 50.0)
    rss = np.random.default_rng(0).chisquare(degrees)
    assert (noise_levels(rss, degrees) == 1).all()


def test_freezing_fits_every_task_inside_the_span_of_the_first_level():
    sim = three_levels(2)
    model = ss.CurriculumRegressor(rank=3, levels=LEVELS, random_state=0)
    model.fit(sim.X, sim.y, task=sim.task)
    easy = ss.SharedSpanRegressor(rank=3, random_state=0)
    rows = sim.task < 60
    easy.fit(sim.X[rows], sim.y[rows], task=sim.task[rows])
    assert ss.subspace_distance(model.representation_, easy.representation_) < 1e-5
    off = model.coef_ - model.coef_ @ model.representation_ @ model.representation_.T
    assert np.abs(off).max() < 1e-8


def small_levels():
    """A problem without intercepts, and three levels for its 24 tasks."""
    noise = np.repeat([0.1, 0.5, 1.0], 8)
    sim = ss.simulate(
        n_tasks=24, n_features=6, rank=2, n_samples=40, noise=noise, intercept=0, random_state=3
    )
    return sim, dict(enumerate(np.repeat([1, 2, 3], 8).tolist()))


def test_a_level_is_refitted_as_algorithm_3_prints_it():
    sim, _ = small_levels()
    rows = validate_rows(sim.X, sim.y, sim.task)
    units = Units(np.zeros(6), np.ones(6), 1.0)
    objective = build_objective(collect(rows, units, False, "rows"))
    B1 = np.random.default_rng(0).standard_normal((6, 2))
    fit = refit_level(objective, B1, {"first_rows": 15, "n_iter": 30, "step_size": 0.2})
    X, y, N = sim.X.reshape(24, 40, 6), sim.y.reshape(24, 40), 15
    head = [np.linalg.lstsq(x[:N] @ B1, v[:N])[0] for x, v in zip(X, y, strict=True)]
    B, W = B1, np.stack(head, axis=1)
    eta = 0.2 / np.linalg.norm(B @ W, 2)
    for _ in range(30):
        V, X2, y2 = B @ W, X[:, N:], y[:, N:]
        R = np.stack([X2[t].T @ (X2[t] @ V[:, t] - y2[t]) / (40 - N) for t in range(24)], axis=1)
        D = B.T @ B - W @ W.T
        B, W = B - eta * (R @ W.T + B @ D / 2), W - eta * (B.T @ R - D @ W / 2)
    assert_allclose(fit.B, B, rtol=1e-10)
    assert_allclose(fit.W, W, rtol=1e-10)
    assert fit.n_iter == 30


@pytest.mark.parametrize("variant", ["pair", "literal"])
def test_level_options_may_be_given_for_all_levels_or_for_each(variant):
    sim, levels = small_levels()

    def coef(options):
        model = ss.CurriculumRegressor(
            rank=2, variant=variant, levels=levels, random_state=0, level_options=options
        )
        return model.fit(sim.X, sim.y, task=sim.task).coef_

    default = coef(None)
    assert np.array_equal(coef({}), default)
    assert np.array_equal(coef({"first_rows": 20, "step_size": 0.1}), default)  # N / 2 at most
    one = coef({"first_rows": 12, "n_iter": 20, "step_size": 0.3})
    each = {"first_rows": [12, 12], "n_iter": {2: 20, 3: 20}, "step_size": np.array([0.3, 0.3])}
    assert np.array_equal(coef(each), one)
    last = coef({"first_rows": {3: 12}, "n_iter": {3: 20}, "step_size": {3: 0.3}})
    assert np.array_equal(last[:16], default[:16])
    assert np.array_equal(last[16:], one[16:])
    assert np.array_equal(one[:8], default[:8])
    assert np.abs(one[8:16] - default[8:16]).max() > 1e-4


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (3, TypeError, "level_options=3 must be a dict or None"),
        ({"N": 3}, TypeError, "level_options: 'N' is unknown: use 'first_rows', 'n_iter'"),
        ({"first_rows": 0}, ValueError, "first_rows=0 must be an integer of at least 1"),
        ({"first_rows": [5, 2.5]}, TypeError, "first_rows=2.5 must be an integer"),
        ({"n_iter": {2: 0}}, ValueError, "n_iter=0 must be an integer of at least 1"),
        ({"step_size": "fast"}, ValueError, "step_size='fast' must be a number above zero"),
        ({"step_size": [0.1]}, ValueError, "step_size has 1 value.* levels 2 to 3"),
        ({"n_iter": {4: 10}}, ValueError, "n_iter has the level 4.* levels 2 to 3"),
        ({"first_rows": 40}, ValueError, "first_rows=40 .* task 8 has 40 rows"),
    ],
    ids=str,
)
def test_bad_level_options_say_what_to_do(options, error, message):
    sim, levels = small_levels()
    model = ss.CurriculumRegressor(rank=2, variant="pair", levels=levels, level_options=options)
    with pytest.raises(error, match=message):
        model.fit(sim.X, sim.y, task=sim.task)


@pytest.mark.parametrize("variant", ["freeze", "weighted"])
def test_level_options_are_refused_by_variants_without_phase_two(variant, small):
    model = ss.CurriculumRegressor(variant=variant, level_options={"n_iter": 10})
    with pytest.raises(ValueError, match=r"level_options .* variant='pair' and 'literal'"):
        model.fit(small.X, small.y, task=small.task)


@pytest.mark.parametrize("variant", ["freeze", "weighted", "pair", "literal"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:X is a frame, but neither task")
def test_scikit_learn_finds_no_fault(variant):
    results = check_estimator(ss.CurriculumRegressor(variant=variant), on_skip=None, on_fail=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    assert not failed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "x"}, "variant='x'"),
        ({"levels": {0: 1}}, "no entry for 39"),
        ({"levels": [1, 2]}, "levels="),
        ({"levels": {t: 1 + (t > 0) for t in range(40)}}, "first level has 1"),
    ],
    ids=str,
)
def test_bad_options_get_a_clear_error(options, message, small):
    with pytest.raises(ValueError, match=message):
        ss.CurriculumRegressor(rank=2, **options).fit(small.X, small.y, task=small.task)


def test_a_split_names_the_task_that_has_one_row():
    model = ss.CurriculumRegressor(rank=1, variant="pair")
    with pytest.raises(ValueError, match="'lonely'"):
        model.fit(np.arange(6.0).reshape(3, 2), np.arange(3.0), task=["a", "a", "lonely"])
