"""GRIB files, made of samples of ecCodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import eccodes
import numpy as np

MISSING = 9999.0


def message(
    sample: str, seed: int = 0, holes: bool = False, constant: float | None = None, **keys: Any
) -> bytes:
    """A message made from one of ecCodes' samples, with random values or one value."""
    handle = eccodes.codes_grib_new_from_samples(sample)
    try:
        for name, value in keys.items():
            eccodes.codes_set(handle, name, value)
        count = keys.get("Ni", 0) * keys.get("Nj", 0) or eccodes.codes_get_size(handle, "values")
        if sample.endswith("grib2"):
            eccodes.codes_set(handle, "numberOfDataPoints", count)
        values = np.random.default_rng(seed).normal(280, 9, count)
        if constant is not None:
            values[:] = constant
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
ONE_ROW = {**SMALL, "Nj": 1, "latitudeOfLastGridPointInDegrees": 60.0}
ONE_POINT = {**ONE_ROW, "Ni": 1, "longitudeOfLastGridPointInDegrees": 0.0}


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
    "one point": Case(keys=ONE_POINT, over={"dataDate": [20200101, 20200102], "step": [0, 6]}),
    "one row": Case(keys=ONE_ROW, over={"step": [0, 6]}),
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


# ---------------------------------------------------------------------- indexes

PARAMETERS = {
    "t": "TMP", "u": "UGRD", "v": "VGRD", "w": "VVEL", "tp": "APCP", "2t": "TMP", "10u": "UGRD",
}  # fmt: skip
LEVELS = {
    "isobaricInhPa": "{} mb", "heightAboveGround": "{} m above ground", "surface": "surface",
}  # fmt: skip
INTERVALS = {"accum": "acc", "max": "max", "avg": "ave"}
UNITS = {0: "min", 1: "hour"}


def list_messages(path: Path) -> list[tuple[int, int, dict[str, Any]]]:
    """Offset, length and keys of each field, as ecCodes tells them."""
    texts = ("shortName", "typeOfLevel", "stepType", "stepRange", "dataType")
    numbers = (
        *("level", "dataDate", "dataTime", "perturbationNumber", "startStep", "endStep"),
        *("typeOfEnsembleForecast", "indicatorOfUnitOfTimeRange"),
    )
    found = []
    eccodes.codes_grib_multi_support_on()
    try:
        with path.open("rb") as file:
            while (handle := eccodes.codes_grib_new_from_file(file)) is not None:
                keys = {n: eccodes.codes_get(handle, n, str) for n in texts}
                for name in numbers:
                    if eccodes.codes_is_defined(handle, name):
                        keys[name] = eccodes.codes_get(handle, name, int)
                at = eccodes.codes_get_message_offset(handle)
                found.append((at, eccodes.codes_get(handle, "totalLength", int), keys))
                eccodes.codes_release(handle)
    finally:
        eccodes.codes_grib_multi_support_off()
    return found


def write_wgrib2_index(path: Path) -> Path:
    """Write the index of a file as ``wgrib2 a.grib2 > a.grib2.idx`` does."""
    found = list_messages(path)
    offsets = [at for at, *_ in found]
    lines = []
    for at, _, keys in found:
        number = str(sorted(set(offsets)).index(at) + 1)
        if offsets.count(at) > 1:
            number += f".{[o for o, *_ in found[: len(lines) + 1]].count(at)}"
        date = f"d={keys['dataDate']}{keys['dataTime'] // 100:02}"
        level = LEVELS[keys["typeOfLevel"]].format(keys["level"])
        told = [number, at, date, PARAMETERS[keys["shortName"]], level, _tell_step(keys)]
        if "perturbationNumber" in keys:
            number = keys["perturbationNumber"]
            told.append(f"ENS=+{number}" if number else "ENS=low-res ctl")
        lines.append(":".join(map(str, told)) + ("" if "perturbationNumber" in keys else ":"))
    index = path.with_name(f"{path.name}.idx")
    index.write_text("\n".join(lines) + "\n")
    return index


def _tell_step(keys: dict[str, Any]) -> str:
    """The step as wgrib2 writes it: whole days as days."""
    start, end = keys["startStep"], keys["endStep"]
    unit = UNITS[keys["indicatorOfUnitOfTimeRange"]]
    if keys["stepType"] == "instant":
        return f"{end} {unit} fcst" if end else "anl"
    if unit == "hour" and start % 24 == end % 24 == 0:
        start, end, unit = start // 24, end // 24, "day"
    return f"{start}-{end} {unit} {INTERVALS[keys['stepType']]} fcst"


def write_ecmwf_index(path: Path) -> Path:
    """Write the index of a file as those of ECMWF's open data are."""
    lines = []
    for at, length, keys in list_messages(path):
        told = {
            "domain": "g", "date": str(keys["dataDate"]), "time": f"{keys['dataTime']:04}",
            "type": keys["dataType"], "stream": "oper", "step": keys["stepRange"],
            "levtype": "sfc" if keys["typeOfLevel"] == "surface" else "pl",
            "param": keys["shortName"], "_offset": at, "_length": length,
        }  # fmt: skip
        if told["levtype"] == "pl":
            told["levelist"] = str(keys["level"])
        if "perturbationNumber" in keys:
            told["number"] = str(keys["perturbationNumber"])
        lines.append(json.dumps(told))
    index = path.with_suffix(".index")
    index.write_text("\n".join(lines) + "\n")
    return index
