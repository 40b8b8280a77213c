"""What else a user would fit to a grouped table: ridge regressions, trace norm, mixed models.

Each peer in `PEERS` is called with a limit in seconds of processor time and the arrays X of shape
(n, d), y (n,), task (n,) with codes 0, ..., T - 1, and the mask `train` (n,). It returns an array
of shape (n,), which predicts the held-out rows, and its seconds; it raises `TimeoutError` at the
limit and `RuntimeError` where the fit failed.
"""

import multiprocessing
import os
import select
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from sklearn.linear_model import RidgeCV

ALPHAS = np.logspace(-3, 5, 25)
LARGEST_FULL = 12  # features with random slopes in an unstructured covariance


# Ridge and trace norm: each predicts all rows from those where `train` is true


def standardised(X, train):
    scale = X[train].std(axis=0)
    return (X - X[train].mean(axis=0)) / np.where(scale > 0, scale, 1.0)


def task_means(values, task, train):
    """Means of the training rows of each task; `values` has shape (n,) or (n, d)."""
    columns = np.atleast_2d(values.T)
    sums = [np.bincount(task[train], column[train], task.max() + 1) for column in columns]
    means = np.array(sums) / np.bincount(task[train])
    return means[0] if values.ndim == 1 else means.T


def rows_by_task(task, rows):
    """Indices where `rows` is true, one array for each task."""
    index = np.flatnonzero(rows)
    order = index[np.argsort(task[index], kind="stable")]
    return np.split(order, np.cumsum(np.bincount(task[index], minlength=task.max() + 1))[:-1])


def pooled_ridge(X, y, task, train):
    Z = standardised(X, train)
    return RidgeCV(ALPHAS).fit(Z[train], y[train]).predict(Z)


def ridge_per_task(X, y, task, train):
    Z, out = standardised(X, train), np.zeros(len(y))
    for own, other in zip(rows_by_task(task, train), rows_by_task(task, ~train), strict=True):
        out[other] = y[own].mean()
        if len(own) > 2:
            out[other] += (Z[other] - Z[own].mean(axis=0)) @ loo_ridge(Z[own], y[own])
    return out


def loo_ridge(Z, y):
    """Slopes as by `RidgeCV(ALPHAS)`, with little overhead for small tasks."""
    U, s, Vt = np.linalg.svd(Z - Z.mean(axis=0), full_matrices=False)
    centred = y - y.mean()
    along = U.T @ centred
    shrinkage = s**2 / (s**2 + ALPHAS[:, None])
    leverage = 1 / len(y) + shrinkage @ (U**2).T
    errors = (centred - (shrinkage * along) @ U.T) / np.maximum(1 - leverage, 1e-10)
    alpha = ALPHAS[np.argmin((errors**2).sum(axis=1))]
    return Vt.T @ (s / (s**2 + alpha) * along)


def shared_slopes(X, y, task, train):
    """Ridge on rows less their task means."""
    return centred_ridge(X, y, task, train)[0]


def centred_ridge(X, y, task, train):
    """Predictions of `shared_slopes`, and the centred features that they are made of."""
    Z = standardised(X, train)
    C = Z - task_means(Z, task, train)[task]
    base = task_means(y, task, train)[task]
    ridge = RidgeCV(ALPHAS, fit_intercept=False).fit(C[train], (y - base)[train])
    return base + C @ ridge.coef_, C


def trace_norm(X, y, task, train):
    """Task slopes around the pooled one with a nuclear-norm penalty, chosen on 20 % of the rows."""
    inner = train & (np.random.default_rng(0).random(len(y)) < 0.8)
    for own in rows_by_task(task, train):
        if not inner[own].any():
            inner[own[0]] = True
    path = np.logspace(0, -3.5, 15)
    held = train & ~inner
    errors = [np.mean((p - y)[held] ** 2) for p in trace_path(X, y, task, inner, path)]
    return list(trace_path(X, y, task, train, path[: int(np.argmin(errors)) + 1]))[-1]


def trace_path(X, y, task, train, path):
    """Predictions for falling penalties, by accelerated proximal gradient steps."""
    base, C = centred_ridge(X, y, task, train)
    rest = y - base
    own = rows_by_task(task, train)
    G = np.array([C[i].T @ C[i] for i in own])
    g = np.array([C[i].T @ rest[i] for i in own])
    step = 1 / np.linalg.eigvalsh(G)[:, -1].max()
    U, top = np.zeros_like(g), np.linalg.norm(g, 2)
    for share in path:
        V, pace = U, 1.0
        for _ in range(150):
            moved = V - step * (np.einsum("tij,tj->ti", G, V) - g)
            A, s, Bt = np.linalg.svd(moved, full_matrices=False)
            new = (A * np.maximum(s - step * share * top, 0)) @ Bt
            faster = (1 + np.sqrt(1 + 4 * pace**2)) / 2
            V = new + (pace - 1) / faster * (new - U)
            done = np.linalg.norm(new - U) < 1e-5 * max(np.linalg.norm(new), 1e-9)
            U, pace = new, faster
            if done:
                break
        yield base + np.einsum("ij,ij->i", C, U[task])


# Mixed models: all features have fixed effects, those that vary within tasks random slopes too


