"""From rows in the host's memory to statistics on a GPU.

Rows are copied in blocks of whole tasks through two pinned buffers: while threads fill one, the
other is on its way to the card, and the block before it is summed there. Only sums stay, so tables
may be larger than the card.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sharedspan.kernels.threads import over_tasks

MOST_FEATURES = 128  # beyond, the Gram of a task exceeds the registers of a program
BLOCK_BYTES = 1 << 27  # of rows that are copied and summed together
PIECE = 1 << 14  # rows that a thread copies at once
PIECE_COST = 5e6  # of a piece in floating-point operations, which decides on the use of threads


@dataclass
class DeviceSums:
    """The sums of ``GramStatistics`` as tensors on a device, float64, and X'y."""

    n: torch.Tensor  # (T,)
    mean: torch.Tensor  # (T, d)
    y_mean: torch.Tensor  # (T,)
    packed: torch.Tensor  # (T, d (d + 1) / 2)
    anchor: torch.Tensor  # (T, d)
    g: torch.Tensor  # (T, d)
    q: torch.Tensor  # (T,)
    products: torch.Tensor  # (T, d) X'y of the centred rows

    @classmethod
    def empty(cls, T: int, d: int, device: torch.device) -> DeviceSums:
        """Sums that are not initialised."""
        shapes = (T,), (T, d), (T,), (T, d * (d + 1) // 2), (T, d), (T, d), (T,), (T, d)
        return cls(*(torch.empty(s, dtype=torch.float64, device=device) for s in shapes))

    def transformed(self, P: np.ndarray, inverse: np.ndarray) -> DeviceSums:
        """Sums of the features X P, P (d, d') with a left inverse; see ``transform_grams``."""
        from sharedspan.kernels import triton_gather

        map_, back = (torch.as_tensor(a).to(self.n.device) for a in (P, inverse))
        out = DeviceSums.empty(len(self.n), P.shape[1], self.n.device)
        out.n, out.y_mean, out.mean = self.n, self.y_mean, self.mean @ map_
        triton_gather.transform(
            self.packed, self.anchor, self.g, self.q, self.n, map_, back,
            (out.packed, out.anchor, out.g, out.q, out.products),
        )  # fmt: skip
        return out


def gather_rows(
    X: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None,
    order: np.ndarray | None,
    starts: np.ndarray,
    origin: np.ndarray,
    centred: bool,
    device: torch.device,
) -> DeviceSums:
    """Sums of the rows of all tasks, on the device.

    Parameters
    ----------
    X : ndarray of shape (rows, d), float32 or float64
    y : ndarray of shape (rows,)
    weight : ndarray of shape (rows,), optional
    order : ndarray of shape (rows,), optional
        Rows task by task.
    starts : ndarray of shape (T + 1,)
    origin : ndarray of shape (d,)
    centred : bool
    device : torch.device
    """
    from sharedspan.kernels import triton_gather

    T, d = len(starts) - 1, X.shape[1]
    sums = DeviceSums.empty(T, d, device)
    at = torch.as_tensor(starts).to(device)
    zero = torch.as_tensor(origin).to(device)
    for first, last, (x, target, w) in copied_blocks(X, y, weight, order, starts, device):
        part = slice(first, last)
        out = tuple(value[part] for value in vars(sums).values())
        places = at[first : last + 1] - starts[first]
        triton_gather.task_sums(x, target, w, places, zero, centred, out)
    return sums


def copied_blocks(
    X: np.ndarray,
    y: np.ndarray,
    weight: np.ndarray | None,
    order: np.ndarray | None,
    starts: np.ndarray,
    device: torch.device,
) -> Iterator[tuple[int, int, tuple[Any, Any, Any]]]:
    """Ranges of tasks with copies of their X, y and weights (or None) on the device.

    A block is valid until the next one is requested.
    """
    limit = max(BLOCK_BYTES // (X.shape[1] * X.itemsize), int(np.diff(starts).max()))
    bounds = _block_bounds(starts, limit)
    longest = int(np.diff(starts[bounds]).max())
    sources = [a for a in (X, y, weight) if a is not None]
    slots = [_Slot(sources, longest, device) for _ in range(min(2, len(bounds) - 1))]
    copying = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(block: int) -> None:
        """Fill a slot, and begin to copy it."""
        lo, hi = int(starts[bounds[block]]), int(starts[bounds[block + 1]])
        rows = slice(lo, hi) if order is None else order[lo:hi]
        slots[block % 2].fill(sources, rows, hi - lo)
        slots[block % 2].send(hi - lo, copying)

    begin(0)
    for block in range(len(bounds) - 1):
        if block + 2 < len(bounds):
            begin(block + 1)  # while this block is on its way
        x, target, *weights = slots[block % 2].arrived()
        yield bounds[block], bounds[block + 1], (x, target, weights[0] if weights else None)
        slots[block % 2].release()


def _block_bounds(starts: np.ndarray, limit: int) -> np.ndarray:
    """First tasks of blocks of at most ``limit`` rows, and the end."""
    bounds = [0]
    while bounds[-1] < len(starts) - 1:
        end = int(np.searchsorted(starts, starts[bounds[-1]] + limit, side="right")) - 1
        bounds.append(end)
    return np.array(bounds)


class _Slot:
    """Pinned memory for a block of rows, and the memory of the device to which they are copied."""

    def __init__(self, sources: list[np.ndarray], n_rows: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.host = [_pinned(a, n_rows, on_gpu) for a in sources]
        self.card = [torch.empty_like(a, device=device) for a in self.host] if on_gpu else self.host
        self.there = self.card  # the rows on the device
        self.copied, self.used = (torch.cuda.Event() if on_gpu else None for _ in range(2))

    def fill(self, sources: list[np.ndarray], rows: slice | np.ndarray, count: int) -> None:
        """Copy rows of the sources to pinned memory, once those that it holds have left."""
        if self.copied is not None:
            self.copied.synchronize()
        buffers = [buffer.numpy() for buffer in self.host]

        def work(first: int, last: int) -> None:
            lo, hi = first * PIECE, min(last * PIECE, count)
            for source, buffer in zip(sources, buffers, strict=True):
                if isinstance(rows, slice):
                    buffer[lo:hi] = source[rows.start + lo : rows.start + hi]
                else:
                    np.take(source, rows[lo:hi], axis=0, out=buffer[lo:hi], mode="clip")

        pieces = -(-count // PIECE)
        over_tasks(work, pieces, PIECE_COST * pieces)

    def send(self, count: int, stream: torch.cuda.Stream | None) -> None:
        """Begin to copy the rows to the device."""
        self.there = [there[:count] for there in self.card]
        if stream is None or self.copied is None:
            return
        with torch.cuda.stream(stream):
            stream.wait_event(self.used)  # the rows before these have been summed
            for there, here in zip(self.there, self.host, strict=True):
                there.copy_(here[:count], non_blocking=True)
            self.copied.record(stream)

    def arrived(self) -> list[torch.Tensor]:
        """The rows on the device, for what is computed there from now on."""
        if self.copied is not None:
            torch.cuda.current_stream(self.card[0].device).wait_event(self.copied)
        return self.there

    def release(self) -> None:
        """Let the rows be replaced once all that has been asked of the device so far is done."""
        if self.used is not None:
            self.used.record(torch.cuda.current_stream(self.card[0].device))


def _pinned(like: np.ndarray, n_rows: int, pinned: bool) -> torch.Tensor:
    """Room for rows on the host, in pinned memory if possible."""
    shape, kind = (n_rows, *like.shape[1:]), torch.from_numpy(np.empty(0, like.dtype)).dtype
    try:
        return torch.empty(shape, dtype=kind, pin_memory=pinned)
    except RuntimeError:  # beyond the system's limit of locked memory: copies are slower then
        return torch.empty(shape, dtype=kind)
