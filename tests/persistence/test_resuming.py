"""Fits that are killed and continue from their checkpoint."""

import os
import shutil
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

import sharedspan as ss
from sharedspan.persistence.checkpoint import CHECKPOINT_FORMAT, Checkpoint
from stored_files import GOLDEN, golden_problem

# Dask's warnings about ports and closing loops
dask_warnings = pytest.mark.filterwarnings("ignore")


class PowerCutError(Exception):
    pass


def cut_at(iteration, runs=1):
    """A callback that interrupts the fit in an iteration of the ``runs``-th run."""
    left = [runs]

    def callback(step):
        left[0] -= step["iteration"] == iteration
        if left[0] == 0 and step["iteration"] == iteration:
            raise PowerCutError

    return {"callback": callback}


@pytest.fixture(scope="module")
def sim():
    return ss.simulate(n_tasks=25, n_features=10, rank=2, n_samples=40, noise=0.5, random_state=0)


MODELS = [
    (ss.SharedSpanRegressor(rank=2, solver="tpgd", random_state=0), cut_at(37)),
    (ss.SharedSpanRegressor(random_state=0, solver="auto", tol=1e-12), cut_at(1)),
    (ss.SharedSpanRegressor(solver="tpgd", noise="per_task", random_state=1), cut_at(20, runs=3)),
    (ss.SharedSpanRegressor(rank=2, solver="nsgd", max_iter=80, tol=0, whiten=False), cut_at(41)),
    (ss.SharedSpanRegressor(rank=3, solver="scaled_gd_anderson", fit_intercept=False), cut_at(6)),
]


@pytest.mark.parametrize(
    ("model", "cut"), MODELS, ids=["tpgd", "auto", "per_task", "nsgd", "anderson"]
)
def test_a_resumed_fit_is_the_fit_that_was_not_interrupted(sim, tmp_path, model, cut):
    path = tmp_path / "fit.checkpoint"
    seed = np.random.default_rng(5) if model.random_state is None else model.random_state
    whole = clone(model).set_params(random_state=np.random.default_rng(5) if seed is not
                                    model.random_state else seed)  # fmt: skip
    whole.fit(sim.X, sim.y, task=sim.task)
    broken = clone(model).set_params(**cut, random_state=seed)
    with pytest.raises(PowerCutError):
        broken.fit(sim.X, sim.y, task=sim.task, checkpoint=path)
    assert not hasattr(broken, "coef_")
    resumed = clone(model).fit(sim.X, sim.y, task=sim.task, resume=path)
    # In one of the fits folds were subtracted and added back, which leaves rounding errors.
    close = {"rtol": 0, "atol": 1e-12}
    assert_allclose(resumed.coef_, whole.coef_, **close)
    assert_allclose(resumed.trace_["loss"], whole.trace_["loss"], rtol=1e-12)
    assert resumed.n_iter_ == whole.n_iter_
    assert str(resumed.rank_path_) == str(whole.rank_path_)
    again = clone(model).fit(sim.X, sim.y, task=sim.task, resume=path)  # already complete
    assert_allclose(again.coef_, whole.coef_, **close)
    assert os.listdir(tmp_path) == ["fit.checkpoint"]


def test_a_fit_goes_on_from_a_checkpoint_of_a_released_version(tmp_path):
    """Interrupted in iteration 3, with a path of ranks, and with a solver that has a memory."""
    path = tmp_path / "fit.checkpoint"
    shutil.copy(GOLDEN / "SharedSpanRegressor-1.checkpoint", path)
    saved = Checkpoint.read(path)
    assert saved.run["iteration"] == 2
    model = ss.SharedSpanRegressor(solver="scaled_gd_anderson", tol=1e-12, random_state=0)
    X, y, task = golden_problem()
    resumed = clone(model).fit(X, y, task=task, resume=path)
    whole = clone(model).fit(X, y, task=task)
    assert resumed.n_iter_ == whole.n_iter_ > 3
    assert_allclose(resumed.coef_, whole.coef_, rtol=1e-9)
    assert_allclose(resumed.rank_path_.loss, saved.caller["path"]["loss"], rtol=1e-15)
    assert_allclose(resumed.rank_path_.loss, whole.rank_path_.loss, rtol=1e-2)  # its precision


