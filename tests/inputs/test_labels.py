import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

from sharedspan.inputs.labels import as_labels, canonical_order, codes_of, label_array
from sharedspan.inputs.rows import validate_rows


def labels_of(task):
    n = len(task)
    return list(validate_rows(np.ones((n, 1)), np.zeros(n), task).labels)


def test_labels_are_sorted_numbers_then_strings_then_others_as_they_come():
    mixed = [("b", 1), "z", 2.5, "a", -1, ("a", 1), True]
    assert canonical_order(mixed) == [-1, True, 2.5, "a", "z", ("b", 1), ("a", 1)]


def test_one_and_the_string_one_are_two_tasks():
    assert labels_of([1, "1", 1, "1"]) == [1, "1"]


def test_labels_that_python_calls_equal_are_one_task():
    assert labels_of(np.array([1, 1.0, True], dtype=object)) == [1]


def test_row_order_does_not_change_the_order_of_tasks(rng):
    task = np.array(["north", "south", "east", "west"])[rng.integers(0, 4, 50)]
    assert labels_of(task) == labels_of(np.sort(task)) == sorted(set(task.tolist()))


@pytest.mark.parametrize(
    "task",
    [
        np.array([3, 1, 3]),
        np.array(["b", "a", "b"]),
        ["b", "a", "b"],
        [(1, "x"), (0, "y"), (1, "x")],
        [datetime.date(2020, 1, 2), datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)],
        np.array(["2020-01-02", "2020-01-01", "2020-01-02"], dtype="datetime64[D]"),
        pd.Series(["b", "a", "b"]),
        pd.Series(["b", "a", "b"], dtype="category"),
        pl.Series(["b", "a", "b"]),
        [frozenset({1}), frozenset({2}), frozenset({1})],
    ],
    ids=lambda task: type(task).__name__,
)
def test_any_hashable_kind_of_label_groups_its_rows(task):
    tasks = validate_rows(np.arange(3.0)[:, None], np.zeros(3), task)
    assert tasks.n_tasks == 2
    rows = tasks.order if tasks.order is not None else np.arange(3)
    groups = {frozenset(rows[tasks.starts[t] : tasks.starts[t + 1]].tolist()) for t in range(2)}
    assert groups == {frozenset({0, 2}), frozenset({1})}


def test_unused_levels_of_a_categorical_do_not_count():
    task = pd.Series(pd.Categorical(["a", "b", "a"], categories=["a", "b", "never"]))
    assert labels_of(task) == ["a", "b"]


def test_codes_of_unknown_labels_are_minus_one():
    codes, unknown = codes_of(["a", "q", "b", "q"], 4, ["a", "b"])
    assert codes.tolist() == [0, -1, 1, -1]
    assert unknown == ["q"]


def test_large_integers_beside_floats_stay_exact():
    labels = [2**60 + 1, 0.5]
    assert label_array(labels).tolist() == labels


def test_contiguous_rows_are_not_copied():
    X = np.ones((6, 2))
    tasks = validate_rows(X, np.zeros(6), [0, 0, 1, 1, 2, 2])
    assert np.shares_memory(tasks.X, X)
    assert tasks.order is None


def test_one_long_label_does_not_make_the_others_long():
    """An array of text gives every label the room of the longest: 40 kB each, for 10^5 rows."""
    labels = ["x" * 10_000] + ["y"] * 99_999
    heads, starts = as_labels(labels, len(labels))
    assert (heads, starts.tolist()) == (["x" * 10_000, "y"], [0, 1])
    assert label_array(heads).nbytes < 100
    assert label_array(heads).tolist() == heads


def test_whole_numbers_beyond_those_with_a_sign_stay_whole():
    heads, _ = as_labels([2**64 - 1, 2**64 - 2, 5], 3)
    assert heads == [2**64 - 1, 2**64 - 2, 5]


def test_labels_in_tuples_may_not_be_missing():
    with pytest.raises(ValueError, match="missing"):
        as_labels([(1, 2), (1, float("nan"))], 2)
