"""What we write is read by others, and what others write is read by us.

The others are fsspec with zarr-python, kerchunk, and VirtualiZarr. What they, or JSON, cannot say
of a netCDF file stands in the tables below with its reason, and the difference itself is asserted.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from cases import CASES, Archive
from peers import peer
from products import every_pair
from transforms import without_gaps

import virtualds
from virtualds import FormatError, ReadError, UnsupportedError
from virtualds.chunks.columns import MISSING
from virtualds.datasets.location import Location
from virtualds.datasets.open import open_group

zarr = pytest.importorskip("zarr", reason="zarr-python is the other side")
reference = pytest.importorskip("fsspec.implementations.reference", reason="zarr-python needs it")
kerchunk_hdf = pytest.importorskip("kerchunk.hdf", reason="kerchunk is the other side")
imagecodecs = pytest.importorskip("imagecodecs.numcodecs", reason="zarr-python decodes with it")
imagecodecs.register_codecs(verbose=False)
kerchunk_df = pytest.importorskip("kerchunk.df", reason="kerchunk is the other side")
kerchunk_combine = pytest.importorskip("kerchunk.combine", reason="kerchunk is the other side")

# the others speak of their own affairs
pytestmark = pytest.mark.filterwarnings("ignore")

Opener = Callable[[Path], xr.Dataset]

# xarray itself makes opaque bytes of big-endian compound types, whoever reads them
NAMES = [name for name in CASES if name != "compound_types_of_big_endian"]

HDF5 = [name for name in NAMES if CASES[name].source == "hdf5"]


def virtualizarr_registry() -> Any:
    stores = pytest.importorskip("obstore.store", reason="VirtualiZarr reads files through it")
    registry = pytest.importorskip(
        "obspec_utils.registry", reason="VirtualiZarr finds stores by it"
    )
    return registry.ObjectStoreRegistry({"file://": stores.LocalStore()})


# ---------------------------------------------------------------------- they read what we write


@cache
def references(archive: Archive, name: str, suffix: str = ".json") -> Path:
    """References to the file of a case, with as few values inline as can be."""
    target = archive.path(name).with_suffix(f".peers{suffix}")
    for loadable in ([], None, "*"):
        try:
            ds = virtualds.open_virtual_dataset(
                archive.path(name), group=CASES[name].group, loadable_variables=loadable
            )
            ds.virtual.to_manifest(target, mode="w")
        except UnsupportedError:
            continue
        return target
    raise AssertionError(f"{name} cannot be written at all")


def by_zarr_python(path: Path) -> xr.Dataset:
    options = {"fo": str(path), "remote_protocol": "file"}
    return xr.open_zarr("reference://", storage_options=options, consolidated=False, chunks=None)


def by_kerchunk(path: Path) -> xr.Dataset:
    return xr.open_dataset(path.as_posix(), engine="kerchunk")


def by_virtualizarr(path: Path) -> xr.Dataset:
    virtualizarr = peer("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    with xr.open_dataset(path, engine="virtual", decode_cf=False) as ds:
        names = list(ds.variables)
    found: xr.Dataset = virtualizarr.open_virtual_dataset(
        f"file://{path}",
        registry=virtualizarr_registry(),
        parser=parsers.KerchunkJSONParser(),
        loadable_variables=names,
    )
    return found


READERS: dict[str, Opener] = {
    "zarr-python": by_zarr_python,
    "kerchunk": by_kerchunk,
    "virtualizarr": by_virtualizarr,
}

JSON_FORGETS_FLOAT32 = {
    # scale_factor and add_offset of float32 are float64 in JSON, and so are the decoded values
    "big_endian": {"packed"},
    "packed_int16": {
        f"{name}{suffix}"
        for name in ("f4", "scale_only", "several_missing", "unsigned", "one_element_array")
        for suffix in ("", "_filled")
    },
    "packed_bytes": {"scaled_byte"},
    "packed_int32_and_floats": {"int32", "float32"},
    "larger_than_small": {"p"},
}

ONLY_HERE = {
    # filters that have no name in Zarr, and types that zarr-python does not know
    "scaleoffset": "virtualds_scaleoffset",
    "nbit": "virtualds_nbit",
    "filters_of_plugins": "virtualds_",
    "compound_types_within_others": "No Zarr data type",
}

CANNOT_READ: dict[str, dict[str, str]] = {
    "zarr-python": ONLY_HERE,
    "kerchunk": ONLY_HERE,
    "virtualizarr": {
        **ONLY_HERE,
        "compound_types_within_others": "Field elements",
        "filters_of_netcdf": "imagecodecs_szip",
        # it knows no dtype for strings of varying length in Zarr v2
        "scalars": "Object",
        "strings_of_varying_length": "Object",
        "character_arrays": "Object",
        "string_coordinate": "Object",
        "written_by_xarray": "Object",
        "zarr_v2": "Object",
        "zarr_v3": "Object",
        "zarr_shards": "Object",
        # it takes every _FillValue for one that Zarr v3 has encoded
        "missing_chunks_and_fill_attribute_of_another_type": "fill_value",
    },
}


def as_json(value: Any) -> Any:
    """What is left of an attribute in JSON: neither numpy types nor infinities."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def with_json_attributes(ds: xr.Dataset) -> xr.Dataset:
    found = ds.copy()
    found.attrs = {n: as_json(v) for n, v in ds.attrs.items()}
    for name, variable in ds.variables.items():
        found[name].attrs = {n: as_json(v) for n, v in variable.attrs.items()}
    return found


