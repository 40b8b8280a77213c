import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

import sharedspan as ss

torch = pytest.importorskip("torch")

from sharedspan.kernels import device_blocks, device_matrix, gpu  # noqa: E402
from sharedspan.kernels.device_matrix import DeviceMatrix  # noqa: E402
from sharedspan.kernels.gpu import DeviceGrams  # noqa: E402

torch.set_num_threads(1)  # threads do not pay for small matrices

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
SIZES = [(1, 1, 1), (2, 3, 1), (7, 17, 3), (8, 17, 5), (10, 3, 3), (30, 17, 3), (65, 3, 5)]
SIZES += [(130, 3, 3), (10, 300, 10), (30, 1, 1), (1030, 2, 2)]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


class Problem:
    """Random tasks with d features, and the plain formulas on full Grams."""

    def __init__(self, d, T, k, seed=0):
        rng = np.random.default_rng(seed)
        n = d + 4
        X = rng.standard_normal((T, n, d)) / np.sqrt(n)
        self.anchor = rng.standard_normal((T, d))
        errors = rng.standard_normal((T, n))
        self.G = X.transpose(0, 2, 1) @ X
        self.g = np.einsum("tnd,tn->td", X, errors)
        self.q = (errors**2).sum(1)
        self.response, self.weight = rng.uniform(0.5, 2, T), rng.uniform(0.5, 2, T)
        self.B, self.W = rng.standard_normal((d, k)), rng.standard_normal((k, T))
        upper = np.triu_indices(d)
        self.packed = self.G[:, upper[0], upper[1]]

    def grams(self, **options):
        sums = (self.anchor, self.g, self.q, self.response, self.weight)
        return DeviceGrams(self.packed, *sums, **options)

    def residuals(self, V):
        r = self.response[:, None]
        u = V.T - r * self.anchor
        Gu = np.einsum("tij,tj->ti", self.G, u)
        squares = r[:, 0] ** 2 * self.q - 2 * (u * r * self.g).sum(1) + (u * Gu).sum(1)
        return (self.weight[:, None] * (Gu - r * self.g)).T, self.weight / 2 * squares.clip(0)

    def gradients(self, W):
        R, losses = self.residuals(self.B @ W)
        return losses.sum(), R @ W.T, self.B.T @ R, W @ W.T

    def normal_matrices(self):
        return self.weight[:, None, None] * (self.B.T @ self.G @ self.B)

    def best_W(self):
        gradient = self.gradients(self.W)[2]
        steps = np.linalg.solve(self.normal_matrices(), gradient.T[:, :, None])
        return self.W - steps[:, :, 0].T


def close(got, expected, tolerance):
    got, expected = np.asarray(got), np.asarray(expected)
    return np.abs(got - expected).max() <= tolerance * max(np.abs(expected).max(), 1e-300)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("d", "T", "k"), SIZES)
def test_every_answer_equals_the_plain_formula(d, T, k, dtype, device):
    problem, tolerance = Problem(d, T, k), TOLERANCE[dtype]
    grams = problem.grams(device=device, dtype=dtype)
    got = grams.gradients(problem.B, grams.to_device(problem.W))
    for value, expected in zip(got, problem.gradients(problem.W), strict=True):
        assert close(value, expected, tolerance)
    C = problem.residuals(np.zeros((d, T)))[0]
    assert close(grams.moments(), C @ C.T, tolerance)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("d", "T", "k"), [(7, 17, 3), (30, 300, 5), (65, 3, 1), (8, 5, 1)])
def test_profile_is_least_squares_in_the_span(d, T, k, dtype, device):
    problem = Problem(d, T, k)
    loss, grad_B, W = problem.grams(device=device, dtype=dtype).profile(problem.B, problem.W)
    best = problem.best_W()
    tolerance = {"float64": 1e-10, "float32": 1e-3}[dtype]
    assert close(W, best, tolerance)
    expected = problem.gradients(best)
    assert close(loss, expected[0], tolerance)
    assert close(grad_B, expected[1], tolerance)


