"""Plain Zarr stores are read as zarr-python and xarray read them, and stay as they were opened."""

import functools
import http.server
import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from products import looped
from range_server import running

import virtualds
from virtualds.errors import AccessError, FormatError, ReadError, UnsupportedError
from virtualds.stores.fsspec import FsspecStore

TIMES = np.arange("2001-01", "2001-07", dtype="datetime64[M]").astype("datetime64[ns]")


def months() -> xr.Dataset:
    """A dataset of what Zarr is used for; the last time step does not fill its chunk."""
    rng = np.random.default_rng(3)
    values = 280 + rng.normal(size=(5, 4, 6))
    values[2, 1] = np.nan
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), values.astype("f4"), {"units": "K"}),
            "packed": (("time", "y", "x"), values),
            "big": (("time",), np.arange(5, dtype=">i4")),
            "flags": (("x",), np.array([1, 0, 1, 1, 0, 0], bool)),
            "complex": (("x",), np.arange(6) * (1 + 2j)),
            "names": (("y",), np.array(["a", "bcd", "", "ü"], object)),
            "fixed": (("y",), np.array(["a", "bcd", "", "ü"])),
            "codes": (("y",), np.array([b"a", b"bc", b"", b"d"])),
            "scalar": ((), 3.5, {"why": "one value"}),
            "nothing": (("z", "x"), np.zeros((0, 6), "i2")),
        },
        coords={"time": TIMES[:5], "x": np.arange(6.0), "where": (("y", "x"), np.ones((4, 6)))},
        attrs={"title": "months"},
    )


PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32768}
ENCODING = {"t": {"chunks": (2, 3, 4)}, "packed": PACKED | {"chunks": (2, 4, 3)}}


def written(
    url: str, version: int, consolidated: bool = True, options: Any = None, **more: Any
) -> xr.Dataset:
    """Write a store, and return what xarray reads of it."""
    encoding = {name: ENCODING.get(name, {}) | more for name in ("t", "packed")}
    months().to_zarr(
        url,
        zarr_format=version,
        consolidated=consolidated,
        encoding=encoding,
        storage_options=options,
    )
    return native(url, consolidated=consolidated, storage_options=options)


def native(url: str, **how: Any) -> xr.Dataset:
    with xr.open_zarr(url, chunks=None, **how) as found:
        return found.load()


def assert_read(url: str, expected: xr.Dataset, **how: Any) -> xr.Dataset:
    """Assert that a store reads as xarray read it, and that references of it do."""
    found = virtualds.open_virtual_dataset(url, **how)
    xr.testing.assert_identical(found.virtual.load(), expected)
    for name, variable in expected.variables.items():
        ours = found.variables[name].encoding
        for key in ("_FillValue", "scale_factor", "add_offset", "units", "calendar"):
            np.testing.assert_equal(ours.get(key), variable.encoding.get(key), f"{name} {key}")
    return found


both = pytest.mark.parametrize("version", [2, 3])


@both
@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_store_reads_as_xarray_reads_it(tmp_path: Path, version: int, consolidated: bool) -> None:
    url = str(tmp_path / "store.zarr")
    found = assert_read(url, written(url, version, consolidated))
    assert found.t.variable._data.nchunks == 3 * 2 * 2
    found.virtual.to_manifest(tmp_path / "refs.zarr")
    again = virtualds.open_virtual_dataset(tmp_path / "refs.zarr")
    xr.testing.assert_identical(again.virtual.load(), native(url, consolidated=consolidated))


V2_COMPRESSORS = {
    "none": None,
    "zlib": numcodecs.Zlib(3),
    "gzip": numcodecs.GZip(3),
    "zstd": numcodecs.Zstd(3),
    "bz2": numcodecs.BZ2(3),
    "lz4": numcodecs.LZ4(),
    "blosc": numcodecs.Blosc("zstd", 3, numcodecs.Blosc.SHUFFLE),
    "bit-shuffled blosc": numcodecs.Blosc("lz4", 3, numcodecs.Blosc.BITSHUFFLE),
}
V3_COMPRESSORS = {
    "none": (),
    "gzip": (zarr.codecs.GzipCodec(level=3),),
    "zstd": (zarr.codecs.ZstdCodec(level=3, checksum=True),),
    "blosc": (zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=4),),
    "crc32c": (zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()),
}


