"""Small breaks of a module: where the text is replaced by what.

A break is one that a person makes by mistake: a comparison that is off by one or turned round, a
sign, a missing ``not``, a branch that is always or never taken, a number that is one too large, a
result that is lost. Texts, types and what is imported are left as they are.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
}
OPERATIONS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "+"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}


class Break(NamedTuple):
    """One change of the text of a module.

    Parameters
    ----------
    module : str
        The path of the file below the package.
    function : str
        The function or class that it lies in, empty for the module itself.
    start, stop : int
        The replaced part, in characters of the file.
    before, after : str
        The text of that part, and the one in its place.
    line : int
    scope : tuple of int
        First and last line of the function or class around it, (0, 0) if there is none.
    """

    module: str
    function: str
    start: int
    stop: int
    before: str
    after: str
    line: int
    scope: tuple[int, int]

    def __str__(self) -> str:
        where = f"{self.module}:{self.line} {self.function}".rstrip()
        return f"{where}: {_shorten(self.before)} -> {_shorten(self.after)}"

    def apply(self, text: str) -> str:
        """Return the text of the file with this break."""
        return text[: self.start] + self.after + text[self.stop :]


def list_breaks(package: Path, module: Path) -> list[Break]:
    """Return all breaks of a module, in the order of its lines.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "m.py").write_text("def is_small(n):\\n    return n < 3\\n")
    >>> [str(b) for b in list_breaks(folder, folder / "m.py")][:2]
    ['m.py:2 is_small: n < 3 -> n <= 3', 'm.py:2 is_small: 3 -> 4']
    """
    return list(_find_breaks(module.read_text(), str(module.relative_to(package))))


@cache
def _find_breaks(text: str, module: str) -> tuple[Break, ...]:
    # breaks of a package are chosen several times, and to find them takes longest
    finder = _Finder(text, module)
    finder.visit(ast.parse(text))
    return tuple(sorted(finder.found, key=lambda found: (found.start, found.stop, found.after)))


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else f"{line[:57]}..."


class _Finder(ast.NodeVisitor):
    """Visits the nodes of a module and lists breaks of each."""

    def __init__(self, text: str, module: str) -> None:
        self.found: list[Break] = []
        self._text, self._module = text, module
        self._lines = text.splitlines(keepends=True)
        self._begins = [0]
        for line in self._lines:
            self._begins.append(self._begins[-1] + len(line))
        self._names: list[str] = []
        self._scopes = [(0, 0)]

    def _place(self, line: int, column: int) -> int:
        # columns of ast count bytes
        return self._begins[line - 1] + len(self._lines[line - 1].encode()[:column].decode())

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self._place(node.lineno, node.col_offset)
        return start, self._place(node.end_lineno, node.end_col_offset)

    def _add(self, node: ast.expr | ast.stmt, start: int, stop: int, after: str) -> None:
        before = self._text[start:stop]
        name = ".".join(self._names)
        line, scope = node.lineno, self._scopes[-1]
        self.found.append(Break(self._module, name, start, stop, before, after, line, scope))

    def _replace(self, node: ast.expr | ast.stmt, after: str) -> None:
        self._add(node, *self._span(node), after)

    # ------------------------------------------------------------------ where breaks are looked for

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._names.append(node.name)
        self._scopes.append((node.lineno, node.end_lineno or node.lineno))
        for part in node.body:
            self.visit(part)
        self._scopes.pop()
        self._names.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _enter

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        is_type = isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"
        if node.value is not None and not is_type:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Leave messages as they are."""

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Leave texts as they are."""

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            return
        self._take_branches(node, node.test)
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._take_branches(node, node.test)
        self.generic_visit(node)

    def _take_branches(self, node: ast.If | ast.IfExp, test: ast.expr) -> None:
        has_names = any(isinstance(part, ast.NamedExpr) for part in ast.walk(test))
        if not has_names:
            for value in ("True", "False"):
                self._replace(test, value)

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.ops) == 1 and (found := COMPARISONS.get(type(node.ops[0]))):
            self._change_between(node, node.left, node.comparators[0], *found)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        is_text = isinstance(node.left, ast.Constant | ast.JoinedStr) and not isinstance(
            getattr(node.left, "value", None), int | float
        )
        if (found := OPERATIONS.get(type(node.op))) and not is_text:
            self._change_between(node, node.left, node.right, *found)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        before, after = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self._change_between(node, node.values[0], node.values[1], before, after)
        self.generic_visit(node)

    def _change_between(
        self, node: ast.expr, left: ast.expr, right: ast.expr, before: str, after: str
    ) -> None:
        """Change an operator that stands between two expressions."""
        start, stop = self._span(left)[1], self._span(right)[0]
        between = self._text[start:stop]
        if "#" in between or between.count(before) != 1:
            return
        whole, changed = self._span(node), between.replace(before, after)
        text = self._text[whole[0] : start] + changed + self._text[stop : whole[1]]
        self._replace(node, text)

    def visit_keyword(self, node: ast.keyword) -> None:
        """Leave checks of the code itself as they are."""
        if node.arg != "strict":
            self.visit(node.value)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not | ast.USub | ast.Invert):
            start, stop = self._span(node.operand)
            self._replace(node, self._text[start:stop])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._replace(node, str(not node.value))
        elif isinstance(node.value, int):
            self._replace(node, str(node.value + 1))

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and not isinstance(node.value, ast.Constant):
            self._replace(node.value, "None")
            self.visit(node.value)

    def visit_Continue(self, node: ast.Continue) -> None:
        self._replace(node, "break")

    def visit_Break(self, node: ast.Break) -> None:
        self._replace(node, "continue")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant):
            return
        # the place of a call that nothing depends on
        if isinstance(node.value, ast.Call):
            self._replace(node, "pass")
        self.generic_visit(node)
