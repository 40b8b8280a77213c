"""Task statistics in blocks, on a device or streamed to it from the host.

Grams, anchors and g are stored as float32 or float64. Statistics that exceed the memory of the GPU
stay on the host and pass through two buffers, one filled while the other is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch

from sharedspan.kernels.cpu import packed_size
from sharedspan.kernels.device_matrix import empty_pinned, free_memory, out_of_memory, taking

SHARE_OF_FREE_MEMORY = 0.8
NUMBERS_PER_TASK = 64  # float64 numbers per task, reserved for W, its gradients and their sums
TASK_MULTIPLE = 128  # blocks and chunks are multiples of this many tasks
CHUNK_BYTES = {"cpu": 1 << 25, "cuda": 1 << 29}  # float64 Grams per torch.bmm

Array: TypeAlias = np.ndarray | torch.Tensor


def triton_kernels(device: torch.device, n_features: int) -> ModuleType | None:
    """The module ``triton_pass`` if it can run: with CUDA, or in Triton's interpreter."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None
    try:
        from sharedspan.kernels import triton_pass
    except ImportError:
        return None
    return triton_pass if n_features <= triton_pass.MOST_FEATURES else None


@dataclass(frozen=True)
class GramBlock:
    """Grams, anchors and g of the tasks first <= t < last.

    parts is (records,) with records (groups, P + 2 d, 32) in the layout "lanes", and (Grams,
    anchor, g) with Grams (m, d, d), anchor (m, d) and g (m, d) in "full".
    """

    first: int
    last: int
    parts: tuple[torch.Tensor, ...]


