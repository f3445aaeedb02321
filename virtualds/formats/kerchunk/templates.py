"""Evaluate templates and generators of kerchunk references.

kerchunk documentation, "References specification", version 1, calls its strings ``jinja-str``. The
supported language is a small subset of Jinja: text with placeholders ``{{...}}`` of names,
integers, strings, the operators ``+ - * / // %``, parentheses, and calls of templates with keyword
arguments. Attributes, items, powers, filters, statements and other calls are errors.

A variable of a generator is an array along its own axis, so that an expression is evaluated once
for all references. The cost of a document is limited (`MAX_EFFORT`, `MAX_REFERENCES`).
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from virtualds.errors import FormatError

MAX_REFERENCES = 2**22
"""Maximum number of references that the generators of one document may create."""
MAX_EFFORT = 2**30
"""Maximum number of characters rendered plus numbers computed for one document."""
MAX_CHARACTERS = 2**13
"""Maximum number of characters of a template, and of the rendered text."""
MAX_PLACEHOLDERS = 64
MAX_TOKENS = 256
MAX_DIMENSIONS = 16
INT64_LIMIT = 2**63
"""The exclusive limit of absolute values of integers."""
Value = npt.NDArray[Any]
"""64-bit integers, or strings as objects, along the axes of the generator's variables."""
Variables = Mapping[str, Value]
_TOKEN = re.compile(
    r"""\s*(?: (?P<name>[A-Za-z_][A-Za-z0-9_]*) | (?P<integer>[0-9]+)
    | (?P<text>'[^'\\]*'|"[^"\\]*") | (?P<sign>//|[-+*/%(),=]) )""",
    re.VERBOSE | re.ASCII,
)
_CLOSING = re.compile(r"\s*\}\}")
_UNSUPPORTED = re.compile(r"\{%|\{\#|\{\{[-+]|[-+]\}\}")
"""Jinja's statements, comments and whitespace control."""
_KNOWN = (
    "only names, integers, strings, + - * / // %, parentheses and templates with keyword arguments "
    "are supported, in moderate number"
)
_PREFIX = "name_"
"""A prefix of names in the Python expression, so that none of them is a keyword."""
Operations = Mapping[type[ast.operator], Callable[[Value, Value], Value]]


class Templates:
    """The templates of one document, by name.

    A template with placeholders is called with arguments, and can use only these.

    Examples
    --------
    >>> templates = Templates({"u": "s3://bucket", "f": "{{c}}.nc"})
    >>> templates.render_text("{{u}}/{{f(c='a')}}")
    's3://bucket/a.nc'
    """

    def __init__(self, texts: Mapping[str, str], effort: list[int] | None = None) -> None:
        if invalid := [name for name, text in texts.items() if not isinstance(text, str)]:
            raise FormatError(f"template {invalid[0]!r}: it is {texts[invalid[0]]!r}, not a string")
        self.texts = texts
        self._effort = [MAX_EFFORT] if effort is None else effort

    def render_text(self, source: str) -> str:
        """Render a string without variables, or raise an error if it is invalid or too large."""
        return str(self.render_texts(source, {}).item())

    def render_texts(self, source: str, variables: Variables) -> Value:
        """Render a string for all values of variables."""
        parts = [
            np.array(part, object)
            if isinstance(part, str)
            else _to_text(self._evaluate(part, variables))
            for part in _parse_template(source)
        ]
        shape = np.broadcast_shapes(*(part.shape for part in parts))
        length = sum(max(map(len, part.ravel().tolist()), default=0) for part in parts)
        if length > MAX_CHARACTERS:
            raise FormatError(f"template {source[:60]!r}: it renders to {length} characters")
        self.spend(length * prod(shape))
        if not shape:
            return np.array("".join(part.item() for part in parts), object)
        columns = [np.broadcast_to(part, shape).ravel().tolist() for part in parts]
        rendered = np.empty(prod(shape), object)
        rendered[:] = list(map("".join, zip(*columns, strict=True)))
        return rendered.reshape(shape)

    def compute_integers(self, source: str, variables: Variables) -> Value:
        """Compute an offset or length for all values of variables."""
        parts = _parse_template(source)
        if len(parts) == 1 and not isinstance(parts[0], str):
            integers = self._evaluate(parts[0], variables, _INTEGER_OPERATIONS)
            if integers.dtype == np.int64:
                return integers
        rendered = self.render_texts(source, variables)
        numbers = [_parse_integer(text) for text in rendered.ravel().tolist()]
        return np.array(numbers, np.int64).reshape(rendered.shape)

    def _evaluate(
        self, placeholder: ast.expr, variables: Variables, operations: Operations | None = None
    ) -> Value:
        """Evaluate the expression in a placeholder."""
        supported = _OPERATIONS if operations is None else operations

        def evaluate(node: ast.expr) -> Value:
            match node:
                case ast.Constant(value=str() as text):
                    return np.array(text, object)
                case ast.Constant(value=number):
                    return np.array(number, np.int64)
                case ast.Name(id=name):
                    return _look_up(name.removeprefix(_PREFIX), self, variables)
                case ast.UnaryOp(op=sign, operand=operand):
                    # there are no signs except + and -
                    operation = operator.sub if isinstance(sign, ast.USub) else operator.add
                    return _compute(operation, np.array(0, np.int64), evaluate(operand), self)
                case ast.BinOp(left=left, op=sign, right=right) if type(sign) in supported:
                    return _compute(supported[type(sign)], evaluate(left), evaluate(right), self)
                case ast.Call(func=ast.Name(id=name), args=[], keywords=given):
                    values = {f"{k.arg}": evaluate(k.value) for k in given}
                    if len(values) < len(given):
                        raise FormatError(f"{name.removeprefix(_PREFIX)}: an argument is repeated")
                    if None not in [k.arg for k in given]:
                        arguments = {n.removeprefix(_PREFIX): value for n, value in values.items()}
                        return self.call(name.removeprefix(_PREFIX), arguments)
            raise FormatError(f"{type(node).__name__} is not supported in templates; {_KNOWN}")

        return evaluate(placeholder)

    def call(self, name: str, arguments: Variables) -> Value:
        """Render a template with its arguments."""
        if "{{" not in self.texts.get(name, ""):
            raise FormatError(f"{name}(...): there is no template of this name with arguments")
        # without access to other templates, no template can call itself
        isolated = Templates({}, self._effort)
        try:
            return isolated.render_texts(self.texts[name], arguments)
        except FormatError as error:
            error.add_note(f"template {name!r}")
            raise

    def spend(self, effort: int) -> None:
        """Subtract an effort from the limit, and raise an error if that is exceeded."""
        self._effort[0] -= effort
        if self._effort[0] < 0:
            raise FormatError("the templates and generators take too much work to render")


