"""Simulation, distances, noise levels, data sets, the command line and the layout."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose

import sharedspan as ss
from sharedspan.cli import main
from sharedspan.inference.noise import shrink_noise
from sharedspan.subspace import balanced_factors, ordered_factors

SOURCE = Path(ss.__file__).parent


def test_simulated_spectra_and_signal_are_as_asked():
    sim = ss.simulate(
        n_tasks=60, n_features=20, rank=4, n_samples=5, condition_number=8, signal=3.0,
        random_state=0,
    )  # fmt: skip
    s = np.linalg.svd(sim.coef, compute_uv=False)
    assert_allclose(s[:4], sim.singular_values, rtol=1e-10)
    assert_allclose(s[0] / s[3], 8.0)
    assert_allclose(s[1] / s[0], s[2] / s[1])
    assert_allclose(np.mean(np.sum(sim.coef**2, axis=1)), 9.0)
    assert_allclose((sim.representation @ sim.task_weights).T, sim.coef, atol=1e-12)
    assert_allclose(sim.representation.T @ sim.representation, np.eye(4), atol=1e-12)
    assert s[4] < 1e-10


def test_simulated_options_do_what_they_say():
    noise = np.linspace(0.1, 1.0, 20)
    sim = ss.simulate(
        n_tasks=20, n_features=6, rank=2, n_samples=4000, noise=noise, feature_condition=50,
        degrees_of_freedom=8, intercept=2.0, mean_slope=1.5, outliers=0.1, random_state=0,
    )  # fmt: skip
    assert_allclose(np.linalg.cond(sim.covariance), 50)
    assert_allclose(np.cov(sim.X.T), sim.covariance, atol=0.1)
    residual = sim.y - sim.intercept[sim.task] - np.einsum("ij,ij->i", sim.X, sim.coef[sim.task])
    assert_allclose(np.sqrt(np.bincount(sim.task, residual**2) / 4000), noise, rtol=0.05)
    kurtosis = np.mean(sim.X[:, 0] ** 4) / np.mean(sim.X[:, 0] ** 2) ** 2
    assert kurtosis > 3.5
    assert sim.is_outlier.sum() == 2
    assert_allclose(np.linalg.norm(sim.coef[sim.is_outlier], axis=1), 3.0)
    assert_allclose(sim.coef[sim.is_outlier] @ sim.representation, 0, atol=1e-12)
    inside = (sim.coef - sim.mean_slope)[~sim.is_outlier]
    assert_allclose(inside @ sim.representation @ sim.representation.T, inside, atol=1e-12)
    assert_allclose(np.linalg.norm(sim.mean_slope), 1.5)


@pytest.mark.parametrize(
    "bad",
    [{"rank": 0}, {"rank": 21}, {"noise": -1.0}, {"n_samples": [1, 2]}, {"condition_number": 0.5},
     {"degrees_of_freedom": 2}, {"outliers": 1.5}, {"n_samples": 0}],
    ids=str,
)  # fmt: skip
def test_impossible_simulations_are_refused(bad):
    with pytest.raises(ValueError):
        ss.simulate(**({"n_tasks": 20, "n_features": 30, "rank": 2} | bad))


def test_the_floor_for_unequal_tasks_contains_the_equal_one():
    expected = 0.4**2 * 5 * (100 + 90 - 5) / 1000
    assert_allclose(ss.error_floor(1000, 100, 90, 5, 0.4), expected)
    assert_allclose(ss.error_floor(np.full(90, 1000), 100, 90, 5, np.full(90, 0.4)), expected)
    assert ss.error_floor(1000, 100, 90, 5, 0.0) == 0.0


def test_distances_between_factors_ignore_rotation_and_balance(rng):
    B, W = rng.standard_normal((9, 3)), rng.standard_normal((3, 7))
    mix = rng.standard_normal((3, 3)) + 3 * np.eye(3)
    F, G = balanced_factors(B @ W, 3)
    Q, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    assert ss.factor_distance(F @ Q, Q.T @ G, B @ mix, np.linalg.solve(mix, W)) < 1e-9
    assert ss.factor_distance(F + 0.1, G, B, W) > 0.1


def test_principal_angles_have_known_values():
    angle = 1e-9
    A = np.eye(4)[:, :2]
    B = np.array([[1, 0], [0, np.cos(angle)], [0, np.sin(angle)], [0, 0]])
    assert_allclose(ss.principal_angles(A, B), [angle, 0], atol=1e-15)
    assert_allclose(ss.subspace_distance(A, np.eye(4)[:, 2:]), 1.0)
    with pytest.raises(ValueError, match="same number of rows"):
        ss.principal_angles(A, np.eye(3))


def test_ordered_factors_keep_the_product(rng):
    B, W = rng.standard_normal((9, 3)), rng.standard_normal((3, 7))
    basis, weights = ordered_factors(B, W)
    assert_allclose(basis @ weights, B @ W, rtol=1e-10)
    assert (np.diff(np.linalg.norm(weights, axis=1)) <= 0).all()


def test_noise_levels_shrink_towards_each_other(rng):
    truth = np.exp(rng.normal(0, 0.7, 300))
    degrees = rng.integers(1, 30, 300).astype(float)
    rss = truth * rng.chisquare(degrees)
    shrunk, raw = shrink_noise(rss, degrees)[0], rss / degrees
    assert np.mean(np.log(shrunk / truth) ** 2) < 0.6 * np.mean(np.log(raw / truth) ** 2)
    equal, _ = shrink_noise(rng.chisquare(degrees) * 2.0, degrees)
    assert_allclose(equal, 2.0, rtol=0.2)
    no_rows, _ = shrink_noise(np.array([0.0, 5.0, 6.0]), np.array([0.0, 5.0, 5.0]))
    assert 0.5 < no_rows[0] < 2.0


def test_perfect_fits_do_not_break_the_noise_levels():
    assert (shrink_noise(np.zeros(4), np.ones(4))[0] == 0).all()
    mixed, _ = shrink_noise(np.array([0.0, 0.0, 3.0, 4.0]), np.full(4, 3.0))
    assert np.isfinite(mixed).all()
    assert (mixed > 0).all()


def test_bundled_data_is_complete():
    data = ss.datasets.load_parkinsons()
    assert data.X.shape == (5875, 17)
    assert len(np.unique(data.task)) == 42
    assert data.to_frame().columns[0] == "subject"
    assert "CC BY" in data.licence
    assert not np.array_equal(data.y, ss.datasets.load_parkinsons("motor_updrs").y)
    with pytest.raises(ValueError, match="total_updrs"):
        ss.datasets.load_parkinsons("age")


def test_the_demo_shows_a_real_table_first_then_tpgd_and_writes_its_figure(tmp_path):
    result = CliRunner().invoke(main, ["demo", "-o", str(tmp_path / "demo.png")])
    assert result.exit_code == 0, result.output
    words = ("42 patients", "rows each", "one model per patient", "Sharing cuts the error",
             "error / floor", "TPGD is", "Next: sharedspan demo --tables tables")  # fmt: skip
    places = [result.output.find(word) for word in words]
    assert -1 not in places
    assert places == sorted(places)
    assert (tmp_path / "demo.png").stat().st_size > 20_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["-o", "no/such/folder/x.png"], "no folder"), (["-o", "figure.txt"], "must end in"),
     (["--seed", "-1"], "x>=0"), (["--seed", "x"], "not a valid integer")],
    ids=str,
)  # fmt: skip
def test_mistakes_on_the_command_line_exit_with_two_and_one_line(arguments, message):
    result = CliRunner().invoke(main, ["demo", *arguments])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_help_and_import_stay_light():
    code = (
        "import sys, sharedspan.cli; "
        "heavy = {'numpy', 'sklearn', 'numba', 'scipy', 'matplotlib', 'rich'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# From the bottom up: a module imports only from its own package and from packages before it.
LAYERS = (
    "kernels", "progress", "subspace", "inputs", "statistics", "objective", "distributed",
    "persistence", "datasets", "solvers", "families", "mixed_model", "inference", "estimators",
    "formula", "diagnosis", "report", "paper", "cli",
)  # fmt: skip


def _layer(module):
    return LAYERS.index(module.split(".")[1])


def _imports(path, *, deferred=True):
    """The modules that a file imports; without ``deferred``, only at its top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree) if deferred else tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_go_one_way(path):
    module = ".".join(("sharedspan", *path.relative_to(SOURCE).with_suffix("").parts))
    if module == "sharedspan.__init__":
        return
    layer = _layer(module)
    # A model file or an ONNX graph needs its estimator, which is imported when it is used.
    for imported in _imports(path, deferred=not module.startswith("sharedspan.persistence.")):
        if imported.startswith("sharedspan."):
            assert _layer(imported) <= layer, f"{module} imports {imported}"
        if imported.split(".")[0] == "sklearn":
            assert module.startswith("sharedspan.estimators"), f"{module} imports scikit-learn"
        if imported.split(".")[0] in ("dask", "distributed"):
            assert module.startswith("sharedspan.distributed."), f"{module} imports {imported}"
        if imported.split(".")[0] in ("torch", "triton"):
            homes = (
                "kernels.gpu",
                "kernels.device_blocks",
                "kernels.device_matrix",
                "kernels.device_rows",
                "kernels.triton_gather",
                "kernels.triton_pass",
                "objective.backends",
                "objective.device",
            )
            assert module.removeprefix("sharedspan.") in homes, f"{module} imports {imported}"


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(SOURCE.rglob("*.py")) if path.parent.name != "estimators"],
    ids=lambda p: str(p.relative_to(SOURCE)),
)
def test_scikit_learn_comes_through_no_back_door(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sharedspan."):
            module = importlib.import_module(node.module)
            for alias in node.names:
                home = getattr(getattr(module, alias.name, None), "__module__", None) or ""
                assert not home.startswith("sklearn"), f"{path.name} imports {alias.name}"
