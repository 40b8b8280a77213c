"""Mutants of a module: every small change of its syntax tree that a test should notice."""

import ast
import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Div, ast.Mod: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt), ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,), ast.NotIn: (ast.In,),
}  # fmt: skip
COMPILED = {"njit", "jit", "kernel", "subroutine", "part"}  # by Numba: coverage.py cannot see them
TYPES = {"bool", "dict", "float", "int", "list", "str", "tuple"}
UNTOUCHED = {"annotation", "returns", "decorator_list"}  # fields of nodes


@dataclass(frozen=True)
class Mutant:
    """A change of one node: where it is, what it says, and how it is made."""

    file: str
    function: str  # qualified name, "" at the level of the module
    line: int  # of the node
    statement: int  # first line of its statement, as coverage.py counts
    source: str  # its line, without indentation
    change: str
    which: int  # among equal changes of equal lines of the function
    path: tuple  # from the module to the node
    make: Callable
    at_import: bool  # whether the line runs when the module is imported

    @property
    def key(self):
        """What does not change when lines are moved."""
        return (self.file, self.function, self.source, self.change, self.which)

    @property
    def number(self):
        """A fixed random number of the key, as text."""
        return hashlib.sha256(repr(self.key).encode()).hexdigest()[:16]


def mutated(source, mutant):
    """The syntax tree with one change, and the text of the changed statement."""
    tree = ast.parse(source)
    parent, node = None, tree
    statement = None
    for step in mutant.path:
        parent, (field, index) = node, step
        node = getattr(node, field) if index is None else getattr(node, field)[index]
        if isinstance(node, ast.stmt):
            statement = (parent, step)
    new = ast.copy_location(mutant.make(copy.deepcopy(node)), node)
    _put(parent, mutant.path[-1], new)
    ast.fix_missing_locations(tree)
    holder, (field, index) = statement
    return tree, ast.unparse(getattr(holder, field)[index])


def _put(parent, step, new):
    field, index = step
    if index is None:
        setattr(parent, field, new)
    else:
        getattr(parent, field)[index] = new


def mutants(file, source) -> Iterator[Mutant]:
    """All mutants of a file, in the order of its lines."""
    lines = source.splitlines()
    seen: dict[tuple, int] = {}
    for path, node, where in _nodes(ast.parse(source)):
        for change, make in _changes(node):
            if any(field in ("defaults", "kw_defaults") for field, _ in path):
                change = f"default {change}"
            text = lines[node.lineno - 1].strip()
            key = (where.function, text, change)
            seen[key] = seen.get(key, -1) + 1
            yield Mutant(file, where.function, node.lineno, where.statement, text, change,
                         seen[key], path, make, where.at_import)  # fmt: skip


@dataclass(frozen=True)
class _Where:
    function: str = ""
    statement: int = 1
    at_import: bool = True


def _nodes(tree):
    yield from _walk(tree, (), _Where())


def _walk(node, path, where):
    if isinstance(node, ast.stmt):
        where = _Where(where.function, node.lineno, where.at_import)
    if _is_left_out(node):
        return
    if isinstance(node, ast.expr | ast.stmt | ast.Slice):
        yield path, node, where
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    inside = where
    if function or isinstance(node, ast.ClassDef):
        name = f"{where.function}.{node.name}".lstrip(".")
        inside = _Where(name, where.statement, where.at_import)
    for field, value in ast.iter_fields(node):
        if field in UNTOUCHED:
            continue
        here = inside
        if function and field == "body":
            here = _Where(inside.function, where.statement, at_import=False)
        if isinstance(value, ast.AST):
            yield from _walk(value, (*path, (field, None)), here)
        elif isinstance(value, list):
            for index, item in enumerate(value):
                if isinstance(item, ast.AST):
                    yield from _walk(item, (*path, (field, index)), here)


def _is_left_out(node):
    """Text, types, messages, and what Numba compiles."""
    if isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.keyword):
        return node.arg == "stacklevel"
    if isinstance(node, ast.FunctionDef):
        names = {_last_name(decorator) for decorator in node.decorator_list}
        return bool(names & (COMPILED | {"overload"}))
    if isinstance(node, ast.If):
        return _last_name(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.Call):
        return _last_name(node) in ("cast", "TypeVar", "isinstance", "NewType")
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr) and _is_type(node)


