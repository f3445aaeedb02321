"""Headers of FITS files: cards as attributes, the offset of the data of each HDU, names of axes.

FITS Standard 4.0: section 3 (HDUs of a file), 4 (cards), 4.2.1.2 (CONTINUE).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, BinaryIO

from virtualds.errors import FormatError, make_damage_error
from virtualds.source_file import SourceFile

BLOCK_BYTES = 2880
"""Headers and data are padded to a multiple of this many bytes."""
CARD_BYTES = 80
MAX_BLOCKS = 10_000
"""Maximum number of blocks of a header; a longer header is damaged."""
MAX_SEARCHED_BLOCKS = 1000
"""Number of blocks after the last HDU to search for a header that is out of place."""
STRING = re.compile(r"'((?>''|[^']|'(?![ /]|$))*+)'(?=[ /]|$)")
"""Matches a string; an unpaired quote is half of a pair that continues on the next card."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([EDed][+-]?\d+)?$")
UNIQUE_KEYWORDS = re.compile(r"BITPIX|NAXIS\d*|PCOUNT|GCOUNT|BSCALE|BZERO|BLANK")
"""Matches keywords that define how data are read, which must not be repeated."""
NAME_KEYWORDS = ("EXTNAME", "EXTVER")
DECISIVE_KEYWORDS = re.compile("|".join((UNIQUE_KEYWORDS.pattern, "GROUPS", *NAME_KEYWORDS)))
"""Matches keywords that determine how data are read or named."""
UNIQUE_IN_TABLES = re.compile(
    r"T(FIELDS|HEAP|(FORM|BCOL|DIM|SCAL|ZERO|NULL)\d+)"
    r"|Z(IMAGE|CMPTYPE|BITPIX|NAXIS\d*|TILE\d+|NAME\d+|VAL\d+|QUANTIZ|DITHER0|BLANK|SCALE|ZERO)"
)
"""Matches keywords that define how tables are read, which must not be repeated."""
FIRST_KEYWORDS = ("SIMPLE", "XTENSION")
"""First keywords of headers."""
COMMENT_KEYWORDS = ("COMMENT", "HISTORY", "")
FPACK_NAME = "COMPRESSED_IMAGE"
"""EXTNAME that fpack writes before the cards of the image, which may have another EXTNAME."""
MAX_AXES = 999
"""Largest value of NAXIS."""
DUPLICATE = "occurs twice, and readers disagree which one counts"
NO_VALUE = "occurs on a card without a value"
"""Reasons why the value of a keyword is ambiguous."""


@dataclass(frozen=True)
class HeaderDataUnit:
    """A header and data unit.

    Parameters
    ----------
    number : int
        The index of the HDU in the file.
    cards : dict
        Values by keyword.
    start, offset : int
        The offsets of its header and its data, in bytes.
    ambiguities : dict
        The reasons why keywords are ambiguous, by keyword.
    """

    number: int
    cards: dict[str, Any]
    start: int
    offset: int
    ambiguities: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The value of XTENSION; ``IMAGE`` for the primary HDU."""
        return str(self.cards.get("XTENSION", "IMAGE")).strip()

    @property
    def is_compressed(self) -> bool:
        """Whether it is a table with a tile-compressed image (section 10.1)."""
        return self.kind == "BINTABLE" and self.cards.get("ZIMAGE") is True

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of the axes, the fastest axis last."""
        count = self.cards.get("NAXIS")
        if type(count) is not int or not 0 <= count <= MAX_AXES:
            raise make_hdu_error(self, f"NAXIS is {count!r}")
        values = [self.cards.get(f"NAXIS{axis}") for axis in range(count, 0, -1)]
        lengths = tuple(n for n in values if type(n) is int and n >= 0)
        if len(lengths) < count:
            raise make_hdu_error(self, f"axes are {values}")
        return lengths

    @property
    def bitpix(self) -> int:
        """The number of bits of a value, negative for floats."""
        bits = self.cards.get("BITPIX")
        if type(bits) is not int or bits not in (8, 16, 32, 64, -32, -64):
            raise make_hdu_error(self, f"BITPIX is {bits!r}")
        return bits

    @property
    def nbytes(self) -> int:
        """The size in bytes of its data, without padding (section 7.1.2, equation 3)."""
        bits, shape = self.bitpix, self.shape
        parameters, groups = (self.cards.get(name, n) for name, n in (("PCOUNT", 0), ("GCOUNT", 1)))
        if type(parameters) is not int or type(groups) is not int or parameters < 0 or groups < 0:
            raise make_hdu_error(self, "PCOUNT or GCOUNT is not a count")
        if self.cards.get("GROUPS") is True and shape and not shape[-1]:
            shape = shape[:-1]
        size = abs(bits) // 8 * groups * (parameters + (prod(shape) if shape else 0))
        if size >= 2**62:
            raise make_hdu_error(self, f"its data have {size} bytes")
        return size


def make_hdu_error(hdu: HeaderDataUnit, problem: str) -> FormatError:
    """Return the error for an HDU whose cards or data are invalid."""
    return make_damage_error(f"FITS part {hdu.number}: {problem}")


def check_unambiguous(hdu: HeaderDataUnit, pattern: re.Pattern[str] = UNIQUE_IN_TABLES) -> None:
    """Raise `FormatError` if a keyword that matches ``pattern`` is ambiguous."""
    for name in sorted(filter(pattern.fullmatch, hdu.ambiguities)):
        raise make_hdu_error(hdu, f"{name} {hdu.ambiguities[name]}")


