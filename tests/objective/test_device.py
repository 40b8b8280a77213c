"""Statistics built on a GPU; with ``TRITON_INTERPRET=1`` also without one."""

import os
import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.inputs.rows import validate_rows
from sharedspan.statistics.task_statistics import gather

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs a GPU, or TRITON_INTERPRET=1", allow_module_level=True)

from sharedspan.kernels import device_rows  # noqa: E402
from sharedspan.objective import device  # noqa: E402

BACKEND = ss.TorchBackend(DEVICE)


@pytest.fixture
def table(rng):
    """Rows of tasks of unequal sizes, far from the origin."""
    task = np.repeat(np.arange(9), rng.integers(8, 14, 9))
    X = rng.standard_normal((len(task), 5)) + 100.0
    V = rng.standard_normal((9, 2)) @ rng.standard_normal((2, 5))
    y = np.einsum("ij,ij->i", X, V[task]) + 0.3 * rng.standard_normal(len(task))
    return X, y, task


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("centred", [True, False])
def test_sums_equal_those_of_the_cpu(table, rng, monkeypatch, weighted, shuffled, dtype, centred):
    monkeypatch.setattr(device_rows, "BLOCK_BYTES", 800)  # several blocks
    X, y, task = table
    order = rng.permutation(len(y)) if shuffled else np.arange(len(y))
    weight = rng.uniform(0.5, 2.0, len(y)) if weighted else None
    rows = validate_rows(X[order].astype(dtype), y[order], task[order], weight, check_finite=False)
    here = gather(rows, centred, kind="gram").statistics
    there = device.gather_on_device(rows, centred, BACKEND).statistics
    for P in (rng.standard_normal((5, 4)), np.eye(4)):
        sums = there.gather_local()
        for name in ("n", "mean", "y_mean", "packed"):
            assert_allclose(getattr(sums, name), getattr(here, name), rtol=1e-11, atol=1e-9)
        V = rng.standard_normal((9, here.n_features))
        for a, b in zip(sums.at_anchor(V), here.at_anchor(V), strict=True):
            assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())
        here.transform(P)
        there.transform(P)


def fit(table, backend, **options):
    X, y, task = table
    options = {"rank": 2, "random_state": 0, "tol": 1e-10} | options
    return ss.SharedSpanRegressor(backend=backend, **options).fit(X, y, task=task)


@pytest.mark.parametrize("options", [{}, {"rank": "auto"}, {"noise": "per_task"},
                                     {"fit_intercept": False}, {"whiten": False}])  # fmt: skip
def test_a_fit_equals_that_of_the_cpu(table, options):
    there, here = fit(table, BACKEND, **options), fit(table, "numpy", **options)
    assert_allclose(there.coef_, here.coef_, rtol=1e-7, atol=1e-9)
    assert_allclose(there.intercept_, here.intercept_, rtol=1e-7)
    assert_allclose(there.noise_variance_, here.noise_variance_, rtol=1e-8)
    assert_allclose(there.coef_std_, here.coef_std_, rtol=1e-6)


def test_a_fitted_model_can_be_pickled_and_takes_more_rows(table):
    model = fit(table, BACKEND)
    again = pickle.loads(pickle.dumps(model))
    assert_allclose(again.predict(table[0], table[2]), model.predict(table[0], table[2]))
    assert_allclose(again.coef_std_, model.coef_std_)
    X, y, task = table
    model.partial_fit(X[:20], y[:20], task=task[:20])
    assert model.n_iter_ > 0


def test_values_that_are_not_finite_are_named(table):
    X, y, task = table
    X[17, 3] = np.nan
    with pytest.raises(ValueError, match="row 17, column 'x3'"):
        fit((X, y, task), BACKEND)


def test_extreme_units_are_left_to_the_cpu(table):
    X, y, task = table
    scaled = fit((X * 1e-150, y, task), BACKEND)
    assert_allclose(scaled.coef_ * 1e-150, fit(table, BACKEND).coef_, rtol=1e-6)
