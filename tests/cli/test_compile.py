"""``sharedspan compile``, and how kernels are compiled."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

import sharedspan as ss
from sharedspan.cli import main
from sharedspan.kernels import dense, grams
from sharedspan.kernels.compiling import KERNELS


def n_versions():
    return {kernel.__name__: len(kernel.overloads) for kernel in KERNELS}


@pytest.fixture
def compiled():
    done = CliRunner().invoke(main, ["compile", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize("n_samples", [15, 4], ids=["grams", "rows"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_fit_after_it_compiles_nothing(compiled, n_samples, order, dtype):
    before = n_versions()
    data = ss.simulate(n_tasks=9, n_features=11, rank=1, n_samples=n_samples, random_state=1)
    X = np.asarray(data.X, dtype=dtype, order=order)
    ss.SharedSpanRegressor(rank=1).fit(X, data.y, task=data.task.astype(str))
    ss.PerTaskRegressor().fit(X, data.y.astype(dtype), task=data.task)
    weights = np.linspace(1, 2, len(data.y))
    ss.SpectralRegressor(rank=1).fit(X, data.y, task=data.task, sample_weight=weights)
    if n_samples == 15:
        ss.AdaptiveSpanRegressor().fit(X, data.y, task=data.task)
        ss.AdaptiveSpanClassifier().fit(X, data.y > 0, task=data.task)
    assert n_versions() == before


def test_the_second_run_compiles_nothing_and_names_the_folder(compiled):
    again = CliRunner().invoke(main, ["compile"])
    assert "Nothing to compile" in again.output
    assert str(compiled["folder"]) in again.output


def test_without_a_writable_folder_the_command_names_the_remedy(compiled, monkeypatch):
    monkeypatch.setattr(type(grams.gram_gradients._cache), "cache_path", None)
    done = CliRunner().invoke(main, ["compile"])
    assert done.exit_code == 0
    assert "NUMBA_CACHE_DIR" in done.output


def test_a_subroutine_can_be_called_from_python(rng):
    A, c = np.diag(rng.uniform(1, 2, 3)), rng.standard_normal(3)
    expected = c / np.diag(A)
    dense.solve_in_place(A, np.empty((3, 3)), c)
    np.testing.assert_allclose(c, expected)


def test_no_kernel_is_compiled_twice_for_a_number_that_is_written_out(compiled):
    for kernel in KERNELS:
        for signature in kernel.overloads:
            assert "Literal" not in str(signature), kernel.__name__
