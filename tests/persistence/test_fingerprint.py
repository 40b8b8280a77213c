"""Fingerprints are equal for the same fit, and describe the difference from another."""

import datetime
import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest
from test_checkpoint import Fit

import sharedspan as ss
from sharedspan.inputs.rows import validate_rows
from sharedspan.objective import build_objective
from sharedspan.persistence.checkpoint import Checkpoint, CheckpointError, Checkpoints
from sharedspan.persistence.fingerprint import Fingerprint, data_numbers
from sharedspan.statistics.canonical import Canonical, whitening
from sharedspan.statistics.task_statistics import Units, collect

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
        (fingerprint(labels=[*LABELS[:-1], "new"]), "1 new, such as 'new', 1 missing"),
        (fingerprint(labels=LABELS[:-1]), "the tasks: 1 missing"),
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
        Checkpoints(None, fingerprint({"rank": 2}), np.random.default_rng(0), saved=saved)
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
        "import json, sys; sys.path.append('..'); from test_fingerprint import fingerprint; "
        "print(json.dumps(fingerprint().tree['labels'].tolist()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=os.path.dirname(__file__),
    )  # fmt: skip
    assert json.loads(done.stdout) == fingerprint().tree["labels"].tolist()
