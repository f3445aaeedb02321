"""DMR++ sidecars: what they say of files is what the files' own libraries read."""

from __future__ import annotations

import base64
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from cases import CASES, netcdf, numbers
from counting_server import CountingHandler, counting_server
from products import looped
from sidecars import DMRPP, document, write_sidecar

import virtualds
from virtualds import AccessError, FormatError, ReadError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")
REFUSALS = pytest.mark.filterwarnings(
    "ignore:.*could not be read:UserWarning", "ignore:WARNING. variable:UserWarning"
)

UNDESCRIBED = {
    "every_float": "netCDF does not survive numbers of half precision",
    "complex_numbers": "build_dmrpp knows no compound types of HDF5 but as structures",
    "links": "build_dmrpp does not follow links to other files",
    "external_files": "build_dmrpp refuses values in other files",
    "virtual_datasets": "the same",
    "virtual_datasets_that_references_cannot_hold": "the same",
    "integers_of_odd_precision": "a sidecar says nothing of bits that a number does not use",
    "shorter_without_any_fill": "where a writer switched filling off, netCDF makes up values",
}
REFUSED = {
    *("scaleoffset", "nbit", "filters_of_plugins", "filters_of_netcdf"),
    *("compound_types_within_others", "opaque_types", "bitfields"),
    # HDF5's own list of the chunks, which build_dmrpp takes, has them in wrong places
    *(f"chunk_index_{axis}_axis_unlimited" for axis in ("second", "middle", "last")),
    *(f"chunk_index_second_axis_unlimited_{kind}" for kind in ("filtered", "sparse")),
}
"""Cases with variables that no sidecar describes rightly."""
DESCRIBED = sorted(
    name for name, case in CASES.items() if case.source == "hdf5" and name not in UNDESCRIBED
)


def compare(found: xr.Dataset, native: xr.Dataset) -> None:
    xr.testing.assert_identical(found, native)
    for name, variable in native.variables.items():
        assert found[name].dtype == variable.dtype, name
        for key, value in variable.attrs.items():
            assert np.asarray(found[name].attrs[key]).dtype == np.asarray(value).dtype, (name, key)


@pytest.mark.sampled(3)
@REFUSALS
@pytest.mark.parametrize("name", DESCRIBED)
@pytest.mark.parametrize("decodes", [True, False], ids=["decoded", "stored"])
def test_a_sidecar_shows_what_the_native_library_reads(
    tmp_path: Path, name: str, decodes: bool
) -> None:
    case = CASES[name]
    case.write(tmp_path / "a.nc")
    sidecar = write_sidecar(tmp_path / "a.nc")
    native = case.native(tmp_path / "a.nc", decode_cf=decodes)
    found = virtualds.open_virtual_dataset(
        sidecar, group=case.group, decode_cf=decodes, on_error="skip"
    )
    refused = set(native.variables) - set(found.variables)
    compare(found.load(), native.drop_vars(refused))
    assert (refused != set()) == (name in REFUSED), refused


@pytest.mark.parametrize("name", ["filters_of_netcdf", "scaleoffset"])
def test_what_a_sidecar_does_not_say_is_refused_by_name(tmp_path: Path, name: str) -> None:
    CASES[name].write(tmp_path / "a.nc")
    sidecar = write_sidecar(tmp_path / "a.nc")
    with pytest.raises(UnsupportedError, match=r"variable '\w+' of .*\n?.*open the file itself"):
        virtualds.open_virtual_dataset(sidecar)


@pytest.fixture
def forest(tmp_path: Path) -> Path:
    """Groups that share dimensions of groups above them."""
    with netcdf(tmp_path / "a.nc", time=3, x=4) as file:
        file.title = "forest"
        file.createVariable("time", "f8", ("time",))[:] = [0, 1, 2]
        file["time"].units = "days since 2001-01-01"
        group = file.createGroup("model")
        group.createDimension("y", 5)
        v = group.createVariable("t", "i2", ("time", "y", "x"), zlib=True, chunksizes=(1, 5, 4))
        v.scale_factor = np.float32(0.1)
        v[:] = np.arange(60).reshape(3, 5, 4) / 10
        group.createGroup("run").createVariable("w", "f4", ("y",))[:] = np.arange(5)
    return write_sidecar(tmp_path / "a.nc")


