import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.utils.estimator_checks import check_estimator

import sharedspan as ss
from sharedspan.estimators.curriculum import noise_levels

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


@pytest.mark.parametrize("variant", ["freeze", "weighted", "pair", "literal"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
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
