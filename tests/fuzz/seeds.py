"""Sound files of every kind, made by the libraries of their formats.

`SEEDS` is the table of kinds. What makes the seeds of one returns them all; files are small, since
damage is to be found and thousands of them are read.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cases
import h5py
import hdf5plugin
import numpy as np
import safetensors.numpy
import xarray as xr
import zarr_stores
import zstandard
from cases import CASES
from fuzz.mutations import Files, Seed
from sidecars import write_sidecar

import virtualds

Make = Callable[[], list[Seed]]
SMALL = 60_000
"""Bytes of files that are worth their time."""


def files_of(folder: Path) -> Files:
    """Return the files of a folder by their paths in it."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def made(name: str, suffix: str, write: Callable[[Path], Any]) -> Seed:
    """Return a seed of one file, or of one folder, that is written."""
    with TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        entry = f"a{suffix}"
        write(Path(folder) / entry)
        return Seed(name, files_of(Path(folder)), entry)


def _small(seeds: list[Seed]) -> list[Seed]:
    return [seed for seed in seeds if sum(map(len, seed.files.values())) <= SMALL]


# ---------------------------------------------------------------------- source files


def dense(libver: str) -> Callable[[Path], None]:
    """Many links and attributes, strings, scales and filters, in files old and new."""

    def write(path: Path) -> None:
        with h5py.File(path, "w", libver=libver) as file:
            for number in range(12):
                file.create_dataset(f"name{number}", data=np.arange(3) * number)
                file.attrs[f"attribute{number}"] = f"value {number}"
            x = file.create_dataset("x", data=np.arange(6.0))
            x.make_scale("x")
            v = file.create_dataset(
                "v", data=np.arange(24).reshape(4, 6), maxshape=(None, 6), chunks=(2, 4),
                compression="gzip", shuffle=True, fletcher32=True,
            )  # fmt: skip
            v.dims[1].attach_scale(x)
            text = h5py.string_dtype()
            file.create_dataset("text", data=["a", "bcd", "", "ü"], dtype=text)
            file.create_dataset("chunked_text", (6,), text, chunks=(2,))[:3] = ["x", "yy", "zzz"]
            inner = file.create_group("inner")
            inner["w"] = np.arange(5, dtype=">i2")
            inner["link"] = h5py.SoftLink("/x")

    return write


def heaps(libver: str) -> Callable[[Path], None]:
    """Attributes in dense storage, huge ones among them, and values that refer to the heap."""

    def write(path: Path) -> None:
        text = h5py.string_dtype()
        with h5py.File(path, "w", libver=libver) as file:
            record = [("n", "i4"), ("text", text), ("pair", text, (2,))]
            made = file.create_dataset("record", (3,), record, chunks=(2,), compression="gzip")
            made[:2] = [(1, "a", ["b", "c"]), (2, "de", ["", "f"])]
            lists = file.create_dataset("lists", (3,), h5py.vlen_dtype(np.dtype("i4")))
            lists[0], lists[1] = [1, 2, 3], [4]
            file.create_dataset("filled", (4,), text, fillvalue="fill")
            file["type"] = np.dtype("f4")
            group = file.create_group("many", track_order=True)
            for number in range(12):
                group.attrs[f"attribute {number}"] = np.full(number + 1, number)
            group.attrs["words"] = np.array(["a", "bcd"], text)
            group.attrs.create("committed", 1.5, dtype=file["type"])
            if libver == "latest":
                group.attrs["huge"] = np.arange(600.0)

    return write


def hdf5() -> list[Seed]:
    hdf5plugin.register(force=True)
    chosen = [
        *("contiguous", "chunked_and_filtered", "padded_chunks", "unlimited", "never_written"),
        *("unlimited_of_different_lengths", "several_unlimited", "compact", "user_block"),
        *("filter_mask_per_chunk", "every_float", "packed_int16", "enums", "booleans", "scalars"),
        *("strings_of_varying_length", "character_arrays", "compound_types", "links"),
        *("padded_strings", "cf_conventions", "anonymous_dimensions", "scales_of_h5py"),
        *("attributes", "attributes_of_h5py", "two_dimensional_scale", "scaleoffset", "nbit"),
        *("written_by_xarray", "complex_numbers", "opaque_types", "bitfields"),
        *(name for name in CASES if name.startswith("chunk_index_")),
    ]
    found = [made(name, ".nc", CASES[name].write) for name in chosen if name in CASES]
    for libver in ("earliest", "latest"):
        found.append(made(f"dense {libver}", ".h5", dense(libver)))
        found.append(made(f"heaps {libver}", ".h5", heaps(libver)))
    return _small(found)


