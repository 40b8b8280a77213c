"""Units of sums: conversions, and the numbers that need none."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from sharedspan.inputs.rows import validate_rows
from sharedspan.statistics.canonical import whitening
from sharedspan.statistics.task_statistics import SAFE, Units, collect, has_safe_values

FIELDS = ("n", "mean", "y_mean", "packed", "anchor")


@pytest.mark.parametrize("centred", [True, False])
def test_sums_in_other_units_are_those_of_the_rows_in_these_units(small, centred, rng):
    rows = validate_rows(small.X, small.y, small.task)
    origins = rng.standard_normal((2, 8)) * centred
    old = Units(origins[0], 2.0 ** rng.integers(-5, 6, 8), 0.25)
    new = Units(origins[1], 2.0 ** rng.integers(-5, 6, 8), 8.0)
    sums = collect(rows, old, centred, "gram").rescaled(old, new)
    expected = collect(rows, new, centred, "gram")
    V = rng.standard_normal(expected.anchor.shape)
    for name in FIELDS:
        assert_allclose(getattr(sums, name), getattr(expected, name), rtol=1e-9, atol=1e-9)
    for a, b in zip(sums.at_anchor(V), expected.at_anchor(V), strict=True):
        assert_allclose(a, b, rtol=1e-9, atol=1e-9 * np.abs(b).max())


def test_squares_return_to_the_units_of_the_user():
    units = Units(np.zeros(1), np.ones(1), 4.0)
    assert units.squares_to_user(np.array([32.0])).tolist() == [2.0]
    huge = Units(np.zeros(1), np.ones(1), 2.0**-600)
    assert huge.squares_to_user(np.array([1.0])).tolist() == [np.inf]


@pytest.mark.parametrize(
    ("x", "y", "is_safe"),
    [
        (1.0, 1.0, True),
        (1.0, 0.0, True),
        (1.0, SAFE / 4, True),
        (1.0, SAFE * 4, False),
        (1.0, -SAFE * 4, False),
        (1.0, 1 / (SAFE * 4), False),
        (SAFE * 4, 1.0, False),
        (1 / (SAFE * 4), 1.0, False),
    ],
)
def test_numbers_whose_squares_overflow_or_vanish_are_not_safe(rng, x, y, is_safe):
    X = x * rng.uniform(0.5, 1.0, (12, 2)) * [[1, -1]] * np.resize([1, -1], 12)[:, None]
    rows = validate_rows(X, y * np.linspace(0.5, 1.0, 12), np.repeat([0, 1], 6))
    sums = collect(rows, Units(np.zeros(2), np.ones(2), 1.0), False, "gram")
    assert has_safe_values(sums, rows) == is_safe


@pytest.mark.parametrize("n_rows", [6, 40])
def test_axes_of_few_rows_are_those_of_their_gram(rng, n_rows):
    X = rng.standard_normal((n_rows, 9)) * np.arange(1, 10)
    rows = validate_rows(X, X[:, 0], np.arange(n_rows) % 2, rng.uniform(0.5, 2, n_rows))
    units = Units(np.zeros(9), np.ones(9), 1.0)
    few, gram = (collect(rows, units, True, kind).principal_axes() for kind in ("rows", "gram"))
    assert_allclose(few[0], gram[0])
    rank = min(n_rows - 2, 9)
    order = [np.argsort(axes[1])[::-1][:rank] for axes in (few, gram)]
    assert_allclose(few[1][order[0]], gram[1][order[1]], rtol=1e-9)
    cosines = np.abs(np.sum(few[2][:, order[0]] * gram[2][:, order[1]], axis=0))
    assert_allclose(cosines, 1.0, rtol=1e-7)


def test_one_large_negative_response_is_not_safe(rng):
    y = np.ones(12)
    X, task, units = rng.standard_normal((12, 2)), np.repeat([0, 1], 6), Units.plain
    for value, is_safe in ((-SAFE * 4, False), (-4.0, True)):
        y[3] = value
        rows = validate_rows(X, y, task)
        assert has_safe_values(collect(rows, units(rows, False), False, "gram"), rows) == is_safe


def test_features_that_do_not_vary_span_one_direction_of_zero():
    rows = validate_rows(np.ones((8, 3)), np.arange(8.0), np.repeat([0, 1], 4))
    sums = collect(rows, Units(np.ones(3), np.ones(3), 1.0), True, "gram")
    P = whitening(sums)
    assert P.shape == (3, 1)
    assert not P.any()
