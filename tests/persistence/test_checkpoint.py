"""Checkpoints: a killed run ends as an undisturbed one, and no accident costs the last file."""

import datetime
import errno
import hashlib
import importlib
import json
import math
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
import warnings
import zipfile
from contextlib import suppress
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest

import sharedspan as ss
from conftest import statistics_of
from sharedspan.inputs.rows import validate_rows
from sharedspan.objective.backends import TorchBackend, objective_on
from sharedspan.objective.base import build_objective
from sharedspan.persistence.checkpoint import (
    CHECKPOINT_FORMAT,
    Checkpoint,
    CheckpointError,
    Checkpoints,
)
from sharedspan.persistence.fingerprint import Fingerprint, data_numbers
from sharedspan.solvers import SOLVERS, SUM_SOLVERS, loop
from sharedspan.solvers.loop import CALLED_OFF, CONVERGED, PLANNED, run
from sharedspan.statistics.canonical import Canonical, whitening
from sharedspan.statistics.scaling import Units
from sharedspan.statistics.sums import collect

auto = importlib.import_module("sharedspan.solvers.auto")  # the name is also a solver's

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


class Fit:
    """One solver on one problem, run as often as wanted."""

    def __init__(self, name, problem="sums", k=2, max_iter=60, tol=0.0, tail=False, **options):
        self.objective = problem if not isinstance(problem, str) else objective_of(problem)
        self.name, self.k, self.tail, self.options = name, k, tail, options
        self.budget = {"max_iter": max_iter, "tol": tol}

    def run(self, path=None, saved=None, seed=0, callback=None, **when):
        rng = np.random.default_rng(seed)
        solver = SOLVERS[self.name](self.objective, self.k, rng, **self.budget, **self.options)
        checkpoint = None
        if path is not None or saved is not None:
            checkpoint = Checkpoints(path, FIT, rng=rng, saved=saved, **when)
            checkpoint.caller = {"round": 0}
        result = run(
            solver, self.objective, **self.budget, tail_average=self.tail, callback=callback,
            checkpoint=checkpoint,
        )  # fmt: skip
        return result, rng.bit_generator.state

    def resumed(self, content, path, **when):
        """From these bytes, with a generator in some other state."""
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
    """The run's result, and the file as it is at each iteration: what a kill would leave."""
    files = []

    def callback(at):
        files.append(path.read_bytes())

    return fit.run(path, callback=callback, every=1), [*files, path.read_bytes()]


