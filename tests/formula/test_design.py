"""Features, effects and groups of formulas: those of patsy and of R, from any kind of table."""

import json
import warnings

import numpy as np
import pandas as pd
import patsy
import polars as pl
import pyarrow as pa
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import sharedspan as ss
from sharedspan.formula.advice import FormulaError
from sharedspan.formula.design import learn_design
from sharedspan.inputs.encoders import Factor
from sharedspan.inputs.frame_table import encode_frame
from sharedspan.inputs.label_paths import outer_label
from sharedspan.inputs.reader import read_matching
from sharedspan.inputs.splines import DistinctSample, SplineBasis
from sharedspan.mixed_model.structures import Block
from sharedspan.persistence.codec import decode, encode


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    n = 240
    frame = pd.DataFrame(
        {
            "y": rng.standard_normal(n),
            "x": rng.uniform(1, 3, n),
            "z": rng.standard_normal(n),
            "a": rng.choice(["u", "v", "w"], n),
            "b": rng.choice(["k", "l"], n),
            "p": rng.choice([1, 2, 3, 4], n),
            "g": rng.integers(0, 12, n),
            "item": rng.integers(0, 5, n),
            "sold": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 900, n), "D"),
            "answer": rng.choice(["yes", "no"], n),
            "wins": rng.integers(0, 5, n),
        }
    )
    return frame.assign(district=frame.g // 4, size=frame.wins + rng.integers(1, 4, n))


def features(formula, table, columns=None):
    """The design of a formula, and its features by their names, with the intercept's."""
    design = learn_design(formula, table, columns)
    X = encode_frame(table, design.columns).X
    named = dict(zip(design.columns.names, X.T, strict=True))
    if design.effects.fixed[0]:
        named = {"Intercept": np.ones(len(X))} | named
    return design, named


# A formula of ours, and patsy's if it differs.
FIXED = {
    "x": None,
    "x * a": None,
    "a * b": None,
    "a + a:b": None,
    "a:b": None,
    "0 + a + b": None,
    "0 + a:b": None,
    "0 + x + a:x + b": None,
    "x + log(x) + I(x^2 * z)": "x + np.log(x) + I(x**2 * z)",
    "sqrt(x) + exp(z) + I(-x/2 + (z - 1)^2)": "np.sqrt(x) + np.exp(z) + I(-x/2 + (z - 1)**2)",
    "factor(p) * x * a": "C(p) * x * a",
    "p + b / x": None,
    "(x + z + a)^2": "(x + z + a)**2",
    "a * b * z - a:b": None,
    "a:x + z:b": None,
    "1": None,
}


@pytest.mark.parametrize("formula", FIXED)
def test_fixed_effects_span_the_space_of_patsy(formula, table):
    _, named = features(f"y ~ {formula} + (1 | g)", table)
    ours = np.column_stack(list(named.values()))
    theirs = np.asarray(patsy.dmatrix(FIXED[formula] or formula, table))
    rank = np.linalg.matrix_rank(theirs)
    assert rank == theirs.shape[1]
    assert np.linalg.matrix_rank(ours) == rank
    assert np.linalg.matrix_rank(np.hstack([ours, theirs])) == rank


@pytest.mark.parametrize("formula", ["x * a", "a * b", "factor(p) * x * a", "(x + z + a)^2"])
def test_features_equal_those_of_patsy_where_all_lower_terms_are_there(formula, table):
    _, named = features(f"y ~ {formula} + (1 | g)", table)
    theirs = np.asarray(patsy.dmatrix(FIXED[formula] or formula, table))
    assert_array_equal(
        sorted(map(tuple, np.column_stack(list(named.values())).T.tolist())),
        sorted(map(tuple, theirs.T.tolist())),
    )


# The columns of model.matrix in R, with our names of levels.
IN_R = {
    "x * a": ["Intercept", "x", "a=v", "a=w", "x:a=v", "x:a=w"],
    "a * b": ["Intercept", "a=v", "a=w", "b=l", "a=v:b=l", "a=w:b=l"],
    "a:b": ["Intercept", "a=u:b=k", "a=v:b=k", "a=w:b=k", "a=u:b=l", "a=v:b=l", "a=w:b=l"],
    "a + a:b": ["Intercept", "a=v", "a=w", "a=u:b=l", "a=v:b=l", "a=w:b=l"],
    "0 + a + b": ["a=u", "a=v", "a=w", "b=l"],
    "0 + x + a:x + b": ["x", "b=k", "b=l", "x:a=v", "x:a=w"],
    "a:x": ["Intercept", "a=u:x", "a=v:x", "a=w:x"],
    "log(x) + I(x^2)": ["Intercept", "log(x)", "I(x^2)"],
    "factor(p) + p": ["Intercept", "p=2", "p=3", "p=4", "p"],
    "b + factor(b)": ["Intercept", "b=l"],
    "1": ["Intercept"],
    "0": [],
}


@pytest.mark.parametrize("formula", IN_R)
def test_features_are_in_the_order_of_r(formula, table):
    _, named = features(f"y ~ {formula} + (1 | g)", table)
    assert list(named) == IN_R[formula]


def test_features_are_what_their_names_say(table):
    formula = "y ~ x * a + factor(p) + I(x^2 - z/3) + log(x) + sold + (0 + x:b | g)"
    _, named = features(formula, table)
    assert_array_equal(named["a=v"], table.a == "v")
    assert_array_equal(named["p=3"], table.p == 3)
    assert_array_equal(named["x:a=w"], table.x * (table.a == "w"))
    assert_allclose(named["I(x^2 - z/3)"], table.x**2 - table.z / 3, rtol=1e-14)
    assert_allclose(named["log(x)"], np.log(table.x), rtol=1e-14)
    assert_array_equal(named["sold"], (table.sold - pd.Timestamp("1970-01-01")).dt.days)
    assert_array_equal(named["x:b=k"], table.x * (table.b == "k"))


def test_a_spline_is_a_line_and_a_group_of_penalised_columns(table):
    design, named = features("y ~ z + s(x, 6) + x:a + s(z) + (1 + x | g)", table)
    basis = SplineBasis.of(DistinctSample().add(table.x).values(), 6)
    for j in range(basis.n_columns):
        assert_allclose(named[f"x spline {j + 1}"], basis.basis(table.x)[:, j])
    groups = dict(zip(design.columns.names, design.columns.groups, strict=True))
    assert {groups[name] for name in ("x", "z", "x:a=v", "x:a=w")} == {-1}
    assert {groups[name] for name in named if name.startswith("x spline")} == {0}
    assert {groups[name] for name in named if name.startswith("z spline")} == {1}
    assert all(design.effects.fixed)
    place = 1 + design.columns.names.index("x")
    assert design.effects.blocks == (Block("full", (0, place)),)


def test_options_of_columns_say_how_levels_are_coded(table):
    _, named = features("y ~ x * a + (1 | g)", table, ss.Columns(reference={"a": "v"}))
    assert "a=u" in named
    assert "a=v" not in named
    _, named = features("y ~ a + (0 + a | g)", table, ss.Columns(coding="sum"))
    assert_array_equal(named["a=w"], (table.a == "w") * 1.0 - (table.a == "u"))
    assert_array_equal(named["a=w (level)"], table.a == "w")
    order = {"a": ["w", "u", "v"]}
    _, named = features("y ~ a:x + a + (1 | g)", table, ss.Columns(ordinal=order))
    assert_array_equal(named["a:x"], table.a.map({"w": 0, "u": 1, "v": 2}) * table.x)
    _, named = features("y ~ p + I(p^2) + (1 | g)", table, ss.Columns(categorical=["p"]))
    assert list(named) == ["Intercept", "p=2", "p=3", "p=4", "I(p^2)"]
    _, named = features("y ~ sold + (1 | g)", table, ss.Columns(season=["sold"]))
    assert "sold year cos 2" in named


def test_levels_are_pooled_only_if_options_say_so(table):
    rare = table.assign(a=table.a.mask(table.index < 2, "r").mask(table.index == 2, "s"))
    _, named = features("y ~ a + (1 | g)", rare)
    assert {"a=s", "a=u", "a=v", "a=w"} < set(named)
    _, named = features("y ~ a + (1 | g)", rare, ss.Columns(rare=5))
    assert "a=(other)" in named


# ---- effects -------------------------------------------------------------------------------------


def test_a_column_of_a_bar_is_shared_if_its_coding_is_equal(table):
    design, named = features("y ~ x * a + (0 + a | g)", table)
    assert list(named) == ["Intercept", "x", "a=v", "a=w", "x:a=v", "x:a=w", "a=u"]
    assert design.effects.fixed == (True,) * 6 + (False,)
    assert design.effects.blocks == (Block("full", (6, 2, 3)),)


def test_bars_become_blocks(table):
    cases = {
        "y ~ x + z + (1 + x | g)": [Block("full", (0, 1))],
        "y ~ x + z + (1 + x || g)": [Block("diagonal", (0, 1))],
        "y ~ x + z + (1 | g) + (0 + z | g)": [Block("full", (0,)), Block("full", (2,))],
        "y ~ x + z + rr(1 + x + z | g, 2)": [Block("low_rank", (0, 1, 2), 2)],
        "y ~ x + z + rr(x + z | g)": [Block("low_rank", (0, 1, 2), None)],
        "y ~ 1 + (1 + z:x + x | g)": [Block("full", (0, 1, 2))],
        "y ~ x + (0 + factor(p) || g)": [Block("diagonal", (2, 3, 4, 5))],
        "y ~ 0 + x + (1 | g)": [Block("full", (0,))],
    }
    for formula, blocks in cases.items():
        effects = learn_design(formula, table).effects
        assert list(effects.blocks) == blocks, formula
        assert effects.fixed[0] == ("~ 0" not in formula)
    assert learn_design("y ~ 1 + (x | g)", table).effects.fixed == (True, False)


def test_a_coefficient_cannot_vary_twice_between_the_same_groups(table):
    for formula, advice in {
        "y ~ x + (1 | g) + (x | g)": r"write 0 \+ at the beginning of \(1 \+ x \| g\)",
        "y ~ x + (x | g) + (x | g)": r"\(1 \+ x \| g\) twice",
        "y ~ x + (0 + x | g) + (0 + x + z | g)": "leave its column out of one",
    }.items():
        with pytest.raises(FormulaError, match=advice):
            learn_design(formula, table)


# ---- groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bars",
    ["(1 + x | district/g)", "(1 + x | district) + (1 + x | district:g)",
     "(1 + x | g:district) + (1 + x | district)", "(1 + x | district) + (1 + x | g)"],
)  # fmt: skip
def test_nested_groups_are_recognised(bars, table):
    design = learn_design(f"y ~ x + {bars}", table)
    assert design.nested == "district"
    assert design.groups == design.columns.task == ("district", "g")
    assert design.effects.blocks == design.outer_effects.blocks == (Block("full", (0, 1)),)
    labels = design.task_labels(table)
    expected = table.district.astype(str) + "/" + table.g.astype(str)
    assert labels.tolist() == expected.tolist()
    assert [outer_label(label) for label in labels] == table.district.astype(str).tolist()