def mixed_data(X, y, task, train):
    """Standardised features and response, and which features vary within the tasks."""
    Z = standardised(X, train)
    within = (Z - task_means(Z, task, train)[task])[train].std(axis=0) > 1e-6
    return Z, standardised(y, train), within


def in_units(predictions, y, train):
    return y[train].mean() + y[train].std() * predictions


def gpboost_slopes(X, y, task, train):
    """Independent random slopes by maximum likelihood."""
    import gpboost  # here, so that `ours` and `summary` do without

    Z, target, within = mixed_data(X, y, task, train)
    design, slopes = np.column_stack([np.ones(len(Z)), Z]), Z[:, within]
    groups = task.astype(str)
    model = gpboost.GPModel(
        likelihood="gaussian",
        group_data=groups[train],
        group_rand_coef_data=slopes[train],
        ind_effect_group_rand_coef=[1] * slopes.shape[1],
    )
    model.fit(y=target[train], X=design[train], params={"trace": False})
    out = np.zeros(len(y))
    out[~train] = model.predict(
        group_data_pred=groups[~train],
        X_pred=design[~train],
        group_rand_coef_data_pred=slopes[~train],
    )["mu"]
    return in_units(out, y, train)


def mixedlm_full(X, y, task, train):
    """Correlated random slopes by statsmodels, with REML."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    Z, target, within = mixed_data(X, y, task, train)
    ones = np.ones((len(Z), 1))
    design, slopes = np.hstack([ones, Z]), np.hstack([ones, Z[:, within]])
    fit = MixedLM(target[train], design[train], task[train], slopes[train]).fit()
    effects = np.array([fit.random_effects[t] for t in range(task.max() + 1)])
    out = design @ fit.fe_params + np.einsum("ij,ij->i", slopes, effects[task])
    return in_units(out, y, train)


def cpu_seconds(pid):
    """Processor time that a process has taken."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait(connection, pid, limit):
    """Wait for something to read from a process, or raise after `limit` seconds of its time."""
    began = cpu_seconds(pid)
    while not select.select([connection], [], [], 0.5)[0]:
        if cpu_seconds(pid) - began > limit:
            raise TimeoutError


class Lme4:
    """An R process that fits lme4 models, started again after a fit that took too long."""

    process = None

    def predict(self, bar, limit, X, y, task, train):
        """REML, with "||" as `bar` for independent and "|" for correlated random effects.

        "glmmTMB" has independent ones. Returns predictions and seconds.
        """
        Z, target, within = mixed_data(X, y, task, train)
        x = np.array([f"x{j + 1}" for j in range(X.shape[1])])
        slopes = "+".join(["1", *x[within]])
        effects = f"diag({slopes}|g)" if bar == "glmmTMB" else f"({slopes}{bar}g)"
        formula = f"y~{'+'.join(x)}+{effects}"
        order = np.concatenate([np.flatnonzero(train), np.flatnonzero(~train)])
        columns = np.vstack([target, task, Z.T])[:, order]
        with tempfile.TemporaryDirectory() as folder:
            columns.tofile(Path(folder) / "rows.bin")
            seconds = self.ask(f"{folder}\t{len(y)}\t{train.sum()}\t{formula}\n", limit)
            out = np.zeros(len(y))
            out[~train] = np.fromfile(Path(folder) / "predictions.bin")
        return in_units(out, y, train), seconds

    def ask(self, line, limit):
        if self.process is None:
            script = str(Path(__file__).with_name("lme4_server.R"))
            self.process = subprocess.Popen(
                ["Rscript", script], text=True, bufsize=1, stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
        self.process.stdin.write(line)
        try:
            wait(self.process.stdout, self.process.pid, limit)
        except TimeoutError:
            self.stop()
            raise
        answer = self.process.stdout.readline().strip()
        if not answer.startswith("done"):
            if not answer:
                self.stop()
            raise RuntimeError(answer or "R ended")
        return float(answer.split()[1])

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process = None


def limited(predict, limit, *rows):
    """`predict(*rows)` and its seconds, in a process of its own that is ended at the limit."""
    context = multiprocessing.get_context("fork")
    parent, child = context.Pipe(duplex=False)

    def work():
        try:
            child.send((predict(*rows), time.process_time()))
        except Exception as problem:
            child.send(RuntimeError(f"{type(problem).__name__}: {problem}"))

    process = context.Process(target=work)
    process.start()
    child.close()
    try:
        wait(parent, process.pid, limit)
        result = parent.recv()
    except EOFError:
        result = RuntimeError("the process died")
    finally:
        process.kill()
        process.join()
    if isinstance(result, RuntimeError):
        raise result
    return result


LME4 = Lme4()
PEERS = {
    "pooled ridge": partial(limited, pooled_ridge),
    "shared slopes": partial(limited, shared_slopes),
    "ridge per task": partial(limited, ridge_per_task),
    "trace norm": partial(limited, trace_norm),
    "lme4 ||": partial(LME4.predict, "||"),
    "lme4 |": partial(LME4.predict, "|"),
    "GPBoost slopes": partial(limited, gpboost_slopes),
    "MixedLM": partial(limited, mixedlm_full),
}


def offered(method, d):
    """Whether a method is tried on d features: a full covariance has d (d + 1) / 2 parameters."""
    return method != "lme4 |" or d <= LARGEST_FULL
