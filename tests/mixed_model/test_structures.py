"""Covariance structures: which entries of D vary, and how they compare."""

import numpy as np
import pytest

import sharedspan as ss
from sharedspan.mixed_model.structures import STRUCTURES, variance_groups


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("intercept", [True, False])
def test_groups_of_a_structure_do_not_overlap_and_hold_no_empty_group(structure, intercept):
    groups = variance_groups(structure, 5, intercept, flat=False)
    entries = np.concatenate([[], *groups.entries])
    assert len(entries) == len(set(entries)) <= 5
    assert all(len(group) for group in groups.entries)
    assert all(tied < len(groups.entries) for tied in groups.tied)
    assert not len(variance_groups(structure, 5, intercept, flat=True).tied)


def test_a_richer_structure_is_at_least_as_likely(small):
    likelihoods = [
        ss.AdaptiveSpanRegressor(rank=0, slopes=structure, method="ml", outliers=False)
        .fit(small.X, small.y, task=small.task)
        .log_likelihood_
        for structure in STRUCTURES
    ]
    assert (np.diff(likelihoods) > -1e-6).all()
