"""The pass on the CPU against the speed of memory: `python benchmarks/kernels.py`.

For each size, in turns within one run: reading the full Grams once (a sum over T d^2 numbers on all
threads, the machine's streaming rate), `np.matmul` of full Grams and V, the residual pass R(V), the
fused pass of a gradient step (loss, R W' and B'R from B and W), and variable projection's pass (the
best W as well). Printed: the streaming rate, then each pass as

    rate over reading full Grams, rate over np.matmul, share of the bytes that the pass must move.

The first can exceed one because Grams are stored packed. Then TPGD, 300 iterations at d=100, T=500,
k=5: its time over the time of 300 bare passes, residual and fused; and float32 storage over
float64. The claims are printed last. `--turns N` sets the number of turns.

`--guard` is for CI: the fused pass against a plain compiled loop over the same packed Grams, in
turns, at three sizes; the exit status is 1 if its lead is lost.
"""

import argparse
import sys
import time

import numba
import numpy as np

from sharedspan.kernels.threads import n_threads, over_tasks
from sharedspan.objective import GramObjective
from sharedspan.solvers import SOLVERS
from sharedspan.solvers.loop import run
from sharedspan.statistics.grams import GramStatistics

# (T, d, k): least ratios to the streaming rate of full Grams, and to np.matmul
SIZES = {
    (2000, 100, 5): (1.6, 4.0),
    (200, 500, 5): (1.6, 3.0),
    (20000, 30, 3): (1.6, 2.5),
    (500, 100, 5): (None, 5.0),
    (100000, 10, 3): (None, 2.0),
}

# (T, d, k): least ratio to the speed of a plain loop, which does less; about half of the measured
# ratio
GUARD = {(500, 100, 5): 2.5, (5000, 30, 3): 2.2, (20000, 10, 3): 1.3}


@numba.njit(nogil=True, fastmath=True)
def add_up(x):
    """The sum of x, from four streams, to measure reading alone."""
    n = len(x) // 4
    a, b, c, d = x[:n], x[n : 2 * n], x[2 * n : 3 * n], x[3 * n :]
    total = 0.0
    for i in range(n):
        total += (a[i] + b[i]) + (c[i] + d[i])
    return total


def stream(x):
    over_tasks(lambda first, last: add_up(x[first:last]), len(x), float(len(x)))


def random_objective(T, d, rng, dtype="float64"):
    """Grams of random rows, on which the time of the pass does not depend."""
    statistics = GramStatistics(T, d, False)
    i, j = np.triu_indices(d)
    for t in range(T):
        if t < 16:
            X = rng.standard_normal((2 * d, d))
            statistics.packed[t] = (X.T @ X)[i, j]
        else:
            statistics.packed[t] = statistics.packed[t % 16]
    statistics.anchor[:] = rng.standard_normal((T, d))
    statistics.g[:] = rng.standard_normal((T, d))
    statistics.n[:], statistics.q[:] = 2 * d, 100.0 * d
    return GramObjective(statistics, None, dtype)


@numba.njit(nogil=True, fastmath=True)
def plain_pass(packed, anchor, g, V, R, first, last):
    """The residual pass as a plain loop, for comparison."""
    d = V.shape[1]
    for t in range(first, last):
        R[t] = -g[t]
        start = 0
        for i in range(d):
            u_i = V[t, i] - anchor[t, i]
            R[t, i] += packed[t, start] * u_i
            for j in range(i + 1, d):
                x = packed[t, start + j - i]
                R[t, i] += x * (V[t, j] - anchor[t, j])
                R[t, j] += x * u_i
            start += d - i


def in_turns(contenders, turns):
    """Median seconds of each, one after the other.

    Each is called five times in a row, as in iterations, and the last three are timed.
    """
    seconds = {name: [] for name in contenders}
    for _ in range(turns):
        for name, call in contenders.items():
            call()
            call()
            for _ in range(3):
                begin = time.perf_counter()
                call()
                seconds[name].append(time.perf_counter() - begin)
    return {name: float(np.median(values)) for name, values in seconds.items()}


