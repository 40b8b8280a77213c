"""The pass over tasks with PyTorch, made for a GPU.

    u_t = v_t - r_t a_t,   R_t = weight_t (G_t u_t - r_t g_t),   v_t = B w_t
    loss_t = weight_t / 2 max(r_t^2 q_t - 2 r_t u_t'g_t + u_t'G_t u_t, 0)

``DeviceGrams`` holds the statistics where they are used. Grams, anchors and g are stored as float32
or float64; products and sums are float64.

On a GPU the pass is a Triton kernel (``triton_pass``). Without Triton, on the CPU, and with more
than 1,024 features it is ``torch.bmm`` over a few tasks at a time: slower, with the same results.
Statistics that exceed the memory of the GPU stay on the host and pass through two buffers, one
filled while the other is used.

Sums have a fixed order: the same input gives the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch

from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.kernels.device_matrix import (
    DeviceMatrix,
    free_memory,
    out_of_memory,
    sum_of_products,
    taking,
)

# Where a pivot of the Cholesky factor is below this share of the largest, eigenvalues decide.
PIVOT_TOLERANCE = 1e-8

SHARE_OF_FREE_MEMORY = 0.8
NUMBERS_PER_TASK = 64  # kept free for W, its gradients and their sums, float64 numbers per task
STEP = 128  # blocks and chunks are multiples of this many tasks
CHUNK_BYTES = {"cpu": 1 << 25, "cuda": 1 << 29}  # of float64 Grams that torch.bmm takes at once

Array: TypeAlias = np.ndarray | torch.Tensor


def triton_kernels(device: torch.device, n_features: int) -> ModuleType | None:
    """The module ``triton_pass`` where it can run: with CUDA, or in Triton's interpreter."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None
    try:
        from sharedspan.kernels import triton_pass
    except ImportError:
        return None
    return triton_pass if n_features <= triton_pass.MOST_FEATURES else None


@dataclass(frozen=True)
class Block:
    """The tasks first <= t < last: Grams, anchors and g in one of the layouts.

    parts is (records,) with records (groups, P + 2 d, 32) in the layout "lanes", and (Grams,
    anchor, g) with Grams (m, d, d), anchor (m, d) and g (m, d) in "full".
    """

    first: int
    last: int
    parts: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Chunk:
    """The tasks first <= t < last: G (m, d, d), anchor (m, d) and g (m, d), float64."""

    first: int
    last: int
    G: torch.Tensor
    anchor: torch.Tensor
    g: torch.Tensor