def test_profile_stays_nearest_to_its_start_where_a_task_leaves_w_open(device):
    problem = Problem(6, 5, 3)
    direction = np.zeros(6)
    direction[0] = 1.0
    problem.G[1] = np.outer(direction, direction)
    problem.G[2] = 0.0
    problem.g[1], problem.g[2] = direction, 0.0
    upper = np.triu_indices(6)
    problem.packed = problem.G[:, upper[0], upper[1]]
    _, _, W = problem.grams(device=device).profile(problem.B, problem.W)
    W = np.asarray(W)
    gradient = problem.gradients(W)[2]
    assert np.abs(gradient).max() < 1e-11
    np.testing.assert_array_equal(W[:, 2], problem.W[:, 2])
    open_part = problem.B[0] / np.linalg.norm(problem.B[0])
    step = W[:, 1] - problem.W[:, 1]
    np.testing.assert_allclose(step, open_part * (open_part @ step), atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("d", "T", "block_size"), [(7, 17, 5), (30, 300, 128), (65, 9, 1)])
def test_blocks_change_nothing(d, T, block_size, dtype, device):
    problem = Problem(d, T, 3)
    whole = problem.grams(device=device, dtype=dtype)
    parts = problem.grams(device=device, dtype=dtype, block_size=block_size)
    assert len(parts.blocks) == -(-T // block_size)
    for _ in range(2):  # a second pass reuses the buffers
        pairs = zip(
            parts.gradients(problem.B, problem.W),
            whole.gradients(problem.B, problem.W),
            strict=True,
        )
        assert all(close(a, b, 1e-13) for a, b in pairs)
    pairs = zip(
        parts.profile(problem.B, problem.W), whole.profile(problem.B, problem.W), strict=True
    )
    assert all(close(a, b, 1e-11) for a, b in pairs)
    assert close(parts.moments(), whole.moments(), 1e-13)


def test_statistics_may_be_tensors(device):
    problem = Problem(7, 300, 2)
    expected = problem.grams(device=device).gradients(problem.B, problem.W)
    names = ("packed", "anchor", "g", "q", "response", "weight")
    sums = (torch.tensor(getattr(problem, name), device=device) for name in names)
    got = DeviceGrams(*sums, device=device).gradients(problem.B, problem.W)
    assert np.array_equal(got[1], expected[1])


@pytest.mark.parametrize("d", [10, 30, 70])
def test_repeats_are_identical_to_the_bit(d, device):
    problem = Problem(d, 200, 3)
    grams = problem.grams(device=device, dtype="float32")
    W = grams.to_device(problem.W)
    first, second = grams.gradients(problem.B, W), grams.gradients(problem.B, W)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("d", [4, 40])
def test_a_loss_below_zero_by_rounding_is_zero_and_nan_stays_nan(d, device):
    problem = Problem(d, 3, 2)
    rest = problem.residuals(problem.B @ problem.W)[1][1:].sum()
    problem.q[0] = -1e9
    assert close(problem.grams(device=device).gradients(problem.B, problem.W)[0], rest, 1e-12)
    problem.g[1, 2] = np.nan
    assert np.isnan(problem.grams(device=device).gradients(problem.B, problem.W)[0])


def test_matrix_operators_equal_numpy(device, rng):
    a, b = rng.standard_normal((3, 200)), rng.standard_normal((3, 200))
    A, B = (DeviceMatrix(torch.tensor(x, device=device)) for x in (a, b))
    D, two = rng.standard_normal((4, 3)), np.float64(2.5)
    for got, expected in [
        (A + B, a + b), (A - B, a - b), (A * B, a * b), (2.5 * A, 2.5 * a), (two * A, two * a),
        (A * two, a * two), (A / 4, a / 4), (0.0 + A, a), (D @ A, D @ a), (A.T.T, a),
    ]:  # fmt: skip
        assert isinstance(got, DeviceMatrix)
        assert got.shape == expected.shape
        np.testing.assert_allclose(np.asarray(got), expected, rtol=1e-13, atol=1e-13)
    product = A @ B.T
    assert isinstance(product, np.ndarray)
    np.testing.assert_allclose(product, a @ b.T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(A.T @ D.T, a.T @ D.T, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(A.T), a.T)
    assert A.T.shape == (200, 3)
    with pytest.raises(TypeError):
        A + a
    with pytest.raises(TypeError):
        A @ b


def test_the_matrix_given_stays_as_it_is(device, rng):
    problem = Problem(5, 20, 2)
    grams = problem.grams(device=device)
    W = grams.to_device(problem.W)
    before = np.array(W)
    grams.gradients(problem.B, W)
    grams.profile(problem.B, W)
    np.testing.assert_array_equal(np.asarray(W), before)


MESSAGE = r"GPU is out of memory: 20 tasks need .* GB there and .* GB are free; .*"
MESSAGE += r"backend=ss\.TorchBackend\(block_size=\d+\), or use backend='numpy'"


def fail(*args, **kwargs):
    raise torch.cuda.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("_empty", lambda p, grams: p.grams(device="cpu")),
        ("sum_of_products", lambda p, grams: grams.gradients(p.B, p.W)),
        ("sum_of_products", lambda p, grams: grams.moments()),
        ("sum_of_products", lambda p, grams: grams.to_device(p.W) @ grams.to_device(p.W).T),
        ("solve_normal", lambda p, grams: grams.profile(p.B, p.W)),
    ],
)
def test_out_of_memory_names_the_option_to_set(monkeypatch, target, call):
    problem = Problem(5, 20, 2)
    grams = problem.grams(device="cpu")
    for module in (gpu, device_blocks, device_matrix):
        monkeypatch.setattr(module, target, fail, raising=False)
    with pytest.raises(MemoryError, match=MESSAGE):
        call(problem, grams)


