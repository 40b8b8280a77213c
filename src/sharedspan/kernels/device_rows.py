"""From rows in the host's memory to statistics on a GPU.

Threads copy pieces of rows to pinned buffers, which together fit in the cache of a processor, so
that rows are read from memory once. From there the pieces travel to one of two blocks of whole
tasks on the card, while the other block is summed. Only sums stay, so tables may be larger than the
card.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import torch

from sharedspan.kernels.device_matrix import empty_pinned
from sharedspan.kernels.threads import computed_ahead

MOST_FEATURES = 128  # beyond, the Gram of a task exceeds the registers of a program
BLOCK_BYTES = 1 << 26  # of rows that are summed together
PIECE_BYTES = 1 << 23  # of rows that a thread copies at once
PIECES = 12  # pinned buffers
THREADS = 8  # that copy; more wait for each other


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
) -> tuple[DeviceSums, float]:
    """Sums of the rows of all tasks, on the device, and the largest size of a response.

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

    sums = DeviceSums.empty(len(starts) - 1, X.shape[1], device)
    at, zero = torch.as_tensor(starts).to(device), torch.as_tensor(origin).to(device)
    sources = [a for a in (X, y, weight) if a is not None]
    largest = torch.zeros((), device=device)
    for first, last, (x, target, *w) in copied_blocks(sources, order, starts, device):
        out = tuple(value[first:last] for value in vars(sums).values())
        places = at[first : last + 1] - starts[first]
        triton_gather.task_sums(x, target, w[0] if w else None, places, zero, centred, out)
        largest = torch.maximum(largest, target.abs().amax())
    return sums, float(largest)


def copied_blocks(
    sources: list[np.ndarray], order: np.ndarray | None, starts: np.ndarray, device: torch.device
) -> Iterator[tuple[int, int, list[torch.Tensor]]]:
    """Ranges of tasks with copies of the rows of all sources on the device.

    A block is valid until the next one is requested.
    """
    row_bytes = sum(a.itemsize * a[0].size for a in sources)
    bounds = _block_bounds(starts, BLOCK_BYTES // row_bytes)
    edges, step = starts[bounds], max(PIECE_BYTES // row_bytes, 1)
    pieces = [
        (block, first, min(first + step, edges[block + 1]))
        for block in range(len(bounds) - 1)
        for first in range(edges[block], edges[block + 1], step)
    ]
    longest, count = int(np.diff(edges).max()), min(PIECES, len(pieces))
    pinned = [_Pinned(sources, min(step, longest), device) for _ in range(count)]
    blocks = [
        [torch.empty((longest, *a.shape[1:]), dtype=kind, device=device)
         for a, kind in zip(sources, pinned[0].kinds, strict=True)]
        for _ in range(min(2, len(bounds) - 1))
    ]  # fmt: skip
    copying = torch.cuda.Stream(device) if device.type == "cuda" else None
    summed = [torch.cuda.Event() for _ in blocks] if copying is not None else []

    def fill(i: int) -> None:
        _, first, last = pieces[i]
        pinned[i % count].fill(sources, slice(first, last) if order is None else order[first:last])

    for i in computed_ahead(fill, len(pieces), count, THREADS):
        block, first, last = pieces[i]
        slot, begin, end = block % 2, edges[block], edges[block + 1]
        if copying is not None and first == begin:
            copying.wait_event(summed[slot])
        there = [a[first - begin : last - begin] for a in blocks[slot]]
        pinned[i % count].send(there, copying)
        if last == end:
            if copying is not None:
                torch.cuda.current_stream(device).wait_stream(copying)
            yield bounds[block], bounds[block + 1], [a[: end - begin] for a in blocks[slot]]
            if copying is not None:
                summed[slot].record(torch.cuda.current_stream(device))


def _block_bounds(starts: np.ndarray, limit: int) -> np.ndarray:
    """First tasks of blocks of at most ``limit`` rows or of one task, and the end."""
    bounds = [0]
    while bounds[-1] < len(starts) - 1:
        end = int(np.searchsorted(starts, starts[bounds[-1]] + limit, side="right")) - 1
        bounds.append(max(end, bounds[-1] + 1))
    return np.array(bounds)


class _Pinned:
    """Pinned memory for a piece of rows of all sources."""

    def __init__(self, sources: list[np.ndarray], n_rows: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.kinds = [torch.from_numpy(np.empty(0, a.dtype)).dtype for a in sources]
        self.arrays = [
            empty_pinned((n_rows, *a.shape[1:]), kind, on_gpu)
            for a, kind in zip(sources, self.kinds, strict=True)
        ]
        self.views = [a.numpy() for a in self.arrays]
        self.left = torch.cuda.Event() if on_gpu else None

    def fill(self, sources: list[np.ndarray], rows: slice | np.ndarray) -> None:
        """Copy rows here, once those that were here have left."""
        if self.left is not None:
            self.left.synchronize()
        for source, view in zip(sources, self.views, strict=True):
            if isinstance(rows, slice):
                view[: rows.stop - rows.start] = source[rows]
            else:
                np.take(source, rows, axis=0, out=view[: len(rows)], mode="clip")

    def send(self, there: list[torch.Tensor], stream: torch.cuda.Stream | None) -> None:
        """Begin to copy the rows to the device."""
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            for a, b in zip(there, self.arrays, strict=True):
                a.copy_(b[: len(a)], non_blocking=True)
            if self.left is not None:
                self.left.record(stream)
