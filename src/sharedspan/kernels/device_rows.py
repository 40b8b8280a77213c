"""From rows in the host's memory to statistics on a GPU.

Rows are copied in blocks of whole tasks through two pinned buffers: while threads fill one, the
other is on its way to the card, and the block before it is summed there. Only sums stay, so tables
may be larger than the card.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sharedspan.kernels.accumulate import ANCHOR_RIDGE, CONSTANT
from sharedspan.kernels.device_blocks import _positions
from sharedspan.kernels.threads import n_threads
from sharedspan.kernels.transform import CANONICAL_RIDGE, LONG, SMALLEST_SIZE

MOST_FEATURES = 128  # beyond, the Gram of a task exceeds the registers of a program
BLOCK_BYTES = 1 << 28  # of rows that are copied together
CHUNK = 1 << 15  # tasks whose full Grams are on the card at once


@dataclass
class DeviceSums:
    """The sums of ``GramStatistics`` as tensors on a device, float64."""

    n: torch.Tensor  # (T,)
    mean: torch.Tensor  # (T, d)
    y_mean: torch.Tensor  # (T,)
    packed: torch.Tensor  # (T, d (d + 1) / 2)
    anchor: torch.Tensor  # (T, d)
    g: torch.Tensor  # (T, d)
    q: torch.Tensor  # (T,)

    @classmethod
    def empty(cls, T: int, d: int, device: torch.device) -> DeviceSums:
        """Sums that are not initialised."""
        shapes = (T,), (T, d), (T,), (T, d * (d + 1) // 2), (T, d), (T, d), (T,)
        return cls(*(torch.empty(s, dtype=torch.float64, device=device) for s in shapes))

    def grams(self, first: int, last: int) -> torch.Tensor:
        """The full Grams of the tasks first <= t < last, (m, d, d)."""
        d = self.anchor.shape[1]
        return self.packed[first:last][:, _positions(d).to(self.packed.device)].view(-1, d, d)

    def chunks(self) -> Iterator[tuple[int, int]]:
        """Ranges of tasks."""
        T = len(self.n)
        return ((first, min(first + CHUNK, T)) for first in range(0, T, CHUNK))

    def transformed(self, P: np.ndarray, inverse: np.ndarray) -> DeviceSums:
        """Sums of the features X P, P (d, d') with a left inverse; see ``transform_grams``."""
        map_, back = (torch.as_tensor(a).to(self.n.device) for a in (P, inverse))
        reduced = P.shape[1]
        i, j = torch.triu_indices(reduced, reduced)
        out = DeviceSums.empty(len(self.n), reduced, self.n.device)
        out.n, out.y_mean, out.mean = self.n, self.y_mean, self.mean @ map_
        for first, last in self.chunks():
            part = slice(first, last)
            G, a, g, n = self.grams(first, last), self.anchor[part], self.g[part], self.n[part]
            mapped = map_.T @ (G @ map_)
            Ga = torch.bmm(G, a[:, :, None])[:, :, 0]
            total = self.q[part] + (a * (Ga + 2 * g)).sum(1)
            solved = a @ back.T
            long = torch.nonzero(~(n * (solved**2).sum(1) <= LONG * total))[:, 0]
            if len(long):
                ridge = CANONICAL_RIDGE * n[long].clamp(min=SMALLEST_SIZE)
                A = mapped[long] + torch.diag_embed(ridge[:, None].expand(-1, reduced))
                c = (Ga[long] + g[long]) @ map_
                solved[long] = _solve(A, c)
            delta = solved @ map_.T - a
            moved = g - torch.bmm(G, delta[:, :, None])[:, :, 0]
            out.q[part] = (self.q[part] - (delta * (g + moved)).sum(1)).clamp(min=0.0)
            out.anchor[part], out.g[part] = solved, moved @ map_
            out.packed[part] = mapped[:, i, j]
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
    i, j = torch.triu_indices(d, d)
    for first, last, (x, target, w) in copied_blocks(X, y, weight, order, starts, device):
        part = slice(first, last)
        block = x, target, w
        places = at[first : last + 1] - starts[first]
        n, mean, y_mean, G, cross = triton_gather.task_sums(*block, places, zero, centred)
        anchor = _near_least_squares(G, cross, n, mean)
        g, q = triton_gather.sums_at_anchor(*block, places, zero, mean, y_mean, anchor)
        for name, value in (("n", n), ("mean", mean), ("y_mean", y_mean), ("anchor", anchor)):
            getattr(sums, name)[part] = value
        sums.g[part], sums.q[part], sums.packed[part] = g, q, G[:, i, j]
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
    bounds = [0]
    while bounds[-1] < len(starts) - 1:
        end = int(np.searchsorted(starts, starts[bounds[-1]] + limit, side="right")) - 1
        bounds.append(end)
    sources = [a for a in (X, y, weight) if a is not None]
    weighted, on_gpu = weight is not None, device.type == "cuda"
    host = [[_pinned((limit, *a.shape[1:]), a.dtype, on_gpu) for a in sources] for _ in range(2)]
    card = [[torch.empty_like(b, device=device) for b in buffers] for buffers in host]
    copying = torch.cuda.Stream(device) if on_gpu else None
    current = torch.cuda.current_stream(device) if on_gpu else None
    copied: list[Any] = [None, None]
    used: list[Any] = [None, None]
    workers = n_threads()
    with ThreadPoolExecutor(workers) as pool:

        def fill(n: int) -> list[torch.Tensor]:
            """Fill a pinned buffer, and begin to copy it."""
            slot, lo, hi = n % 2, int(starts[bounds[n]]), int(starts[bounds[n + 1]])
            if copied[slot] is not None:
                copied[slot].synchronize()  # the buffer's last copy has ended
            cuts = np.linspace(lo, hi, workers + 1).astype(int)

            def piece(k: int) -> None:
                a, b = cuts[k], cuts[k + 1]
                rows = slice(a, b) if order is None else order[a:b]
                for source, buffer in zip(sources, host[slot], strict=True):
                    out = buffer.numpy()[a - lo : b - lo]
                    if isinstance(rows, slice):
                        np.copyto(out, source[rows])
                    else:
                        np.take(source, rows, axis=0, out=out, mode="clip")

            list(pool.map(piece, range(workers)))
            if copying is None:
                return [buffer[: hi - lo] for buffer in host[slot]]
            with torch.cuda.stream(copying):
                if used[slot] is not None:
                    copying.wait_event(used[slot])
                parts = [
                    there[: hi - lo].copy_(here[: hi - lo], non_blocking=True)
                    for there, here in zip(card[slot], host[slot], strict=True)
                ]
                copied[slot] = torch.cuda.Event()
                copied[slot].record(copying)
            return parts

        following = fill(0)
        for n in range(len(bounds) - 1):
            parts = following
            if n + 2 < len(bounds):
                following = fill(n + 1)  # while this block is on its way
            if current is not None:
                current.wait_event(copied[n % 2])
            yield bounds[n], bounds[n + 1], (parts[0], parts[1], parts[2] if weighted else None)
            if current is not None:
                used[n % 2] = torch.cuda.Event()
                used[n % 2].record(current)


def _pinned(shape: tuple[int, ...], dtype: np.dtype, pinned: bool) -> torch.Tensor:
    """A buffer on the host, in pinned memory if possible."""
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    try:
        return torch.empty(shape, dtype=kind, pin_memory=pinned)
    except RuntimeError:  # beyond the system's limit of locked memory: copies are slower then
        return torch.empty(shape, dtype=kind)


def _near_least_squares(
    G: torch.Tensor, c: torch.Tensor, n: torch.Tensor, mean: torch.Tensor
) -> torch.Tensor:
    """Anchors (m, d): solutions of (G + ridge) a = c, zero for features that are constant."""
    diagonal = G.diagonal(dim1=1, dim2=2)
    varies = diagonal > n[:, None] * (CONSTANT * mean) ** 2
    A = G * (varies[:, :, None] & varies[:, None, :])
    A = A + torch.diag_embed(torch.where(varies, ANCHOR_RIDGE * diagonal, 1.0))
    return _solve(A, torch.where(varies, c, 0.0))


def _solve(A: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """Solutions (m, d) of A x = c; zero for a matrix without a Cholesky factor.

    Nothing is asked of the card, so that it never waits for the host.
    """
    L, info = torch.linalg.cholesky_ex(A)
    failed = (info > 0)[:, None]
    L = torch.where(failed[:, :, None], torch.eye(A.shape[1], dtype=A.dtype, device=A.device), L)
    return torch.cholesky_solve(torch.where(failed, 0.0, c)[:, :, None], L)[:, :, 0]