def _to_text(value: Value) -> Value:
    """Return a value with integers as strings."""
    if value.dtype == object:
        return value
    strings = np.empty(value.size, object)
    strings[:] = list(map(str, value.ravel().tolist()))
    return strings.reshape(value.shape)


def _parse_integer(text: str) -> int:
    """Return the integer in a rendered text."""
    if not re.fullmatch(r"\s*[-+]?[0-9]{1,18}\s*", text, re.ASCII):
        raise FormatError(f"offset or length {text[:40]!r}: it is not an integer")
    return int(text)


# ---------------------------------------------------------------------- grammar


def _parse_template(source: str) -> list[str | ast.expr]:
    """Split a template into text and placeholders."""
    if not isinstance(source, str) or len(source) > MAX_CHARACTERS:
        raise FormatError(f"template {str(source)[:60]!r}: a string of moderate length is expected")
    if unsupported := _UNSUPPORTED.search(source):
        raise FormatError(
            f"template {source[:60]!r}: {unsupported[0]!r} is not a part of a reference set"
        )
    parts: list[str | ast.expr] = []
    end = 0
    while (begin := source.find("{{", end)) >= 0:
        if len(parts) > 2 * MAX_PLACEHOLDERS:
            raise FormatError(
                f"template {source[:60]!r}: more than {MAX_PLACEHOLDERS} placeholders"
            )
        stop = begin + 2
        while (token := _TOKEN.match(source, stop)) is not None:
            stop = token.end()
        closing = _CLOSING.match(source, stop)
        try:
            placeholder = (
                _parse_placeholder(source[begin + 2 : stop]) if closing is not None else None
            )
        except SyntaxError:
            placeholder = None
        if placeholder is None or closing is None:
            raise FormatError(
                f"template {source[:60]!r}: {source[begin : stop + 10][-80:]!r} is not a valid "
                f"placeholder; {_KNOWN}"
            )
        parts += [source[end:begin], placeholder]
        end = closing.end()
    return [part for part in (*parts, source[end:]) if part] or [""]


@lru_cache(1024)
def _parse_placeholder(source: str) -> ast.expr | None:
    """Parse the expression in a placeholder; return None if it is invalid or too long."""
    tokens = list(_TOKEN.finditer(source))
    kinds = [token.lastgroup for token in tokens]
    if len(tokens) > MAX_TOKENS or ("text", "text") in pairwise(kinds):
        return None
    words = []
    for token in tokens:
        name, integer, text, sign = token.groups()
        if integer is not None and len(integer) > 18:
            return None
        word = sign or (f"{_PREFIX}{name}" if name else None)
        words.append(word or repr(int(integer) if integer else text[1:-1]))
    return ast.parse(" ".join(words), mode="eval").body


