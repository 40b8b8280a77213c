"""Results agree with software that shares no code with the library."""

import pytest

pytest.importorskip("statsmodels")
pytest.importorskip("mpmath")

from benchmarks.trust import oracles


@pytest.mark.parametrize("claim", oracles.COMPARISONS)
def test_results_are_those_of_software_that_is_not_ours(claim):
    assert oracles.differences(claim, 0.05, seed=1).max() <= oracles.COMPARISONS[claim][2]


def test_published_values_of_mixed_models_are_ours_to_their_last_digit():
    line = oracles.published_line()
    assert line.holds, line.figure
