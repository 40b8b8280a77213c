"""Labels of groups that several columns make: no two groups have the same."""

from itertools import product

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from sharedspan.inputs.label_paths import (
    label_path,
    outer_label,
    path_labels,
    path_sql,
    path_texts,
)

PARTS = ["", "a", "/", "\\", "a/", "/a", "\\/", "/\\", "a\\", "\\\\", "a/b", "é\n", "'"]


def test_no_two_pairs_have_the_same_label():
    labels = {label_path(pair): pair for pair in product(PARTS, PARTS)}
    assert len(labels) == len(PARTS) ** 2


def test_the_values_can_be_read_from_a_label():
    for parts in (*product(PARTS, PARTS), *product(PARTS, PARTS[:4], PARTS[:4])):
        assert path_texts(label_path(parts)) == parts
        assert outer_label(label_path(parts)) == label_path(parts[:1])


def test_sql_makes_the_labels_of_frames():
    frame = pd.DataFrame(list(product(PARTS, [*PARTS, None])), columns=["a", "b"])
    labels = path_labels([frame.a, frame.b]).tolist()
    connection = duckdb.connect()
    connection.register("pairs", pa.Table.from_pandas(frame))
    rows = connection.sql(f"SELECT {path_sql(['a', 'b'])} FROM pairs").fetchall()
    assert [label for (label,) in rows] == labels
    assert [label is None for label in labels] == frame.b.isna().tolist()


@pytest.mark.parametrize("kind", ["pandas", "categories", "polars", "pyarrow", "numpy"])
def test_every_kind_of_column_has_the_same_labels(kind):
    frame = pd.DataFrame({"a": [2, 1, 2, 10], "b": ["x", "y", "x", None], "c": [1.0, 0.5, 1, 2]})
    expected = ["2/x/1", "1/y/0.5", "2/x/1", None]
    columns = {
        "pandas": [frame.a, frame.b, frame.c],
        "categories": [frame.a.astype("category"), frame.b.astype("category"), frame.c],
        "polars": list(pl.from_pandas(frame)),
        "pyarrow": pa.Table.from_pandas(frame).columns,
        "numpy": [frame[name].to_numpy() for name in frame],
    }[kind]
    assert path_labels(columns).tolist() == expected


def test_a_missing_number_has_no_label():
    labels = path_labels([np.array([1.0, np.nan]), np.array([1, 2])])
    assert labels.tolist() == ["1/1", None]
