"""Summaries of fitted models: what is printed, in text, markup, frames and words."""

import html
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from rich.cells import cell_len

import sharedspan as ss
from sharedspan.inference.summary import Estimate, FixedTable, Summary, VarianceEntry
from sharedspan.inference.summary_numbers import format_column, format_p, format_rows
from sharedspan.inference.summary_tables import abbreviations

HOSTILE = (
    "<script>alert(1)</script>", "a|b_c*d`e`\\input{/etc/passwd}$x$%&#~^", "line\nbreak\x1b[31m",
    "\u202eturned", "x" * 10_000 + "1", "x" * 10_000 + "2", "[5cm]", "*", "{", "}", "\ud800",
    "--''``?`!`", "", '" onload="x', "名前" * 60, "e\u0301" * 500, "[text](http://a.b)", "<!--",
)  # fmt: skip

# lme4 1.1-31 and lmerTest 3.1-3: summary(lmer(Reaction ~ Days + (Days | Subject), sleepstudy)) and
# confint(method = "profile") of its standard deviations and its correlation. ICC and R2 are
# given here by hand; the tests are of how numbers are printed.
SLEEPSTUDY = """\
Linear mixed model fit by REML. t-tests use Satterthwaite's method.
Formula: Reaction ~ Days + (Days | Subject)
Family: gaussian (identity)

REML criterion at convergence: 1743.6

   AIC    BIC logLik df.resid
1755.6 1774.8 -871.8      174

Scaled residuals:
    Min      1Q Median     3Q    Max
-3.9536 -0.4634 0.0231 0.4634 5.1793

Random effects:
Groups   Name        Variance Std.Dev.  2.5 % 97.5 %  Corr
Subject  (Intercept)   612.10   24.741 14.381 37.716
         Days           35.07    5.922  3.801  8.753 0.066
Residual               654.94   25.592 22.898 28.858
Bounds refer to Std.Dev.

Correlations of random effects:
Groups  Names              Corr  2.5 % 97.5 %
Subject (Intercept), Days 0.066 -0.482  0.685

Number of obs: 180, groups: Subject, 18
ICC: 0.722
R2: 0.279 marginal, 0.799 conditional

Fixed effects:
            Estimate Std. Error   2.5 %  97.5 % df t value Pr(>|t|)
(Intercept)  251.405      6.825 237.006 265.804 17  36.838   <2e-16
Days          10.467      1.546   7.206  13.729 17   6.771 3.26e-06

Correlation of fixed effects:
     (Intr)
Days -0.138

Notes:
  The fit converged."""


def symmetric(r):
    return np.array([[1.0, r], [r, 1.0]])


def sleepstudy(**changes):
    """The summary of the REML fit of sleepstudy."""
    fixed = FixedTable(
        names=("(Intercept)", "Days"),
        estimate=np.array([251.4051, 10.4673]),
        std_error=np.array([6.8246, 1.5458]),
        low=np.array([237.0064, 7.2059]),
        high=np.array([265.8038, 13.7287]),
        degrees=np.array([17.0, 17.0]),
        statistic=np.array([36.838, 6.771]),
        p_value=np.array([1.17e-17, 3.26e-6]),
        correlation=symmetric(-0.138),
    )
    subject = VarianceEntry(
        group="Subject",
        names=("(Intercept)", "Days"),
        std=np.array([24.7407, 5.9221]),
        correlation=symmetric(0.0656),
        std_low=np.array([14.381, 3.801]),
        std_high=np.array([37.716, 8.753]),
        correlation_low=symmetric(-0.482),
        correlation_high=symmetric(0.685),
    )
    values = {
        "title": "Linear mixed model", "method": "REML", "n_rows": 180, "response": "Reaction",
        "formula": "Reaction ~ Days + (Days | Subject)", "family": "gaussian", "link": "identity",
        "groups": (("Subject", 18),), "log_likelihood": -871.8141, "criterion": 1743.6283,
        "aic": 1755.6283, "bic": 1774.786, "residual_degrees": 174, "icc": 0.7220,
        "r2_marginal": 0.2786, "r2_conditional": 0.7992, "fixed": fixed, "variances": (subject,),
        "residual_quantiles": np.array([-3.9536, -0.4634, 0.0231, 0.4634, 5.1793]),
        "sigma": Estimate(25.5918, 22.898, 28.858), "notes": ("The fit converged.",),
    }  # fmt: skip
    return Summary(**(values | changes))


