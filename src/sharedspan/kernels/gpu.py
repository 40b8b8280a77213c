"""The pass over tasks with PyTorch, made for a GPU.

    u_t = v_t - r_t a_t,   R_t = weight_t (G_t u_t - r_t g_t),   v_t = B w_t
    loss_t = weight_t / 2 max(r_t^2 q_t - 2 r_t u_t'g_t + u_t'G_t u_t, 0)

``DeviceGrams`` holds the statistics where they are used, ``DeviceMatrix`` the factor W and what has
its shape. Grams, anchors and g are stored as float32 or float64; products and sums are float64.

On a GPU the pass is a Triton kernel (``triton_pass``). Without Triton, and on the CPU, it is
``torch.bmm`` over a few tasks at a time: slower, with the same results. Statistics that exceed the
memory of the GPU stay on the host and pass through two buffers, one filled while the other is used.

Sums have a fixed order: the same input gives the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

# Eigenvalues of a task's k x k normal matrix below this share of its largest count as zero.
RANK_TOLERANCE = 1e-12
# Where a pivot of the Cholesky factor is below this share of the largest, eigenvalues decide.
PIVOT_TOLERANCE = 1e-8

SHARE_OF_FREE_MEMORY = 0.8
NUMBERS_PER_TASK = 64  # kept free for W, its gradients and their sums, float64 numbers per task
STEP = 128  # blocks and chunks are multiples of this many tasks
CHUNK_BYTES = {"cpu": 1 << 25, "cuda": 1 << 29}  # of float64 Grams unpacked at once
SUM_PARTS = 1024  # independent parts of a sum over tasks

Source = np.ndarray | Callable[[int, int], np.ndarray]


def free_memory(device: torch.device) -> int:
    """Bytes that tensors may still take on the device; a large number for the CPU."""
    if device.type != "cuda":
        return 1 << 60
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def out_of_memory(device: torch.device, size: int, tasks: int, block_size: int) -> MemoryError:
    """The error for ``size`` bytes for ``tasks`` tasks, with a block size to try."""
    return MemoryError(
        f"The GPU is out of memory: {tasks:,} tasks need {size / 1e9:.3g} GB there and "
        f"{free_memory(device) / 1e9:.3g} GB are free; hold fewer tasks there at once with "
        f"backend=ss.TorchBackend(block_size={block_size}), or use backend='numpy'."
    )


@contextmanager
def taking(device: torch.device, size: int, tasks: int) -> Iterator[None]:
    """Turn a failed allocation on the device into a MemoryError that says what to do."""
    try:
        yield
    except torch.cuda.OutOfMemoryError as error:
        raise out_of_memory(device, size, tasks, max(tasks // 4, 1)) from error


def triton_kernels(device: torch.device) -> ModuleType | None:
    """The module ``triton_pass`` where it can run: with CUDA, or in Triton's interpreter."""
    if device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return None
    try:
        from sharedspan.kernels import triton_pass
    except ImportError:
        return None
    return triton_pass


