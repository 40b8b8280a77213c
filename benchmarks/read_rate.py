"""A Triton kernel that only reads, for the read rate of a GPU in `gpu.py`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _read(x, out, n, BLOCK: tl.constexpr):
    """Sums of contiguous blocks of x, to measure the read rate of the GPU."""
    total = tl.zeros([BLOCK], tl.float32)
    program, programs = tl.program_id(0), tl.num_programs(0)
    for block in range(program, n // BLOCK, programs):
        total += tl.load(x + tl.cast(block, tl.int64) * BLOCK + tl.arange(0, BLOCK))
    tl.store(out + program, tl.sum(total, axis=0))


def read_sum(x: torch.Tensor, programs: int, block: int = 8192, warps: int = 8) -> torch.Tensor:
    """Partial sums of a float32 vector, one per program: a pass that only reads."""
    out = torch.empty(programs, dtype=torch.float32, device=x.device)
    _read[(programs,)](x, out, x.numel(), BLOCK=block, num_warps=warps)
    return out
