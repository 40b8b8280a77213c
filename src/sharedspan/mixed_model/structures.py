"""Covariance structures of the task effects: C = D + LL', relative to the noise variance.

D is diagonal, and a structure says which of its entries vary and which share one variance. L (p, k)
holds k directions along which coefficients vary together, with any structure of D. The structure
"full" leaves C unrestricted: D = 0 and L is square.

The penalised coefficients of a spline form a variance group: where they vary they share one entry
of D, and they take no part in L. Their means in b share a prior variance of their own.

To add a structure, name it in ``STRUCTURES`` and give its groups in ``variance_groups``:
``optimize.py`` fits whatever groups it gets, and ``search.py`` compares structures in this order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# The values of ``AdaptiveSpanRegressor(slopes=...)``, from simple to rich.
STRUCTURES = ("zero", "none", "isotropic", "diagonal", "full")


@dataclass(frozen=True)
class Coefficients:
    """What is said of the p coefficients of a task before they are fitted.

    Attributes
    ----------
    varying : ndarray of bool of shape (p,)
        Whether a coefficient differs between tasks.
    groups : ndarray of int of shape (p,)
        The number of the variance group, from zero; -1 for none.
    """

    varying: np.ndarray
    groups: np.ndarray

    @classmethod
    def plain(cls, p: int) -> Coefficients:
        """Coefficients that all vary, none in a group."""
        return cls(np.ones(p, dtype=bool), np.full(p, -1))

    @property
    def directed(self) -> np.ndarray:
        """Whether a coefficient may vary along the directions of L, (p,)."""
        return self.varying & (self.groups < 0)

    @property
    def members(self) -> list[np.ndarray]:
        """The coefficients of each group."""
        return [np.flatnonzero(self.groups == i) for i in range(self.groups.max(initial=-1) + 1)]


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
    structure: str, coefficients: Coefficients, intercept: bool, flat: bool
) -> VarianceGroups:
    """The groups of a structure of D (p, p); with a flat prior none of them are tied."""
    level = np.flatnonzero(coefficients.directed[: int(intercept)])
    slopes = int(intercept) + np.flatnonzero(coefficients.directed[int(intercept) :])
    splines = [group for group in coefficients.members if coefficients.varying[group].any()]
    entries: list[np.ndarray] = {
        "zero": [],
        "none": [level],
        "isotropic": [level, slopes, *splines],
        "diagonal": [level, *slopes[:, None], *splines],
        "full": splines,
    }[structure]
    entries = [group for group in entries if len(group)]
    tied = [i for i, group in enumerate(entries) if group[0] in slopes]
    tied = tied if structure == "diagonal" and not flat else []
    return VarianceGroups(entries, np.array(tied, dtype=int))


def n_parameters(p: int, k: int) -> int:
    """Free numbers of L (p, k), which is determined up to a rotation of its columns."""
    return k * p - k * (k - 1) // 2
