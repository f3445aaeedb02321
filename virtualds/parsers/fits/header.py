"""Headers of FITS files: cards as attributes, offsets of the data of each part, names of axes.

FITS Standard 4.0: section 3 (parts of a file), 4 (cards), 4.2.1.2 (CONTINUE).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, BinaryIO, NamedTuple

from virtualds.errors import FormatError
from virtualds.source_file import SourceFile

BLOCK = 2880
"""Headers and data are padded to a multiple of this many bytes."""
CARD = 80
MAX_BLOCKS = 10_000
"""The maximum number of blocks of a header; a longer header is damaged."""
BEHIND = 1000
"""The number of blocks after the last part that are searched for a lost header."""
STRING = re.compile(r"'((?>''|[^']|'(?![ /]|$))*+)'(?=[ /]|$)")
"""A string; an unpaired quote in it is half of a pair that continues on the next card."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([EDed][+-]?\d+)?$")
UNIQUE_KEYWORDS = re.compile(r"BITPIX|NAXIS\d*|PCOUNT|GCOUNT|BSCALE|BZERO|BLANK")
"""Keywords that define how data are read, and must not be repeated."""
NAMES = ("EXTNAME", "EXTVER")
TELLING_KEYWORDS = re.compile("|".join((UNIQUE_KEYWORDS.pattern, "GROUPS", *NAMES)))
"""Keywords whose values determine how data are read or named."""
UNIQUE_IN_TABLES = re.compile(
    r"T(FIELDS|HEAP|(FORM|BCOL|DIM|SCAL|ZERO|NULL)\d+)"
    r"|Z(IMAGE|CMPTYPE|BITPIX|NAXIS\d*|TILE\d+|NAME\d+|VAL\d+|QUANTIZ|DITHER0|BLANK|SCALE|ZERO)"
)
"""The same for tables."""
FIRST_KEYWORDS = ("SIMPLE", "XTENSION")
"""Keywords with which headers begin."""
COMMENTARY = ("COMMENT", "HISTORY", "")
NO_NAME = "COMPRESSED_IMAGE"
"""The EXTNAME that fpack gives a table before the cards of its image, which may have a name."""
MAX_AXES = 999
"""The largest value of NAXIS."""
TWICE = "stands twice, and readers disagree which one counts"
WITHOUT_VALUE = "stands on a card without a value"
"""Reasons for ambiguous values of keywords."""


