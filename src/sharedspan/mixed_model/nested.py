"""The marginal likelihood of nested groups, from the sufficient statistics of the tasks.

    y_s = Z_s (b + u_r + u_s) + noise,     u_s ~ N(0, s2 C_s),     u_r ~ N(0, s2 C_r)

for the rows of a task s (a school) in an outer group r (a district). Once u_s is integrated out,
``likelihood.py`` has the terms of a school at its anchor a_s: K_s, h_s, log |S_s|, and the squares
q_s. All schools of a district have v = b + u_r in common, so that their squares are

    sum_s (y_s - Z_s v)' S_s^-1 (y_s - Z_s v) = Q_r + (a_r - v)' (H_r (a_r - v) + 2 g_r),
    H_r = sum K_s,     g_r = sum (K_s (a_s - a_r) + h_s),
    Q_r = sum (q_s + (a_s - a_r)' (K_s (a_s - a_r) + 2 h_s))

with an anchor a_r of the district. That is its least squares: so only what the anchor leaves of the
responses is ever subtracted, and digits survive. The sums have the form of a Gram, a score and
squares, and integrating u_r out repeats the formulas of a task, with B_r = (I + H_r C_r)^-1:

    K_r = B_r H_r,     h_r = B_r g_r,     q_r = Q_r - g_r' C_r h_r,
    log |S_r| = sum log |S_s| - log |B_r|,     b = (precision + sum K_r)^-1 sum (K_r a_r + h_r).

K_r is a product, not a difference, and so has its digits for any C_r. The scores give the
posterior means of both levels, and M_r is the variance of u_r given b, over s2:

    e_r = K_r (a_r - b) + h_r,              u_r = C_r e_r,     M_r = C_r B_r,
    e_s = K_s (a_s - b - u_r) + h_s,        u_s = C_s e_s.

Derivatives. A change dC_s changes the covariance of all rows, over s2, by the blocks Z_s dC_s Z_s'.
With W_r = M_r + B_r' V B_r, V what is integrated out of b, over s2 (all of it under REML), the
gradients of the log likelihood are

    by C_r:   1/2 sum_r (e_r e_r' / s2 - K_r + K_r V K_r)
    by C_s:   1/2 sum_s (e_s e_s' / s2 - K_s + K_s W_r K_s)

and its average information is 1/2 w_i' P w_j / s2. P is the inverse of the covariance of all rows,
less what b takes up, and w_i is the change of that covariance times the weighted residuals P y. In
school s that is w_i = Z_s x_i with x_i = dC_s e_s, or dC_r e_r, or the entries of b in a variance
group. With Y_r = sum K_s x_i

    w_i' P w_j = sum_s x_i' K_s x_j - sum_r Y_ri' M_r Y_rj - U_i' (precision + sum K_r)^-1 U_j,
    U_i = sum_r B_r Y_ri.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sharedspan.mixed_model.likelihood import (
    SMALLEST_NOISE,
    MixedTasks,
    added,
    inverse_precision,
)
from sharedspan.mixed_model.nested_factors import FactorEntries
from sharedspan.mixed_model.terms import Covariance, TaskTerms

ANCHOR_RIDGE = 1e-9  # of the least squares of an outer group, relative to its squares


@dataclass(frozen=True)
class OuterSums:
    """What the tasks of each outer group r contribute, their own effects integrated out."""

    H: np.ndarray  # (R, p, p)
    g: np.ndarray  # (R, p)
    squares: np.ndarray  # (R,) Q_r
    log_determinants: np.ndarray  # (R,) sums of log |S_s|


@dataclass(frozen=True)
class NestedEvidence:
    """The log marginal likelihood at the covariances of both levels."""

    outer: Covariance
    inner: Covariance
    precision: np.ndarray  # (p,) of the prior on b, relative; zero is flat
    value: float
    noise: float  # s2
    counted: float  # rows, less the coefficients that REML integrates out
    squares: float  # weighted squares of all residuals, which s2 multiplies
    mean: np.ndarray  # (p,) b
    mean_covariance: np.ndarray  # (p, p) of b, over s2
    integrated: np.ndarray  # (p, p) V, of what is integrated out of b, over s2
    H: np.ndarray  # (R, p, p)
    B: np.ndarray  # (R, p, p)
    scores: np.ndarray  # (R, p) e_r

    @property
    def K(self) -> np.ndarray:
        """K_r, (R, p, p)."""
        K = self.B @ self.H
        return 0.5 * (K + K.transpose(0, 2, 1))

    @property
    def within(self) -> np.ndarray:
        """M_r, variances of u_r given b, over s2, (R, p, p)."""
        M = self.outer.matrix @ self.B
        return 0.5 * (M + M.transpose(0, 2, 1))

    @property
    def outer_effects(self) -> np.ndarray:
        """Posterior means of u_r, (R, p)."""
        return self.scores @ self.outer.matrix

    def variances(self, mean_covariance: np.ndarray) -> np.ndarray:
        """Variances of b + u_r, (R, p, p), if those of b are ``mean_covariance``; over s2."""
        return self.within + self.B.transpose(0, 2, 1) @ mean_covariance @ self.B


@dataclass(frozen=True)
class NestedDerivatives:
    """Derivatives of the log likelihood by the covariances, with s2 at its best value.

    The average information is on the entries of the outer factor, those of the inner one, and the
    logarithms of the prior variances of b's groups.
    """

    outer: np.ndarray  # (p, p) by C_r, symmetric
    inner: np.ndarray  # (p, p) by C_s, symmetric
    prior: np.ndarray  # (m,) by the logarithms of the prior variances of b
    information: np.ndarray | None  # (q, q)


class NestedTasks:
    """Tasks in outer groups, with effects of both.

    Parameters
    ----------
    tasks : MixedTasks
        Of Gaussian responses. Which coefficients vary is said by the covariances, not here.
    parent : ndarray of int of shape (T,)
        Number of the outer group of each task, from zero.
    """

    def __init__(self, tasks: MixedTasks, parent: np.ndarray) -> None:
        self.tasks, self.p, self.n_tasks = tasks, tasks.p, tasks.n_tasks
        self.parent = np.asarray(parent, dtype=np.intp)
        self.n_outer = int(self.parent.max(initial=-1)) + 1
        self.anchor = np.zeros((self.n_outer, self.p))
        none = Covariance(np.zeros(self.p), np.zeros((self.p, 0)))
        rows = self.sums(none)
        self.anchor = outer_least_squares(rows.H, rows.g)
        residuals = rows.g - np.einsum("rij,rj->ri", rows.H, self.anchor)
        self.anchor += outer_least_squares(rows.H, residuals)

    def sums(self, inner: Covariance) -> OuterSums:
        """Sums over the tasks of each outer group, at the covariance of the tasks' effects."""
        p = self.p

        def work(terms: TaskTerms) -> tuple[np.ndarray, np.ndarray]:
            codes = self.parent[terms.ids]
            g, squares = terms.scores_and_squares(self.anchor[codes])
            flat = terms.K.reshape(len(codes), p * p)
            return group_sums(codes, np.column_stack([flat, g, squares, terms.log_determinants]))

        total = self._gathered(self.tasks.map_terms(work, inner), p * p + p + 2)
        H, g = total[:, : p * p].reshape(-1, p, p), total[:, p * p : -2]
        return OuterSums(H, g, total[:, -2], total[:, -1])

    def _gathered(self, parts: list[tuple[np.ndarray, np.ndarray]], size: int) -> np.ndarray:
        """Sums of chunks of tasks, added up for each outer group, (R, size)."""
        total = np.zeros((self.n_outer, size))
        for groups, sums in parts:
            total[groups] += sums
        return total

    def evaluate(
        self,
        outer: Covariance,
        inner: Covariance,
        precision: np.ndarray,
        *,
        restricted: bool,
        noise: float | None = None,
    ) -> NestedEvidence:
        """The log marginal likelihood.

        Parameters
        ----------
        outer, inner : Covariance
            Of the effects of outer groups and of tasks, relative to s2.
        precision : ndarray of shape (p,)
            Of the prior on b, relative to s2; zero is flat.
        restricted : bool
            Whether b is integrated out also where its prior is flat (REML).
        noise : float, optional
            s2; by default its best value.
        """
        sums, C = self.sums(inner), outer.matrix
        A = np.eye(self.p) + sums.H @ C
        B, log_determinants = np.linalg.inv(A), np.linalg.slogdet(A)[1]
        K = B @ sums.H
        K = 0.5 * (K + K.transpose(0, 2, 1))
        h = np.einsum("rij,rj->ri", B, sums.g)
        ids = np.arange(self.n_outer)
        squares = np.maximum(sums.squares - np.einsum("ri,ri->r", sums.g, h @ C), 0.0)
        terms = TaskTerms(ids, K, h, sums.log_determinants + log_determinants, squares, self.anchor)
        P = K.sum(axis=0) + np.diag(precision)
        proper = bool((precision[int(self.tasks.intercept) :] > 0).all())
        inverse, _, log_determinant, rank = inverse_precision(
            P, proper, self.tasks.coefficients.fixed
        )
        integrated, rows = inverse, self.tasks.n.sum()
        if restricted:
            rows = max(rows - (rank - np.count_nonzero(precision)), 1.0)
        else:
            integrated, _, log_determinant, _ = inverse_precision(P, True, precision > 0)
        b = inverse @ terms.right_sides().sum(axis=0)
        scores, at_b = terms.scores_and_squares(b)
        total = float(at_b.sum() + b @ (precision * b))
        s2 = max(total / rows, SMALLEST_NOISE) if noise is None else noise
        value = rows * math.log(2 * math.pi * s2) + total / s2 + terms.log_determinants.sum()
        value += self.tasks.variances.log_sum.sum()
        value += log_determinant - np.log(precision[precision > 0]).sum()
        return NestedEvidence(
            outer, inner, precision, -0.5 * float(value), float(s2), float(rows), total, b,
            inverse, integrated, sums.H, B, scores,
        )  # fmt: skip

    def derivatives(
        self,
        evidence: NestedEvidence,
        entries: tuple[FactorEntries, FactorEntries] | None = None,
    ) -> NestedDerivatives:
        """The gradient, and the average information on entries of the two factors if given.

        Parameters
        ----------
        evidence : NestedEvidence
        entries : tuple of FactorEntries, optional
            Of the outer and of the inner covariance.
        """
        e, p, K = evidence, self.p, evidence.K
        means, W = e.mean + e.outer_effects, e.variances(e.integrated)
        n_inner = 0 if entries is None else len(entries[1].rows)

        def work(terms: TaskTerms) -> tuple[np.ndarray, ...]:
            codes, m = self.parent[terms.ids], len(terms.ids)
            scores, _ = terms.scores_and_squares(means[codes])
            shrunk = np.einsum("tij,tjk->itk", terms.K, W[codes]).reshape(p, m * p)
            sums = scores.T @ scores, shrunk @ terms.K.reshape(m * p, p)
            if entries is None:
                return sums
            X = entries[1].changes(scores)
            Y = np.einsum("tij,tqj->tqi", terms.K, X)
            flat_X, flat_Y = (each.transpose(1, 0, 2).reshape(n_inner, m * p) for each in (X, Y))
            direct, Y = flat_X @ flat_Y.T, Y.reshape(m, n_inner * p)
            along = np.einsum("ti,tqi->q", scores, X)
            return (*sums, direct, along, *group_sums(codes, Y))

        parts = self.tasks.map_terms(work, e.inner)
        squares, shrunk, *rest = added([part[:4] for part in parts])
        by_inner = 0.5 * (squares / e.noise - e.H.sum(axis=0) + shrunk)
        by_outer = e.scores.T @ e.scores / e.noise - K.sum(axis=0)
        by_outer += np.einsum("rij,jk,rkl->il", K, e.integrated, K, optimize=True)
        information = None
        if entries is not None:
            Y = self._gathered([(part[4], part[5]) for part in parts], n_inner * p)
            information = self._information(
                e, entries[0], rest[0], rest[1], Y.reshape(self.n_outer, n_inner, p)
            )
        inner, outer = 0.5 * (by_inner + by_inner.T), 0.25 * (by_outer + by_outer.T)
        return NestedDerivatives(outer, inner, self._prior_gradient(e), information)

    def _prior_gradient(self, e: NestedEvidence) -> np.ndarray:
        """The gradient in the logarithms of the prior variances of b, (m,)."""
        b_squares = e.mean**2 / e.noise + np.diag(e.integrated)
        slopes = 0.5 * np.where(e.precision > 0, e.precision * b_squares - 1.0, 0.0)
        return np.array([slopes[group].sum() for group in self.tasks.prior_groups])

    def _information(
        self, e: NestedEvidence, entries: FactorEntries, direct: np.ndarray,
        along: np.ndarray, inner_sums: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """The average information on the entries of both factors and the prior variances of b.

        Parameters
        ----------
        e : NestedEvidence
        entries : FactorEntries
            Of the outer factor.
        direct : ndarray of shape (q, q)
            sum_s x_i' K_s x_j for the entries of the inner factor.
        along : ndarray of shape (q,)
            sum_s e_s' x_i for the same.
        inner_sums : ndarray of shape (R, q, p)
            Y_r for the same.
        """
        prior = np.zeros((len(self.tasks.prior_groups), self.p))
        for row, group in zip(prior, self.tasks.prior_groups, strict=True):
            row[group] = e.mean[group] * (e.precision[group] > 0)
        shape = self.n_outer, *prior.shape
        X = np.concatenate([entries.changes(e.scores), np.broadcast_to(prior, shape)], axis=1)
        n, m = len(entries.rows), len(prior)
        order = np.r_[0:n, n + m : n + m + len(along), n : n + m]  # outer, inner, prior
        Y = np.concatenate([X @ e.H, inner_sums], axis=1)
        outer_outer = np.einsum("rip,rjp->ij", X, Y)
        common = 0.5 * np.append(np.einsum("rip,rp->i", X, e.scores), along) / e.noise
        total = np.block([[outer_outer], [np.hstack([outer_outer[:, n + m :].T, direct])]])
        total -= np.einsum("rip,rpq,rjq->ij", Y, e.within, Y, optimize=True)
        U = np.einsum("rip,rqp->iq", Y, e.B)
        total -= U @ e.mean_covariance @ U.T
        # The noise is profiled out: what it explains carries no information about the covariances.
        information = 0.5 * total / e.noise - 2 / e.counted * np.outer(common, common)
        return information[np.ix_(order, order)]


def group_sums(codes: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The groups that occur in ``codes`` (m,), and their sums of values (m, c)."""
    if (codes[1:] < codes[:-1]).any():
        order = np.argsort(codes, kind="stable")
        codes, values = codes[order], values[order]
    starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1]))
    return codes[starts], np.add.reduceat(values, starts, axis=0)


def outer_least_squares(H: np.ndarray, g: np.ndarray) -> np.ndarray:
    """Solutions x of H_r x = g_r, (R, p), near zero in directions that H_r leaves open."""
    scale = np.sqrt(np.einsum("rii->ri", H))
    scale[scale == 0] = 1.0
    correlation = H / (scale[:, :, None] * scale[:, None, :])
    ridge = ANCHOR_RIDGE * np.eye(H.shape[1])
    return np.asarray(
        np.linalg.solve(correlation + ridge, (g / scale)[:, :, None])[:, :, 0] / scale
    )
