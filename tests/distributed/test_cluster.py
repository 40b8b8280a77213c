"""The same fits on a Dask cluster, also when workers are lost."""

import gc
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone

import sharedspan as ss
from sharedspan.solvers import SUM_SOLVERS

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.filterwarnings("ignore")  # Dask's warnings about ports and closing loops

MODELS = [
    ss.SharedSpanRegressor(rank=2, random_state=0),
    ss.SharedSpanRegressor(rank="evidence", noise="per_task", solver="auto", random_state=0),
    ss.SharedSpanRegressor(rank=2, whiten=False, fit_intercept=False, random_state=0),
    ss.SpectralRegressor(rank=2),
    ss.PooledRegressor(),
    ss.PerTaskRegressor(),
    ss.ARMULRegressor(rank=2, penalty=1.0, random_state=0),
    ss.ARMULRegressor(rank=2, penalty=1.0, penalty_norm="gram", random_state=0),
    ss.ARMULRegressor(variant="clustered", penalty=1.0, random_state=0),
    ss.PenalizedERMRegressor(rank=2, random_state=0),
    ss.CurriculumRegressor(rank=2, random_state=0),
    ss.AdaptiveSpanRegressor(rank=2, slopes="none"),
]


def start_cluster(workers=2):
    cluster = distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None,
        silence_logs=50, memory_limit=0,
    )  # fmt: skip
    return cluster, distributed.Client(cluster)


@pytest.fixture(scope="module")
def client():
    cluster, client = start_cluster()
    yield client
    client.close()
    cluster.close()


@pytest.fixture(scope="module")
def sim():
    return ss.simulate(
        n_tasks=60, n_features=8, rank=2, n_samples=np.arange(60) % 30 + 12, noise=0.4,
        intercept=1.0, random_state=0,
    )  # fmt: skip


@pytest.mark.parametrize("solver", SUM_SOLVERS)
def test_iterates_equal_the_local_engine(client, sim, solver):
    def fit(engine):
        seen = []

        def callback(step):
            seen.append((step["B"] @ np.asarray(step["W"])).copy())

        model = ss.SharedSpanRegressor(
            rank=2, solver=solver, tol=0, max_iter=12, random_state=0, engine=engine,
            callback=callback,
        )  # fmt: skip
        return model.fit(sim.X, sim.y, task=sim.task), seen

    (local, expected), (remote, iterates) = fit("local"), fit(client)
    assert len(expected) == len(iterates) == 12
    for V, other in zip(expected, iterates, strict=True):
        assert_allclose(other, V, atol=1e-9 * np.abs(V).max())
    assert_allclose(remote.coef_, local.coef_, atol=1e-9)
    assert_allclose(remote.intercept_, local.intercept_, atol=1e-9)
    assert_allclose(remote.coef_std_, local.coef_std_, rtol=1e-6)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_each_estimator_gives_the_coefficients_of_the_local_engine(client, sim, model):
    weight = np.random.default_rng(0).integers(0, 3, len(sim.y))
    labels = np.array([f"shop {t}" for t in range(60)])[sim.task]
    local = clone(model).fit(sim.X, sim.y, task=labels, sample_weight=weight)
    remote = clone(model).set_params(engine=client)
    remote.fit(sim.X, sim.y, task=labels, sample_weight=weight)
    # The search of the adaptive model ends within a tolerance, not at a point.
    loose = isinstance(model, ss.AdaptiveSpanRegressor)
    assert_allclose(remote.coef_, local.coef_, atol=1e-3 if loose else 1e-9)
    assert list(remote.tasks_) == list(local.tasks_)
    other = remote.merge(local)  # the statistics were copied to the driver
    assert other.coef_.shape == local.coef_.shape


def test_noise_of_fitted_values_is_refused_where_the_rows_are_not(client, sim):
    model = ss.AdaptiveSpanRegressor(noise="fitted", engine=client)
    with pytest.raises(ValueError, match="noise='fitted' needs the rows"):
        model.fit(sim.X, sim.y, task=sim.task)


