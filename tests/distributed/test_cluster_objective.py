"""Matrices and the objective on shards, with the shards in this process."""

import gc

import numpy as np
import pytest
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.distributed.engine import Connection, DaskEngine
from sharedspan.distributed.matrix import Cluster, ClusterMatrix
from sharedspan.distributed.objective import ClusterObjective, ClusterStatistics
from sharedspan.distributed.sources import DriverRows
from sharedspan.inputs.rows import validate_rows
from sharedspan.objective import build_objective
from sharedspan.statistics.task_statistics import gather


class ClusterInProcess(Cluster):
    """Runs commands on shards in this process instead of workers."""

    def run(self, function, *shared, per_shard=None, **options):
        if not self.places:
            recipes = self.source.shards(self.connection, range(len(self.source.bounds) - 1))
            self.places = {i: build(*arguments) for i, (build, arguments) in recipes.items()}
        own = per_shard or [()] * len(self.places)
        return [function(shard, *shared, *own[i]) for i, shard in self.places.items()]


@pytest.fixture(params=["gram", "rows"])
def objectives(request):
    sim = ss.simulate(n_tasks=7, n_features=4, rank=2, n_samples=9, intercept=1.0, random_state=0)
    order = np.random.default_rng(0).permutation(len(sim.y))
    tasks = validate_rows(sim.X[order], sim.y[order], sim.task[order])
    local = gather(tasks, True, kind=request.param)
    source = DriverRows(tasks)
    source.bounds = np.array([0, 3, 4, 7])
    cluster = ClusterInProcess(Connection(DaskEngine(), None), source)
    statistics = ClusterStatistics(cluster, local.units, True, request.param, keep_rows=False)
    return build_objective(local.statistics), ClusterObjective(statistics, None)


def test_matrix_operators_on_shards_equal_numpy(objectives, rng):
    a, b, D = rng.standard_normal((3, 7)), rng.standard_normal((3, 7)), rng.standard_normal((4, 3))
    A, B = map(objectives[1].to_device, (a, b))
    for got, expected in [
        (A + B, a + b), (A - B, a - b), (2.5 * A, 2.5 * a), (A * np.float64(2.5), 2.5 * a),
        (A / 4, a / 4), (0.0 + A, a), (0.0 * A, 0 * a), (D @ A, D @ a), (A.T.T, a),
        (D @ (A + D[:3] @ B) - D @ A, D @ D[:3] @ b), (A + D[:3] @ A, a + D[:3] @ a),
    ]:  # fmt: skip
        assert isinstance(got, ClusterMatrix)
        assert got.shape == expected.shape
        assert_allclose(np.asarray(got), expected, rtol=1e-12, atol=1e-12)
    assert_allclose((A + D[:3] @ B) @ (2 * A).T, (a + D[:3] @ b) @ (2 * a).T, rtol=1e-12)
    assert_allclose(A.T @ D.T, a.T @ D.T, rtol=1e-12)
    assert A.T.shape == (7, 3)
    with pytest.raises(TypeError):
        A + a
    with pytest.raises(TypeError):
        A @ b
    with pytest.raises(ValueError, match="always copied"):
        np.array(A, copy=False)


def test_each_method_on_shards_equals_the_local_objective(objectives, rng):
    local, remote = objectives
    B, W = rng.standard_normal((4, 2)), rng.standard_normal((2, 7))
    for method in ("gradients", "profile", "squares", "solve_W"):
        got, expected = (getattr(objective, method)(B, W) for objective in (remote, local))
        pairs = zip(got, expected, strict=True) if isinstance(got, tuple) else [(got, expected)]
        for value, other in pairs:
            assert_allclose(np.asarray(value), other, rtol=1e-10, atol=1e-12)
    for got, expected in zip(remote.residuals(B @ W), local.residuals(B @ W), strict=True):
        assert_allclose(got, expected, rtol=1e-10, atol=1e-12)
    assert_allclose(remote.normal_matrices(B), local.normal_matrices(B), rtol=1e-12)
    assert_allclose(remote.moments(), local.moments(), rtol=1e-12)
    assert_allclose(remote.curvature(5), local.curvature(5), rtol=1e-12)
    intercepts = [objective.statistics.intercepts(B @ W) for objective in (remote, local)]
    assert_allclose(*intercepts, rtol=1e-10)
    ids = np.array([6, 0, 3, 0])
    assert_allclose(remote.statistics.take(ids).mean, local.statistics.take(ids).mean)


def test_a_point_on_shards_equals_the_local_point(objectives, rng):
    B, W = rng.standard_normal((4, 2)), rng.standard_normal((2, 7))
    expected, got = (objective.evaluate(B, W) for objective in objectives)
    assert_allclose(got.WWt, expected.WWt, rtol=1e-12)
    assert_allclose(got.loss, expected.loss, rtol=1e-12)
    assert_allclose(got.tangent_gradient(), expected.tangent_gradient(), rtol=1e-10)


def test_shards_free_the_matrices_that_nobody_uses(objectives, rng):
    remote = objectives[1]
    B, W = rng.standard_normal((4, 2)), rng.standard_normal((2, 7))
    for _ in range(5):
        _, _, W = remote.profile(B, W)
    gc.collect()
    remote.profile(B, W)
    assert all(len(shard.matrices) <= 3 for shard in remote.cluster.places.values())