def test_groups_are_a_tree_with_the_dimensions_above_them(forest: Path) -> None:
    native = xr.open_datatree(forest.with_suffix(""), engine="netcdf4").load()
    xr.testing.assert_identical(virtualds.open_virtual_datatree(forest).load(), native)
    found = virtualds.open_virtual_dataset(forest, group="model/run").load()
    xr.testing.assert_identical(
        found, xr.open_dataset(forest.with_suffix(""), group="model/run", engine="netcdf4").load()
    )
    with pytest.raises(FileNotFoundError, match="there is no 'models'"):
        virtualds.open_virtual_dataset(forest, group="models")


def test_a_remote_sidecar_is_read_without_its_file(forest: Path) -> None:
    with counting_server(forest.parent) as (url, counts):
        found = virtualds.open_virtual_datatree(
            f"{url}/a.nc.dmrpp", loadable_variables=[], decode_cf=False
        )
        assert counts.of("a.nc") == 0
        assert counts.of("a.nc.dmrpp") <= 2
        assert found["model/t"].values.shape == (3, 5, 4)
        assert counts.of("a.nc") > 0


def test_many_sidecars_are_combined_and_written_as_references(tmp_path: Path) -> None:
    for year in range(3):
        with netcdf(tmp_path / f"{year}.nc", time=2, x=4) as file:
            file.createVariable("time", "i4", ("time",))[:] = [2 * year, 2 * year + 1]
            file.createVariable("t", "f4", ("time", "x"), zlib=True)[:] = numbers(2, 4, seed=year)
        write_sidecar(tmp_path / f"{year}.nc")
    sidecars = sorted(tmp_path.glob("*.dmrpp"))
    combined = virtualds.open_virtual_mfdataset(sidecars, combine="by_coords", decode_cf=False)
    combined.virtual.to_manifest(tmp_path / "all.zarr")
    found = xr.open_dataset(tmp_path / "all.zarr", engine="virtual", decode_cf=False).load()
    files = sorted(tmp_path.glob("?.nc"))
    natives = [xr.open_dataset(file, engine="netcdf4", decode_cf=False).load() for file in files]
    xr.testing.assert_identical(found, xr.concat(natives, "time"))


# ---------------------------------------------------------------------- the file it describes


def one(chunks: str, kind: str = "Int16", dims: str = '<Dim size="4"/>', more: str = "") -> str:
    return document(f'<{kind} name="v">{dims}{more}{chunks}</{kind}>')


CONTIGUOUS = '<dmrpp:chunks byteOrder="LE"><dmrpp:chunk offset="2" nBytes="8"/></dmrpp:chunks>'


def named(href: str) -> str:
    return one(CONTIGUOUS).replace("dmrVersion=", f'dmrpp:href="{href}" dmrVersion=')


def opened(path: Path, text: str, **how: Any) -> xr.Dataset:
    path.write_text(text, encoding="utf-8")
    return virtualds.open_virtual_dataset(path, **how)


@pytest.mark.parametrize(
    ("href", "place"),
    [
        ("", "a.bin"),
        ("OPeNDAP_DMRpp_DATA_ACCESS_URL", "a.bin"),
        ("other.bin", "other.bin"),
        ("inner/b.bin", "inner/b.bin"),
    ],
)
def test_the_file_lies_beside_the_sidecar_or_where_it_says(
    tmp_path: Path, href: str, place: str
) -> None:
    target = tmp_path / place
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(b"xx" + np.arange(4, dtype="<i2").tobytes())
    assert opened(tmp_path / "a.bin.dmrpp", named(href))["v"].values.tolist() == [0, 1, 2, 3]


