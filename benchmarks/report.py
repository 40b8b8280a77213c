"""The page of a report: its size, and the time that a browser takes to open it.

    python benchmarks/report.py [--tasks 139 20000] [--features 20] [--screenshots FOLDER]

Needs playwright (in the test extra) and a Chromium. Times are for this machine, from the request to
the end of the `load` event and of the first frame after it.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

import sharedspan as ss

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
VIEWS = {"phone": (390, 844), "desktop": (1280, 900)}
FRAME = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def page_of(n_tasks: int, n_features: int, folder: Path) -> tuple[Path, float]:
    """A report with rows of simulated tasks, and the seconds it took to write."""
    sim = ss.simulate(
        n_tasks=n_tasks, n_features=n_features, rank=3, n_samples=40, outliers=0.02, random_state=0
    )
    model = ss.SharedSpanRegressor(rank=3, solver="auto", random_state=0)
    model.fit(sim.X, sim.y, task=sim.task)
    began = time.perf_counter()
    path = folder / f"{n_tasks}.html"
    ss.write_report(model, path, sim.X, sim.y, task=sim.task)
    return path, time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, nargs="+", default=[139, 20_000])
    parser.add_argument("--features", type=int, default=20)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--screenshots", type=Path)
    chosen = parser.parse_args()
    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    print(f"{'tasks':>7}  {'MB':>6}  {'written, s':>10}  {'opened, s (median, most)':>25}")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        for n_tasks in chosen.tasks:
            path, written = page_of(n_tasks, chosen.features, Path(folder))
            opened = []
            for _ in range(chosen.turns):
                page = browser.new_page()
                began = time.perf_counter()
                page.goto(path.as_uri(), wait_until="load")
                page.evaluate(FRAME)
                opened.append(time.perf_counter() - began)
                page.close()
            size = path.stat().st_size / 1e6
            times = f"{statistics.median(opened):.2f}, {max(opened):.2f}"
            print(f"{n_tasks:>7,}  {size:>6.2f}  {written:>10.1f}  {times:>25}")
            if chosen.screenshots is not None:
                chosen.screenshots.mkdir(exist_ok=True)
                for name, (width, height) in VIEWS.items():
                    page = browser.new_page(viewport={"width": width, "height": height})
                    page.goto(path.as_uri())
                    page.screenshot(path=chosen.screenshots / f"{n_tasks}-{name}.png",
                                    full_page=True)  # fmt: skip
                    page.close()
        browser.close()


if __name__ == "__main__":
    main()
