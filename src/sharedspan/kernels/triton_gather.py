"""Statistics per task on a GPU, as Triton kernels: one program for each task.

As on the CPU, rows are centred before their products are summed, and the sums of squares are those
of residuals from an anchor near least squares. Rows are float32 or float64, sums are float64. A
task's rows and its Gram stay in cache and registers until its statistics are complete.
"""

# mypy: disable-error-code="no-untyped-def,import-untyped"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from sharedspan.kernels.accumulate import ANCHOR_RIDGE, CONSTANT
from sharedspan.kernels.transform import CANONICAL_RIDGE, LONG, SMALLEST_SIZE


@triton.jit
def _row_weight(weight, row, WEIGHTED: tl.constexpr):
    """The weight of a row, (1, 1)."""
    w = tl.zeros((1, 1), tl.float64) + 1.0
    if WEIGHTED:
        w = tl.zeros((1, 1), tl.float64) + tl.load(weight + row)
    return w


@triton.jit
def _solve(A, b, i, j, d):
    """The solution x (D, 1) of A x = b by Gauss-Jordan elimination.

    It is zero if a pivot, which are those of the Cholesky factor, is not positive.
    """
    smallest = tl.full((1, 1), float("inf"), tl.float64)
    for k in range(d):
        row = tl.sum(tl.where(i == k, A, 0.0), axis=0)[None, :]
        column = tl.sum(tl.where(j == k, A, 0.0), axis=1)[:, None]
        pivot = tl.sum(tl.where(j == k, row, 0.0), axis=1)[:, None]
        at = tl.sum(tl.where(i == k, b, 0.0), axis=0)[None, :]
        # The comparison is false for NaN.
        smallest = tl.where(pivot > 0.0, tl.minimum(smallest, pivot), -1.0)
        A = tl.where(i == k, row / pivot, A - column * (row / pivot))
        b = tl.where(i == k, at / pivot, b - column * (at / pivot))
    return tl.where(smallest > 0.0, b, 0.0)


