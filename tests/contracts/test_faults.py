"""Faults: a few cases of those in benchmarks/trust/faults.py, and what they brought to light."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from sharedspan.inputs import temporary as leftovers
from sharedspan.inputs.temporary import SharedFolder, Temporary, remove_leftovers, temporary_folder
from sharedspan.kernels import threads

if os.name == "nt":
    pytest.skip("signals, locks and limits of POSIX", allow_module_level=True)

from benchmarks.trust import faults

PLAN = faults.COMMANDS["plan"]
# Commands whose faults are tried here; the others take long.
FEW = ("plan", "fit")


def holds(lines):
    for line in lines:
        assert line.holds, f"{line.claim}: {line.figure}"


def run_plan(before, tmp_path, **options):
    """The command ``plan`` in a process that runs some code when the command does its work."""
    code = f"""
import os, signal, sys
import sharedspan.inference.planning as planning

def interrupt(*of_anything):
    os.kill(os.getpid(), signal.SIGINT)

{before}
sys.argv = ["sharedspan", *{PLAN!r}]
from sharedspan.cli.__main__ import run
run()
"""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, **options
    )


LOST = {
    "turned into a RuntimeError by a class": """
class Interrupting:
    __set_name__ = interrupt

def plan(*arguments, **options):
    class Owner:
        attribute = Interrupting()

planning.plan = plan
""",
    "turned into an ImportError by an import": """
def plan(*arguments, **options):
    try:
        interrupt()
    except KeyboardInterrupt:
        raise ImportError("numpy failed to import") from None

planning.plan = plan
""",
    "dropped by a callback of the garbage collector": """
import time, weakref

class Thing:
    pass

def plan(*arguments, **options):
    thing = Thing()
    watch = weakref.ref(thing, interrupt)
    del thing
    for _ in range(1000):
        time.sleep(0.01)

planning.plan = plan
""",
}


@pytest.mark.parametrize("how", LOST)
def test_ctrl_c_ends_a_command_where_python_loses_the_keyboard_interrupt(how, tmp_path):
    done = run_plan(LOST[how], tmp_path)
    assert (done.returncode, done.stderr) == (130, "\nStopped.\n"), done.stderr


def test_ctrl_c_after_the_end_of_a_command_changes_nothing(tmp_path):
    done = run_plan("import atexit\natexit.register(interrupt)", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_a_command_that_was_started_to_ignore_ctrl_c_ignores_it(tmp_path):
    ignored = "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    begun = "own = planning.plan\nplanning.plan = lambda *a, **b: (interrupt(), own(*a, **b))[1]"
    done = run_plan(ignored + begun, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_memory_that_runs_out_in_a_command_is_told_in_one_line(tmp_path):
    before = """
import numpy as np
planning.plan = lambda *arguments, **options: np.zeros((10**9, 10**9))
"""
    done = run_plan(before, tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "memory of this machine" in done.stderr
    assert "Unable to allocate" in done.stderr


def test_where_no_thread_can_be_started_the_others_do_the_work(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setenv("NUMBA_NUM_THREADS", "4")
    threads._pool.cache_clear()  # threads of earlier tests would do
    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = np.zeros(100, dtype=int)

    def work(first, last):
        done[first:last] += 1

    for _ in range(2):
        threads.over_tasks(work, len(done), 1e9)
    monkeypatch.undo()
    threads._pool.cache_clear()
    assert_array_equal(done, 2)


@pytest.fixture
def unswept(monkeypatch):
    """As in a new process, no folder has been looked through."""
    monkeypatch.setattr(leftovers, "_swept", set())


# A process that makes temporary files of each kind, says so, and waits to be killed.
LITTERING = """
import sys, time
from pathlib import Path
from sharedspan.inputs.temporary import SharedFolder, Temporary, temporary_folder
place = Path(sys.argv[1])
file = Temporary(place, suffix=".csv", mode=0o600)
folder = Temporary(place)
(folder.path / "part").write_text("half")
with temporary_folder() as name:
    (Path(name) / "run").write_text("half")
    descriptor, copy = SharedFolder().make(".csv")
    print("made", flush=True)
    time.sleep(60)
