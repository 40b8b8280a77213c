"""Covariance structures of the task effects: C = D + LL', relative to the noise variance.

D is diagonal, and a structure says which of its entries vary and which share one variance. L (p, k)
holds k directions along which coefficients vary together, with any structure of D. The structure
"full" leaves C unrestricted: D = 0 and L is square.

To add a structure, name it in ``STRUCTURES`` and give its groups in ``variance_groups``:
``optimize.py`` fits whatever groups it gets, and ``search.py`` compares structures in this order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The values of ``AdaptiveSpanRegressor(slopes=...)``, from simple to rich.
STRUCTURES = ("zero", "none", "isotropic", "diagonal", "full")


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

    def membership(self, p: int) -> np.ndarray:
        """One where an entry of D belongs to a group, (groups, p)."""
        member = np.zeros((len(self.entries), p))
        for i, group in enumerate(self.entries):
            member[i, group] = 1.0
        return member


def variance_groups(
    structure: str, p: int, intercept: bool, flat: bool, varying: np.ndarray | None = None
) -> VarianceGroups:
    """The groups of a structure of D (p, p); with a flat prior none of them are tied.

    ``varying`` (p,) says which entries differ between tasks at all.
    """
    level, slopes = np.arange(int(intercept)), np.arange(int(intercept), p)
    entries: list[np.ndarray] = {
        "zero": [],
        "none": [level],
        "isotropic": [level, slopes],
        "diagonal": [level, *slopes[:, None]],
        "full": [],
    }[structure]
    if varying is not None:
        entries = [group[varying[group]] for group in entries]
    entries = [group for group in entries if len(group)]
    tied = [i for i, group in enumerate(entries) if group[0] >= int(intercept)]
    tied = tied if structure == "diagonal" and not flat else []
    return VarianceGroups(entries, np.array(tied, dtype=int))


def n_parameters(p: int, k: int) -> int:
    """Free numbers of L (p, k), which is determined up to a rotation of its columns."""
    return k * p - k * (k - 1) // 2