def read_with(readers: Iterable[str], in_turn: Sequence[str]) -> list[tuple[str, str]]:
    """Each case with each of some readers, and with one of those that differ in little."""
    return [
        (name, reader)
        for number, name in enumerate(NAMES)
        for reader in (*readers, in_turn[number % len(in_turn)])
    ]


@pytest.mark.product
# what kerchunk does with references is to hand them to zarr-python
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "reader"), read_with(["virtualizarr"], ["zarr-python", "kerchunk"])
)
def test_other_tools_read_our_references(name: str, reader: str, archive: Archive) -> None:
    path = references(archive, name)
    if cause := CANNOT_READ.get(reader, {}).get(name):
        READERS[reader](references(archive, "contiguous"))  # it is there and works
        with pytest.raises((TypeError, ValueError), match=cause):
            READERS[reader](path).load()
        return
    found = without_gaps(with_json_attributes(READERS[reader](path).load()))
    expected = without_gaps(with_json_attributes(archive.native(name)))
    forgotten = JSON_FORGETS_FLOAT32.get(name, set())
    for variable in forgotten:
        assert (found[variable].dtype, expected[variable].dtype) == ("f8", "f4")
        xr.testing.assert_allclose(found[variable], expected[variable], rtol=1e-6)
    xr.testing.assert_identical(
        found.drop_vars(forgotten).drop_indexes(found.indexes, errors="ignore"),
        expected.drop_vars(forgotten).drop_indexes(expected.indexes, errors="ignore"),
    )
    for variable in set(expected.variables) - forgotten:
        if expected[variable].dtype.kind not in "OUT":
            assert found[variable].dtype == expected[variable].dtype


def test_infinite_attributes_are_text_in_json_and_numbers_in_virtualds(archive: Archive) -> None:
    path = references(archive, "attributes")
    assert by_kerchunk(path).attrs["infinity"] == "Infinity"
    assert by_zarr_python(path).attrs["nan"] == "NaN"
    ours = xr.open_dataset(path, engine="virtual").attrs
    assert ours["infinity"] == np.inf
    assert np.isnan(ours["nan"])
    assert type(ours["nan"]) is np.float32


@pytest.mark.parametrize("reader", READERS)
def test_others_read_many_files_that_we_joined(
    reader: str, archive_files: list[Path], tmp_path: Path
) -> None:
    with virtualds.set_options(small_variable=0):
        joined = virtualds.open_virtual_mfdataset(archive_files)
    joined.virtual.to_manifest(tmp_path / "refs.json")
    expected = xr.concat(
        [xr.load_dataset(p) for p in archive_files], "time", data_vars="minimal", join="exact",
        coords="minimal", compat="override",
    )  # fmt: skip
    found = READERS[reader](tmp_path / "refs.json").load()
    xr.testing.assert_identical(with_json_attributes(found), with_json_attributes(expected))