def test_folds_are_left_out_on_the_workers(client):
    near = ss.ARMULRegressor(rank=1, max_iter=2, tol=0, random_state=0)
    chosen = ss.SharedSpanRegressor(solver="auto", random_state=0)
    for model, rows in ((near, 4), (near, 40), (chosen, 60)):  # with 4 the statistics are the rows
        sim = ss.simulate(n_tasks=8, n_features=10, rank=1, n_samples=rows, random_state=1)
        local = clone(model).fit(sim.X, sim.y, task=sim.task)
        remote = clone(model).set_params(engine=ss.DaskEngine(client, shards=3))
        remote.fit(sim.X, sim.y, task=sim.task)
        assert_allclose(remote.coef_, local.coef_, atol=1e-9)


def test_dask_frames_are_shuffled_by_task(client, sim):
    pd = pytest.importorskip("pandas")
    dd = pytest.importorskip("dask.dataframe")
    order = np.random.default_rng(0).permutation(len(sim.y))
    table = pd.DataFrame(sim.X[order], columns=list("abcdefgh"))
    table.insert(3, "shop", [f"s{t:02d}" for t in sim.task[order]])
    table["sales"] = sim.y[order]
    frame = dd.from_pandas(table, npartitions=5, sort=False)
    local = ss.SharedSpanRegressor(rank=2, random_state=0, task_column="shop")
    local.fit(table.drop(columns="sales"), table["sales"])
    remote = clone(local).set_params(engine=client).fit(frame, "sales")
    assert_allclose(remote.coef_, local.coef_, atol=1e-9)
    assert list(remote.feature_names_in_) == list(local.feature_names_in_)
    assert list(remote.tasks_) == list(local.tasks_)
    assert_allclose(
        remote.predict(table.drop(columns="sales")), local.predict(table.drop(columns="sales"))
    )
    series = clone(local).set_params(engine=client, task_column=None)
    series.fit(frame.drop(columns=["sales", "shop"]), frame["sales"], task=frame["shop"])
    assert_allclose(series.coef_, local.coef_, atol=1e-9)

    model = ss.SharedSpanRegressor(rank=2, engine=client)
    with pytest.raises(ValueError, match="Did you mean 'sales'"):
        model.fit(frame, "sale", task="shop")
    with pytest.raises(ValueError, match=r"'shop'.*text 's"):
        model.fit(frame, "sales", task="a")
    with pytest.raises(ValueError, match="engine='dask'"):
        ss.SharedSpanRegressor().fit(frame, "sales", task="shop")
    with pytest.raises(ValueError, match="NaN"):
        model.fit(frame.assign(a=frame["a"].where(frame["a"] > 0)), "sales", task="shop")


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_files_are_read_by_the_workers(client, sim, tmp_path, ending):
    pd = pytest.importorskip("pandas")
    order = np.random.default_rng(1).permutation(len(sim.y))
    table = pd.DataFrame(sim.X[order], columns=list("abcdefgh"))
    table["shop"], table["sales"] = sim.task[order] * 7, sim.y[order]
    table.loc[[5, 700], "b"] = np.nan
    for i, part in enumerate(np.array_split(np.arange(len(table)), 3)):
        write = table.iloc[part].to_parquet if ending == "parquet" else table.iloc[part].to_csv
        write(tmp_path / f"part{i}.{ending}", index=False)
    options = {"task": "shop", "target": "sales", "missing": "drop"}
    local = ss.SharedSpanRegressor(rank=2, random_state=0).fit_file(tmp_path, **options)
    remote = ss.SharedSpanRegressor(rank=2, random_state=0, engine=client)
    remote.fit_file(tmp_path, **options)
    assert_allclose(remote.coef_, local.coef_, atol=1e-9)
    assert list(remote.tasks_) == list(local.tasks_)
    assert list(remote.feature_names_in_) == list("abcdefgh")
    assert remote.n_rows_dropped_ == local.n_rows_dropped_ == 2
    with pytest.raises(ValueError, match=r"2 of .* rows have missing values"):
        remote.fit_file(tmp_path, task="shop", target="sales")


@pytest.fixture
def mortal():
    """A separate cluster, because repeated kills may leave a cluster without workers."""
    cluster, client = start_cluster()
    yield client
    client.close()
    cluster.close()