def test_groups_that_one_column_makes_have_their_own_labels(table):
    design = learn_design("y ~ x + (1 | g)", table)
    assert design.columns.task == "g"
    assert design.groups == ("g",)
    assert design.nested is design.outer_effects is None
    assert_array_equal(design.task_labels(table), table.g)


def test_combinations_of_columns_are_groups_without_outer_ones(table):
    design = learn_design("y ~ x + (1 | g:item)", table)
    assert (design.groups, design.nested) == (("g", "item"), None)
    assert design.task_labels(table)[0] == f"{table.g[0]}/{table['item'][0]}"


def test_a_crossed_grouping_becomes_a_feature_for_every_level(table):
    for bars in ("(1 + x | g) + (1 | item)", "(1 | item) + (1 + x | g)"):
        design, named = features(f"y ~ x + {bars}", table)
        assert (design.groups, design.crossed) == (("g",), ("item",))
        assert design.effects.blocks == (Block("full", (0, 1)),)
        assert design.columns.groups.tolist() == [-1, 0, 0, 0, 0, 0]
        for level in range(5):
            assert_array_equal(named[f"item={level}"], table["item"] == level)
        assert all(design.effects.fixed)
    # With intercepts alone, the grouping with more levels has the tasks.
    assert learn_design("y ~ (1 | item) + (1 | g)", table).groups == ("g",)
    # Otherwise that which varies in slopes.
    assert learn_design("y ~ x + (1 + x | item) + (1 | g)", table).groups == ("item",)
    several = learn_design("y ~ (1 | g) + (1 | item) + (1 | p)", table)
    assert several.crossed == ("item", "p")
    assert set(several.columns.groups.tolist()) == {0, 1}


