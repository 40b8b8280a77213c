"""Rows that come in chunks, and sites that share sums."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import sharedspan as ss

# Sites and early chunks have too few rows to settle; what they add up to has not.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
EXACT = {"tol": 1e-10, "random_state": 0}
MODELS = [
    ss.SharedSpanRegressor(rank=3, **EXACT),
    ss.SharedSpanRegressor(rank=3, noise="per_task", fit_intercept=False, **EXACT),
    ss.SharedSpanRegressor(rank=3, whiten=False, **EXACT),
    ss.SharedSpanRegressor(rank="evidence", solver="auto", **EXACT),
    ss.SpectralRegressor(rank=3),
    ss.PooledRegressor(),
    ss.PerTaskRegressor(),
    ss.ARMULRegressor(rank=3, penalty=1.0, tol=1e-13, max_iter=5000, random_state=0),
    ss.PenalizedERMRegressor(rank=3, tol=1e-13, max_iter=5000, random_state=0),
    ss.CurriculumRegressor(rank=3, variant="weighted", random_state=0),
]  # fmt: skip


@pytest.fixture(scope="module")
def sim():
    return ss.simulate(
        n_tasks=40, n_features=12, rank=3, n_samples=100, noise=0.4, intercept=2.0,
        feature_condition=5, random_state=3,
    )  # fmt: skip


def chunks_of(sim, count, seed=0):
    order = np.random.default_rng(seed).permutation(len(sim.y))
    for rows in np.array_split(order, count):
        yield sim.X[rows], sim.y[rows], sim.task[rows]


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_chunks_in_any_order_give_what_one_fit_gives(sim, model):
    one = clone(model).fit(sim.X, sim.y, task=sim.task)
    stream = clone(model)
    for X, y, task in chunks_of(sim, 5):
        stream.partial_fit(X, y, task=task)
    assert_allclose(stream.coef_, one.coef_, atol=1e-8)
    assert_allclose(stream.intercept_, one.intercept_, atol=1e-8)
    assert list(stream.tasks_) == list(one.tasks_)


@pytest.mark.parametrize("seed", range(3))
def test_a_hundred_random_chunks_give_what_one_fit_gives(sim, seed):
    one = ss.SharedSpanRegressor(rank=3, **EXACT).fit(sim.X, sim.y, task=sim.task)
    stream = ss.SharedSpanRegressor(rank=3, **EXACT, max_iter=1000)
    for X, y, task in chunks_of(sim, 100, seed):
        stream.partial_fit(X, y, task=task)
    assert_allclose(stream.coef_, one.coef_, atol=1e-8)
    assert stream.n_iter_ < 25


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_sites_that_share_sums_give_the_joint_fit(sim, model):
    joint = clone(model).fit(sim.X, sim.y, task=sim.task)
    sites = [clone(model).fit(X, y, task=task) for X, y, task in chunks_of(sim, 5)]
    sites = [pickle.loads(pickle.dumps(site)) for site in sites]
    others = [site.coef_.copy() for site in sites[1:]]
    merged = sites[0].merge(*sites[1:])
    assert_allclose(merged.coef_, joint.coef_, atol=1e-8)
    assert_allclose(merged.intercept_, joint.intercept_, atol=1e-8)
    for site, coef in zip(sites[1:], others, strict=True):
        assert_allclose(site.coef_, coef, rtol=0)


def test_sites_may_have_tasks_of_their_own(sim):
    sites = []
    for first in (0, 20):
        rows = (sim.task >= first) & (sim.task < first + 30)
        site = ss.SharedSpanRegressor(rank=3, **EXACT)
        sites.append(site.fit(sim.X[rows], sim.y[rows], task=sim.task[rows]))
    both = [np.flatnonzero((sim.task >= first) & (sim.task < first + 30)) for first in (0, 20)]
    rows = np.concatenate(both)  # the tasks that both have count twice
    joint = ss.SharedSpanRegressor(rank=3, **EXACT).fit(sim.X[rows], sim.y[rows], sim.task[rows])
    assert_allclose(sites[0].merge(sites[1]).coef_, joint.coef_, atol=1e-8)
    assert list(sites[0].tasks_) == list(range(40))


def test_new_tasks_of_any_kind_take_their_place(sim):
    stream = ss.SharedSpanRegressor(rank=2, random_state=0)
    labels = np.array([f"s{t:02d}" for t in range(40)], dtype=object)[::-1]
    for first, last in ((20, 40), (5, 10), (0, 30)):
        rows = (sim.task >= first) & (sim.task < last)
        stream.partial_fit(sim.X[rows], sim.y[rows], task=labels[sim.task[rows]])
    assert list(stream.tasks_) == sorted(labels)
    stream.partial_fit(sim.X[:10], sim.y[:10], task=[7] * 10)
    assert stream.tasks_[0] == 7
    assert stream.predict(sim.X[:1], task=[7]).shape == (1,)


def test_the_first_chunk_may_have_fewer_tasks_than_the_rank(sim):
    stream = ss.SharedSpanRegressor(rank=3, **EXACT)
    stream.partial_fit(sim.X[:50], sim.y[:50], task=sim.task[:50])
    assert stream.coef_.shape == (1, 12)
    stream.partial_fit(sim.X[50:], sim.y[50:], task=sim.task[50:])
    one = ss.SharedSpanRegressor(rank=3, **EXACT).fit(sim.X, sim.y, task=sim.task)
    assert_allclose(stream.coef_, one.coef_, atol=1e-8)


def test_forgetting_is_a_weight_on_earlier_rows(sim):
    stream = ss.SharedSpanRegressor(rank=3, **EXACT)
    weight, seen = np.zeros(len(sim.y)), np.array_split(np.arange(len(sim.y))[::-1], 4)
    for rows in seen:
        stream.partial_fit(sim.X[rows], sim.y[rows], task=sim.task[rows], forgetting=0.7)
        weight *= 0.7
        weight[rows] = 1.0
    one = ss.SharedSpanRegressor(rank=3, **EXACT)
    one.fit(sim.X, sim.y, task=sim.task, sample_weight=weight)
    assert_allclose(stream.coef_, one.coef_, atol=1e-8)


def test_units_of_later_chunks_may_be_far_from_the_first(sim):
    X, y = sim.X * 1e3 + 1e6, sim.y * 1e5
    one = ss.PerTaskRegressor(alpha=0).fit(X, y, task=sim.task)
    stream = ss.PerTaskRegressor(alpha=0)
    small = np.full((3, 12), 1e-3) * np.arange(1, 4)[:, None]
    stream.partial_fit(small, np.ones(3), task=[99] * 3)
    stream.partial_fit(X, y, task=sim.task)
    assert_allclose(stream.coef_[:40], one.coef_, rtol=1e-6)
    huge = ss.SharedSpanRegressor(rank=1, random_state=0)
    huge.partial_fit(sim.X, sim.y, task=sim.task)
    huge.partial_fit(sim.X[:100] * 1e100, sim.y[:100] * 1e100, task=sim.task[:100] + 100)
    assert np.isfinite(huge.coef_).all()


def test_noise_far_below_the_responses_keeps_its_digits():
    sim = ss.simulate(n_tasks=20, n_features=8, rank=2, n_samples=60, noise=1e-7, random_state=0)
    stream = ss.SharedSpanRegressor(rank=2, **EXACT)
    for X, y, task in chunks_of(sim, 8):
        stream.partial_fit(X, y, task=task)
    assert_allclose(np.sqrt(stream.noise_variance_), 1e-7, rtol=0.1)


def test_a_chunk_that_is_refused_changes_nothing(sim):
    stream = ss.SharedSpanRegressor(rank=3, **EXACT).partial_fit(sim.X, sim.y, task=sim.task)
    coef, prediction = stream.coef_.copy(), stream.predict(sim.X, task=sim.task)
    bad = sim.X[:5].copy()
    bad[2, 1] = np.nan
    for X in (bad, sim.X[:5, :4]):
        with pytest.raises(ValueError):
            stream.partial_fit(X, sim.y[:5], task=sim.task[:5])
    assert_allclose(stream.coef_, coef, rtol=0)
    stream.partial_fit(sim.X[:5], sim.y[:5], task=sim.task[:5])
    assert not np.array_equal(stream.predict(sim.X, task=sim.task), prediction)
    fresh = ss.SharedSpanRegressor(rank=3)
    with pytest.raises(ValueError):
        fresh.partial_fit(bad, sim.y[:5], task=sim.task[:5])
    assert not hasattr(fresh, "n_features_in_")


def test_what_has_no_sums_says_so(sim):
    light = ss.SharedSpanRegressor(rank=3, keep_statistics=False, random_state=0)
    light.fit(sim.X, sim.y, task=sim.task)
    with pytest.raises(ValueError, match="keep_statistics=True"):
        light.partial_fit(sim.X, sim.y, task=sim.task)
    kept = ss.SharedSpanRegressor(rank=3, random_state=0).fit(sim.X, sim.y, task=sim.task)
    with pytest.raises(ValueError, match="keep_statistics=True"):
        kept.merge(light)
    with pytest.raises(NotFittedError):
        ss.SharedSpanRegressor().merge(kept)
    with pytest.raises(TypeError, match="PooledRegressor"):
        kept.merge(ss.PooledRegressor().fit(sim.X, sim.y, task=sim.task))
    with pytest.raises(ValueError, match="different features"):
        kept.merge(ss.SharedSpanRegressor(rank=3).fit(sim.X[:, :6], sim.y, task=sim.task))
    with pytest.raises(ValueError, match="forgetting"):
        kept.partial_fit(sim.X, sim.y, task=sim.task, forgetting=1.5)
    kept.set_params(fit_intercept=False)
    with pytest.raises(ValueError, match="fit_intercept"):
        kept.partial_fit(sim.X, sim.y, task=sim.task)
    assert not hasattr(ss.SharedSpanRegressor(solver="nsgd"), "partial_fit")
    assert not hasattr(ss.CurriculumRegressor(variant="pair"), "merge")


def test_tasks_that_have_faded_away_do_no_harm(sim):
    stream = ss.SharedSpanRegressor(rank=2, solver="auto", random_state=0)
    stream.partial_fit(sim.X, sim.y, task=sim.task)
    rows = sim.task < 20
    for _ in range(8):
        stream.partial_fit(sim.X[rows], sim.y[rows], task=sim.task[rows], forgetting=1e-45)
    assert np.isfinite(stream.coef_).all()


def test_a_rank_above_the_number_of_features_is_refused_at_the_first_chunk(sim):
    d = sim.X.shape[1]
    with pytest.raises(ValueError, match=f"rank={d + 1} is larger than the {d} features"):
        ss.SharedSpanRegressor(rank=d + 1).partial_fit(sim.X, sim.y, task=sim.task)


def test_partial_fit_refuses_a_dask_frame_in_words(sim):
    dask = pytest.importorskip("dask.dataframe")
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(sim.X).assign(y=sim.y, task=sim.task)
    frame = dask.from_pandas(frame.rename(columns=str), npartitions=2)
    with pytest.raises(TypeError, match="partial_fit takes rows of this machine"):
        ss.PooledRegressor().partial_fit(frame, "y", task="task")
