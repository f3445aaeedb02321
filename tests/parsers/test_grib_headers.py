"""GRIB headers that are alike: keys that are shared are those of every message itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import Any

import eccodes
import numpy as np
import pytest
from products import few_quick
from transforms import assert_identical

import virtualds
from virtualds.parsers.grib import messages as grib_messages
from virtualds.parsers.grib.messages import MAX_HEADER as MAX_HOURS
from virtualds.parsers.grib.messages import SharedHeader, find_shared_header

Keys = Mapping[str, Any]
EPS = {"perturbationNumber": [0, 7], "numberOfForecastsInEnsemble": [51]}
PROBABILITY = {"probabilityType": [1, 2], "forecastProbabilityNumber": [2]}
DERIVED, PERCENTILE = {"derivedForecast": [1, 4]}, {"percentileValue": [50, 90]}
INSTANTS: dict[int, Keys] = {0: {}, 1: EPS, 2: DERIVED, 5: PROBABILITY, 6: PERCENTILE}
INTERVALS: dict[int, Keys] = {8: {}, 9: PROBABILITY, 10: PERCENTILE, 11: EPS, 12: DERIVED}
PRODUCTS = INSTANTS | INTERVALS
"""Keys of product definition templates, with the values that they are set to."""
OF_ALL: Keys = {
    "dataDate": [20000229, 19991231, 10101],
    "dataTime": [0, 600, 1830],
    "second": [30],
    "level": [500, 1],
    "typeOfFirstFixedSurface": [1, 103, 105, 106],
    "scaleFactorOfFirstFixedSurface": [2],
    "scaledValueOfSecondFixedSurface": [9],
    "parameterCategory": [1, 2, 3],
    "parameterNumber": [1, 8, 30],
    "discipline": [2, 10],
    "forecastTime": [3, 240],
    "indicatorOfUnitForForecastTime": [0, 2, 11, 13],
    "typeOfGeneratingProcess": [0, 4],
    "centre": ["kwbc", "edzw", "lfpw"],
    "subCentre": [2, 98],
    "tablesVersion": [4, 28, 34],
    "significanceOfReferenceTime": [0, 2],
    "productionStatusOfProcessedData": [2, 12],
    "typeOfProcessedData": [0, 3, 4],
    "packingType": ["grid_ieee", "grid_ccsds", "grid_complex", "grid_complex_spatial_differencing"],
    "bitsPerValue": [8],
    "decimalScaleFactor": [3],
    "bitmapPresent": [1],
    "iScansNegatively": [1],
    "jScansPositively": [1],
    "jPointsAreConsecutive": [1],
    "shapeOfTheEarth": [1],
    "uvRelativeToGrid": [1],
    "longitudeOfFirstGridPoint": [5_000_000],
}
OF_INTERVALS: Keys = {
    "typeOfStatisticalProcessing": [0, 2, 3],
    "lengthOfTimeRange": [3, 12],
    "indicatorOfUnitForTimeRange": [0, 11],
    "typeOfTimeIncrement": [1],
    "yearOfEndOfOverallTimeInterval": [2031],
    "monthOfEndOfOverallTimeInterval": [9],
    "dayOfEndOfOverallTimeInterval": [27],
    "hourOfEndOfOverallTimeInterval": [5],
}
LOCAL: dict[str, Keys] = {
    "no local section": {},
    "ECMWF": {"setLocalDefinition": 1, "localDefinitionNumber": 1},
    "ERA6": {"setLocalDefinition": 1, "localDefinitionNumber": 1, "marsClass": "e6"},
    "seasonal": {"setLocalDefinition": 1, "localDefinitionNumber": 16},
    "TIGGE": {"productionStatusOfProcessedData": 4},
}
OF_FIRST_EDITION: Keys = {
    "dataDate": [20000229, 19991231, 19000101, 20010101],
    "dataTime": [0, 600, 1830],
    "level": [500, 1],
    "indicatorOfTypeOfLevel": [1, 105, 109, 112],
    "indicatorOfParameter": [1, 129, 228],
    "table2Version": [3, 128, 200],
    "centre": ["kwbc", "edzw", 34],
    "subCentre": [98, 241],
    "P1": [3, 240],
    "P2": [6],
    "unitOfTimeRange": [0, 2, 11],
    "timeRangeIndicator": [0, 2, 3, 4, 10, 123],
    "numberIncludedInAverage": [4],
    "generatingProcessIdentifier": [7],
    "bitsPerValue": [8],
    "decimalScaleFactor": [3],
    "bitmapPresent": [1],
    "iScansNegatively": [1],
    "jScansPositively": [1],
    "jPointsAreConsecutive": [1],
    "latitudeOfFirstGridPoint": [59_000],
    "longitudeOfFirstGridPoint": [5_000],
}
FIRST_EDITION: dict[str, Keys] = {
    "plain": {"deleteLocalDefinition": 1},
    "ECMWF": {"localDefinitionNumber": 1},
    "member": {"localDefinitionNumber": 1, "perturbationNumber": 7},
    "monthly means": {"localDefinitionNumber": 1, "marsStream": "moda"},
}
PRODUCERS = [*product(PRODUCTS, ["no local section"]), *product([1, 8, 11], list(LOCAL)[1:])]
GRIDS = (
    "regular_ll_pl_grib2", "regular_gg_pl_grib2", "reduced_gg_pl_32_grib2",
    "polar_stereographic_pl_grib2",
)  # fmt: skip


FIRST_GRIDS = ("regular_ll_pl_grib1", "rotated_ll_pl_grib1", "polar_stereographic_pl_grib1")


def header(**keys: Any) -> bytes:
    """The header of a message made from a sample of ecCodes, as the parser reads it."""
    handle = eccodes.codes_grib_new_from_samples(keys.pop("sample", GRIDS[0]))
    try:
        for name, value in keys.items():
            eccodes.codes_set(handle, name, value)
        message = eccodes.codes_get_message(handle)
    finally:
        eccodes.codes_release(handle)
    return header_of(message)


def header_of(message: bytes) -> bytes:
    (found,) = grib_messages.scan_messages(BytesIO(message), len(message), eccodes, {})
    return found.header


def variants(first: Keys, tables: list[Keys]) -> Iterator[bytes]:
    """The header with the first keys, and those that differ from it in one key."""
    yield header(**first)
    for table in tables:
        for name, values in table.items():
            yield from (header(**{**first, name: value}) for value in values)


def alike_of(data: bytes) -> SharedHeader:
    found = find_shared_header(data)
    assert found is not None
    return found


def assert_shared_keys_are_its_own(data: bytes) -> dict[str, Any]:
    own = grib_messages._parse_keys(data, eccodes)
    assert grib_messages._read_keys(data, 0, eccodes) == own
    return own


# Each makes some hundred headers, and lets ecCodes read each of them twice: 3 s.
@pytest.mark.sampled(5)
@pytest.mark.parametrize("producer", few_quick(PRODUCERS, PRODUCERS[::6]))
def test_keys_are_those_of_each_message_whichever_key_differs(producer: tuple[int, str]) -> None:
    template, local = producer
    tables = [OF_ALL, PRODUCTS[template], OF_INTERVALS if template in INTERVALS else {}]
    first = {**LOCAL[local], "productDefinitionTemplateNumber": template}
    seen = [assert_shared_keys_are_its_own(data) for data in variants(first, tables)]
    assert sum(keys != seen[0] for keys in seen) > len(seen) // 2


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sample", FIRST_GRIDS)
@pytest.mark.parametrize("local", FIRST_EDITION)
def test_keys_of_edition_1_are_those_of_each_message(local: str, sample: str) -> None:
    first = {"sample": sample, **FIRST_EDITION[local]}
    seen, alike = [], set()
    for data in variants(first, [OF_FIRST_EDITION]):
        seen.append(assert_shared_keys_are_its_own(data))
        alike.add(alike_of(data).message)
    assert sum(keys != seen[0] for keys in seen) > len(seen) // 2
    # dates, bits and bitmaps leave no trace
    assert len(alike) <= len(seen) - 6


@pytest.mark.parametrize("sample", [*GRIDS, *FIRST_GRIDS])
def test_coordinates_are_those_of_each_grid(sample: str) -> None:
    first = header(sample=sample)
    for data in (first, header(sample=sample, dataDate=20200202, bitsPerValue=8)):
        field = grib_messages.GribField(0, 0, data, grib_messages._read_keys(data, 0, eccodes))
        found = grib_messages.read_coordinates(field, eccodes)
        own = grib_messages._parse_coordinates(data, eccodes)
        assert own.keys() == found.keys() == {"latitude", "longitude"}
        for name, values in own.items():
            np.testing.assert_array_equal(found[name], values)


@pytest.mark.parametrize("template", PRODUCTS)
def test_messages_of_other_days_are_alike(template: int) -> None:
    first = {"productDefinitionTemplateNumber": template}
    step = {"endStep": 12} if template in INTERVALS else {"forecastTime": 12}
    one = alike_of(header(**first, dataDate=20191231, **step))
    other = alike_of(header(**first, dataDate=20200229, **step))
    assert (one.day, other.day) == (20191231, 20200229)
    assert one[:2] == other[:2]


def test_messages_with_other_values_are_alike() -> None:
    handle = eccodes.codes_grib_new_from_samples(GRIDS[0])
    found = set()
    for seed in range(3):
        values = np.random.default_rng(seed).normal(280, 10**seed, 496)
        eccodes.codes_set_values(handle, values)
        found.add(alike_of(header_of(eccodes.codes_get_message(handle))))
    eccodes.codes_release(handle)
    assert len(found) == 1


@pytest.mark.parametrize("template", PRODUCTS)
def test_no_key_but_the_date_depends_on_bytes_that_are_left_out(template: int) -> None:
    data = header(productDefinitionTemplateNumber=template, bitsPerValue=8)
    own, first = grib_messages._parse_keys(data, eccodes), alike_of(data)
    checked = set()
    for place, value in product(range(len(data)), (1, 7, 255)):
        changed = data[:place] + bytes([value]) + data[place + 1 :]
        other = find_shared_header(changed) if changed != data else None
        if other is not None and other.message == first.message:
            keys = grib_messages._parse_keys(changed, eccodes)
            assert keys == {**own, "dataDate": other.day}
            checked.add(place)
    # the date, packing, and the end of the interval
    assert len(checked) == 4 + 10 + (4 if template in INTERVALS else 0)


NOT_ALIKE = {
    "a product template that is not known": {"productDefinitionTemplateNumber": 40},
    "an unknown local part of edition 1": {
        "sample": "regular_ll_pl_grib1",
        "localDefinitionNumber": 16,
    },
    "a Gaussian grid of edition 1": {"sample": "regular_gg_pl_grib1"},
    "a reduced grid of edition 1": {"sample": "reduced_gg_pl_32_grib1"},
    "spherical harmonics": {"sample": "sh_pl_grib1"},
}


@pytest.mark.parametrize("name", NOT_ALIKE)
def test_other_messages_are_parsed_each(name: str) -> None:
    data = header(**NOT_ALIKE[name])
    assert find_shared_header(data) is None
    assert_shared_keys_are_its_own(data)


def test_damaged_and_long_headers_are_not_alike() -> None:
    data = header()
    assert find_shared_header(data) is not None
    for place, value in {28: 0xFF, 30: 13, 31: 32, 19: 22, 20: 2, 16: 1, 37 + 4: 9}.items():
        assert find_shared_header(data[:place] + bytes([value]) + data[place + 1 :]) is None
    for length in range(len(data) - 15):
        assert find_shared_header(data[:length]) is None
    assert find_shared_header(data + bytes(MAX_HOURS)) is None


def test_a_section_that_says_more_than_it_has_room_for_shares_nothing() -> None:
    data = header(productDefinitionTemplateNumber=8)
    number = data.index((58).to_bytes(4, "big") + b"\4") + 41
    assert data[number] == 1
    # three intervals where one has room: the rest is read from section 5
    for packing in (0, 1, 2):
        damaged = bytearray(data)
        damaged[number], damaged[-15 - 21 + 11] = 3, packing
        assert find_shared_header(bytes(damaged)) is not None
        assert_shared_keys_are_its_own(bytes(damaged))


def test_other_packings_and_dates_of_edition_1_are_not_alike() -> None:
    data = header(sample="regular_ll_pl_grib1")
    values = 8 + 52 + 32
    assert data[values : values + 3] == (12).to_bytes(3, "big")
    assert find_shared_header(data) is not None
    # the date, no grid, a local part and a grid that are not known; spherical harmonics
    impossible = {20: 101, 21: 13, 22: 32, 32: 0, 15: 0, 48: 9, 8 + 52 + 5: 50}
    for place, value in {values + 3: 0x88, **impossible}.items():
        assert find_shared_header(data[:place] + bytes([value]) + data[place + 1 :]) is None


def write_days(folder: Path, sample: str, template: int) -> list[Path]:
    paths = [folder / f"{sample}{template}{day}.grib" for day in range(1, 5)]
    for day, path in enumerate(paths, 1):
        handle = eccodes.codes_grib_new_from_samples(sample)
        if sample.endswith("grib2"):
            eccodes.codes_set(handle, "productDefinitionTemplateNumber", template)
        eccodes.codes_set(handle, "dataDate", 20200300 + day)
        count = eccodes.codes_get_size(handle, "values")
        eccodes.codes_set_values(handle, np.random.default_rng(day).normal(280, 9, count))
        path.write_bytes(eccodes.codes_get_message(handle))
        eccodes.codes_release(handle)
    return paths


SERIES = [*product(GRIDS, (0, 8)), ("regular_ll_pl_grib1", 0), ("reduced_gg_pl_32_grib1", 0)]


@pytest.mark.parametrize(("sample", "template"), SERIES)
def test_a_series_is_the_same_with_and_without_what_is_kept(
    sample: str, template: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_days(tmp_path, sample, template)
    found = virtualds.open_virtual_mfdataset(paths, concat_dim="time", combine="nested")
    monkeypatch.setattr(grib_messages, "find_shared_header", lambda data: None)
    expected = virtualds.open_virtual_mfdataset(paths, concat_dim="time", combine="nested")
    assert_identical(found, expected)
    assert found.sizes["time"] == len(paths)
    np.testing.assert_array_equal(found.time.dt.day, range(1, 5))


def test_files_of_one_grid_share_coordinates_that_nobody_can_write_to(tmp_path: Path) -> None:
    one, other = (
        virtualds.open_virtual_dataset(path)
        for path in write_days(tmp_path, "polar_stereographic_pl_grib2", 0)[:1] * 2
    )
    assert np.shares_memory(one.latitude.values, other.latitude.values)
    before = float(one.latitude[0, 0])
    with pytest.raises(ValueError, match="read-only"):
        one.latitude.values[0, 0] = -1
    # what xarray makes of them is the user's own
    mine = one.copy(deep=True)
    mine.latitude.values[0, 0] = -1
    assert mine.latitude[0, 0] == -1 and (one.load().latitude * 2)[0, 0] == 2 * before
    changed = one.assign_coords(latitude=one.latitude + 1)
    assert changed.latitude[0, 0] == before + 1
    assert one.latitude[0, 0] == other.latitude[0, 0] == before
