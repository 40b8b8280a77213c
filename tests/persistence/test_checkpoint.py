"""Checkpoints: a resumed run ends as an uninterrupted one, and the last file is never lost."""

import errno
import importlib
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

import sharedspan as ss
from conftest import statistics_of
from sharedspan.objective import build_objective
from sharedspan.objective.backends import TorchBackend
from sharedspan.persistence.checkpoint import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    CheckpointError,
    Checkpoints,
)
from sharedspan.persistence.fingerprint import Fingerprint
from sharedspan.solvers import SOLVERS, SUM_SOLVERS, loop
from sharedspan.solvers.loop import CALLED_OFF, CONVERGED, PLANNED, run

auto = importlib.import_module("sharedspan.solvers.auto")  # the name is also the name of a solver

PROBLEMS = {
    "sums": {"T": 40, "d": 8, "n": 40, "kind": "gram"},
    "rows": {"T": 40, "d": 8, "n": 40, "kind": "rows"},
    "scarce": {"T": 20, "d": 30, "n": 10, "kind": "rows", "noise": 0.5, "kappa": 3.0, "seed": 1},
    "wide": {"T": 30, "d": 50, "n": 110, "kind": "gram"},
    "exact": {"T": 40, "d": 8, "n": 40, "kind": "rows", "noise": 0.0},
}


@cache
def statistics(problem):
    options = {"seed": 0, "noise": 0.3, "kappa": 5.0} | PROBLEMS[problem]
    sim = ss.simulate(
        n_tasks=options["T"], n_features=options["d"], rank=2, n_samples=options["n"],
        noise=options["noise"], condition_number=options["kappa"], random_state=options["seed"],
    )  # fmt: skip
    return statistics_of(sim.X, sim.y, sim.task, centred=False, kind=options["kind"])


@cache
def objective_of(problem):
    return build_objective(statistics(problem))


FIT = Fingerprint({"rank": 2}, ["a", "b"], ["x"], {"n": np.array([3.0, 4.0])})


@dataclass
class FrequentCheckpoints(Checkpoints):
    """Checkpoints that are also written at multiples of ``every`` iterations."""

    every: float = math.inf

    def update(self, state, now=False):
        super().update(state, now or state["iteration"] % self.every == 0)


class Fit:
    """One solver on one problem, for any number of runs."""

    def __init__(self, name, problem="sums", k=2, max_iter=60, tol=0.0, tail=False, **options):
        self.objective = problem if not isinstance(problem, str) else objective_of(problem)
        self.name, self.k, self.tail, self.options = name, k, tail, options
        self.budget = {"max_iter": max_iter, "tol": tol}

    def run(self, path=None, saved=None, seed=0, callback=None, **when):
        rng = np.random.default_rng(seed)
        solver = SOLVERS[self.name](self.objective, self.k, rng, **self.budget, **self.options)
        checkpoint = None
        if path is not None or saved is not None:
            checkpoint = FrequentCheckpoints(path, FIT, rng, saved=saved, **when)
            checkpoint.caller = {"round": 0}
        result = run(
            solver, self.objective, **self.budget, tail_average=self.tail, callback=callback,
            checkpoint=checkpoint,
        )  # fmt: skip
        return result, rng.bit_generator.state

    def resumed(self, content, path, **when):
        """Resume from these bytes, with a generator in another state."""
        path.write_bytes(content)
        return self.run(path, Checkpoint.read(path), seed=99, **when)


def assert_same(one, other):
    (result, rng), (expected, expected_rng) = one, other
    for name in ("n_iter", "converged", "ending", "message", "n_halved", "loss"):
        assert getattr(result, name) == getattr(expected, name), name
    assert np.array_equal(result.B, expected.B)
    assert np.array_equal(result.W, expected.W)
    for name, column in expected.trace.items():
        assert result.trace[name].dtype == column.dtype
        if name != "seconds":
            assert np.array_equal(result.trace[name], column, equal_nan=column.dtype.kind == "f")
    assert (np.diff(result.trace["seconds"]) >= 0).all()
    assert rng == expected_rng