class Killer:
    """Kills a random worker by its process id after a while."""

    def __init__(self, client, delay):
        client.wait_for_workers(2, timeout=60)
        pid = random.choice(list(client.run(os.getpid).values()))
        self.timer = threading.Timer(delay, os.kill, (pid, signal.SIGKILL))

    def __enter__(self):
        self.timer.start()

    def __exit__(self, *error):
        self.timer.join()


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("run", range(int(os.environ.get("SHAREDSPAN_KILLS", "6"))))
def test_a_killed_worker_changes_nothing(mortal, run):
    client = mortal
    random.seed(run)
    sim = ss.simulate(n_tasks=2000, n_features=20, rank=2, n_samples=40, random_state=0)
    model = ss.SharedSpanRegressor(
        rank=2, solver=("tpgd", "auto", "scaled_gd_anderson")[run % 3], tol=0, max_iter=40,
        random_state=0,
    )  # fmt: skip
    undisturbed = clone(model).fit(sim.X, sim.y, task=sim.task)
    engine = ss.DaskEngine(client, checkpoint_every=7)
    began = time.monotonic()
    clone(model).set_params(engine=engine).fit(sim.X, sim.y, task=sim.task)
    whole = time.monotonic() - began
    # Statistics take the first part, iterations the rest.
    span = (0.0, 0.4 * whole) if run % 2 else (0.4 * whole, 0.9 * whole)
    with Killer(client, random.uniform(*span)):
        disturbed = clone(model).set_params(engine=engine).fit(sim.X, sim.y, task=sim.task)
    assert_allclose(disturbed.coef_, undisturbed.coef_, atol=1e-9)


class Lossy:
    """Forgets a worker before every n-th command, as if it had died."""

    def __init__(self, monkeypatch, every):
        from sharedspan.distributed.actors import Shards

        run, self.losses, seen = Shards.run, 0, [0]

        def losing(shards, *command, **options):
            seen[0] += 1
            if seen[0] % every == 0 and shards.actors:
                shards._lose(next(iter(shards.actors)))
                self.losses += 1
            return run(shards, *command, **options)

        monkeypatch.setattr(Shards, "run", losing)


LOSSES = [
    (ss.SharedSpanRegressor(rank=2, noise="per_task", solver="auto", random_state=0), 3),
    (ss.SharedSpanRegressor(rank=2, noise="per_task", solver="auto", random_state=0), 1000),
    (ss.SharedSpanRegressor(rank=2, solver="scaled_gd_anderson", tol=1e-10), 5),
    (ss.SharedSpanRegressor(rank=2, tol=0, max_iter=40, random_state=0), 7),
    (ss.SpectralRegressor(rank=2), 1),
]


@pytest.mark.parametrize(
    ("model", "checkpoint_every"), LOSSES, ids=["often", "never", "anderson", "tpgd", "spectral"]
)
def test_shards_lost_between_any_two_commands_are_built_again(
    client, sim, model, checkpoint_every, monkeypatch
):
    local = clone(model).fit(sim.X, sim.y, task=sim.task)
    lossy = Lossy(monkeypatch, every=4 if isinstance(model, ss.SpectralRegressor) else 9)
    engine = ss.DaskEngine(client, shards=3, checkpoint_every=checkpoint_every)
    remote = clone(model).set_params(engine=engine).fit(sim.X, sim.y, task=sim.task)
    assert lossy.losses > 1
    assert_allclose(remote.coef_, local.coef_, atol=1e-9)


def test_a_fit_inside_a_task_of_the_cluster_is_refused(client, sim):
    def fit():
        ss.PooledRegressor(engine="dask").fit(sim.X, sim.y, task=sim.task)

    with pytest.raises(ss.ClusterError, match="inside a task"):
        client.submit(fit, pure=False).result(timeout=60)


