"""Covariance structures of the task effects: C = D + LL', relative to the noise variance.

D is diagonal, and a structure says which of its entries vary and which share one variance. L (p, k)
holds k directions along which coefficients vary together, with any structure of D. The structure
"full" leaves C unrestricted: D = 0 and L is square.

A formula names the blocks of coefficients that vary together (``Effects``): those of a full block
have a square part of L to themselves, those of a diagonal one an entry of D each, and those of a
block of low rank share that many columns of L.

The penalised coefficients of a spline form a variance group: where they vary they share one entry
of D, and they take no part in L. Their means in b share a prior variance of their own.

To add a structure, name it in ``STRUCTURES`` and give its groups in ``variance_groups``:
``optimize.py`` fits whatever groups it gets, and ``search.py`` compares structures in this order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

# The values of ``AdaptiveSpanRegressor(slopes=...)``, from simple to rich. Beside them there is
# "given", for the blocks that a formula names.
STRUCTURES = ("zero", "none", "isotropic", "diagonal", "full")


BLOCK_KINDS = ("full", "diagonal", "low_rank")


@dataclass(frozen=True)
class Block:
    """Coefficients of a task that vary together, as one random-effects term says it.

    Attributes
    ----------
    kind : {"full", "diagonal", "low_rank"}
        "full" leaves their covariance unrestricted, "diagonal" makes them independent, and with
        "low_rank" they vary along ``rank`` directions.
    members : tuple of int
        Numbers of the coefficients: 0 is the intercept, 1 and above are features in their order.
    rank : int, optional
        Of a block of low rank; None to choose it by the likelihood.
    """

    kind: str
    members: tuple[int, ...]
    rank: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in BLOCK_KINDS:
            raise ValueError(f"A block of the kind {self.kind!r} is unknown: use {BLOCK_KINDS}.")
        largest = len(self.members)
        if self.kind == "low_rank" and self.rank is not None and not 1 <= self.rank <= largest:
            raise ValueError(
                f"rr(...) has rank {self.rank}, but {largest} coefficients: give a rank from 1 to "
                f"{largest}, or leave it out."
            )

    @property
    def n_columns(self) -> int:
        """Columns of L that the block has to itself."""
        if self.kind == "low_rank":
            return self.rank or 0
        return len(self.members) if self.kind == "full" else 0

    def shifted(self, by: int) -> Block:
        """The block with other numbers of its coefficients."""
        return replace(self, members=tuple(i + by for i in self.members))

    @property
    def n_parameters(self) -> int:
        """Free numbers of the covariance of the block."""
        m = len(self.members)
        return m if self.kind == "diagonal" else n_parameters(m, self.n_columns)


@dataclass(frozen=True)
class Effects:
    """What a formula says of the coefficients: which are fixed effects, and how they vary.

    Attributes
    ----------
    fixed : tuple of bool
        Whether the mean over tasks of a coefficient is estimated, (1 + d,), the intercept first;
        the others have a mean of zero.
    blocks : tuple of Block
        How the coefficients vary between tasks; those in no block do not.
    formula : str
    outer : tuple of Block
        How they vary between the outer groups, if tasks are nested groups.
    weighted_noise : bool
        Whether sample weights divide the noise variance of their rows, as the weights of lme4 do;
        otherwise they count repetitions of the rows.
    weights : str
        What the sample weights are, such as the name of a column; empty without any.
    """

    fixed: tuple[bool, ...]
    blocks: tuple[Block, ...]
    formula: str = ""
    outer: tuple[Block, ...] = ()
    weighted_noise: bool = False
    weights: str = ""

    def __post_init__(self) -> None:
        for blocks in (self.blocks, self.outer):
            members = [i for block in blocks for i in block.members]
            if len(set(members)) < len(members):
                raise ValueError("A coefficient is in two blocks.")
            if members and not 0 <= min(members) <= max(members) < len(self.fixed):
                raise ValueError(f"Coefficients are numbered from 0 to {len(self.fixed) - 1}.")

    @property
    def has_intercept(self) -> bool:
        """Whether there is an intercept, in the mean or between tasks."""
        return self.fixed[0] or any(0 in block.members for block in (*self.blocks, *self.outer))


@dataclass(frozen=True)
class Coefficients:
    """What is said of the p coefficients of a task before they are fitted.

    Attributes
    ----------
    varying : ndarray of bool of shape (p,)
        Whether a coefficient differs between tasks.
    groups : ndarray of int of shape (p,)
        The number of the variance group, from zero; -1 for none.
    fixed : ndarray of bool of shape (p,)
        Whether the mean over tasks of a coefficient is estimated; the others have a mean of zero.
    blocks : tuple of Block
        How coefficients vary, if the structure is "given".
    outer : tuple of Block
        How they vary between outer groups of tasks, if there are such.
    """

    varying: np.ndarray
    groups: np.ndarray
    fixed: np.ndarray
    blocks: tuple[Block, ...] = ()
    outer: tuple[Block, ...] = ()

    @classmethod
    def plain(cls, p: int) -> Coefficients:
        """Coefficients that all vary, none in a group."""
        return cls(np.ones(p, dtype=bool), np.full(p, -1), np.ones(p, dtype=bool))

    @classmethod
    def of_effects(cls, effects: Effects, groups: np.ndarray, intercept: bool) -> Coefficients:
        """Those that a formula names; without an intercept the first coefficient is a feature."""
        first = int(not intercept)
        blocks = tuple(block.shifted(-first) for block in effects.blocks)
        outer = tuple(block.shifted(-first) for block in effects.outer)
        varying = np.zeros(len(groups), dtype=bool)
        varying[[i for block in blocks for i in block.members]] = True
        return cls(varying, groups, np.array(effects.fixed[first:]), blocks, outer)

    @property
    def shiftable(self) -> np.ndarray:
        """Whether the origin of a feature may be moved without changing the model, (p,).

        It may if an intercept takes the shift up: the common one for the mean of the coefficient,
        and one in the same block for its variation. No intercept takes up that of a variance group,
        whose means are random.
        """
        free = np.ones(len(self.varying), dtype=bool)
        for block in (*self.blocks, *self.outer):
            if 0 not in block.members or block.kind == "diagonal":
                free[list(block.members)] = False
        return free & self.fixed[0] & (self.groups < 0)

    @property
    def directed(self) -> np.ndarray:
        """Whether a coefficient may vary along the directions of L, (p,)."""
        return self.varying & (self.groups < 0)

    @property
    def columns(self) -> Iterator[tuple[Block, slice]]:
        """Blocks that have columns of L, and which; those of low rank come first."""
        begin = 0
        for block in sorted(self.blocks, key=lambda block: block.kind != "low_rank"):
            if block.n_columns:
                yield block, slice(begin, begin + block.n_columns)
                begin += block.n_columns

    def free_loadings(self, structure: str, k: int) -> np.ndarray:
        """Which entries of L (p, k) may differ from zero."""
        if structure != "given":
            return np.repeat(self.directed[:, None], k, axis=1)
        free = np.zeros((len(self.varying), k), dtype=bool)
        for block, columns in self.columns:
            free[list(block.members), columns] = True
        return free

    @property
    def n_directions(self) -> int:
        """Columns of L that belong to blocks of low rank."""
        return sum(block.n_columns for block in self.blocks if block.kind == "low_rank")

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
        "given": [
            np.array([i])
            for block in coefficients.blocks
            if block.kind == "diagonal"
            for i in block.members
        ],
    }[structure]
    entries = [group for group in entries if len(group)]
    tied = [i for i, group in enumerate(entries) if group[0] in slopes]
    tied = tied if structure == "diagonal" and not flat else []
    return VarianceGroups(entries, np.array(tied, dtype=int))


def n_parameters(p: int, k: int) -> int:
    """Free numbers of L (p, k), which is determined up to a rotation of its columns."""
    return k * p - k * (k - 1) // 2