def files_on_the_way(fit, path):
    """The result of the run, and the file after each iteration, as a kill would leave it."""
    files = []

    def callback(at):
        files.append(path.read_bytes())

    return fit.run(path, callback=callback, every=1), [*files, path.read_bytes()]


CASES = [
    {"name": name, "problem": "rows" if name == "nsgd" else "sums", **rule}
    for name in SOLVERS
    for rule in ({"tol": 0.0, "max_iter": 48}, {"tol": 1e-7, "tail": True, "max_iter": 90})
    if name != "als" or rule["tol"]  # slow to find its last digits
] + [
    {"name": "tpgd", "singular_values": [0.02, 0.02], "tol": 1e-6, "max_iter": 300},  # halved
    {"name": "gd", "singular_values": [0.02, 0.02]},
    {"name": "tpgd", "problem": "rows", "k": 1},
    {"name": "tpgd", "problem": "scarce", "tail": True},
    {"name": "nsgd", "problem": "rows", "restart": True, "tail": True, "max_iter": 1400},
    {"name": "altmin_gd", "problem": "rows", "split": "half"},
    {"name": "altmin_gd", "problem": "rows", "split": "theory"},
    {"name": "altmin_gd", "start": "moment", "step_size": 1.9},
    {"name": "svp", "fixed_step": 1.9},
    {"name": "als", "problem": "rows", "k": 1, "max_iter": 12},
    {"name": "lf_fo", "problem": "scarce"},
    {"name": "scaled_gd", "problem": "scarce", "k": 1},
    {"name": "scaled_gd_anderson", "problem": "scarce"},
    {"name": "scaled_gd_anderson", "k": 1},
    {"name": "variable_projection", "problem": "scarce"},
    {"name": "variable_projection", "k": 1},
    {"name": "auto", "problem": "scarce", "tol": 1e-9, "max_iter": 200},  # compares starts
    {"name": "auto", "problem": "wide", "tol": 1e-12},  # Anderson
    {"name": "scaled_gd", "problem": "exact", "max_iter": 200},  # down to rounding
    {"name": "variable_projection", "problem": "exact"},
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda c: " ".join(str(v) for v in c.values()))
def test_a_run_killed_at_any_iteration_ends_as_if_undisturbed(case, tmp_path):
    fit = Fit(**case)
    undisturbed = fit.run()
    result, files = files_on_the_way(fit, tmp_path / "c")
    assert_same(result, undisturbed)
    n = len(files) - 1
    places = {n // 2, n // 2 + 1, n - 1, n}
    if n < 1000:
        places |= {0, 1, 2, 3, 7, 11, 12, 19, 20, 21, 22, 35}
    for i in sorted(places & set(range(n + 1))):
        assert_same(fit.resumed(files[i], tmp_path / "again"), undisturbed)


def test_the_cases_have_halved_steps_and_a_last_epoch_of_noisy_sgd():
    assert Fit("tpgd", singular_values=[0.02, 0.02]).run()[0].n_halved > 0
    assert Fit("nsgd", "rows", restart=True, max_iter=1400).run()[0].ending == PLANNED


def test_auto_does_not_compare_starts_again(tmp_path, monkeypatch):
    fit, raced = Fit("auto", "scarce", tol=1e-9, max_iter=200), []
    compare = auto.lowest_of_many
    monkeypatch.setattr(auto, "lowest_of_many", lambda *a: raced.append(a[4]) or compare(*a))
    result, files = files_on_the_way(fit, tmp_path / "c")
    assert raced == [auto.RIVALS]
    for i in (1, auto.TRIAL - 2, auto.TRIAL + 3):
        raced.clear()
        assert_same(fit.resumed(files[i], tmp_path / "again"), result)
        assert raced == [auto.RIVALS] * (i < auto.TRIAL)


@pytest.mark.parametrize("name", SUM_SOLVERS)
def test_matrices_on_a_device_come_back_there(name, tmp_path):
    pytest.importorskip("torch")
    fit = Fit(
        name,
        build_objective(statistics("sums"), backend=TorchBackend("cpu")),
        max_iter=14,
        tail=True,
    )  # fmt: skip
    expected, _ = fit.run()
    (result, _), files = files_on_the_way(fit, tmp_path / "c")
    for i in (3, 9, len(files) - 1):
        result, _ = fit.resumed(files[i], tmp_path / "again")
        assert result.n_iter == expected.n_iter
        np.testing.assert_allclose(result.B, expected.B, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(result.W, expected.W, rtol=1e-12, atol=1e-14)


def interrupt_at(iteration, error=KeyboardInterrupt):
    def callback(at):
        if at["iteration"] == iteration:
            raise error

    return callback


def test_an_interrupted_run_saves_its_last_step_and_can_be_interrupted_again(tmp_path):
    fit, path = Fit("variable_projection", "scarce", tol=1e-9, max_iter=300), tmp_path / "c"
    undisturbed, saved = fit.run(), None
    for place in (3, 4, 9):
        with pytest.raises(KeyboardInterrupt):
            fit.run(path, saved, callback=interrupt_at(place))
        saved = Checkpoint.read(path)
        assert saved.run["iteration"] == place - 1
        assert saved.caller == {"round": 0}
    assert_same(fit.run(path, saved, seed=5), undisturbed)


@pytest.mark.parametrize("name", ["lf_fo", "scaled_gd_anderson", "variable_projection", "nsgd"])
def test_what_a_solver_does_after_the_last_step_is_not_saved(name, tmp_path, monkeypatch):
    """Ctrl-C in the middle of a pass, when the memory has already changed."""
    fit, path = Fit(name, "scarce"), tmp_path / "c"
    undisturbed = fit.run()
    point, passes = loop._point, []

    def interrupted(*args):
        passes.append(1)
        if len(passes) == 30:
            raise KeyboardInterrupt
        return point(*args)

    monkeypatch.setattr(loop, "_point", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fit.run(path)
    monkeypatch.undo()
    saved = Checkpoint.read(path)
    assert saved.run["iteration"] > 10
    assert_same(fit.run(saved=saved), undisturbed)


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, SystemExit])
def test_a_run_that_fails_saves_its_last_step(tmp_path, error):
    fit = Fit("tpgd")
    with pytest.raises(error):
        fit.run(tmp_path / "c", callback=interrupt_at(31, error))
    assert_same(fit.run(saved=Checkpoint.read(tmp_path / "c")), fit.run())
    assert [f.name for f in tmp_path.iterdir()] == ["c"]


def test_errors_of_a_resumed_run_are_those_of_the_solver_unless_the_memory_is_damaged(tmp_path):
    fit, path, real = Fit("variable_projection"), tmp_path / "c", SOLVERS["variable_projection"]
    files = files_on_the_way(fit, path)[1]
    path.write_bytes(files[10])
    saved = Checkpoint.read(path)

    def fails_later(objective, k, rng, **budget):
        solver = real(objective, k, rng, **budget)
        step = yield next(solver)
        for _ in range(3):
            step = yield solver.send(step)
        raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOLVERS, fit.name, fails_later)
        with pytest.raises(ZeroDivisionError):
            fit.run(path, saved)
    damaged = Checkpoint(path, saved.fingerprint, saved.caller, {**saved.run, "memory": [1.0]})
    with pytest.raises(CheckpointError, match="damaged"):
        fit.run(path, damaged)