def test_a_level_of_a_crossed_grouping_that_was_not_fitted_has_no_effect(table):
    design, _ = features("y ~ x + (1 | g) + (1 | item)", table)
    X = encode_frame(table.assign(item=99), design.columns).X
    assert_array_equal(X[:, 1:], 0)


def test_nested_and_crossed_groups_go_together(table):
    design = learn_design("y ~ x + (1 | district/g) + (1 | item)", table)
    assert (design.groups, design.nested, design.crossed) == (
        ("district", "g"), "district", ("item",),
    )  # fmt: skip


def test_groupings_that_cannot_be_fitted_are_refused_in_a_sentence(table):
    wide = table.assign(other=table.g + 100, one=1)
    big = pd.concat([table] * 10, ignore_index=True)
    rng = np.random.default_rng(0)
    big = big.assign(g=rng.integers(0, 500, len(big)), h=rng.integers(0, 450, len(big)))
    for formula, data, advice in (
        ("y ~ x", wide, r"write \+ \(1 \| group\), or fit PooledRegressor"),
        (
            "y ~ x + (1 + x | g) + (1 + z | item)",
            wide,
            r"only intercepts are supported for them: write \(1 \| item\)",
        ),
        (
            "y ~ x + (1 | g) + (1 | other)",
            wide,
            "are those of `g`: leave out the random-effects term",
        ),
        ("y ~ x + (1 | g) + (1 | one)", wide, "one group of `one`"),
        (
            "y ~ x + (1 | g) + (1 | h)",
            big,
            "at most 400 of them are supported, not .*leave out their random-effects term, or join",
        ),
        ("y ~ factor(item) + (1 | g) + (1 | item)", wide, "in its terms and as groups"),
        ("y ~ (1 | district:g) + (1 | district:g:item)", wide, "one column of them in the table"),
        ("y ~ (1 | district/g/item)", wide, r"\(1 \| district\) \+ \(1 \| district_g/item\)"),
        (
            "y ~ (x | district/g/item)",
            wide,
            "At most two nested grouping factors are supported.* are three",
        ),
    ):
        with pytest.raises(FormulaError, match=advice):
            learn_design(formula, data)


