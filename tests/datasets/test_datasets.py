"""Bundled tables, and CSV and Parquet files: the arrays read, and the messages of errors."""

import gzip
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

import sharedspan as ss
from sharedspan.datasets import load_table

ORIGINALS = Path(__file__).parents[3] / "shared" / "data"

ROWS = """school,size,share,exam,note
north,1,0.5,10,x
south,2,,11,y
north,3,1.5,12,z
east,4,2.5,,w
"""
PARTS = {"task": "school", "target": "exam", "drop": "note"}


@pytest.fixture
def table(tmp_path):
    def write(text, name="table.csv"):
        path = tmp_path / name
        data = text.encode() if isinstance(text, str) else text
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


def test_communities_and_crime_is_complete():
    data = ss.datasets.load_communities_crime()
    assert data.X.shape == (1994, 100)
    assert len(np.unique(data.task)) == 46
    assert data.task_name == "state"
    assert data.target_name == "ViolentCrimesPerPop"
    assert not {"state", "fold", "ViolentCrimesPerPop"} & set(data.feature_names)
    assert ((data.X >= 0) & (data.X <= 1)).all()
    assert "CC BY 4.0" in data.licence
    assert "Redmond" in data.description
    assert data.to_frame().shape == (1994, 102)


@pytest.mark.parametrize(
    ("load", "name", "drop"),
    [
        (ss.datasets.load_communities_crime, "communities_crime.csv", ["fold"]),
        (ss.datasets.load_parkinsons, "parkinsons.csv", ["age", "sex", "motor_updrs"]),
    ],
    ids=["communities_crime", "parkinsons"],
)
def test_bundled_tables_are_the_originals(load, name, drop):
    if not (ORIGINALS / name).is_file():
        pytest.skip("the original tables are not available")
    bundled = load()
    original = ss.datasets.load_table(
        ORIGINALS / name, task=bundled.task_name, target=bundled.target_name, drop=drop
    )
    assert bundled.feature_names == original.feature_names
    assert_array_equal(bundled.X, original.X)
    assert_array_equal(bundled.y, original.y)
    assert_array_equal(bundled.task, original.task)


def test_rows_come_in_the_order_of_the_file_with_their_labels(table):
    data = load_table(table(ROWS), **PARTS, missing="drop")
    assert data.feature_names == ("size", "share")
    assert_array_equal(data.X, [[1, 0.5], [3, 1.5]])
    assert_array_equal(data.y, [10, 12])
    assert data.task.tolist() == ["north", "north"]
    assert data.n_dropped == 2


@pytest.mark.parametrize("name", ["t.csv.gz", "data[1]*'s.csv", "t.TSV", "t.txt"])
def test_endings_odd_names_and_delimiters_do_not_matter(table, name):
    text = ROWS.replace(",", "\t") if name == "t.TSV" else ROWS
    text = text.replace(",", ";") if name == "t.txt" else text
    data = load_table(table(text, name), **PARTS, missing="drop")
    assert_array_equal(data.X, [[1, 0.5], [3, 1.5]])


def test_whole_numbers_stay_labels_and_leading_zeros_are_kept(table):
    numbers = load_table(table("g,x,y\n7,1,2\n3,2,2\n"), task="g", target="y")
    assert numbers.task.dtype == np.int64
    assert numbers.task.tolist() == [7, 3]
    text = load_table(table("g,x,y\n07,1,2\n7,2,2\n"), task="g", target="y")
    assert text.task.tolist() == ["07", "7"]


def test_parquet_holds_the_same_as_csv(tmp_path, table):
    columns = {
        "school": ["north", "south", "north", "east"],
        "size": pa.array([1, 2, 3, 4], pa.int16()),
        "share": [0.5, None, 1.5, 2.5],
        "exam": pa.array([10, 11, 12, np.nan], pa.float32()),
        "note": list("xyzw"),
    }
    pq.write_table(pa.table(columns), tmp_path / "table.parquet")
    old = load_table(table(ROWS), **PARTS, missing="drop")
    new = load_table(tmp_path / "table.parquet", **PARTS, missing="drop")
    assert_array_equal(new.X, old.X)
    assert_array_equal(new.y, old.y)
    assert_array_equal(new.task, old.task)
    assert new.n_dropped == old.n_dropped


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task": "scool"}, "no column 'scool' (task).*Did you mean 'school'"),
        ({"target": "EXAM"}, "no column 'EXAM' (target).*Did you mean 'exam'"),
        ({"drop": ["note", "sizes"]}, "no column 'sizes' (drop).*Did you mean 'size'"),
        ({"target": "note", "drop": ()}, "'note' (such as 'x') does not hold numbers"),
        ({}, "2 of 4 rows have missing values ('exam' 1, 'share' 1).*--missing drop"),
        ({"task": "exam"}, "both task and target"),
        ({"drop": ["school"]}, "'school' is the task"),
        ({"drop": ["size", "share", "note"]}, "No column is left"),
        ({"missing": "fill"}, "use 'error', 'drop'"),
    ],
    ids=str,
)
def test_mistakes_are_told_in_one_line_with_a_way_out(table, change, words):
    with pytest.raises(ValueError, match=words.replace("(", r"\(").replace(")", r"\)")) as caught:
        load_table(table(ROWS), **(PARTS | change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        ("", "t.csv", "does not begin with a line of column names"),
        ("g,x,y\n", "t.csv", "no rows"),
        ("g,x,y\na,1,2\nb,1,2,3\n", "t.csv", "line 3 has 4 fields, the first line 3"),
        ("g,x,y\na,inf,2\n", "t.csv", "'x' holds infinity in 1 row"),
        ("g,x,y\na,,2\n", "t.csv", "'x' has no values"),
        ("g,x,y\né,1,2\n".encode("latin-1"), "t.csv", "not UTF-8"),
        (b"no parquet", "t.parquet", "could not be read"),
        ("g,x,y\n", "t.xlsx", "as a workbook"),
        ("g,x,y\n", "t.docx", "unknown format"),
    ],
    ids=str,
)
def test_broken_files_are_told_in_one_line(table, text, name, words):
    with pytest.raises(ValueError, match=words) as caught:
        load_table(table(text, name), task="g", target="y", missing="drop")
    assert "\n" not in str(caught.value)


def test_a_text_value_far_down_the_file_is_found(table):
    path = table("g,x,y\n" + "a,1,2\n" * 30_000 + "b,oops,2\n")
    words = r"'x' holds numbers, but 'oops' in 1 row.*--na-values oops"
    with pytest.raises(ValueError, match=words):
        load_table(path, task="g", target="y")


def test_missing_files_are_told_the_nearest_name(table):
    path = table(ROWS)
    with pytest.raises(ValueError, match=r"no file .*tabel.csv. Did you mean 'table.csv'"):
        load_table(path.with_name("tabel.csv"), **PARTS)
    with pytest.raises(ValueError, match="is a folder"):
        load_table(path.parent, **PARTS)


def test_load_table_says_where_it_came_from_and_what_it_left_out(table):
    path = table(ROWS)
    data = ss.datasets.load_table(path, **PARTS, missing="drop")
    assert str(path) in data.description
    assert "2 rows" in data.description
    assert data.to_frame().columns.tolist() == ["school", "size", "share", "exam"]
