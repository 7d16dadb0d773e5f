"""Mutants: every rule of a policy and every guard of a module, found in its text; each is one replaced stretch of it.

A policy is a tuple at module level whose name ends with POLICY; each of its rules is taken out in turn. A guard is an
`if` whose body ends in return, raise or continue, or the condition of `return x if condition else y`: its condition
becomes False. Of a condition, or a returned value, that is made of `and` and `or`, each part is taken out as well:
it becomes what leaves the decision to its neighbours, True in an `and`, False in an `or`.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

# An element of a tuple that is none.
_NOTHING = "*()"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """`source[start:end]`, in bytes of UTF-8, gives way to `replacement`."""

    path: str  # of the module, from the root of the repository
    name: str  # unique, and stable while the function and the condition are
    line: int
    start: int
    end: int
    replacement: str

    def applied_to(self, source: str) -> str:
        text = source.encode()
        return (text[: self.start] + self.replacement.encode() + text[self.end :]).decode()


def find_mutants(path: str, source: str) -> list[Mutant]:
    """All mutants of the module at `path`, in the order of its text. Raises SyntaxError."""
    found = _Module(path, source).mutants(ast.parse(source), ())
    seen: Counter[str] = Counter()
    unique = []
    for mutant in sorted(found, key=lambda each: (each.start, -each.end)):
        seen[mutant.name] += 1
        again = seen[mutant.name]
        unique.append(mutant if again == 1 else replace(mutant, name=f"{mutant.name} ({again})"))
    return unique


class _Module:
    def __init__(self, path: str, source: str) -> None:
        self._path = path
        self._source = source
        lines = source.encode().split(b"\n")
        self._line_starts = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]

    def mutants(self, node: ast.AST, place: tuple[str, ...]) -> Iterator[Mutant]:
        """Of everything below `node`, which stands in the class and function that `place` names."""
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    yield from self.mutants(child, (*place, child.name))
                    continue
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Tuple(elts=rules)):
                    yield from self._policy(name, rules, place)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Tuple(elts=rules)):
                    yield from self._policy(name, rules, place)
                case ast.If(test=test, body=[*_, ast.Return() | ast.Raise() | ast.Continue()]):
                    yield from self._guard(f"if {self._text(test)}", test, place)
                case ast.Return(value=ast.IfExp(test=test)):
                    yield from self._guard(f"return if {self._text(test)}", test, place)
                case ast.Return(value=ast.BoolOp() | ast.UnaryOp() as value):
                    yield from self._parts(value, place)
            yield from self.mutants(child, place)

    def _policy(self, name: str, rules: list[ast.expr], place: tuple[str, ...]) -> Iterator[Mutant]:
        if place or not name.endswith("POLICY"):
            return
        for rule in rules:
            yield self._mutant((name,), f"without {self._text(rule)}", rule, _NOTHING)

    def _guard(self, what: str, test: ast.expr, place: tuple[str, ...]) -> Iterator[Mutant]:
        yield self._mutant(place, what, test, "False")
        yield from self._parts(test, place)

    def _parts(self, condition: ast.expr, place: tuple[str, ...]) -> Iterator[Mutant]:
        match condition:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield from self._parts(operand, place)
            case ast.BoolOp(op=op, values=parts):
                for part in parts:
                    neutral = "True" if isinstance(op, ast.And) else "False"
                    yield self._mutant(place, f"without {self._text(part)}", part, neutral)
                    yield from self._parts(part, place)

    def _mutant(self, place: tuple[str, ...], what: str, node: ast.expr, replacement: str) -> Mutant:
        # Without the product's half: `domain/policy/decide.py`.
        name = f"{self._path.partition('/')[2]}:{'.'.join(place)}: {what}"
        start = self._line_starts[node.lineno - 1] + node.col_offset
        end = self._line_starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
        return Mutant(path=self._path, name=name, line=node.lineno, start=start, end=end, replacement=replacement)

    def _text(self, node: ast.expr) -> str:
        """On one line."""
        return " ".join((ast.get_source_segment(self._source, node) or "").split())
