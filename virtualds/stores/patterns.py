"""Patterns of paths, with wildcards, alternatives, and names for parts that vary.

``*``, ``?`` and ``[...]`` match characters within one part of a path, ``**`` any number of folders.
``{a,b}`` is one of several strings. ``{name}`` matches text within one part, and what it matched is
a fact about the file: a member, a version, a date. ``{{`` and ``}}`` are braces.
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
"""Schemes whose urls have question marks and brackets of their own."""

TOKEN = re.compile(
    r"(?P<brace>\{\{|\}\})"
    r"|\{(?P<name>[A-Za-z_]\w*)(?::(?P<form>[^{}/]*))?\}"
    r"|\{(?P<choices>[^{}/]*,[^{}/]*)\}"
)
"""The expressions in braces that a pattern may contain."""

SETS_AND_STARS = re.compile(r"\\.|\[\^?\]?[^\]]*\]|\.\*")
"""Stars of a regular expression, and what may contain a literal star: escapes and character
sets."""

DIGITS = {"Y": r"\d{4}", "j": r"\d{3}", "y": r"\d{2}"} | dict.fromkeys("mdHMS", r"\d{2}")
"""Regular expressions for the numeric codes of `datetime.datetime.strptime`."""

Facts = Mapping[str, str]
"""The text that each name of a pattern matched in a path."""


@dataclass(frozen=True)
class PathPattern:
    """A pattern of paths or urls with names, whose values can be read from paths that match.

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
        """The names, in the order of the pattern, and the form of each."""
        found = dict[str, str]()
        for token in TOKEN.finditer(self.text):
            if name := token["name"]:
                found[name] = token["form"] or found.get(name, "")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order of the pattern."""
        return tuple(self.specs)

    @cached_property
    def repeats(self) -> bool:
        """Whether a name occurs several times."""
        found = [token["name"] for token in TOKEN.finditer(self.text) if token["name"]]
        return len(found) > len(self.specs)

    @cached_property
    def glob(self) -> str:
        """The pattern with a ``*`` in place of each name, for other tools."""
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
        """Return the number of parts at the beginning that match only themselves."""
        wild = "*" if self.is_web else "*?["
        for number, part in enumerate(self.parts):
            if TOKEN.search(part) is not None or any(sign in part for sign in wild):
                return number
        return len(self.parts)

    def compile_part(self, part: str) -> re.Pattern[str]:
        """Compile a part to a regular expression for names of files or folders."""
        return re.compile(f"(?s:{self._translate(part, set())})\\Z")

    def match(self, path: str) -> dict[str, str] | None:
        """Return the text that each name matches in a path or url, or None if it does not match."""
        if (found := self._whole.match(path)) is None:
            return None
        texts = found.groupdict()
        # web servers list names as they stand in urls
        return {name: unquote(text) for name, text in texts.items()} if self.is_web else texts

    def find_facts(self, path: str) -> dict[str, str]:
        """Return the text that each name matches in a path or url.

        Raises `CombineError` if the pattern does not match; the message says which part does not.
        """
        if (found := self.match(path)) is not None:
            return found
        seen = dict[str, str]()
        for part, text in zip(self.parts, path.split("/"), strict=False):
            if part == "**":
                break
            fits = self.compile_part(part).match(text)
            if fits is None:
                raise CombineError(f"{path}: {text!r} does not match {part!r} of the pattern")
            for name, value in fits.groupdict().items():
                if seen.setdefault(name, value) != value:
                    raise CombineError(
                        f"{path}: {{{name}}} is {seen[name]!r} in one part and {value!r} in another"
                    )
        raise CombineError(f"{path}: it does not match the pattern {self.text!r}")

    def split(self, path: str, name: str) -> tuple[tuple[str, ...], str] | None:
        """Return a path or url without the text that a name matches, and this text.

        Paths with the same rest differ only in that text. Returns None if the pattern does not
        match.

        >>> PathPattern("{version}/*.nc").split("v1/2001.nc", "version")
        (('', '', '/', '2001.nc'), 'v1')
        """
        if (found := self._whole.match(path)) is None:
            return None
        at = self._whole.groupindex[name]
        pieces = (found[number] for number in range(1, self._whole.groups + 1) if number != at)
        return tuple(pieces), unquote(found[name]) if self.is_web else found[name]

    def fill(self, facts: Facts) -> str:
        """Return the pattern with the names replaced by the texts that they matched."""
        return TOKEN.sub(
            lambda token: facts[token["name"]] if token["name"] else token[0][0], self.text
        )

    def read(self, name: str, text: str) -> Any:
        """Convert the text that a name matched to a number or a date, as its form says."""
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
    def _whole(self) -> re.Pattern[str]:
        seen = set[str]()
        pieces = []
        # ** at the end stands for everything below
        for part in [*self.parts, "*"] if self.parts[-1] == "**" else self.parts:
            found = "((?:[^/]+/)*)" if part == "**" else self._translate(part, seen) + "(/)"
            pieces.append(found)
        return re.compile(f"(?s:{''.join(pieces).removesuffix('(/)')})\\Z")

    def _translate(self, part: str, seen: set[str]) -> str:
        """Return the regular expression of a part; names in ``seen`` match the same text again.

        All else is in groups without names, for `split`.
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
        # (?s:...)\Z around the expression; * and ? do not cross a slash
        inner = re.sub(r"^\(\?s:(.*)\)\\[zZ]$", r"\1", fnmatch.translate(text), flags=re.DOTALL)
        return SETS_AND_STARS.sub(lambda m: "[^/]*" if m[0] == ".*" else m[0], inner)


def _match_form(spec: str) -> str:
    """Return the regular expression of a name with a form."""
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
    """Return a pattern that matches this url and no other.

    >>> escape_pattern("s3://bucket/a[1]{b}")
    's3://bucket/a[[]1]{{b}}'
    """
    return re.sub(r"([*?[])", r"[\1]", url).replace("{", "{{").replace("}", "}}")