def test_a_killed_process_can_be_followed_by_another(tmp_path):
    code = """
        import sys, time
        sys.path[:0] = [sys.argv[1], sys.argv[1] + "/.."]
        from test_checkpoint import Fit
        Fit("tpgd", max_iter=5000).run(sys.argv[2], callback=lambda at: time.sleep(1e-3), every=3)
    """
    path = tmp_path / "c"
    here = os.path.dirname(__file__)
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), here, str(path)])
    try:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if path.exists() and Checkpoint.read(path).run["iteration"] > 100:
                break
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    saved = Checkpoint.read(path)
    assert 100 < saved.run["iteration"] < 5000
    fit = Fit("tpgd", max_iter=5000)
    assert_same(fit.run(saved=saved), fit.run())


def test_a_finished_run_returns_at_once(tmp_path):
    fit, path = Fit("tpgd", tol=1e-7, max_iter=2000), tmp_path / "c"
    undisturbed = fit.run(path)
    assert undisturbed[0].ending == CONVERGED
    fit.options["steps"] = "unknown"  # the solver would refuse to start with it
    assert_same(fit.run(path, Checkpoint.read(path), seed=3), undisturbed)


def test_a_run_that_a_callback_ended_goes_on(tmp_path):
    fit, path = Fit("scaled_gd_anderson", tol=1e-9), tmp_path / "c"
    stopped, _ = fit.run(path, callback=lambda at: at["iteration"] == 4)
    assert stopped.ending == CALLED_OFF
    seen = []
    saved = Checkpoint.read(path)
    result = fit.run(path, saved, callback=lambda at: seen.append(at["iteration"]))
    assert_same(result, fit.run())
    assert seen[0] == 5