def cbpp():
    """glmer(cbind(incidence, size - incidence) ~ period + (1 | herd), cbpp, binomial)."""
    fixed = FixedTable(
        names=("(Intercept)", "period2", "period3", "period4"),
        estimate=np.array([-1.3983, -0.9919, -1.1282, -1.5797]),
        std_error=np.array([0.2312, 0.3032, 0.3228, 0.4220]),
        statistic=np.array([-6.048, -3.272, -3.495, -3.743]),
        p_value=np.array([1.47e-9, 0.001068, 0.000474, 0.000182]),
        correlation=np.eye(4),
    )
    return Summary(
        title="Generalized linear mixed model", method="maximum likelihood (Laplace approximation)",
        formula="cbind(incidence, size - incidence) ~ period + (1 | herd)", family="binomial",
        link="logit", n_rows=56, groups=(("herd", 15),), aic=194.1, bic=204.2,
        log_likelihood=-92.03, criterion=184.05, residual_degrees=51, fixed=fixed,
        variances=(VarianceEntry("herd", ("(Intercept)",), np.array([0.6421])),),
    )  # fmt: skip


def hostile():
    """A summary with hostile names in every place."""
    f = len(HOSTILE)
    ones = np.ones(f)
    fixed = FixedTable(
        HOSTILE, ones, ones, ones, ones, ones, ones, ones / 9, np.corrcoef(np.eye(f))
    )
    pairs = tuple(
        VarianceEntry(name, (name, name[::-1]), np.ones(2), np.eye(2), note=name)
        for name in HOSTILE
    )
    return sleepstudy(
        title=HOSTILE[0], formula=" + ".join(HOSTILE), call=HOSTILE[1], family=HOSTILE[2],
        response=HOSTILE[3], groups=tuple((name, 3) for name in HOSTILE), fixed=fixed,
        facts=tuple((name, name) for name in HOSTILE), variances=pairs, span=HOSTILE,
        notes=HOSTILE, family_parameters=tuple((name, Estimate(1.0)) for name in HOSTILE),
        link="", method="",
    )  # fmt: skip


def cells_of(text, row):
    """The cells of the row of a text that starts with a name."""
    line = next(line for line in text.splitlines() if line.startswith(row))
    return line.removeprefix(row).split()


def test_sleepstudy_prints_as_lme4_prints_it():
    assert str(sleepstudy()) == SLEEPSTUDY
    assert repr(sleepstudy()) == SLEEPSTUDY


def test_families_have_z_values_and_their_likelihood():
    text = str(cbpp())
    assert cells_of(text, "period3") == ["-1.1282", "0.3228", "-3.495", "0.000474"]
    assert cells_of(text, "herd   (Intercept)") == ["0.4123", "0.6421"]
    assert "z value Pr(>|z|)" in text
    assert "Family: binomial (logit)" in text
    assert re.search(r"AIC +BIC +logLik +-2\*log\(L\) +df.resid\n *194.1 +204.2 +-92.0", text)
    assert "Satterthwaite" not in text
    assert "2.5 %" not in text
    assert "REML" not in text


def test_a_model_without_a_likelihood_has_no_line_of_one():
    summary = Summary(
        title="Regression with a shared span", call="SharedSpanRegressor(rank=3)", n_rows=5875,
        groups=(("subject", 42),), facts=(("Rank", "3"),), sigma=Estimate(2.34),
        span=("The coefficients of all tasks lie in a span of 3 dimensions.",),
    )  # fmt: skip
    text = str(summary)
    for word in (
        "AIC",
        "BIC",
        "logLik",
        "log(L)",
        "criterion",
        "Pr(",
        "ICC",
        "R2",
        "Fixed",
        "None",
    ):
        assert word not in text
    assert text.startswith("Regression with a shared span.\nCall: SharedSpanRegressor(rank=3)\n")
    assert "Number of obs: 5875, groups: subject, 42" in text
    assert "Span:\n  The coefficients of all tasks lie in a span of 3 dimensions." in text
    assert summary.in_words() == (
        "A regression with a shared span was fitted to 5875 rows in 42 groups (subject). The "
        "residual standard deviation is 2.34. The coefficients of all tasks lie in a span of 3 "
        "dimensions."
    )
    assert len(summary.to_frame()) == 0
    assert summary.to_dict() == {}
    assert list(summary.to_frame("fit").columns) == ["n_rows", "n_subject"]