"""


def test_files_of_killed_processes_are_removed_and_those_of_living_ones_are_not(
    tmp_path, temporary, unswept, monkeypatch
):
    others = ["notes.txt", ".sharedspan-mine", ".sharedspan-0123456789abcdef.csv", "sharedspan-x"]
    for name in others:
        (tmp_path / name).write_text("kept")
    link = tmp_path / f".sharedspan-{24 * 'a'}.csv"
    link.symlink_to(tmp_path / "notes.txt")
    process = subprocess.Popen(
        [sys.executable, "-c", LITTERING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with process.stdout:
        assert process.stdout.readline() == "made\n"
        made = {*tmp_path.iterdir()}, {*temporary.iterdir()}
        assert [len(each) for each in made] == [len(others) + 3, 2]
        remove_leftovers(tmp_path)
        remove_leftovers(temporary)
        assert ({*tmp_path.iterdir()}, {*temporary.iterdir()}) == made
        process.kill()
        process.wait()
    monkeypatch.setattr(leftovers, "_swept", set())
    Temporary(tmp_path, mode=0o600).remove()
    with temporary_folder():
        assert len(list(temporary.iterdir())) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted([*others, link.name])


def test_a_file_that_another_process_took_for_a_leftover_is_made_again(
    tmp_path, unswept, monkeypatch
):
    lock, taken = Temporary._lock, []

    def late(file):
        if not taken:
            taken.append(file.path)
            file.path.unlink()  # before it was locked
        return lock(file)

    monkeypatch.setattr(Temporary, "_lock", late)
    file = Temporary(tmp_path, mode=0o600)
    assert [*tmp_path.iterdir()] == [file.path]
    assert file.path != taken[0]
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_many_copies_of_tables_take_one_lock_and_one_folder(temporary, unswept):
    folder = SharedFolder()
    before = len(os.listdir("/dev/fd"))
    paths = []
    for _ in range(50):
        descriptor, path = folder.make(".csv")
        os.close(descriptor)
        paths.append(path)
    assert len(os.listdir("/dev/fd")) == before + 1
    assert len(list(temporary.iterdir())) == 1
    for path in paths:
        folder.remove(path)
    assert list(temporary.iterdir()) == []


def test_a_simulation_that_was_killed_can_be_made_again(tmp_path, unswept):
    from sharedspan.datasets.simulate_files import simulate_files

    folder = tmp_path / "s"
    (folder / f".sharedspan-{24 * '0'}").mkdir(parents=True)
    simulate_files(folder, n_tasks=3, n_features=2, rank=1, n_samples=4, random_state=0)
    assert sorted(file.name for file in folder.iterdir()) == ["part-00000.parquet", "truth.npz"]


def test_a_leaderboard_is_written_whole_or_not_at_all(small, tmp_path, monkeypatch):
    import sharedspan as ss
    from sharedspan.diagnosis import comparison

    board = ss.compare(small.X, small.y, small.task, methods=["PooledRegressor"], repeats=2)
    path = tmp_path / "board.csv"
    path.write_text("old")
    monkeypatch.setattr(comparison, "asdict", lambda entry: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        board.write_csv(path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("board.csv", "old")]


def test_random_limits_on_memory_end_in_a_memory_error_or_in_the_right_fit():
    holds(faults.memory(0.2, 1))


def test_ctrl_c_at_random_moments():
    holds(faults.interrupts(0.1, 0, FEW))


def test_a_killed_fit_is_followed_by_one_that_tidies_up():
    holds(faults.kills(0.1, 1, ("fit",)))


def test_full_and_read_only_disks():
    holds(faults.disks(0.1, 0, ("fit", "predict")))


def test_clocks_that_jump():
    holds(faults.clock(0.1, 0))


def test_two_processes_on_one_checkpoint():
    holds(faults.sharing(0.1, 0, ("one checkpoint",)))


def test_blas_with_many_threads():
    holds(faults.threads(0.5, 0, ("BLAS with 64 threads",)))


# A kernel, its result, and how often its machine code was read from the cache.
CACHED = """
from sharedspan.kernels.compiling import kernel

@kernel
def double(x):
    return 2 * x

if __name__ == "__main__":
    print(double(21), sum(double.stats.cache_hits.values()))
"""


def test_a_damaged_or_full_cache_of_compiled_code_does_not_stop_a_fit(tmp_path):
    (tmp_path / "cached.py").write_text(CACHED)
    cache = tmp_path / "cache"

    def run(*before):
        code = "; ".join(
            [*before, "import runpy; runpy.run_path('cached.py', run_name='__main__')"]
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True,
            env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert [run(), run()] == ["42 0", "42 1"]
    for damage in (b"", b"rubbish"):
        for file in cache.rglob("*.nb[ic]"):
            file.write_bytes(damage)
        assert run() == "42 0"
    for file in cache.rglob("*.nb[ic]"):
        file.unlink()
    # As on a full disk, writing fails after a few bytes.
    assert run("import resource", "resource.setrlimit(resource.RLIMIT_FSIZE, (99, 99))") == "42 0"
