"""The pass over tasks as Triton kernels: loss, R W' and B'R from one read of the Grams.

Both kernels run a fixed grid of programs, each over a fixed list of tasks, with one partial sum per
program: the result does not depend on timing. Sums and products are in float64 whatever the
storage.

``lanes`` (few features). 32 tasks lie interleaved, so that neighbouring threads read neighbouring
numbers and each thread owns one task: the triangle is used without any exchange between threads.
The Gram, the anchor and g of 32 tasks form one record (P + 2 d, 32), P = d (d + 1) / 2.

``blocks`` (many features). Tasks lie one after the other, packed (P,) or full (d, d). A program
walks over the blocks of one task's triangle; each number loaded goes to a row sum and a column sum.
A tile has three axes (column block, row, column in block): threads of a warp then cover several
rows, and a row sum costs few exchanges between threads.
"""

# mypy: disable-error-code="no-untyped-def,import-untyped"

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl

GROUP = 32  # tasks interleaved in a record of the "lanes" layout
MOST_LANES = 128  # most tasks of a tile; the number of tasks is padded to a multiple
LANES_MOST_FEATURES = 32  # above, a task no longer fits in the registers of one thread


@dataclass(frozen=True)
class Setting:
    """How to run the pass: layout of the Grams and shape of the programs.

    Attributes
    ----------
    layout : {"lanes", "packed", "full"}
    warps : int
        Warps of a program.
    per_sm : int
        Programs per multiprocessor.
    reduce : {"sum", "dot", "threads"}
        "lanes" only: how R W' is summed over the tasks of a tile; by exchanges, by the matrix
        units, or kept apart for each thread until the end (d k numbers per thread).
    rows, column_blocks, columns : int
        Tile of "packed" and "full"; a tile is ``rows`` by ``column_blocks * columns``.
    registers : int or None
        Most registers per thread; None leaves the choice to the compiler.
    stages : int
        Depth of the software pipeline over tiles of "packed" and "full"; 1 for none.
    """

    layout: str
    warps: int = 1
    per_sm: int = 8
    reduce: str = "dot"
    rows: int = 16
    column_blocks: int = 4
    columns: int = 8
    stages: int = 1
    registers: int | None = None


# The choice by number of features (at most the first number) and by storage. Edit after measuring
# with benchmarks/gpu.py.
SETTINGS: list[tuple[int, dict[str, Setting]]] = [
    (
        16,
        {
            "float32": Setting("lanes", warps=2, per_sm=7, reduce="dot"),
            "float64": Setting("lanes", warps=2, per_sm=7, reduce="dot"),
        },
    ),
    (
        LANES_MOST_FEATURES,
        {
            "float32": Setting("lanes", warps=4, per_sm=2, reduce="dot"),
            "float64": Setting("lanes", warps=4, per_sm=2, reduce="dot"),
        },
    ),
    (
        64,
        {
            "float32": Setting("packed", 1, 16, rows=8, column_blocks=8, registers=128),
            "float64": Setting("packed", 1, 16, rows=8, column_blocks=8, registers=128),
        },
    ),
    (
        128,
        {
            "float32": Setting("packed", 2, 8, rows=16, column_blocks=4, registers=128),
            "float64": Setting("packed", 2, 8, rows=16, column_blocks=4, registers=128),
        },
    ),
    (
        1 << 30,
        {
            "float32": Setting("packed", 8, 2, "", 8, 1, 256, registers=128),
            "float64": Setting("packed", 8, 2, "", 8, 1, 256, registers=128),
        },
    ),
]

# Partial sums of R W' kept in registers, numbers per thread; above, R is written out instead.
MOST_SUMS_PER_THREAD = 32


def setting_for(d: int, dtype: str, k: int) -> Setting:
    """The entry of ``SETTINGS`` for d features stored as ``dtype``, and factors of rank k."""
    setting = next(by_dtype[dtype] for most, by_dtype in SETTINGS if d <= most)
    if setting.reduce == "threads" and d * k > MOST_SUMS_PER_THREAD:
        setting = replace(setting, reduce="dot")
    return setting


# Columns of a block of tasks start anywhere: one compiled kernel for all of them.
ANY_ALIGNMENT = ["q", "response", "weight", "W", "grad_W"]