def netcdf3() -> list[Seed]:
    chosen = [name for name in CASES if CASES[name].source == "netcdf3"]
    return _small([made(name, ".nc", CASES[name].write) for name in chosen])


def cfa() -> list[Seed]:
    """Aggregation files, of which damage is made, of files that stay as they are."""
    from cfa_files import AggregationWriter, grid_of, write_part

    def write(form: str, path: Path) -> None:
        for n in range(2):
            values, packing = np.arange(6.0).reshape(2, 3) + n, {"units": ("K", "degC")[n]}
            write_part(path.with_name(f"{n}.nc"), values, ("time", "x"), packing, form=form)
        with AggregationWriter(path, form) as file:
            file.add_dims(time=4, x=3)
            uris = grid_of("0.nc", "1.nc", shape=(2, 1))
            file.aggregate("t", "time x", [[2, 2], [3]], uris, units="K", _FillValue=-9.0)
            file.aggregate("n", "time x", [[2, 2], [3]], values=np.array([[1], [2]], "i4"))

    def write_ours(path: Path) -> None:
        parts = [path.with_name(f"{n}.nc") for n in range(2)]
        for n, one in enumerate(parts):
            values = np.arange(6.0).reshape(2, 3) + n
            write_part(one, values, ("time", "x"), {"units": "K"})
        ds = virtualds.open_virtual_mfdataset(parts, combine="nested", concat_dim="time")
        ds.virtual.to_manifest(path, format="cfa", relative_paths=True)

    found = [made(form, ".nc", partial(write, form)) for form in ("NETCDF3_CLASSIC", "NETCDF4")]
    found.append(made("written", ".nc", write_ours))
    return [replace(seed, steady=("0.nc", "1.nc")) for seed in found]


def grib() -> list[Seed]:
    from parsers.test_grib import CASES as GRIB

    def short(name: str) -> bool:
        return "gaussian" not in name and name != "polar"

    return _small([made(name, ".grib", GRIB[name].write) for name in GRIB if short(name)])


def grib_index() -> list[Seed]:
    """An index, of which damage is made, of a file like the template beside it."""
    from parsers.test_grib_index import INDEXES
    from parsers.test_grib_index import write as write_forecast

    def write(kind: str, path: Path) -> None:
        for name, date in (("template", 20240101), ("a", 20240102)):
            INDEXES[kind](write_forecast(path.with_name(f"{name}.grib2"), date, 12, 0, 1))

    found = []
    for kind, suffix in (("wgrib2", ".grib2.idx"), ("ECMWF", ".index")):
        seed = made(kind, suffix, partial(write, kind))
        steady = tuple(name for name in seed.files if name != seed.entry)
        found.append(replace(seed, steady=steady))
    return found


def tiff() -> list[Seed]:
    from parsers.test_tiff import IMAGES

    return _small([made(name, ".tif", image.write) for name, image in IMAGES.items()])


