"""The pass on a GPU: `python benchmarks/gpu.py [--sections abcdef] [--small]`.

a  the pass as a share of the GPU's read rate, measured in turns with it, and torch.bmm
b  one million tasks of 30 features, rank 3: 100 iterations of TPGD from statistics on the device
c  agreement with NumPy in float64
d  the same result when tasks are streamed in blocks
e  a fit of SharedSpanRegressor with backend="torch" and with backend="numpy"
f  a GPU without free memory: the error, a fit with the block size that it names, a fit on the CPU

--small runs the same code at toy sizes on the CPU; TRITON_INTERPRET=1 then includes the kernels.
"""

import argparse
import math
import re
import time
import traceback
import warnings

import numpy as np
import torch

import sharedspan as ss
from sharedspan.kernels.device_blocks import triton_kernels
from sharedspan.kernels.gpu import DeviceGrams

FEATURES = (10, 30, 64, 100, 500)
DTYPES = ("float32", "float64")
BOUNDS = {"float32": 1e-4, "float64": 1e-9}  # bounds on relative differences from NumPy
SHARE = 0.75  # share of the read rate
SECONDS = 0.3  # for 100 iterations over one million tasks
BYTES = 4e9  # size of packed Grams in section a
REPEATS = 6

claims = []


def say(*words):
    print(*words, flush=True)