@triton.jit(
    do_not_specialize=["n_tasks", "stride", "zero"], do_not_specialize_on_alignment=ANY_ALIGNMENT
)
def _lanes(
    records, q, response, weight, B, W, grad_W, partial_B, partial_loss, n_tasks, stride, zero,
    D: tl.constexpr, K: tl.constexpr, D2: tl.constexpr, K2: tl.constexpr, TILE: tl.constexpr,
    REDUCE: tl.constexpr,
):  # fmt: skip
    """One thread per task; tiles are (TILE, D2) or (TILE, D2, K2), the first axis over threads.

    The other axes lie within a thread, so that comparisons of j and c with constants are settled by
    the compiler and nothing is left of masked numbers. For that the sums start from -0.0: x + 0.0
    is an operation (it turns -0.0 into 0.0), x + -0.0 is none.
    """
    P: tl.constexpr = D * (D + 1) // 2
    SIZE: tl.constexpr = (P + 2 * D) * 32
    program, programs = tl.program_id(0), tl.num_programs(0)
    lane = tl.arange(0, TILE)
    j = tl.arange(0, D2)[None, :]
    c = tl.arange(0, K2)[None, :]
    nothing = tl.full([1, 1], -(2**63), tl.int64).to(tl.float64, bitcast=True)  # -0.0
    # ``zero`` is 0, which the compiler does not know. Seeing what is contiguous and aligned, it
    # would give a thread several tasks, or share a task among threads.
    B_column = B + j * K * (1 + zero) + (lane * 0)[:, None]
    loss = tl.zeros([TILE], tl.float64)
    if REDUCE == "threads":
        sums = tl.zeros([TILE, D2, K2], tl.float64)
    else:
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
        if REDUCE == "threads":
            sums += R[:, :, None] * w[:, None, :]
        elif REDUCE == "dot":
            sums = tl.dot(tl.trans(R), w, sums, out_dtype=tl.float64)
        else:
            for col in tl.static_range(K):
                w_c = tl.sum(tl.where(c == col, w, nothing), axis=1)[:, None]
                part = tl.sum(R * w_c, axis=0)[:, None]
                sums += tl.where(c == col, part, 0.0)

    if REDUCE == "threads":
        total = tl.sum(sums, axis=0)
    else:
        total = sums
    out = tl.arange(0, D2)[:, None] * K2 + tl.arange(0, K2)[None, :]
    tl.store(partial_B + program * (D2 * K2) + out, total)
    tl.store(partial_loss + program, tl.sum(loss, axis=0))


@triton.jit
def _tile(gram, i, j, D: tl.constexpr, FULL: tl.constexpr):
    """Numbers (i, j) of one task's Gram as float64; of a packed one those above the diagonal."""
    if FULL:
        G = tl.load(gram + i * D + j, mask=(i < D) & (j < D), other=0.0)
    else:
        start = i * D - i * (i - 1) // 2 - i
        G = tl.load(gram + start + j, mask=(i < j) & (j < D), other=0.0)
    return G.to(tl.float64)