# ---- responses -----------------------------------------------------------------------------------


def test_responses_are_numbers_shares_or_two_classes(table):
    y, trials = learn_design("log(x) ~ z + (1 | g)", table).response(table)
    assert_array_equal(y, np.log(table.x))
    assert trials is None
    design = learn_design("cbind(wins, size - wins) ~ z + (1 | g)", table)
    y, trials = design.response(table)
    assert_allclose(y * trials, table.wins)
    assert_array_equal(trials, table["size"])
    design = learn_design("answer ~ z + (1 | g)", table)
    assert_array_equal(design.response(table)[0], table.answer == "yes")
    assert design.levels == ("no", "yes")
    ordered = table.assign(answer=pd.Categorical(table.answer, categories=["yes", "no"]))
    assert_array_equal(
        learn_design("answer ~ z + (1 | g)", ordered).response(ordered)[0], table.answer == "no"
    )
    true = table.assign(answer=table.answer == "yes")
    assert_array_equal(
        learn_design("answer ~ z + (1 | g)", true).response(true)[0], table.answer == "yes"
    )


def test_offsets_are_added_up(table):
    design = learn_design("y ~ offset(log(size)) + x + offset(z) + (1 | g)", table)
    assert_allclose(design.offsets(table), np.log(table["size"]) + table.z)
    assert [str(part) for part in design.offset] == ["log(size)", "z"]
    assert learn_design("y ~ x + (1 | g)", table).offsets(table) is None