def passes(T, d, k, turns, rng):
    objective = random_objective(T, d, rng)
    full = rng.standard_normal((T, d, d))
    V, R = rng.standard_normal((T, d)), np.empty((T, d))
    B, W = rng.standard_normal((d, k)), rng.standard_normal((k, T))
    flat = full.reshape(-1)
    took = in_turns(
        {
            "stream": lambda: stream(flat),
            "matmul": lambda: np.matmul(full, V[:, :, None]),
            "residual": lambda: objective.residuals(V.T, out=R),
            "fused": lambda: objective.gradients(B, W),
            "profile": lambda: objective.profile(B, W),
        },
        turns,
    )
    rate = full.nbytes / took["stream"]
    # Bytes besides the triangles: anchors and g; V and R (which is read before it is written).
    moved = {
        "residual": objective.packed.nbytes + 8 * T * d * 5,
        "fused": objective.packed.nbytes + 8 * T * (2 * d + 2 * k),
        "profile": objective.packed.nbytes + 8 * T * (2 * d + 2 * k),
    }
    print(f"T={T} d={d} k={k}: streaming {rate / 1e9:.1f} GB/s")
    for name, size in moved.items():
        print(
            f"   {name:<9} {took['stream'] / took[name]:5.2f} of full Grams  "
            f"{took['matmul'] / took[name]:5.2f} of np.matmul  "
            f"{size / took[name] / rate:5.0%} of memory"
        )
    return took["stream"] / took["residual"], took["matmul"] / took["residual"]


def tpgd_overhead(turns, rng, T=500, d=100, k=5, iterations=300):
    objective = random_objective(T, d, rng)
    B, W = rng.standard_normal((d, k)), rng.standard_normal((k, T))
    V, R = (B @ W).T.copy(), np.empty((T, d))

    def tpgd():
        solver = SOLVERS["tpgd"](
            objective, k, np.random.default_rng(0), max_iter=iterations, tol=0.0
        )
        assert run(solver, objective, max_iter=iterations, tol=0.0).n_iter == iterations

    def bare():
        for _ in range(iterations):
            objective.residuals(V.T, out=R)

    def fused():
        for _ in range(iterations):
            objective.gradients(B, W)

    took = in_turns({"tpgd": tpgd, "residual": bare, "fused": fused}, max(turns // 4, 3))
    return took["tpgd"] / took["residual"], took["tpgd"] / took["fused"]


def single_precision(turns, rng, T=20000, d=30, k=3):
    double, single = random_objective(T, d, rng), random_objective(T, d, rng, "float32")
    B, W = rng.standard_normal((d, k)), rng.standard_normal((k, T))
    took = in_turns(
        {"64": lambda: double.gradients(B, W), "32": lambda: single.gradients(B, W)}, turns
    )
    return took["32"] / took["64"]


def claim(text, measured, bound, least=True):
    holds = measured >= bound if least else measured <= bound
    print(f"claim: {text}: measured {measured:.2f}: {'holds' if holds else 'short'}")


def guard(turns, rng):
    """Whether the fused pass is well ahead of a plain loop at all sizes."""
    ahead = True
    for (T, d, k), least in GUARD.items():
        objective = random_objective(T, d, rng)
        s, B, W = objective.statistics, rng.standard_normal((d, k)), rng.standard_normal((k, T))
        V, R = (B @ W).T.copy(), np.empty((T, d))

        def plain(first, last, s=s, V=V, R=R):
            plain_pass(s.packed, s.anchor, s.g, V, R, first, last)

        took = in_turns(
            {
                "plain": lambda T=T, plain=plain: over_tasks(plain, T, 1e9),
                "fused": lambda o=objective, B=B, W=W: o.gradients(B, W),
            },
            turns,
        )
        ratio = took["plain"] / took["fused"]
        print(f"T={T} d={d}: the fused pass is {ratio:.2f} times as fast as a plain loop")
        ahead &= ratio > least
    return ahead


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--guard", action="store_true")
    options = parser.parse_args()
    turns, rng = options.turns, np.random.default_rng(0)
    if options.guard:
        sys.exit(not guard(turns, rng))
    print(f"{n_threads()} threads, medians of {turns} turns\n")
    measured = {size: passes(*size, turns, rng) for size in SIZES}
    by_residual, by_fused = tpgd_overhead(turns, rng)
    print(f"TPGD over bare residual passes {by_residual:.2f}, over fused passes {by_fused:.2f}")
    print(f"fused pass at T=20000 d=30, float32 over float64: {single_precision(turns, rng):.2f}\n")
    for (T, d, _), (of_stream, of_matmul) in SIZES.items():
        streamed, multiplied = measured[T, d, _]
        if of_stream:
            claim(f"T={T} d={d}, at least {of_stream} of full Grams", streamed, of_stream)
        claim(f"T={T} d={d}, at least {of_matmul} of np.matmul", multiplied, of_matmul)
    claim("TPGD outside of its passes, at most 0.15", by_fused - 1, 0.15, least=False)


if __name__ == "__main__":
    main()