@triton.jit(do_not_specialize=["n_tasks", "stride"], do_not_specialize_on_alignment=ANY_ALIGNMENT)
def _blocks(
    grams, anchor, g, q, response, weight, B, W, grad_W, partial_B, partial_loss, scratch, R_out,
    n_tasks, stride,
    D: tl.constexpr, K: tl.constexpr, D2: tl.constexpr, K2: tl.constexpr,
    ROWS: tl.constexpr, BLOCKS: tl.constexpr, COLUMNS: tl.constexpr,
    FULL: tl.constexpr, WRITE_R: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One program per task; tiles are (BLOCKS, ROWS, COLUMNS) of row i and column j.

    Where one tile spans all columns, column sums are kept apart for each row of the tile until the
    end of the task; otherwise row sums are, until the end of the row.

    u, and later the row and column sums, pass through ``scratch`` (3 D2 numbers per program, which
    never leave the cache) because blocks of them are needed at places known only in the loop.
    """
    WIDTH: tl.constexpr = BLOCKS * COLUMNS
    SINGLE: tl.constexpr = D2 == WIDTH
    SIZE: tl.constexpr = D * D if FULL else D * (D + 1) // 2
    program, programs = tl.program_id(0), tl.num_programs(0)
    c = tl.arange(0, K2)
    every = tl.arange(0, D2)
    some = every < D
    factor = B + every[:, None] * K + c[None, :]
    factor_mask = some[:, None] & (c < K)[None, :]
    u_row = scratch + program.to(tl.int64) * (3 * D2)
    row_sums, column_sums = u_row + D2, u_row + 2 * D2
    in_block = (tl.arange(0, BLOCKS) * COLUMNS)[:, None] + tl.arange(0, COLUMNS)[None, :]
    block_of = tl.arange(0, D2 // WIDTH)[:, None, None]
    loss = tl.full([], 0.0, tl.float64)
    if not WRITE_R:
        sums = tl.zeros([D2, K2], tl.float64)

    for task in range(program, n_tasks, programs):
        t = tl.cast(task, tl.int64)
        gram = grams + t * SIZE
        r, mass = tl.load(response + t), tl.load(weight + t)
        w = tl.load(W + c.to(tl.int64) * stride + t, mask=c < K, other=0.0)
        v = tl.sum(tl.load(factor, mask=factor_mask, other=0.0) * w[None, :], axis=1)
        u = v - r * tl.load(anchor + t * D + every, mask=some, other=0.0).to(tl.float64)
        tl.store(u_row + every, u)
        tl.debug_barrier()

        if SINGLE:
            by_column = tl.zeros([BLOCKS, ROWS, COLUMNS], tl.float64)
        else:
            by_column = tl.zeros([D2 // WIDTH, BLOCKS, COLUMNS], tl.float64)
        for first_row in range(0, D, ROWS):
            i = first_row + tl.arange(0, ROWS)
            u_i = tl.load(u_row + i)[None, :, None]
            if SINGLE:
                G = _tile(gram, i[None, :, None], in_block[:, None, :], D, FULL)
                by_column += G * u_i
                if not FULL:
                    by_row = G * tl.load(u_row + in_block)[:, None, :]
            else:
                first_block = 0 if FULL else first_row // WIDTH
                by_row = tl.zeros([BLOCKS, ROWS, COLUMNS], tl.float64)
                for block in tl.range(first_block, (D + WIDTH - 1) // WIDTH, num_stages=STAGES):
                    j = block * WIDTH + in_block
                    G = _tile(gram, i[None, :, None], j[:, None, :], D, FULL)
                    if not FULL:
                        by_row += G * tl.load(u_row + j)[:, None, :]
                    part = tl.sum(G * u_i, axis=1)[None, :, :]
                    by_column += tl.where(block_of == block, part, 0.0)
            if not FULL:
                tl.store(row_sums + i, tl.sum(tl.sum(by_row, axis=0), axis=1))

        if SINGLE:
            tl.store(column_sums + in_block, tl.sum(by_column, axis=1))
        else:
            tl.store(column_sums + block_of * WIDTH + in_block[None, :, :], by_column)
        tl.debug_barrier()
        y = tl.load(column_sums + every)
        if not FULL:
            diagonal = every * D - every * (every - 1) // 2
            y += tl.load(row_sums + every, mask=some, other=0.0)
            y += u * tl.load(gram + diagonal, mask=some, other=0.0).to(tl.float64)
        rg = r * tl.load(g + t * D + every, mask=some, other=0.0).to(tl.float64)
        squares = r * r * tl.load(q + t) + tl.sum(u * (y - 2.0 * rg), axis=0)
        squares = tl.where(squares < 0.0, 0.0, squares)  # not tl.maximum: NaN stays NaN
        loss += 0.5 * mass * squares
        R = mass * (y - rg)
        factors = tl.load(factor, mask=factor_mask, other=0.0)
        gradient = tl.sum(factors * R[:, None], axis=0)
        tl.store(grad_W + c.to(tl.int64) * stride + t, gradient, mask=c < K)
        if WRITE_R:
            tl.store(R_out + t * D + every, R, mask=some)
        else:
            sums += R[:, None] * w[None, :]
        tl.debug_barrier()  # scratch is written again

    if not WRITE_R:
        out = every[:, None] * K2 + c[None, :]
        tl.store(partial_B + program.to(tl.int64) * (D2 * K2) + out, sums)
    tl.store(partial_loss + program, loss)


@triton.jit
def _read(x, out, n, BLOCK: tl.constexpr):
    """Sums of contiguous blocks of x, to measure the read rate of the card."""
    total = tl.zeros([BLOCK], tl.float32)
    program, programs = tl.program_id(0), tl.num_programs(0)
    for block in range(program, n // BLOCK, programs):
        total += tl.load(x + tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + program, tl.sum(total, axis=0))


def read_sum(x: torch.Tensor, programs: int, block: int = 8192, warps: int = 8) -> torch.Tensor:
    """Partial sums of a float32 vector, one per program: a pass that does nothing but read."""
    out = torch.empty(programs, dtype=torch.float32, device=x.device)
    _read[(programs,)](x, out, x.numel(), BLOCK=block, num_warps=warps)
    return out


def multiprocessors(device: torch.device) -> int:
    """Multiprocessors of the card; 2 under the interpreter, where there is none."""
    if device.type != "cuda":
        return 2
    return torch.cuda.get_device_properties(device).multi_processor_count


def lanes_records(packed: torch.Tensor, anchor: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    """Records (groups, P + 2 d, 32) of packed (m, P), anchor (m, d) and g (m, d), padded with 0."""
    rows = torch.cat([packed, anchor, g], dim=1)
    spare = -len(rows) % MOST_LANES
    if spare:
        rows = torch.cat([rows, rows.new_zeros(spare, rows.shape[1])])
    return rows.view(-1, GROUP, rows.shape[1]).transpose(1, 2).contiguous()


def gradients(
    grams: torch.Tensor,
    anchor: torch.Tensor | None,
    g: torch.Tensor | None,
    sums: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    B: torch.Tensor,
    W: torch.Tensor,
    grad_W: torch.Tensor,
    setting: Setting,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum of losses () and R W' (d, k) of m tasks; B'R is written to grad_W.

    Parameters
    ----------
    grams : tensor (m / 32, P + 2 d, 32), (m, P) or (m, d, d)
        As ``setting.layout`` says.
    anchor, g : tensor (m, d)
        None for records, which hold them.
    sums : tensors (m,) float64
        q, response and weight.
    B : tensor (d, k) float64, contiguous
    W, grad_W : tensor (k, m) float64
        Rows may be apart from each other; both with the same distance.
    """
    q, response, weight = sums
    (d, k), m, device = B.shape, len(q), B.device
    if k > 1 and W.stride(0) != grad_W.stride(0):
        raise ValueError("W and grad_W must have the same distance between rows.")
    d2, k2 = triton.next_power_of_2(d), triton.next_power_of_2(k)
    programs = multiprocessors(device) * setting.per_sm
    if setting.layout == "lanes":
        tile = 32 * setting.warps
        programs = min(programs, triton.cdiv(m, tile))
        partial_B = torch.empty((programs, d2, k2), dtype=torch.float64, device=device)
        partial_loss = torch.empty(programs, dtype=torch.float64, device=device)
        _lanes[(programs,)](
            grams, q, response, weight, B, W, grad_W, partial_B, partial_loss,
            m, W.stride(0), 0,
            D=d, K=k, D2=d2, K2=k2, TILE=tile, REDUCE=setting.reduce,
            num_warps=setting.warps, num_stages=1,
            maxnreg=setting.registers,
        )  # fmt: skip
        return partial_loss.sum(), partial_B.sum(0)[:d, :k]
    assert anchor is not None
    assert g is not None
    width = setting.column_blocks * setting.columns
    d2 = max(d2, width, setting.rows)
    programs = min(programs, m)
    write_R = d2 * k2 > MOST_SUMS_PER_THREAD * 32 * setting.warps
    partial_loss = torch.empty(programs, dtype=torch.float64, device=device)
    partial_B = torch.empty(
        (0 if write_R else programs, d2, k2), dtype=torch.float64, device=device
    )
    R = torch.empty((m if write_R else 0, d), dtype=torch.float64, device=device)
    scratch = torch.empty((programs, 3, d2), dtype=torch.float64, device=device)
    _blocks[(programs,)](
        grams, anchor, g, q, response, weight, B, W, grad_W, partial_B, partial_loss, scratch, R,
        m, W.stride(0),
        D=d, K=k, D2=d2, K2=k2, ROWS=setting.rows, BLOCKS=setting.column_blocks,
        COLUMNS=setting.columns, FULL=setting.layout == "full", WRITE_R=write_R,
        STAGES=setting.stages, num_warps=setting.warps, num_stages=1,
        maxnreg=setting.registers,
    )  # fmt: skip
    grad_B = (W @ R).T if write_R else partial_B.sum(0)[:d, :k]
    return partial_loss.sum(), grad_B
