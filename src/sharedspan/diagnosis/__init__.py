"""Facts about a fitted model: misfits, outliers, spans, advice."""
