"""Factors F of the covariances C = FF' of one level of nested groups, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharedspan.mixed_model.objective import free_entries, triangular_factor
from sharedspan.mixed_model.structures import Block
from sharedspan.mixed_model.terms import Covariance

NEGLIGIBLE_STD = 1e-3  # of an effect over the noise, if it adds nothing to the likelihood


@dataclass(frozen=True)
class FactorEntries:
    """Entries of a factor F (p, k) of a covariance C = FF' that are fitted."""

    factor: np.ndarray  # (p, k)
    rows: np.ndarray  # (q,)
    columns: np.ndarray  # (q,)

    def changes(self, scores: np.ndarray) -> np.ndarray:
        """The derivatives of C by each of the entries times scores (m, p), (m, q, p)."""
        along, each = scores @ self.factor, np.arange(len(self.rows))
        X = scores[:, self.rows, None] * self.factor.T[self.columns]
        X[:, each, self.rows] += along[:, self.columns]
        return X


class BlockFactors:
    """The factor F (p, k) of the covariance of one level: some columns for each block.

    Parameters
    ----------
    blocks : tuple of Block
    p : int
    triangular : bool
        Whether only the lower triangle of each block is free, which suffices for any covariance.
        By default all of it is: a rotation of the columns changes nothing, and there is no
        covariance near which the entries would be a bad coordinate system.
    """

    def __init__(self, blocks: tuple[Block, ...], p: int, *, triangular: bool = False) -> None:
        for block in blocks:
            if block.kind == "low_rank" and block.rank is None:
                raise ValueError(
                    "rr(...) has no rank, but the ranks of nested groups are not selected: write "
                    "the rank, as in rr(1 + x | district/school, 1)."
                )
        self.blocks, self.p = blocks, p
        self.slices: list[slice] = []
        rows, columns, k = [np.zeros(0, dtype=int)], [np.zeros(0, dtype=int)], 0
        for block in blocks:
            m = len(block.members)
            i, j = free_entries(block.kind, m, block.rank or 0)
            if not triangular and block.kind != "diagonal":
                i, j = np.divmod(np.arange(m * block.n_columns), block.n_columns)
            rows.append(np.array(block.members, dtype=int)[i])
            columns.append(k + j)
            self.slices.append(slice(k, k + (block.n_columns or m)))
            k = self.slices[-1].stop
        self.k, self.rows, self.columns = k, np.concatenate(rows), np.concatenate(columns)

    def matrix(self, entries: np.ndarray) -> np.ndarray:
        """F (p, k) of its free entries (q,)."""
        F = np.zeros((self.p, self.k))
        F[self.rows, self.columns] = entries
        return F

    def entries(self, F: np.ndarray) -> np.ndarray:
        """The free entries (q,) of F (p, k)."""
        return F[self.rows, self.columns]

    def independent(self, std: float) -> np.ndarray:
        """F of independent effects of one standard deviation."""
        F = np.zeros((self.p, self.k))
        for block, columns in zip(self.blocks, self.slices, strict=True):
            k = columns.stop - columns.start
            start = np.eye(len(block.members), k)
            if block.kind == "low_rank":
                start += 0.1  # each direction has a share in every effect
            F[list(block.members), columns] = std * start
        return F

    def factored(self, root: np.ndarray) -> np.ndarray:
        """F (p, k), triangular, of any root R (p, c) of the covariance RR'."""
        F = np.zeros((self.p, self.k))
        for block, columns in zip(self.blocks, self.slices, strict=True):
            members = list(block.members)
            F[members, columns] = triangular_factor(root[members], block.kind, block.rank or 0)
        return F

    def without_negligible(self, F: np.ndarray) -> np.ndarray:
        """F with effects of very small variance, alone or in some direction, set to zero."""
        F = F.copy()
        for block, columns in zip(self.blocks, self.slices, strict=True):
            members = list(block.members)
            U, s, V = np.linalg.svd(F[members, columns], full_matrices=False)
            F[members, columns] = (U * np.where(s < NEGLIGIBLE_STD, 0.0, s)) @ V
        return F

    def covariance(self, F: np.ndarray) -> Covariance:
        """C = FF'."""
        variances, shared = np.zeros(self.p), [np.zeros((self.p, 0))]
        for block, columns in zip(self.blocks, self.slices, strict=True):
            members = list(block.members)
            if block.kind == "diagonal":
                variances[members] = np.diag(F[members, columns]) ** 2
            else:
                shared.append(F[:, columns])
        return Covariance(variances, np.hstack(shared))

    def gradient(self, by_covariance: np.ndarray, F: np.ndarray) -> np.ndarray:
        """The gradient in the free entries (q,), given that in C (p, p)."""
        return self.entries(2 * by_covariance @ F)

    def curvature(self, by_covariance: np.ndarray) -> np.ndarray:
        """What the gradient in C (p, p) adds to the information on the free entries, (q, q).

        The second derivatives of FF' act column by column. Only directions in which the likelihood
        falls are counted, so that the information remains positive.
        """
        bent = np.zeros((self.p, self.p))
        for block in self.blocks:
            inside = np.ix_(block.members, block.members)
            G = by_covariance[inside]
            if block.kind == "diagonal":
                G = np.diag(np.diag(G))
            values, axes = np.linalg.eigh(G)
            bent[inside] = (axes * np.maximum(-2 * values, 0.0)) @ axes.T
        same = self.columns[:, None] == self.columns
        return bent[self.rows[:, None], self.rows] * same

    def ascent(self, by_covariance: np.ndarray, total: np.ndarray) -> tuple[float, np.ndarray]:
        """The slope and the direction l (p,) in which more variance would raise the likelihood.

        Its length is such that l' ``total`` l is about one, with ``total`` (p, p) the sum of K. It
        is the steepest of all blocks, those of low rank apart.
        """
        best, direction = 0.0, np.zeros(self.p)
        for block in self.blocks:
            members = list(block.members)
            scale = 1 / np.sqrt(np.maximum(np.diag(total)[members], np.finfo(float).tiny))
            G = by_covariance[np.ix_(members, members)] * scale[:, None] * scale
            if block.kind == "diagonal":
                G = np.diag(np.diag(G))
            values, axes = np.linalg.eigh(G)
            if block.kind != "low_rank" and values[-1] > best:
                best, direction = float(values[-1]), np.zeros(self.p)
                direction[members] = scale * axes[:, -1]
        return best, direction
