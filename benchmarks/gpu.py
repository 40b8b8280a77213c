"""The pass on a GPU: `python benchmarks/gpu.py [--sections abcd] [--sweep SECONDS] [--small]`.

a  the pass as a share of the card's own read rate, measured in turns with it; torch.bmm beside it;
   with --sweep, further settings of the kernels until the seconds are used up
b  one million tasks of 30 features, rank 3: 100 iterations of TPGD from statistics on the device
c  agreement with NumPy in float64
d  the same result when tasks are streamed in blocks

--small runs the same code at toy sizes on the CPU, where TRITON_INTERPRET=1 includes the kernels.
"""

import argparse
import math
import time
import traceback

import numpy as np
import torch

from sharedspan.kernels.gpu import Block, DeviceGrams, DeviceMatrix, triton_kernels

FEATURES = (10, 30, 64, 100, 500)
DTYPES = ("float32", "float64")
BYTES = 4e9  # of Grams in section a
REPEATS = 6


def say(*words):
    print(*words, flush=True)


def wait(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(function, device):
    """Seconds that one call keeps the device busy."""
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


class ReadRate:
    """What the card reads per second when it does nothing else."""

    def __init__(self, kernels, device, small):
        self.device = device
        self.x = torch.zeros(1 << 17 if small else 1 << 30, device=device)
        size = 4 * self.x.numel()
        ways = {"torch.sum": lambda: self.x.sum()}
        sms = kernels.multiprocessors(device)
        for per_sm, block, warps in ((4, 8192, 8), (8, 4096, 8), (2, 16384, 16), (16, 4096, 4)):
            ways[f"triton {per_sm} x {block}"] = lambda p=per_sm, b=block, w=warps: (
                kernels.read_sum(self.x, sms * p, b, w)
            )
        rates = {}
        for name, way in ways.items():
            way()
            rates[name] = size / min(seconds(way, device) for _ in range(3 if small else 10))
            say(f"   read rate, {name}: {rates[name] / 1e9:.0f} GB/s")
        self.best = max(rates, key=rates.get)
        self.way, self.size = ways[self.best], size

    def __call__(self):
        return self.size / seconds(self.way, self.device)


def random_problem(d, k, dtype, layout, T, device, kernels):
    """Random numbers in the layout; the pass takes the same time whatever they are."""
    storage = getattr(torch, dtype)
    P = d * (d + 1) // 2
    if layout == "lanes":
        groups = -(-T // kernels.MOST_LANES) * kernels.MOST_LANES // kernels.GROUP
        parts = (torch.rand(groups, P + 2 * d, kernels.GROUP, dtype=storage, device=device),)
    else:
        shape = (T, d, d) if layout == "full" else (T, P)
        parts = tuple(torch.rand(*s, dtype=storage, device=device) for s in (shape, (T, d), (T, d)))
    sums = tuple(torch.rand(T, dtype=torch.float64, device=device) for _ in range(3))
    B = torch.rand(d, k, dtype=torch.float64, device=device)
    W = torch.rand(k, T, dtype=torch.float64, device=device)
    return parts, sums, B, W


def bytes_read(d, k, dtype, layout, T):
    numbers = (d * d if layout == "full" else d * (d + 1) // 2) + 2 * d
    return T * (numbers * np.dtype(dtype).itemsize + 8 * (3 + k))


def measure(setting, d, k, dtype, T, problem, kernels, rate):
    """Seconds of the pass and its share of the read rate, measured in turns."""
    parts, sums, B, W = problem
    anchor, g = parts[1:] if len(parts) == 3 else (None, None)
    grad_W = torch.empty_like(W)

    def one_pass():
        kernels.gradients(parts[0], anchor, g, sums, B, W, grad_W, setting)

    start = time.perf_counter()
    one_pass()
    wait(B.device)
    compiling = time.perf_counter() - start
    one_pass()
    times, rates = [], []
    for _ in range(2 if B.device.type == "cpu" else REPEATS):
        rates.append(rate())
        times.append(seconds(one_pass, B.device))
    size = bytes_read(d, k, dtype, setting.layout, T)
    share = size / min(times) / max(rates)
    s = setting
    how = (
        f"warps={s.warps} per_sm={s.per_sm} {s.reduce}"
        if s.layout == "lanes"
        else f"warps={s.warps} per_sm={s.per_sm} {s.rows}x{s.column_blocks}x{s.columns}"
        f" stages={s.stages}"
    ) + (f" registers={s.registers}" if s.registers else "")
    say(
        f"   d={d:<4} {dtype} k={k:<3} {s.layout:<6} {min(times) * 1e3:8.3f} ms "
        f"{size / min(times) / 1e9:6.0f} GB/s  {share:6.1%}  {how}  (compiled {compiling:.1f} s)"
    )
    return min(times), share


def measure_bmm(d, dtype, T, device):
    storage = getattr(torch, dtype)
    G = torch.rand(T, d, d, dtype=storage, device=device)
    u = torch.rand(T, d, 1, dtype=storage, device=device)
    torch.bmm(G, u)
    best = min(seconds(lambda: torch.bmm(G, u), device) for _ in range(3))
    size = G.numel() * G.element_size()
    say(f"   d={d:<4} {dtype} torch.bmm alone, full Grams: {best * 1e3:8.3f} ms "
        f"{size / best / 1e9:6.0f} GB/s")  # fmt: skip
    return best


def candidates(kernels, d, dtype):
    """Settings worth a try; the defaults are measured before."""
    S = kernels.Setting

    def packed(warps, per_sm, rows, column_blocks, columns, registers=128, stages=1):
        return S("packed", warps, per_sm, "", rows, column_blocks, columns, stages, registers)

    def full(warps, per_sm, rows, column_blocks, columns, registers=128):
        return S("full", warps, per_sm, "", rows, column_blocks, columns, 1, registers)

    if d <= 16:
        listed = [S("lanes", 1, 15, reduce="dot"), S("lanes", 4, 3, reduce="dot")]
        listed += [S("lanes", 4, 4, reduce="dot", registers=128)]
        listed += [S("lanes", 2, 14, reduce="dot"), S("lanes", 2, 4, reduce="threads")]
        listed += [
            S("lanes", 2, 10, reduce="dot", registers=96),
            S("lanes", 1, 8, reduce="threads"),
        ]
    elif d <= kernels.LANES_MOST_FEATURES:
        listed = [S("lanes", w, p, reduce="dot") for w, p in ((1, 8), (2, 4), (4, 4))]
        listed += [S("lanes", 4, 2, reduce="sum"), S("lanes", 4, 3, reduce="dot", registers=168)]
    elif d <= 64:
        listed = [
            packed(1, 16, 8, 4, 16), packed(2, 8, 16, 4, 8), packed(1, 8, 16, 8, 8, None),
            packed(1, 16, 8, 4, 8), packed(1, 16, 8, 2, 32), packed(2, 8, 16, 8, 8),
            packed(2, 8, 16, 4, 16), packed(4, 4, 32, 4, 8), packed(1, 21, 8, 4, 8, 96),
            packed(1, 10, 8, 8, 8, 168), full(1, 16, 8, 2, 32), full(2, 8, 16, 2, 32),
        ]  # fmt: skip
    elif d <= 128:
        listed = [
            packed(1, 8, 8, 16, 8, None), packed(4, 4, 32, 4, 8), packed(1, 8, 8, 4, 32, None),
            packed(2, 8, 8, 16, 8), packed(4, 4, 16, 16, 8), packed(2, 8, 8, 4, 32),
            packed(2, 8, 8, 4, 16), packed(2, 6, 16, 4, 16, 168), packed(4, 4, 16, 4, 32),
            packed(2, 8, 16, 4, 8, 128, 3), full(2, 6, 16, 4, 32, 168), full(4, 4, 16, 4, 32),
        ]  # fmt: skip
    else:
        listed = [
            packed(8, 2, 8, 2, 256), packed(4, 2, 8, 4, 128, None), packed(4, 3, 8, 2, 128, 168),
            packed(8, 2, 4, 2, 256), packed(8, 2, 16, 1, 256), packed(4, 4, 4, 2, 128),
            packed(4, 4, 4, 4, 128), packed(8, 1, 16, 2, 256, None), packed(16, 1, 8, 1, 512),
            packed(8, 2, 8, 1, 256, 128, 3), full(8, 2, 8, 2, 256), full(8, 2, 8, 1, 256),
        ]  # fmt: skip
    return listed


def section_a(device, kernels, small, sweep):
    """The pass as a share of the read rate."""
    rate = ReadRate(kernels, device, small)
    size = 2e5 if small else BYTES
    deadline = time.perf_counter() + sweep
    problems = [(d, dtype) for d in FEATURES for dtype in DTYPES if not small or d < 500]
    summary = []

    def tasks(d, dtype):
        return max(int(size / (d * (d + 1) / 2 * np.dtype(dtype).itemsize)), 3)

    def attempt(setting, d, dtype, k=3):
        T = tasks(d, dtype) // (2 if setting.layout == "full" else 1)
        problem = random_problem(d, k, dtype, setting.layout, T, device, kernels)
        return measure(setting, d, k, dtype, T, problem, kernels, rate)

    say("   -- the defaults")
    for d, dtype in problems:
        for k in (3, 5, 10):
            try:
                _, share = attempt(kernels.setting_for(d, dtype, k), d, dtype, k)
                summary.append((d, dtype, k, share))
            except Exception:
                traceback.print_exc()
        try:
            measure_bmm(d, dtype, tasks(d, dtype) // 2, device)
        except Exception:
            traceback.print_exc()
    say("   -- shares of the read rate with the defaults:")
    for d, dtype, k, share in summary:
        say(
            f"      d={d:<4} {dtype} k={k:<3} {share:6.1%}  {'' if share >= 0.75 else 'below 75 %'}"
        )
    if sweep:
        say("   -- other settings")
    # In rounds, so that each problem has its first candidates tried when time runs out.
    lists = {key: candidates(kernels, *key) for key in problems} if sweep else {}
    best = {}
    for round_ in range(max(map(len, lists.values()), default=0)):
        for (d, dtype), listed in lists.items():
            if round_ >= len(listed) or time.perf_counter() > deadline:
                continue
            try:
                took, share = attempt(listed[round_], d, dtype)
                if took < best.get((d, dtype), (math.inf,))[0]:
                    best[d, dtype] = (took, share, listed[round_])
            except Exception as error:
                say(f"   d={d} {dtype} {listed[round_]}: {type(error).__name__}: {error}"[:300])
    for (d, dtype), (took, share, setting) in sorted(best.items()):
        say(f"      best d={d} {dtype}: {took * 1e3:.3f} ms {share:.1%} {setting}")


def planted(T, d, k, n, dtype, device, setting, kernels, seed=0):
    """Statistics of T tasks with planted factors, made on the device in chunks."""
    draw = torch.Generator(device).manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=torch.float64, device=device, generator=draw)

    B = torch.linalg.qr(normal(d, k))[0]
    upper = torch.triu_indices(d, d, device=device)
    storage = getattr(torch, dtype)
    sums = torch.ones(3, T, dtype=torch.float64, device=device)
    records, anchors, gs = [], [], []
    for first in range(0, T, 1 << 16):
        m = min(1 << 16, T - first)
        X, W = normal(m, n, d), normal(k, m)
        V = (B @ W).T
        y = torch.einsum("tnd,td->tn", X, V) + 0.3 * normal(m, n)
        anchor = (V + 0.1 * normal(m, d)).to(storage).double()
        errors = y - torch.einsum("tnd,td->tn", X, anchor)
        G, g = X.mT @ X, torch.einsum("tnd,tn->td", X, errors)
        pieces = [x.to(storage) for x in (G[:, upper[0], upper[1]], anchor, g)]
        if kernels is not None and setting.layout == "lanes":
            records.append(kernels.lanes_records(*pieces))
        else:
            records.append(pieces[0])
            anchors.append(pieces[1])
            gs.append(pieces[2])
        sums[0, first : first + m] = (errors**2).sum(1)
    sums[2] /= n
    parts = tuple(torch.cat(x) for x in (records, anchors, gs) if x)
    del records, anchors, gs
    return DeviceGrams.from_blocks(
        [Block(0, T, parts)], tuple(sums), d, dtype=dtype, setting=setting
    )


def descend(grams, B, W, eta, iterations, balance=0.5):
    """Gradient steps on the balanced loss as TPGD takes them; the loss is read each time."""
    losses = []
    for _ in range(iterations):
        loss, grad_B, grad_W, WWt = grams.gradients(B, W)
        losses.append(loss)
        D = balance * (B.T @ B - WWt)
        B, W = B - eta * (grad_B + B @ D), W - eta * (grad_W - D @ W)
    return losses


def section_b(device, kernels, small, sweep):
    """One million tasks, 100 iterations."""
    T, d, k = (300, 8, 3) if small else (1_000_000, 30, 3)
    for dtype in DTYPES:
        setting = kernels.setting_for(d, dtype, k) if kernels else None
        grams = planted(T, d, k, 40, dtype, device, setting, kernels)
        if device.type == "cuda":
            say(f"   on the device: {torch.cuda.memory_allocated(device) / 1e9:.2f} GB")
        rng = np.random.default_rng(0)
        # sqrt(T) is the size of the singular values of V: W is standard normal.
        B0, W0 = 0.1 * T**0.25 * rng.standard_normal((d, k)), 0.1 * rng.standard_normal((k, T))
        W0 *= T**-0.25
        start = grams.lift(W0)
        descend(grams, B0, start, 0.5 / math.sqrt(T), 3)
        wait(device)
        for _ in range(3):
            begin = time.perf_counter()
            losses = descend(grams, B0, start, 0.5 / math.sqrt(T), 100)
            wait(device)
            took = time.perf_counter() - begin
            say(
                f"   {dtype}: {T:,} tasks, d={d}, k={k}, 100 iterations in {took:.4f} s "
                f"(bound 0.3 s); loss {losses[0] / T:.6g} -> {losses[-1] / T:.10g} per task"
            )
        B = np.linalg.qr(rng.standard_normal((d, k)))[0]
        grams.profile(B, start)
        wait(device)
        begin = time.perf_counter()
        grams.profile(B, start)
        say(f"   {dtype}: least squares W for a B: {time.perf_counter() - begin:.4f} s")
        del grams, start


def host_problem(T, d, k, seed=0):
    """Statistics on the host, and NumPy's answers from full Grams."""
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
    _, anchor, g, q, r, weight = statistics
    u = W.T @ B.T - r[:, None] * anchor
    Gu = (G @ u[:, :, None])[:, :, 0]
    R = (weight[:, None] * (Gu - r[:, None] * g)).T
    losses = weight / 2 * (r**2 * q - 2 * r * (u * g).sum(1) + (u * Gu).sum(1))
    return losses.sum(), R @ W.T, B.T @ R


def distance(a, b):
    return np.linalg.norm(np.asarray(a) - b) / np.linalg.norm(b)


def section_c(device, kernels, small, sweep):
    """Agreement with NumPy; bounds 1e-4 in float32 and 1e-9 in float64."""
    for d in FEATURES:
        if small and d > 64:
            continue
        T = 40 if small else max(int(1e7 / d**2), 100)
        k = 3 if d != 64 else 5
        statistics, G, B, W = host_problem(T, d, k)
        loss, grad_B, grad_W = reference(statistics, G, B, W)
        for dtype in DTYPES:
            try:
                grams = DeviceGrams(*statistics, device=device, dtype=dtype)
                answers = [grams.gradients(B, grams.lift(W)) for _ in range(2)]
                first = answers[0]
                same = all(np.array_equal(x, y) for x, y in zip(*answers, strict=True))
                _, _, best_W = grams.profile(B, W)
                left = np.abs(np.asarray(grams.gradients(B, best_W)[2])).max()
                say(
                    f"   d={d:<4} {dtype} {grams.layout:<6} relative: loss "
                    f"{abs(first[0] / loss - 1):.1e} grad_B {distance(first[1], grad_B):.1e} "
                    f"grad_W {distance(first[2], grad_W):.1e} "
                    f"WW' {distance(first[3], W @ W.T):.1e}; repeat "
                    f"{'identical' if same else 'DIFFERS'}; B'R after profile "
                    f"{left / np.abs(grad_W).max():.1e}"
                )
            except Exception:
                traceback.print_exc()


def section_d(device, kernels, small, sweep):
    """Streaming in blocks."""
    for d, T in ((30, 210), (70, 60)) if small else ((30, 100_001), (100, 20_000)):
        statistics, _, B, W = host_problem(T, d, 3)
        for dtype in DTYPES:
            try:
                whole = DeviceGrams(*statistics, device=device, dtype=dtype)
                expected = whole.gradients(B, W)
                parts = DeviceGrams(*statistics, device=device, dtype=dtype, block_size=T // 7)
                start = DeviceMatrix(parts.lift(W).data)
                parts.gradients(B, start)
                wait(device)
                begin = time.perf_counter()
                got = parts.gradients(B, start)
                took = time.perf_counter() - begin
                size = bytes_read(d, 3, dtype, parts.layout, T)
                say(
                    f"   d={d} {dtype} T={T:,} in {len(parts.blocks)} blocks"
                    f"{' from the host' if parts.streaming else ''}: loss "
                    f"{abs(got[0] / expected[0] - 1):.1e} grad_B "
                    f"{distance(got[1], expected[1]):.1e} grad_W "
                    f"{distance(got[2], np.asarray(expected[2])):.1e}; {size / took / 1e9:.1f} GB/s"
                )
            except Exception:
                traceback.print_exc()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", default="cbda")
    parser.add_argument("--sweep", type=float, default=0.0, help="seconds for other settings")
    parser.add_argument("--small", action="store_true", help="toy sizes, on the CPU")
    options = parser.parse_args()
    device = torch.device("cpu" if options.small else "cuda")
    kernels = triton_kernels(device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    say(f"{name}, torch {torch.__version__}, Triton {'in use' if kernels else 'not in use'}")
    sections = {"a": section_a, "b": section_b, "c": section_c, "d": section_d}
    for letter in options.sections:
        begin = time.perf_counter()
        say(f"\n{letter}  {sections[letter].__doc__}")
        try:
            sections[letter](device, kernels, options.small, options.sweep)
        except Exception:
            traceback.print_exc()
        if device.type == "cuda":
            torch.cuda.empty_cache()
        say(f"   section {letter}: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
