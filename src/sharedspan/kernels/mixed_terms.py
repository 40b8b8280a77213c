"""The terms of a mixed model's likelihood, eight tasks at a time, one in each lane.

For a task with Gram G = Z'Z (p, p), residuals r of its rows at an anchor, and effects of
covariance C = RR', R = [diag(root), L] (p, q), with S = I + Z C Z',

    A = I + R'GR,     H = A^(-1/2) R'G,     w = A^(-1/2) R'Z'r
    K = Z'S^-1 Z = G - H'H,     h = Z'S^-1 r = Z'r - H'w,     r'S^-1 r = r'r - w'w,     |S| = |A|

A is never singular, whatever C is, and of the size of C's rank.
"""

import numpy as np

from sharedspan.kernels.compiling import kernel, part
from sharedspan.kernels.lanes import (
    LANES,
    add_product,
    broadcast,
    keep,
    larger,
    load8,
    multiply,
    pointer,
    reciprocal_root,
    store8,
    subtract_product,
)


@kernel
def mixed_terms(  # type: ignore[no-untyped-def]
    packed, n, mean, scale, precision, score, active, root, L, first, last, K, h, log_det, lost
):
    """Terms of the tasks first..last - 1.

    Parameters
    ----------
    packed : ndarray of shape (T, d (d + 1) / 2)
        Upper triangles of the Grams of centred rows, or of plain ones without intercepts.
    n : ndarray of shape (T,)
    mean : ndarray of shape (T, d)
        Means of the scaled features; unused without intercepts.
    scale : ndarray of shape (d,)
        Factors that standardise the features.
    precision : ndarray of shape (T,)
        Precision of the noise of each task, relative to the others: a weight of all its rows.
    score : ndarray of shape (T, d)
        Z'r without the entry of the intercept, which is zero, times the precision.
    active : ndarray of int of shape (m,)
        Entries of the diagonal of R that are not zero.
    root : ndarray of shape (m,)
        Those entries.
    L : ndarray of shape (p, k)
        p = d + 1 with intercepts, d without.
    first, last : int
    K, h : ndarray of shape (last - first, p, p) and (last - first, p)
    log_det, lost : ndarray of shape (last - first,)
        log |S|, and w'w.
    """
    p, k = L.shape
    m = len(active)
    q = m + k
    d = len(scale)
    level = p - d
    G_array = np.empty(p * p * LANES)
    U_array = np.empty(max(q, 1) * (p + 1) * LANES)  # R'G, then H, by columns; the last is w
    A_array = np.empty(max(q, 1) * max(q, 1) * LANES)
    h_array = np.empty(p * LANES)
    lost_array = np.empty(LANES)
    G, U, A = pointer(G_array), pointer(U_array), pointer(A_array)
    hp, lp = pointer(h_array), pointer(lost_array)
    for block in range(first, last, LANES):
        count = min(LANES, last - block)
        for lane in range(LANES):
            t = block + min(lane, count - 1)
            _load_gram(packed, n, mean, scale, precision, t, level, lane, G_array)
            for i in range(d):
                h_array[(i + level) * LANES + lane] = score[t, i]
            if level:
                h_array[lane] = 0.0
        _project(G, hp, active, root, L, p, m, k, U, A)
        _solve(A, U, p, q)
        _subtract(G, U, hp, lp, p, q)
        for lane in range(count):
            t = block + lane - first
            total = 0.0
            for a in range(q):
                total -= np.log(A_array[(a * q + a) * LANES + lane])
            log_det[t] = 2 * total
            lost[t] = lost_array[lane]
            for i in range(p):
                h[t, i] = h_array[i * LANES + lane]
                for j in range(p):
                    K[t, i, j] = G_array[(min(i, j) * p + max(i, j)) * LANES + lane]
    keep((G_array, U_array, A_array, h_array, lost_array))