@pytest.mark.parametrize("reader", ["zarr-python", "kerchunk"])
def test_others_read_our_templates(reader: str, archive_files: list[Path], tmp_path: Path) -> None:
    joined = virtualds.open_virtual_mfdataset(archive_files)
    joined.virtual.to_manifest(tmp_path / "plain.json")
    joined.virtual.to_manifest(tmp_path / "named.json", templates=True)
    assert "{{u0}}" in (tmp_path / "named.json").read_text()
    found = READERS[reader](tmp_path / "named.json").load()
    xr.testing.assert_identical(found, READERS[reader](tmp_path / "plain.json").load())


@pytest.mark.parametrize("reader", ["zarr-python", "kerchunk"])
def test_others_read_files_of_awkward_names(reader: str, tmp_path: Path) -> None:
    source = tmp_path / "a b#c%20d.nc"
    CASES["contiguous"].write(source)
    ds = virtualds.open_virtual_dataset(source, loadable_variables=[])
    ds.virtual.to_manifest(tmp_path / "refs.json")
    found = READERS[reader](tmp_path / "refs.json").load()
    xr.testing.assert_identical(found, CASES["contiguous"].native(source))


# ---------------------------------------------------------------------- we read what they write


def kerchunk_scans(path: Path, inline: int) -> dict[str, Any]:
    # it holds h5py's lock while zarr-python works for it in another thread: if garbage of h5py
    # were collected there, both would wait for ever
    gc.disable()
    try:
        found = kerchunk_hdf.SingleHdf5ToZarr(str(path), inline_threshold=inline, error="raise")
        refs: dict[str, Any] = found.translate()
        return refs
    finally:
        gc.enable()


def kerchunk_writes(path: Path, target: Path, inline: int) -> None:
    target.write_text(json.dumps(kerchunk_scans(path, inline)))


def virtualizarr_writes(path: Path, target: Path, inline: int) -> None:
    virtualizarr = peer("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    vds = virtualizarr.open_virtual_dataset(
        f"file://{path}",
        registry=virtualizarr_registry(),
        parser=parsers.HDFParser(),
        # inline is what it loads
        loadable_variables=None if inline else [],
        decode_times=False,
    )
    vds.vz.to_kerchunk(str(target), format="json")


WRITERS: dict[str, Callable[[Path, Path, int], None]] = {
    "kerchunk": kerchunk_writes,
    "virtualizarr": virtualizarr_writes,
}

CANNOT_WRITE: dict[str, dict[str, str]] = {
    "kerchunk": {
        "chunked_and_filtered": "fletcher32",
        "scalars": "too many indices",
        "compound_types": "data type",
        "compound_types_within_others": "data type",
        "opaque_types": "data type",
        "scaleoffset": "supported by kerchunk",
        "nbit": "supported by kerchunk",
        "filters_of_plugins": "supported by kerchunk",
        "filters_of_netcdf": "supported by kerchunk",
        # with a zarr-python that minds; otherwise it writes it wrong, see below
        "zero_length": "Chunk size must be positive",
    },
    "virtualizarr": {
        "unlimited_of_different_lengths": "conflicting sizes",
        "zero_length": "conflicting sizes",
        "strings_of_fixed_length": "conflicting sizes",
        "two_dimensional_scale": "conflicting sizes",
        "anonymous_dimensions": "conflicting sizes",
        "shorter_without_any_fill": "conflicting sizes",
        "external_files": "conflicting sizes",
        "virtual_datasets": "conflicting sizes",
        "virtual_datasets_that_references_cannot_hold": "conflicting sizes",
        "compound_types_within_others": "structured data type",
        "links": "component not found",
        "scaleoffset": "scaleoffset",
        "nbit": "Unknown filter: 5",
        "filters_of_plugins": "blosc2",
        "filters_of_netcdf": "imagecodecs_bz2",
    },
}

