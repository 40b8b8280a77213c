"""Covariance structures of the task effects: C = D + LL', relative to the noise variance.

D is diagonal, and a structure says which of its entries vary and which share one variance. L (p, k)
holds k directions along which coefficients vary together, with any structure of D.

To add a structure, name it in ``STRUCTURES`` and give its groups in ``variance_groups``:
``optimize.py`` fits whatever groups it gets, and ``search.py`` compares structures in this order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The values of ``AdaptiveSpanRegressor(slopes=...)``, from simple to rich.
STRUCTURES = ("zero", "none", "isotropic", "diagonal")


@dataclass(frozen=True)
class VarianceGroups:
    """Entries of D that share one variance.

    Attributes
    ----------
    entries : list of ndarray
        Positions in D, group by group; an entry in no group is zero.
    tied : ndarray of int
        Groups whose log variances have a normal prior around their common mean.
    """

    entries: list[np.ndarray]
    tied: np.ndarray


def variance_groups(structure: str, p: int, intercept: bool, flat: bool) -> VarianceGroups:
    """The groups of a structure of D (p, p); with a flat prior none of them are tied."""
    level, slopes = np.arange(int(intercept)), np.arange(int(intercept), p)
    entries: list[np.ndarray] = {
        "zero": [],
        "none": [level],
        "isotropic": [level, slopes],
        "diagonal": [level, *slopes[:, None]],
    }[structure]
    tied = slopes if structure == "diagonal" and not flat else slopes[:0]
    return VarianceGroups([group for group in entries if len(group)], tied)