def test_bad_responses_are_refused(table):
    for formula, problem in {
        "a ~ x + (1 | g)": "'a' has 3 values that are not numbers",
        "cbind(wins, wins - size) ~ x + (1 | g)": r"wins - size is -\d in row 0",
        "cbind(a, wins) ~ x + (1 | g)": "'a' does not hold numbers",
        "log(z) ~ x + (1 | g)": r"log\(z\) is not defined for -0\.\d+ in row \d+",
    }.items():
        with pytest.raises(ValueError, match=problem):
            learn_design(formula, table).response(table)
    design = learn_design("answer ~ x + (1 | g)", table)
    with pytest.raises(FormulaError, match="holds 'perhaps', but its classes are 'no' and 'yes'"):
        design.response(table.assign(answer="perhaps"))


# ---- tables --------------------------------------------------------------------------------------

EVERYTHING = "y ~ x * a + s(z) + factor(p) + p:x + log(x) + sold + (0 + a | district/g)"
OPTIONS = ss.Columns(season=["sold"], rare=0)


def test_every_kind_of_table_gives_the_same_design(table):
    design, named = features(EVERYTHING, table, OPTIONS)
    expected = np.column_stack(list(named.values()))
    dtypes = {"x": "Float64", "p": "Int64", "a": "category", "g": "int32[pyarrow]"}
    kinds = {
        "polars": pl.from_pandas(table),
        "pyarrow": pa.Table.from_pandas(table, preserve_index=False),
        "dict": {name: table[name].to_numpy() for name in table},
        "pandas types": table.astype(dtypes),
        "other columns": table.assign(more="text", others=None),
    }
    for kind, data in kinds.items():
        other = learn_design(EVERYTHING, data, OPTIONS)
        assert other.columns.names == design.columns.names, kind
        assert (other.effects, other.groups) == (design.effects, design.groups)
        assert other.task_labels(data).tolist() == design.task_labels(table).tolist()
        if kind != "dict":
            assert_allclose(encode_frame(data, design.columns).X, expected[:, 1:], rtol=1e-12)


def test_columns_of_numbers_do_not_pass_through_duckdb(table, monkeypatch):
    def refuse(_):
        raise AssertionError("DuckDB was asked to read columns of numbers.")

    monkeypatch.setattr("sharedspan.inputs.frame_table.open_frame", refuse)
    monkeypatch.setattr("sharedspan.formula.columns.open_frame", refuse)
    numbers = table.assign(flag=table.a == "u")
    for data in (numbers, pl.from_pandas(numbers), pa.Table.from_pandas(numbers)):
        _, named = features("y ~ x * flag + s(z) + log(x):p + (1 + x | district/g)", numbers)
        design = learn_design("y ~ x * flag + s(z) + log(x):p + (1 + x | district/g)", data)
        X = encode_frame(data, design.columns).X
        assert_array_equal(np.column_stack(list(named.values()))[:, 1:], X)


def test_files_are_read_as_the_table_was(table, tmp_path):
    design, named = features(EVERYTHING, table, OPTIONS)
    table.to_csv(tmp_path / "table.csv", index=False)
    table.to_parquet(tmp_path / "table.parquet")
    for name in ("table.csv", "table.parquet"):
        reader = read_matching(tmp_path / name, design.columns, needs_target=False)
        X, _, labels = reader.arrays()
        assert_allclose(X, np.column_stack(list(named.values()))[:, 1:], rtol=1e-12)
        assert labels.tolist() == design.task_labels(table).tolist()


def test_a_model_file_holds_the_columns(table):
    design, named = features(EVERYTHING, table, OPTIONS)
    same = decode(encode(design.columns), {})
    assert same.names == design.columns.names
    assert same.task == ("district", "g")
    assert_array_equal(encode_frame(table, same).X, np.column_stack(list(named.values()))[:, 1:])