def claim(text, measured, holds):
    claims.append(f"claim {text}: measured {measured}: {'holds' if holds else 'short'}")


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(function, device):
    """Busy seconds of the device for one call."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize(device)
        return begin.elapsed_time(end) / 1e3
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def elapsed(device, function, *arguments):
    """Elapsed seconds of one call, and its result."""
    wait(device)
    start = time.perf_counter()
    result = function(*arguments)
    wait(device)
    return time.perf_counter() - start, result


def distance(a, b):
    return np.linalg.norm(np.asarray(a) - np.asarray(b)) / np.linalg.norm(b)


class ReadRate:
    """Bytes per second that the GPU reads at most."""

    def __init__(self, kernels, device, small):
        from read_rate import read_sum  # needs Triton

        self.device = device
        self.x = torch.zeros(1 << 17 if small else 1 << 30, device=device)
        self.size = 4 * self.x.numel()
        ways = {"torch.sum": lambda: self.x.sum()}
        sms = kernels.multiprocessors(device)
        for per_sm, block, warps in ((4, 8192, 8), (8, 4096, 8), (2, 16384, 16), (16, 4096, 4)):
            ways[f"triton {per_sm} x {block}"] = lambda p=per_sm, b=block, w=warps: read_sum(
                self.x, sms * p, b, w
            )
        rates = {}
        for name, way in ways.items():
            way()
            rates[name] = self.size / min(seconds(way, device) for _ in range(3 if small else 10))
            say(f"   read rate, {name}: {rates[name] / 1e9:.0f} GB/s")
        self.way = ways[max(rates, key=rates.get)]

    def __call__(self):
        return self.size / seconds(self.way, self.device)


def bytes_read(grams, k):
    """Bytes that one pass has to read: Grams, anchors and g as stored, three sums, and W."""
    return grams.n_tasks * (grams.bytes_per_task + 8 * (3 + k))


def random_grams(d, dtype, T, device):
    """Random numbers, on which the time of the pass does not depend."""
    storage, P = getattr(torch, dtype), d * (d + 1) // 2
    shapes = ((T, P), (T, d), (T, d))
    arrays = [torch.rand(*shape, dtype=storage, device=device) for shape in shapes]
    sums = [torch.rand(T, dtype=torch.float64, device=device) for _ in range(3)]
    return DeviceGrams(*arrays, *sums, device=device, dtype=dtype, block_size=T)


def measure_pass(grams, k, dtype, rate):
    """Milliseconds of the pass, and its shares of the read rate, measured in turns."""
    d, T, device = grams.n_features, grams.n_tasks, grams.device
    B = torch.rand(d, k, dtype=torch.float64, device=device)
    W = torch.rand(k, T, dtype=torch.float64, device=device)
    grad_W = torch.empty_like(W)

    def one_pass():
        grams._pass(grams.blocks[0], B, W, grad_W)

    compiling, _ = elapsed(device, one_pass)
    one_pass()
    times, rates = [], []
    for _ in range(2 if device.type == "cpu" else REPEATS):
        rates.append(rate())
        times.append(seconds(one_pass, device))
    read, full = bytes_read(grams, k), T * d * d * np.dtype(dtype).itemsize
    shares = read / min(times) / max(rates), full / min(times) / max(rates)
    say(
        f"   d={d:<4} {dtype} k={k:<3} {grams.layout:<6} {min(times) * 1e3:8.3f} ms "
        f"{read / min(times) / 1e9:6.0f} GB/s  read {shares[0]:6.1%}  as full Grams "
        f"{shares[1]:6.1%}  (first call {compiling:.1f} s)"
    )
    if k == 3:
        for name, share in zip(("of the bytes read", "of full Grams"), shares, strict=True):
            text = f"pass >= {SHARE:.0%} of the read rate, {name}, d={d} {dtype} k={k}"
            claim(text, f"{share:.1%}", share >= SHARE)


def measure_bmm(d, dtype, T, device):
    storage = getattr(torch, dtype)
    G = torch.rand(T, d, d, dtype=storage, device=device)
    u = torch.rand(T, d, 1, dtype=storage, device=device)
    torch.bmm(G, u)
    best = min(seconds(lambda: torch.bmm(G, u), device) for _ in range(3))
    size = G.numel() * G.element_size()
    say(f"   d={d:<4} {dtype} torch.bmm alone, full Grams: {best * 1e3:8.3f} ms "
        f"{size / best / 1e9:6.0f} GB/s")  # fmt: skip


def section_a(device, small):
    """The pass as a share of the read rate."""
    kernels = triton_kernels(device, 1)
    if kernels is None:
        say("   needs Triton")
        return
    rate = ReadRate(kernels, device, small)
    for d in FEATURES:
        for dtype in DTYPES:
            if small and d > 100:
                continue
            size = 2e5 if small else BYTES
            T = max(int(size / (d * (d + 1) / 2 * np.dtype(dtype).itemsize)), 3)
            grams = random_grams(d, dtype, T, device)
            for k in (3, 5, 10):
                measure_pass(grams, k, dtype, rate)
            del grams
            measure_bmm(d, dtype, T // 2, device)


def planted(T, d, k, n, device, seed=0):
    """Statistics of T tasks with planted factors, made on the device in chunks."""
    draw = torch.Generator(device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, device=device, generator=draw)

    B = torch.linalg.qr(normal(d, k))[0]
    upper = torch.triu_indices(d, d, device=device)
    packed = torch.empty((T, d * (d + 1) // 2), dtype=torch.float64, device=device)
    anchor, g = (torch.empty((T, d), dtype=torch.float64, device=device) for _ in range(2))
    q, response, weight = torch.ones((3, T), dtype=torch.float64, device=device)
    for first in range(0, T, 1 << 16):
        chunk = slice(first, min(first + (1 << 16), T))
        m = chunk.stop - first
        X, V = normal(m, n, d), (B @ normal(k, m)).T
        y = torch.einsum("tnd,td->tn", X, V) + 0.3 * normal(m, n)
        anchor[chunk] = (V + 0.1 * normal(m, d)).float()
        errors = y - torch.einsum("tnd,td->tn", X, anchor[chunk])
        packed[chunk] = (X.mT @ X)[:, upper[0], upper[1]]
        g[chunk], q[chunk] = torch.einsum("tnd,tn->td", X, errors), (errors**2).sum(1)
    return packed, anchor, g, q, response, weight / n


def descend(grams, B, W, eta, iterations, balance=0.5):
    """Gradient steps on the balanced loss as in TPGD; the loss is read each time."""
    losses = []
    for _ in range(iterations):
        loss, grad_B, grad_W, WWt = grams.gradients(B, W)
        losses.append(loss)
        D = balance * (B.T @ B - WWt)
        B, W = B - eta * (grad_B + B @ D), W - eta * (grad_W - D @ W)
    return losses


def section_b(device, small):
    """One million tasks, 100 iterations."""
    T, d, k = (300, 8, 3) if small else (1_000_000, 30, 3)
    statistics = planted(T, d, k, 40, device)
    for dtype in DTYPES:
        iterate(statistics, k, dtype, device, 5 if small else 100)


def iterate(statistics, k, dtype, device, iterations):
    T, d = statistics[1].shape
    grams = DeviceGrams(*statistics, device=device, dtype=dtype)
    say(f"   {dtype}: {T * grams.bytes_per_task / 1e9:.2f} GB of statistics on the device")
    rng = np.random.default_rng(0)
    # sqrt(T) is the size of the singular values of V: W is standard normal.
    B, W = 0.1 * T**0.25 * rng.standard_normal((d, k)), 0.1 * rng.standard_normal((k, T))
    start, eta = grams.to_device(W * T**-0.25), 0.5 / math.sqrt(T)
    descend(grams, B, start, eta, 3)
    times = []
    for _ in range(3):
        took, losses = elapsed(device, descend, grams, B, start, eta, iterations)
        times.append(took)
        say(
            f"   {dtype}: {T:,} tasks, d={d}, k={k}, {iterations} iterations in {took:.4f} s; "
            f"loss {losses[0] / T:.6g} -> {losses[-1] / T:.10g} per task"
        )
    text = f"{T:,} tasks, {iterations} iterations < {SECONDS} s, {dtype}"
    claim(text, f"{max(times):.4f} s, the slowest of {len(times)}", max(times) < SECONDS)
    Q = np.linalg.qr(B)[0]
    grams.profile(Q, start)
    say(f"   {dtype}: least squares W for a B: {elapsed(device, grams.profile, Q, start)[0]:.4f} s")
    grams.moments()
    say(f"   {dtype}: moments: {elapsed(device, grams.moments)[0]:.4f} s")


def host_problem(T, d, k, seed=0):
    """Statistics on the host, and full Grams and factors for NumPy's results."""
    rng = np.random.default_rng(seed)
    n = d + 5
    X = rng.standard_normal((T, n, d)) / math.sqrt(n)
    B, W = rng.standard_normal((d, k)), rng.standard_normal((k, T))
    y = np.einsum("tnd,dt->tn", X, B @ W) + 0.3 * rng.standard_normal((T, n))
    anchor = (B @ W).T + 0.1 * rng.standard_normal((T, d))
    errors = y - np.einsum("tnd,td->tn", X, anchor)
    G, g = X.transpose(0, 2, 1) @ X, np.einsum("tnd,tn->td", X, errors)
    response, weight = rng.uniform(0.5, 2, T), rng.uniform(0.5, 2, T)
    upper = np.triu_indices(d)
    statistics = (G[:, upper[0], upper[1]], anchor, g, (errors**2).sum(1), response, weight)
    B, W = B + 0.3 * rng.standard_normal(B.shape), W + 0.3 * rng.standard_normal(W.shape)
    return statistics, G, B, W