def test_a_variance_of_zero_and_its_correlations_are_shown():
    entry = VarianceEntry("g", ("(Intercept)", "x"), np.array([1.5, 0.0]), symmetric(np.nan))
    text = str(sleepstudy(variances=(entry,)))
    assert cells_of(text, "         x") == ["0.00", "0.000", "NA"]
    assert "their correlation" not in sleepstudy(variances=(entry,)).in_words()
    bounded = VarianceEntry("g", ("x",), np.zeros(1), None, np.zeros(1), np.array([1.25]))
    words = sleepstudy(variances=(bounded,)).in_words()
    assert "is 0.00 (95 % interval 0.00 to 1.25) for x." in words


def test_independent_effects_have_no_correlation():
    entry = VarianceEntry("g", ("(Intercept)", "x"), np.array([1.5, 2.5]))
    assert "Corr" not in str(sleepstudy(variances=(entry,), fixed=None))


def test_a_wide_matrix_of_correlations_stands_below_and_a_wider_one_is_left_out(rng):
    for m in (5, 12, 13):
        names = tuple(f"a long name of a feature {i}" for i in range(m))
        matrix = np.corrcoef(rng.standard_normal((m, 40)))
        entry = VarianceEntry("school", names, np.ones(m), matrix, note="rank 2")
        table = FixedTable(names, np.ones(m), np.ones(m), correlation=matrix)
        text = str(sleepstudy(variances=(entry,), fixed=table))
        assert max(map(len, text.splitlines())) <= 80
        last = f"{matrix[m - 1, m - 2]:.3f}"
        assert text.count(last) == (2 if m <= 12 else 0)
        assert ("not shown for more than 12 effects" in text) == (m > 12)
        assert "Covariance of school: rank 2." in text


def test_long_tables_are_cut_and_say_where_the_rest_is():
    names = tuple(f"x{i}" for i in range(200))
    entry = VarianceEntry("task", names, np.ones(200), np.eye(200))
    summary = sleepstudy(fixed=FixedTable(names, np.ones(200), np.ones(200)), variances=(entry,))
    text = str(summary)
    assert "140 more effects are not shown: see to_frame()." in text
    assert "140 more effects are not shown: see to_frame('variances')." in text
    assert "Residual" in text
    assert len(text.splitlines()) < 180
    assert len(summary.to_frame()) == 200
    assert "A further 192 effects are in the table." in summary.in_words()


def test_numbers_have_the_digits_that_r_shows():
    assert format_column([612.0996, 35.07171, 654.9410]) == ["612.10", "35.07", "654.94"]
    assert format_column([24.7407, 5.92214, 25.5918]) == ["24.741", "5.922", "25.592"]
    assert format_column([8.434, 1.657, 0.6780]) == ["8.434", "1.657", "0.678"]
    assert format_column([0.0, 13.806]) == ["0.00", "13.81"]
    assert format_column([1e-9, 2.5, -1e12]) == ["1.000e-09", "2.5", "-1.000e+12"]
    assert format_column([np.nan, np.inf, -np.inf]) == ["NA", "Inf", "-Inf"]
    assert format_rows([[-0.0001, 3.0]], [2, 2]) == [("0.00",), ("3.00",)]
    p = [3.256e-6, 1e-17, 0.001068, 0.000474, 0.51, 0.99999, 0.0, np.nan]
    assert [format_p(x) for x in p] == [
        "3.26e-06", "<2e-16", "0.00107", "0.000474", "0.510", "1.000", "<2e-16", "NA",
    ]  # fmt: skip


def test_numbers_of_any_size_stay_within_80_columns(rng):
    f = 30
    sizes = 10.0 ** rng.integers(-300, 300, f)
    estimate = rng.standard_normal(f) * 10.0 ** rng.integers(-300, 300, f)
    table = FixedTable(
        tuple(f"name of effect {i}" for i in range(f)), estimate, sizes, -sizes, sizes, sizes,
        estimate, np.full(f, 1e-200), np.eye(f),
    )  # fmt: skip
    entry = VarianceEntry("group", table.names, sizes**0.5, None, sizes**0.5, sizes**0.5)
    text = str(sleepstudy(fixed=table, variances=(entry,)))
    assert max(map(len, text.splitlines())) <= 80