def test_a_model_file_cannot_hold_other_operations(table):
    tree = encode(learn_design("y ~ log(x) + (1 | g)", table).columns)
    text = json.dumps(tree).replace('"log"', '"system"')
    with pytest.raises(ValueError, match="is not arithmetic"):
        decode(json.loads(text), {})


def test_unknown_columns_are_named_with_the_nearest_one(table):
    for formula in ("y ~ X1z + (1 | g)", "y ~ I(sizes^2) + (1 | g)", "y ~ x + (1 | distrct)",
                    "why ~ x + (1 | g)", "y ~ offset(sizee) + (1 | g)"):  # fmt: skip
        with pytest.raises(FormulaError, match=r"the table has no such column"):
            learn_design(formula, table)
    with pytest.raises(FormulaError, match=r"has `distrct`.*Did you mean 'district'\?"):
        learn_design("y ~ x + (1 | distrct)", table)


def test_what_a_column_cannot_be_is_refused(table):
    for formula, columns, problem in (
        ("y ~ log(a) + (1 | g)", None, r"`log\(a\)`, but the column 'a' holds categories"),
        ("y ~ s(x) + s(x, 5) + (1 | g)", None, "two numbers of knots"),
        ("y ~ x + (1 | g)", ss.Columns(spline=["x"]), r"write s\(x\)"),
        ("y ~ x + (1 | g)", ss.Columns(interactions=[("x", "z")]), "write x:z"),
        ("y ~ x + (1 | g)", ss.Columns(categorical=["xx"]), "Did you mean 'x'"),
        ("y ~ factor(x):factor(z):factor(size) + (1 | g)", None, "more than 5,000 features"),
    ):
        with pytest.raises(FormulaError, match=problem):
            learn_design(formula, table, columns)
    with pytest.raises(FormulaError, match="'one' has the same value in all rows"):
        learn_design("y ~ one + (1 | g)", table.assign(one="a"))
    with pytest.raises(TypeError, match="give a pandas, polars or pyarrow table"):
        learn_design("y ~ x + (1 | g)", table.to_numpy())


# ---- missing values ------------------------------------------------------------------------------


@pytest.fixture
def gaps(table):
    gaps = table.copy()
    gaps.loc[[3, 4], "x"] = np.nan
    gaps.loc[7, "a"] = None
    gaps.loc[9, "y"] = np.nan
    return gaps


def test_rows_that_lack_a_value_are_an_error_that_says_what_to_type(gaps):
    with pytest.raises(FormulaError, match=r"^4 of 240 rows.*'x' 2, 'a' 1, 'y' 1.*Columns\(missi"):
        learn_design("y ~ x + a + (1 | g)", gaps)
    learn_design("y ~ z + (1 | g)", gaps.drop(9))  # other columns may lack values
    for data in (pl.from_pandas(gaps), pa.Table.from_pandas(gaps)):
        with pytest.raises(FormulaError, match=r"^4 of 240 rows"):
            learn_design("y ~ x + a + (1 | g)", data)


def test_levels_and_knots_are_learned_from_complete_rows(gaps):
    gaps.loc[3, "a"] = "only here"
    options = ss.Columns(missing="drop", rare=0)
    design = learn_design("y ~ s(x) + a + (1 | g)", gaps, options)
    complete = gaps.dropna(subset=["y", "x", "a"])
    again = learn_design("y ~ s(x) + a + (1 | g)", complete, options)
    assert design.columns.names == again.columns.names
    assert_array_equal(
        encode_frame(complete, design.columns).X, encode_frame(complete, again.columns).X
    )
    assert np.isnan(design.response(gaps)[0][9])


def test_missing_values_are_filled_in_and_marked(gaps):
    options = ss.Columns(missing="indicator", rare=0)
    design, named = features("y ~ log(x) * a + (1 | g)", gaps, options)
    assert_array_equal(named["x missing"], gaps.x.isna())
    assert_array_equal(named["a=(missing)"], gaps.a.isna())
    assert_allclose(named["log(x)"], np.log(gaps.x.fillna(gaps.x.mean())))
    assert design.effects.fixed == (True,) * len(named)


