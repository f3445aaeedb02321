"""Glob patterns of paths, with alternatives and named parts.

``*``, ``?`` and ``[...]`` match characters within one part of a path, ``**`` any number of folders.
``{a,b}`` matches one of several strings. ``{name}`` matches text within one part and names it, such
as a member, a version or a date. ``{{`` and ``}}`` match braces.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from virtualds.errors import CombineError
from virtualds.urls import scheme_of

WEB_SCHEMES = ("http", "https")
"""Schemes whose urls may contain question marks and brackets."""

TOKEN = re.compile(
    r"(?P<brace>\{\{|\}\})"
    r"|\{(?P<name>[A-Za-z_]\w*)(?::(?P<form>[^{}/]*))?\}"
    r"|\{(?P<choices>[^{}/]*,[^{}/]*)\}"
)
"""Matches the expressions in braces of a pattern."""

SETS_AND_STARS = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\.\*")
"""Matches ``.*``, and escapes and character sets, in which a star is literal."""

DIGITS = {"Y": r"\d{4}", "j": r"\d{3}", "y": r"\d{2}"} | dict.fromkeys("mdHMS", r"\d{2}")
"""Regular expressions for the numeric codes of `datetime.datetime.strptime`."""

Facts = Mapping[str, str]
"""The text in a path that each name of a pattern matches."""


@dataclass(frozen=True)
class PathPattern:
    """A pattern of paths or urls, with named parts that can be parsed from matching paths.

    A name that occurs twice matches the same text both times. A form may follow a name:
    ``{lead:d}`` is a whole number, and ``{time:%Y%m%d}`` a date (codes of
    `datetime.datetime.strptime`); without a form it is text. With ``is_web``, question marks and
    brackets are part of the url.

    Examples
    --------
    >>> pattern = PathPattern("/data/{model}/{version}/{variable}_*_{years}.nc")
    >>> pattern.names
    ('model', 'version', 'variable', 'years')
    >>> pattern.match("/data/M1/v2/tas_Amon_M1_1850-1899.nc")
    {'model': 'M1', 'version': 'v2', 'variable': 'tas', 'years': '1850-1899'}
    >>> pattern.glob
    '/data/*/*/*_*_*.nc'
    """

    text: str
    is_web: bool = False

    @classmethod
    def from_url(cls, url: str) -> PathPattern:
        """Parse a url or a path as a pattern."""
        return cls(url, scheme_of(url) in WEB_SCHEMES)

    def __post_init__(self) -> None:
        for name, spec in self.specs.items():
            if spec not in ("", "d") and "%" not in spec:
                raise ValueError(
                    f"pattern {self.text!r}: {{{name}:{spec}}} has an unknown form; give "
                    f"{{{name}}} for text, {{{name}:d}} for a number, or {{{name}:%Y%m%d}} for a "
                    f"date"
                )

    @cached_property
    def specs(self) -> dict[str, str]:
        """The form of each name, in the order of the pattern."""
        forms = dict[str, str]()
        for token in TOKEN.finditer(self.text):
            if name := token["name"]:
                forms[name] = token["form"] or forms.get(name, "")
        return forms

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of the pattern."""
        return tuple(self.specs)

    @cached_property
    def has_repeated_names(self) -> bool:
        """Whether a name occurs more than once."""
        names = [token["name"] for token in TOKEN.finditer(self.text) if token["name"]]
        return len(names) > len(self.specs)

    @cached_property
    def glob(self) -> str:
        """The pattern with ``*`` instead of each name, for other tools."""
        return TOKEN.sub(
            lambda token: (token["brace"] or "*")[0] if not token["choices"] else token[0],
            self.text,
        )

    @property
    def parts(self) -> list[str]:
        """The parts between slashes."""
        return self.text.split("/")

    @property
    def is_literal(self) -> bool:
        """Whether the pattern matches only itself."""
        return self.count_literal_parts() == len(self.parts)

    def count_literal_parts(self) -> int:
        """Return the number of leading parts without wildcards, names and alternatives."""
        wildcards = "*" if self.is_web else "*?["
        for number, part in enumerate(self.parts):
            if TOKEN.search(part) is not None or any(character in part for character in wildcards):
                return number
        return len(self.parts)

    def compile_part(self, part: str) -> re.Pattern[str]:
        """Compile a part to a regular expression that matches names of files or folders."""
        return re.compile(f"(?s:{self._translate(part, set())})\\Z")

    def match(self, path: str) -> dict[str, str] | None:
        """Match a path or url; return the text of each name, or None if it does not match."""
        if (matched := self._regex.match(path)) is None:
            return None
        texts = matched.groupdict()
        # web servers list percent-encoded names
        return {name: unquote(text) for name, text in texts.items()} if self.is_web else texts

    def find_facts(self, path: str) -> dict[str, str]:
        """Match a path or url; return the text of each name.

        Raises `CombineError`, which names the part that does not match.
        """
        if (facts := self.match(path)) is not None:
            return facts
        texts = dict[str, str]()
        for part, text in zip(self.parts, path.split("/"), strict=False):
            if part == "**":
                break
            part_match = self.compile_part(part).match(text)
            if part_match is None:
                raise CombineError(f"{path}: {text!r} does not match {part!r} of the pattern")
            for name, value in part_match.groupdict().items():
                if texts.setdefault(name, value) != value:
                    raise CombineError(
                        f"{path}: {{{name}}} is {texts[name]!r} in one part and {value!r} in "
                        "another"
                    )
        raise CombineError(f"{path}: it does not match the pattern {self.text!r}")

    def split(self, path: str, name: str) -> tuple[tuple[str, ...], str] | None:
        """Split a path or url into the rest and the text that a name matches; None if no match.

        Paths with the same rest differ only in that text.

        >>> PathPattern("{version}/*.nc").split("v1/2001.nc", "version")
        (('', '', '/', '2001.nc'), 'v1')
        """
        if (match := self._regex.match(path)) is None:
            return None
        group = self._regex.groupindex[name]
        groups = (match[number] for number in range(1, self._regex.groups + 1) if number != group)
        return tuple(groups), unquote(match[name]) if self.is_web else match[name]

    def fill(self, facts: Facts) -> str:
        """Return the pattern with the names replaced by texts."""
        return TOKEN.sub(
            lambda token: facts[token["name"]] if token["name"] else token[0][0], self.text
        )

    def read(self, name: str, text: str) -> Any:
        """Parse the text of a name to a number or a date, by its form."""
        spec = self.specs[name]
        try:
            if spec == "d":
                return int(text)
            return datetime.strptime(text, spec) if spec else text
        except ValueError as error:
            raise CombineError(
                f"{{{name}:{spec}}} does not fit {text!r} ({error}); correct the pattern, or leave "
                f"the file out"
            ) from None

    @cached_property
    def _regex(self) -> re.Pattern[str]:
        seen = set[str]()
        groups = []
        # ** at the end matches all files below
        for part in [*self.parts, "*"] if self.parts[-1] == "**" else self.parts:
            expression = "((?:[^/]+/)*)" if part == "**" else self._translate(part, seen) + "(/)"
            groups.append(expression)
        return re.compile(f"(?s:{''.join(groups).removesuffix('(/)')})\\Z")

    def _translate(self, part: str, seen: set[str]) -> str:
        """Return the regular expression of a part; a name in ``seen`` matches the same text again.

        Text outside names is in unnamed groups, for `split`.
        """
        groups, end = [], 0
        for token in TOKEN.finditer(part):
            groups.append(f"({self._translate_wildcards(part[end : token.start()])})")
            if name := token["name"]:
                spec = self.specs[name]
                groups.append(
                    f"(?P={name})" if name in seen else f"(?P<{name}>{_match_form(spec)})"
                )
                seen.add(name)
            elif token["brace"]:
                groups.append(re.escape(token["brace"][0]))
            else:
                choices = map(self._translate_wildcards, token["choices"].split(","))
                groups.append(f"({'|'.join(choices)})")
            end = token.end()
        return "".join([*groups, f"({self._translate_wildcards(part[end:])})"])

    def _translate_wildcards(self, text: str) -> str:
        if self.is_web:
            text = re.sub(r"([?\[])", r"[\1]", text)
        # remove (?s:...)\Z; in paths, * and ? do not match a slash
        inner = re.sub(r"^\(\?s:(.*)\)\\[zZ]$", r"\1", fnmatch.translate(text), flags=re.DOTALL)
        return SETS_AND_STARS.sub(lambda m: "[^/]*" if m[0] == ".*" else m[0], inner)


def _match_form(spec: str) -> str:
    """Return the regular expression of the form of a name."""
    if spec == "d":
        return r"-?\d+"
    if not spec:
        return "[^/]+?"
    codes = re.split(r"%(.)", spec)
    return "".join(
        DIGITS.get(piece, "[^/]+?") if index % 2 else re.escape(piece)
        for index, piece in enumerate(codes)
    )


def escape_pattern(url: str) -> str:
    """Escape the wildcards of a url, so that the pattern matches only this url.

    >>> escape_pattern("s3://bucket/a[1]{b}")
    's3://bucket/a[[]1]{{b}}'
    """
    wildcards = r"[{}]" if scheme_of(url) in WEB_SCHEMES else r"[*?\[{}]"
    return re.sub(wildcards, lambda m: m[0] * 2 if m[0] in "{}" else f"[{m[0]}]", url)