def test_too_little_memory_for_one_block_is_said_at_once(monkeypatch):
    monkeypatch.setattr(device_blocks, "free_memory", lambda device: 1000)
    with pytest.raises(MemoryError, match=MESSAGE):
        Problem(5, 20, 2).grams(device="cpu")


def test_tasks_that_do_not_fit_are_split_in_blocks(monkeypatch, device):
    problem = Problem(5, 2000, 2)
    expected = problem.grams(device=device).gradients(problem.B, problem.W)
    needed = 2000 * problem.grams(device=device).bytes_per_task
    monkeypatch.setattr(device_blocks, "NUMBERS_PER_TASK", 0)
    monkeypatch.setattr(device_blocks, "free_memory", lambda device: needed)
    grams = problem.grams(device=device)
    assert 2 < len(grams.blocks) < 10
    assert close(grams.gradients(problem.B, problem.W)[1], expected[1], 1e-13)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block_size": 0}, "block_size=0"),
        ({"block_size": 2.5}, "block_size=2.5"),
        ({"device": "bogus"}, "use 'cpu', 'cuda'"),
        ({"device": 3}, "device=3"),
    ],
)
def test_a_backend_names_what_it_does_not_know(options, words):
    with pytest.raises(ValueError, match=words):
        ss.TorchBackend(**options)
    assert ss.TorchBackend(block_size=np.int64(5)).block_size == 5


def test_a_gpu_that_is_not_there_is_named():
    backend = ss.TorchBackend(device=f"cuda:{torch.cuda.device_count()}")
    with pytest.raises(ValueError, match="backend='numpy'"):
        ss.SharedSpanRegressor(backend=backend).fit(np.eye(4), np.ones(4), task=[0, 0, 1, 1])


def test_backends_agree_where_noise_is_estimated_per_task():
    for seed in (0, 1):
        size = {"n_tasks": 17, "n_features": 20, "rank": 2, "n_samples": 60}
        sim = ss.simulate(**size, noise=0.2, intercept=1.0, random_state=seed)
        fits = [
            ss.SharedSpanRegressor(
                2, noise="per_task", tol=1e-11, random_state=0, backend=backend
            ).fit(sim.X, sim.y, task=sim.task)
            for backend in ("numpy", "torch")
        ]
        assert close(fits[1].coef_, fits[0].coef_, 1e-9)
        assert close(fits[1].noise_variance_, fits[0].noise_variance_, 1e-9)