def test_a_missing_offset_makes_the_response_missing(gaps):
    design = learn_design("y ~ z + offset(x) + (1 | g)", gaps, ss.Columns(missing="drop"))
    y, _ = design.response(gaps)
    assert_array_equal(np.flatnonzero(np.isnan(y)), [3, 4, 9])
    assert np.isfinite(design.offsets(gaps)).all()


def test_marks_of_missing_values_count(table):
    marked = table.assign(x=table.x.mask(table.index < 3, -999.0))
    with pytest.raises(FormulaError, match=r"^3 of 240 rows"):
        learn_design("y ~ x + (1 | g)", marked, ss.Columns(na_values=["-999"]))
    options = ss.Columns(na_values=["-999"], missing="drop")
    _, named = features("y ~ log(x) + (1 | g)", marked, options)
    assert_array_equal(np.flatnonzero(np.isnan(named["log(x)"])), [0, 1, 2])


def test_a_level_that_was_not_fitted_is_the_mean_and_warned_of(table):
    design, _ = features("y ~ x * a + (0 + a | g)", table)
    with pytest.warns(UserWarning, match="'a' holds 'new', which was not in the fit"):
        X = encode_frame(table.assign(a="new"), design.columns).X
    new = dict(zip(design.columns.names, X.T, strict=True))
    for level in "uvw":
        assert_allclose(new[f"a={level}"], np.mean(table.a == level))


# ---- models --------------------------------------------------------------------------------------


def fitted(design, table):
    y, _ = design.response(table)
    model = ss.AdaptiveSpanRegressor(
        rank=0, slopes="diagonal", outliers=False, noise="shared", columns=design.columns,
        task_column=design.columns.task,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(table, y)


def test_a_model_of_a_formula_is_saved_and_predicts_from_any_table(table, tmp_path):
    model = fitted(learn_design(EVERYTHING, table, OPTIONS), table)
    expected = model.predict(table)
    model.save(tmp_path / "model.span")
    same = ss.load(tmp_path / "model.span")
    assert_array_equal(same.predict(table), expected)
    assert_allclose(same.predict(pl.from_pandas(table)), expected, rtol=1e-10)


def test_a_graph_makes_the_features_of_a_formula(table, tmp_path):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    data = table.assign(x=table.x.mask(table.index == 1), a=table.a.mask(table.index == 2))
    options = ss.Columns(season=["sold"], rare=0, missing="indicator")
    formula = EVERYTHING.replace("log(x)", "log(x) + I(x^2/3 - sqrt(x)) + exp(-z)")
    design = learn_design(formula, data, options)
    model = fitted(design, data)
    model.export_onnx(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    inputs = {
        "x": data.x.to_numpy(), "z": data.z.to_numpy(), "p": data.p.to_numpy(float),
        "p (category)": data.p.astype(str).to_numpy(object),
        "a": data.a.fillna("").to_numpy(object),
        "sold": (data.sold - pd.Timestamp("1970-01-01")).dt.days.to_numpy(float),
        "task": design.task_labels(data),
    }  # fmt: skip
    assert {each.name for each in session.get_inputs()} == set(inputs)
    (made,) = session.run(["prediction"], inputs)
    assert_allclose(made.ravel(), model.predict(data), rtol=1e-9)


def test_learned_columns_are_those_that_features_need(table):
    design = learn_design("y ~ factor(p) + x:p + (1 | g) + (1 | item)", table)
    encoding = design.columns.encoding
    kinds = [(c.column, isinstance(c, Factor)) for c in encoding.columns]
    assert kinds == [("x", False), ("p", False), ("p", True), ("item", True)]
    assert design.columns.column_of == (
        *("p",) * 3, "x:p", *("item",) * 5,
    )  # fmt: skip
    assert encoding.coded().names == encoding.names
    assert_array_equal(encoding.coded().groups, encoding.groups)