def _is_type(value):
    """Whether a value is a type, or a union of types."""
    if isinstance(value, ast.BinOp):
        return _is_type(value.left) and _is_type(value.right)
    if isinstance(value, ast.Constant):
        return value.value is None
    name = _last_name(value.value if isinstance(value, ast.Subscript) else value)
    return (name[:1].isupper() and not name.isupper()) or name in TYPES


def _last_name(node):
    """The last part of a name, of what is called, or empty text."""
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


# ---- the changes of a node -----------------------------------------------------------------------


def _changes(node):
    """Names of the changes of a node, and functions that make them of a copy."""
    for kind, changes in _OPERATORS:
        if isinstance(node, kind):
            yield from changes(node)


def _sign(operator):
    return type(operator).__name__


def _swapped(node):
    if type(node.op) in SWAPS and not _is_text_sum(node):
        new = SWAPS[type(node.op)]
        yield f"{_sign(node.op)} -> {new.__name__}", _setting(op=new())


def _is_text_sum(node):
    """Whether text is put together or formatted: subtraction would be an error at once."""
    texts = ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp
    return isinstance(node, ast.BinOp) and any(
        isinstance(side, texts)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str | bytes))
        for side in (node.left, node.right)
    )


def _setting(**fields):
    def make(node):
        for name, value in fields.items():
            setattr(node, name, value)
        return node

    return make


def _compared(node):
    for index, op in enumerate(node.ops):
        for new in COMPARISONS[type(op)]:

            def make(node, index=index, new=new):
                node.ops[index] = new()
                return node

            yield f"{_sign(op)} -> {new.__name__}", make


def _without_sign(node):
    if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        yield f"without {_sign(node.op)}", lambda node: node.operand


def _constant(node):
    value = node.value
    if isinstance(value, bool):
        yield f"{value} -> {not value}", _setting(value=not value)
    elif isinstance(value, int | float):
        yield f"{value!r} -> {value + 1!r}", _setting(value=value + 1)


def _removed(node):
    if isinstance(node, ast.AugAssign) or (
        isinstance(node.value, ast.Call) and _last_name(node.value) != "__init__"
    ):
        yield "statement removed", lambda node: ast.Pass()


def _returned(node):
    value = node.value
    if value is None or (isinstance(value, ast.Constant) and value.value in (None, True, False)):
        return
    if isinstance(value, ast.Tuple) and len(value.elts) > 1:

        def swapped(node):
            first, second, *rest = node.value.elts
            node.value.elts = [second, first, *rest]
            return node

        yield "first two values returned swapped", swapped
    elif isinstance(value, ast.BinOp) and not _is_text_sum(value):

        def negated(node):
            node.value = ast.UnaryOp(ast.USub(), node.value)
            return node

        yield "the negative returned", negated
    else:
        yield "None returned", _setting(value=ast.Constant(None))


def _bounds(node):
    """Slices without their first or last element; constant bounds change as constants do."""
    lower, upper = node.lower, node.upper
    if lower is None and upper is None:
        return
    if lower is None:
        yield "slice from 1", _setting(lower=ast.Constant(1))
    elif not isinstance(lower, ast.Constant):

        def later(node):
            node.lower = ast.BinOp(node.lower, ast.Add(), ast.Constant(1))
            return node

        yield "slice from one later", later
    if upper is None:
        yield "slice without the last", _setting(upper=ast.Constant(-1))
    elif not isinstance(upper, ast.Constant):

        def earlier(node):
            node.upper = ast.BinOp(node.upper, ast.Sub(), ast.Constant(1))
            return node

        yield "slice to one earlier", earlier


_OPERATORS = (
    (ast.BinOp | ast.BoolOp | ast.AugAssign, _swapped),
    (ast.Compare, _compared),
    (ast.UnaryOp, _without_sign),
    (ast.Constant, _constant),
    (ast.AugAssign | ast.Expr, _removed),
    (ast.Return, _returned),
    (ast.Slice, _bounds),
)
