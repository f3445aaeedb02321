"""The parser for ENVI that the docs show, installed as a package, and scenes for it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "adding-a-parser.md"
[CODE] = (
    code
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    if "ENVI" in code
)
BANDS, LINES, SAMPLES = 3, 4, 5
SHAPES = {
    "bsq": ("band", "y", "x"),
    "bil": ("y", "band", "x"),
    "bip": ("y", "x", "band"),
}
"""Axes by interleave (ENVI Header Files, "interleave")."""
SIZES = {"band": BANDS, "y": LINES, "x": SAMPLES}
CODES = {
    1: "u1", 2: "i2", 3: "i4", 4: "f4", 5: "f8", 6: "c8", 9: "c16", 12: "u2", 13: "u4", 14: "i8",
    15: "u8",
}  # fmt: skip
"""Types by number (ENVI Header Files, "data type")."""


def install(site: Path) -> None:
    """Install the parser of the page into a folder, as a package of its own."""
    dist = site / "envi_parser-1.0.dist-info"
    dist.mkdir(parents=True)
    (site / "envi_parser.py").write_text(CODE)
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: envi-parser\nVersion: 1.0\n")
    (dist / "entry_points.txt").write_text("[virtualds.parsers]\nenvi = envi_parser:parser\n")


def written(
    folder: Path, interleave: str, code: int, order: int, more: str = ""
) -> npt.NDArray[Any]:
    """Write ``scene.hdr`` and ``scene.dat``; give the values in the order of the bands."""
    dims = SHAPES[interleave]
    dtype = np.dtype(CODES[code]).newbyteorder("<>"[order])
    values = np.arange(BANDS * LINES * SAMPLES).reshape([SIZES[d] for d in dims]).astype(dtype)
    (folder / "scene.dat").write_bytes(bytes(7) + values.tobytes())
    (folder / "scene.hdr").write_text(
        f"ENVI\ndescription = {{\n  two\n  lines}}\nsamples = {SAMPLES}\nlines   = {LINES}\n"
        f"bands   = {BANDS}\nheader offset = 7\nfile type = ENVI Standard\ndata type = {code}\n"
        f"interleave = {interleave}\nbyte order = {order}\n{more}"
    )
    return values