def _look_up(name: str, templates: Templates, variables: Variables) -> Value:
    """Return the value of a variable, or the text of a template without placeholders."""
    if name in variables:
        return variables[name]
    text = templates.texts.get(name)
    if text is None or "{{" in text:
        raise FormatError(
            f"{{{{{name}}}}}: there is no variable or template without arguments of this name; "
            f"the variables are {sorted(variables)}, the templates {sorted(templates.texts)}"
        )
    return np.array(text, object)


def _compute(operation: Any, left: Value, right: Value, templates: Templates) -> Value:
    """Return the result of an operation on 64-bit integers, or raise an error on overflow."""
    if left.dtype == object or right.dtype == object:
        raise FormatError("an operand is a string; only integers are computed")
    templates.spend(prod(np.broadcast_shapes(left.shape, right.shape)))
    if operation in (operator.floordiv, operator.mod, _divide):
        if not right.all():
            raise FormatError("a number is divided by zero")
    else:
        ranges = [(int(v.min()), int(v.max())) for v in (left, right)]
        corners = [operation(a, b) for a in ranges[0] for b in ranges[1]]
        if max(map(abs, corners)) >= INT64_LIMIT:
            raise FormatError("a number does not fit into 64 bits")
    result: Value = np.asarray(operation(left, right), np.int64)
    return result


def _divide(left: Value, right: Value) -> Value:
    """Return a quotient, or raise an error for a remainder: offsets and lengths are integers."""
    if (left % right).any():
        raise FormatError("a division leaves a remainder; '//' rounds down")
    quotient: Value = left // right
    return quotient


_OPERATIONS: Operations = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_INTEGER_OPERATIONS: Operations = {**_OPERATIONS, ast.Div: _divide}
"""Operations for offsets and lengths."""


# ---------------------------------------------------------------------- generators
# Generators are loops over dimensions, which are evaluated as arrays.


def generate_references(items: Any, templates: Templates) -> dict[str, list[Any]]:
    """Return the references from the generators of a document, or raise an error for too many."""
    references: dict[str, list[Any]] = {}
    references_left = MAX_REFERENCES
    for item in items:
        dimensions = [_parse_dimension(name, v) for name, v in item["dimensions"].items()]
        sizes = tuple(len(values) for _, values in dimensions)
        references_left -= prod(sizes)
        if references_left < 0 or len(sizes) > MAX_DIMENSIONS:
            raise FormatError(
                f"gen {item['key']!r}: dimensions of {sizes} values; at most {MAX_DIMENSIONS} "
                f"dimensions and {MAX_REFERENCES} references are generated, write the others out"
            )
        variables = dict[str, Value]()
        for axis, (name, values) in enumerate(dimensions if prod(sizes) else ()):
            # each variable is an array along its own axis
            dtype = object if isinstance(values[0], str) else np.int64
            shape = [-1 if n == axis else 1 for n in range(len(dimensions))]
            variables[name] = np.array(values, dtype).reshape(shape)
        if prod(sizes):
            references.update(_generate(item, variables, sizes, templates))
    return references


def _generate(
    item: Mapping[str, str], variables: Variables, shape: tuple[int, ...], templates: Templates
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the references of one generator in C order."""
    if shadowed := variables.keys() & templates.texts.keys():
        raise FormatError(f"gen {item['key']!r}: {min(shadowed)!r} is a dimension and a template")
    ranges = [name for name in ("offset", "length") if name in item]
    if len(ranges) == 1:
        raise FormatError(f"gen {item['key']!r}: offset and length go together")
    keys = templates.render_texts(item["key"], variables)
    columns = [templates.render_texts(item["url"], variables)]
    columns += [templates.compute_integers(item[name], variables) for name in ranges]
    rows = zip(*(np.broadcast_to(c, shape).ravel().tolist() for c in columns), strict=True)
    return zip(np.broadcast_to(keys, shape).ravel().tolist(), map(list, rows), strict=True)


def _parse_dimension(name: str, value: Any) -> tuple[str, range | list[Any]]:
    """Return the name and the values of a dimension of a generator."""
    if isinstance(value, list):
        if not all(type(v) is int and abs(v) < INT64_LIMIT for v in value) and not all(
            type(v) is str for v in value
        ):
            raise FormatError(f"dimension {name!r}: a list of integers, or of strings, is expected")
        return name, value
    start, stop, step = value.get("start", 0), value["stop"], value.get("step", 1)
    if (
        any(type(v) is not int or abs(v) >= INT64_LIMIT // 4 for v in (start, stop, step))
        or not step
    ):
        raise FormatError(
            f"dimension {name!r}: from {start!r} to {stop!r} in steps of {step!r} is not a range"
        )
    return name, range(start, stop, step)
