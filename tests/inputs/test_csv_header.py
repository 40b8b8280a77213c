"""The line of column names is found, and what DuckDB cannot read is copied as plain CSV."""

import pickle
import sys
from pathlib import Path

import pytest

from sharedspan.inputs.csv_header import read_header
from sharedspan.inputs.table_text import TableCopy, table_options

ROWS = "1,2,3\n4,5,6\n"


def header(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_header(path)


@pytest.mark.parametrize(
    ("above", "skip"),
    [
        ("", 0),
        ("Title\n", 1),
        ("Title\n\n\nof; two\n", 4),
        ("# made by, x, y\n", 1),
        ("Report,,\n,,\n", 2),
        ('"a title\nof two lines"\n', 2),
        ("\r\n\r\n", 2),
    ],
)
def test_lines_above_the_names_are_counted(above, skip, tmp_path):
    names, found = header(tmp_path, f"{above}g,x,y\n{ROWS}")
    assert names == ["g", "x", "y"]
    assert found.skip == skip
    assert found.copy is None


@pytest.mark.parametrize(
    "first", ["g,x,y", "#g,x,y", "# g,x,y", "g,2019,2020", "2018,2019,2020", "g,x", ",g,x"]
)
def test_the_first_line_is_the_one_of_names_unless_it_is_plainly_not(first, tmp_path):
    names, found = header(tmp_path, f"{first}\n{ROWS}")
    assert [name for name in names if "Unnamed" not in name] == [n for n in first.split(",") if n]
    assert found.skip == 0


def test_columns_without_a_name_and_repeated_ones_are_named_as_in_pandas(tmp_path):
    names, found = header(tmp_path, ",a,a,A,a.1,\n1,2,3,4,5,6\n")
    assert names == ["Unnamed: 0", "a", "a.2", "A.3", "a.1", "Unnamed: 5"]
    assert found.repeated == ("a.2", "A.3")


def test_a_copy_is_made_once_and_removed_with_its_context_or_its_object(tmp_path, temporary):
    (tmp_path / "t.csv").write_bytes("g;x;ä\nb;1,5;2\n".encode("latin-1"))
    with table_options(encoding="latin-1"):
        names, found = read_header(tmp_path / "t.csv")
        path = found.copy.path
        assert (names, found.copy.path) == (["g", "x", "ä"], path)
        assert Path(path).read_text("utf-8") == 'g,x,ä\nb,"1,5",2\n'
    assert not Path(path).exists()
    again = pickle.loads(pickle.dumps(found.copy))  # in another process it is made anew
    assert Path(again.path).read_text("utf-8") == 'g,x,ä\nb,"1,5",2\n'
    assert again.path != path
    del again


def test_a_copy_that_fails_leaves_nothing_behind(tmp_path, temporary):
    (tmp_path / "t.csv").write_text("g,x\n1,2,3\n")
    copy = TableCopy(str(tmp_path / "t.csv"), ("g", "x"), ",", 1, False)
    with pytest.raises(ValueError, match=r"line 2 has 3 fields, the first line 2: correct it"):
        _ = copy.path
    assert list(temporary.iterdir()) == []


def test_a_quote_that_is_not_closed_is_told_by_its_line(tmp_path):
    (tmp_path / "t.csv").write_text('a title\ng,x\n1,2\n3,"4\n' + "5,6\n" * 99)
    with pytest.raises(ValueError, match=r"double quote that begins in line 4 is not closed"):
        _ = read_header(tmp_path / "t.csv", as_copy=True)[1].copy.path


def test_an_unknown_encoding_and_a_wrong_one_are_told(tmp_path):
    (tmp_path / "t.csv").write_bytes(b"g,x\n\xff,2\n")
    with pytest.raises(ValueError, match="'latin-one' is unknown"), table_options("latin-one"):
        pass
    with (
        table_options("ascii"),
        pytest.raises(ValueError, match="not text in the encoding ascii"),
    ):
        read_header(tmp_path / "t.csv")


def test_a_workbook_without_its_reader_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "python_calamine", None)
    with pytest.raises(ImportError, match=r"pip install 'sharedspan\[excel\]', or save .* as CSV"):
        header(tmp_path, b"PK", "t.xlsx")
