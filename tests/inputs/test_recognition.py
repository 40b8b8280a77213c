"""Text is told apart, and what the user must say is one sentence."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest

import sharedspan as ss
from sharedspan.inputs.recognition import recognise
from sharedspan.inputs.text_format import TextFormat

NUMBERS = [f"{i}.5" for i in range(40)]
GROUPED = [f"{i},{i + 100:03d}" for i in range(1, 40)]
ISO = [f"2024-01-{i:02d}" for i in range(1, 32)]
DAYS = [f"{i:02d}/{i:02d}/2024" for i in range(1, 13)]


def told(text=TextFormat(), drops_rows=True, target=None, **columns):  # noqa: B008
    counts = {name: Counter(values) for name, values in columns.items()}
    kinds, text, findings = recognise(counts, text, target=target, drops_rows=drops_rows)
    return kinds, text, findings.sentence("t.csv") if findings else ""


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (NUMBERS, "number"),
        (["1e5", "-2", "+3.5", ".5", "5."], "number"),
        (["2024-01-31", "2024-02-01T12:00", "2024-02-01 12:00:30+02:00"], "date"),
        (["red", "green"], "text"),
        (["36", "37", "XL"] * 9, "text"),
        (["01", "1", "red"] * 9, "text"),
        (["Main Street 5", "31 Dec", "1.2.3"], "text"),
        (["2024-13-01", "2024-02-31"], "text"),
        ([], "number"),
    ],
)
def test_what_needs_no_word_is_told_apart(values, kind):
    kinds, text, sentence = told(x=values)
    assert (kinds["x"], text, sentence) == (kind, TextFormat(), "")


@pytest.mark.parametrize(
    ("columns", "typed"),
    [
        ({"x": ["1,5", "2,25"]}, "--decimal ','"),
        ({"x": ["1,5"], "z": ["1.234,5"]}, "--decimal ',' --thousands '.'"),
        ({"x": ["1.234.567", "2.345.678"]}, "--decimal ',' --thousands '.'"),
        ({"x": ["1,234,567"]}, "--thousands ','"),
        ({"x": ["1 234", "12 345.5"]}, "--thousands ' '"),
        ({"x": ["1’234", "5"]}, "--thousands \"'\""),
        ({"x": ["€ 1,5", "€ 2"]}, "--decimal ','"),
        ({"x": ["31.12.24 08:30", "01.01.24 09:00"]}, "--date 'x=%d.%m.%y %H:%M'"),
        ({"x": ["Dec 31, 2024"]}, "--date 'x=%b %d, %Y'"),
        ({"x": [*NUMBERS, "?!", "to do"]}, "--na-values '?!' --na-values 'to do' --missing drop"),
        ({"x": [*ISO, "never"]}, "--na-values never --missing drop"),
        ({"x": ["1"] * 99 + ["oops"]}, "--na-values oops --missing drop"),
        ({"x": ["2024-01", "2024-12"]}, "--date x=%Y-%m"),
        ({"x": ["12/31/2024 10:30 PM"]}, "--date 'x=%m/%d/%Y %I:%M %p'"),
        ({"x": [*NUMBERS, *"abcdefg"]}, "--drop x"),
    ],
)  # fmt: skip
def test_options_are_those_that_read_all_columns(columns, typed):
    _, _, sentence = told(**columns)
    assert f" add {typed}, in Python " in sentence
    assert "\n" not in sentence


def test_what_may_be_meant_otherwise_is_said():
    assert told(x=GROUPED)[2] == (
        "t.csv: 'x' ('39,139') holds numbers in another notation: add --thousands ',', in Python "
        "columns=ss.Columns(thousands=','); if these are decimal commas, add --decimal ',' instead."
    )
    assert told(x=DAYS)[2] == (
        "t.csv: 'x' ('12/12/2024') holds dates in another notation: add --date x=%d/%m/%Y, in "
        "Python columns=ss.Columns(dates={'x': '%d/%m/%Y'}); if the month comes first, --date "
        "x=%m/%d/%Y instead."
    )
    assert told(x=[*NUMBERS, "none"], z=[*NUMBERS, "none"])[2] == (
        "t.csv: 'x', 'z' hold numbers, but 'none' in some rows: add --na-values none --missing "
        "drop, in Python columns=ss.Columns(na_values=['none'], missing='drop'); if 'x' holds "
        "categories, add --categorical x instead."
    )


def test_a_target_is_neither_dropped_nor_a_category():
    assert told(target="y", y=[*NUMBERS, "none"])[2] == (
        "t.csv: 'y' holds numbers, but 'none' in 1 row: add --na-values none --missing drop, in "
        "Python columns=ss.Columns(na_values=['none'], missing='drop')."
    )
    assert told(target="y", y=[*NUMBERS, *"abcdefg"])[2] == ""  # refused as no number


def test_marks_that_are_given_hold_and_others_are_added():
    comma = TextFormat(",")
    assert told(comma, x=["1,5", "2.5"])[0] == {"x": "number"}
    assert "--thousands '.'" in told(comma, x=["1.234", "2,5"])[2]
    assert told(TextFormat(",", "."), x=["1.234", "2,5"])[2] == ""
    with pytest.raises(
        ValueError, match=r"'x' holds numbers such as '1\.234', which have marks other"
    ):
        told(TextFormat(",", "'"), x=["1.234", "13.512"])
    _, _, sentence = told(TextFormat(na_values=("none",)), drops_rows=False, x=[*NUMBERS, "?"])
    assert "--missing" not in sentence


def test_a_column_of_decimal_points_needs_no_word_beside_decimal_commas():
    points, commas = ["-8.133", "1.64", "0.123", "5"], ["115,78", "2,5"]
    assert told(x=points, y=commas)[2] == (
        "t.csv: 'y' ('115,78') holds numbers in another notation: add --decimal ',', in Python "
        "columns=ss.Columns(decimal=',')."
    )
    for text in (TextFormat(","), TextFormat(",", ".")):
        kinds, text, sentence = told(text, x=points, y=commas)
        assert (kinds, sentence) == ({"x": "number", "y": "number"}, "")
        assert text.points == ("x",)
    # Numbers that may all be thousands are told, and what else they may be.
    assert (
        "if 'x' has decimal points, write commas instead" in told(TextFormat(","), x=["1.234"])[2]
    )


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([f"{i},5" for i in range(40)] + ["1.25"], TextFormat(",", ".")),
        ([f"{i}.5%" for i in range(40)] + ["7"], TextFormat()),
        ([*ISO, "0"], TextFormat()),
        ([f"{i}.5k" for i in range(40)] + ["1.5M"], TextFormat()),
        ([f"{i}.5 kg" for i in range(40)] + ["500 g"], TextFormat()),
    ],
)
def test_words_that_are_numbers_are_never_offered_as_missing(values, text):
    with pytest.raises(ValueError, match=r"'x' holds .*, but '.*' in 1 row: .*--drop x") as caught:
        told(text, x=values)
    assert "na_values" not in str(caught.value)
    assert "na-values" not in str(caught.value)


def test_signs_of_units_are_left_out_only_if_all_numbers_have_them():
    assert told(x=["5%", "6.5 %"], z=["$3"])[1].signs == ("$", "%")
    assert told(x=["5 kg", "6.5 kg"])[1].signs == ("kg",)
    assert told(x=["5kg", "6.5kg"])[1].signs == ("kg",)
    assert told(x=["12.3k", "0.5k", "50k"])[:2] == ({"x": "number"}, TextFormat(signs=("k",)))
    assert told(x=["50.12N", "8.25N"])[0] == told(x=["\u22125.5", "3"])[0] == {"x": "number"}
    assert told(x=["5 rooms", "1 room"])[0] == told(x=["12A", "13A"])[0] == {"x": "text"}
    kinds, text, _ = told(x=["5% off", "6% off"])
    assert (kinds["x"], text.signs) == ("text", ())


@pytest.mark.parametrize(
    ("text", "numbers", "others"),
    [
        (
            TextFormat(),
            ["1", "-1.5e3", " 2 ", "\u22121.5"],
            ["1,5", "1 000", "1_000", "x", "1.2.3"],
        ),
        (
            TextFormat(","),
            ["1,5", "12.5", "1234.567", "0.123", "-0.5"],
            ["1.234", "1.234,5", "1,5,5"],
        ),
        (
            TextFormat(",", "."),
            ["\u22121.234,5", "1.234,5", "-12.345.678", "5"],
            ["12.34,5", "1.5", "0.123", "1,5.0"],
        ),
        (TextFormat(".", ","), ["1,234.5", "12,345,678", "5"], ["12,5", "1,23,456"]),
        (TextFormat(".", " "), ["1 234", "1\u00a0234.5", "1\u202f234"], ["12 34", "1,5"]),
        (TextFormat(signs=("€",)), ["€ 5", "5\u00a0€", "5"], ["5 $"]),
    ],
)
def test_sql_and_python_read_the_same_numbers(text, numbers, others):
    import duckdb

    for value in (*numbers, *others):
        number = f"TRY_CAST({text.as_number('v')} AS DOUBLE)"
        sql = f"SELECT {text.reads_sql('v')}, {number} FROM (SELECT ? AS v)"
        ((reads, number),) = duckdb.execute(sql, [value]).fetchall()
        if value != "1_000":  # DuckDB takes it for a number
            assert reads == text.reads(value) == (value in numbers), value
        if value in numbers:
            omitted = str.maketrans("\u2212", "-", " \u00a0\u202f€" + text.thousands)
            assert number == float(value.translate(omitted).replace(text.decimal, "."))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([f"{10 + i}.714" for i in range(30)] + ["42,714", "43,215"], "points and with commas"),
        ([f"{i}.25" for i in range(20)] + [f"({i}.75)" for i in range(25)], "negative numbers"),
        ([f"2020-01-{i:02d}" for i in range(1, 16)] + [f"{i}.02.2020" for i in range(1, 16)],
         "dates in two forms"),
    ],
)  # fmt: skip
def test_two_notations_in_one_column_are_told(values, words):
    X = pd.DataFrame({"x": values})
    with pytest.raises(ValueError, match=rf"'x' holds .*{words}.*--drop x"):
        ss.PooledRegressor().fit(X, np.arange(float(len(X))), task=0)