@looped("name", V2_COMPRESSORS)
@looped("order", ["C", "F"])
@looped("separator", [".", "/"], quick=1)
def test_arrays_of_version_2(tmp_path: Path, name: str, order: str, separator: str) -> None:
    values = np.arange(5 * 7, dtype=">i4").reshape(5, 7)
    array = zarr.create_array(
        tmp_path / "store.zarr" / "a",
        shape=values.shape,
        chunks=(2, 3),
        dtype=values.dtype,
        zarr_format=2,
        compressors=V2_COMPRESSORS[name],
        order=order,
        chunk_key_encoding={"name": "v2", "separator": separator},
        fill_value=-5,
    )
    zarr.open_group(tmp_path / "store.zarr", zarr_format=2, mode="a")
    array[:4] = values[:4]  # chunks of the last row stay away
    found = virtualds.open_virtual_dataset(tmp_path / "store.zarr", decode_cf=False)
    np.testing.assert_array_equal(found.a, array[:])
    assert (found.a[4] == -5).all()
    assert found.a.dims == ("dim_5", "dim_7")
    assert found.a.attrs["_FillValue"] == -5


@looped("name", V3_COMPRESSORS)
@looped("keys", ["default/", "default.", "v2/", "v2."], quick=1)
def test_arrays_of_version_3(tmp_path: Path, name: str, keys: str) -> None:
    values = np.arange(5 * 7 * 2, dtype="f4").reshape(5, 7, 2)
    array = zarr.create_array(
        tmp_path / "store.zarr" / "g" / "a",
        shape=values.shape,
        chunks=(2, 3, 2),
        dtype=values.dtype,
        compressors=V3_COMPRESSORS[name],
        filters=(zarr.codecs.TransposeCodec(order=(2, 0, 1)),),
        serializer=zarr.codecs.BytesCodec(endian="big"),
        chunk_key_encoding={"name": keys[:-1], "separator": keys[-1]},
        fill_value=7,
        dimension_names=("t", "y", "x"),
    )
    zarr.open_group(tmp_path / "store.zarr", mode="a")
    array[:, 3:] = values[:, 3:]
    found = virtualds.open_virtual_dataset(tmp_path / "store.zarr", group="g")
    np.testing.assert_array_equal(found.a, array[:])
    assert (found.a[:, 0] == 7).all()
    assert found.a.dims == ("t", "y", "x")


@both
def test_groups_are_opened_by_their_path(tmp_path: Path, version: int) -> None:
    url = str(tmp_path / "store.zarr")
    data = months()[["t", "scalar"]]
    data.to_zarr(url, zarr_format=version, group="deep/down")
    expected = native(url, group="deep/down")
    assert_read(url, expected, group="deep/down")
    assert_read(f"{url}/deep", expected, group="/down/")
    assert_read(f"{url}/deep/down", expected)
    with pytest.raises(FileNotFoundError, match="up"):
        virtualds.open_virtual_dataset(url, group="up")


@both
def test_axes_without_names_get_one_each(tmp_path: Path, version: int) -> None:
    zarr.create_array(tmp_path / "s/a", shape=(3, 4, 3), dtype="i4", zarr_format=version)
    zarr.open_group(tmp_path / "s", mode="a", zarr_format=version)
    found = virtualds.open_virtual_dataset(tmp_path / "s")
    assert found.a.dims == ("dim_3", "dim_4", "dim_3_2")


@both
def test_stores_are_combined_and_written_like_any_files(tmp_path: Path, version: int) -> None:
    """As references in every format that there is, and through xarray's own door."""
    parts = []
    for number in range(2):
        part = months()[["t", "packed"]].assign_coords(
            time=TIMES[:5] + np.timedelta64(200 * number, "D")
        )
        part = part.isel(time=slice(4))
        part.to_zarr(tmp_path / f"{number}.zarr", zarr_format=version, encoding=ENCODING)
        parts.append(native(str(tmp_path / f"{number}.zarr")))
    expected = xr.concat(parts, "time", data_vars="minimal", coords="minimal", compat="override")
    found = virtualds.open_virtual_mfdataset(
        str(tmp_path / "*.zarr"), combine="nested", concat_dim="time"
    )
    xr.testing.assert_identical(found.virtual.load(), expected)
    assert len(found.virtual.sources) == 2 * (8 + 4)
    for name in ("refs.json", "refs.parquet", "refs.virtual.zarr"):
        found.virtual.to_manifest(tmp_path / name)
        again = virtualds.open_virtual_dataset(tmp_path / name)
        xr.testing.assert_identical(again.virtual.load(), expected)
    with xr.open_dataset(tmp_path / "0.zarr", engine="virtual") as lazy:
        xr.testing.assert_identical(lazy.load(), parts[0])