WRITES_WRONG: dict[str, dict[str, tuple[type[Exception], str]]] = {
    "kerchunk": {
        # it gives one name to dimensions of different lengths
        "unlimited_of_different_lengths": (FormatError, "contradicts itself"),
        "zero_length": (FormatError, "contradicts itself"),
        "strings_of_fixed_length": (FormatError, "contradicts itself"),
        "two_dimensional_scale": (FormatError, "contradicts itself"),
        "anonymous_dimensions": (FormatError, "contradicts itself"),
        "shorter_without_any_fill": (FormatError, "contradicts itself"),
        "external_files": (FormatError, "contradicts itself"),
        "virtual_datasets": (FormatError, "contradicts itself"),
        "virtual_datasets_that_references_cannot_hold": (FormatError, "contradicts itself"),
        # it passes over HDF5's filter mask, so that chunks do not decode
        "filter_mask_per_chunk": (ReadError, "do not decode"),
    },
    "virtualizarr": {
        "filter_mask_per_chunk": (ReadError, "do not decode"),
        # it forgets the bytes between members
        "compound_types": (ReadError, "do not decode"),
    },
}

ZARR_PYTHON_READS_WRONG: dict[str, set[str]] = {
    "kerchunk": set(),
    # scalars come out as fill, strings of varying length as objects, and a fill value of opaque
    # bytes is an error of xarray: there, we agree with netCDF4
    "virtualizarr": {
        "opaque_types",
        "scalars",
        "strings_of_varying_length",
        "two_dimensional_coordinates",
        "written_by_xarray",
    },
}

LISTED_WRONG = {
    name
    for axis in ("second", "middle", "last")
    for name in HDF5
    if name.startswith(f"chunk_index_{axis}_axis_unlimited") and "b_tree" not in name
}
"""Of these HDF5's own list of chunks is wrong, which the others take for their references."""

NO_FILL_OF_HDF5 = {
    # VirtualiZarr writes HDF5's fill value for _FillValue, so that unwritten values are masked
    "crs"
}


WRITTEN = [name for name in HDF5 if CASES[name].group is None and name not in LISTED_WRONG]


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize(("name", "writer", "inline"), list(every_pair(WRITTEN, WRITERS, [0, 300])))
def test_virtualds_reads_references_of_other_tools(
    name: str, writer: str, inline: int, archive: Archive, tmp_path: Path
) -> None:
    target = tmp_path / "refs.json"
    try:
        WRITERS[writer](archive.path(name), target, inline)
    except (ValueError, RuntimeError, NotImplementedError, LookupError) as error:
        assert CANNOT_WRITE[writer][name] in str(error)
        return
    if name in WRITES_WRONG[writer]:
        error, message = WRITES_WRONG[writer][name]
        with pytest.raises(error, match=message):
            xr.open_dataset(target, engine="virtual").load()
        return
    found = with_json_attributes(xr.open_dataset(target, engine="virtual").load())
    if name in ZARR_PYTHON_READS_WRONG[writer]:
        expected = archive.native(name).drop_vars(NO_FILL_OF_HDF5, errors="ignore")
        found = found.drop_vars(NO_FILL_OF_HDF5, errors="ignore")
        if name == "opaque_types":
            # VirtualiZarr writes HDF5's fill value of these dates, too
            del found["t"].attrs["_FillValue"]
    else:
        expected = by_kerchunk(target).load()
    if (writer, name) == ("virtualizarr", "strings_of_varying_length"):
        # it says that "" fills, which in Zarr v2 xarray takes for missing, as we do; this way not
        texts = [n for n, v in expected.variables.items() if v.dtype.kind in "UT"]
        masked = {n: expected[n].astype(object).where(expected[n] != "", np.nan) for n in texts}
        expected = expected.assign(masked)
    xr.testing.assert_identical(found, with_json_attributes(expected))


