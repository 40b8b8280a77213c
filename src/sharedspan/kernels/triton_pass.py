"""The pass over tasks as Triton kernels: loss, R W' and B'R from one read of the Grams.

Each kernel runs a fixed grid of programs, each over a fixed list of tasks, and their results are
summed in a fixed order: the result does not depend on timing. Sums and products are in float64 for
any storage.

``lanes`` (up to 32 features). 32 tasks are stored interleaved, so that neighbouring threads read
neighbouring numbers and each thread owns one task: the upper triangle is used without any exchange
between threads. The Gram, the anchor and g of 32 tasks form one record (P + 2 d, 32),
P = d (d + 1) / 2.

``full`` (more features). Tasks are stored one after the other with all d^2 numbers of their Grams.
The threads of a program own columns; as a Gram is symmetric, its product with u is a sum over rows,
with little exchange between threads.
"""

# mypy: disable-error-code="no-untyped-def,import-untyped"

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from sharedspan.kernels.device_matrix import sum_of_products

GROUP = 32  # tasks interleaved in a record of the "lanes" layout
MOST_LANES = 128  # most tasks in a tile; the number of tasks is padded to a multiple of this
LANES_MOST_FEATURES = 32  # beyond, a task exceeds the registers of one thread
MOST_FEATURES = 1024  # beyond, the columns of a task exceed the registers of a program


@dataclass(frozen=True)
class Setting:
    """The shape of the programs.

    Attributes
    ----------
    warps : int
        Warps per program.
    per_sm : int
        Programs per multiprocessor.
    rows : int
        Rows of a Gram read at once, in the layout "full"; a power of two, at most 64.
    registers : int or None
        Most registers per thread; None leaves the choice to the compiler.
    """

    warps: int
    per_sm: int
    rows: int = 0
    registers: int | None = None


# Keys are largest numbers of features. Each setting was the best of several on an H200, with
# d = 10, 30, 64, 100 and 500; the setting for 1,024 is a guess.
COMMON_SETTINGS = {
    16: Setting(warps=1, per_sm=16, registers=128),
    64: Setting(warps=1, per_sm=32, rows=32),
    128: Setting(warps=1, per_sm=32, rows=16),
    1024: Setting(warps=4, per_sm=16, rows=8),
}
FLOAT32_SETTINGS = {32: Setting(warps=1, per_sm=8), 512: Setting(warps=2, per_sm=32, rows=8)}
FLOAT64_SETTINGS = {32: Setting(warps=2, per_sm=8), 512: Setting(warps=2, per_sm=32, rows=16)}


def setting_for(d: int, dtype: torch.dtype) -> Setting:
    """The shape of the programs for d features and Grams stored as ``dtype``."""
    own = FLOAT32_SETTINGS if dtype == torch.float32 else FLOAT64_SETTINGS
    settings = COMMON_SETTINGS | own
    return settings[min(most for most in settings if d <= most)]


# The columns of a block of tasks have any alignment; one compiled kernel serves all of them.
ANY_ALIGNMENT = ["q", "response", "weight", "W", "grad_W"]