def test_errors_say_what_a_cluster_lacks(sim):
    fit = {"X": sim.X, "y": sim.y, "task": sim.task}
    engine = ss.DaskEngine("tcp://127.0.0.1:9", patience=1)
    with pytest.raises(ss.ClusterError, match="no scheduler at"):
        ss.SharedSpanRegressor(rank=2, engine=engine).fit(**fit)
    with pytest.raises(ValueError, match="does not run on a cluster"):
        ss.SharedSpanRegressor(rank=2, solver="als", engine="dask").fit(**fit)
    with pytest.raises(ValueError, match="engine='spark' is unknown"):
        ss.PooledRegressor(engine="spark").fit(**fit)
    with pytest.raises(ValueError, match="checkpoint_every"):
        ss.DaskEngine(checkpoint_every=0)
    cluster, client = start_cluster(workers=0)
    try:
        with pytest.raises(ss.ClusterError, match=r"no worker.*dask worker"):
            ss.PooledRegressor(engine=ss.DaskEngine(client, patience=1)).fit(**fit)
    finally:
        client.close()
        cluster.close()
    with pytest.raises(ss.ClusterError, match="scheduler does not answer"):
        ss.PooledRegressor(engine=ss.DaskEngine(client, patience=1)).fit(**fit)


def test_models_with_a_client_can_be_cloned_and_pickled(client, sim):
    import pickle

    model = ss.SharedSpanRegressor(rank=2, random_state=0, engine=client)
    assert clone(model).engine is client
    model.fit(sim.X, sim.y, task=sim.task)
    again = pickle.loads(pickle.dumps(model))
    assert again.engine == client.scheduler.address
    assert_allclose(again.predict(sim.X, sim.task), model.predict(sim.X, sim.task))
    assert_allclose(again.fit(sim.X, sim.y, task=sim.task).coef_, model.coef_, atol=1e-12)


def test_statistics_that_exceed_the_memory_of_workers_are_refused_at_once(client, sim, monkeypatch):
    from sharedspan.distributed.engine import Connection

    model = ss.PooledRegressor(engine=ss.DaskEngine(client, shards=2))
    python = 500_000_000 / 0.8  # memory of a worker without rows
    small, large = python + 100_000, python + 9e9
    for limits, advice in (((small, small), "start more workers"), ((large, small), "more shards")):
        workers = {f"w{i}": {"memory_limit": limit} for i, limit in enumerate(limits)}
        monkeypatch.setattr(Connection, "workers", lambda connection, workers=workers: workers)
        with pytest.raises(ss.ClusterError, match=advice):
            model.fit(sim.X, sim.y, task=sim.task)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="rank=9 is larger"):
        ss.SharedSpanRegressor(rank=9, engine=client).fit(sim.X, sim.y, task=sim.task)


def test_workers_are_free_after_a_fit(client, sim):
    def count_objects(dask_worker):
        return len(dask_worker.state.actors) + len(dask_worker.data)

    def settled(most):
        for _ in range(100):
            gc.collect()  # objects of other tests are freed when they are collected
            if all(count <= most for count in client.run(count_objects).values()):
                break
            time.sleep(0.1)
        return max(client.run(count_objects).values())

    before = settled(0)
    ss.SharedSpanRegressor(rank=2, engine=client).fit(sim.X, sim.y, task=sim.task)
    assert settled(before) <= before


def test_text_and_dates_of_files_are_prepared_on_workers(client, tmp_path):
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    n = 400
    frame = pd.DataFrame(
        {
            "shop": rng.integers(0, 20, n),
            "city": rng.choice(["Ulm", "Bonn", "Kiel"], n),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 500, n), "D"),
            "age": rng.uniform(20, 60, n),
            "y": rng.standard_normal(n),
        }
    )
    frame.loc[::40, "age"] = np.nan
    frame.to_parquet(tmp_path / "t.parquet", row_group_size=100)
    columns = ss.Columns(spline=["age"], missing="indicator")
    parts = {"task": "shop", "target": "y"}
    local = ss.PooledRegressor(columns=columns).fit_file(tmp_path / "t.parquet", **parts)
    remote = ss.PooledRegressor(columns=columns, engine=client)
    remote.fit_file(tmp_path / "t.parquet", **parts)
    assert remote.coef_names_.tolist() == local.coef_names_.tolist()
    assert_allclose(remote.coef_, local.coef_, rtol=1e-8, atol=1e-10)
    X = frame.drop(columns=["shop", "y"])
    assert_allclose(remote.predict(X, task=frame.shop), local.predict(X, task=frame.shop))
