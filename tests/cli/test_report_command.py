"""What ``sharedspan report`` prints and shows, and saved models on the user's own frame."""

import html
import json
import re

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

import sharedspan as ss
from sharedspan.cli import main


def good(*arguments):
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def text_of(path):
    page = re.sub(r"(?s)<(style|script)[^>]*>.*?</\1>", "", path.read_text("utf-8"))
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split()).replace("\u00a0", " ")


def shops(seed=0, n_shops=24):
    """A table of shops with labels such as 007, one of which responds to the price otherwise."""
    rng = np.random.default_rng(seed)
    shop = np.repeat(np.arange(n_shops), 20)
    price, promo = rng.uniform(5, 9, len(shop)), rng.choice(["none", "flyer"], len(shop))
    slope = -3 + 0.5 * rng.standard_normal(n_shops)
    slope[7] = 9.0
    sold = 60 + 5 * rng.standard_normal(n_shops)[shop] + slope[shop] * (price - 7)
    sold += 4 * (promo == "flyer") + rng.standard_normal(len(shop))
    labels = [f"{t:03d}" for t in shop]
    return pd.DataFrame({"shop": labels, "price": price, "promo": promo, "units sold": sold})


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A folder with the table and a model of it."""
    folder = tmp_path_factory.mktemp("shops")
    shops().to_csv(folder / "t.csv", index=False)
    columns = ("--task", "shop", "--target", "units sold")
    good("fit", folder / "t.csv", *columns, "-o", folder / "m.span")
    return folder


@pytest.mark.parametrize("with_rows", [True, False])
def test_the_report_prints_the_verdict_and_the_tasks_that_python_names(fitted, with_rows):
    table = shops()
    data = ("--data", fitted / "t.csv") if with_rows else ()
    report = ("report", fitted / "m.span", *data, "-o", fitted / "r.html")
    printed, result = good(*report), json.loads(good(*report, "--json"))
    model = ss.load(fitted / "m.span")
    diagnosis = ss.diagnose(model, *([table, table["units sold"]] if with_rows else []))
    assert diagnosis.outliers == ["007"]
    found = result["unusual_tasks"]
    assert found == [vars(one) | {"reason": one.reason} for one in diagnosis.misfits]
    assert found[0]["feature"] == "price"
    assert result["judged_from_model_alone"] is diagnosis.rows_would_tell is not with_rows
    share = r", with [\d.]+ % of the rows" if with_rows else ""
    assert re.search(rf"Tasks that do not fit \(1 of 24{share}\):", printed)
    assert re.search(r"^ +007 +.*most in price", printed, re.MULTILINE)
    assert ("judged from the model alone" in printed) is not with_rows
    assert printed.startswith(result["verdict"])
    assert result["outcome"] == ("gain" if with_rows else "unknown")
    assert printed.splitlines()[-1].startswith("Report: ")


def test_a_loaded_model_predicts_the_frame_that_the_user_has(fitted):
    table, model = shops(), ss.load(fitted / "m.span")
    expected = model.predict(table[["price", "promo"]], task=table["shop"])
    for frame in (table, table.drop(columns="units sold"), table[table.columns[::-1]]):
        np.testing.assert_array_equal(model.predict(frame), expected)
        np.testing.assert_array_equal(model.predict(frame, task=frame["shop"]), expected)
    low, high = model.predict_interval(table, level=0.9)
    assert ((low < expected) & (expected < high)).all()
    assert model.score(table, table["units sold"]) > 0.9
    other = model.predict(table, task=np.roll(table["shop"], 20))  # given labels come first
    assert not np.allclose(other, expected)


def test_a_frame_of_numbers_is_predicted_with_its_target_too(tmp_path):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((200, 3)), columns=["a", "b", "y"])
    table["g"] = np.arange(200) % 10
    table.to_csv(tmp_path / "t.csv", index=False)
    good("fit", tmp_path / "t.csv", "--task", "g", "--target", "y", "-o", tmp_path / "m.span")
    model = ss.load(tmp_path / "m.span")
    expected = model.predict(table[["a", "b"]], task=table["g"])
    pa = pytest.importorskip("pyarrow")
    for frame in (table, pa.Table.from_pandas(table)):
        np.testing.assert_array_equal(model.predict(frame), expected)
    assert ss.diagnose(model, table, table["y"]).n_tasks == 10


def test_the_call_of_the_report_is_that_of_the_summary(fitted, tmp_path):
    table = shops()
    table.loc[3, "price"] = np.nan
    table.to_csv(tmp_path / "t.csv", index=False)
    columns = ("--task", "shop", "--target", "units sold", "--missing", "drop")
    printed = good("fit", tmp_path / "t.csv", *columns, "-o", tmp_path / "m.span")
    assert "1 row with missing values was left out." in printed
    good("report", tmp_path / "m.span", "--data", tmp_path / "t.csv", "-o", tmp_path / "r.html")
    call = ss.load(tmp_path / "m.span").summary().call
    assert "missing='drop'" in call
    assert f"Call: {call}" in text_of(tmp_path / "r.html")
    assert "1 row with missing values was left out" in text_of(tmp_path / "r.html")


def test_rows_without_a_target_are_not_said_to_have_missing_values(tmp_path):
    table = shops()
    table.loc[:4, "price"] = np.nan
    table.loc[10:12, "units sold"] = np.nan
    table.to_csv(tmp_path / "t.csv", index=False)
    columns = ("--task", "shop", "--target", "units sold", "--missing", "indicator")
    printed = good("fit", tmp_path / "t.csv", *columns, "-o", tmp_path / "m.span")
    assert "3 rows without a value of units sold or shop were left out." in printed
    assert "missing values" not in printed
    printed = good("predict", tmp_path / "m.span", tmp_path / "t.csv", "-o", tmp_path / "p.csv")
    assert "480 rows of 24 tasks predicted." in printed
    assert "against units sold (of the 477 rows that have it): " in printed
    shops().to_csv(tmp_path / "whole.csv", index=False)
    printed = good("predict", tmp_path / "m.span", tmp_path / "whole.csv", "-o", tmp_path / "p.csv")
    assert "that have it" not in printed


def test_the_report_of_a_formula_shows_its_fixed_and_random_effects(tmp_path):
    rng = np.random.default_rng(0)
    n = 300
    table = pd.DataFrame({"brood": np.arange(n) % 60, "place": rng.integers(0, 12, n)})
    table["year"] = rng.standard_normal(n)
    level = rng.standard_normal(60)[table["brood"]] + rng.standard_normal(12)[table["place"]]
    table["ticks"] = 2 * table["year"] + level + rng.standard_normal(n)
    table["place"] = [f"p{t}" for t in table["place"]]
    table.to_csv(tmp_path / "t.csv", index=False)
    formula = "ticks ~ year + (1 | brood) + (1 | place)"
    good("fit", tmp_path / "t.csv", formula, "-o", tmp_path / "m.span")
    good("report", tmp_path / "m.span", "--data", tmp_path / "t.csv", "-o", tmp_path / "r.html")
    page, summary = text_of(tmp_path / "r.html"), ss.load(tmp_path / "m.span").summary()
    assert "Linear mixed model: predicts ticks from 2 fixed effects and random effects" in page
    assert "60 groups of brood and 12 groups of place with 300 rows" in page
    assert f"The formula {formula} {summary.in_words()}" in page
    assert "Between groups of place, the standard deviation is" in page
    assert " features 1 " in page
    assert "13 features" not in page
    assert "All tasks have the same slopes" not in page
    common = re.search(
        r'aria-label="(Common coefficients[^"]*)"', (tmp_path / "r.html").read_text()
    )
    assert "place" not in common[1]


def test_the_report_of_adapted_tasks_describes_their_own_rows(fitted, tmp_path):
    new = shops(seed=1)[:3].assign(shop="new")
    new.to_csv(tmp_path / "n.csv", index=False)
    good("adapt", fitted / "m.span", tmp_path / "n.csv", "-o", tmp_path / "a.span")
    for data in ((), ("--data", tmp_path / "n.csv")):
        good("report", tmp_path / "a.span", *data, "-o", tmp_path / "r.html")
        assert "flyer 5" not in text_of(tmp_path / "r.html")  # the share in the old table
    good("report", fitted / "m.span", "-o", tmp_path / "r.html")
    assert "flyer 5" in text_of(tmp_path / "r.html")