class DeviceBlocks:
    """Task statistics on a device, block by block.

    Parameters
    ----------
    packed : array of shape (T, P)
        Upper triangles, P = d (d + 1) / 2. Arrays are NumPy's or PyTorch's.
    anchor, g : array of shape (T, d)
    q, response, weight : array of shape (T,)
    device : str or torch.device
        "cpu" or "cuda"; by default "cuda" if it is available.
    dtype : {"float32", "float64"}
        Storage of the Grams, anchors and g.
    block_size : int, optional
        Tasks in a block. With more tasks, blocks stay on the host and two of them at a time are on
        the device. By default all tasks, or as many as fit in the memory of the GPU.

    Attributes
    ----------
    layout : {"lanes", "full"}
        Interleaved triangles of 32 tasks, or whole Grams task by task; see ``triton_pass``.
    """

    def __init__(
        self,
        packed: Array,
        anchor: Array,
        g: Array,
        q: Array,
        response: Array,
        weight: Array,
        *,
        device: str | torch.device | None = None,
        dtype: str = "float64",
        block_size: int | None = None,
    ) -> None:
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device, self.storage = torch.device(device), getattr(torch, dtype)
        self.n_tasks, d = anchor.shape
        self.n_features = d
        self.triton = triton_kernels(self.device, d)
        few = self.triton is not None and d <= self.triton.LANES_MOST_FEATURES
        self.layout = "lanes" if few else "full"
        self.bytes_per_task = ((packed_size(d) if few else d * d) + 2 * d) * self.storage.itemsize
        self._positions = _positions(d).to(self.device)
        self.block_size = self._choose_block_size(block_size)
        with self._taking(self.bytes_per_task * min(2 * self.block_size, self.n_tasks)):
            self.q, self.response, self.weight = (
                _tensor(x, torch.float64, self.device) for x in (q, response, weight)
            )
            self.blocks = [
                self._build(packed, anchor, g, first, min(first + self.block_size, self.n_tasks))
                for first in range(0, self.n_tasks, self.block_size)
            ]
        self._buffers: list[tuple[torch.Tensor, ...]] = []

    def _choose_block_size(self, block_size: int | None) -> int:
        """Tasks per block: the given number, else all of them or half of what fits."""
        if block_size is not None:
            return min(block_size, self.n_tasks)
        # Besides W and its gradients, the pass over full Grams writes R, (T, d).
        reserved = 8 * (NUMBERS_PER_TASK + self.n_features) * self.n_tasks
        available = SHARE_OF_FREE_MEMORY * free_memory(self.device) - reserved
        if available >= self.n_tasks * self.bytes_per_task:
            return self.n_tasks
        fitting = int(available / (2 * self.bytes_per_task)) // TASK_MULTIPLE * TASK_MULTIPLE
        if fitting < TASK_MULTIPLE:
            size = reserved + 2 * TASK_MULTIPLE * self.bytes_per_task
            raise out_of_memory(self.device, size, self.n_tasks, TASK_MULTIPLE)
        return fitting

    @property
    def streaming(self) -> bool:
        """Whether blocks come from the host for each pass."""
        return self.device.type == "cuda" and self.block_size < self.n_tasks

    def _taking(self, size: int) -> Any:
        """``taking``, with a block size that fits and is at most half of the present one."""

        def block_size() -> int:
            available = SHARE_OF_FREE_MEMORY * free_memory(self.device) / 2
            fitting = int(min(available / self.bytes_per_task, self.block_size / 2))
            return max(fitting // TASK_MULTIPLE * TASK_MULTIPLE, 1)

        return taking(self.device, size, self.n_tasks, block_size)

    def _build(self, packed: Array, anchor: Array, g: Array, first: int, last: int) -> GramBlock:
        """Tasks first <= t < last in the layout, on the device or in pinned host memory."""
        d, m = self.n_features, last - first
        home = torch.device("cpu") if self.streaming else self.device
        shapes: list[tuple[int, ...]] = [(m, d, d), (m, d), (m, d)]
        if self.triton is not None and self.layout == "lanes":
            shapes = [self.triton.records_shape(m, d)]
        parts = tuple(_empty(shape, self.storage, home, self.streaming) for shape in shapes)
        numbers = CHUNK_BYTES[home.type] // 8
        chunk = max(numbers // (packed_size(d) * TASK_MULTIPLE), 1) * TASK_MULTIPLE
        for a in range(0, m, chunk):
            b = min(a + chunk, m)
            rows = slice(first + a, first + b)
            pieces = [_tensor(x[rows], self.storage, home) for x in (packed, anchor, g)]
            if self.triton is not None and self.layout == "lanes":
                self.triton.write_records(parts[0], a, pieces)
                continue
            pieces[0] = pieces[0][:, self._positions.to(home)].view(-1, d, d)
            for part, piece in zip(parts, pieces, strict=True):
                part[a:b] = piece
        return GramBlock(first, last, parts)

    def _on_device(self) -> Iterator[GramBlock]:
        """Yield the blocks; a streamed block is copied while the one before it is in use.

        A block is valid until the next one is requested.
        """
        if not self.streaming:
            yield from self.blocks
            return
        current = torch.cuda.current_stream(self.device)
        copying = torch.cuda.Stream(self.device)
        copying.wait_stream(current)  # the previous pass may still use the buffers
        if not self._buffers:
            with self._taking(2 * self.block_size * self.bytes_per_task):
                self._buffers = [
                    tuple(torch.empty_like(x, device=self.device) for x in self.blocks[0].parts)
                    for _ in range(2)
                ]
        used: list[torch.cuda.Event | None] = [None, None]

        def load(n: int) -> tuple[GramBlock, torch.cuda.Event]:
            block, slot = self.blocks[n], n % 2
            with torch.cuda.stream(copying):
                if (event := used[slot]) is not None:
                    copying.wait_event(event)
                parts = tuple(
                    buffer[: len(x)].copy_(x, non_blocking=True)
                    for buffer, x in zip(self._buffers[slot], block.parts, strict=True)
                )
                copied = torch.cuda.Event()
                copied.record(copying)
            return GramBlock(block.first, block.last, parts), copied

        following = load(0)
        for n in range(len(self.blocks)):
            block, copied = following
            if n + 1 < len(self.blocks):
                following = load(n + 1)
            current.wait_event(copied)
            yield block
            event = torch.cuda.Event()
            event.record(current)
            used[n % 2] = event

    def _chunks(self, block: GramBlock) -> Iterator[GramBlock]:
        """Yield the block a few tasks at a time, in the layout "full" and as float64."""
        d = self.n_features
        kind = "cuda" if self.device.type == "cuda" else "cpu"
        chunk = max(CHUNK_BYTES[kind] // (8 * d * d * TASK_MULTIPLE), 1) * TASK_MULTIPLE
        for a in range(0, block.last - block.first, chunk):
            b = min(a + chunk, block.last - block.first)
            if self.triton is not None and self.layout == "lanes":
                rows = self.triton.read_records(block.parts[0], a, b).double()
                G, anchor, g = rows.split([packed_size(d), d, d], dim=1)
                G = G[:, self._positions].view(-1, d, d)
            else:
                G, anchor, g = (x[a:b].double() for x in block.parts)
            yield GramBlock(block.first + a, block.first + b, (G, anchor, g))


def _positions(d: int) -> torch.Tensor:
    """Positions of the d^2 numbers of a symmetric matrix in its packed triangle."""
    i, j = torch.triu_indices(d, d)
    positions = torch.empty((d, d), dtype=torch.int64)
    positions[i, j] = positions[j, i] = torch.arange(packed_size(d))
    return positions.ravel()


def _tensor(x: Array, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        own = device.type == "cpu"  # the user's memory is never shared
        return torch.from_numpy(np.ascontiguousarray(x)).to(device, dtype, copy=own)
    return x.to(device, dtype)


def _empty(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, pinned: bool
) -> torch.Tensor:
    """Zeros, because padding may be read; in pinned host memory if the system allows it."""
    if not pinned:
        return torch.zeros(shape, dtype=dtype, device=device)
    return empty_pinned(shape, dtype, True).zero_()
