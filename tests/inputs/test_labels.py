import datetime

import numpy as np
import pandas as pd
import polars as pl
import pytest

from sharedspan.inputs.labels import (
    canonical_order,
    codes_of,
    is_missing,
    label_array,
    task_codes,
)
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
    distinct, codes = task_codes(labels, len(labels))
    assert distinct == ("x" * 10_000, "y")
    assert codes.tolist() == [0] + [1] * 99_999
    assert label_array(distinct).nbytes < 100
    assert label_array(distinct).tolist() == list(distinct)


def test_whole_numbers_beyond_those_with_a_sign_stay_whole():
    distinct, codes = task_codes([2**64 - 1, 2**64 - 2, 5], 3)
    assert (distinct, codes.tolist()) == ((5, 2**64 - 2, 2**64 - 1), [2, 1, 0])


def test_labels_in_tuples_may_not_be_missing():
    with pytest.raises(ValueError, match="missing"):
        task_codes([(1, 2), (1, float("nan"))], 2)


def one_by_one(labels):
    """``task_codes`` by a Python loop over rows."""
    labels = list(labels) if labels.dtype.kind in "OMm" else labels.tolist()
    labels = [label.item() if isinstance(label, np.floating) else label for label in labels]
    assert not any(map(is_missing, labels))
    distinct = canonical_order(labels)
    place = {label: code for code, label in enumerate(distinct)}
    return distinct, [place[label] for label in labels]


ROWS = np.random.default_rng(0).permutation(np.repeat(np.arange(-700, 700), 3))
KINDS = {
    "integers in a row": ROWS,
    "integers far apart": ROWS.astype(np.int64) * 2**50 + 1,
    "integers of one byte": ROWS.astype(np.int8),
    "integers without a sign": ROWS.astype(np.uint64) * 2**54,
    "ends of the integers": np.where(ROWS % 3 == 0, np.iinfo(np.int64).min, 2**63 - 1 - ROWS % 2),
    "big-endian integers": ROWS.astype(">i4"),
    "every other integer of a table": np.column_stack([ROWS, ROWS])[::2, 1],
    "floats": ROWS / 7,
    "single precision": (ROWS / 7).astype(np.float32),
    "whole floats": ROWS / 1.0,
    "long doubles": ROWS.astype(np.longdouble) / 4,
    "zeros of both signs": np.where(ROWS % 5 == 0, -0.0, ROWS % 3),
    "infinities": np.where(ROWS % 5 == 0, -np.inf, np.where(ROWS % 3 == 0, np.inf, 1.0)),
    "booleans": ROWS % 3 == 0,
    "text": np.array([f"site {r:d}" for r in ROWS]),
    "text of a big-endian machine": np.array([f"é{r:d}" for r in ROWS], dtype=">U5"),
    "text with zeros inside": np.array([f"a\0{r:d}" for r in ROWS]),
    "bytes": np.array([f"{r:d}".encode() for r in ROWS]),
    "dates": np.datetime64("2020-01-01") + ROWS,
    "times between": ROWS.astype("m8[s]"),
    "complex numbers": ROWS + 1j * (ROWS % 3),
    "objects of several kinds": np.array(
        [(r, "x") if r % 5 == 0 else str(r) if r % 3 == 0 else np.float64(r / 2) if r % 2 == 0
         else int(r) for r in ROWS] + [None], dtype=object,
    )[:-1],
    "text with zeros at its end": np.array([f"a{r % 3}" + "\0" * (r % 2) for r in ROWS] + [0],
                                           dtype=object)[:-1],
}  # fmt: skip