def test_other_data_and_settings_are_refused(sim, tmp_path):
    path = tmp_path / "fit.checkpoint"
    model = ss.SharedSpanRegressor(rank=2, solver="tpgd", random_state=0)
    model.fit(sim.X, sim.y, task=sim.task, checkpoint=path)
    before = path.read_bytes()
    other = sim.y.copy()
    other[11] += 0.01
    cases = [
        ({"y": other}, {}, r"other rows in 1 task, such as 0"),
        ({"X": sim.X[:, :9]}, {}, "the features: 10 then, 9 now"),
        ({"task": sim.task + 1}, {}, "the tasks"),
        ({}, {"rank": 3}, "rank=2 then, rank=3 now"),
        ({}, {"solver": "auto"}, "solver='tpgd' then"),
    ]
    for data, settings, said in cases:
        arrays = {"X": sim.X, "y": sim.y, "task": sim.task} | data
        with pytest.raises(ss.CheckpointError, match=said):
            clone(model).set_params(**settings).fit(**arrays, resume=path)
    assert path.read_bytes() == before
    with pytest.raises(FileNotFoundError, match="nowhere"):
        clone(model).fit(sim.X, sim.y, task=sim.task, resume=tmp_path / "nowhere")
    with pytest.raises(TypeError, match="checkpoint=7"):
        clone(model).fit(sim.X, sim.y, task=sim.task, checkpoint=7)


def test_a_change_of_a_small_feature_beside_a_large_one_is_refused(tmp_path):
    rng = np.random.default_rng(0)
    X = np.column_stack(
        [1e6 + 1e6 * rng.standard_normal(600), rng.standard_normal((600, 3)) * 1e-5]
    )
    y, task, path = rng.standard_normal(600), np.repeat(np.arange(20), 30), tmp_path / "c"
    model = ss.SharedSpanRegressor(rank=1, solver="tpgd", tol=0, max_iter=3, random_state=0)
    model.fit(X, y, task=task, checkpoint=path)
    clone(model).fit(X, y, task=task, checkpoint=path)  # it was complete
    other = X.copy()
    other[7, 3] += 3e-5
    with pytest.raises(ss.CheckpointError, match="other rows in 1 task, such as 0"):
        clone(model).fit(other, y, task=task, resume=path)


def test_a_fit_under_way_is_not_overwritten_by_another(sim, tmp_path):
    path = tmp_path / "fit.checkpoint"
    model = ss.SharedSpanRegressor(rank=2, solver="tpgd", random_state=0)
    with pytest.raises(PowerCutError):
        clone(model).set_params(**cut_at(30)).fit(sim.X, sim.y, task=sim.task, checkpoint=path)
    with pytest.raises(ss.CheckpointError, match="resume="):
        clone(model).fit(sim.X, sim.y, task=sim.task, checkpoint=path)
    clone(model).fit(sim.X, sim.y, task=sim.task, resume=path)
    clone(model).fit(sim.X, sim.y, task=sim.task, checkpoint=path)  # that fit is complete


@pytest.mark.parametrize("part", ["caller", "run", "fingerprint"])
@pytest.mark.parametrize("forged", [None, 3, [], {}, {"settings": {}, "last": 1, "numbers": 2}])
def test_a_forged_checkpoint_is_neither_resumed_nor_replaced(part, forged, sim, tmp_path):
    path = tmp_path / "fit.checkpoint"
    shutil.copy(GOLDEN / "SharedSpanRegressor-1.checkpoint", path)
    CHECKPOINT_FORMAT.write(path, CHECKPOINT_FORMAT.read(path) | {part: forged})
    before, model = path.read_bytes(), ss.SharedSpanRegressor(solver="auto", random_state=0)
    for option in ("checkpoint", "resume"):
        with pytest.raises(ss.CheckpointError):
            clone(model).fit(sim.X, sim.y, task=sim.task, **{option: path})
    assert path.read_bytes() == before


