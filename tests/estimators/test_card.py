"""The card of a fitted model in notebooks."""

import re
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import sharedspan as ss
from sharedspan.estimators import ESTIMATORS, inference
from sharedspan.inference.summary_markup import sections_html
from sharedspan.inference.summary_tables import Lines, SummaryTable

GOLDEN = Path(__file__).parents[1] / "golden"
HOSTILE = "<script>alert(1)</script>\u202e$x$"


def card_text(model):
    """The text of a card, one line for each of its parts."""
    page = re.sub(r"<style>.*?</style>", "", model._repr_html_(), flags=re.DOTALL)
    return unescape(re.sub(r"<[^>]*>", "", page)).strip()


def test_a_column_of_sentences_is_told_from_numbers_in_html():
    table = SummaryTable("", ("measure", "value", "words"), (("a<b", "1", "x & y"),), texts=1)
    page = sections_html([Lines("", (("rank", "2"),)), table])
    assert '<td>1</td><td class="text"><bdi>x &amp; y</bdi></td>' in page
    assert '<th scope="row" class="name"><bdi>a&lt;b</bdi></th>' in page
    assert '<p class="fact"><b>rank:</b> <bdi>2</bdi></p>' in page


@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_card_of_every_estimator_says_what_it_is_and_its_sizes(name, small):
    model = getattr(ss, name)()
    y = small.y > 0 if name.endswith("Classifier") else small.y
    assert "sharedspan-summary" not in model._repr_html_()  # scikit-learn's diagram
    model.fit(small.X, y, task=small.task)
    text = card_text(model)
    for words in (name, f"{len(y):,} rows", "40 tasks", "8 features"):
        assert words in text
    assert repr(model).startswith(f"{name}(")
    assert model._repr_mimebundle_()["text/plain"] == repr(model)
    assert model._repr_mimebundle_()["text/html"] == model._repr_html_()


def test_the_display_setting_of_scikit_learn_is_respected(small):
    model = ss.PooledRegressor().fit(small.X, small.y, small.task)
    with sklearn.config_context(display="text"):
        assert not hasattr(model, "_repr_html_")
        assert model._repr_mimebundle_() == {"text/plain": repr(model)}


def test_the_card_says_rank_structure_noise_and_gain_in_words(small):
    span = ss.SharedSpanRegressor(random_state=0).fit(small.X, small.y, small.task)
    text = card_text(span)
    assert "2 shared directions of 8 features" in text
    assert "chosen by the error on held-out rows" in text
    assert "standard deviation" in text
    adaptive = ss.AdaptiveSpanRegressor().fit(small.X, small.y, small.task)
    assert "above that with the same slopes in all tasks" in card_text(adaptive)
    assert "same slopes" in card_text(ss.PooledRegressor().fit(small.X, small.y, small.task))


def test_the_card_warns_of_what_went_wrong(small):
    model = ss.SharedSpanRegressor(rank=2, max_iter=1, tol=1e-12, solver="tpgd", random_state=0)
    with pytest.warns(sklearn.exceptions.ConvergenceWarning):
        model.fit(small.X, small.y, small.task)
    assert "did not converge" in card_text(model)
    gaps = small.X.copy()
    gaps[:3, 0] = np.nan
    columns = ss.Columns(missing="drop")
    kept = ss.PooledRegressor(columns=columns).fit(gaps, small.y, small.task)
    assert "3 rows" in card_text(kept)
    adaptive = ss.AdaptiveSpanRegressor(rank=2).fit(small.X, small.y, small.task)
    adaptive.outlier_probability_ = np.where(np.arange(40) == 17, 0.9, 0.1)
    assert "17" in card_text(adaptive).partition("Outlier")[2]


def test_the_card_of_more_than_two_classes_names_them(small):
    code = np.digitize(small.y, np.quantile(small.y, [0.3, 0.7]))
    classes = np.array(["low", "mid", "high"])[code]
    text = card_text(ss.SharedSpanClassifier(rank=1).fit(small.X, classes, small.task))
    assert "high, low and mid" in text
    assert f"{len(classes):,} rows" in text


def test_names_on_the_card_are_escaped(small):
    frame = pd.DataFrame(small.X, columns=[f"{HOSTILE}{j}" for j in range(8)])
    frame[HOSTILE] = [f"{HOSTILE}{t}" for t in small.task]
    model = ss.AdaptiveSpanRegressor(rank=2, task_column=HOSTILE).fit(frame, small.y)
    model.outlier_probability_ = np.full(40, 0.9)
    page = model._repr_html_()
    assert "<script>" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;" in page


def test_the_card_of_a_formula_shows_it_and_infers_nothing(small, monkeypatch, tmp_path):
    table = pd.DataFrame(small.X[:, :2], columns=["a", "b"]).assign(y=small.y, g=small.task)
    for formula in ("y ~ a + b + (1 + a | g)", "y ~ a + (1 | g)"):
        model = ss.mixed(formula, table)
        monkeypatch.setattr(inference, "_infer", None)
        text = card_text(model)
        assert formula in text
        assert "REML" in text
        assert "40 tasks (g)" in text
        monkeypatch.undo()
        model.save(tmp_path / "model.span")
        assert formula in card_text(ss.load(tmp_path / "model.span"))


@pytest.mark.parametrize("family", ["binomial", "poisson", "huber"])
def test_the_card_names_the_family(family, small):
    y = {"binomial": small.y > 0, "poisson": np.round(np.exp(small.y / 4))}.get(family, small.y)
    model = ss.AdaptiveSpanRegressor(family=family, rank=2).fit(small.X, y, small.task)
    assert family in card_text(model)


def test_a_loaded_model_has_the_same_card_and_a_pipeline_its_diagram(small, tmp_path):
    model = ss.AdaptiveSpanRegressor().fit(small.X, small.y, small.task)
    model.save(tmp_path / "model.span")
    assert ss.load(tmp_path / "model.span")._repr_html_() == model._repr_html_()
    assert "StandardScaler" in make_pipeline(StandardScaler(), model)._repr_html_()


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.span")), ids=lambda path: path.stem)
def test_the_card_of_every_golden_model_is_shown(path):
    model = ss.load(path)
    assert type(model).__name__ in card_text(model)
