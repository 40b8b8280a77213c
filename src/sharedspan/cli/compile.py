"""``sharedspan compile``: compile ahead of the first fit, for example when installing."""

from __future__ import annotations

import click

from sharedspan.cli import errors, options, output


@click.command("compile")
@options.json_output
def compile_command(as_json: bool) -> None:
    """Compile the code that fits need, ahead of the first fit.

    The command fits small simulated tables with SharedSpanRegressor, SpectralRegressor and the
    adaptive estimators. Numba compiles the loops over tasks that these fits run, for the processor
    of this machine, and stores the machine code in a folder where later processes find it. A second
    run compiles nothing.

    Example: sharedspan compile --json
    """
    with errors.one_line_errors():
        import time

        begin = time.perf_counter()
        compiled, folder = _compile_kernels()
        seconds = time.perf_counter() - begin
    result = {"compiled": compiled, "seconds": seconds, "folder": folder}
    done = "Nothing to compile"
    if compiled:
        done = f"Compiled {len(compiled)} loops in {seconds:.0f} s"
    if folder is None:
        where = "nothing is stored, because no folder is writable. Set NUMBA_CACHE_DIR to one"
    else:
        where = f"the machine code is in {folder}"
    lines = [f"{done}; {where}.", *(f"  {name}" for name in compiled)]
    output.echo_result(result, lines, as_json=as_json)


def _compile_kernels() -> tuple[list[str], str | None]:
    """The names of the kernels that had to be compiled, and the folder of the machine code."""
    import sharedspan as ss
    from sharedspan.kernels import grams
    from sharedspan.kernels.compiling import KERNELS

    def n_compiled() -> dict[str, int]:
        return {kernel.__name__: sum(kernel.stats.cache_misses.values()) for kernel in KERNELS}

    many_rows = ss.simulate(n_tasks=12, n_features=4, rank=2, n_samples=20, random_state=0)
    few_rows = ss.simulate(n_tasks=12, n_features=12, rank=2, n_samples=5, random_state=0)
    fits = (
        (ss.SharedSpanRegressor(), many_rows),
        (ss.AdaptiveSpanRegressor(), many_rows),
        (ss.SharedSpanRegressor(rank=2), few_rows),  # few rows are not summed but stored
        (ss.SpectralRegressor(rank=2), many_rows),
        (ss.SpectralRegressor(rank=2), few_rows),
    )
    before = n_compiled()
    with output.collected_warnings():
        for model, data in fits:
            model.fit(data.X, data.y, task=data.task).predict(data.X, data.task)
        classes = many_rows.y > 0
        ss.AdaptiveSpanClassifier().fit(many_rows.X, classes, task=many_rows.task)
        X, y, task = many_rows.X[::-1].astype("float32"), many_rows.y[::-1], many_rows.task[::-1]
        ss.SharedSpanRegressor().fit(X, y, task=task)  # single precision, tasks in another order
        ss.SharedSpanRegressor(rank=2).fit(X, y, task=task.astype(str))
    after = n_compiled()
    compiled = [name for name in after if after[name] > before.get(name, 0)]
    return compiled, grams.gram_gradients.stats.cache_path  # type: ignore[attr-defined]