def test_a_file_beside_the_sidecar_is_found_where_the_path_is_of_another_machine(
    tmp_path: Path,
) -> None:
    data = b"xx" + np.arange(4, dtype="<i2").tobytes()
    (tmp_path / "a.bin").write_bytes(data)
    (tmp_path / "other.bin").write_bytes(data)
    sidecar = tmp_path / "a.bin.dmrpp"
    assert opened(sidecar, named("data/dmrpp/a.bin"))["v"].values.tolist() == [0, 1, 2, 3]
    with counting_server(tmp_path) as (url, _):
        found = virtualds.open_virtual_dataset(f"{url}/{sidecar.name}")
        assert found["v"].values.tolist() == [0, 1, 2, 3]
    # a file of another name is another file
    with pytest.raises(ReadError, match=r"data/dmrpp/other\.bin"):
        opened(sidecar, named("data/dmrpp/other.bin"))["v"].load()
    there = tmp_path / "data/dmrpp/a.bin"
    there.parent.mkdir(parents=True)
    there.write_bytes(b"xx" + np.full(4, 7, "<i2").tobytes())
    assert opened(sidecar, named("data/dmrpp/a.bin"))["v"].values.tolist() == [7, 7, 7, 7]


def test_namespaces_with_https_are_those_with_http(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"xx" + np.arange(4, dtype="<i2").tobytes())
    text = named("a.bin").replace("http://xml.opendap.org", "https://xml.opendap.org")
    assert opened(tmp_path / "a.bin.dmrpp", text)["v"].values.tolist() == [0, 1, 2, 3]


def test_numbers_without_a_byte_order_are_little_endian_with_one_warning(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"xx" + np.arange(4, dtype="<i2").tobytes())
    text = named("a.bin").replace(' byteOrder="LE"', "")
    text = text.replace("</Dataset>", one(CONTIGUOUS).split("\n")[2].replace('"v"', '"w"'))
    text = text.replace(' byteOrder="LE"', "") + "</Dataset>"
    with pytest.warns(UserWarning, match=r"a\.dmrpp: the sidecar .*byte order.* \(v, w\)") as seen:
        found = opened(tmp_path / "a.dmrpp", text)
    assert len(seen) == 1
    assert found["v"].values.tolist() == [0, 1, 2, 3]
    # bytes have no order
    opened(tmp_path / "b.dmrpp", text.replace("Int16", "Int8").replace('nBytes="8"', 'nBytes="4"'))