@triton.jit(
    do_not_specialize=["n_tasks", "stride", "zero"], do_not_specialize_on_alignment=ANY_ALIGNMENT
)
def _lanes(
    records, q, response, weight, B, W, grad_W, partial_B, partial_loss, n_tasks, stride, zero,
    D: tl.constexpr, K: tl.constexpr, D2: tl.constexpr, K2: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One thread per task; tiles are (TILE, D2), the first axis over threads.

    The other axis is within a thread, so that the compiler evaluates comparisons of j and c with
    constants and removes masked numbers. To allow this, sums start from -0.0: the compiler must
    perform x + 0.0, which turns -0.0 into 0.0, but can drop x + -0.0.

    R W' is summed by the matrix units, one (D2, K2) sum per program.
    """
    P: tl.constexpr = D * (D + 1) // 2
    SIZE: tl.constexpr = (P + 2 * D) * 32
    program, programs = tl.program_id(0), tl.num_programs(0)
    lane = tl.arange(0, TILE)
    j = tl.arange(0, D2)[None, :]
    c = tl.arange(0, K2)[None, :]
    nothing = tl.full([1, 1], -(2**63), tl.int64).to(tl.float64, bitcast=True)  # -0.0
    # ``zero`` is 0, hidden from the compiler. If it could see what is contiguous and aligned, it
    # would assign several tasks to a thread, or a task to several threads.
    B_column = B + j * K * (1 + zero) + (lane * 0)[:, None]
    loss = tl.zeros([TILE], tl.float64)
    sums = tl.zeros([D2, K2], tl.float64)

    for tile in range(program, (n_tasks + TILE - 1) // TILE, programs):
        first = tl.cast(tile, tl.int64) * TILE + zero
        record = (records + first * (SIZE // 32) + (lane // 32) * SIZE + lane % 32)[:, None]
        t = first + lane
        inside = t < n_tasks
        r1 = tl.load(response + t, mask=inside, other=0.0)
        mass = tl.load(weight + t, mask=inside, other=0.0)
        r = r1[:, None]
        column = c.to(tl.int64) * stride + t[:, None]
        w = tl.load(W + column, mask=(c < K) & inside[:, None], other=0.0)

        a = tl.load(record + (P + j) * 32, mask=j < D, other=0.0).to(tl.float64)
        u = -r * a
        for col in tl.static_range(K):
            w_c = tl.sum(tl.where(c == col, w, nothing), axis=1)[:, None]
            u += w_c * tl.load(B_column + col, mask=j < D, other=0.0)
        y = tl.zeros([TILE, D2], tl.float64)
        for i in tl.static_range(D):
            start = i * D - i * (i - 1) // 2 - i
            row = tl.load(record + (start + j) * 32, mask=(j >= i) & (j < D), other=0.0)
            row = row.to(tl.float64)
            u_i = tl.sum(tl.where(j == i, u, nothing), axis=1)[:, None]
            y_i = tl.sum(tl.where((j >= i) & (j < D), row * u, nothing), axis=1)[:, None]
            y = tl.where((j > i) & (j < D), y + row * u_i, tl.where(j == i, y + y_i, y))

        rg = r * tl.load(record + (P + D + j) * 32, mask=j < D, other=0.0).to(tl.float64)
        squares = tl.sum(tl.where(j < D, u * (y - 2.0 * rg), nothing), axis=1)
        squares += r1 * r1 * tl.load(q + t, mask=inside, other=0.0)
        # Not tl.maximum: NaN stays NaN.
        loss += 0.5 * mass * tl.where(squares < 0.0, 0.0, squares)
        R = mass[:, None] * (y - rg)
        for col in tl.static_range(K):
            BR = R * tl.load(B_column + col, mask=j < D, other=0.0)
            gradient = tl.sum(tl.where(j < D, BR, nothing), axis=1)
            tl.store(grad_W + tl.cast(stride, tl.int64) * col + t, gradient, mask=inside)
        R = tl.where(j < D, R, 0.0)
        sums = tl.dot(tl.trans(R), w, sums, out_dtype=tl.float64)

    out = tl.arange(0, D2)[:, None] * K2 + tl.arange(0, K2)[None, :]
    tl.store(partial_B + program * (D2 * K2) + out, sums)
    tl.store(partial_loss + program, tl.sum(loss, axis=0))


@triton.jit(do_not_specialize=["n_tasks", "stride"], do_not_specialize_on_alignment=ANY_ALIGNMENT)
def _columns(
    grams, anchor, g, q, response, weight, B, W, grad_W, R_out, losses, scratch, n_tasks, stride,
    D: tl.constexpr, K: tl.constexpr, D2: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A program handles one task at a time; its threads own the columns j, tiles are (ROWS, D2).

    All threads need the u_i of the rows of a tile: u is exchanged through ``scratch``, D2 numbers
    per program that never leave the cache.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    j = tl.arange(0, D2)
    some = j < D
    u_row = scratch + program.to(tl.int64) * D2
    for task in range(program, n_tasks, programs):
        t = tl.cast(task, tl.int64)
        r, mass = tl.load(response + t), tl.load(weight + t)
        u = -r * tl.load(anchor + t * D + j, mask=some, other=0.0).to(tl.float64)
        for col in tl.static_range(K):
            w_c = tl.load(W + tl.cast(stride, tl.int64) * col + t)
            u += w_c * tl.load(B + j * K + col, mask=some, other=0.0)
        tl.store(u_row + j, u)
        tl.debug_barrier()

        gram = grams + t * (D * D)
        y = tl.zeros([D2], tl.float64)
        for first in range(0, D, ROWS):
            i = first + tl.arange(0, ROWS)
            mask = (i < D)[:, None] & some[None, :]
            G = tl.load(gram + i[:, None] * D + j[None, :], mask=mask, other=0.0)
            y += tl.sum(G.to(tl.float64) * tl.load(u_row + i)[:, None], axis=0)

        rg = r * tl.load(g + t * D + j, mask=some, other=0.0).to(tl.float64)
        squares = r * r * tl.load(q + t) + tl.sum(u * (y - 2.0 * rg), axis=0)
        # Not tl.maximum: NaN stays NaN.
        tl.store(losses + t, 0.5 * mass * tl.where(squares < 0.0, 0.0, squares))
        R = mass * (y - rg)
        tl.store(R_out + t * D + j, R, mask=some)
        for col in tl.static_range(K):
            BR = R * tl.load(B + j * K + col, mask=some, other=0.0)
            tl.store(grad_W + tl.cast(stride, tl.int64) * col + t, tl.sum(BR, axis=0))
        tl.debug_barrier()  # scratch is written again


@triton.jit(do_not_specialize=["m", "place"])
def _interleave(source, records, m, width, size, place, SIDE: tl.constexpr):
    """Write SIDE columns of source (m, width) of SIDE tasks to records from ``place`` on."""
    group = tl.program_id(0).to(tl.int64)
    column, lane = tl.program_id(1) * SIDE + tl.arange(0, SIDE), tl.arange(0, SIDE)
    t = group * SIDE + lane
    inside = (t[:, None] < m) & (column[None, :] < width)
    tile = tl.load(source + t[:, None] * width + column[None, :], mask=inside, other=0.0)
    to = (group * size + place + column[:, None]) * SIDE + lane[None, :]
    tl.store(records + to, tl.trans(tile), mask=column[:, None] < width)


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of the GPU; 2 in Triton's interpreter, which runs without one."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def records_shape(m: int, d: int) -> tuple[int, int, int]:
    """Shape of the records of m tasks, padded to whole tiles."""
    return (triton.cdiv(m, MOST_LANES) * MOST_LANES // GROUP, d * (d + 1) // 2 + 2 * d, GROUP)


def write_records(records: torch.Tensor, first: int, pieces: list[torch.Tensor]) -> None:
    """Write packed (m, P), anchor (m, d) and g (m, d) of m tasks, beginning with task ``first``.

    ``first`` is the first task of a record; the rest of the last record is filled with zeros.
    """
    m, place = len(pieces[0]), 0
    groups, start = triton.cdiv(m, GROUP), first // GROUP
    for piece in pieces:
        width = piece.shape[1]
        if piece.device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
            _interleave[(groups, triton.cdiv(width, GROUP))](
                piece.contiguous(), records[start:], m, width, records.shape[1], place, SIDE=GROUP
            )
        else:
            spare = piece.new_zeros(-m % GROUP, width)
            rows = torch.cat([piece, spare]).view(-1, GROUP, width)
            records[start : start + groups, place : place + width] = rows.transpose(1, 2)
        place += width


def read_records(records: torch.Tensor, first: int, last: int) -> torch.Tensor:
    """Rows (m, P + 2 d) of the tasks from ``first``, the first of a record, up to ``last``."""
    rows = records[first // GROUP : triton.cdiv(last, GROUP)].transpose(1, 2)
    return rows.reshape(-1, records.shape[1])[: last - first]


def block_gradients(
    parts: tuple[torch.Tensor, ...],
    scalars: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    B: torch.Tensor,
    W: torch.Tensor,
    grad_W: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of losses () and R W' (d, k) of m tasks; B'R is written to grad_W.

    Parameters
    ----------
    parts : tensors
        Records (m / 32, P + 2 d, 32), padded, for d up to ``LANES_MOST_FEATURES``; else Grams
        (m, d, d), anchor (m, d) and g (m, d).
    scalars : tensors (m,) float64
        q, response and weight of each task.
    B : tensor (d, k) float64, contiguous
    W, grad_W : tensor (k, m) float64
        Rows need not be adjacent, but both must have the same stride.
    """
    if len(W) > 1 and W.stride(0) != grad_W.stride(0):
        strides = W.stride(0), grad_W.stride(0)
        raise ValueError(f"W and grad_W must have the same stride between rows, not {strides}.")
    (d, k), m = B.shape, W.shape[1]
    setting = setting_for(d, parts[0].dtype)
    options = {"num_warps": setting.warps, "num_stages": 1, "maxnreg": setting.registers}
    options["enable_fp_fusion"] = True  # the default up to Triton 3.9, which warns without it
    most = multiprocessors(B.device) * setting.per_sm
    d2, k2 = triton.next_power_of_2(d), triton.next_power_of_2(k)
    if len(parts) == 1:
        tile = 32 * setting.warps
        programs = min(most, triton.cdiv(m, tile))
        partial_B, partial_loss = B.new_empty((programs, d2, k2)), B.new_empty(programs)
        _lanes[(programs,)](
            *parts, *scalars, B, W, grad_W, partial_B, partial_loss, m, W.stride(0), 0,
            D=d, K=k, D2=d2, K2=k2, TILE=tile, **options,
        )  # fmt: skip
        return partial_loss.sum(), partial_B.sum(0)[:d, :k]
    programs = min(most, m)
    R, losses, scratch = B.new_empty((m, d)), B.new_empty(m), B.new_empty((programs, d2))
    _columns[(programs,)](
        *parts, *scalars, B, W, grad_W, R, losses, scratch, m, W.stride(0),
        D=d, K=k, D2=d2, ROWS=setting.rows, **options,
    )  # fmt: skip
    return losses.sum(), sum_of_products(W, R.T).T
