"""The report that pages show as an example, written anew by every build."""

from pathlib import Path
from typing import Any


def write(app: Any, error: Exception | None) -> None:
    """Fit the bundled patients and write their report beside the pages."""
    if error is not None or app.builder.format != "html":
        return
    import sharedspan as ss

    data = ss.datasets.load_parkinsons()
    table = data.to_frame()
    X, y = table.drop(columns=data.target_name), table[data.target_name]
    model = ss.AdaptiveSpanRegressor(task_column=data.task_name).fit(X, y)
    page = Path(app.outdir) / "parkinsons.html"
    ss.write_report(model, page, X, y, task_name="patient", target_name="symptom score")


def setup(app: Any) -> dict[str, bool]:
    """Write after all pages."""
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