@both
@pytest.mark.parametrize("shape", [(4, 6), ()])
def test_a_single_array_is_a_variable_named_like_its_folder(
    tmp_path: Path, version: int, shape: tuple[int, ...]
) -> None:
    values = np.full(shape, 4.5)
    array = zarr.create_array(
        tmp_path / "height.zarr", shape=shape, dtype="f8", zarr_format=version
    )
    array[...] = values
    found = virtualds.open_virtual_dataset(tmp_path / "height.zarr")
    assert list(found) == ["height"]
    np.testing.assert_array_equal(found.height, values)


@both
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_strings_that_were_never_written_are_empty(tmp_path: Path, version: int) -> None:
    url = str(tmp_path / "store.zarr")
    group = zarr.open_group(url, mode="w", zarr_format=version)
    array = group.create_array("a", shape=(5,), chunks=(2,), dtype=str)
    array[2:4] = np.array(["x", "yz"], object)
    found = virtualds.open_virtual_dataset(url, decode_cf=False)
    assert found.a.values.tolist() == ["", "", "x", "yz", ""]


# ---------------------------------------------------------------------- a static snapshot


def grown(url: str, options: Any = None) -> None:
    """Append a time step: the last chunk of the store is full now."""
    more = months().drop_vars(["nothing", "names", "fixed", "codes", "flags"])
    more = more.drop_vars(["complex", "scalar", "where", "x"]).isel(time=[4])
    more["time"] = TIMES[5:6]
    more.to_zarr(url, append_dim="time", storage_options=options)


@both
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_snapshot_reads_what_the_store_was(tmp_path: Path, version: int) -> None:
    url, refs = str(tmp_path / "store.zarr"), str(tmp_path / "snapshot.zarr")
    expected = written(url, version).isel(time=slice(4))
    opened = virtualds.open_virtual_dataset(url)
    opened.virtual.to_manifest(refs)
    grown(url)
    assert native(url).sizes["time"] == 6
    for found in (opened, virtualds.open_virtual_dataset(refs)):
        assert found.sizes["time"] == 5
        for name in ("t", "packed"):
            before = found[name].variable.isel(time=slice(4))
            xr.testing.assert_identical(before.copy(data=before.values), expected[name].variable)
            # the chunk that was added to is another one now
            with pytest.raises(ReadError, match=r"scanned"):
                _ = found[name].isel(time=4).values


def test_chunks_beyond_the_end_and_other_files_are_none_of_the_array(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "s/a", shape=(6,), chunks=(2,), dtype="i4")
    zarr.open_group(tmp_path / "s", mode="a")
    array[:] = np.arange(6)
    metadata = (tmp_path / "s/a/zarr.json").read_text()
    (tmp_path / "s/a/zarr.json").write_text(metadata.replace("6", "3", 1))
    for stray in ("c/01", "c/x", "c/0.partial", "c/0/0", "readme"):
        path = tmp_path / "s/a" / stray
        if path.parent.is_dir():
            path.write_bytes(b"")
    found = virtualds.open_virtual_dataset(tmp_path / "s")
    assert found.a.values.tolist() == [0, 1, 2]
    assert len(found.virtual.sources) == 2


# ---------------------------------------------------------------------- stores


@pytest.mark.product
@both
@pytest.mark.parametrize("place", ["memory", "s3"])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_stores_of_fsspec(
    version: int, place: str, s3_bucket: str, s3_server: dict[str, Any]
) -> None:
    url = {"memory": f"memory://{uuid.uuid4().hex}/store.zarr", "s3": f"{s3_bucket}/store.zarr"}[
        place
    ]
    options = s3_server if place == "s3" else None
    expected = written(url, version, options=options)
    assert_read(url, expected, storage_options=options)


