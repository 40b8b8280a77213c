"""``ss.anova``: models of formulas compared by their likelihoods."""

import numpy as np
import pandas as pd
import pytest
from reference import table

import sharedspan as ss


def crossed_counts():
    rng = np.random.default_rng(0)
    a, b = np.repeat(np.arange(12), 20), np.tile(np.arange(10), 24)
    rate = np.exp(1 + 0.5 * rng.standard_normal(12)[a] + 0.6 * rng.standard_normal(10)[b])
    return pd.DataFrame({"a": a, "b": b, "n": rng.poisson(rate)})


@pytest.mark.parametrize("left_out", ["plate", "sample"])
def test_each_of_two_crossed_factors_can_be_tested(left_out):
    rows = table("Penicillin")
    kept = {"plate": "sample", "sample": "plate"}[left_out]
    small = ss.mixed(f"diameter ~ 1 + (1 | {kept})", rows)
    large = ss.mixed("diameter ~ 1 + (1 | plate) + (1 | sample)", rows)
    result = ss.anova(small, large)
    assert result.p_value < 1e-10
    assert f"The variance of (Intercept) between levels of {left_out} is zero" in result.null


def test_a_crossed_factor_of_counts_can_be_tested():
    rows = crossed_counts()
    models = [ss.mixed(f"n ~ 1 + {each}", rows, family="poisson") for each in
              ("(1 | b)", "(1 | a) + (1 | b)")]  # fmt: skip
    assert ss.anova(*models).p_value < 1e-10


def test_what_is_not_two_models_is_refused_in_a_sentence():
    model = ss.mixed("diameter ~ 1 + (1 | plate)", table("Penicillin"))
    with pytest.raises(TypeError, match="compares two models, and 3 were given"):
        ss.anova(model, model, model)
    with pytest.raises(TypeError, match="one of the type int was given"):
        ss.anova(model, 5)
