"""Small faults that can be made in a source file: where, and what the line then says.

A mutant is one of: a comparison that lets the border in or out, or is turned around; another
operator; a constant that is off; a condition without its `not`, or with `or` in place of `and`; the
other one of two functions (`min`, `max`; `argmin`, `argmax`; `any`, `all`; …); two arguments that
are names in each other's places, and what `where` gives; a statement that is left out.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
_PAIRS = (
    ("min", "max"),
    ("minimum", "maximum"),
    ("amin", "amax"),
    ("argmin", "argmax"),
    ("clamp_min", "clamp_max"),
    ("clamp_min_", "clamp_max_"),
    ("any", "all"),
    ("cumsum", "cumprod"),
    ("zeros_like", "ones_like"),
    ("ceil", "floor"),
)
SYMMETRIC = {"min", "max", "minimum", "maximum"}
FUNCTIONS = {a: b for pair in _PAIRS for a, b in (pair, pair[::-1])}


@dataclass(frozen=True)
class Mutant:
    """One fault in one file.

    Attributes:
        file: path from the root of the checkout.
        line: where it begins.
        before, after: that line; of an expression over several lines only the expression.
        start, end: bytes of the file that `new` takes the place of.
    """

    file: str
    line: int
    before: str
    after: str
    start: int
    end: int
    new: str

    @property
    def key(self) -> str:
        """What names it when lines have moved."""
        return f"{self.file}: {self.before} -> {self.after}"

    def source(self, text: str) -> str:
        """The whole file with the fault in it."""
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def mutants(file: str, text: str) -> list[Mutant]:
    """All of a file, in the order of the file; those that read alike once."""
    lines = text.encode().split(b"\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    found: dict[tuple[int, int, str], Mutant] = {}
    for old, fault in _changes(ast.parse(text)):
        assert old.end_lineno
        assert old.end_col_offset
        start = starts[old.lineno - 1] + old.col_offset
        end = starts[old.end_lineno - 1] + old.end_col_offset
        before, after = ast.unparse(old), ast.unparse(fault)
        if before == after:
            continue
        if isinstance(fault, ast.expr):
            after = f"({after})"  # it may stand within a stronger operator
        new = after
        if old.lineno == old.end_lineno:
            line = lines[old.lineno - 1]
            head, tail = line[: old.col_offset], line[old.end_col_offset :]
            before = line.decode().strip()
            after = (head.decode() + after + tail.decode()).strip()
        mutant = Mutant(file, old.lineno, before, after, start, end, new)
        found.setdefault((start, end, new), mutant)
    return sorted(found.values(), key=lambda m: (m.start, m.end, m.new))


def sample(every: list[Mutant], count: int, seed: str) -> list[Mutant]:
    """`count` of them by lot; a change elsewhere in the file leaves the others drawn."""
    drawn = sorted(every, key=lambda m: hashlib.sha256(f"{seed} {m.key}".encode()).digest())
    return sorted(drawn[:count], key=lambda m: m.start)


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    """Pairs of a node and what may stand in its place."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and not _bodiless(function):
            for statement in function.body:
                yield from _within(statement)


def _bodiless(function: ast.FunctionDef) -> bool:
    """Only a docstring: of a protocol, or nothing to do."""
    return all(isinstance(s, ast.Expr | ast.Pass) for s in function.body[:1]) and (
        len(function.body) == 1
    )


def _within(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, ast.expr | ast.stmt]]:
    # a function within another comes by itself; messages and assertions are no behaviour
    if isinstance(node, ast.FunctionDef | ast.Raise | ast.Assert | ast.JoinedStr | ast.ImportFrom):
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    if isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield from _within(node.value)
        return
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    if isinstance(node, ast.expr):
        yield from ((node, new) for new in _of_expression(node))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
        return  # types are no numbers
    for child in ast.iter_child_nodes(node):
        yield from _within(child)


def _of_statement(node: ast.stmt) -> Iterator[tuple[ast.stmt, ast.stmt]]:
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    kept = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute)
    again = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    named = node.targets[0].id if again else ""  # type: ignore[union-attr]
    # what redefines a name from itself can be left out; the first definition can't
    again = again and any(
        isinstance(n, ast.Name) and n.id == named
        for n in ast.walk(node.value)  # type: ignore[attr-defined]
    )
    if called or kept or again or isinstance(node, ast.AugAssign):
        yield node, ast.Pass()


def _of_expression(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Compare):
        for n, op in enumerate(node.ops):
            new = deepcopy(node)
            new.ops[n] = COMPARISONS[type(op)]()
            yield new
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(other, node.values)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _of_constant(node)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_constant(node: ast.Constant) -> Iterator[ast.expr]:
    if isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node.value, int):
        yield ast.Constant(node.value + 1)
    elif isinstance(node.value, float):
        yield ast.Constant(node.value * 2 or 1.0)


def _of_call(node: ast.Call) -> Iterator[ast.expr]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else None
    if isinstance(node.func, ast.Name):
        name = node.func.id
    if name in FUNCTIONS:
        new = deepcopy(node)
        if isinstance(new.func, ast.Attribute):
            new.func.attr = FUNCTIONS[name]
        elif isinstance(new.func, ast.Name):
            new.func.id = FUNCTIONS[name]
        yield new
    two = node.args[-2:] if name not in SYMMETRIC else []
    if len(two) == 2 and (name == "where" or all(isinstance(arg, ast.Name) for arg in two)):
        new = deepcopy(node)
        new.args[-2:] = [node.args[-1], node.args[-2]]
        yield new