def test_a_fit_that_ran_out_of_iterations_goes_on_with_more(sim, tmp_path):
    path = tmp_path / "fit.checkpoint"
    model = ss.SharedSpanRegressor(rank=2, solver="tpgd", random_state=0, max_iter=50)
    with pytest.warns(match="did not converge"):
        model.fit(sim.X, sim.y, task=sim.task, checkpoint=path)
    more = ss.SharedSpanRegressor(rank=2, solver="tpgd", random_state=0).fit(
        sim.X, sim.y, task=sim.task, resume=path
    )
    assert more.converged_
    assert more.n_iter_ > 50


SCRIPT = """
import sys
import sharedspan as ss

if __name__ == "__main__":
    sim = ss.simulate(n_tasks=300, n_features=20, rank=2, n_samples=40, random_state=0)
    engine = "local"
    if sys.argv[2] == "dask":
        from distributed import Client
        engine = Client(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50)
    model = ss.SharedSpanRegressor(
        rank=2, solver="tpgd", tol=0, max_iter=100_000 if len(sys.argv) < 4 else int(sys.argv[3]),
        random_state=0, engine=engine,
    )
    model.fit(sim.X, sim.y, task=sim.task, checkpoint=sys.argv[1], checkpoint_seconds=0.1)
"""


@dask_warnings
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("engine", ["local", "dask"])
def test_a_driver_that_is_killed_goes_on(tmp_path, engine):
    if engine == "dask":
        pytest.importorskip("distributed")
    path, script = tmp_path / "fit.checkpoint", tmp_path / "fit.py"
    script.write_text(SCRIPT)
    driver = subprocess.Popen(
        [sys.executable, str(script), str(path), engine], start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for _ in range(600):
        if path.exists() and path.stat().st_mtime_ns > 0 and _iteration(path) >= 20:
            break
        time.sleep(0.1)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    done = _iteration(path)
    assert 20 <= done < 100_000
    sim = ss.simulate(n_tasks=300, n_features=20, rank=2, n_samples=40, random_state=0)
    settings = {"rank": 2, "solver": "tpgd", "tol": 0, "max_iter": 100_000, "random_state": 0}

    def few_more(step):  # all 100,000 would take long
        return step["iteration"] == done + 30

    short = {"callback": few_more}
    resumed = ss.SharedSpanRegressor(**settings, **short)
    resumed.fit(sim.X, sim.y, task=sim.task, resume=path)
    whole = ss.SharedSpanRegressor(**settings, **short).fit(sim.X, sim.y, task=sim.task)
    assert resumed.n_iter_ == whole.n_iter_ == done + 30
    assert_allclose(resumed.coef_, whole.coef_, atol=1e-9)


def _iteration(path):
    return Checkpoint.read(path).run["iteration"]


def test_a_tail_average_goes_on_only_with_the_number_of_iterations_that_planned_it(sim, tmp_path):
    path, common = tmp_path / "c", {"rank": 2, "solver": "tpgd", "tail_average": True}
    model = ss.SharedSpanRegressor(**common, max_iter=6, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(sim.X, sim.y, task=sim.task, checkpoint=path)
    longer = ss.SharedSpanRegressor(**common, max_iter=16, random_state=0)
    with pytest.raises(ss.CheckpointError, match="max_iter"):
        longer.fit(sim.X, sim.y, task=sim.task, resume=path)


def test_standard_errors_that_wait_equal_those_made_at_once(sim):
    options = {"rank": 2, "random_state": 0}
    waiting = ss.SharedSpanRegressor(**options).fit(sim.X, sim.y, task=sim.task)
    at_once = ss.SharedSpanRegressor(**options, keep_statistics=False)
    at_once.fit(sim.X, sim.y, task=sim.task)
    assert_allclose(waiting.coef_std_, at_once.coef_std_, rtol=1e-12)