def fits_tables() -> list[Seed]:
    """Tables alone: of columns of every form, in text, of varying length, wide, and of one row."""
    from astropy.io import fits as f

    rng = np.random.default_rng(0)

    def integers(kind: str, *shape: int) -> Any:
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)

    def binary(rows: int) -> list[Any]:
        forms = {"B": "u1", "I": "i2", "J": "i4", "K": "i8"}
        numbers = [f.Column(n.lower(), n, array=integers(k, rows)) for n, k in forms.items()]
        return [
            *numbers,
            f.Column("unsigned", "J", bzero=2**31, array=integers("u4", rows)),
            f.Column("undefined", "J", null=-1, array=np.arange(rows) - 2),
            f.Column("single", "3E", array=rng.normal(size=(rows, 3))),
            f.Column("double", "4D", dim="(2,2)", array=rng.normal(size=(rows, 2, 2))),
            f.Column("complex", "C", array=rng.normal(size=rows) * 1j),
            f.Column("flag", "2L", array=rng.random((rows, 2)) < 0.5),
            f.Column("bits", "11X", array=rng.random((rows, 11)) < 0.5),
            f.Column("text", "5A", array=["a bc", "d", ""][:rows] * (rows // 3 or 1)),
        ]

    texts = [
        f.Column("name", "A6", array=["M31", "NGC 1", "x"]),
        f.Column("short", "I4", array=[1, -2, 999]),
        f.Column("int", "I9", array=[1, -200_000, 999]),
        f.Column("fixed", "F9.3", array=[1.5, -2.25, 0]),
        f.Column("double", "D25.17", array=[1 / 3, -2e-70, 0]),
    ]
    rows = np.empty(3, object)
    rows[:] = [np.arange(3), np.arange(0), np.arange(4)]
    ragged = [f.Column(n, n, array=rows) for n in ("PB()", "PI()", "PJ()", "QD()", "PE()")]
    wide = [f.Column(n, "1500E", array=rng.normal(size=(2, 1500))) for n in "ab"]
    kinds = {
        "binary": [f.BinTableHDU.from_columns(binary(6))],
        "one row": [f.BinTableHDU.from_columns(binary(1), name="T")],
        "text": [f.TableHDU.from_columns(texts, name="T")],
        "varying": [f.BinTableHDU.from_columns([*ragged, *binary(3)], name="T")],
        "wide": [f.BinTableHDU.from_columns(wide)],
        "several": [f.TableHDU.from_columns(texts[:2]), f.BinTableHDU.from_columns(binary(3)[:3])],
    }
    return [
        made(name, ".fits", f.HDUList([f.PrimaryHDU(), *units]).writeto)
        for name, units in kinds.items()
    ]


def fits() -> list[Seed]:
    from astropy.io import fits as f

    def several(path: Path) -> None:
        table = f.BinTableHDU.from_columns([f.Column("a", "J", array=np.arange(5))])
        image = f.ImageHDU(cases.numbers(3, 4, dtype="i2"), name="SECOND")
        f.HDUList([f.PrimaryHDU(), image, table, f.ImageHDU(cases.numbers(5))]).writeto(path)

    def scaled(path: Path) -> None:
        unit = f.PrimaryHDU(np.arange(20, dtype="i2").reshape(4, 5))
        unit.header["BSCALE"], unit.header["BZERO"], unit.header["BLANK"] = 0.5, 10.0, 3
        unit.header["BUNIT"], unit.header["CTYPE1"] = "K", "RA---TAN"
        for number in range(30):
            unit.header[f"KEY{number}"] = (number, "a comment")
        unit.writeto(path)

    def compressed(path: Path) -> None:
        image = f.CompImageHDU(np.arange(200, dtype="i2").reshape(10, 20))
        f.HDUList([f.PrimaryHDU(), image]).writeto(path)

    def tables(path: Path) -> None:
        columns = [
            f.Column("flag", "L", array=[True, False]),
            f.Column("bits", "11X", array=np.eye(2, 11, dtype=bool)),
            f.Column("text", "5A", array=["a", "bc"]),
            f.Column("matrix", "4E", dim="(2,2)", array=np.arange(8.0).reshape(2, 4)),
        ]
        texts = [f.Column("n", "I5", array=[1, 2]), f.Column("x", "E12.4", array=[1.5, 2])]
        units = [f.BinTableHDU.from_columns(columns), f.TableHDU.from_columns(texts)]
        f.HDUList([f.PrimaryHDU(cases.numbers(3)), *units]).writeto(path)

    def masks(path: Path) -> None:
        mask = np.repeat(np.arange(10, dtype="i4"), 20).reshape(10, 20)
        f.HDUList([f.PrimaryHDU(), f.CompImageHDU(mask, compression_type="PLIO_1")]).writeto(path)

    def whole(**how: Any) -> Callable[[Path], None]:
        image = f.CompImageHDU(cases.numbers(24, 20), tile_shape=(6, 20), dither_seed=42, **how)
        return lambda path: f.HDUList([f.PrimaryHDU(), image]).writeto(path)

    def ragged(path: Path) -> None:
        rows = np.empty(3, object)
        rows[:] = [np.arange(3), np.arange(0), np.arange(4)]
        columns = [
            f.Column(name, form, array=rows) for name, form in (("a", "PI()"), ("b", "QD()"))
        ]
        f.HDUList([f.PrimaryHDU(), f.BinTableHDU.from_columns(columns)]).writeto(path)

    def of(kind: str) -> Callable[[Path], None]:
        return lambda path: f.PrimaryHDU(cases.numbers(2, 3, 4, dtype=kind)).writeto(path)

    makes = {"several": several, "scaled": scaled, "compressed": compressed}
    makes |= {"tables": tables, "masks": masks, "ragged": ragged}
    makes |= {
        "quantised": whole(quantize_level=16.0, quantize_method=2),
        "hcompress": whole(quantize_level=16.0, compression_type="HCOMPRESS_1"),
    }
    makes |= {kind: of(kind) for kind in ("u1", "i1", "i2", "u2", "i4", "u4", "i8", "f4", "f8")}
    return [made(name, ".fits", make) for name, make in makes.items()]


def dmrpp() -> list[Seed]:
    def write(path: Path) -> None:
        dense("latest")(path.with_suffix(""))
        write_sidecar(path.with_suffix(""))

    seed = made("sidecar", ".nc.dmrpp", write)
    return [replace(seed, steady=_sources(seed.files))]


def hdf4() -> list[Seed]:
    from hdf4_files import CASES as HDF4
    from hdf4_files import WORLD, write_grids

    def grids(path: Path) -> None:
        write_grids(path, {"fine": ((24, 48), WORLD), "coarse": ((6, 12), WORLD)})

    return _small([made(name, ".hdf", write) for name, write in {**HDF4, "grids": grids}.items()])


ARRAYS: dict[str, Any] = {
    "floats": np.arange(12, dtype="f4").reshape(3, 4),
    "fortran": np.asfortranarray(np.arange(24, dtype=">i2").reshape(2, 3, 4)),
    "record": np.zeros(3, [("a", "<i2"), ("b", ">f4", (2,))]),
    "text": np.array(["ab", "ü"]),
    "bytes": np.array([b"ab", b"c"]),
    "times": np.arange(3).astype("M8[s]"),
    "one": np.float64(0.1),
    "none": np.zeros((0, 3), "i8"),
}


def npy() -> list[Seed]:
    def write(array: Any) -> Callable[[Path], None]:
        return lambda path: np.save(path, array)

    return [made(name, ".npy", write(array)) for name, array in ARRAYS.items()]


def npz() -> list[Seed]:
    def write(path: Path, save: Any, *names: str) -> None:
        out = io.BytesIO()
        save(out, **{name: ARRAYS[name] for name in names})
        path.write_bytes(out.getvalue())

    names = ("floats", "fortran", "bytes", "one")
    return [
        made("stored", ".npz", lambda path: write(path, np.savez, *names)),
        made("deflated", ".npz", lambda path: write(path, np.savez_compressed, *names)),
        made("one", ".npz", lambda path: write(path, np.savez, "floats")),
    ]


def tensors() -> list[Seed]:
    values = {"w": cases.numbers(3, 4), "b": cases.numbers(5, dtype="i8"), "f": np.ones(3, bool)}
    data = safetensors.numpy.save(values, {"made": "here"})
    one = safetensors.numpy.save({"a": np.arange(6, dtype="u2").reshape(2, 3)})
    return [
        Seed("several", {"a.safetensors": data}, "a.safetensors"),
        Seed("one", {"a.safetensors": one}, "a.safetensors"),
    ]


# ---------------------------------------------------------------------- stores and archives


def zarr_of(version: int) -> Make:
    def make() -> list[Seed]:
        stores = {**zarr_stores.V2, **zarr_stores.V3}
        seeds = [
            made(
                f"{name}{' consolidated' * whole}", "", lambda path, s=s, w=whole: s.write(path, w)
            )
            for name, s in stores.items()
            for whole in (False, True)
            if s.version == version and (not whole or name.endswith(("zlib", "zstd", "shard")))
        ]
        name = f"zarr_v{version}"
        whole = [made(name, "", CASES[name].write)]
        if version == 3:
            whole.append(made("zarr_shards", "", CASES["zarr_shards"].write))
        return [*seeds, *whole]

    return make


def archived(form: str) -> Make:
    """Archives of a classic file, whose damage the native reader sees as we do."""

    def make() -> list[Seed]:
        inner = made("one", ".nc", CASES["classic_with_one_record_variable"].write).files["a.nc"]
        more = made("two", ".nc", CASES["classic_of_scipy"].write).files["a.nc"]
        members = {"a.nc": inner, "folder/b.nc": more, "notes.txt": b"see a.nc\n" * 9}
        ways = ("stored", "deflated") if form == "zip" else ("ustar", "pax", "gnu")
        return [
            Seed(way, {f"x.{form}": _archive(form, way, members)}, f"{form}://a.nc::x.{form}")
            for way in ways
        ]

    return make


def _archive(form: str, way: str, members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    if form == "zip":
        how = zipfile.ZIP_STORED if way == "stored" else zipfile.ZIP_DEFLATED
        with zipfile.ZipFile(out, "w", how) as archive:
            for name, data in members.items():
                archive.writestr(zipfile.ZipInfo(name), data, how)
        return out.getvalue()
    forms = {"ustar": tarfile.USTAR_FORMAT, "pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT}
    with tarfile.open(fileobj=out, mode="w", format=forms[way]) as archive_:
        for name, data in members.items():
            # a longer name needs a header of its own before the member
            info = tarfile.TarInfo(name if way == "ustar" or name == "a.nc" else "long" * 40)
            info.size = len(data)
            archive_.addfile(info, io.BytesIO(data))
    return out.getvalue()


# ---------------------------------------------------------------------- reference sets


def _archive_files(folder: Path, count: int = 2) -> list[Path]:
    """Write files along time, with a coordinate, packed numbers, strings and gaps."""
    paths = []
    for number in range(count):
        path = folder / f"{number}.nc"
        ds = xr.Dataset(
            {
                "v": (("time", "y", "x"), cases.numbers(3, 4, 5, seed=number)),
                "packed": (("time", "x"), np.arange(15.0).reshape(3, 5) + number),
                "static": (("y",), np.arange(4, dtype=">i2")),
                "one": 1.5,
            },
            {"time": np.arange(3) + 3 * number, "x": np.arange(5.0)},
            {"title": "a small archive"},
        )
        ds["time"].attrs["units"] = "days since 2001-01-01"
        packing = {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1, "chunksizes": (3, 5)}
        encoding = {"v": {"chunksizes": (1, 2, 5), "zlib": True}, "packed": packing}
        ds.to_netcdf(path, encoding=encoding)
        paths.append(path)
    return paths


def _written(write: Callable[[xr.Dataset, str], Any], entry: str) -> Files:
    """Return a set of two files, and these."""
    with TemporaryDirectory() as name, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        folder = Path(name)
        paths = _archive_files(folder)
        with virtualds.set_options(small_variable=0):
            vds = virtualds.open_virtual_mfdataset([str(path) for path in paths])
            write(vds, str(folder / entry))
        return _without_folders(files_of(folder), folder)


def _without_folders(files: Files, folder: Path) -> Files:
    """Return the files of a set, with paths that are relative."""
    here = f"{folder}/".encode()
    return {
        path: data.replace(b"file://" + here, b"").replace(here, b"")
        if data[:4] != b"PAR1"
        else _without_folder(data, str(folder))
        for path, data in files.items()
    }


def _without_folder(data: bytes, folder: str) -> bytes:
    """Return a table whose paths are relative."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(data))
    columns = {}
    for field in table.schema:
        values = table.column(field.name).to_pylist()
        columns[field.name] = [
            v.replace(f"file://{folder}/", "").replace(f"{folder}/", "")
            if isinstance(v, str)
            else v
            for v in values
        ]
    out = io.BytesIO()
    pq.write_table(pa.table(columns, schema=table.schema), out)
    return out.getvalue()


def _sources(files: Files) -> tuple[str, ...]:
    return tuple(name for name in files if name.endswith(".nc"))


def kerchunk_json() -> list[Seed]:
    files = _written(lambda vds, path: vds.virtual.to_manifest(path), "a.json")
    sources = _sources(files)
    said = json.loads(files["a.json"])
    plain = {"version": 1, "refs": said["refs"]}
    template = json.loads(json.dumps(plain))
    for value in template["refs"].values():
        if isinstance(value, list):
            value[0] = "{{u}}" + value[0] if value[0].startswith("0") else "{{f(c='1')}}"
    template["templates"] = {"u": "", "f": "{{c}}.nc"}
    gen = json.loads(json.dumps(plain))
    metadata = json.loads(gen["refs"]["v/.zarray"])
    keys = [k for k in gen["refs"] if k.startswith("v/0.")]
    place = gen["refs"][keys[0]]
    for key in [k for k in gen["refs"] if k[:2] == "v/" and k[2].isdigit()]:
        del gen["refs"][key]
    metadata |= {"compressor": None, "filters": None, "chunks": [1, 2, 5]}
    gen["refs"]["v/.zarray"] = json.dumps(metadata)
    gen["templates"] = {"u": "0.nc"}
    gen["gen"] = [
        {
            "key": "v/{{i}}.{{j}}.0",
            "url": "{{u}}",
            "offset": "{{" + str(place[1]) + " + i * 4 + j * 2}}",
            "length": "40",
            "dimensions": {"i": {"stop": 6}, "j": [0, 1]},
        }
    ]
    documents = {"ours": said, "plain": plain, "version 0": said["refs"], "gen": gen}
    documents["templates"] = template
    seeds = []
    for name, document in documents.items():
        data = json.dumps(document).encode()
        rest = {source: files[source] for source in sources}
        seeds.append(Seed(name, {**rest, "a.json": data}, "a.json", sources))
        if name in ("plain", "gen"):
            packed = gzip.compress(data, mtime=0)
            seeds.append(Seed(f"{name} gz", {**rest, "a.json.gz": packed}, "a.json.gz", sources))
            packed = zstandard.ZstdCompressor().compress(data)
            seeds.append(Seed(f"{name} zst", {**rest, "a.json.zst": packed}, "a.json.zst", sources))
    return seeds


def kerchunk_parquet() -> list[Seed]:
    seeds = []
    for size in (4, 1000):
        files = _written(
            lambda vds, path, size=size: vds.virtual.to_manifest(path, record_size=size),
            "a.parquet",
        )
        seeds.append(Seed(f"records of {size}", files, "a.parquet", _sources(files)))
    return seeds


def sets() -> list[Seed]:
    seeds = []
    for manifest in ("json", "parquet"):
        files = _written(
            lambda vds, path, m=manifest: vds.virtual.to_manifest(
                path, manifest=m, relative_paths=True
            ),
            "a.zarr",
        )
        seeds.append(Seed(manifest, files, "a.zarr", _sources(files)))

    def mixed(vds: xr.Dataset, path: str) -> None:
        parts = xr.concat([vds.isel(time=slice(1, 3)), vds.isel(time=slice(4, 6))], "time")
        parts.virtual.to_manifest(path, relative_paths=True)

    files = _written(mixed, "a.zarr")
    return [*seeds, Seed("pieces", files, "a.zarr", _sources(files))]


SYNCED = 1_000_000_000
"""When the files of the kind ``sync`` were modified last: a set notes it."""


def sync() -> list[Seed]:
    """Sets that `virtualds.sync` made of two files, beside a third one that is new to them."""
    seeds = []
    for suffix in (".zarr", ".json", ".parquet"):
        with TemporaryDirectory() as name, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            folder = Path(name)
            paths = _archive_files(folder, 3)
            for path in paths:
                os.utime(path, (SYNCED, SYNCED))
            how: Any = {} if suffix == ".parquet" else {"relative_paths": True}
            target, first = str(folder / f"a{suffix}"), [str(path) for path in paths[:2]]
            virtualds.sync(first, target, concat_dim="time", **how)
            found = _without_folders(files_of(folder), folder)
        seeds.append(Seed(suffix, found, f"a{suffix}", _sources(found)))
    return seeds


def icechunk() -> list[Seed]:
    """Repositories; only where Icechunk is installed."""
    files = _written(lambda vds, path: vds.virtual.to_manifest(path), "a.icechunk")
    return [Seed("repository", files, "a.icechunk", _sources(files))]


SEEDS: dict[str, Make] = {
    "hdf5": hdf5,
    "sets": sets,
    "kerchunk-json": kerchunk_json,
    "netcdf3": netcdf3,
    "cfa": cfa,
    "tiff": tiff,
    "grib": grib,
    "grib-index": grib_index,
    "fits": fits,
    "fits-tables": fits_tables,
    "dmrpp": dmrpp,
    "hdf4": hdf4,
    "zarr-v2": zarr_of(2),
    "zarr-v3": zarr_of(3),
    "kerchunk-parquet": kerchunk_parquet,
    "npy": npy,
    "npz": npz,
    "safetensors": tensors,
    "zip": archived("zip"),
    "tar": archived("tar"),
    "sync": sync,
    "icechunk": icechunk,
}
"""What makes the seeds of every kind of file."""