def test_abbreviated_names_are_those_of_r():
    # abbreviate(names, 6) of R 4.2.2
    short = {
        "(Intercept)": "(Intr)", "period2": "perid2", "urbanY": "urbanY", "I(age^2)": "I(g^2)",
        "livch3+": "lvch3+", "Days": "Days", "standLRT": "stnLRT", "schgendgirls": "schgnd",
        "factor(YEAR)96": "f(YEAR", "age:SexFemale": "ag:SxF", "log(gdpPercap)": "lg(gP)",
    }  # fmt: skip
    assert abbreviations(tuple(short)) == tuple(short.values())
    assert abbreviations(("factor(YEAR)96", "factor(YEAR)97")) == ("f(YEAR)96", "f(YEAR)97")
    assert abbreviations(("A" * 20, "A" * 21, "same")) == ("#1", "#2", "same")


def test_hostile_names_do_not_change_the_layout_of_the_text():
    text = str(hostile())
    lines = text.split("\n")
    assert lines == text.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert not set(text) & set("\x1b\u202e\ud800\t")
    assert "\\x1b[31m" in text
    assert "\\u202e" in text
    text.encode()
    shortened = [line for line in lines if line.startswith("xxx") and "..." in line]
    assert len({line.split()[0] for line in shortened}) > 1


def test_names_that_are_equal_after_shortening_are_numbered():
    names = tuple("x" * 100 + middle + "x" * 100 for middle in "ab")
    text = str(sleepstudy(fixed=FixedTable(names, np.ones(2)), variances=()))
    assert re.search(r"^x+\.\.\.x+ #2 +1 *", text, re.MULTILINE)
    assert re.search(r"^x+\.\.\.x+ #3 +1 *", text, re.MULTILINE)


class Tags(HTMLParser):
    """The tags, attributes and text of a page."""

    def __init__(self):
        super().__init__()
        self.tags, self.attributes, self.text = [], set(), ""

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data):
        self.text += data