@pytest.mark.parametrize("case", KINDS)
@pytest.mark.parametrize("arranged", ["shuffled", "sorted", "a single row"])
def test_codes_are_those_of_a_loop_over_rows(case, arranged):
    labels = KINDS[case]
    if arranged == "sorted":
        labels = labels[np.argsort(ROWS[: len(labels)] if labels.dtype == object else labels)]
    labels = labels[:1] if arranged == "a single row" else labels
    distinct, codes = task_codes(labels, len(labels))
    expected, expected_codes = one_by_one(labels)
    assert list(distinct) == expected
    assert [type(label) for label in distinct] == [type(label) for label in expected]
    assert codes.tolist() == expected_codes
    assert str(distinct) == str(tuple(expected))  # which tells 0.0 and -0.0 apart

    known = list(distinct[: len(distinct) // 2]) or ["none"]
    found = [
        known.index(label) if label in known else -1 for label in map(distinct.__getitem__, codes)
    ]
    for given in (known, label_array(known)):
        codes, unknown = codes_of(labels, len(labels), given)
        assert codes.tolist() == found
        others = [distinct[code] for code, at in zip(expected_codes, found, strict=True) if at < 0]
        assert unknown == list(dict.fromkeys(others))


@pytest.mark.parametrize("dtype", ["category", "string", "Int64", "object", "period[D]"])
def test_columns_of_pandas_are_coded_like_their_arrays(dtype):
    values = ROWS % 900
    if dtype == "string":
        values = values.astype(str)
    column = pd.Series(
        pd.PeriodIndex.from_ordinals(values, freq="D") if "period" in dtype else values
    )
    column = column.astype(dtype)
    distinct, codes = task_codes(column, len(column))
    expected, expected_codes = one_by_one(column.to_numpy())
    assert list(distinct) == expected
    assert [type(label) for label in distinct] == [type(label) for label in expected]
    assert codes.tolist() == expected_codes
    assert codes_of(column, len(column), distinct)[0].tolist() == expected_codes


def test_labels_equal_across_types_name_one_task():
    for known, labels in (
        (np.array([1, 2, 3]), np.array([3.0, 1.0])),
        (np.array([1.0, 2.0, 3.0]), np.array([3, 1], dtype=np.uint8)),
        (np.array([1, 2**60 + 1, 3]), np.array([3, 1], dtype=np.uint64)),
        (np.array([0, 1]), np.array([True, False])),
        (np.array([1.5, 2.0]), np.array([2.0, 1.5], dtype=np.float32)),
        (np.array([1.5, 2.0, 4.0]), np.array([4.0, 1.5])),
        (np.array(["a", "bcd"]), np.array(["bcd", "a"], dtype="U40")),
        (np.array(["a", "bcd"]), pd.Series(["bcd", "a"])),
        (np.array(["a", "bcd"]), pd.Categorical(["bcd", "a"], categories=["a", "x", "bcd"])),
        (np.array([1, 2, 3]), pd.Series([3, 1], dtype="category")),
        (np.array([1, 2, 3]), pd.Series([3, 1], dtype="Int64")),
    ):
        codes, unknown = codes_of(labels, 2, known)
        assert codes.tolist() == [len(known) - 1, 0]
        assert unknown == []
    codes, unknown = codes_of(np.array([2.0**60]), 1, np.array([1, 2**60 + 1]))
    assert (codes.tolist(), unknown) == ([-1], [2.0**60])


@pytest.mark.parametrize("weighted", [False, True])
def test_rows_are_sorted_by_task_and_stay_in_order_within_it(rng, weighted):
    task = rng.integers(0, 40, 300)
    weight = rng.integers(0, 2, 300) * 1.0 if weighted else np.ones(300)
    weight[task == 7] = 0.0 if weighted else 1.0
    tasks = validate_rows(np.ones((300, 1)), np.zeros(300), task, weight)
    expected = [np.flatnonzero((task == t) & (weight > 0)) for t in range(40)]
    assert tuple(tasks.labels) == tuple(t for t in range(40) if len(expected[t]))
    assert tasks.order.tolist() == np.concatenate(expected).tolist()
    sizes = [len(rows) for rows in expected if len(rows)]
    assert np.diff(tasks.starts).tolist() == sizes
