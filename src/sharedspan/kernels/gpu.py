"""The pass over tasks with PyTorch, for a GPU.

    u_t = v_t - r_t a_t,   R_t = weight_t (G_t u_t - r_t g_t),   v_t = B w_t
    loss_t = weight_t / 2 max(r_t^2 q_t - 2 r_t u_t'g_t + u_t'G_t u_t, 0)

Grams, anchors and g are stored as float32 or float64 (``device_blocks``); products and sums are
float64.

On a GPU the pass is a Triton kernel (``triton_pass``). Without Triton, on the CPU, and with more
than 1,024 features it is ``torch.bmm`` over a few tasks at a time: slower, with the same results.

Sums have a fixed order: the same input gives the same bits.
"""

from __future__ import annotations

import numpy as np
import torch

from sharedspan.kernels.dense import RANK_TOLERANCE
from sharedspan.kernels.device_blocks import CHUNK_BYTES, DeviceBlocks, GramBlock
from sharedspan.kernels.device_matrix import DeviceMatrix, sum_of_products

# Systems with a Cholesky pivot below this share of the largest are solved by eigenvalues.
SMALL_PIVOT = 1e-8


class DeviceGrams(DeviceBlocks):
    """Task statistics on a device, with the passes of the objective; see ``DeviceBlocks``."""

    def _residuals(self, chunk: GramBlock, V: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """R (m, d) and losses (m,) of a chunk at V (m, d)."""
        (G, anchor, g), (q, response, weight) = chunk.parts, self._scalars(chunk)
        r = response[:, None]
        u = V - r * anchor
        Gu = torch.bmm(G, u[:, :, None])[:, :, 0]
        squares = response**2 * q + (u * (Gu - 2 * r * g)).sum(1)
        # Not clamp: NaN stays NaN.
        losses = 0.5 * weight * torch.where(squares < 0, torch.zeros_like(squares), squares)
        return weight[:, None] * (Gu - r * g), losses

    def _scalars(self, block: GramBlock) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, response and weight of a block or chunk, (m,) each."""
        m = slice(block.first, block.last)
        return self.q[m], self.response[m], self.weight[m]

    def _pass(
        self, block: GramBlock, B: torch.Tensor, W: torch.Tensor, grad_W: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Loss () and R W' (d, k) of a block of m tasks at W (k, m); B'R is written to grad_W."""
        if self.triton is not None:
            return self.triton.block_gradients(block.parts, self._scalars(block), B, W, grad_W)
        loss, grad_B = W.new_zeros(()), torch.zeros_like(B)
        for chunk in self._chunks(block):
            inside = slice(chunk.first - block.first, chunk.last - block.first)
            w = W[:, inside]
            R, losses = self._residuals(chunk, w.T @ B.T)
            loss += losses.sum()
            grad_B += R.T @ w.T
            grad_W[:, inside] = B.T @ R.T
        return loss, grad_B

    def to_device(self, W: np.ndarray | DeviceMatrix) -> DeviceMatrix:
        """W (k, T) on the device."""
        if isinstance(W, DeviceMatrix):
            return W
        with self._taking(8 * W.size):
            host = torch.as_tensor(np.ascontiguousarray(W, dtype=np.float64))
            return DeviceMatrix(host.to(self.device, copy=True))

    def zeros(self, k: int) -> DeviceMatrix:
        """W = 0 (k, T) on the device."""
        with self._taking(8 * k * self.n_tasks):
            shape = k, self.n_tasks
            return DeviceMatrix(torch.zeros(shape, dtype=torch.float64, device=self.device))

    def _fused(
        self, B: np.ndarray, W: np.ndarray | DeviceMatrix, solve: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Loss (), R W' (d, k), W (k, T) and B'R (k, T), at the least squares W with ``solve``."""
        w = self.to_device(W).data
        b = torch.as_tensor(np.ascontiguousarray(B, dtype=np.float64)).to(self.device)
        with self._taking(8 * w.numel() * (len(w) + 6 if solve else 1)):
            w = w.clone() if solve else w
            loss, grad_B, grad_W = w.new_zeros(()), torch.zeros_like(b), torch.empty_like(w)
            for block in self._on_device():
                tasks = slice(block.first, block.last)
                here, gradient = w[:, tasks], grad_W[:, tasks]
                if solve:
                    self._pass(block, b, here, gradient)
                    here -= solve_normal(self._normal(block, b), gradient)
                block_loss, block_grad_B = self._pass(block, b, here, gradient)
                loss, grad_B = loss + block_loss, grad_B + block_grad_B
        return loss, grad_B, w, grad_W

    def gradients(
        self, B: np.ndarray, W: np.ndarray | DeviceMatrix
    ) -> tuple[float, np.ndarray, DeviceMatrix, np.ndarray]:
        """loss(BW), R W' (d, k), B'R (k, T) and WW' (k, k), with one copy to the host.

        Parameters
        ----------
        B : ndarray of shape (d, k)
        W : DeviceMatrix of shape (k, T)
        """
        loss, grad_B, w, grad_W = self._fused(B, W, solve=False)
        with self._taking(8 * w.numel()):
            WWt = sum_of_products(w, w)
        value, host_B, host_WWt = _to_host(loss, grad_B, WWt)
        return float(value), host_B, DeviceMatrix(grad_W), host_WWt

    def profile(
        self, B: np.ndarray, W: np.ndarray | DeviceMatrix
    ) -> tuple[float, np.ndarray, DeviceMatrix]:
        """Least loss(BW) over W, its gradient R W' (d, k) and that W (k, T).

        One Newton step from the given W, which is exact on a quadratic; if the solution is not
        unique, the one nearest to the given W.
        """
        loss, grad_B, best, _ = self._fused(B, W, solve=True)
        value, host_B = _to_host(loss, grad_B)
        return float(value), host_B, DeviceMatrix(best)

    def moments(self) -> np.ndarray:
        """Sum of c_t c_t' (d, d), c_t = R_t at V = 0."""
        d = self.n_features
        total = torch.zeros((d, d), dtype=torch.float64, device=self.device)
        with self._taking(CHUNK_BYTES["cuda"]):
            for block in self._on_device():
                for chunk in self._chunks(block):
                    R, _ = self._residuals(chunk, torch.zeros_like(chunk.parts[1]))
                    total += sum_of_products(R.T, R.T)
        return total.cpu().numpy()

    def _normal(self, block: GramBlock, B: torch.Tensor) -> torch.Tensor:
        """weight_t B'G_t B of a block, (k, k, m).

        Row c is B'R for w = e_c and a response of zero, so k passes of the Triton kernel compute
        it and no further kernel is needed.
        """
        k, m = B.shape[1], block.last - block.first
        weight = self.weight[block.first : block.last]
        A = B.new_empty((k, k, m))
        if self.triton is None:
            for chunk in self._chunks(block):
                inside = slice(chunk.first - block.first, chunk.last - block.first)
                A[:, :, inside] = (B.T @ (chunk.parts[0] @ B)).permute(1, 2, 0) * weight[inside]
            return A
        zero = torch.zeros_like(weight)
        for c in range(k):
            W = B.new_zeros((k, m))
            W[c] = 1.0
            self.triton.block_gradients(block.parts, (zero, zero, weight), B, W, A[c])
        return A


def _to_host(*tensors: torch.Tensor) -> list[np.ndarray]:
    """Several small tensors as arrays, in one copy."""
    flat = torch.cat([x.ravel() for x in tensors]).cpu().numpy()
    edges = np.cumsum([x.numel() for x in tensors])[:-1]
    return [part.reshape(x.shape) for part, x in zip(np.split(flat, edges), tensors, strict=True)]


def solve_normal(A: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Solve A_t x_t = b_t, x (k, m), for Gram matrices A (k, k, m), by minimum norm if singular.

    By Cholesky factors for all tasks at once. Tasks with a small pivot are solved by eigenvalues,
    of which those below ``RANK_TOLERANCE`` times the largest count as zero.
    """
    x, pivot = _cholesky_solve(A, b)
    # The comparison is false for NaN, from the root of a negative pivot, and for A = 0.
    poor = torch.nonzero(~(pivot > SMALL_PIVOT * A.diagonal().amax(1)))[:, 0]
    if len(poor):
        eigenvalues, U = torch.linalg.eigh(A[:, :, poor].permute(2, 0, 1))
        positive = eigenvalues > RANK_TOLERANCE * eigenvalues[:, -1:].clamp(min=0.0)
        inverse = torch.where(positive, 1 / eigenvalues, torch.zeros_like(eigenvalues))
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
