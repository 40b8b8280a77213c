"""Statistics that were built on a GPU and stay there: from the rows to the last iteration."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from sharedspan.inputs.rows import TaskRows
from sharedspan.kernels.device_blocks import triton_kernels
from sharedspan.kernels.device_matrix import sum_of_products
from sharedspan.kernels.device_rows import MOST_FEATURES, DeviceSums, gather_rows
from sharedspan.kernels.gpu import DeviceGrams
from sharedspan.objective.backends import TorchBackend, TorchObjective
from sharedspan.objective.base import Objective
from sharedspan.objective.local import GramObjective
from sharedspan.statistics.grams import SUMS, GramStatistics, TaskMeans, left_inverse
from sharedspan.statistics.task_statistics import TaskStatistics, Units, has_safe_values


class DeviceStatistics(TaskMeans):
    """Sums on a GPU. Sizes are on the host too; the rest is copied there when it is asked for."""

    def __init__(self, sums: DeviceSums, centred: bool, backend: TorchBackend) -> None:
        self.sums, self.centred, self.backend = sums, centred, backend
        self.n = sums.n.cpu().numpy()
        self._pooled: np.ndarray | None = None

    @property
    def n_features(self) -> int:
        return int(self.sums.anchor.shape[1])

    @cached_property
    def mean(self) -> np.ndarray:  # type: ignore[override]
        """Means of the features, (T, d)."""
        return self.sums.mean.cpu().numpy()

    @cached_property
    def y_mean(self) -> np.ndarray:  # type: ignore[override]
        """Means of the responses, (T,)."""
        return self.sums.y_mean.cpu().numpy()

    def squared_levels(self) -> np.ndarray:
        """See TaskMeans."""
        return (self.sums.n @ self.sums.mean**2).cpu().numpy() / self.n.sum()

    def largest_levels(self) -> np.ndarray:
        """See TaskMeans."""
        return self.sums.mean.abs().amax(0).cpu().numpy()

    def pooled_gram(self) -> np.ndarray:
        """Sum of all tasks' Grams, (d, d)."""
        if self._pooled is None:
            d = self.n_features
            total, self._pooled = self.sums.packed.sum(0).cpu().numpy(), np.empty((d, d))
            i, j = np.triu_indices(d)
            self._pooled[i, j] = self._pooled[j, i] = total
        return self._pooled.copy()

    def variances(self) -> np.ndarray:
        """Pooled within-task variance of each feature, (d,)."""
        return np.diag(self.pooled_gram()) / self.n.sum()

    def transform(self, P: np.ndarray) -> None:
        """Statistics of the features X P, P (d, d')."""
        self.sums, self._pooled = self.sums.transformed(P, left_inverse(P)), None
        self.__dict__.pop("mean", None)

    def intercepts(self, V: np.ndarray) -> np.ndarray:
        """Intercepts (T,) for the coefficients V (d, T)."""
        return self.factor_intercepts(np.eye(len(V)), V)

    def factor_intercepts(self, B: np.ndarray, W: np.ndarray) -> np.ndarray:
        """See TaskMeans."""
        device = self.sums.n.device
        b, w = (torch.as_tensor(np.ascontiguousarray(x)).to(device) for x in (B, W))
        return (self.sums.y_mean - ((self.sums.mean @ b).T * w).sum(0)).cpu().numpy()

    def take(self, ids: np.ndarray) -> GramStatistics:
        """A copy of some tasks' sums, on the host."""
        index = torch.as_tensor(np.asarray(ids)).to(self.sums.n.device)
        out = GramStatistics.__new__(GramStatistics)
        out.centred = self.centred
        for name in SUMS:
            setattr(out, name, getattr(self.sums, name)[index].cpu().numpy())
        return out

    def gather_local(self) -> GramStatistics:
        """The statistics on the host."""
        return self.take(np.arange(len(self.n)))

    def objective(self, noise: np.ndarray | None, dtype: str) -> DeviceObjective:
        """The objective, with its passes on the GPU."""
        return DeviceObjective(self, noise, dtype, self.backend)


class DeviceObjective(TorchObjective):
    """The objective of statistics on a GPU; what few solvers need is computed on the host."""

    def __init__(
        self,
        statistics: DeviceStatistics,
        noise: np.ndarray | None,
        dtype: str,
        backend: TorchBackend,
    ) -> None:
        Objective.__init__(self, statistics, noise)
        self.noise = noise
        s = statistics.sums
        self.grams = DeviceGrams(
            s.packed, s.anchor, s.g, s.q, self.response, self.weights,
            device=s.n.device, dtype=dtype, block_size=backend.block_size,
        )  # fmt: skip

    @cached_property
    def on_host(self) -> GramObjective:
        """The same objective on the host."""
        return GramObjective(self.statistics.gather_local(), self.noise)

    def moments(self) -> np.ndarray:
        """See Objective."""
        scale = torch.as_tensor(self.weights * self.response).to(self.grams.device)
        C = self.statistics.sums.products * scale[:, None]
        return sum_of_products(C.T, C.T).cpu().numpy()

    def residuals(
        self, V: np.ndarray, out: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """See Objective."""
        return self.on_host.residuals(V, out)

    def normal_matrices(self, B: np.ndarray) -> np.ndarray:
        """See Objective."""
        return self.on_host.normal_matrices(B)

    def curvature(self, t: int) -> np.ndarray:
        """See Objective."""
        return self.on_host.curvature(t)


def gather_on_device(
    rows: TaskRows, centred: bool, backend: TorchBackend, common_scale: bool = False
) -> TaskStatistics | None:
    """Statistics of rows on a GPU, or None if their values need other units or a closer look.

    Parameters
    ----------
    rows : TaskRows
        Rows in memory.
    centred : bool
        Whether tasks have intercepts.
    backend : TorchBackend
    common_scale : bool
        See ``Units.of``.
    """
    device = torch.device(backend.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if rows.n_features > MOST_FEATURES or triton_kernels(device, rows.n_features) is None:
        return None
    if not isinstance(rows.X, np.ndarray) or not np.diff(rows.starts).all():
        return None
    if rows.n_rows < len(rows.X):  # rows without weight are checked, too
        return None
    units = Units.plain(rows, centred)
    arrays = rows.X, np.asarray(rows.y), rows.weight, rows.order, rows.starts
    sums, y_largest = gather_rows(*arrays, units.origin, centred, device)
    statistics = DeviceStatistics(sums, centred, backend)
    if not has_safe_values(statistics, rows, y_largest):
        return None
    return TaskStatistics(statistics, units, rows.labels, rows.names, rows)
