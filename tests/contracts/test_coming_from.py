"""The page for users of other tools: what our blocks print is what their comments say."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "coming_from.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def claims(code):
    """What the comments of print statements say, where they quote numbers."""
    found = re.findall(r"^print\(.*\) +# (.*)$", code, re.MULTILINE)
    return [claim for claim in found if re.fullmatch(r"[-\d.,\[\] ]+", claim)]


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: f"{len(code)} characters")
def test_numbers_in_comments_of_the_page_are_those_printed(code, capsys):
    exec(compile(code, "coming_from.md", "exec"), {"__name__": "__main__"})
    printed = capsys.readouterr().out.splitlines()
    assert claims(code)
    assert [claim for claim in claims(code) if claim not in printed] == []


def test_likelihoods_of_other_tools_are_ours_in_the_next_block():
    """Values of R, statsmodels and GPBoost in their blocks, and ours, by section of the page."""
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        theirs, _, ours = section.partition("```python")
        theirs = [float(n) for n in re.findall(r"\b(\d{5}\.\d{4,})", theirs)]
        ours = [float(n) for n in re.findall(r"# (\d{5}\.\d{4})$", ours, re.MULTILINE)]
        assert all(min(abs(n - other) for other in theirs) < 2e-4 for n in ours)


def test_every_tool_has_the_same_model_twice():
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert len(sections) == len(BLOCKS) == 5
    for section in sections:
        assert re.search(r"^```(r|text)$", section, re.MULTILINE)
        for words in ("**The same:**", "**Different", "**"):
            assert words in section