@part
def _load_gram(packed, n, mean, scale, precision, t, level, lane, G):  # type: ignore[no-untyped-def]
    """The Gram of one task in standard units into its lane of G (p, p, 8)."""
    d, weight = len(scale), precision[t]
    p = d + level
    position = 0
    for i in range(d):
        for j in range(i, d):
            value = packed[t, position] * scale[i] * scale[j]
            if level:
                value += n[t] * mean[t, i] * mean[t, j]
            position += 1
            value *= weight
            G[((i + level) * p + j + level) * LANES + lane] = value
            G[((j + level) * p + i + level) * LANES + lane] = value
    if level:
        G[lane] = weight * n[t]
        for i in range(d):
            value = weight * n[t] * mean[t, i]
            G[(i + 1) * LANES + lane] = value
            G[(i + 1) * p * LANES + lane] = value


@part
def _project(G, h, active, root, L, p, m, k, U, A):  # type: ignore[no-untyped-def]
    """U = R'[G, h] and the upper triangle of A = I + R'GR."""
    q, one = m + k, broadcast(1.0)
    for a in range(m):
        i, factor = active[a], broadcast(root[a])
        for j in range(p):
            store8(U, (j * q + a) * LANES, multiply(factor, load8(G, (i * p + j) * LANES)))
        store8(U, (p * q + a) * LANES, multiply(factor, load8(h, i * LANES)))
    for c in range(k):
        for j in range(p):
            total = broadcast(0.0)
            for i in range(p):
                total = add_product(broadcast(L[i, c]), load8(G, (i * p + j) * LANES), total)
            store8(U, (j * q + m + c) * LANES, total)
        total = broadcast(0.0)
        for i in range(p):
            total = add_product(broadcast(L[i, c]), load8(h, i * LANES), total)
        store8(U, (p * q + m + c) * LANES, total)
    for a in range(q):
        for b in range(a, m):
            value = multiply(load8(U, (active[b] * q + a) * LANES), broadcast(root[b]))
            if a == b:
                value = add_product(one, one, value)
            store8(A, (a * q + b) * LANES, value)
        for b in range(max(a, m), q):
            total = one if a == b else broadcast(0.0)
            for j in range(p):
                total = add_product(load8(U, (j * q + a) * LANES), broadcast(L[j, b - m]), total)
            store8(A, (a * q + b) * LANES, total)


@part
def _solve(A, U, p, q):  # type: ignore[no-untyped-def]
    """The factor of A = F'F in place, its diagonal inverted, and U = F'^-1 U."""
    for a in range(q):
        for b in range(a, q):
            total = load8(A, (a * q + b) * LANES)
            for c in range(a):
                x, y = load8(A, (c * q + a) * LANES), load8(A, (c * q + b) * LANES)
                total = subtract_product(x, y, total)
            if a == b:
                # A is at least the identity, and so are its pivots, which rounding may hide.
                total = reciprocal_root(larger(total, broadcast(1.0)))
            else:
                total = multiply(total, load8(A, (a * q + a) * LANES))
            store8(A, (a * q + b) * LANES, total)
        inverse = load8(A, (a * q + a) * LANES)
        for j in range(p + 1):
            total = load8(U, (j * q + a) * LANES)
            for c in range(a):
                x, y = load8(A, (c * q + a) * LANES), load8(U, (j * q + c) * LANES)
                total = subtract_product(x, y, total)
            store8(U, (j * q + a) * LANES, multiply(total, inverse))


@part
def _subtract(G, U, h, lost, p, q):  # type: ignore[no-untyped-def]
    """G - H'H in the upper triangle of G, h - H'w, and w'w."""
    for i in range(p):
        for j in range(i, p):
            total = load8(G, (i * p + j) * LANES)
            for a in range(q):
                x, y = load8(U, (i * q + a) * LANES), load8(U, (j * q + a) * LANES)
                total = subtract_product(x, y, total)
            store8(G, (i * p + j) * LANES, total)
        total = load8(h, i * LANES)
        for a in range(q):
            x, y = load8(U, (i * q + a) * LANES), load8(U, (p * q + a) * LANES)
            total = subtract_product(x, y, total)
        store8(h, i * LANES, total)
    total = broadcast(0.0)
    for a in range(q):
        x = load8(U, (p * q + a) * LANES)
        total = add_product(x, x, total)
    store8(lost, 0, total)
