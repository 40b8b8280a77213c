"""Sums per task from rows on a GPU, as Triton kernels: one program for each task.

As on the CPU, rows are centred before their products are summed, and the sums of squares are those
of residuals from an anchor near least squares. Rows are float32 or float64, sums are float64.
"""

# mypy: disable-error-code="no-untyped-def,import-untyped"

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _sums(
    X, y, weight, starts, origin, d, n, mean, y_mean, G, cross,
    WEIGHTED: tl.constexpr, CENTRED: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Size, means, Gram (d, d) and X'y of each task."""
    t = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(starts + t), tl.load(starts + t + 1)
    i, j = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    origin_i = tl.load(origin + i, mask=i < d, other=0.0)
    origin_j = tl.load(origin + j, mask=j < d, other=0.0)
    sum_i, sum_j = tl.zeros((D, 1), tl.float64), tl.zeros((1, D), tl.float64)
    sum_y, size = tl.zeros((1, 1), tl.float64), tl.zeros((1, 1), tl.float64)
    for row in range(begin, end):
        w = tl.zeros((1, 1), tl.float64) + 1.0
        if WEIGHTED:
            w = tl.zeros((1, 1), tl.float64) + tl.load(weight + row)
        size += w
        if CENTRED:
            x_i = tl.load(X + row * d + i, mask=i < d, other=0.0).to(tl.float64) - origin_i
            x_j = tl.load(X + row * d + j, mask=j < d, other=0.0).to(tl.float64) - origin_j
            sum_i += w * x_i
            sum_j += w * x_j
            sum_y += w * tl.load(y + row).to(tl.float64)
    mean_i, mean_j, y_bar = sum_i / size, sum_j / size, sum_y / size
    gram, products = tl.zeros((D, D), tl.float64), tl.zeros((1, D), tl.float64)
    for row in range(begin, end):
        w = tl.zeros((1, 1), tl.float64) + 1.0
        if WEIGHTED:
            w = tl.zeros((1, 1), tl.float64) + tl.load(weight + row)
        x_i = tl.load(X + row * d + i, mask=i < d, other=0.0).to(tl.float64) - origin_i - mean_i
        x_j = tl.load(X + row * d + j, mask=j < d, other=0.0).to(tl.float64) - origin_j - mean_j
        gram += (w * x_i) * x_j
        products += w * x_j * (tl.load(y + row).to(tl.float64) - y_bar)
    one = tl.arange(0, 1)[None, :]
    tl.store(n + t + one, size)
    tl.store(y_mean + t + one, y_bar)
    tl.store(mean + t * d + j, mean_j, mask=j < d)
    tl.store(cross + t * d + j, products, mask=j < d)
    tl.store(G + t * d * d + i * d + j, gram, mask=(i < d) & (j < d))


@triton.jit
def _residual_sums(
    X, y, weight, starts, origin, d, mean, y_mean, anchor, g, q,
    WEIGHTED: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """X'(y - Xa) and |y - Xa|^2 of each task, with rows centred at the given means."""
    t = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(starts + t), tl.load(starts + t + 1)
    j = tl.arange(0, D)
    inside = j < d
    centre = tl.load(origin + j, mask=inside, other=0.0)
    centre += tl.load(mean + t * d + j, mask=inside, other=0.0)
    a = tl.load(anchor + t * d + j, mask=inside, other=0.0)
    y_bar = tl.load(y_mean + t)
    gradient, squares = tl.zeros((D,), tl.float64), y_bar * 0.0
    for row in range(begin, end):
        x = tl.load(X + row * d + j, mask=inside, other=0.0).to(tl.float64) - centre
        residual = tl.load(y + row).to(tl.float64) - y_bar - tl.sum(x * a, axis=0)
        weighted = residual
        if WEIGHTED:
            weighted = residual * tl.load(weight + row)
        gradient += weighted * x
        squares += weighted * residual
    tl.store(g + t * d + j, gradient, mask=inside)
    tl.store(q + t, squares)


def task_sums(
    X: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor | None,
    starts: torch.Tensor,
    origin: torch.Tensor,
    centred: bool,
) -> tuple[torch.Tensor, ...]:
    """Return n (m,), mean (m, d), y_mean (m,), G (m, d, d) and X'y (m, d) of m tasks on the device.

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
    """
    m, d = len(starts) - 1, X.shape[1]
    new = {"dtype": torch.float64, "device": X.device}
    n, y_mean, mean = torch.empty(m, **new), torch.empty(m, **new), torch.empty((m, d), **new)
    G, cross = torch.empty((m, d, d), **new), torch.empty((m, d), **new)
    size = max(triton.next_power_of_2(d), 2)
    _sums[(m,)](
        X, y, y if weight is None else weight, starts, origin, d, n, mean, y_mean, G, cross,
        WEIGHTED=weight is not None, CENTRED=centred, D=size, num_warps=max(size * size // 1024, 1),
    )  # fmt: skip
    return n, mean, y_mean, G, cross


def sums_at_anchor(
    X: torch.Tensor,
    y: torch.Tensor,
    weight: torch.Tensor | None,
    starts: torch.Tensor,
    origin: torch.Tensor,
    mean: torch.Tensor,
    y_mean: torch.Tensor,
    anchor: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """X'(y - Xa) (m, d) and |y - Xa|^2 (m,) at the anchors a (m, d); see ``task_sums``."""
    m, d = anchor.shape
    g, q = torch.empty_like(anchor), torch.empty_like(y_mean)
    _residual_sums[(m,)](
        X, y, y if weight is None else weight, starts, origin, d, mean, y_mean, anchor, g, q,
        WEIGHTED=weight is not None, D=max(triton.next_power_of_2(d), 2), num_warps=1,
    )  # fmt: skip
    return g, q
