import tempfile

import numpy as np
import pytest

import sharedspan as ss
from sharedspan.inputs.rows import validate_rows
from sharedspan.statistics.task_statistics import Units, collect


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def small():
    """Forty unequal tasks of rank 2 with intercepts."""
    sizes = np.random.default_rng(3).integers(8, 60, 40)
    return ss.simulate(
        n_tasks=40, n_features=8, rank=2, n_samples=sizes, noise=0.3, intercept=2.0, random_state=5
    )


def statistics_of(X, y, task, *, centred=True, kind="gram", weight=None):
    """Statistics of rows, in the units of the rows."""
    tasks = validate_rows(X, y, task, weight)
    return collect(tasks, Units.of(tasks, centred), centred, kind)


@pytest.fixture
def temporary(tmp_path_factory, monkeypatch):
    """No temporary file is left behind, whether a fit succeeds or fails."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    assert list(folder.iterdir()) == []
