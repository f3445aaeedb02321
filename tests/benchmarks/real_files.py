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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import virtualds
from virtualds.errors import VirtualdsError


class Found(NamedTuple):
    """A variable as the native reader has it; only these attributes are compared."""

    group: str
    name: str
    values: Any
    attributes: Mapping[str, Any] = {}


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
    """Suffixes of files, the parser of virtualds, and the native reader.

    ``decode_cf`` says that the native values are scaled.
    """

    suffixes: tuple[str, ...]
    parser: str
    read: Callable[[Path], Iterator[Found]]
    decode_cf: bool = False


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
                    for keyword, value in unit.header.items()
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


def in_native_order(values: Any) -> Any:
    """Return values in the byte order of the machine."""
    return np.asarray(values).astype(values.dtype.newbyteorder("="), copy=False)


KINDS = {
    "fits": Kind((".fits", ".fit", ".fts", ".fz"), "fits", read_fits, decode_cf=True),
    "tiff": Kind((".tif", ".tiff", ".btf"), "tiff", read_tiff),
    "geotiff": Kind((".tif", ".tiff", ".btf"), "tiff", read_geotiff),
}

# ---------------------------------------------------------------------- comparison


def judge(path: Path, kind: Kind) -> Outcome:
    """Read a file with both readers, and say what comes of it."""
    try:
        expected = list(kind.read(path))
    except Exception as error:  # noqa: BLE001 - whatever a native reader raises
        return Outcome("left out", f"{type(error).__name__}: {error}")
    if not expected:
        return Outcome("left out", "nothing to compare")
    try:
        return compare(path, kind, expected)
    except VirtualdsError as error:
        return Outcome("refused", shorten(path, error))
    except Exception as error:  # noqa: BLE001 - these errors are what is looked for
        return Outcome("crashed", f"{type(error).__name__}: {error}")


def compare(path: Path, kind: Kind, expected: Sequence[Found]) -> Outcome:
    """Compare what virtualds reads with what the native reader found."""
    opened: dict[str, Any] = {}
    for found in expected:
        if found.group not in opened:
            options: dict[str, Any] = {"group": found.group or None, "parser": kind.parser}
            options["decode_cf"] = kind.decode_cf
            opened[found.group] = virtualds.open_virtual_dataset(path, **options)
        where = f"{found.group}/{found.name}"
        if found.name not in opened[found.group].variables:
            return Outcome("wrong", f"{where} is not there")
        if why := differ(opened[found.group][found.name], found):
            return Outcome("wrong", f"{where}: {why}")
    return Outcome("equal")


def differ(variable: Any, found: Found) -> str:
    """Say how a variable differs from the native one; nothing if it does not."""
    values, native = np.asarray(variable.values), np.asarray(found.values)
    if (values.dtype, values.shape) != (native.dtype, native.shape):
        return f"{values.dtype}{values.shape}, natively {native.dtype}{native.shape}"
    if values.tobytes() != native.tobytes():
        return f"{np.sum(values != native)} of {values.size} values differ"
    for name, value in found.attributes.items():
        if name not in variable.attrs:
            return f"attribute {name!r} is not there, natively {value!r}"
        if not is_same(variable.attrs[name], value):
            return f"attribute {name!r} is {variable.attrs[name]!r}, natively {value!r}"
    return ""


def is_same(attribute: Any, native: Any) -> bool:
    """Say whether attributes are equal; numbers may differ as different ways to compute them do."""
    if np.asarray(native).dtype.kind == "f":
        return np.shape(attribute) == np.shape(native) and np.allclose(
            attribute, native, rtol=1e-12
        )
    # a reference system of rasterio is equal to its text
    return bool(native == attribute) or np.array_equal(native, attribute)


def shorten(path: Path, error: Exception) -> str:
    """Return a message without the name of the file, so that equal reasons are counted."""
    text = str(error).replace(path.as_uri(), "FILE").replace(str(path), "FILE")
    return f"{type(error).__name__}: {' '.join(text.split())}"


def list_files(folders: Sequence[Path], suffixes: tuple[str, ...]) -> list[Path]:
    """Return the files of folders that have one of the suffixes, sorted."""
    found = {path for folder in folders for path in [folder, *folder.rglob("*")]}
    return sorted(p.resolve() for p in found if p.suffix.lower() in suffixes and p.is_file())


def main() -> int:
    """Compare all files of folders; return how many are wrong or crashed."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("kind", choices=KINDS)
    arguments.add_argument("folder", nargs="+", type=Path)
    asked = arguments.parse_args()
    # native readers warn and log about files that are odd on purpose
    warnings.simplefilter("ignore")
    logging.disable()
    kind = KINDS[asked.kind]
    outcomes = {path: judge(path, kind) for path in list_files(asked.folder, kind.suffixes)}
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