def test_more_iterations_may_be_allowed_later(tmp_path):
    """For a caller that does not make max_iter a setting."""
    path = tmp_path / "c"
    Fit("gd", max_iter=17).run(path)
    assert_same(
        Fit("gd", max_iter=40).run(saved=Checkpoint.read(path)), Fit("gd", max_iter=40).run()
    )


def test_a_second_run_of_a_fit_is_its_own(tmp_path):
    rng, path = np.random.default_rng(0), tmp_path / "c"

    def both(checkpoint):
        results = []
        for name in ("gd", "nsgd")[0 if checkpoint.caller is None else checkpoint.caller["run"] :]:
            checkpoint.caller = {"run": ("gd", "nsgd").index(name), "first": rng.random()}
            objective = objective_of("rows")
            solver = SOLVERS[name](objective, 2, rng, max_iter=30, tol=0)
            results.append(run(solver, objective, max_iter=30, tol=0, checkpoint=checkpoint))
        return results, rng.random()

    results, after = both(Checkpoints(path, FIT, rng))
    saved = Checkpoint.read(path)
    assert saved.caller["run"] == 1
    again, after_again = both(Checkpoints(path, FIT, rng, saved=saved))
    assert len(again) == 1
    assert np.array_equal(again[0].W, results[1].W)
    assert after_again == after


@pytest.mark.parametrize("kind", ["MT19937", "PCG64DXSM", "Philox", "SFC64"])
def test_any_generator_is_saved_and_another_kind_is_refused(kind, tmp_path):
    path, objective = tmp_path / "c", objective_of("rows")

    def noisy(rng, saved=None, callback=None):
        solver = SOLVERS["nsgd"](objective, 2, rng, max_iter=20, tol=0)
        checkpoint = FrequentCheckpoints(path, FIT, rng, saved=saved, every=1)
        return run(
            solver, objective, max_iter=20, tol=0, callback=callback, checkpoint=checkpoint
        ).W

    def generator(seed):
        return np.random.Generator(getattr(np.random, kind)(seed))

    expected = noisy(generator(0))
    with pytest.raises(KeyboardInterrupt):
        noisy(generator(0), callback=interrupt_at(12))
    saved = Checkpoint.read(path)
    assert np.array_equal(noisy(generator(8), saved), expected)
    with pytest.raises(CheckpointError, match="another kind of random generator than PCG64"):
        noisy(np.random.default_rng(0), saved)


def test_other_shapes_are_refused(tmp_path):
    Fit("gd").run(tmp_path / "c")
    with pytest.raises(CheckpointError, match="8 directions of the features and 40 tasks"):
        Fit("gd", "wide").run(saved=Checkpoint.read(tmp_path / "c"))


def test_an_iteration_without_checkpoints_asks_for_no_state(monkeypatch):
    calls = []
    monkeypatch.setattr(loop.Record, "state", calls.append)
    Fit("scaled_gd_anderson").run()
    assert not calls