def sum_of_products(X: torch.Tensor, Y: torch.Tensor) -> torch.Tensor:
    """XY' (k, l) of X (k, T) and Y (l, T), T large.

    In parts, because a matrix product with so few rows would run on a corner of the GPU.
    """
    T = X.shape[1]
    parts = max(min(SUM_PARTS, T // 64), 1)
    m = T // parts
    X_parts = X[:, : m * parts].unflatten(1, (parts, m)).transpose(0, 1)
    Y_parts = Y[:, : m * parts].unflatten(1, (parts, m)).permute(1, 2, 0)
    return torch.bmm(X_parts, Y_parts).sum(0) + X[:, m * parts :] @ Y[:, m * parts :].T


class DeviceMatrix:
    """A (k, T) float64 matrix on the device, with the arithmetic that solvers use.

    Sums and multiples stay on the device, and so does ``D @ M`` with a small host matrix D;
    ``M @ N.T`` is small and comes to the host. ``numpy.asarray`` copies it to the host.
    """

    __array_ufunc__ = None  # NumPy's operators leave the work to the ones below

    def __init__(self, data: torch.Tensor) -> None:
        self.data = data

    @property
    def shape(self) -> tuple[int, int]:
        return (self.data.shape[0], self.data.shape[1])

    @property
    def T(self) -> DeviceMatrixTransposed:
        return DeviceMatrixTransposed(self)

    def _taking(self) -> Any:
        return taking(self.data.device, 8 * self.data.numel(), self.data.shape[1])

    def _operand(self, other: Any) -> Any:
        """A tensor for a matrix or a row (T,), a float for a number, None for anything else."""
        if isinstance(other, DeviceMatrix):
            return other.data
        if np.ndim(other) == 0:
            return float(other)
        if np.shape(other) == (self.shape[1],):
            return torch.as_tensor(np.asarray(other, float)).to(self.data.device)
        return None

    def __add__(self, other: DeviceMatrix) -> DeviceMatrix:
        if not isinstance(other, DeviceMatrix):
            return NotImplemented
        with self._taking():
            return DeviceMatrix(self.data + other.data)

    def __sub__(self, other: DeviceMatrix) -> DeviceMatrix:
        if not isinstance(other, DeviceMatrix):
            return NotImplemented
        with self._taking():
            return DeviceMatrix(self.data - other.data)

    def __mul__(self, other: float | np.ndarray | DeviceMatrix) -> DeviceMatrix:
        operand = self._operand(other)
        if operand is None:
            return NotImplemented
        with self._taking():
            return DeviceMatrix(self.data * operand)

    __rmul__ = __mul__

    def __truediv__(self, other: float | np.ndarray | DeviceMatrix) -> DeviceMatrix:
        operand = self._operand(other)
        if operand is None:
            return NotImplemented
        with self._taking():
            return DeviceMatrix(self.data / operand)

    def __neg__(self) -> DeviceMatrix:
        with self._taking():
            return DeviceMatrix(-self.data)

    def __matmul__(self, other: DeviceMatrixTransposed) -> np.ndarray:
        if not isinstance(other, DeviceMatrixTransposed):
            return NotImplemented
        with self._taking():
            return sum_of_products(self.data, other.matrix.data).cpu().numpy()

    def __rmatmul__(self, other: np.ndarray) -> DeviceMatrix:
        small = torch.as_tensor(np.ascontiguousarray(other, float)).to(self.data.device)
        with self._taking():
            return DeviceMatrix(small @ self.data)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("A matrix on the device is always copied.")
        host = self.data.cpu().numpy()
        return np.array(host, dtype=dtype, copy=True)

    def copy(self) -> DeviceMatrix:
        """A matrix of its own, on the device."""
        with self._taking():
            return DeviceMatrix(self.data.clone())


class DeviceMatrixTransposed:
    """The transpose (T, k) of a ``DeviceMatrix``, for products; nothing is copied."""

    __array_ufunc__ = None

    def __init__(self, matrix: DeviceMatrix) -> None:
        self.matrix = matrix

    @property
    def shape(self) -> tuple[int, int]:
        return self.matrix.shape[::-1]

    @property
    def T(self) -> DeviceMatrix:
        return self.matrix

    def __matmul__(self, other: np.ndarray) -> np.ndarray:
        return np.asarray(self) @ np.asarray(other)

    def __rmatmul__(self, other: np.ndarray) -> np.ndarray:
        return np.asarray(other) @ np.asarray(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.matrix.__array__(dtype, copy).T


@dataclass(frozen=True)
class Block:
    """The tasks first <= t < last: Grams, anchors and g in one of the layouts.

    parts is (records,) with records (groups, P + 2 d, 32) in the layout "lanes", and (Grams,
    anchor, g) with Grams (m, P) in "packed" or (m, d, d) in "full", anchor and g (m, d).
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
    packed : ndarray of shape (T, P) or callable
        Upper triangles, P = d (d + 1) / 2, or a function of first and last that returns the rows
        of these tasks.
    anchor, g : ndarray of shape (T, d)
    q, response, weight : ndarray of shape (T,)
    device : str or torch.device
        "cpu" or "cuda"; by default "cuda" where there is one.
    dtype : {"float32", "float64"}
        Storage of the Grams, anchors and g.
    block_size : int, optional
        Tasks in a block. With more tasks than that, blocks stay on the host and two of them at a
        time are on the device. By default all tasks, or what fits in the memory of the GPU.
    setting : triton_pass.Setting, optional
        For benchmarks: how the kernel runs, and the layout of the Grams.
    """

    def __init__(
        self,
        packed: Source,
        anchor: np.ndarray,
        g: np.ndarray,
        q: np.ndarray,
        response: np.ndarray,
        weight: np.ndarray,
        *,
        device: str | torch.device | None = None,
        dtype: str = "float64",
        block_size: int | None = None,
        setting: Any = None,
    ) -> None:
        if dtype not in ("float32", "float64"):
            raise ValueError(f"dtype={dtype!r} is unknown: use 'float32' or 'float64'.")
        if block_size is not None and block_size < 1:
            raise ValueError(f"block_size={block_size!r} must be at least 1 task.")
        self._describe(anchor.shape, device, dtype, setting)
        self.block_size = self._fitting(block_size)
        rows = packed if callable(packed) else lambda first, last: packed[first:last]
        size = self.bytes_per_task * min(self.block_size * self._copies, self.n_tasks)
        with self._taking(size):
            self.q, self.response, self.weight = (
                torch.tensor(x, dtype=torch.float64, device=self.device)
                for x in (q, response, weight)
            )
            edges = range(0, self.n_tasks, self.block_size)
            self.blocks = [
                self._build(rows, anchor, g, first, min(first + self.block_size, self.n_tasks))
                for first in edges
            ]
        self._buffers: list[tuple[torch.Tensor, ...]] = []

    @classmethod
    def from_blocks(
        cls,
        blocks: list[Block],
        sums: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        n_features: int,
        *,
        dtype: str,
        setting: Any = None,
    ) -> DeviceGrams:
        """From blocks already in the layout of ``setting`` and q, response, weight (T,)."""
        self = cls.__new__(cls)
        self._describe((len(sums[0]), n_features), sums[0].device, dtype, setting)
        self.q, self.response, self.weight = sums
        self.blocks, self.block_size = blocks, blocks[0].last
        self._buffers = []
        return self

    def _describe(self, shape: tuple[int, ...], device: Any, dtype: str, setting: Any) -> None:
        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device, self.dtype = torch.device(device), dtype
        self.storage = getattr(torch, dtype)
        self.n_tasks, self.n_features = shape
        self.triton = triton_kernels(self.device)
        self.setting = setting
        if setting is not None:
            self.layout = setting.layout
        elif self.triton is not None:
            self.layout = self.triton.setting_for(self.n_features, dtype, 1).layout
        else:
            # torch.bmm wants whole matrices; a CPU has little memory to spare for them.
            self.layout = "full" if self.device.type == "cuda" else "packed"
        d = self.n_features
        numbers = d * d if self.layout == "full" else d * (d + 1) // 2
        self.bytes_per_task = (numbers + 2 * d) * self.storage.itemsize
        upper = torch.triu_indices(d, d)
        place = torch.empty((d, d), dtype=torch.int64)
        place[upper[0], upper[1]] = place[upper[1], upper[0]] = torch.arange(upper.shape[1])
        self._place = place.ravel().to(self.device)  # of entry (i, j) in the packed triangle

    def _fitting(self, block_size: int | None) -> int:
        """Tasks per block: as asked for, else all of them or half of what fits."""
        if block_size is not None:
            return min(block_size, self.n_tasks)
        reserved = 8 * NUMBERS_PER_TASK * self.n_tasks
        room = SHARE_OF_FREE_MEMORY * free_memory(self.device) - reserved
        if room >= self.n_tasks * self.bytes_per_task:
            return self.n_tasks
        fitting = int(room / (2 * self.bytes_per_task)) // STEP * STEP
        if fitting < STEP:
            size = reserved + 2 * STEP * self.bytes_per_task
            raise out_of_memory(self.device, size, self.n_tasks, STEP)
        return fitting

    @property
    def sums(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Response, q and weight, (T,) each."""
        return self.response, self.q, self.weight

    @property
    def streaming(self) -> bool:
        """Whether blocks come from the host for each pass."""
        return self.device.type == "cuda" and self.block_size < self.n_tasks

    @property
    def _copies(self) -> int:
        return 2 if self.streaming else 1

    def _taking(self, size: int) -> Any:
        return _TakingBlocks(self, size)

    def _build(
        self, rows: Callable[[int, int], np.ndarray], anchor: np.ndarray, g: np.ndarray,
        first: int, last: int,
    ) -> Block:  # fmt: skip
        """Tasks first <= t < last in the layout, on the device or in pinned host memory."""
        place = torch.device("cpu") if self.streaming else self.device
        parts = tuple(
            _empty(shape, self.storage, place, pinned=self.streaming)
            for shape in self._shapes(last - first)
        )
        chunk = max(CHUNK_BYTES["cpu"] // (8 * rows_length(self.n_features) * STEP), 1) * STEP
        for a in range(first, last, chunk):
            b = min(a + chunk, last)
            pieces = [
                torch.tensor(np.ascontiguousarray(x), dtype=self.storage).to(place)
                for x in (rows(a, b), anchor[a:b], g[a:b])
            ]
            self._write(parts, a - first, b - first, pieces)
        return Block(first, last, parts)

    def _shapes(self, m: int) -> list[tuple[int, ...]]:
        d = self.n_features
        if self.layout == "lanes":
            most, group = self.triton.MOST_LANES, self.triton.GROUP  # type: ignore[union-attr]
            return [(-(-m // most) * most // group, rows_length(d) + 2 * d, group)]
        return [(m, d, d) if self.layout == "full" else (m, rows_length(d)), (m, d), (m, d)]

    def _write(
        self, parts: tuple[torch.Tensor, ...], a: int, b: int, pieces: list[torch.Tensor]
    ) -> None:
        if self.layout == "lanes":
            records = self.triton.lanes_records(*pieces)  # type: ignore[union-attr]
            start = a // self.triton.GROUP  # type: ignore[union-attr]
            parts[0][start : start + len(records)] = records
            return
        if self.layout == "full":
            d = self.n_features
            pieces[0] = pieces[0][:, self._place.to(pieces[0].device)].view(-1, d, d)
        for part, piece in zip(parts, pieces, strict=True):
            part[a:b] = piece

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

    def _unpacked(self, block: Block) -> Iterator[Chunk]:
        """The block a few tasks at a time, Grams unpacked, all as float64."""
        d = self.n_features
        kind = "cuda" if self.device.type == "cuda" else "cpu"
        chunk = max(CHUNK_BYTES[kind] // (8 * d * d * STEP), 1) * STEP
        for a in range(0, block.last - block.first, chunk):
            b = min(a + chunk, block.last - block.first)
            if self.layout == "lanes":
                group = self.triton.GROUP  # type: ignore[union-attr]
                records = block.parts[0][a // group : -(-b // group)].transpose(1, 2)
                rows = records.reshape(-1, records.shape[2])[: b - a].double()
                G, anchor, g = rows.split([rows_length(d), d, d], dim=1)
            else:
                G, anchor, g = (x[a:b].double() for x in block.parts)
            if self.layout != "full":
                G = G[:, self._place].view(-1, d, d)
            yield Chunk(block.first + a, block.first + b, G, anchor, g)

    # ---- the pass ------------------------------------------------------------------------------

    def _residuals(self, chunk: Chunk, V: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """R (m, d) and losses (m,) of a chunk at V (m, d)."""
        response, q, weight = (x[chunk.first : chunk.last] for x in self.sums)
        r = response[:, None]
        u = V - r * chunk.anchor
        Gu = torch.bmm(chunk.G, u[:, :, None])[:, :, 0]
        squares = response**2 * q + (u * (Gu - 2 * r * chunk.g)).sum(1)
        # Not clamp: NaN stays NaN.
        losses = 0.5 * weight * torch.where(squares < 0, torch.zeros_like(squares), squares)
        return weight[:, None] * (Gu - r * chunk.g), losses

    def _pass(
        self, block: Block, B: torch.Tensor, W: torch.Tensor, grad_W: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss () and R W' (d, k) of a block of m tasks at W (k, m); B'R goes to grad_W (k, m)."""
        response, q, weight = (x[block.first : block.last] for x in self.sums)
        if self.triton is not None:
            return self._triton_pass(block, (q, response, weight), B, W, grad_W)
        loss, grad_B = W.new_zeros(()), torch.zeros_like(B)
        for chunk in self._unpacked(block):
            here = slice(chunk.first - block.first, chunk.last - block.first)
            w = W[:, here]
            R, losses = self._residuals(chunk, w.T @ B.T)
            loss += losses.sum()
            grad_B += R.T @ w.T
            grad_W[:, here] = B.T @ R.T
        return loss, grad_B

    def _triton_pass(
        self,
        block: Block,
        sums: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        B: torch.Tensor,
        W: torch.Tensor,
        grad_W: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.triton is not None
        d, k = B.shape
        setting = self.setting or self.triton.setting_for(d, self.dtype, k)
        anchor, g = block.parts[1:] if len(block.parts) == 3 else (None, None)
        return self.triton.gradients(block.parts[0], anchor, g, sums, B, W, grad_W, setting)

    def lift(self, W: np.ndarray | DeviceMatrix) -> DeviceMatrix:
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
        W_data, B_data = self.lift(W).data, self._small(B)
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

    def residuals(self, V: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """R(V) (d, T) and each task's loss (T,), on the host, for V (d, T) on the host."""
        R, losses = np.empty((self.n_tasks, self.n_features)), np.empty(self.n_tasks)
        with self._taking(CHUNK_BYTES["cuda"]):
            for block in self._on_device():
                for chunk in self._unpacked(block):
                    tasks = slice(chunk.first, chunk.last)
                    rows, values = self._residuals(chunk, self._small(V[:, tasks].T))
                    R[tasks], losses[tasks] = rows.cpu().numpy(), values.cpu().numpy()
        return R.T, losses

    def moments(self) -> np.ndarray:
        """Sum of c_t c_t' (d, d), c_t = R_t at V = 0."""
        d = self.n_features
        total = torch.zeros((d, d), dtype=torch.float64, device=self.device)
        with self._taking(CHUNK_BYTES["cuda"]):
            for block in self._on_device():
                for chunk in self._unpacked(block):
                    R, _ = self._residuals(chunk, torch.zeros_like(chunk.anchor))
                    total += sum_of_products(R.T, R.T)
        return total.cpu().numpy()

    # ---- least squares in a span ---------------------------------------------------------------

    def _normal(self, block: Block, B: torch.Tensor) -> torch.Tensor:
        """weight_t B'G_t B of a block, (k, k, m).

        Column c of it is B'R for w = e_c and a response of zero, which is what the kernel computes:
        k quick passes instead of a kernel of their own.
        """
        k, m = B.shape[1], block.last - block.first
        weight = self.weight[block.first : block.last]
        A = B.new_empty((k, k, m))
        if self.triton is None:
            for chunk in self._unpacked(block):
                here = slice(chunk.first - block.first, chunk.last - block.first)
                A[:, :, here] = (B.T @ (chunk.G @ B)).permute(1, 2, 0) * weight[here]
            return A
        zero = torch.zeros_like(weight)
        for c in range(k):
            W = B.new_zeros((k, m))
            W[c] = 1.0
            self._triton_pass(block, (zero, zero, weight), B, W, column := B.new_empty((k, m)))
            A[:, c] = column
        return A

    def normal_matrices(self, B: np.ndarray) -> np.ndarray:
        """weight_t B'G_t B for each task, (T, k, k), on the host."""
        k, B_data = B.shape[1], self._small(B)
        out = np.empty((self.n_tasks, k, k))
        with self._taking(8 * k * (k + 2) * self.n_tasks):
            for block in self._on_device():
                A = self._normal(block, B_data)
                out[block.first : block.last] = A.permute(2, 0, 1).cpu().numpy()
        return out

    def profile(
        self, B: np.ndarray, W: np.ndarray | DeviceMatrix
    ) -> tuple[float, np.ndarray, DeviceMatrix]:
        """Least loss(BW) over W, its gradient R W' (d, k) and that W (k, T).

        One Newton step from the given W, which is exact on a quadratic; where the least squares is
        not unique, the solution nearest to the given W.
        """
        start, B_data = self.lift(W).data, self._small(B)
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


class _TakingBlocks:
    """``taking`` for the statistics: suggests a block size from what is free."""

    def __init__(self, grams: DeviceGrams, size: int) -> None:
        self.grams, self.size = grams, size

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not isinstance(error, torch.cuda.OutOfMemoryError):
            return
        grams = self.grams
        room = SHARE_OF_FREE_MEMORY * free_memory(grams.device) / 2
        fitting = int(min(room / grams.bytes_per_task, grams.block_size / 2))
        block_size = max(fitting // STEP * STEP, 1)
        raise out_of_memory(grams.device, self.size, grams.n_tasks, block_size) from error


def rows_length(d: int) -> int:
    """Numbers in the upper triangle of a d x d matrix."""
    return d * (d + 1) // 2


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