def test_a_grid_of_chunks_that_is_almost_empty_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before memory is taken for a table of all chunks."""
    monkeypatch.setattr("virtualds.bounds.MAX_CHUNKS", 100)
    sizes = "<dmrpp:chunkDimensionSizes>1</dmrpp:chunkDimensionSizes>"
    chunk = '<dmrpp:chunk offset="0" nBytes="2" chunkPositionInArray="[5]"/>'
    chunks = f'<dmrpp:chunks byteOrder="LE">{sizes}{chunk}</dmrpp:chunks>'
    with pytest.raises(UnsupportedError, match="the sidecar: a grid of 100000 chunks"):
        opened(tmp_path / "a.dmrpp", one(chunks, dims='<Dim size="100000"/>'))


def test_a_sidecar_of_another_name_says_what_its_file_is_called(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"xx" + np.arange(4, dtype="<i2").tobytes())
    text = one(CONTIGUOUS).replace("dmrVersion=", 'name="/somewhere/a.bin" dmrVersion=')
    assert opened(tmp_path / "a.xml", text)["v"].values.tolist() == [0, 1, 2, 3]


def test_a_sidecar_is_never_taken_for_the_file_that_it_describes(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"xx" + np.arange(4, dtype="<i2").tobytes())
    for text in (one(CONTIGUOUS), named("OPeNDAP_DMRpp_DATA_ACCESS_URL")):
        for name in ("a.xml", "A.BIN.xml"):
            with pytest.raises(
                FormatError, match=r"'v' of .*\.xml: the sidecar does not say which"
            ):
                opened(tmp_path / name, text)
        with pytest.raises(FormatError, match="which file it describes"):
            virtualds.open_virtual_dataset(text.encode())
        assert opened(tmp_path / "a.bin.DMRPP", text)["v"].values.tolist() == [0, 1, 2, 3]
    with pytest.raises(FormatError, match="which file it describes"):
        opened(tmp_path / "a.bin.dmrpp", named("a.bin.dmrpp"))


def test_a_sidecar_on_a_server_finds_a_file_whose_name_is_encoded(tmp_path: Path) -> None:
    for name in ("my file.h5", "a+b.h5", "a#b?.h5", "ü.h5"):
        (tmp_path / name).write_bytes(b"xx" + np.arange(4, dtype="<i2").tobytes())
        for href in (f"data/{name}", "OPeNDAP_DMRpp_DATA_ACCESS_URL"):
            (tmp_path / f"{name}.dmrpp").write_text(named(href), encoding="utf-8")
            with counting_server(tmp_path) as (url, _):
                for query in ("", "?token=1"):
                    found = virtualds.open_virtual_dataset(f"{url}/{quote(name)}.dmrpp{query}")
                    assert found["v"].values.tolist() == [0, 1, 2, 3]


class Unlisted(CountingHandler):
    """A server that refuses files that are not there, as S3 does to those who may not list."""

    def send_error(self, code: int, *args: Any, **more: Any) -> None:
        super().send_error(403 if code == 404 else code, *args, **more)


def test_a_file_beside_the_sidecar_is_found_where_absent_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.bin.dmrpp").write_text(named("data/dmrpp/a.bin"))
    with counting_server(tmp_path, Unlisted) as (url, _):
        with pytest.raises(ReadError, match=r"data/dmrpp/a\.bin"):
            virtualds.open_virtual_dataset(f"{url}/a.bin.dmrpp")["v"].load()
        (tmp_path / "a.bin").write_bytes(b"xx" + np.arange(4, dtype="<i2").tobytes())
        found = virtualds.open_virtual_dataset(f"{url}/a.bin.dmrpp")
        assert found["v"].values.tolist() == [0, 1, 2, 3]


def test_chunks_may_lie_in_several_files(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / f"{number}.bin").write_bytes(np.full(2, number, "<i2").tobytes())
    chunks = "".join(
        f'<dmrpp:chunk offset="0" nBytes="4" chunkPositionInArray="[{2 * n}]" href="{n}.bin"/>'
        for n in range(2)
    )
    text = one(
        '<dmrpp:chunks byteOrder="LE"><dmrpp:chunkDimensionSizes>2</dmrpp:chunkDimensionSizes>'
        f"{chunks}</dmrpp:chunks>"
    )
    assert opened(tmp_path / "a.dmrpp", text)["v"].values.tolist() == [0, 0, 1, 1]


def test_a_missing_file_is_an_error_at_reading_that_names_it(tmp_path: Path) -> None:
    found = opened(tmp_path / "gone.nc.dmrpp", one(CONTIGUOUS))
    with pytest.raises(ReadError, match=r"gone\.nc, bytes 2 to 10"):
        found["v"].load()


def test_a_sidecar_on_a_server_names_no_files_of_this_machine(tmp_path: Path) -> None:
    (tmp_path / "a.nc.dmrpp").write_text(named("/etc/hostname"))
    (tmp_path / "b.nc.dmrpp").write_text(named("file:///etc/hostname"))
    (tmp_path / "c.nc.dmrpp").write_text(named("local:///etc/hostname"))
    with counting_server(tmp_path) as (url, counts):
        for name in "ab":
            found = virtualds.open_virtual_dataset(f"{url}/{name}.nc.dmrpp")
            with pytest.raises(ReadError):
                found["v"].load()
        assert counts.of("hostname") and counts.of("b.nc")
        with pytest.raises(AccessError, match=r"variable 'v' of .*: it refers to the local file"):
            virtualds.open_virtual_dataset(f"{url}/c.nc.dmrpp")


# ---------------------------------------------------------------------- values in the sidecar


def packed(values: Any, pack: Callable[[bytes], bytes] = lambda data: data) -> str:
    return base64.b64encode(pack(np.asarray(values).tobytes())).decode()


HELD = {
    "compact": (f"<dmrpp:compact>{packed(np.arange(4, dtype='<i2'))}</dmrpp:compact>", "Int16"),
    "missing data": (
        f"<dmrpp:missingdata>\n {packed(np.arange(4, dtype='<f8'), zlib.compress)}\n"
        f"</dmrpp:missingdata>",
        "Float64",
    ),
    "bytes of HDF4": (f"<dmrpp:compact>{packed(np.arange(4, dtype='u1'))}</dmrpp:compact>", "Byte"),
}


@pytest.mark.parametrize("name", HELD)
def test_values_that_the_sidecar_holds_need_no_file(tmp_path: Path, name: str) -> None:
    text, kind = HELD[name]
    found = opened(tmp_path / "a.dmrpp", one(text, kind))["v"]
    assert found.values.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("name", HELD)
def test_values_that_the_sidecar_holds_come_before_a_fill_value(tmp_path: Path, name: str) -> None:
    text, kind = HELD[name]
    for both in (f'<dmrpp:chunks fillValue="9"/>{text}', f'{text}<dmrpp:chunks fillValue="9"/>'):
        found = opened(tmp_path / "a.dmrpp", one(both, kind))["v"]
        assert found.values.tolist() == [0, 1, 2, 3]
    texts = '<dmrpp:chunks fillValue="unsupported-string"/><dmrpp:vlsa><v c="4">x</v></dmrpp:vlsa>'
    found = opened(tmp_path / "a.dmrpp", one(texts, "String"))["v"]
    assert found.values.tolist() == ["x"] * 4


def test_values_both_held_and_in_chunks_are_refused(tmp_path: Path) -> None:
    for name in ("compact", "missing data"):
        text, kind = HELD[name]
        with pytest.raises(FormatError, match=r"variable 'v' .* holds its values, and says"):
            opened(tmp_path / "a.dmrpp", one(CONTIGUOUS + text, kind))


def test_strings_are_cut_as_hdf5_cuts_them(tmp_path: Path) -> None:
    stored = [b"ab   ", b"c\0d  ", b"e \0\0\0", b"     "]
    (tmp_path / "a.bin").write_bytes(b"".join(stored))
    for number, pad in enumerate(("null_term", "null_pad", "space_pad")):
        kind = h5py.h5t.C_S1.copy()
        kind.set_size(5)
        kind.set_strpad(number)
        with h5py.File(tmp_path / "a.h5", "w") as file:
            v = h5py.h5d.create(file.id, b"v", kind, h5py.h5s.create_simple((4,)))
            v.write(h5py.h5s.ALL, h5py.h5s.ALL, np.array(stored, "S5"), kind)
            native = file["v"][:].tolist()
        array = f'<dmrpp:FixedLengthStringArray string_length="5" pad="{pad}"/>'
        chunks = CONTIGUOUS.replace("2", "0").replace("8", "20")
        found = opened(tmp_path / "a.bin.dmrpp", one(array + chunks, "String"))
        assert found["v"].values.tolist() == native
        assert found["v"][1:3].values.tolist() == native[1:3]
        found.virtual.to_manifest(tmp_path / f"{pad}.json")
        written = xr.open_dataset(tmp_path / f"{pad}.json", engine="virtual")
        assert written["v"].values.tolist() == native
    unknown = array.replace("space_pad", "not_set")
    with pytest.raises(UnsupportedError, match=r"variable 'v' .* how its strings end"):
        opened(tmp_path / "a.bin.dmrpp", one(unknown + chunks, "String"))


def test_enumerations_and_structures_are_those_of_the_file(tmp_path: Path) -> None:
    kind = np.dtype({"names": ["a", "b"], "formats": ["i1", (">f8", (2,))], "offsets": [3, 8],
                     "itemsize": 32})  # fmt: skip
    values = np.zeros(4, kind)
    values["a"], values["b"] = np.arange(4), np.arange(8).reshape(4, 2)
    (tmp_path / "a.bin").write_bytes(values.tobytes())
    members = '<Int8 name="none"/><Int8 name="a"/><Float64 name="b"><Dim size="2"/></Float64>'
    place = '<dmrpp:chunks byteOrder="BE" structOffset="3 8 32">'
    place += '<dmrpp:chunk offset="0" nBytes="128"/></dmrpp:chunks>'
    sidecar = tmp_path / "a.bin.dmrpp"
    found = opened(sidecar, one(members + place, "Structure"))["v"].values
    assert found["b"].tolist() == values["b"].tolist() and found["a"].tolist() == [0, 1, 2, 3]
    for offsets, said in {"3 8": "'3 8'", "0 8 32": "overlap", "3 8 20": "overlap"}.items():
        with pytest.raises((FormatError, UnsupportedError), match=f"variable 'v' .*{said}"):
            opened(sidecar, one(members + place.replace("3 8 32", offsets), "Structure"))
    with netCDF4.Dataset(tmp_path / "e.nc", "w") as file:
        file.createDimension("x", 3)
        colour = file.createEnumType("i2", "colour", {"red": 0, "blue": 300})
        file.createGroup("g").createVariable("v", colour, ("x",))[:] = [0, 300, 0]
    found = virtualds.open_virtual_dataset(write_sidecar(tmp_path / "e.nc"), group="g")["v"]
    native = xr.open_dataset(tmp_path / "e.nc", group="g")["v"].load()
    assert found.values.tolist() == [0, 300, 0]
    assert found.encoding["dtype"].metadata == native.encoding["dtype"].metadata


def test_strings_that_the_sidecar_holds_are_repeated_as_it_says(tmp_path: Path) -> None:
    long = "ü" * 400
    text = packed(np.frombuffer(zlib.compress(long.encode()), "u1"))
    values = f'<dmrpp:vlsa><v c="2">good &amp; bad</v><v/><v s="800">{text}</v></dmrpp:vlsa>'
    found = opened(tmp_path / "a.dmrpp", one(values, "String"))["v"]
    assert found.values.tolist() == ["good & bad"] * 2 + ["", long]


@pytest.mark.parametrize(
    ("count", "size"), [("1", "9"), ("99999999999", "4"), ("4", "9" * 14)], ids=str
)
def test_strings_that_are_not_as_many_as_the_shape_says_are_refused(
    tmp_path: Path, count: str, size: str
) -> None:
    text = one(f'<dmrpp:vlsa><v c="{count}">x</v></dmrpp:vlsa>', "String", f'<Dim size="{size}"/>')
    with pytest.raises((FormatError, UnsupportedError), match="variable 'v'"):
        opened(tmp_path / "a.dmrpp", text)


def test_strings_that_swell_beyond_the_limit_are_refused_before_they_do(tmp_path: Path) -> None:
    stream = packed(np.frombuffer(zlib.compress(bytes(2**20)), "u1"))
    values = "".join(f'<v s="{2**31}">{stream}</v>' for _ in range(4))
    text = one(f"<dmrpp:vlsa>{values}</dmrpp:vlsa>", "String")
    with pytest.raises(UnsupportedError, match=r"variable 'v'.*8589934624 bytes"):
        opened(tmp_path / "a.dmrpp", text)


# ---------------------------------------------------------------------- fill values


def absent(fill: str | None, attribute: str = "", kind: str = "Float32") -> str:
    told = "" if fill is None else f' fillValue="{fill}"'
    value = f'<Attribute name="_FillValue" type="{kind}"><Value>{attribute}</Value></Attribute>'
    return one(f"<dmrpp:chunks{told}/>", kind, more=value if attribute else "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (absent("-9999"), np.float32(-9999)),
        (absent("nan"), np.float32("nan")),
        (absent("9.96921e+36"), np.float32(9.969209968386869e36)),
        (absent("1.23457e+06", "1234567"), np.float32(1234567)),
        (absent("1e+20"), np.float32(1e20)),
        (absent("-123456789", kind="Int32"), np.int32(-123456789)),
    ],
)
def test_missing_chunks_have_the_exact_fill_value(tmp_path: Path, text: str, expected: Any) -> None:
    found = opened(tmp_path / "a.dmrpp", text, decode_cf=False)["v"].values
    np.testing.assert_array_equal(found, np.full(4, expected))
    assert found.dtype == expected.dtype


@pytest.mark.parametrize(
    "text",
    [absent(None), absent("1.23457e+06"), absent("unsupported-array"), absent("1e9", kind="Int16")],
)
def test_a_fill_value_that_is_not_said_or_was_rounded_is_not_guessed(
    tmp_path: Path, text: str
) -> None:
    with pytest.raises(UnsupportedError, match=r"variable 'v' of .*states no exact fill value"):
        opened(tmp_path / "a.dmrpp", text)


# ---------------------------------------------------------------------- damage


def sized(sizes: str, *chunks: str) -> str:
    listed = "".join(f"<dmrpp:chunk {chunk}/>" for chunk in chunks)
    return one(
        f'<dmrpp:chunks fillValue="0"><dmrpp:chunkDimensionSizes>{sizes}'
        f"</dmrpp:chunkDimensionSizes>{listed}</dmrpp:chunks>"
    )


FIRST = 'offset="0" nBytes="4" chunkPositionInArray="[0]"'
DAMAGED = {
    "no number": (sized("2", FIRST.replace('"0"', '"x"', 1)), "offset is 'x', not a valid number"),
    "too large": (sized("2", FIRST.replace('"0"', f'"{2**63}"', 1)), "not a valid number"),
    "negative": (sized("2", FIRST.replace('"0"', '"-4"', 1)), "not a valid number"),
    "short": (sized("2", FIRST.replace('"4"', '"3"', 1)), "has 3 bytes, and its values take 4"),
    "no length": (sized("2", FIRST.replace("nBytes", "bytes")), "nBytes is '', not a valid number"),
    "twice": (sized("2", FIRST, FIRST), "two of its chunks have the same position"),
    "off the grid": (sized("2", FIRST.replace("[0]", "[1]")), "where no chunks begin"),
    "past the end": (sized("2", FIRST.replace("[0]", "[4]")), "where no chunks begin"),
    "two axes": (sized("2", FIRST.replace("[0]", "[0,0]")), "where no chunks begin"),
    "no place": (sized("2", FIRST.replace("[0]", "")), "where no chunks begin"),
    "no chunk": (sized("0", FIRST), "its chunks have the lengths"),
    "chunks of two axes": (sized("2 2", FIRST), "its chunks have the lengths"),
    "byte order": (one(CONTIGUOUS.replace("LE", "ME")), "its byte order is 'ME'"),
    "dimension": (one(CONTIGUOUS, dims='<Dim name="/gone"/>'), "'/gone' is not declared"),
    "length": (one(CONTIGUOUS, dims='<Dim size="many"/>'), "a dimension is 'many'"),
    "held": (one("<dmrpp:compact>AAAA</dmrpp:compact>"), "holds 3 bytes of it"),
    "base 64": (one("<dmrpp:compact>A*A</dmrpp:compact>"), "not base64 text"),
    "deflated": (one("<dmrpp:missingdata>AAAA</dmrpp:missingdata>"), "cannot be decompressed"),
}


@looped("name", DAMAGED)
def test_a_damaged_variable_is_refused_by_name(tmp_path: Path, name: str) -> None:
    text, complaint = DAMAGED[name]
    with pytest.raises(FormatError, match="variable 'v' of ") as raised:
        opened(tmp_path / "a.dmrpp", text)
    assert complaint in str(raised.value)


UNSUPPORTED = {
    "filter": (one(CONTIGUOUS.replace("byteOrder", 'compressionType="szip" byteOrder')), "'szip'"),
    "structure": (one(CONTIGUOUS, "Structure"), "where the 0 members of its structures lie"),
    "sequence": (one(CONTIGUOUS, "Sequence"), "type Sequence of DAP4"),
    "33 axes": (one(CONTIGUOUS, dims='<Dim size="1"/>' * 33), "it has 33 axes, where at most 32"),
    "65 axes": (one(CONTIGUOUS, dims='<Dim size="1"/>' * 65), "it has 65 axes"),
    "nothing": (one(""), "does not say where its values lie"),
    "strings": (one(CONTIGUOUS, "String"), "strings are of variable length"),
    "blocks": (one('<dmrpp:chunks><dmrpp:block offset="0" nBytes="8"/></dmrpp:chunks>'), "linked"),
}


@REFUSALS
@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_no_reference_holds_is_refused_and_the_rest_is_read(tmp_path: Path, name: str) -> None:
    text, complaint = UNSUPPORTED[name]
    rest = "<Int8 name='w'><Dim size='1'/><dmrpp:compact>BQ==</dmrpp:compact></Int8></Dataset>"
    text = text.replace("</Dataset>", rest)
    with pytest.raises(UnsupportedError, match="variable 'v' of ") as raised:
        opened(tmp_path / "a.dmrpp", text)
    assert complaint in str(raised.value)
    found = opened(tmp_path / "a.dmrpp", text, on_error="skip")
    assert {name: v.values.tolist() for name, v in found.variables.items()} == {"w": [5]}


def nested(name: str, *more: str) -> str:
    return document("".join(f'<Group name="{one}"/>' for one in (name, *more)))


ENTITIES = '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>'
DOCUMENTS = {
    "entities": (
        document("").replace("<Dataset", f"{ENTITIES}<Dataset", 1),
        "document type declaration",
    ),
    "truncated": (document("")[:-12], "not well-formed XML"),
    "another root": (document("").replace("Dataset", "Data"), "no Dataset of DAP4"),
    "deep": (document('<Group name="g">' * 999 + "</Group>" * 999), "nested more than"),
    **{f"group {name!r}": (nested(name), "not a valid name") for name in ("", ".", "..", "a/b")},
    "two groups of a name": (nested("a", "a"), "is taken"),
    "an encoding": (document("").replace("UTF-8", "UTF-99"), "not well-formed XML"),
}


@looped("name", DOCUMENTS)
def test_unsound_documents_are_refused_with_their_name(tmp_path: Path, name: str) -> None:
    text, complaint = DOCUMENTS[name]
    with pytest.raises((FormatError, UnsupportedError), match=r"a\.dmrpp: ") as raised:
        opened(tmp_path / "a.dmrpp", text)
    assert complaint in str(raised.value)


@pytest.mark.parametrize("element", ["<a/>", '<a b="1" c="2" d="3"/>'])
def test_a_tree_of_too_many_elements_is_refused_before_it_takes_the_memory(
    tmp_path: Path, element: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtualds.parsers.dmrpp.document.MAX_NODES", 2**12)
    text = document(element * 2**14)
    tracemalloc.start()
    try:
        with pytest.raises(UnsupportedError, match=r"a\.dmrpp: more than 4096 elements"):
            opened(tmp_path / "a.dmrpp", text)
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()


def test_a_description_without_addresses_is_told_from_a_sidecar(tmp_path: Path) -> None:
    text = document("").replace(f' xmlns:dmrpp="{DMRPP}"', "")
    with pytest.raises(FormatError, match=r"is a DMR of OPeNDAP.*\n?.*sidecar \(\.dmrpp\)"):
        opened(tmp_path / "a.dmr", text)


# ---------------------------------------------------------------------- attributes


def test_containers_of_attributes_are_flattened_and_those_of_the_maker_left_out(
    tmp_path: Path,
) -> None:
    def attribute(name: str, inner: str, kind: str = "Container") -> str:
        return f'<Attribute name="{name}" type="{kind}">{inner}</Attribute>'

    title = attribute("title", "<Value>a</Value><Value>b</Value>", "String")
    inner = "".join(attribute(n, title) for n in ("HDF5_GLOBAL", "box", "build_dmrpp_metadata"))
    found = opened(tmp_path / "a.dmrpp", document(inner))
    assert found.attrs == {"title": ["a", "b"], "box.title": ["a", "b"]}


def test_an_attribute_that_is_no_number_is_refused_by_name(tmp_path: Path) -> None:
    wrong = '<Attribute name="n" type="Int8"><Value>1000</Value></Attribute>'
    with pytest.raises(FormatError, match=r"'v:n' of .*the attribute is not of type Int8"):
        opened(tmp_path / "a.dmrpp", one(CONTIGUOUS, more=wrong))


def test_filters_that_a_chunk_skipped_are_not_undone(tmp_path: Path) -> None:
    path = tmp_path / "a.nc"
    with h5py.File(path, "w") as file:
        v = file.create_dataset("v", (4,), "<i4", chunks=(2,), compression="gzip", shuffle=True)
        v[2:] = [3, 4]
        v.id.write_direct_chunk((0,), np.array([1, 2], "<i4").tobytes(), filter_mask=3)
    found = virtualds.open_virtual_dataset(write_sidecar(path))
    assert found["v"].values.tolist() == [1, 2, 3, 4]


def test_dimensions_without_names_are_called_alike_whatever_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.update({"a": np.zeros((2, 3)), "b": np.zeros((4, 3)), "c": np.zeros(5)})
    sidecar = write_sidecar(path)
    for names in ([], ["a"], ["b"]):
        found, wanted = (
            virtualds.open_virtual_dataset(one, drop_variables=names) for one in (sidecar, path)
        )
        assert {n: v.dims for n, v in found.items()} == {n: v.dims for n, v in wanted.items()}
