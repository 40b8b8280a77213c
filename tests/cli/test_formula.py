"""``sharedspan fit TABLE FORMULA``."""

import json
import shlex

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import sharedspan as ss
from sharedspan.cli import main


def run(*arguments):
    return CliRunner().invoke(main, [str(each) for each in arguments])


@pytest.fixture
def school(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    g, x = np.repeat(np.arange(20), 15), rng.standard_normal(300)
    u = rng.standard_normal((20, 2)) * [1.0, 0.5]
    table = pd.DataFrame({"school": g + 100, "ses": x, "sex": np.where(x > 0.3, "F", "M")})
    table["math"] = 1 + x + u[g, 0] + u[g, 1] * x + rng.standard_normal(300)
    table["passed"] = np.where(table["math"] > 1, "pass", "fail")
    table.to_csv("school.csv", index=False)
    return table


FORMULA = "math ~ ses + sex + (1 + ses | school)"


def test_a_formula_is_fitted_and_its_summary_is_printed(school):
    done = run("fit", "school.csv", FORMULA, "-o", "m.span")
    assert done.exit_code == 0, done.output
    model = ss.mixed(FORMULA, school)
    assert str(model.summary()) in done.stdout
    loaded = ss.load("m.span")
    np.testing.assert_array_equal(loaded.predict(school), model.predict(school))
    following = next(line for line in done.stdout.splitlines() if line.startswith("Next: "))
    again = run(*shlex.split(following.removeprefix("Next: "))[1:])
    assert again.exit_code == 0, again.output


def test_rows_of_files_are_predicted_by_the_columns_of_the_formula(school):
    run("fit", "school.csv", FORMULA, "--ml", "-o", "m.span")
    done = run("predict", "m.span", "school.csv", "-o", "p.csv")
    assert done.exit_code == 0, done.output
    expected = ss.mixed(FORMULA, school, reml=False).predict(school)
    np.testing.assert_allclose(pd.read_csv("p.csv")["prediction"], expected, rtol=1e-12)


def test_classes_in_words_are_fitted_by_a_family(school):
    formula = "passed ~ ses + (1 | school)"
    done = run("fit", "school.csv", formula, "--family", "binomial", "-o", "m.span", "--json")
    assert done.exit_code == 0, done.output
    about = json.loads(done.stdout)
    assert (about["family"], about["method"], about["n_tasks"]) == ("binomial", "ml", 20)
    assert about["fixed"]["ses"]["estimate"] > 0
    following = run("fit", "school.csv", formula, "--family", "binomial", "-o", "m.span").stdout
    assert "Next: sharedspan predict m.span school.csv -o m.csv" in following


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["school.csv", FORMULA, "--rank", "2"], "--rank does not go with a formula"),
        (["school.csv", FORMULA, "--task", "school"], "--task does not go with a formula"),
        ([FORMULA], "Give a table before the formula"),
        (["school.csv", "math ~ sess + (1 | school)"], "Did you mean 'ses'?"),
        (["school.csv", "math ~ ses + (1 | school"], "The formula"),
        (["school.csv"], "Missing option '--task'"),
        (["school.csv", "math ~ ses"], "write + (1 | group)"),
        (["math ~ ses", "school.csv"], "write + (1 | group)"),
        (["school.csv", FORMULA, "math ~ 1 + (1 | school)"], "Give one formula"),
        (["~/school.csv"], "Missing option '--task'"),
        (["school.csv", "--task", "school", "--target", "math", "--ml"], "fitted by --ml"),
    ],
)
def test_mistakes_are_told_in_one_line(school, arguments, words):
    done = run("fit", *arguments, "-o", "m.span")
    assert done.exit_code == 2, done.output
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("column", ["math", "ses"])
def test_decimal_commas_of_a_formula_are_read_as_numbers(school, column):
    """The response is a number, and so is a column in arithmetic, in the fit and in predictions."""
    formula = "math ~ I(ses^2) + ses + (1 | school)"
    expected = ss.mixed(formula, school)
    marked = school.assign(**{column: [f"{v:.17g}".replace(".", ",") for v in school[column]]})
    marked.to_csv("commas.csv", sep=";", index=False)
    done = run("fit", "commas.csv", formula, "--decimal", ",", "-o", "m.span")
    assert done.exit_code == 0, done.output
    np.testing.assert_allclose(ss.load("m.span").mean_coef_, expected.mean_coef_, rtol=1e-9)
    done = run("predict", "m.span", "commas.csv", "-o", "p.csv")
    assert done.exit_code == 0, done.output
    predicted = pd.read_csv("p.csv")["prediction"]
    np.testing.assert_allclose(predicted, expected.predict(school), rtol=1e-9)


@pytest.mark.parametrize("arguments", [("school.csv", FORMULA), (FORMULA, "school.csv")])
def test_a_formula_without_a_place_for_the_model_prints_the_summary(school, arguments, tmp_path):
    before = set(tmp_path.iterdir())
    done = run("fit", *arguments)
    assert done.exit_code == 0, done.output
    assert str(ss.mixed(FORMULA, school).summary()) in done.stdout
    assert "add -o, such as -o model.span, to save it" in done.stdout
    assert "Next: " not in done.stdout
    assert set(tmp_path.iterdir()) == before
    about = json.loads(run("fit", *arguments, "--json").stdout)
    assert about["out"] is None


def test_without_a_formula_a_fit_needs_a_place_for_the_model(school):
    done = run("fit", "school.csv", "--task", "school", "--target", "math")
    assert done.exit_code == 2
    assert "Missing option '-o'" in done.stderr


def test_a_file_whose_name_has_a_tilde_is_a_table(school):
    school[["school", "ses", "math"]].to_csv("old~1.csv", index=False)
    for table in ("old~1.csv", "old~*.csv"):
        done = run("fit", table, "--task", "school", "--target", "math", "-o", "m.span")
        assert done.exit_code == 0, done.output


def test_a_report_says_what_it_needs_of_a_response_of_two_columns(school):
    counts = school.assign(won=lambda d: (d.math > 1) * 3, lost=2)
    counts.to_csv("counts.csv", index=False)
    formula = "cbind(won, lost) ~ ses + (1 | school)"
    run("fit", "counts.csv", formula, "--family", "binomial", "-o", "m.span")
    done = run("report", "m.span", "--data", "counts.csv", "-o", "m.html")
    assert done.exit_code == 2
    assert "cbind(won, lost), is an expression and not a column of a table" in done.stderr
    assert "leave --data out" in done.stderr
    assert run("report", "m.span", "-o", "m.html").exit_code == 0


def test_a_report_of_a_table_and_a_formula_says_to_fit_first(school):
    done = run("report", "school.csv", FORMULA, "-o", "m.html")
    assert done.exit_code == 2
    assert f"sharedspan fit school.csv '{FORMULA}' -o model.span" in done.stderr
    assert done.stderr.count("\n") == 1


def test_all_that_a_formula_needs_to_read_a_table_is_told_at_once(school):
    school = school.assign(ses=[f"{v:.2f}".replace(".", ",") for v in school.ses])
    school.loc[3, "math"] = np.nan
    school.to_csv("gaps.csv", sep=";", index=False)
    done = run("fit", "gaps.csv", "math ~ ses + (1 | school)")
    assert done.exit_code == 2
    assert "add --decimal ','" in done.stderr
    assert "1 of" in done.stderr
    assert "(--missing drop, or" in done.stderr