@triton.jit
def _sums(
    X, y, weight, starts, origin, d, n, mean, y_mean, packed, anchor, g, q, products_out, constant,
    ridge,
    WEIGHTED: tl.constexpr, CENTRED: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Size, means, packed Gram, anchor a, X'(y - Xa) and |y - Xa|^2 of each task."""
    t = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(starts + t), tl.load(starts + t + 1)
    i, j = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    origin_i = tl.load(origin + i, mask=i < d, other=0.0)
    origin_j = tl.load(origin + j, mask=j < d, other=0.0)
    sum_i, sum_j = tl.zeros((D, 1), tl.float64), tl.zeros((1, D), tl.float64)
    sum_y, size = tl.zeros((1, 1), tl.float64), tl.zeros((1, 1), tl.float64)
    for row in range(begin, end):
        w = _row_weight(weight, row, WEIGHTED)
        size += w
        if CENTRED:
            x_i = tl.load(X + row * d + i, mask=i < d, other=0.0).to(tl.float64) - origin_i
            x_j = tl.load(X + row * d + j, mask=j < d, other=0.0).to(tl.float64) - origin_j
            sum_i += w * x_i
            sum_j += w * x_j
            sum_y += w * tl.load(y + row).to(tl.float64)
    mean_i, mean_j, y_bar = sum_i / size, sum_j / size, sum_y / size
    gram, products = tl.zeros((D, D), tl.float64), tl.zeros((D, 1), tl.float64)
    diagonal_i, diagonal_j = tl.zeros((D, 1), tl.float64), tl.zeros((1, D), tl.float64)
    for row in range(begin, end):
        w = _row_weight(weight, row, WEIGHTED)
        x_i = tl.load(X + row * d + i, mask=i < d, other=0.0).to(tl.float64) - origin_i - mean_i
        x_j = tl.load(X + row * d + j, mask=j < d, other=0.0).to(tl.float64) - origin_j - mean_j
        gram += (w * x_i) * x_j
        diagonal_i += w * x_i * x_i
        diagonal_j += w * x_j * x_j
        products += w * x_i * (tl.load(y + row).to(tl.float64) - y_bar)
    # Row i of the triangle begins at i d - i (i - 1) / 2, with its diagonal entry.
    place = t * (d * (d + 1) // 2) + i * d - i * (i - 1) // 2 + j - i
    tl.store(packed + place, gram, mask=(i <= j) & (j < d))
    # The anchor solves (G + ridge) a = X'y, without the features that are constant in this task.
    varies_i = (diagonal_i > size * constant * mean_i * constant * mean_i) & (i < d)
    varies_j = (diagonal_j > size * constant * mean_j * constant * mean_j) & (j < d)
    A = tl.where(varies_i & varies_j, gram, 0.0)
    A += tl.where(i == j, tl.where(varies_i, ridge * diagonal_i, 1.0), 0.0)
    solved = _solve(A, tl.where(varies_i, products, 0.0), i, j, d)
    a = tl.sum(tl.where(i == j, solved, 0.0), axis=0)[None, :]
    gradient, squares = tl.zeros((1, D), tl.float64), tl.zeros((1, 1), tl.float64)
    for row in range(begin, end):
        x = tl.load(X + row * d + j, mask=j < d, other=0.0).to(tl.float64) - origin_j - mean_j
        residual = tl.load(y + row).to(tl.float64) - y_bar - tl.sum(x * a, axis=1)[:, None]
        weighted = _row_weight(weight, row, WEIGHTED) * residual
        gradient += weighted * x
        squares += weighted * residual
    one = tl.arange(0, 1)[None, :]
    tl.store(n + t + one, size)
    tl.store(y_mean + t + one, y_bar)
    tl.store(q + t + one, squares)
    tl.store(mean + t * d + j, mean_j, mask=j < d)
    tl.store(anchor + t * d + j, a, mask=j < d)
    tl.store(g + t * d + j, gradient, mask=j < d)
    tl.store(products_out + t * d + i, products, mask=i < d)


@triton.jit
def _transform(
    packed, anchor, g, q, n, P, inverse, new_packed, new_anchor, new_g, new_q, new_products,
    d, reduced, most, share, least, D: tl.constexpr, D2: tl.constexpr,
):  # fmt: skip
    """Statistics of the features X P of each task; see ``transform.transform_grams``."""
    t = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    r, c = tl.arange(0, D2)[:, None], tl.arange(0, D2)[None, :]
    # G P and P'G P, by columns of the symmetric G and by rows of P.
    low, high = tl.minimum(i, j), tl.maximum(i, j)
    triangle = packed + t * (d * (d + 1) // 2)
    place = low * d - low * (low - 1) // 2 + high - low
    gram = tl.load(triangle + place, mask=(i < d) & (j < d), other=0.0)
    GP, mapped = tl.zeros((D, D2), tl.float64), tl.zeros((D2, D2), tl.float64)
    if D2 >= 16:  # by the matrix units
        all_P = tl.load(P + i * reduced + c, mask=(i < d) & (c < reduced), other=0.0)
        GP = tl.dot(gram, all_P, GP, out_dtype=tl.float64)
        mapped = tl.dot(tl.trans(all_P), GP, mapped, out_dtype=tl.float64)
    else:
        for k in range(d):
            column = tl.sum(tl.where(j == k, gram, 0.0), axis=1)[:, None]
            GP += column * tl.load(P + k * reduced + c, mask=c < reduced, other=0.0)
        for k in range(d):
            row = tl.sum(tl.where(i == k, GP, 0.0), axis=0)[None, :]
            mapped += tl.load(P + k * reduced + r, mask=r < reduced, other=0.0) * row
    place = t * (reduced * (reduced + 1) // 2) + r * reduced - r * (r - 1) // 2 + c - r
    tl.store(new_packed + place, mapped, mask=(r <= c) & (c < reduced))
    # Vectors over features are rows (1, D) here, and over mapped features columns (D2, 1).
    p = tl.load(P + j * reduced + r, mask=(j < d) & (r < reduced), other=0.0)
    back = tl.load(inverse + r * d + j, mask=(j < d) & (r < reduced), other=0.0)
    a = tl.load(anchor + t * d + j, mask=j < d, other=0.0)
    old = tl.load(g + t * d + j, mask=j < d, other=0.0)
    a_i = tl.sum(tl.where(i == j, a, 0.0), axis=1)[:, None]
    Ga = tl.sum(gram * a_i, axis=0)[None, :]
    size, squares = tl.load(n + t), tl.load(q + t)
    total = squares + tl.sum(a * (Ga + 2 * old))
    solved = tl.sum(back * a, axis=1)[:, None]
    products = tl.sum(p * (Ga + old), axis=1)[:, None]
    long = tl.where(size * tl.sum(solved * solved) <= most * total, 0, 1)
    if long == 1:
        A = mapped + tl.where(
            r == c, tl.where(r < reduced, share * tl.maximum(size, least), 1.0), 0.0
        )
        solved = _solve(A, products, r, c, reduced)
    delta = tl.sum(p * solved, axis=0)[None, :] - a
    delta_i = tl.sum(tl.where(i == j, delta, 0.0), axis=1)[:, None]
    moved = old - tl.sum(gram * delta_i, axis=0)[None, :]
    squares -= tl.sum(delta * (old + moved))
    tl.store(new_q + t, tl.where(squares < 0.0, 0.0, squares))
    tl.store(new_anchor + t * reduced + r, solved, mask=r < reduced)
    gradient = tl.sum(p * moved, axis=1)[:, None]
    tl.store(new_g + t * reduced + r, gradient, mask=r < reduced)
    tl.store(new_products + t * reduced + r, products, mask=r < reduced)


def task_sums(
    X: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor | None,
    starts: torch.Tensor,
    origin: torch.Tensor,
    centred: bool,
    out: tuple[torch.Tensor, ...],
) -> None:
    """Write n, mean, y_mean, packed, anchor, g, q and X'y of m tasks on the device to ``out``.

    Parameters
    ----------
    X : Tensor of shape (rows, d)
    y : Tensor of shape (rows,)
    weight : Tensor of shape (rows,), float64, optional
    starts : Tensor of shape (m + 1,), int64
        Task t has the rows starts[t] <= i < starts[t + 1].
    origin : Tensor of shape (d,), float64
        Subtracted from every row; means are relative to it.
    centred : bool
        Whether rows are centred at the means of their task.
    out : tuple of Tensors
        Of shapes (m,), (m, d), (m,), (m, d (d + 1) / 2), (m, d), (m, d), (m,) and (m, d), float64.
    """
    d = X.shape[1]
    _sums[(len(starts) - 1,)](
        X, y, y if weight is None else weight, starts, origin, d, *out, CONSTANT, ANCHOR_RIDGE,
        WEIGHTED=weight is not None, CENTRED=centred, D=_width(d), num_warps=_warps(d),
    )  # fmt: skip


def transform(
    packed: torch.Tensor,
    anchor: torch.Tensor,
    g: torch.Tensor,
    q: torch.Tensor,
    n: torch.Tensor,
    P: torch.Tensor,
    inverse: torch.Tensor,
    out: tuple[torch.Tensor, ...],
) -> None:
    """Write packed Grams, anchors, g, q and X'y of the features X P, P (d, d'), to ``out``.

    Parameters
    ----------
    packed, anchor, g, q, n : Tensor
        Statistics of m tasks; see ``task_sums``.
    P, inverse : Tensor of shape (d, d') and (d', d)
        The map and its left inverse.
    out : tuple of Tensors
        Of shapes (m, d' (d' + 1) / 2), (m, d'), (m, d'), (m,) and (m, d').
    """
    d, reduced = P.shape
    _transform[(len(n),)](
        packed, anchor, g, q, n, P.contiguous(), inverse.contiguous(), *out, d, reduced,
        LONG, CANONICAL_RIDGE, SMALLEST_SIZE, D=_width(d), D2=_width(reduced), num_warps=_warps(d),
    )  # fmt: skip


def _width(d: int) -> int:
    """The power of two in which d features fit."""
    return max(triton.next_power_of_2(d), 2)


def _warps(d: int) -> int:
    """Warps of a program whose largest matrix has d^2 numbers."""
    return max(_width(d) ** 2 // 1024, 1)
