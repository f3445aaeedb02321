"""Read files that others made, with the native reader of their kind and with virtualds.

    python tests/benchmarks/real_files.py KIND FOLDER [FOLDER ...]

prints how many files are equal, how many virtualds refuses and why, and which are wrong. A kind is
one function that yields what the native reader finds in a file, and one line in `KINDS`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from found import Found, in_native_order
from native_arrays import read_hdf4, read_netcdf3, read_npy, read_npz
from native_grib import read_grib
from native_hdf5 import read_beside, read_hdf5

import virtualds
from virtualds.errors import VirtualdsError


class Outcome(NamedTuple):
    """What became of a file: a key of `OUTCOMES`, and why."""

    what: str
    why: str = ""


OUTCOMES = {
    "equal": "every variable has the native values, dtypes and attributes",
    "refused": "virtualds says what it cannot read",
    "left out": "the native reader cannot read the file, or has nothing to compare",
    "wrong": "values or attributes differ",
    "crashed": "virtualds raises an error that is not its own",
}


class Kind(NamedTuple):
    """Which files are of a kind, the parser of virtualds, and the native reader.

    A file of one of the suffixes is tried if it begins with one of the signatures, or a multiple of
    512 bytes later. ``decode_cf`` says that the native values are scaled; ``has_names`` that the
    native reader names the groups. Otherwise groups are found by their variables.
    """

    suffixes: tuple[str, ...]
    parser: str
    read: Callable[[Path], Iterator[Found]]
    decode_cf: bool = False
    signatures: tuple[bytes, ...] = (b"",)
    has_names: bool = True


# ---------------------------------------------------------------------- native readers


def read_tiff(path: Path) -> Iterator[Found]:
    """Yield every image of a TIFF file, and its overviews, as tifffile reads them."""
    import tifffile

    with tifffile.TiffFile(path) as file:
        for number, series in enumerate(file.series):
            for level, image in enumerate(series.levels):
                parts = [f"series_{number}"] * bool(number) + [str(level)] * bool(level)
                yield Found("/".join(parts), "band_data", image.asarray())


def read_geotiff(path: Path) -> Iterator[Found]:
    """Yield the coordinates and the reference system of a TIFF file as rioxarray reads them."""
    import rioxarray

    image: Any = rioxarray.open_rasterio(path, cache=False)
    if isinstance(image, list):
        # images of several sizes
        image = image[0]
    if image.rio.crs is None and image.rio.transform().is_identity:
        return
    for name in sorted({"x", "y"} & image.coords.keys()):
        yield Found("", name, image[name].values, image[name].attrs)
    # rasterio says whether two texts are one reference system
    texts = {"crs_wkt", "spatial_ref"} & image.spatial_ref.attrs.keys()
    system = image.spatial_ref.attrs | dict.fromkeys(texts, image.rio.crs)
    yield Found("", "spatial_ref", np.array(0), system)


def read_fits(path: Path) -> Iterator[Found]:
    """Yield every image and every column of a FITS file as astropy reads them."""
    from astropy.io import fits

    taken = set[str]()
    # astropy hides the name that compressed images have by default, or gives it to those without
    with fits.open(path, memmap=False, disable_image_compression=True) as file:
        named = {number for number, unit in enumerate(file) if "EXTNAME" in unit.header}
    with fits.open(path, memmap=False) as file:
        for number, unit in enumerate(file):
            name = unit.name if number in named else ""
            name = name.strip().replace("/", "_")
            name = name or (f"HDU{number}" if number else "PRIMARY")
            if (version := unit.header.get("EXTVER", 1)) != 1:
                name = f"{name}_{version}"
            name = f"{name}_HDU{number}" if name in taken else name
            taken.add(name)
            if isinstance(unit, fits.BinTableHDU | fits.TableHDU):
                yield from read_columns(name, unit)
            elif unit.header["NAXIS"]:
                skipped = {"COMMENT", "HISTORY", "", "SIMPLE", "EXTEND", "BSCALE", "BZERO", "BLANK"}
                cards = {
                    keyword: int(value) if isinstance(value, bool) else value
                    # of a keyword that stands twice astropy takes the first card
                    for keyword, value in reversed(list(unit.header.items()))
                    if keyword not in skipped | {"XTENSION", "BITPIX", "PCOUNT", "GCOUNT"}
                    and not keyword.startswith("NAXIS")
                    and not isinstance(value, fits.card.Undefined)
                    # astropy drops blanks, and an ampersand that is part of a text (4.2.1)
                    and value != ""
                    and not unit.header.cards[keyword].image.rstrip().endswith("&'")
                }
                yield Found("", name, in_native_order(unit.data), cards)


def read_columns(group: str, unit: Any) -> Iterator[Found]:
    """Yield the columns of a table of astropy; what is undefined is NaN, texts end with letters."""
    for column in unit.columns:
        values = np.asarray(unit.data[column.name])
        if values.dtype.kind == "O":
            counts = np.array([np.size(array) for array in values])
            word = "i8" if "Q" in column.format else "i4"
            yield Found(group, f"{column.name}_count", counts.astype(word))
            values = np.concatenate([np.ravel(array) for array in values])
        if values.dtype.kind == "U":
            values = np.char.rstrip(values)
        if column.null is not None and column.ascii and values.dtype.kind == "i":
            # what astropy gives for a text without a number
            values = np.where(values == 0, np.nan, values)
        elif isinstance(column.null, int) and values.dtype.kind in "iuf" and column.bscale is None:
            is_null = values == column.null
            if values.dtype.itemsize < 8:
                values = values.astype("f4" if values.dtype.itemsize < 4 else "f8")
                values[is_null] = np.nan
        attributes = {"units": column.unit} if column.unit else {}
        yield Found(group, column.name, in_native_order(values), attributes)


HDF5 = (b"\x89HDF\r\n\x1a\n",)
OF_HDF5 = (".h5", ".hdf5", ".hdf", ".he5", ".nc", ".nc4", ".cdf", ".mat", ".h5ad", ".nxs", ".nwb")
PLACES = (0, *(512 << k for k in range(12)))
"""Where an HDF5 file can begin, behind a block of its user."""
CLASSIC = (b"CDF\1", b"CDF\2", b"CDF\5")
KINDS = {
    "hdf5": Kind(OF_HDF5, "hdf5", read_hdf5, signatures=HDF5),
    "netcdf3": Kind((".nc", ".nc3", ".cdf"), "netcdf3", read_netcdf3, signatures=CLASSIC),
    "grib": Kind(
        (".grib", ".grib1", ".grib2", ".grb", ".grb2", ".grb1"),
        "grib",
        read_grib,
        decode_cf=True,
        has_names=False,
    ),
    "fits": Kind((".fits", ".fit", ".fts", ".fz"), "fits", read_fits, decode_cf=True),
    "hdf4": Kind((".hdf", ".hdf4", ".h4", ".he2", ".hdfeos"), "hdf4", read_hdf4),
    "tiff": Kind((".tif", ".tiff", ".btf"), "tiff", read_tiff),
    "geotiff": Kind((".tif", ".tiff", ".btf"), "tiff", read_geotiff),
    "dmrpp": Kind((".dmrpp",), "dmrpp", read_beside),
    "npy": Kind((".npy",), "npy", read_npy),
    "npz": Kind((".npz",), "npz", read_npz),
}

# ---------------------------------------------------------------------- comparison


def judge_all(paths: Sequence[Path], name: str) -> dict[Path, Outcome]:
    """Return what becomes of files; a file may end the process that reads it, not this one."""
    context = get_context("spawn")
    outcomes = dict[Path, Outcome]()
    while rest := [path for path in paths if path not in outcomes]:
        receiver, sender = context.Pipe(duplex=False)
        worker = context.Process(target=judge_each, args=(rest, name, sender))
        worker.start()
        sender.close()
        with suppress(EOFError):
            while True:
                path, outcome = receiver.recv()
                outcomes[path] = outcome
        worker.join()
        if rest[0] not in outcomes:
            raise SystemExit("no file can be read here")
    return outcomes


def judge_each(paths: Sequence[Path], name: str, sender: Connection) -> None:
    """Send what becomes of each file; before each reader, what it is if that ends the process."""
    # native readers warn and log about files that are odd on purpose
    warnings.simplefilter("ignore")
    logging.disable()
    for path in paths:
        sender.send((path, Outcome("left out", "the native reader ends the process")))
        try:
            expected, why = list(KINDS[name].read(path)), "nothing to compare"
        except Exception as error:  # noqa: BLE001 - whatever a native reader raises
            expected, why = [], f"{type(error).__name__}: {shorten(path, error)}"
        sender.send((path, Outcome("crashed", "the process ends")))
        outcome = judge(path, KINDS[name], expected)
        if not expected and outcome.what != "crashed":
            outcome = Outcome("left out", why)
        sender.send((path, outcome))


def judge(path: Path, kind: Kind, expected: Sequence[Found]) -> Outcome:
    """Read a file with virtualds, and say what comes of it."""
    try:
        try:
            return compare(path, kind, expected)
        except VirtualdsError as error:
            refused = Outcome("refused", f"{type(error).__name__}: {shorten(path, error)}")
            # what can be read has to be right
            with suppress(VirtualdsError):
                rest = compare(path, kind, expected, on_error="skip")
                return refused if rest.what == "equal" else rest
            return refused
    except Exception as error:  # noqa: BLE001 - these errors are what is looked for
        return Outcome("crashed", f"{type(error).__name__}: {shorten(path, error)}")


def compare(path: Path, kind: Kind, expected: Sequence[Found], **options: Any) -> Outcome:
    """Compare what virtualds reads with what the native reader found."""
    groups = defaultdict[str, list[Found]](list)
    for found in expected:
        groups[found.group].append(found)
    options |= {"parser": kind.parser, "decode_cf": kind.decode_cf}
    if not kind.has_names:
        tree = virtualds.open_virtual_datatree(path, **options)
        nodes = [node.to_dataset() for node in tree.subtree if node.data_vars]
        if len(nodes) > len(groups) and any(found.name == "unknown" for found in expected):
            return Outcome("left out", "cfgrib shows one of several parameters without a name")
        if len(nodes) != len(groups):
            return Outcome("wrong", f"{len(nodes)} datasets, natively {len(groups)}")
    elif not groups:
        virtualds.open_virtual_dataset(path, **options)
    for group, members in groups.items():
        if kind.has_names:
            nodes = [virtualds.open_virtual_dataset(path, group=group or None, **options)]
        names = {found.name for found in members}
        alike = [node for node in nodes if names - {""} <= node.variables.keys()] or nodes[:1]
        is_partial = options.get("on_error") == "skip"
        whys = [differ_somewhere(node, members, is_partial=is_partial) for node in alike]
        if all(whys):
            return Outcome("wrong", min(whys, key=len))
    return Outcome("equal")


def differ_somewhere(dataset: Any, expected: Sequence[Found], *, is_partial: bool) -> str:
    """Say how a dataset differs from native variables; nothing if it does not."""
    for found in expected:
        where = f"{found.group}/{found.name}"
        if found.name and found.name not in dataset.variables:
            if is_partial:
                continue
            return f"{where} is not there"
        member = dataset[found.name] if found.name else dataset
        try:
            why = differ(member, found, is_partial=is_partial)
        except VirtualdsError:
            if is_partial:
                continue
            raise
        if why:
            return f"{where}: {why}"
    return ""


def differ(member: Any, found: Found, *, is_partial: bool = False) -> str:
    """Say how a variable or a group differs from the native one; nothing if it does not."""
    if found.name:
        values, native = np.asarray(member.values), np.asarray(found.values)
        if native.dtype == object and values.dtype.kind == "U":
            # xarray makes loaded texts as wide as the longest
            values = values.astype(object)
        if (values.dtype, values.shape) != (native.dtype, native.shape):
            return f"{values.dtype}{values.shape}, natively {native.dtype}{native.shape}"
        if not has_same_bits(values, native):
            return f"{np.sum(values != native)} of {values.size} values differ"
    for name, value in found.attributes.items():
        if name not in member.attrs:
            if is_partial:
                continue
            return f"attribute {name!r} is not there, natively {value!r}"
        if not is_same(member.attrs[name], value):
            return f"attribute {name!r} is {member.attrs[name]!r}, natively {value!r}"
    return ""


def has_same_bits(values: Any, native: Any) -> bool:
    """Say whether arrays of one type and shape are equal: objects as such, others to the bit."""
    if native.dtype.names:
        # bytes between fields mean nothing
        return all(has_same_bits(values[name], native[name]) for name in native.dtype.names)
    if not native.dtype.hasobject:
        return bool(values.tobytes() == native.tobytes())
    return all(
        has_same_bits(ours, theirs) if isinstance(theirs, np.ndarray) else ours == theirs
        for ours, theirs in zip(values.flat, native.flat, strict=True)
    )


def is_same(attribute: Any, native: Any) -> bool:
    """Say whether attributes are equal; floats may differ as different ways to compute them do."""
    if isinstance(native, list | tuple):
        return len(attribute) == len(native) and all(map(is_same, attribute, native))
    if not isinstance(native, np.ndarray | np.generic | int | float):
        # a reference system of rasterio is equal to its text; xarray has characters as bytes
        return bool(native == attribute) or attribute == str(native).encode()
    ours, theirs = np.asarray(attribute), np.asarray(native)
    is_alike = ours.shape == theirs.shape
    if isinstance(native, np.ndarray | np.generic):
        is_alike &= ours.dtype == theirs.dtype
    if is_alike and theirs.dtype.kind in "fc":
        return np.allclose(ours, theirs, rtol=1e-12, atol=0, equal_nan=True)
    return is_alike and has_same_bits(ours, theirs)


def shorten(path: Path, error: Exception) -> str:
    """Return a message without the name of the file, so that equal reasons are counted."""
    text = str(error).replace(path.as_uri(), "FILE").replace(str(path), "FILE")
    return " ".join(text.split())


def list_files(folders: Sequence[Path], kind: Kind) -> list[Path]:
    """Return the files of a kind, sorted, and one of those with the same content."""
    paths = {path.resolve() for folder in folders for path in [folder, *folder.rglob("*")]}
    found = dict[bytes, Path]()
    for path in sorted(paths, reverse=True):
        if path.suffix.lower() in kind.suffixes and path.is_file():
            content = path.read_bytes()
            if any(content.startswith(kind.signatures, place) for place in PLACES):
                found[sha256(content).digest()] = path
    return sorted(found.values())


def main() -> int:
    """Compare all files of folders; return how many are wrong or crashed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("kind", choices=KINDS)
    arguments.add_argument("folder", nargs="+", type=Path)
    asked = arguments.parse_args()
    outcomes = judge_all(list_files(asked.folder, KINDS[asked.kind]), asked.kind)
    print(f"{asked.kind}: {len(outcomes)} files")
    for what, meaning in OUTCOMES.items():
        reasons = defaultdict[str, list[Path]](list)
        for path, outcome in outcomes.items():
            if outcome.what == what:
                reasons[outcome.why].append(path)
        print(f"  {what}: {sum(map(len, reasons.values()))}  ({meaning})")
        for why, paths in sorted(reasons.items(), key=lambda one: -len(one[1])):
            if why:
                print(f"    {len(paths)} x {why}\n        such as {paths[0]}")
    return sum(outcome.what in ("wrong", "crashed") for outcome in outcomes.values())


if __name__ == "__main__":
    sys.exit(min(main(), 1))