@dataclass(frozen=True)
class HeaderDataUnit:
    """A header and data unit.

    Parameters
    ----------
    number : int
        The index of the part in the file.
    cards : dict
        Values by keyword.
    start, offset : int
        The offsets of its header and of its data, in bytes.
    doubts : dict
        The reasons why keywords have no certain value.
    """

    number: int
    cards: dict[str, Any]
    start: int
    offset: int
    doubts: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """``IMAGE`` for images, including the primary one; otherwise the value of XTENSION."""
        return str(self.cards.get("XTENSION", "IMAGE")).strip()

    @property
    def is_compressed(self) -> bool:
        """Whether it is a table with an image, compressed tile by tile (section 10.1)."""
        return self.kind == "BINTABLE" and self.cards.get("ZIMAGE") is True

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes, the fastest one last."""
        count = self.cards.get("NAXIS")
        if type(count) is not int or not 0 <= count <= MAX_AXES:
            raise damage_error(self, f"NAXIS is {count!r}")
        cards = [self.cards.get(f"NAXIS{axis}") for axis in range(count, 0, -1)]
        lengths = tuple(n for n in cards if type(n) is int and n >= 0)
        if len(lengths) < count:
            raise damage_error(self, f"axes are {cards}")
        return lengths

    @property
    def bitpix(self) -> int:
        """Bits of a number, negative for floats."""
        bits = self.cards.get("BITPIX")
        if type(bits) is not int or bits not in (8, 16, 32, 64, -32, -64):
            raise damage_error(self, f"BITPIX is {bits!r}")
        return bits

    @property
    def nbytes(self) -> int:
        """The size in bytes of its data, without padding (section 7.1.2, equation 3)."""
        bits, shape = self.bitpix, self.shape
        more, groups = (self.cards.get(name, n) for name, n in (("PCOUNT", 0), ("GCOUNT", 1)))
        if type(more) is not int or type(groups) is not int or more < 0 or groups < 0:
            raise damage_error(self, "PCOUNT or GCOUNT is not a count")
        if self.cards.get("GROUPS") is True and shape and not shape[-1]:
            shape = shape[:-1]
        size = abs(bits) // 8 * groups * (more + (prod(shape) if shape else 0))
        if size >= 2**62:
            raise damage_error(self, f"its data have {size} bytes")
        return size


def damage_error(part: HeaderDataUnit, what: str) -> FormatError:
    """Return the error for a part whose cards or data are invalid."""
    return FormatError(f"FITS part {part.number}: {what}; the file is damaged, fetch it again")


def check_certain_cards(part: HeaderDataUnit, pattern: re.Pattern[str] = UNIQUE_IN_TABLES) -> None:
    """Raise an error if cards that reading depends on have ambiguous values.

    Raises
    ------
    FormatError
        The value of such a card is uncertain.
    """
    for name in sorted(filter(pattern.fullmatch, part.doubts)):
        raise damage_error(part, f"{name} {part.doubts[name]}")


def read_units(file: BinaryIO, source: SourceFile) -> Iterator[HeaderDataUnit]:
    """Yield the parts of a file; only their headers are read.

    Raises
    ------
    FormatError
        The file is damaged or truncated.
    """
    offset = number = 0
    while (header := _read_header(file, offset, source, first=not number)) is not None:
        cards, doubts = _parse_cards(header.cards)
        part = HeaderDataUnit(number, cards, offset, offset + header.nbytes, doubts)
        check_certain_cards(part, TELLING_KEYWORDS)
        yield part
        offset = part.offset + -(-part.nbytes // BLOCK) * BLOCK
        if source.size is not None and offset >= source.size:
            # this is the last part; avoid reading past the end of the file
            return
        number += 1
    _check_last(file, offset, source)


def _check_last(file: BinaryIO, offset: int, source: SourceFile) -> None:
    """Raise an error for a file with a header after bytes that belong to no part.

    Bytes after the last part never begin like a header (section 3.5).
    """
    cards = range(offset + CARD, offset + BLOCK, CARD)
    blocks = range(offset + BLOCK, offset + BEHIND * BLOCK, BLOCK)
    for following in (*cards, *blocks):
        file.seek(following)
        if not (begin := file.read(8)):
            return
        if begin == b"XTENSION":
            raise FormatError(
                f"{source.url}: a part ends at byte {offset}, where no other begins, and one "
                f"begins at byte {following}; the file is damaged, fetch it again"
            )


class _Header(NamedTuple):
    """The cards before END, and the size of the header with END and padding."""

    cards: str
    nbytes: int


def _read_header(file: BinaryIO, offset: int, source: SourceFile, first: bool) -> _Header | None:
    """Return the header at ``offset``, or None if no header begins there."""
    header = ""
    for _ in range(MAX_BLOCKS):
        file.seek(offset + len(header))
        block = file.read(BLOCK)
        begins = block[:8] == (b"SIMPLE  " if first else b"XTENSION")
        if not header and not begins and not first:
            # special records and other bytes may follow the last part (section 3.5)
            return None
        if len(block) < BLOCK or not (header or begins):
            break
        header += block.decode("ascii", "replace")
        for start in range(len(header) - BLOCK, len(header), CARD):
            if header[start : start + 8] == "END     ":
                if header[start : start + CARD].rstrip(" ") != "END":
                    raise FormatError(
                        f"{source.url}: the END card of the FITS header at byte {offset} holds "
                        f"more than END, and readers disagree whether it ends there; the file is "
                        f"damaged, fetch it again"
                    )
                # END may be the first card of a block: count blocks, not cards (section 4.4.1)
                return _Header(header[:start], len(header))
    raise FormatError(
        f"{source.url}: the FITS header at byte {offset} has no end; the file is damaged or "
        f"truncated, fetch it again"
    )


def _parse_cards(header: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values by keyword, and the reasons for ambiguous keywords.

    Comments are joined as lines. Of other repeated keywords the first one counts, as in astropy,
    but not an EXTNAME invented by fpack.
    """
    cards: dict[str, Any] = {}
    doubts = dict[str, str]()
    last, text = "", None
    for start in range(0, len(header), CARD):
        card = header[start : start + CARD].ljust(CARD)
        name, value = card[:8].strip().upper(), card[10:]
        if start and name in FIRST_KEYWORDS:
            # sections 4.4.1.1 and 4.4.1.2: they only occur at the beginning of a header
            raise FormatError(
                f"FITS header: {name} stands in card {start // CARD + 1}, so END is missing "
                f"before it; the file is damaged, fetch it again"
            )
        if name == "CONTINUE" and text is not None and text[-1:] == "&":
            text = text[:-1]
            # a card may end within a pair of quotes, so replace pairs in the joined text
            half = (len(text) - len(text.rstrip("'"))) % 2
            if (more := _parse_string(value.strip()[half:])) is not None:
                text += "'" * half + more
                cards[last] = _unquote(text)
        elif name in COMMENTARY:
            line = card[8:].rstrip()
            if name and line:
                cards[name] = f"{cards[name]}\n{line}" if name in cards else line
        elif (pair := _split_card(card)) is None:
            doubts[name] = WITHOUT_VALUE
        elif _is_free(pair[0], cards):
            last, value = pair
            text = _parse_string(value)
            cards[last] = _parse_value(value)
        else:
            text = None
            if pair[0] not in NAMES:
                doubts[pair[0]] = TWICE
    return {n: value for n, value in cards.items() if value is not None}, doubts


