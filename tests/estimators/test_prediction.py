"""Predictions of rows in any layout and precision, against a loop over rows."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.kernels import threads


@pytest.fixture
def model(small):
    model = ss.SharedSpanRegressor(rank=2, random_state=0, unseen="mean")
    return model.fit(small.X, small.y, small.task)


def one_by_one(model, X, labels):
    tasks, out = model.tasks_.tolist(), []
    for x, label in zip(np.asarray(X, dtype=float), labels, strict=True):
        coef, level = model.coef_.mean(axis=0), model.intercept_.mean()
        if label in tasks:
            t = tasks.index(label)
            coef, level = model.coef_[t], model.intercept_[t]
        out.append(level + x @ coef)
    return out


@pytest.mark.parametrize("unseen", [False, True])
@pytest.mark.parametrize(
    "layout",
    {
        "as they are": lambda X: X,
        "columns together": np.asfortranarray,
        "every other row": lambda X: np.repeat(X, 2, axis=0)[::2],
        "reversed columns of a table": lambda X: X[:, ::-1].copy()[:, ::-1],
        "single precision": lambda X: X.astype(np.float32),
        "integers": lambda X: (10 * X).astype(int),
        "frame": pd.DataFrame,
        "not writeable": lambda X: np.frombuffer(X.tobytes()).reshape(X.shape),
    }.items(),
    ids=lambda item: item[0],
)
def test_predictions_are_those_of_a_loop_over_rows(model, small, rng, layout, unseen):
    order = rng.permutation(len(small.y))
    labels = small.task[order]
    if unseen:
        labels[::3] = 77
    X = layout[1](small.X[order])
    assert_allclose(model.predict(X, labels), one_by_one(model, X, labels), rtol=1e-12, atol=1e-12)


def test_threads_and_blocks_do_not_change_a_bit(model, small, monkeypatch):
    plain = model.predict(small.X, small.task)
    monkeypatch.setattr("sharedspan.estimators.prediction.BLOCK", 7)
    monkeypatch.setattr(threads, "SERIAL_WORK", 0)
    monkeypatch.setattr(threads, "_chosen", 3)
    assert_array_equal(model.predict(small.X, small.task), plain)
    assert_array_equal(model.predict(np.asfortranarray(small.X), small.task), plain)
    assert_array_equal(np.concatenate([model.predict(small.X[i : i + 1], small.task[i : i + 1])
                                       for i in range(50)]), plain[:50])  # fmt: skip


def test_deviations_of_unseen_tasks_do_not_depend_on_blocks(model, small, monkeypatch):
    labels = np.where(np.arange(len(small.y)) % 2, small.task, 77)
    _, plain = model.predict(small.X, labels, return_std=True)
    monkeypatch.setattr("sharedspan.estimators.prediction.BLOCK", 7)
    assert_allclose(model.predict(small.X, labels, return_std=True)[1], plain, rtol=1e-12)
