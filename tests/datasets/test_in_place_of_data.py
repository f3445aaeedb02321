"""Every parser reports empty files and pages of servers as such."""

from __future__ import annotations

from pathlib import Path

import pytest
from counting_server import counting_server

import virtualds
from virtualds.datasets.location import READERS
from virtualds.errors import FormatError

CONTENTS = {
    "empty": (b"", r"the file is empty\nfetch it again"),
    "a page": (
        b"<!DOCTYPE html>\n<html><body>Log in</body></html>",
        "(?s)an HTML page.*storage_opt",
    ),
    "a page without a type": (b"\xef\xbb\xbf\n <HTML><head>", "an HTML page"),
    "an error": (b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an XML doc"),
    "an error without a head": (b"<Error><Code>NoSuchKey</Code></Error>", "an XML document"),
}
contents = pytest.mark.parametrize("content", CONTENTS)


@pytest.mark.sampled(3)
@contents
@pytest.mark.parametrize("name", ["a.nc", "a.grib2", "a.json", "a.zarr", "a.parquet", "a.zip", "a"])
def test_a_page_in_place_of_data_is_named_in_the_error(
    name: str, content: str, tmp_path: Path
) -> None:
    raw, message = CONTENTS[content]
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(FormatError, match=message):
        virtualds.open_virtual_dataset(tmp_path / name)


@pytest.mark.sampled(3)
@contents
@pytest.mark.parametrize("parser", [reader.name for reader in READERS if reader.name != "icechunk"])
def test_every_named_parser_names_a_page_in_place_of_data(
    parser: str, content: str, tmp_path: Path
) -> None:
    raw, message = CONTENTS[content]
    (tmp_path / "a").write_bytes(raw)
    with pytest.raises(FormatError, match=message):
        virtualds.open_virtual_dataset(tmp_path / "a", parser=parser)


@contents
def test_a_page_in_place_of_data_on_a_server_is_named(content: str, tmp_path: Path) -> None:
    raw, message = CONTENTS[content]
    (tmp_path / "a.nc").write_bytes(raw)
    with counting_server(tmp_path) as (url, _), pytest.raises(FormatError, match=message):
        virtualds.open_virtual_dataset(f"{url}/a.nc")
