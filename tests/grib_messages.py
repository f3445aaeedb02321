"""GRIB files, made of samples of ecCodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import eccodes
import numpy as np

MISSING = 9999.0


def message(sample: str, seed: int = 0, holes: bool = False, **keys: Any) -> bytes:
    """A message made from one of ecCodes' samples, with random values."""
    handle = eccodes.codes_grib_new_from_samples(sample)
    try:
        for name, value in keys.items():
            eccodes.codes_set(handle, name, value)
        count = keys.get("Ni", 0) * keys.get("Nj", 0) or eccodes.codes_get_size(handle, "values")
        if sample.endswith("grib2"):
            eccodes.codes_set(handle, "numberOfDataPoints", count)
        values = np.random.default_rng(seed).normal(280, 9, count)
        if holes:
            eccodes.codes_set(handle, "missingValue", MISSING)
            eccodes.codes_set(handle, "bitmapPresent", 1)
            values[::5] = MISSING
        eccodes.codes_set_values(handle, values)
        found: bytes = eccodes.codes_get_message(handle)
        return found
    finally:
        eccodes.codes_release(handle)


def join_fields(messages: Sequence[bytes], repeated: Sequence[int] = (4, 5, 6, 7)) -> bytes:
    """One message of edition 2 with the fields of several, which share the other sections."""
    body = messages[0][16:-4]
    for one in messages[1:]:
        sections = split_sections(one)
        body += b"".join(sections[n] for n in repeated)
    return messages[0][:8] + (len(body) + 20).to_bytes(8, "big") + body + b"7777"


def split_sections(one: bytes) -> dict[int, bytes]:
    """The sections of a message with one field."""
    inside, found = 16, {}
    while one[inside : inside + 4] != b"7777":
        length = int.from_bytes(one[inside : inside + 4], "big")
        found[one[inside + 4]] = one[inside : inside + length]
        inside += length
    return found


SMALL: dict[str, Any] = {
    "Ni": 12, "Nj": 7, "latitudeOfFirstGridPointInDegrees": 60.0,
    "latitudeOfLastGridPointInDegrees": 30.0, "longitudeOfFirstGridPointInDegrees": 0.0,
    "longitudeOfLastGridPointInDegrees": 55.0, "iDirectionIncrementInDegrees": 5.0,
    "jDirectionIncrementInDegrees": 5.0,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A file of messages: all combinations of some keys, but for those left out."""

    sample: str = "regular_ll_pl_grib2"
    keys: Mapping[str, Any] = field(default_factory=lambda: SMALL)
    over: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    without: frozenset[int] = frozenset()
    holes: bool = False
    between: bytes = b""

    def write(self, path: Path) -> Path:
        with path.open("wb") as file:
            for number, values in enumerate(product(*self.over.values())):
                if number not in self.without:
                    keys = {**self.keys, **dict(zip(self.over, values, strict=True))}
                    file.write(message(self.sample, number, self.holes, **keys) + self.between)
        return path


SPREAD = {"shortName": ["t"], "level": [500, 850, 1000], "step": [0, 6, 12]}

CASES = {
    "one message": Case(),
    "edition 1": Case("regular_ll_pl_grib1"),
    "levels": Case(over={"level": [1000, 500, 850]}),
    "levels and steps": Case(over=SPREAD),
    "levels and steps of edition 1": Case("regular_ll_pl_grib1", over=SPREAD),
    "days and hours": Case(over={"dataDate": [20200101, 20200102], "dataTime": [0, 600, 1830]}),
    "several parameters": Case(over={"shortName": ["t", "u", "q"], "level": [500, 850]}),
    "messages that are not there": Case(over=SPREAD, without=frozenset({1, 5})),
    "missing values": Case(over={"level": [500, 850]}, holes=True),
    "missing values of edition 1": Case("regular_ll_pl_grib1", holes=True),
    "surface": Case("regular_ll_sfc_grib2", over={"step": [0, 3]}),
    "bytes between": Case(over={"level": [500, 850]}, between=b"\0" * 37),
    "southwards": Case(
        keys={
            **SMALL, "jScansPositively": 1, "latitudeOfFirstGridPointInDegrees": 30.0,
            "latitudeOfLastGridPointInDegrees": 60.0,
        }
    ),
    "gaussian": Case("regular_gg_pl_grib2", {}, {"level": [500, 850]}),
    "reduced gaussian": Case("reduced_gg_pl_32_grib2", {}, {"level": [500, 850]}),
    "polar": Case("polar_stereographic_pl_grib2", {}),
    "reduced gaussian of edition 1": Case("reduced_gg_pl_32_grib1", {}),
    **{
        f"packed by {packing}": Case(keys={**SMALL, "packingType": packing})
        for packing in (
            "grid_ccsds", "grid_jpeg", "grid_ieee", "grid_second_order", "grid_complex",
            "grid_complex_spatial_differencing",
        )
    },
}  # fmt: skip