CASES = [
    {"name": name, "problem": "rows" if name == "nsgd" else "sums", **rule}
    for name in SOLVERS
    for rule in ({"tol": 0.0, "max_iter": 48}, {"tol": 1e-7, "tail": True, "max_iter": 90})
    if name != "als" or rule["tol"]  # whose last digits take it long
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
    monkeypatch.setattr(auto, "lowest_of_many", lambda *a: raced.append(1) or compare(*a))
    result, files = files_on_the_way(fit, tmp_path / "c")
    assert raced == [1]
    assert_same(fit.resumed(files[auto.TRIAL + 3], tmp_path / "again"), result)
    assert raced == [1]
    assert_same(fit.resumed(files[auto.TRIAL], tmp_path / "again"), result)
    assert raced == [1, 1]


@pytest.mark.parametrize("name", SUM_SOLVERS)
def test_matrices_on_a_device_come_back_there(name, tmp_path):
    pytest.importorskip("torch")
    fit = Fit(
        name, objective_on(TorchBackend("cpu"), statistics("sums")), max_iter=14, tail=True
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
    """Ctrl-C comes in the middle of a pass, when the memory has already changed."""
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
    fit.options["steps"] = "unknown"  # which the solver would refuse, were it to start
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
    """Where the caller does not make max_iter a setting."""
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

    results, after = both(Checkpoints(path, FIT, rng=rng))
    saved = Checkpoint.read(path)
    assert saved.caller["run"] == 1
    again, after_again = both(Checkpoints(path, FIT, rng=rng, saved=saved))
    assert len(again) == 1
    assert np.array_equal(again[0].W, results[1].W)
    assert after_again == after


@pytest.mark.parametrize("kind", ["MT19937", "PCG64DXSM", "Philox", "SFC64"])
def test_any_generator_is_saved_and_another_kind_is_refused(kind, tmp_path):
    path, objective = tmp_path / "c", objective_of("rows")

    def noisy(rng, saved=None, callback=None):
        solver = SOLVERS["nsgd"](objective, 2, rng, max_iter=20, tol=0)
        checkpoint = Checkpoints(path, FIT, rng=rng, saved=saved, every=1)
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
    asked = []
    monkeypatch.setattr(loop.Record, "state", asked.append)
    Fit("scaled_gd_anderson").run()
    assert not asked


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
    fit.run(path, every=20)
    assert iterations() == [0, 20, 40, 50]
    # Slow writes come seldom: at most a twentieth of the time.
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


# The file.

TREE = {
    "numbers": [1, -2.5, math.inf, 2**120, None, True, "ä\ud800"],
    "C": np.arange(6.0).reshape(2, 3),
    "F": np.arange(6.0).reshape(2, 3).T,
    "cut": np.arange(24).reshape(4, 6)[::2, ::-2],
    "flags": np.array([True, False]),
    "words": np.array(["I", "II"]),
    "big": np.arange(3, dtype=">f4"),
    "none": np.zeros((0, 3)),
    "point": np.array(2.0),
    "nested": {"<b>": [{}, [], (np.float64(2.5), np.int8(3), np.bool_(True))]},
}


def test_a_tree_comes_back_as_it_was(tmp_path):
    CHECKPOINT_FORMAT.write(tmp_path / "t", TREE | {"later": lambda: [np.ones(2)]})
    back = CHECKPOINT_FORMAT.read(tmp_path / "t")
    assert back["numbers"] == TREE["numbers"]
    for name, array in TREE.items():
        if isinstance(array, np.ndarray):
            assert back[name].dtype == array.dtype.newbyteorder("=")
            assert np.array_equal(back[name], array)
            assert back[name].shape == array.shape
            assert back[name].flags.writeable
    assert back["F"].flags.f_contiguous
    assert back["nested"] == {"<b>": [{}, [], [2.5, 3, True]]}
    assert np.array_equal(back["later"][0], [1.0, 1.0])


@pytest.mark.parametrize("bad", [{1: 2}, {"a": object()}, [np.array([None])], {"a": 1j}, {1, 2}])
def test_a_tree_of_other_things_is_refused_before_anything_is_written(bad, tmp_path):
    with pytest.raises(TypeError):
        CHECKPOINT_FORMAT.write(tmp_path / "t", bad)
    assert not list(tmp_path.iterdir())


def test_damaged_files_raise_checkpoint_errors_and_nothing_else(tmp_path):
    Fit("variable_projection", max_iter=5).run(tmp_path / "c")
    content = (tmp_path / "c").read_bytes()
    rng = np.random.default_rng(0)
    damaged = [content[:i] for i in (*range(60), *rng.integers(0, len(content), 100).tolist())]
    damaged += [content + b"\0", content[1:], content * 2, content[:-1]]
    for i in (*range(60), *rng.integers(0, len(content), 300).tolist()):
        changed = bytearray(content)
        changed[i] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(changed))
    for wrong in damaged:
        (tmp_path / "d").write_bytes(wrong)
        with pytest.raises(CheckpointError) as caught:
            Checkpoint.read(tmp_path / "d")
        assert str(tmp_path / "d") in str(caught.value)
        assert "\n" not in str(caught.value)


def signed(head, text, rest=b""):
    content = head + len(text).to_bytes(8, "little") + text + rest
    return content + hashlib.sha256(content).digest()


HEAD = b"sharedspan checkpoint, format 1\n"
FORGED = {
    "no JSON": signed(HEAD, b"{"),
    "no text": signed(HEAD, b"\xff\xfe"),
    "no dict": signed(HEAD, b"[1, 2]"),
    "nothing in it": signed(HEAD, b"{}"),
    "deep": signed(HEAD, b"[" * 100_000),
    "long": signed(HEAD, b"{}", b"more"),
    "short": signed(HEAD, b'{"a": {"<array>": ["<f8", [10], "C"]}}', b"1234"),
    "huge": signed(HEAD, b'{"a": {"<array>": ["<f8", [1000000000000000], "C"]}}'),
    "negative": signed(HEAD, b'{"a": {"<array>": ["<f8", [-1, -1], "C"]}}', b"12345678"),
    "objects": signed(HEAD, b'{"a": {"<array>": ["|O", [1], "C"]}}', b"12345678"),
    "a kind": signed(HEAD, b'{"a": {"<array>": ["__import__", [1], "C"]}}', b"12345678"),
    "half an array": signed(HEAD, b'{"a": {"<array>": 3}}'),
    "no run": signed(HEAD, b'{"fingerprint": {}, "caller": null}'),
}


@pytest.mark.parametrize("content", FORGED.values(), ids=FORGED)
def test_forged_files_raise_checkpoint_errors(content, tmp_path):
    (tmp_path / "f").write_bytes(content)
    with pytest.raises(CheckpointError, match="damaged"):
        Checkpoint.read(tmp_path / "f")


@pytest.mark.parametrize("fingerprint", [None, [], {}, {"settings": 3}, {"settings": {}}])
def test_forged_fingerprints_raise_checkpoint_errors(fingerprint, tmp_path):
    CHECKPOINT_FORMAT.write(tmp_path / "f", {"fingerprint": fingerprint, "caller": None, "run": {}})
    with pytest.raises(CheckpointError):
        Checkpoint.read(tmp_path / "f").require(FIT)


def test_foreign_and_newer_files_say_what_to_do(tmp_path):
    with zipfile.ZipFile(tmp_path / "zip", "w") as file:
        file.writestr("x.npy", b"123")
    np.savez(tmp_path / "z.npz", a=np.array([{}], dtype=object))
    (tmp_path / "empty").write_bytes(b"")
    for name in ("zip", "z.npz", "empty"):
        with pytest.raises(CheckpointError, match="is no checkpoint of sharedspan"):
            Checkpoint.read(tmp_path / name)
    (tmp_path / "new").write_bytes(b"sharedspan checkpoint, format 12\nwhatever")
    with pytest.raises(CheckpointError, match=r"newer sharedspan, in format 12.*update sharedspan"):
        Checkpoint.read(tmp_path / "new")
    with pytest.raises(CheckpointError, match="not a file"):
        Checkpoint.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        Checkpoint.read(tmp_path / "missing")


def test_what_is_no_checkpoint_is_not_overwritten(tmp_path):
    (tmp_path / "table.csv").write_text("a,b\n1,2\n")
    for check in (lambda p: Fit("gd").run(p), CHECKPOINT_FORMAT.require_writable):
        with pytest.raises(CheckpointError, match=r"table.csv' holds something else"):
            check(tmp_path / "table.csv")
        with pytest.raises(CheckpointError, match="not a file"):
            check(tmp_path)
    assert (tmp_path / "table.csv").read_text() == "a,b\n1,2\n"
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to(tmp_path / "empty")
    Fit("gd", max_iter=3).run(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert Checkpoint.read(tmp_path / "empty").run["iteration"] == 3


def test_a_file_that_cannot_be_written_stops_the_fit_before_it_starts(tmp_path):
    path, seen = tmp_path / "no" / "folder" / "c", []
    for check in (
        lambda p: Fit("gd").run(p, callback=seen.append),
        CHECKPOINT_FORMAT.require_writable,
    ):
        with pytest.raises(FileNotFoundError, match=r"Cannot write the checkpoint .*none yet") as e:
            check(path)
        assert str(path) in str(e.value)
        assert "\n" not in str(e.value)
    assert not seen
    CHECKPOINT_FORMAT.require_writable(tmp_path / "c")
    assert not list(tmp_path.iterdir())


def full(*args):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def interrupted(*args):
    raise KeyboardInterrupt


@pytest.mark.parametrize("function", ["replace", "fsync"])
@pytest.mark.parametrize(
    ("failure", "error"),
    [(full, OSError), (interrupted, KeyboardInterrupt)],
    ids=["full", "Ctrl-C"],
)
def test_a_failed_write_leaves_the_old_file_and_no_other(
    function, failure, error, tmp_path, monkeypatch
):
    CHECKPOINT_FORMAT.write(tmp_path / "c", {"old": np.ones(3)})
    monkeypatch.setattr(os, function, failure)
    with pytest.raises(error) as caught:
        CHECKPOINT_FORMAT.write(tmp_path / "c", {"new": np.ones(3)})
    if error is OSError:
        assert caught.value.errno == errno.ENOSPC
        assert "the old checkpoint is unchanged: No space left" in str(caught.value)
    monkeypatch.undo()
    assert CHECKPOINT_FORMAT.read(tmp_path / "c").keys() == {"old"}
    assert [f.name for f in tmp_path.iterdir()] == ["c"]


def test_a_write_that_really_fails_halfway_leaves_the_old_file(tmp_path):
    CHECKPOINT_FORMAT.write(tmp_path / "c", {"old": np.ones(3)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, hard))
    try:
        with pytest.raises(OSError, match="old checkpoint is unchanged: File too large"):
            CHECKPOINT_FORMAT.write(tmp_path / "c", {"new": np.ones(2**16)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert CHECKPOINT_FORMAT.read(tmp_path / "c").keys() == {"old"}
    assert [f.name for f in tmp_path.iterdir()] == ["c"]


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
        RuntimeWarning, match=r"the fit goes on .*/c', the old .* is unchanged"
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

    checkpoint = Checkpoints(tmp_path / "c", FIT, every=2)
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


def test_new_files_have_the_usual_permissions(tmp_path):
    (tmp_path / "plain").touch()
    CHECKPOINT_FORMAT.write(tmp_path / "c", {})
    assert (tmp_path / "c").stat().st_mode == (tmp_path / "plain").stat().st_mode


# The fingerprint.

LABELS = [1, 2.5, True, "1", "ä", ("a", 1), datetime.date(2020, 2, 1), np.datetime64("2020-02-01")]


def fingerprint(settings=None, labels=LABELS, names=("x", "y"), scale=1.0, **changed):
    numbers = {"n": np.arange(1.0, 9.0), "y": np.column_stack([np.zeros(8), np.full(8, 1e6)])}
    settings = {"rank": 3, "tol": 1e-7, "solver_options": {"a": [1, 2], "b": math.nan}} | (
        settings or {}
    )
    numbers = {name: scale * array for name, array in (numbers | changed).items()}
    return Fingerprint(settings, labels, names, numbers)


def difference(now, then=None):
    return now.difference((then or fingerprint()).tree)


def test_equal_fits_have_no_difference_up_to_rounding():
    options = {"solver_options": {"b": math.nan, "a": (1, np.int64(2))}, "rank": np.int64(3)}
    labels = [np.int64(1), np.float64(2.5), np.bool_(True), np.str_("1"), *LABELS[4:]]
    assert difference(fingerprint(options, labels, np.array(["x", "y"]))) is None
    assert difference(fingerprint(scale=1 + 1e-12)) is None
    noise = np.column_stack([np.full(8, 1e-10), np.full(8, 1e6)])
    assert difference(fingerprint(y=noise)) is None


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (fingerprint({"rank": 4}), "rank=3 then, rank=4 now"),
        (fingerprint({"rank": 3.0}), "rank=3 then, rank=3.0 now"),
        (fingerprint({"rank": 4, "tol": 0}), "rank=3 then, rank=4 now; tol=1e-07 then, tol=0 now"),
        (fingerprint({"extra": None}), "no extra then, extra=None now"),
        (fingerprint(names=("x", "z")), "the features: 'y' then, 'z' now"),
        (fingerprint(names=("x",)), "the features: 2 then, 1 now"),
        (fingerprint(labels=[*LABELS[:-1], "new"]), "1 new, such as 'new', 1 no longer there"),
        (fingerprint(labels=LABELS[:-1]), "the tasks: 1 no longer there"),
        (fingerprint(labels=["1", *LABELS[1:3], 1, *LABELS[4:]]), "the tasks: in another order"),
        (fingerprint(labels=[1.0, *LABELS[1:]]), "the tasks: 1 new, such as 1.0"),
        (fingerprint(n=np.array([1.0, 2, 3, 4, 5, 6, 7, 9])), "other rows in 1 task, such as "),
        (fingerprint(scale=1.001), "the data: other rows in 8 tasks, such as 1"),
        (fingerprint(n=np.full(8, np.nan)), "the data: other rows in 8 tasks, such as 1"),
        (fingerprint(n=np.ones((8, 2))), "the checkpoint summarizes them in another way"),
        (fingerprint(more=np.ones(8)), "the checkpoint summarizes them in another way"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_differences_are_named(now, said):
    assert said in difference(now)


def test_another_fit_is_refused_in_one_line(tmp_path):
    Fit("gd", max_iter=3).run(tmp_path / "c")
    saved = Checkpoint.read(tmp_path / "c")
    with pytest.raises(CheckpointError) as caught:
        Checkpoints(None, fingerprint({"rank": 2}), saved=saved)
    assert "\n" not in str(caught.value)
    assert "another fit (no tol then" in str(caught.value)


def data_fingerprint(X, y, task, kind="gram", flip=False, whiten=True, centred=True):
    tasks = validate_rows(X, y, task)
    units = Units.of(tasks, centred)
    statistics = collect(tasks, units, centred, kind)
    P = whitening(statistics) if whiten else None
    if P is not None:
        P = P[:, ::-1] * (-1 if flip else 1)
        statistics.transform(P)
    canonical = Canonical(units, P)
    numbers = data_numbers(build_objective(statistics), statistics, canonical)
    return Fingerprint({}, tasks.labels, [], numbers)


@pytest.mark.parametrize("options", [{}, {"whiten": False}, {"centred": False}], ids=str)
@pytest.mark.parametrize("n", [80, 3], ids=["plenty", "scarce"])
def test_the_numbers_of_data_see_rows_and_nothing_else(n, options, rng):
    sim = ss.simulate(
        n_tasks=20, n_features=8, rank=2, n_samples=n, noise=0.3, intercept=2.0,
        feature_condition=1e6, random_state=0,
    )  # fmt: skip
    X, y, task = sim.X + 1e3 * (options.get("centred", True)), sim.y, sim.task
    whole = data_fingerprint(X, y, task, **options).tree
    order = rng.permutation(len(y))
    for other in ({"flip": True}, {"kind": "rows"}):
        again = data_fingerprint(X[order], y[order], task[order], **(options | other))
        assert again.difference(whole) is None
    last = len(y) - 1
    X_2, y_2 = X.copy(), y.copy()
    X_2[last, 3] += 1e-3
    y_2[last] += 1e-3
    changed = [(X_2, y, task), (X, y_2, task), (X[:last], y[:last], task[:last])]
    for table in changed:
        said = data_fingerprint(*table, **options).difference(whole)
        assert said == "the data: other rows in 1 task, such as 19"


def test_labels_are_told_apart_by_hash_in_other_processes(tmp_path):
    code = (
        "import json, sys; sys.path.append('..'); from test_checkpoint import fingerprint; "
        "print(json.dumps(fingerprint().tree['labels'].tolist()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=os.path.dirname(__file__),
    )  # fmt: skip
    assert json.loads(done.stdout) == fingerprint().tree["labels"].tolist()


def test_no_warning_is_raised_on_the_way(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Fit("auto", tol=1e-9).run(tmp_path / "c", every=1)
    assert not caught