class DeviceGrams:
    """Per-task sums on a device, and what the objective asks of them.

    Parameters
    ----------
    packed : array of shape (T, P)
        Upper triangles, P = d (d + 1) / 2. Arrays are NumPy's or PyTorch's.
    anchor, g : array of shape (T, d)
    q, response, weight : array of shape (T,)
    device : str or torch.device
        "cpu" or "cuda"; by default "cuda" where there is one.
    dtype : {"float32", "float64"}
        Storage of the Grams, anchors and g.
    block_size : int, optional
        Tasks in a block. With more tasks than that, blocks stay on the host and two of them at a
        time are on the device. By default all tasks, or what fits in the memory of the GPU.

    Attributes
    ----------
    layout : {"lanes", "full"}
        As in ``triton_pass``: triangles of 32 tasks interleaved, or all d^2 numbers task by task.
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
        self.bytes_per_task = ((triangle(d) if few else d * d) + 2 * d) * self.storage.itemsize
        self._place = _places(d).to(self.device)
        self.block_size = self._fitting(block_size)
        with self._taking(self.bytes_per_task * min(2 * self.block_size, self.n_tasks)):
            self.q, self.response, self.weight = (
                _tensor(x, torch.float64, self.device) for x in (q, response, weight)
            )
            self.blocks = [
                self._build(packed, anchor, g, first, min(first + self.block_size, self.n_tasks))
                for first in range(0, self.n_tasks, self.block_size)
            ]
        self._buffers: list[tuple[torch.Tensor, ...]] = []

    def _fitting(self, block_size: int | None) -> int:
        """Tasks per block: as asked for, else all of them or half of what fits."""
        if block_size is not None:
            return min(block_size, self.n_tasks)
        # Besides W and the like, the pass over full Grams writes R, (T, d).
        reserved = 8 * (NUMBERS_PER_TASK + self.n_features) * self.n_tasks
        room = SHARE_OF_FREE_MEMORY * free_memory(self.device) - reserved
        if room >= self.n_tasks * self.bytes_per_task:
            return self.n_tasks
        fitting = int(room / (2 * self.bytes_per_task)) // STEP * STEP
        if fitting < STEP:
            size = reserved + 2 * STEP * self.bytes_per_task
            raise out_of_memory(self.device, size, self.n_tasks, STEP)
        return fitting

    @property
    def streaming(self) -> bool:
        """Whether blocks come from the host for each pass."""
        return self.device.type == "cuda" and self.block_size < self.n_tasks

    def _taking(self, size: int) -> Any:
        """``taking``, with a block size from what is free and half of the present one at most."""

        def block_size() -> int:
            room = SHARE_OF_FREE_MEMORY * free_memory(self.device) / 2
            fitting = int(min(room / self.bytes_per_task, self.block_size / 2))
            return max(fitting // STEP * STEP, 1)

        return taking(self.device, size, self.n_tasks, block_size)

    def _build(self, packed: Array, anchor: Array, g: Array, first: int, last: int) -> Block:
        """Tasks first <= t < last in the layout, on the device or in pinned host memory."""
        d, m = self.n_features, last - first
        home = torch.device("cpu") if self.streaming else self.device
        shapes: list[tuple[int, ...]] = [(m, d, d), (m, d), (m, d)]
        if self.triton is not None and self.layout == "lanes":
            shapes = [self.triton.records_shape(m, d)]
        parts = tuple(_empty(shape, self.storage, home, self.streaming) for shape in shapes)
        chunk = max(CHUNK_BYTES["cpu"] // (8 * triangle(d) * STEP), 1) * STEP
        for a in range(0, m, chunk):
            b = min(a + chunk, m)
            here = slice(first + a, first + b)
            pieces = [_tensor(x[here], self.storage, home) for x in (packed, anchor, g)]
            if self.triton is not None and self.layout == "lanes":
                self.triton.write_records(parts[0], a, pieces)
                continue
            pieces[0] = pieces[0][:, self._place.to(home)].view(-1, d, d)
            for part, piece in zip(parts, pieces, strict=True):
                part[a:b] = piece
        return Block(first, last, parts)

    # ---- blocks and chunks on the device -------------------------------------------------------

    def _on_device(self) -> Iterator[Block]:
        """The blocks one after the other; streamed ones are copied while their forerunner is used.

        Valid until the next one is asked for.
        """
        if not self.streaming:
            yield from self.blocks
            return
        current = torch.cuda.current_stream(self.device)
        copying = torch.cuda.Stream(self.device)
        copying.wait_stream(current)  # the buffers may still be in use by the pass before
        if not self._buffers:
            with self._taking(2 * self.block_size * self.bytes_per_task):
                self._buffers = [
                    tuple(torch.empty_like(x, device=self.device) for x in self.blocks[0].parts)
                    for _ in range(2)
                ]
        used: list[torch.cuda.Event | None] = [None, None]

        def load(n: int) -> tuple[Block, torch.cuda.Event]:
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
            return Block(block.first, block.last, parts), copied

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

    def _chunks(self, block: Block) -> Iterator[Chunk]:
        """The block a few tasks at a time, with full Grams, all as float64."""
        d = self.n_features
        kind = "cuda" if self.device.type == "cuda" else "cpu"
        chunk = max(CHUNK_BYTES[kind] // (8 * d * d * STEP), 1) * STEP
        for a in range(0, block.last - block.first, chunk):
            b = min(a + chunk, block.last - block.first)
            if self.triton is not None and self.layout == "lanes":
                rows = self.triton.read_records(block.parts[0], a, b).double()
                G, anchor, g = rows.split([triangle(d), d, d], dim=1)
                G = G[:, self._place].view(-1, d, d)
            else:
                G, anchor, g = (x[a:b].double() for x in block.parts)
            yield Chunk(block.first + a, block.first + b, G, anchor, g)

    # ---- the pass ------------------------------------------------------------------------------

    def _residuals(self, chunk: Chunk, V: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """R (m, d) and losses (m,) of a chunk at V (m, d)."""
        q, response, weight = self._sums(chunk)
        r = response[:, None]
        u = V - r * chunk.anchor
        Gu = torch.bmm(chunk.G, u[:, :, None])[:, :, 0]
        squares = response**2 * q + (u * (Gu - 2 * r * chunk.g)).sum(1)
        # Not clamp: NaN stays NaN.
        losses = 0.5 * weight * torch.where(squares < 0, torch.zeros_like(squares), squares)
        return weight[:, None] * (Gu - r * chunk.g), losses

    def _sums(self, tasks: Block | Chunk) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, response and weight of these tasks, (m,) each."""
        here = slice(tasks.first, tasks.last)
        return self.q[here], self.response[here], self.weight[here]

    def _pass(
        self, block: Block, B: torch.Tensor, W: torch.Tensor, grad_W: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss () and R W' (d, k) of a block of m tasks at W (k, m); B'R goes to grad_W (k, m)."""
        if self.triton is not None:
            return self.triton.gradients(block.parts, self._sums(block), B, W, grad_W)
        loss, grad_B = W.new_zeros(()), torch.zeros_like(B)
        for chunk in self._chunks(block):
            here = slice(chunk.first - block.first, chunk.last - block.first)
            w = W[:, here]
            R, losses = self._residuals(chunk, w.T @ B.T)
            loss += losses.sum()
            grad_B += R.T @ w.T
            grad_W[:, here] = B.T @ R.T
        return loss, grad_B

    def to_device(self, W: np.ndarray | DeviceMatrix) -> DeviceMatrix:
        """W (k, T) on the device."""
        if isinstance(W, DeviceMatrix):
            return W
        with self._taking(8 * W.size):
            host = torch.as_tensor(np.ascontiguousarray(W, dtype=np.float64))
            return DeviceMatrix(host.to(self.device, copy=True))

    def _small(self, B: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(np.ascontiguousarray(B, dtype=np.float64)).to(self.device)

    def gradients(
        self, B: np.ndarray, W: np.ndarray | DeviceMatrix
    ) -> tuple[float, np.ndarray, DeviceMatrix, np.ndarray]:
        """loss(BW), R W' (d, k), B'R (k, T) and WW' (k, k), with one copy to the host.

        Parameters
        ----------
        B : ndarray of shape (d, k)
        W : DeviceMatrix of shape (k, T)
        """
        W_data, B_data = self.to_device(W).data, self._small(B)
        with self._taking(8 * W_data.numel()):
            loss, grad_B = W_data.new_zeros(()), torch.zeros_like(B_data)
            grad_W = torch.empty_like(W_data)
            for block in self._on_device():
                tasks = slice(block.first, block.last)
                block_loss, block_grad_B = self._pass(
                    block, B_data, W_data[:, tasks], grad_W[:, tasks]
                )
                loss, grad_B = loss + block_loss, grad_B + block_grad_B
            WWt = sum_of_products(W_data, W_data)
        value, host_B, host_WWt = _to_host(loss, grad_B, WWt)
        return float(value), host_B, DeviceMatrix(grad_W), host_WWt

    def moments(self) -> np.ndarray:
        """Sum of c_t c_t' (d, d), c_t = R_t at V = 0."""
        d = self.n_features
        total = torch.zeros((d, d), dtype=torch.float64, device=self.device)
        with self._taking(CHUNK_BYTES["cuda"]):
            for block in self._on_device():
                for chunk in self._chunks(block):
                    R, _ = self._residuals(chunk, torch.zeros_like(chunk.anchor))
                    total += sum_of_products(R.T, R.T)
        return total.cpu().numpy()

    # ---- least squares in a span ---------------------------------------------------------------

    def _normal(self, block: Block, B: torch.Tensor) -> torch.Tensor:
        """weight_t B'G_t B of a block, (k, k, m).

        Row c of it is B'R for w = e_c and a response of zero, which is what the kernel computes:
        k quick passes instead of a kernel of their own.
        """
        k, m = B.shape[1], block.last - block.first
        weight = self.weight[block.first : block.last]
        A = B.new_empty((k, k, m))
        if self.triton is None:
            for chunk in self._chunks(block):
                here = slice(chunk.first - block.first, chunk.last - block.first)
                A[:, :, here] = (B.T @ (chunk.G @ B)).permute(1, 2, 0) * weight[here]
            return A
        zero = torch.zeros_like(weight)
        for c in range(k):
            W = B.new_zeros((k, m))
            W[c] = 1.0
            self.triton.gradients(block.parts, (zero, zero, weight), B, W, A[c])
        return A

    def profile(
        self, B: np.ndarray, W: np.ndarray | DeviceMatrix
    ) -> tuple[float, np.ndarray, DeviceMatrix]:
        """Least loss(BW) over W, its gradient R W' (d, k) and that W (k, T).

        One Newton step from the given W, which is exact on a quadratic; where the least squares is
        not unique, the solution nearest to the given W.
        """
        start, B_data = self.to_device(W).data, self._small(B)
        k = B.shape[1]
        with self._taking(8 * k * (k + 6) * self.n_tasks):
            W_new, grad_W = start.clone(), torch.empty_like(start)
            loss, grad_B = start.new_zeros(()), torch.zeros_like(B_data)
            for block in self._on_device():
                tasks = slice(block.first, block.last)
                here = grad_W[:, tasks]
                self._pass(block, B_data, start[:, tasks], here)
                W_new[:, tasks] -= solve_normal(self._normal(block, B_data), here)
                block_loss, block_grad_B = self._pass(block, B_data, W_new[:, tasks], here)
                loss, grad_B = loss + block_loss, grad_B + block_grad_B
        value, host_B = _to_host(loss, grad_B)
        return float(value), host_B, DeviceMatrix(W_new)


def triangle(d: int) -> int:
    """Numbers in the upper triangle of a d x d matrix."""
    return d * (d + 1) // 2


def _places(d: int) -> torch.Tensor:
    """Where the d^2 numbers of a symmetric matrix are in its packed triangle."""
    i, j = torch.triu_indices(d, d)
    place = torch.empty((d, d), dtype=torch.int64)
    place[i, j] = place[j, i] = torch.arange(triangle(d))
    return place.ravel()


def _tensor(x: Array, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if not isinstance(x, torch.Tensor):
        x = torch.tensor(np.ascontiguousarray(x), dtype=dtype)
    return x.to(device, dtype)


def _empty(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, pinned: bool
) -> torch.Tensor:
    """Zeros where padding may be read; pinned host memory where the system gives it."""
    if not pinned:
        return torch.zeros(shape, dtype=dtype, device=device)
    try:
        return torch.zeros(shape, dtype=dtype, device=device, pin_memory=True)
    except RuntimeError:  # the system's limit of locked memory: copies are slower, not wrong
        return torch.zeros(shape, dtype=dtype, device=device)


def _to_host(*tensors: torch.Tensor) -> list[np.ndarray]:
    """Several small tensors as arrays, in one copy."""
    flat = torch.cat([x.ravel() for x in tensors]).cpu().numpy()
    edges = np.cumsum([x.numel() for x in tensors])[:-1]
    return [part.reshape(x.shape) for part, x in zip(np.split(flat, edges), tensors, strict=True)]


def solve_normal(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Solve A_t x_t = b_t, x (k, m), for Gram matrices A (k, k, m), of least norm where singular.

    Cholesky factors for all tasks at once; eigenvalues for those where a pivot is small, counting
    as zero what is below ``RANK_TOLERANCE`` of the largest.
    """
    x, pivot = _cholesky_solve(A, b)
    # The comparison is false for NaN, from the root of a negative pivot, and for A = 0.
    poor = torch.nonzero(~(pivot > PIVOT_TOLERANCE * A.diagonal().amax(1)))[:, 0]
    if len(poor):
        eigenvalues, U = torch.linalg.eigh(A[:, :, poor].permute(2, 0, 1))
        kept = eigenvalues > RANK_TOLERANCE * eigenvalues[:, -1:].clamp(min=0.0)
        inverse = torch.where(kept, 1 / eigenvalues, torch.zeros_like(eigenvalues))
        along = torch.bmm(U.mT, b[:, poor].T[:, :, None])
        x[:, poor] = torch.bmm(U, inverse[:, :, None] * along)[:, :, 0].T
    return x


def _cholesky_solve(A: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Solutions (k, m) and smallest pivots (m,); tasks are the last axis, k small."""
    k = len(A)
    L = torch.zeros_like(A)
    pivots = []
    for j in range(k):
        column = A[j:, j] - (L[j:, :j] * L[j, :j]).sum(1)
        pivots.append(column[0])
        L[j:, j] = column / column[0].sqrt()
    x = torch.empty_like(b)
    for i in range(k):
        x[i] = (b[i] - (L[i, :i] * x[:i]).sum(0)) / L[i, i]
    for i in reversed(range(k)):
        x[i] = (x[i] - (L[i + 1 :, i] * x[i + 1 :]).sum(0)) / L[i, i]
    return x, torch.stack(pivots).amin(0)