def test_html_has_the_numbers_and_escapes_names():
    page = Tags()
    page.feed(hostile()._repr_html_())
    assert set(page.tags) <= {
        "div", "style", "p", "b", "bdi", "table", "caption", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    assert page.attributes <= {"class", "scope"}
    assert "<script>alert(1)</script>" in page.text
    assert "\u202e" not in page.text
    clean = sleepstudy()._repr_html_()
    for cell in ("251.405", "1.546", "3.26e-06", "14.381", "-0.482", "1743.6"):
        assert f">{cell}</td>" in clean or cell == "1743.6"
    assert "REML criterion at convergence:</b> <bdi>1743.6<" in clean
    assert html.escape("Pr(>|t|)") in clean


def test_markdown_tables_have_their_columns_whatever_the_names():
    text = hostile().to_markdown()
    assert text.splitlines() == text.split("\n")[:-1]
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        separators = {len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()}
        assert len(separators) == 1
    assert "<" not in text
    assert re.search(r"(?<!\\)\]\(http", text) is None
    assert re.search(r"(?<!\\)[`$]", text) is None
    assert (
        "| Days | 10.467 | 1.546 | 7.206 | 13.729 | 17 | 6.771 | 3.26e-06 |"
        in sleepstudy().to_markdown()
    )


def test_latex_escapes_every_command_and_special_character():
    text = hostile().to_latex()
    commands = set(re.findall(r"\\([a-zA-Z]+)", text))
    assert commands <= {
        "noindent", "textbf", "par", "begin", "end", "toprule", "midrule", "bottomrule", "times",
        "textbackslash", "textasciicircum", "textasciitilde", "textless", "textgreater", "textbar",
        "char", "medskip",
    }  # fmt: skip
    assert "%" not in text.replace(r"\%", "")
    bare = text.replace(r"\{", "").replace(r"\}", "")
    assert bare.count("{") == bare.count("}")
    assert not re.search(r"\\\\\s*[\[*]", text)
    for row in re.findall(r"^.*\\\\$", text, re.MULTILINE):
        assert len(re.findall(r"(?<!\\)&", row)) in (4, 6, 7)
    clean = sleepstudy().to_latex()
    assert r"Days & 10.467 & 1.546 & 7.206 & 13.729 & 17 & 6.771 & $3.26\times 10^{-6}$ \\" in clean
    assert r"$<2\times 10^{-16}$" in clean
    assert clean.count(r"\begin{tabular}") == clean.count(r"\end{tabular}") == 6


def test_fixed_effects_return_from_a_frame():
    summary = sleepstudy()
    frame = summary.to_frame()
    assert tuple(frame.index) == summary.fixed.names
    for name in frame.columns:
        assert_array_equal(frame[name], getattr(summary.fixed, name))
    assert list(frame.columns) == [
        "estimate", "std_error", "low", "high", "degrees", "statistic", "p_value",
    ]  # fmt: skip
    assert list(cbpp().to_frame().columns) == ["estimate", "std_error", "statistic", "p_value"]


@pytest.mark.parametrize("make", [sleepstudy, cbpp])
def test_fixed_effects_as_plain_numbers_are_those_of_the_frame(make):
    assert make().to_dict() == make().to_frame().to_dict("index")


def test_variances_and_fit_return_from_a_frame():
    frame = sleepstudy(family_parameters=(("dispersion", Estimate(3.0)),)).to_frame("variances")
    assert list(frame["quantity"]) == ["std", "std", "correlation", "std", "dispersion"]
    assert frame["effect"][:3].tolist() == ["(Intercept)", "Days", "(Intercept)"]
    assert frame["other_effect"][2] == "Days"
    assert frame[["estimate", "low", "high"]].iloc[2].tolist() == [0.0656, -0.482, 0.685]
    assert frame[["estimate", "low", "high"]].iloc[3].tolist() == [25.5918, 22.898, 28.858]
    assert frame.iloc[4]["low"] != frame.iloc[4]["low"]
    fit = sleepstudy().to_frame("fit").iloc[0]
    assert fit["criterion"] == 1743.6283
    assert fit["n_Subject"] == 18
    assert fit["residual_degrees"] == 174


def test_hostile_names_are_whole_in_frames():
    assert tuple(hostile().to_frame().index) == HOSTILE


def test_parts_that_do_not_exist_and_a_missing_pandas_are_explained(monkeypatch):
    with pytest.raises(ValueError, match=r"part is 'random'.*give one of them"):
        sleepstudy().to_frame("random")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        sleepstudy().to_frame()


def test_a_paragraph_reports_the_model():
    assert sleepstudy().in_words() == (
        "A linear mixed model (REML) of Reaction was fitted to 180 rows in 18 groups (Subject). "
        "The intercept is 251.41 (95 % interval 237.01 to 265.80). The effect of Days is 10.47 "
        "(95 % interval 7.21 to 13.73, t(17) = 6.77, p < .001). Between groups of Subject, the "
        "standard deviation is 24.7 (95 % interval 14.4 to 37.7) for (Intercept) and 5.92 (95 % "
        "interval 3.80 to 8.75) for Days, and their correlation is 0.07 (95 % interval -0.48 to "
        "0.69). The residual standard deviation is 25.6 (95 % interval 22.9 to 28.9). The "
        "intraclass correlation is 0.72. The marginal R2 is 0.28 and the conditional R2 is 0.80. "
        "The fit converged."
    )
    words = cbpp().in_words()
    assert "(maximum likelihood, Laplace approximation, binomial family, logit link)" in words
    assert "The effect of period2 is -0.992 (z = -3.27, p = .001)." in words
    assert "Effects are on the logit scale." in words
    assert "\n" not in hostile().in_words()


def test_other_levels_name_their_bounds():
    summary = sleepstudy(level=0.9)
    assert re.search(r"Std. Error +5 % +95 %", str(summary))
    assert "(90 % interval 7.21 to 13.73" in summary.in_words()


def test_the_call_has_what_a_user_typed_and_is_one_line():
    pd = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.standard_normal(200), "school": np.arange(200) % 10})
    y = frame.x + rng.standard_normal(200)
    typed = ss.AdaptiveSpanRegressor(task_column="school", noise="shared", random_state=0)
    model = typed.fit(frame, y)
    call = "AdaptiveSpanRegressor(noise='shared', random_state=0, task_column='school')"
    assert model.summary().call == call
    frame["kind"] = np.where(frame.x > 0, "a", "b")
    known = typed.fit(frame, y).columns_
    learned = ss.AdaptiveSpanRegressor(task_column="school", columns=known, random_state=0)
    assert learned.fit(frame, y).summary().call == "AdaptiveSpanRegressor(random_state=0)"
    for columns, shown in (
        (ss.Columns(), "AdaptiveSpanRegressor()"),
        (ss.Columns(missing="drop"), "AdaptiveSpanRegressor(columns=Columns(missing='drop'))"),
    ):
        model = ss.AdaptiveSpanRegressor(columns=columns).fit(frame[["x"]], y, task=frame.school)
        assert model.summary().call == shown