@both
def test_a_store_is_listed_once_and_no_chunk_is_asked_for(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"memory://{uuid.uuid4().hex}/store.zarr"
    array = zarr.create_array(
        url + "/a", shape=(300,), chunks=(1,), dtype="i4", zarr_format=version
    )
    array[:] = 1
    zarr.open_group(url, mode="a", zarr_format=version)
    asked: list[str] = []
    for name in ("describe", "list_files", "read_all", "get_ranges"):
        real: Callable[..., Any] = getattr(FsspecStore, name)

        def counted(self: Any, first: Any, *rest: Any, _real: Any = real, _name: str = name) -> Any:
            asked.append(_name)
            return _real(self, first, *rest)

        monkeypatch.setattr(FsspecStore, name, counted)
    found = virtualds.open_virtual_dataset(url, parser="zarr", loadable_variables=[])
    assert found.a.variable._data.nchunks == 300
    assert asked.count("list_files") == 1
    assert len(asked) <= 5


class _Unlisted(http.server.SimpleHTTPRequestHandler):
    """A web server that gives files, and no listings."""

    def list_directory(self, path: Any) -> None:
        self.send_error(404)

    def log_message(self, *args: Any) -> None:
        pass


class _Silent(_Unlisted):
    """A web server that refuses what is not there, as S3 does where listing is not allowed."""

    def send_error(self, code: int, *args: Any) -> None:
        super().send_error(403 if code == 404 else code, *args)


@pytest.fixture
def website(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(_Unlisted, directory=str(tmp_path))
    with running(handler) as server:
        yield server.url


@both
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_a_store_that_cannot_be_listed_is_read_chunk_by_chunk(
    tmp_path: Path, website: str, version: int
) -> None:
    expected = written(str(tmp_path / "store.zarr"), version)
    found = assert_read(f"{website}/store.zarr", expected)
    found.virtual.to_manifest(tmp_path / "refs.zarr")
    again = virtualds.open_virtual_dataset(tmp_path / "refs.zarr")
    xr.testing.assert_identical(again.virtual.load(), expected)


@both
def test_a_store_without_listing_and_consolidation_is_refused(
    tmp_path: Path, website: str, version: int
) -> None:
    array = zarr.create_array(tmp_path / "s/a", shape=(4,), dtype="i4", zarr_format=version)
    zarr.open_group(tmp_path / "s", mode="a", zarr_format=version)
    array[:] = 1
    with pytest.raises(UnsupportedError, match="consolidate"):
        virtualds.open_virtual_dataset(f"{website}/s")


@both
@pytest.mark.parametrize("name", ["store.zarr", "store"])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_a_refused_file_may_be_missing_so_others_are_tried(
    tmp_path: Path, version: int, name: str
) -> None:
    xr.Dataset({"t": ("x", np.arange(5.0))}).to_zarr(
        tmp_path / name, zarr_format=version, consolidated=True
    )
    with running(functools.partial(_Silent, directory=str(tmp_path))) as server:
        assert_read(f"{server.url}/{name}", native(str(tmp_path / name)))
        with pytest.raises(AccessError, match="refuses access"):
            virtualds.open_virtual_dataset(f"{server.url}/none{name}")


@pytest.mark.parametrize("name", ["refs.virtual.zarr", "refs.parquet", "refs"])
@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_a_set_is_found_where_what_is_missing_is_refused(tmp_path: Path, name: str) -> None:
    xr.Dataset({"t": ("x", np.arange(5.0))}).to_zarr(tmp_path / "store.zarr")
    form = {"refs.parquet": "kerchunk-parquet"}.get(name, "zarr-v3")
    with running(functools.partial(_Silent, directory=str(tmp_path))) as server:
        vds = virtualds.open_virtual_dataset(tmp_path / "store.zarr")
        vds.virtual.to_manifest(tmp_path / name, format=form)
        found = virtualds.open_virtual_dataset(f"{server.url}/{name}", allow=tmp_path)
        assert set(found.variables) == set(vds.variables)


# ---------------------------------------------------------------------- what is not read


def with_an_unknown_codec(path: Path) -> None:
    group = zarr.open_group(path, mode="w")
    for name in ("plain", "odd"):
        array = group.create_array(
            name, shape=(8,), chunks=(2,), compressors=None, dtype="i4", dimension_names=("x",)
        )
        array[:] = np.arange(8)
    metadata = path / "odd/zarr.json"
    document = json.loads(metadata.read_text())
    document["codecs"].append({"name": "magic"})
    metadata.write_text(json.dumps(document))


def test_an_unknown_codec_is_refused_by_name_and_the_rest_is_read(tmp_path: Path) -> None:
    with_an_unknown_codec(tmp_path / "s")
    with pytest.raises(UnsupportedError, match="magic") as caught:
        virtualds.open_virtual_dataset(tmp_path / "s")
    assert "variable 'odd' of" in str(caught.value)
    with pytest.warns(UserWarning, match="magic"):
        found = virtualds.open_virtual_dataset(tmp_path / "s", on_error="skip")
    assert found.plain.values.tolist() == list(range(8))
    with pytest.warns(UserWarning, match="magic"):
        kept = virtualds.open_virtual_dataset(tmp_path / "s", on_error="keep")
    assert kept.odd.shape == (8,)
    with pytest.raises(UnsupportedError, match="magic"):
        _ = kept.odd.values
    found = virtualds.open_virtual_dataset(tmp_path / "s", drop_variables="odd")
    assert list(found) == ["plain"]


def test_an_unknown_codec_of_version_2_costs_one_variable(tmp_path: Path) -> None:
    written(str(tmp_path / "s"), 2, consolidated=False)
    metadata = tmp_path / "s/t/.zarray"
    metadata.write_text(metadata.read_text().replace('"blosc"', '"magic"'))
    with pytest.warns(UserWarning, match="magic"):
        found = virtualds.open_virtual_dataset(tmp_path / "s", on_error="skip")
    assert "t" not in found and "packed" in found


@pytest.mark.parametrize(
    ("version", "marker", "text"),
    [
        (3, "zarr.json", '{"zarr_format": 3, "node_type": "array"}'),
        (3, "zarr.json", '{"zarr_format": 9, "node_type": "group"}'),
        (3, "zarr.json", '["zarr_format"]'),
        (3, "zarr.json", '{"zarr_format": 3, "node_type": "group", "consolidated_metadata": 3}'),
        (2, ".zmetadata", '{"zarr_consolidated_format": 1}'),
        (2, ".zmetadata", '{"zarr_consolidated_format": 1, "metadata": {"a/.zarray": 3}}'),
        (2, ".zmetadata", '{"zarr_consolidated_format": 1, "metadata": {}'),
    ],
)
def test_damaged_metadata_is_an_error_of_the_format(
    tmp_path: Path, version: int, marker: str, text: str
) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / marker).write_text(text)
    with pytest.raises(FormatError, match="s"):
        virtualds.open_virtual_dataset(tmp_path / "s")


def test_a_folder_without_a_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with pytest.raises((FormatError, FileNotFoundError)):
        virtualds.open_virtual_dataset(tmp_path / "s")
    with pytest.raises(FileNotFoundError, match="no Zarr store"):
        virtualds.open_virtual_dataset(tmp_path / "s", parser="zarr")


def test_a_chunk_that_is_gone_is_an_error_and_no_fill_value(tmp_path: Path) -> None:
    array = zarr.create_array(tmp_path / "s/a", shape=(4,), chunks=(2,), dtype="i4")
    zarr.open_group(tmp_path / "s", mode="a")
    array[:] = 1
    found = virtualds.open_virtual_dataset(tmp_path / "s", loadable_variables=[])
    shutil.rmtree(tmp_path / "s/a/c")
    with pytest.raises(ReadError, match="No such file"):
        _ = found.a.values


# ---------------------------------------------------------------------- prefixes of keys


def transformer_of(refs: Path, name: str = "a") -> dict[str, Any]:
    [found] = json.loads((refs / name / "zarr.json").read_text())["storage_transformers"]
    return found["configuration"]


@pytest.mark.product
@both
@pytest.mark.parametrize("form", [None, "inline", "json"])
def test_chunks_behind_a_prefix_stay_behind_it(
    tmp_path: Path, website: str, version: int, form: str | None
) -> None:
    """What was opened without a listing is written without one: one entry, however many chunks."""
    array = zarr.create_array(
        tmp_path / "s/a", shape=(12, 2), chunks=(1, 1), dtype="i4", zarr_format=version
    )
    zarr.open_group(tmp_path / "s", mode="a", zarr_format=version)
    array[:8] = np.arange(16).reshape(8, 2)
    values = array[:]
    zarr.consolidate_metadata(tmp_path / "s", zarr_format=version)
    opened = virtualds.open_virtual_dataset(f"{website}/s", decode_cf=False)
    opened.virtual.to_manifest(tmp_path / "refs.zarr", manifest=form)
    said = transformer_of(tmp_path / "refs.zarr")["manifest"]
    if form == "json":
        said = json.loads((tmp_path / "refs.zarr/a" / said).read_text())
    assert said == {"./": {"path": f"{website}/s/a/"}}
    for number in range(2):
        refs = tmp_path / ("refs.zarr" if not number else "copy.zarr")
        again = virtualds.open_virtual_dataset(refs, decode_cf=False)
        np.testing.assert_array_equal(again.a, values)
        again.virtual.to_manifest(tmp_path / "copy.zarr", mode="w")
    assert transformer_of(tmp_path / "copy.zarr")["manifest"] == {"./": {"path": f"{website}/s/a/"}}
    # nor if the store has moved
    (tmp_path / "s").rename(tmp_path / "moved")
    virtualds.rename_paths(refs, {f"{website}/s": f"{website}/moved"}, sample=0)
    assert transformer_of(refs)["manifest"] == {"./": {"path": f"{website}/moved/a/"}}
    np.testing.assert_array_equal(virtualds.open_virtual_dataset(refs, decode_cf=False).a, values)


def test_a_part_of_an_array_behind_a_prefix_is_listed(tmp_path: Path, website: str) -> None:
    array = zarr.create_array(tmp_path / "s/a", shape=(6, 2), chunks=(1, 1), dtype="i4")
    zarr.open_group(tmp_path / "s", mode="a")
    array[:4] = 1 + np.arange(8).reshape(4, 2)
    zarr.consolidate_metadata(tmp_path / "s")
    opened = virtualds.open_virtual_dataset(f"{website}/s")
    cases = {
        "cropped": opened.isel(dim_6=slice(1, 5)),
        "turned": opened.transpose("dim_2", "dim_6"),
        "longer": xr.concat([opened, opened], "dim_6"),
    }
    for name, part in cases.items():
        refs = tmp_path / f"{name}.zarr"
        part.virtual.to_manifest(refs)
        again = virtualds.open_virtual_dataset(refs)
        np.testing.assert_array_equal(again.a, part.a.values, name)


def test_forms_of_prefixes(tmp_path: Path) -> None:
    """The longest prefix counts, and an entry of its own more than any."""
    node = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [3, 4],
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 9,
        "codecs": [{"name": "bytes"}],
        "dimension_names": ["y", "x"],
    }
    manifest = {
        "./": {"path": "../all/"},
        "c/1/": {"path": "../row-"},
        "./c/2/": {"path": f"file://{tmp_path}/other/"},
        "0.1": {},
        "0.2": {"data": "Bw=="},
        "1.0": {"path": "../some", "offset": 2, "length": 1},
    }
    files = {
        "all/c/0/0": b"\1",
        "all/c/0/1": b"\2",
        "all/c/1/0": b"\3",
        "row-1": b"\4",
        "other/3": b"\5",
        "some": b"\0\0\6",
    }
    for name, data in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    expected = [[1, 9, 7, 9], [6, 4, 9, 9], [9, 9, 9, 5]]
    for form in ("inline", "file"):
        root = tmp_path / f"{form}.zarr"
        (root / "a").mkdir(parents=True)
        (root / "a/m.json").write_text(json.dumps(manifest))
        said = manifest if form == "inline" else "./m.json"
        transformer = {"name": "chunk-manifest-json", "configuration": {"manifest": said}}
        below = {"a": node | {"storage_transformers": [transformer]}}
        document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
        document["consolidated_metadata"] = {"kind": "inline", "metadata": below}
        (root / "zarr.json").write_text(json.dumps(document))
        found = virtualds.open_virtual_dataset(root)
        assert found.a.values.tolist() == expected
        refs = tmp_path / "again" / f"{form}.zarr"
        found.virtual.to_manifest(refs)
        written = transformer_of(refs)["manifest"]
        assert written.keys() == manifest.keys()
        assert written["c/1/"] == {"path": f"file://{tmp_path}/row-"}
        assert virtualds.open_virtual_dataset(refs).a.values.tolist() == expected