INTERPRETED = """
import sys
sys.path[:0] = [{tests!r}, {tests!r} + "/.."]
import numpy as np
from test_gpu import Problem, close
from sharedspan.kernels import triton_pass

sizes = [(1, 3, 1), (7, 150, 3), (30, 33, 2), (33, 5, 2), (65, 3, 3), (130, 2, 1), (600, 2, 2)]
for d, T, k in sizes:
    problem = Problem(d, T, k)
    expected = problem.gradients(problem.W)
    for dtype, tolerance in [("float64", 1e-12), ("float32", 1e-5)]:
        grams = problem.grams(device="cpu", dtype=dtype)
        assert grams.triton is triton_pass
        assert grams.layout == ("lanes" if d <= 32 else "full")
        got = grams.gradients(problem.B, problem.W)
        assert all(close(a, b, tolerance) for a, b in zip(got, expected, strict=True)), (d, dtype)
    grams = problem.grams(device="cpu", block_size=max(T // 2, 1))
    C = problem.residuals(np.zeros((d, T)))[0]
    assert close(grams.moments(), C @ C.T, 1e-12), d
    assert close(grams.profile(problem.B, problem.W)[2], problem.best_W(), 1e-9), d
    rest = problem.residuals(problem.B @ problem.W)[1][1:].sum()
    problem.q[0] = -1e9
    assert close(problem.grams(device="cpu").gradients(problem.B, problem.W)[0], rest, 1e-12), d
    problem.g[1, 0] = np.nan
    assert np.isnan(problem.grams(device="cpu").gradients(problem.B, problem.W)[0]), d
"""


def interpret(script, **variables):
    """Run a script in a separate process."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels themselves run here")
def test_triton_kernels_in_the_interpreter_equal_the_plain_formula():
    pytest.importorskip("triton")
    script = INTERPRETED.format(tests=os.path.dirname(__file__))
    done = interpret(script, TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr[-2000:]


# ---- through the estimator ---------------------------------------------------------------------


def fitted(data, **options):
    return ss.SharedSpanRegressor(rank=2, random_state=0, tol=1e-10, **options).fit(*data)


@pytest.fixture(scope="module")
def rows():
    sizes = np.random.default_rng(3).integers(12, 60, 90)
    data = ss.simulate(
        n_tasks=90, n_features=8, rank=2, n_samples=sizes, noise=0.3, intercept=2.0, random_state=5
    )
    return data.X, data.y, data.task


@pytest.mark.parametrize("backend", ["torch", ss.TorchBackend(device="cpu", block_size=17)])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-4)])
@pytest.mark.parametrize("solver", ["tpgd", "variable_projection", "scaled_gd_anderson", "auto"])
def test_torch_fits_as_numpy_does(rows, solver, dtype, tolerance, backend):
    expected = fitted(rows, solver=solver, backend="numpy")
    got = fitted(rows, solver=solver, backend=backend, dtype=dtype)
    assert got.converged_
    assert close(got.coef_, expected.coef_, tolerance)
    assert close(got.intercept_, expected.intercept_, tolerance)


def test_torch_averages_the_tail_as_numpy_does(rows):
    options = {"solver": "tpgd", "max_iter": 300, "tail_average": True}
    expected, got = (
        ss.SharedSpanRegressor(rank=2, random_state=0, tol=0.0, backend=backend, **options)
        for backend in ("numpy", "torch")
    )
    assert close(got.fit(*rows).coef_, expected.fit(*rows).coef_, 1e-9)


def test_torch_names_the_solvers_it_has(rows):
    with pytest.raises(ValueError, match=r"solver='als'.*'tpgd'.*'variable_projection'"):
        fitted(rows, solver="als", backend="torch")


def test_missing_torch_says_how_to_install_it(rows, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "torch" else find(name, *a)
    )
    with pytest.raises(ImportError, match=r"pip install 'sharedspan\[gpu\]'"):
        fitted(rows, backend="torch")


def test_numpy_and_small_problems_leave_torch_alone():
    script = (
        "import sys, sharedspan as ss\n"
        "s = ss.simulate(n_tasks=20, n_features=5, rank=2, random_state=0)\n"
        "for backend in ('numpy', 'auto'):\n"
        "    ss.SharedSpanRegressor(rank=2, backend=backend).fit(s.X, s.y, s.task)\n"
        "    assert 'torch' not in sys.modules, backend\n"
    )
    done = interpret(script)
    assert done.returncode == 0, done.stderr[-2000:]
