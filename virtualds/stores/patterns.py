"""Glob patterns of paths, with alternatives and named parts.

``*``, ``?`` and ``[...]`` match characters within one part of a path, ``**`` any number of folders.
``{a,b}`` is one of several strings. ``{name}`` matches text within one part, which is then known by
that name: a member, a version, a date. ``{{`` and ``}}`` are braces.
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

WEB = ("http", "https")
"""Schemes whose urls may contain question marks and brackets."""

TOKEN = re.compile(
    r"(?P<brace>\{\{|\}\})"
    r"|\{(?P<name>[A-Za-z_]\w*)(?::(?P<form>[^{}/]*))?\}"
    r"|\{(?P<choices>[^{}/]*,[^{}/]*)\}"
)
"""The expressions in braces that a pattern may contain."""

SETS_AND_STARS = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\.\*")
"""Matches ``.*``, and escapes and character sets, in which a star is literal."""

DIGITS = {"Y": r"\d{4}", "j": r"\d{3}", "y": r"\d{2}"} | dict.fromkeys("mdHMS", r"\d{2}")
"""Regular expressions for the numeric codes of `datetime.datetime.strptime`."""

Facts = Mapping[str, str]
"""The text that each name of a pattern matches in a path."""


@dataclass(frozen=True)
class PathPattern:
    """A pattern of paths or urls, whose named parts can be parsed from matching paths.

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
    def of(cls, url: str) -> PathPattern:
        """Parse a url or a path as a pattern."""
        return cls(url, scheme_of(url) in WEB)

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
    def repeats(self) -> bool:
        """Whether a name occurs several times."""
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
    def is_plain(self) -> bool:
        """Whether the pattern matches only itself."""
        return self.count_plain() == len(self.parts)

    def count_plain(self) -> int:
        """Return the number of leading parts without wildcards, names and alternatives."""
        wild = "*" if self.is_web else "*?["
        for number, part in enumerate(self.parts):
            if TOKEN.search(part) is not None or any(sign in part for sign in wild):
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
        seen = dict[str, str]()
        for part, text in zip(self.parts, path.split("/"), strict=False):
            if part == "**":
                break
            part_match = self.compile_part(part).match(text)
            if part_match is None:
                raise CombineError(f"{path}: {text!r} does not match {part!r} of the pattern")
            for name, value in part_match.groupdict().items():
                if seen.setdefault(name, value) != value:
                    raise CombineError(
                        f"{path}: {{{name}}} is {seen[name]!r} in one part and {value!r} in another"
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
        pieces = (match[number] for number in range(1, self._regex.groups + 1) if number != group)
        return tuple(pieces), unquote(match[name]) if self.is_web else match[name]

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
        pieces = []
        # ** at the end matches all files below
        for part in [*self.parts, "*"] if self.parts[-1] == "**" else self.parts:
            found = "((?:[^/]+/)*)" if part == "**" else self._translate(part, seen) + "(/)"
            pieces.append(found)
        return re.compile(f"(?s:{''.join(pieces).removesuffix('(/)')})\\Z")

    def _translate(self, part: str, seen: set[str]) -> str:
        """Return the regular expression of a part; a name in ``seen`` matches the same text again.

        Text outside names is in unnamed groups, for `split`.
        """
        pieces, end = [], 0
        for token in TOKEN.finditer(part):
            pieces.append(f"({self._translate_wild(part[end : token.start()])})")
            if name := token["name"]:
                spec = self.specs[name]
                pieces.append(
                    f"(?P={name})" if name in seen else f"(?P<{name}>{_match_form(spec)})"
                )
                seen.add(name)
            elif token["brace"]:
                pieces.append(re.escape(token["brace"][0]))
            else:
                choices = map(self._translate_wild, token["choices"].split(","))
                pieces.append(f"({'|'.join(choices)})")
            end = token.end()
        return "".join([*pieces, f"({self._translate_wild(part[end:])})"])

    def _translate_wild(self, text: str) -> str:
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
    """Escape wildcards of a url, so that the pattern matches only this url.

    >>> escape_pattern("s3://bucket/a[1]{b}")
    's3://bucket/a[[]1]{{b}}'
    """
    return re.sub(r"([*?[])", r"[\1]", url).replace("{", "{{").replace("}", "}}")