def _is_free(name: str, cards: Mapping[str, Any]) -> bool:
    """Return whether a keyword has not been set by a previous card."""
    return name not in cards or (name == "EXTNAME" and cards[name] == NO_NAME)


def _split_card(card: str) -> tuple[str, str] | None:
    """Return the keyword and the text of the value of a card, or None if it has no value.

    As in astropy, keywords may be in lower case, and a short one may end before column 8.
    """
    end = card.find("= ")
    if 0 < end <= 8:
        return card[:8].strip().upper()[:end], card[end + 2 :]
    if card[:9].upper() == "HIERARCH " and "=" in card:
        name, _, value = card[9:].partition("=")
        return name.strip(), value
    return None


def _parse_string(text: str) -> str | None:
    """Return the text between the quotes of a card, or None if its value is not a string."""
    match = STRING.match(text.strip())
    # trailing blanks are not significant, except for one in a blank string
    return None if match is None else match[1].rstrip() or match[1][:1]


def _unquote(text: str) -> str:
    return text.replace("''", "'")


def _parse_value(text: str) -> Any:
    """Return the value of a card, or None if it has none."""
    if (string := _parse_string(text)) is not None:
        return _unquote(string)
    text = text.partition("/")[0].strip()
    if text in ("T", "F"):
        return text == "T"
    if not NUMBER.match(text):
        return text or None
    digits = text.lstrip("+-")
    return int(text) if digits.isdigit() else float(text.upper().replace("D", "E"))


# ---------------------------------------------------------------------- axes


class AxisNames:
    """Makes names of axes; axes of different lengths get different names.

    Parameters
    ----------
    prefix : str
        The beginning of the names; the number of the axis follows, 1 for the last one.

    Examples
    --------
    >>> names = AxisNames("naxis")
    >>> names.name("SCI", (20, 30)), names.name("WIDE", (20, 40))
    (('naxis2', 'naxis1'), ('naxis2', 'naxis1_WIDE'))
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self._lengths: dict[str, int] = {}

    def name(self, array: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Return the names of the axes of an array."""
        names = []
        for number, length in zip(range(len(shape), 0, -1), shape, strict=True):
            dim = f"{self.prefix}{number}"
            if self._lengths.setdefault(dim, length) != length:
                dim = f"{dim}_{array}"
            names.append(dim)
        return tuple(names)