def reference(statistics, G, B, W):
    """Loss, R W', B'R and WW', and the moments."""
    _, anchor, g, q, r, weight = statistics

    def at(V):
        u = V - r[:, None] * anchor
        Gu = (G @ u[:, :, None])[:, :, 0]
        losses = weight / 2 * (r**2 * q - 2 * r * (u * g).sum(1) + (u * Gu).sum(1))
        return (weight[:, None] * (Gu - r[:, None] * g)).T, losses

    R, losses = at(W.T @ B.T)
    C, _ = at(np.zeros_like(anchor))
    return (losses.sum(), R @ W.T, B.T @ R, W @ W.T), C @ C.T


def section_c(device, small):
    """Agreement with NumPy; bounds 1e-4 in float32 and 1e-9 in float64."""
    sizes = [(d, 5 if d == 64 else 3, max(int(1e7 / d**2), 100)) for d in FEATURES]
    sizes += [(1, 1, 1000), (2, 1, 5), (7, 2, 1001), (32, 10, 129), (33, 1, 77), (129, 2, 50)]
    sizes += [(600, 3, 30), (1030, 2, 20)]
    worst = dict.fromkeys(DTYPES, 0.0)
    identical = True
    for d, k, T in sizes:
        if small and d > 129:
            continue
        statistics, G, B, W = host_problem(40 if small else T, d, k)
        expected, CCt = reference(statistics, G, B, W)
        for dtype in DTYPES:
            grams = DeviceGrams(*statistics, device=device, dtype=dtype)
            start = grams.to_device(W)
            first, second = grams.gradients(B, start), grams.gradients(B, start)
            same = all(np.array_equal(x, y) for x, y in zip(first, second, strict=True))
            apart = [distance(x, y) for x, y in zip(first, expected, strict=True)]
            apart.append(distance(grams.moments(), CCt))
            _, _, best_W = grams.profile(B, W)
            left = np.abs(np.asarray(grams.gradients(B, best_W)[2])).max()
            names = ("loss", "R W'", "B'R", "WW'", "moments")
            listed = " ".join(f"{n} {x:.1e}" for n, x in zip(names, apart, strict=True))
            say(
                f"   d={d:<4} k={k:<2} {dtype} {grams.layout:<5} {listed}; repeat "
                f"{'identical' if same else 'DIFFERS'}; B'R after profile "
                f"{left / np.abs(expected[2]).max():.1e}"
            )
            worst[dtype], identical = max(worst[dtype], *apart), identical and same
    for dtype, value in worst.items():
        claim(f"pass agrees with NumPy to {BOUNDS[dtype]}, {dtype}", f"{value:.1e}",
              value <= BOUNDS[dtype])  # fmt: skip
    claim("a repeated pass gives the same bits", "yes" if identical else "no", identical)


