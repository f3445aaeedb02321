"""Members of zip archives decode as Python's zipfile reads them, whoever wrote them."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from effort import times
from hypothesis import given, settings
from hypothesis import strategies as st
from products import looped

from virtualds.codecs import codec_from_zarr_v2, codec_from_zarr_v3
from virtualds.codecs.codec import CodecError
from virtualds.codecs.zlib import HEADER, MAGIC, STORED, ZipMember

DATA = np.arange(5000, dtype="i4").tobytes()


class Pipe:
    """A file that cannot seek, so checksums stand behind the data."""

    def __init__(self, file: io.BytesIO) -> None:
        self.write, self.flush = file.write, file.flush


def member(data: bytes, method: int, streamed: bool = False, zip64: bool = False) -> bytes:
    """Return a member with its header, and with what stands behind the data."""
    buffer = io.BytesIO()
    target: Any = Pipe(buffer) if streamed else buffer
    with zipfile.ZipFile(target, "w", method) as archive:
        with archive.open("a", "w", force_zip64=zip64) as file:
            file.write(data)
        end = archive.start_dir
    return buffer.getvalue()[:end]


METHODS = {"stored": zipfile.ZIP_STORED, "deflated": zipfile.ZIP_DEFLATED}


def test_a_member_may_be_no_more_than_its_header() -> None:
    codec = ZipMember(0)
    empty = HEADER.pack(MAGIC, 0, STORED, 0, 0, 0, 0, 0)
    assert bytes(codec.decode(empty, 0)) == b""
    with pytest.raises(CodecError, match="begins no member"):
        codec.decode(empty[:-1], 0)


@looped("zip64", [False, True])
@looped("streamed", [False, True])
@looped("method", METHODS)
@looped("data", [b"", b"abc", DATA, np.random.default_rng(1).bytes(70_000)])
@looped("skip", [0, 2])
def test_members_decode_to_what_was_written(
    skip: int, data: bytes, method: str, streamed: bool, zip64: bool
) -> None:
    entry, values = member(data, METHODS[method], streamed, zip64), data[skip:]
    codec = ZipMember(skip)
    if len(data) >= skip:
        assert bytes(codec.decode(entry, len(values))) == values
        assert bytes(codec.decode(entry + b"PK\1\2 and more", len(values))) == values
    if method == "stored" and streamed:
        with pytest.raises(CodecError, match="list of members"):
            codec.decode(entry, None)
    else:
        assert bytes(codec.decode(entry, None)) == values
    with pytest.raises(CodecError):
        codec.decode(entry, len(values) + 1)


def test_its_names_and_configuration_survive() -> None:
    codec = ZipMember(128)
    assert codec_from_zarr_v2(json.loads(json.dumps(codec.to_zarr_v2()))) == codec
    entry = codec.to_zarr_v3(4)
    assert entry["name"] == "virtualds.zip_member"
    assert codec_from_zarr_v3(entry["name"], entry["configuration"], np.dtype("i4")) == codec
    with pytest.raises(ValueError, match="-1 bytes"):
        ZipMember(-1)


def test_members_of_other_methods_are_refused_by_their_number() -> None:
    with pytest.raises(CodecError, match="method 12"):
        ZipMember().decode(member(DATA, zipfile.ZIP_BZIP2), len(DATA))


SOUND = [
    member(DATA[:900], method, streamed)
    for method in METHODS.values()
    for streamed in (False, True)
]


@settings(max_examples=times(133))
@given(st.data())
def test_damaged_members_are_errors_or_decode_to_the_same(data: st.DataObject) -> None:
    raw = bytearray(data.draw(st.sampled_from(SOUND)))
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    raw = raw[: data.draw(st.integers(0, len(raw)) | st.just(len(raw)))]
    try:
        found = ZipMember().decode(bytes(raw), data.draw(st.sampled_from([None, 900])))
    except CodecError as error:
        assert "zip_member" in str(error)
    else:
        assert bytes(found) == DATA[:900]


def test_a_member_that_swells_is_stopped() -> None:
    bomb = member(bytes(2**24), zipfile.ZIP_DEFLATED)
    with pytest.raises(CodecError, match="more than the expected 1000"):
        ZipMember().decode(bomb, 1000)


def test_real_archives_decode_as_zipfile_reads_them(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", a=np.arange(9), b=np.zeros(10**5))
    data = (tmp_path / "a.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        for info in archive.infolist():
            assert bytes(ZipMember().decode(data[info.header_offset :], None)) == archive.read(info)