@pytest.mark.parametrize("inline", [0, 300])
def test_virtualds_reads_sets_that_kerchunk_combined(
    inline: int, archive_files: list[Path], tmp_path: Path
) -> None:
    singles = [kerchunk_scans(path, inline) for path in archive_files]
    combined = kerchunk_combine.MultiZarrToZarr(
        singles,
        concat_dims=["time"],
        identical_dims=["lat", "lon"],
        coo_map={"time": "cf:time"},
        inline_threshold=inline,
        remote_protocol="file",
    )
    target = tmp_path / "refs.json"
    target.write_text(json.dumps(combined.translate()))
    found = xr.open_dataset(target, engine="virtual").load()
    assert found.sizes["time"] == 24
    xr.testing.assert_identical(found, by_kerchunk(target).load())


@pytest.mark.parametrize("inline", [0, 300])
def test_references_of_kerchunk_are_written_again(
    inline: int, archive_files: list[Path], tmp_path: Path
) -> None:
    kerchunk_writes(archive_files[0], tmp_path / "theirs.json", inline)
    ds = virtualds.open_virtual_dataset(tmp_path / "theirs.json", loadable_variables=[])
    ds.virtual.to_manifest(tmp_path / "ours.json")
    xr.testing.assert_identical(
        by_kerchunk(tmp_path / "ours.json").load(), by_kerchunk(tmp_path / "theirs.json").load()
    )


# ---------------------------------------------------------------------- kerchunk-parquet

ENGINES = ("pyarrow", "fastparquet")


def by_fsspec(path: Path, engine: str) -> xr.Dataset:
    pytest.importorskip(engine, reason="fsspec reads Parquet with it")
    mapper = reference.LazyReferenceMapper(str(path), fsspec.filesystem("file"), engine=engine)
    filesystem = reference.ReferenceFileSystem(
        mapper, remote_protocol="file", asynchronous=True, skip_instance_cache=True
    )
    store = zarr.storage.FsspecStore(filesystem, read_only=True)
    return xr.open_zarr(store, consolidated=False, zarr_format=2, chunks=None)


def has_missing_chunks(path: Path) -> bool:
    with xr.open_dataset(path, engine="virtual", decode_cf=False) as ds:
        names = list(ds.variables)
    group = open_group(Location.of(path))
    manifests = [
        group.variables[name].data.manifest.loaded()
        for name in names
        if isinstance(group.variables[name].data, virtualds.ManifestArray)
    ]
    return any((manifest.file == MISSING).any() for manifest in manifests)


@pytest.mark.sampled(3)
@pytest.mark.product
@pytest.mark.parametrize(("name", "engine"), read_with([], ENGINES))
def test_fsspec_reads_our_parquet(name: str, engine: str, archive: Archive) -> None:
    path = references(archive, name, ".parquet")
    if cause := ONLY_HERE.get(name):
        by_fsspec(references(archive, "contiguous", ".parquet"), engine)  # it is there and works
        with pytest.raises((TypeError, ValueError), match=cause):
            by_fsspec(path, engine).load()
        return
    if engine == "pyarrow" and has_missing_chunks(path):
        # pandas 3 reads a url that is null as NaN, which fsspec takes for a url
        with pytest.raises(TypeError, match="float"):
            by_fsspec(path, engine).load()
        return
    found = without_gaps(with_json_attributes(by_fsspec(path, engine).load()))
    expected = by_zarr_python(references(archive, name, ".json")).load()
    xr.testing.assert_identical(found, without_gaps(with_json_attributes(expected)))


@pytest.mark.parametrize("engine", ENGINES)
def test_fsspec_reads_many_records_of_ours(
    engine: str, archive_files: list[Path], tmp_path: Path
) -> None:
    with virtualds.set_options(small_variable=0):
        joined = virtualds.open_virtual_mfdataset(archive_files)
    joined.virtual.to_manifest(tmp_path / "refs.json")
    joined.virtual.to_manifest(tmp_path / "refs.parquet", record_size=5)
    assert len(list((tmp_path / "refs.parquet").rglob("refs.*.parq"))) == 8
    found = by_fsspec(tmp_path / "refs.parquet", engine).load()
    xr.testing.assert_identical(found, by_zarr_python(tmp_path / "refs.json").load())


