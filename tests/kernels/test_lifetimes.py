"""Arrays of a kernel whose addresses are taken must live until its end."""

import ast
from pathlib import Path

import pytest

import sharedspan.kernels

FILES = sorted(Path(sharedspan.kernels.__file__).parent.glob("*.py"))
OWN = {"empty", "zeros", "ones", "scratch"}


def names_in(node):
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def called(node):
    function = node.func if isinstance(node, ast.Call) else node
    return getattr(function, "id", getattr(function, "attr", ""))


def arrays_freed_early(function):
    """Names of arrays that a function makes, takes the address of and does not keep."""
    own, addressed, kept = set(), set(), set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            made = {called(each) for each in ast.walk(node.value) if isinstance(each, ast.Call)}
            if made & OWN:
                own |= {name for target in node.targets for name in names_in(target)}
        if isinstance(node, ast.Call):
            if called(node) == "pointer":
                addressed |= names_in(node.args[0])
            elif called(node) == "keep":
                kept |= names_in(node.args[0])
    return (own & addressed) - kept


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_addressed_arrays_are_kept(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            assert not arrays_freed_early(node), node.name


def test_the_check_finds_an_array_that_is_freed():
    source = "def f():\n    a = np.empty(3)\n    b = pointer(a)\n    g(b)\n"
    assert arrays_freed_early(ast.parse(source).body[0]) == {"a"}
