"""The diagnosis in notebooks."""

import re
from html import unescape

import numpy as np

import sharedspan as ss

HOSTILE = "<script>alert(1)</script>"


def test_the_html_of_a_diagnosis_has_all_that_its_text_says():
    sim = ss.simulate(
        n_tasks=40, n_features=6, rank=2, n_samples=40, outliers=0.1, random_state=0
    )  # fmt: skip
    label = np.array([f"{HOSTILE}{t}" for t in range(40)])
    model = ss.AdaptiveSpanRegressor().fit(sim.X, sim.y, task=label[sim.task])
    found = ss.diagnose(model, sim.X, sim.y, label[sim.task])
    assert found.misfits
    page = found._repr_html_()
    assert "<script>" not in page
    text = unescape(re.sub(r"<style>.*?</style>|<[^>]*>", "\n", page, flags=re.DOTALL))
    lines = text.split("\n")
    assert "AdaptiveSpanRegressor: 40 tasks, 6 features" in lines
    for row in found.numbers():
        assert set(row) <= set(lines)
    assert set(found.advice) <= set(lines)
    for misfit in found.misfits:
        assert f"{misfit.value:.3g}" in lines
        assert misfit.task in lines


def test_a_diagnosis_of_one_task_and_feature_counts_in_the_singular():
    rng = np.random.default_rng(0)
    model = ss.PooledRegressor().fit(
        rng.standard_normal((30, 1)), rng.standard_normal(30), ["a"] * 30
    )
    assert str(ss.diagnose(model)).startswith("PooledRegressor: 1 task, 1 feature")
    assert "1 task, 1 feature<" in ss.diagnose(model)._repr_html_()