def test_kerchunk_opens_our_parquet(archive_files: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("fastparquet", reason="fsspec reads Parquet with it by default")
    joined = virtualds.open_virtual_mfdataset(archive_files)
    joined.virtual.to_manifest(tmp_path / "refs.json")
    joined.virtual.to_manifest(tmp_path / "refs.parquet", record_size=5)
    found = xr.open_dataset((tmp_path / "refs.parquet").as_posix(), engine="kerchunk").load()
    xr.testing.assert_identical(found, by_kerchunk(tmp_path / "refs.json").load())


def test_virtualizarr_opens_our_parquet(archive_files: list[Path], tmp_path: Path) -> None:
    virtualizarr = peer("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    joined = virtualds.open_virtual_mfdataset(archive_files)
    joined.virtual.to_manifest(tmp_path / "refs.json")
    joined.virtual.to_manifest(tmp_path / "refs.parquet", record_size=5)
    found = virtualizarr.open_virtual_dataset(
        f"file://{tmp_path}/refs.parquet",
        registry=virtualizarr_registry(),
        parser=parsers.KerchunkParquetParser(),
        loadable_variables=list(joined.variables),
    )
    xr.testing.assert_identical(found.load(), by_virtualizarr(tmp_path / "refs.json").load())


def fsspec_writes(engine: str) -> Callable[[dict[str, Any], Path], None]:
    def write(refs: dict[str, Any], target: Path) -> None:
        pytest.importorskip(engine, reason="fsspec writes Parquet with it")
        out = reference.LazyReferenceMapper.create(str(target), record_size=5, engine=engine)
        for key in sorted(refs):
            out[key] = refs[key]
        out.flush()

    return write


def kerchunk_frames(refs: dict[str, Any], target: Path) -> None:
    pytest.importorskip("fastparquet", reason="kerchunk writes Parquet with it")
    kerchunk_df.refs_to_dataframe(refs, str(target), record_size=5)


PARQUET_WRITERS: dict[str, Callable[[dict[str, Any], Path], None]] = {
    **{engine: fsspec_writes(engine) for engine in ENGINES},
    "kerchunk": kerchunk_frames,
}


@pytest.mark.parametrize("inline", [0, 300])
@pytest.mark.parametrize("writer", PARQUET_WRITERS)
def test_virtualds_reads_the_parquet_of_other_tools(
    writer: str, inline: int, archive_files: list[Path], tmp_path: Path
) -> None:
    combined = kerchunk_combine.MultiZarrToZarr(
        [kerchunk_scans(path, inline) for path in archive_files],
        concat_dims=["time"],
        identical_dims=["lat", "lon"],
        coo_map={"time": "cf:time"},
        inline_threshold=inline,
        remote_protocol="file",
    ).translate()
    (tmp_path / "refs.json").write_text(json.dumps(combined))
    # some chunks are not there
    lost = [key for key in combined["refs"] if key.endswith((".0.0", ".1.0"))][3:9]
    for key in lost:
        del combined["refs"][key]
    PARQUET_WRITERS[writer](combined["refs"], tmp_path / "refs.parquet")
    (tmp_path / "lost.json").write_text(json.dumps(combined))
    found = xr.open_dataset(tmp_path / "refs.parquet", engine="virtual").load()
    expected = xr.open_dataset(tmp_path / "lost.json", engine="virtual").load()
    xr.testing.assert_identical(found, expected)
    assert found.sizes["time"] == 24


@pytest.mark.parametrize("name", ["contiguous", "chunked_and_filtered"])
def test_we_read_the_parquet_of_virtualizarr(name: str, archive: Archive, tmp_path: Path) -> None:
    virtualizarr = peer("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    vds = virtualizarr.open_virtual_dataset(
        f"file://{archive.path(name)}",
        registry=virtualizarr_registry(),
        parser=parsers.HDFParser(),
        loadable_variables=[],
        decode_times=False,
    )
    vds.vz.to_kerchunk(str(tmp_path / "refs.json"), format="json")
    vds.vz.to_kerchunk(str(tmp_path / "refs.parquet"), format="parquet")
    found = xr.open_dataset(tmp_path / "refs.parquet", engine="virtual").load()
    expected = xr.open_dataset(tmp_path / "refs.json", engine="virtual").load()
    xr.testing.assert_identical(found, expected)