def section_d(device, small):
    """Streaming in blocks."""
    for d, T in ((30, 210), (70, 60)) if small else ((30, 100_001), (100, 20_000)):
        statistics, _, B, W = host_problem(T, d, 3)
        for dtype in DTYPES:
            whole = DeviceGrams(*statistics, device=device, dtype=dtype)
            parts = DeviceGrams(*statistics, device=device, dtype=dtype, block_size=T // 7)
            expected, start = whole.gradients(B, W), parts.to_device(W)
            parts.gradients(B, start)
            took, got = elapsed(device, parts.gradients, B, start)
            apart = [distance(x, y) for x, y in zip(got, expected, strict=True)]
            say(
                f"   d={d} {dtype} T={T:,} in {len(parts.blocks)} blocks"
                f"{' from the host' if parts.streaming else ''}: largest difference "
                f"{max(apart):.1e}; {bytes_read(parts, 3) / took / 1e9:.1f} GB/s"
            )


def simulated(T, n, d):
    data = ss.simulate(n_tasks=T, n_features=d, rank=3, n_samples=n, random_state=0)
    return data.X, data.y, data.task


def fit(data, backend, dtype="float64"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = ss.SharedSpanRegressor(
            rank=3, solver="tpgd", tol=1e-8, backend=backend, dtype=dtype, random_state=0
        )
        return model.fit(*data)


def section_e(device, small):
    """The estimator with backend="torch" and with backend="numpy"."""
    T, n, d = (60, 20, 8) if small else (20_000, 60, 30)
    data = simulated(T, n, d)
    fit([x[: 50 * n] for x in data], "numpy")  # compiles
    exact = None
    for dtype in reversed(DTYPES):
        on_cpu, expected = elapsed(device, fit, data, "numpy", dtype)
        first, _ = elapsed(device, fit, data, "torch", dtype)
        took, got = elapsed(device, fit, data, "torch", dtype)
        exact = expected if exact is None else exact
        apart = distance(got.coef_, exact.coef_)
        loop = {name: model.trace_["seconds"][-1] for name, model in (("c", expected), ("t", got))}
        say(
            f"   {dtype}: {T:,} tasks x {n} rows, d={d}: numpy {on_cpu:.2f} s "
            f"({expected.n_iter_} iterations, {loop['c']:.3f} s of them), torch {took:.2f} s "
            f"({got.n_iter_} iterations, {loop['t']:.3f} s of them; first fit {first:.2f} s); "
            f"numpy / torch {on_cpu / took:.2f} in all, {loop['c'] / loop['t']:.2f} in iterations"
        )
        say(
            f"   {dtype}: relative difference of coef_ from numpy in {dtype} "
            f"{distance(got.coef_, expected.coef_):.1e}, in float64 {apart:.1e}; {got.message_}"
        )
        claim(f"coef_ agrees with NumPy's to {BOUNDS[dtype]}, {dtype}", f"{apart:.1e}",
              apart <= BOUNDS[dtype])  # fmt: skip


def section_f(device, small):
    """A GPU without free memory."""
    if device.type != "cuda":
        say("   needs a GPU")
        return
    T, n, d, left = 10_000, 120, 100, 600 << 20  # 816 MB of full Grams
    data = simulated(T, n, d)
    fit([x[: 200 * n] for x in data], "torch")  # compiles, and loads libraries once
    torch.cuda.empty_cache()
    filler = torch.empty(
        torch.cuda.mem_get_info(device)[0] - left, dtype=torch.uint8, device=device
    )
    free = torch.cuda.mem_get_info(device)[0]
    say(f"   {filler.numel() / 1e9:.1f} GB taken, {free / 1e9:.2f} GB left")
    message = ""
    try:
        fit(data, ss.TorchBackend(device="cuda", block_size=T))
    except MemoryError as error:
        message = str(error)
    say(f"   MemoryError: {message}")
    named = re.search(r"block_size=(\d+)", message)
    claim("no memory left gives a MemoryError with a block size", bool(named), bool(named))
    took, expected = elapsed(device, fit, data, "numpy")
    say(f"   backend='numpy' with the GPU full: {took:.2f} s, {expected.message_}")
    for backend in [ss.TorchBackend("cuda", int(named[1])), "torch"] if named else []:
        torch.cuda.empty_cache()
        took, got = elapsed(device, fit, data, backend)
        apart = distance(got.coef_, expected.coef_)
        say(f"   backend={backend!r} with the GPU full: {took:.2f} s, coef_ apart {apart:.1e}")
        claim(f"backend={backend!r} with the GPU full agrees to 1e-9", f"{apart:.1e}",
              apart <= BOUNDS["float64"])  # fmt: skip
    del filler


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", default="cbadef")
    parser.add_argument("--small", action="store_true", help="toy sizes, on the CPU")
    options = parser.parse_args()
    device = torch.device("cpu" if options.small else "cuda")
    if options.small:
        torch.set_num_threads(1)  # threads do not pay at toy sizes
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    triton = "in use" if triton_kernels(device, 1) else "not in use"
    say(f"{name}, torch {torch.__version__}, Triton {triton}")
    sections = {"a": section_a, "b": section_b, "c": section_c}
    sections |= {"d": section_d, "e": section_e, "f": section_f}
    for letter in options.sections:
        begin = time.perf_counter()
        say(f"\n{letter}  {sections[letter].__doc__}")
        try:
            sections[letter](device, options.small)
        except Exception:
            traceback.print_exc()
            claim(f"section {letter} runs through", "an error", False)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        say(f"   section {letter}: {time.perf_counter() - begin:.0f} s")
    say()
    for line in claims:
        say(line)


if __name__ == "__main__":
    main()