def test_writes_follow_the_clock_and_the_count(tmp_path, monkeypatch):
    path, fit = tmp_path / "c", Fit("gd", max_iter=50)
    written = []
    write = type(CHECKPOINT_FORMAT).write
    monkeypatch.setattr(
        type(CHECKPOINT_FORMAT),
        "write",
        lambda self, p, tree: written.append(tree) or write(self, p, tree),
    )

    def iterations():
        seen = [tree["run"]["iteration"] for tree in written]
        written.clear()
        return seen

    fit.run(path)
    assert iterations() == [0, 50]
    # Slow writes are rare: they take at most a twentieth of the time.
    clock = [0.0]
    frozen = SimpleNamespace(monotonic=lambda: clock[0])
    monkeypatch.setattr("sharedspan.persistence.checkpoint.time", frozen)

    def slow(self, p, tree):
        written.append(tree)
        clock[0] += 1.0

    def one_second(at):
        clock[0] += 1.0

    monkeypatch.setattr(type(CHECKPOINT_FORMAT), "write", slow)
    fit.run(path, seconds=5.0, callback=one_second)
    assert iterations() == [0, 20, 40, 50]


@pytest.mark.parametrize("fingerprint", [None, [], {}, {"settings": 3}, {"settings": {}}])
def test_forged_fingerprints_raise_checkpoint_errors(fingerprint, tmp_path):
    CHECKPOINT_FORMAT.write(tmp_path / "f", {"fingerprint": fingerprint, "caller": None, "run": {}})
    with pytest.raises(CheckpointError):
        Checkpoint.read(tmp_path / "f").require(FIT)


def full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 KiB."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except OSError:
        pytest.skip("no mount")
    if done.returncode:
        pytest.skip("may not mount")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_costs_a_long_fit_nothing_but_checkpoints(small_disk):
    path, fit = small_disk / "c", Fit("scaled_gd_anderson", tol=1e-9)

    def fill(at):
        if at["iteration"] == 5:
            with suppress(OSError), open(small_disk / "other", "wb") as file:
                while True:
                    file.write(b"0" * 4096)

    with pytest.warns(
        RuntimeWarning, match=r"the fit continues .*/c', the old .* is unchanged"
    ) as caught:
        result = fit.run(path, callback=fill, every=1)
    assert len(caught) == 1
    assert_same(result, fit.run())
    assert sorted(f.name for f in small_disk.iterdir()) == ["c", "other"]
    saved = Checkpoint.read(path)
    assert 0 < saved.run["iteration"] <= 5
    assert_same(fit.run(saved=saved), result)


def test_later_failures_warn_once_and_writing_begins_again(tmp_path, monkeypatch):
    path, fit = tmp_path / "c", Fit("tpgd")
    replace = os.replace
    left = []

    def callback(at):
        left.append(Checkpoint.read(path).run["iteration"])
        monkeypatch.setattr(os, "replace", full if 10 <= at["iteration"] < 30 else replace)

    with pytest.warns(RuntimeWarning, match="A checkpoint was not written") as caught:
        result = fit.run(path, callback=callback, every=1)
    assert len(caught) == 1
    assert left == [*range(10), *[9] * 20, *range(30, 60)]
    assert_same(result, fit.run())
    assert [f.name for f in tmp_path.iterdir()] == ["c"]


def test_what_a_solver_cannot_save_does_not_end_its_run(tmp_path):
    objective = objective_of("sums")

    def odd():
        step = yield loop.Iterate(np.ones((8, 1)), np.ones((1, 40)))
        while True:
            B, W = step.point.B, step.point.W
            step = yield loop.Iterate(B, W, monotone=False, memory=lambda: [object()])

    checkpoint = FrequentCheckpoints(tmp_path / "c", FIT, np.random.default_rng(0), every=2)
    with pytest.warns(RuntimeWarning, match="cannot hold"):
        assert run(odd(), objective, max_iter=5, tol=0, checkpoint=checkpoint).n_iter == 5


def test_an_interrupt_during_a_write_writes_again(tmp_path, monkeypatch):
    path, fit = tmp_path / "c", Fit("gd")
    replace, calls = os.replace, []

    def once(*names):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        replace(*names)

    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(KeyboardInterrupt):
        fit.run(path, every=1)
    assert len(calls) == 6
    assert Checkpoint.read(path).run["iteration"] == 4


def test_no_warning_is_raised_on_the_way(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Fit("auto", tol=1e-9).run(tmp_path / "c", every=1)
    assert not caught