def read_hdus(file: BinaryIO, source: SourceFile) -> Iterator[HeaderDataUnit]:
    """Yield the HDUs of a file; only their headers are read.

    Raises `FormatError` if the file is damaged or truncated.
    """
    offset = number = 0
    while (header := _read_header(file, offset, source, first=not number)) is not None:
        text, nbytes = header
        cards, ambiguities = _parse_cards(text)
        hdu = HeaderDataUnit(number, cards, offset, offset + nbytes, ambiguities)
        check_unambiguous(hdu, DECISIVE_KEYWORDS)
        yield hdu
        offset = hdu.offset + -(-hdu.nbytes // BLOCK_BYTES) * BLOCK_BYTES
        if source.size is not None and offset >= source.size:
            # this is the last HDU; avoid reading past the end of the file
            return
        number += 1
    _check_last(file, offset, source)


def _check_last(file: BinaryIO, offset: int, source: SourceFile) -> None:
    """Raise `FormatError` if there is a header after bytes that belong to no HDU.

    Bytes after the last HDU must not begin like a header (section 3.5).
    """
    cards = range(offset + CARD_BYTES, offset + BLOCK_BYTES, CARD_BYTES)
    blocks = range(offset + BLOCK_BYTES, offset + MAX_SEARCHED_BLOCKS * BLOCK_BYTES, BLOCK_BYTES)
    for position in (*cards, *blocks):
        file.seek(position)
        if not (keyword := file.read(8)):
            return
        if keyword == b"XTENSION":
            raise make_damage_error(
                f"{source.url}: a part ends at byte {offset}, where no other begins, and one "
                f"begins at byte {position}"
            )


def _read_header(
    file: BinaryIO, offset: int, source: SourceFile, first: bool
) -> tuple[str, int] | None:
    """Return the cards before END and the size of the padded header, or None without a header."""
    header = ""
    for _ in range(MAX_BLOCKS):
        file.seek(offset + len(header))
        block = file.read(BLOCK_BYTES)
        is_header = block[:8] == (b"SIMPLE  " if first else b"XTENSION")
        if not header and not is_header and not first:
            # special records and other bytes may follow the last HDU (section 3.5)
            return None
        if len(block) < BLOCK_BYTES or not (header or is_header):
            break
        header += block.decode("ascii", "replace")
        for start in range(len(header) - BLOCK_BYTES, len(header), CARD_BYTES):
            if header[start : start + 8] == "END     ":
                if header[start : start + CARD_BYTES].rstrip(" ") != "END":
                    raise make_damage_error(
                        f"{source.url}: the END card of the FITS header at byte {offset} holds "
                        "more than END, and readers disagree whether it ends there"
                    )
                # END may be the first card of a block: count blocks, not cards (section 4.4.1)
                return header[:start], len(header)
    raise FormatError(
        f"{source.url}: the FITS header at byte {offset} has no end; the file is damaged or "
        f"truncated, fetch it again"
    )


def _parse_cards(header: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values by keyword, and the reasons why keywords are ambiguous.

    Comments are joined as lines. Of other repeated keywords, the first one is used, as in astropy,
    unless it is the EXTNAME of fpack.
    """
    cards: dict[str, Any] = {}
    ambiguities = dict[str, str]()
    last, text = "", None
    for start in range(0, len(header), CARD_BYTES):
        card = header[start : start + CARD_BYTES].ljust(CARD_BYTES)
        name, value = card[:8].strip().upper(), card[10:]
        if start and name in FIRST_KEYWORDS:
            # sections 4.4.1.1 and 4.4.1.2: they occur only at the start of a header
            raise make_damage_error(
                f"FITS header: {name} occurs in card {start // CARD_BYTES + 1}, so END is missing "
                "before it"
            )
        if name == "CONTINUE" and text is not None and text[-1:] == "&":
            text = text[:-1]
            # a card may end within a pair of quotes, so replace pairs in the joined text
            split_quote = (len(text) - len(text.rstrip("'"))) % 2
            if (continued := _parse_string(value.strip()[split_quote:])) is not None:
                text += "'" * split_quote + continued
                cards[last] = _unquote(text)
        elif name in COMMENT_KEYWORDS:
            line = card[8:].rstrip()
            if name and line:
                cards[name] = f"{cards[name]}\n{line}" if name in cards else line
        elif (pair := _split_card(card)) is None:
            ambiguities[name] = NO_VALUE
        elif pair[0] not in cards or (pair[0] == "EXTNAME" and cards["EXTNAME"] == FPACK_NAME):
            last, value = pair
            text = _parse_string(value)
            cards[last] = _parse_value(value)
        else:
            text = None
            if pair[0] not in NAME_KEYWORDS:
                ambiguities[pair[0]] = DUPLICATE
    return {n: value for n, value in cards.items() if value is not None}, ambiguities


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


def select_attributes(cards: Mapping[str, Any], structure: re.Pattern[str]) -> dict[str, Any]:
    """Return the cards as attributes, without keywords that match ``structure``."""
    return {
        name: int(value) if isinstance(value, bool) else value
        for name, value in cards.items()
        if not structure.fullmatch(name)
    }


# ---------------------------------------------------------------------- axes


class AxisNames:
    """Names axes; axes of different lengths get different names.

    Parameters
    ----------
    prefix : str
        The start of the names, before the number of the axis, which is 1 for the last axis.

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
