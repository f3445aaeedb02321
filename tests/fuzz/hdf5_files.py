"""HDF5 files made at random: `write` gives the same structure for the same number.

Variants of one number have the same structure and other values, other lengths of unlimited
dimensions, and other addresses.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import h5py
import numpy as np
from fuzz.hdf5_datasets import Axis, Context, write_attributes, write_dataset
from fuzz.hdf5_library import SHARED_MESSAGES, set_property
from fuzz.hdf5_netcdf import write_h5netcdf, write_netcdf4
from fuzz.hdf5_types import choose
from h5py import h5f, h5g, h5p

TRACKED, INDEXED = h5p.CRT_ORDER_TRACKED, h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED
REWRITE = (
    *(["h5repack"], ["h5repack", "-L"], ["h5repack", "-f", "GZIP=1"], ["h5repack", "-l", "CONTI"]),
    *(["h5repack", "-L", "-c", "1", "-d", "0"], ["h5repack", "-S", "PAGE", "-G", "4096"]),
    *(["nccopy"], ["nccopy", "-d", "2", "-s"], ["nccopy", "-u"]),
)
"""How tools of HDF5 and netCDF-C are called."""
STRATEGIES = ("FSM_AGGR", "PAGE", "AGGR", "NONE")


def write(path: Path, number: int, variant: int | None = None) -> str:
    """Write a file, and return the name of the library that did.

    Only of variants does no more than the length of ``time`` differ, so that they can be joined.
    """
    rng = Random(f"structure {number}")
    values = np.random.default_rng([number, variant or 0])
    names = tuple(WRITERS)
    [name] = rng.choices(names, [WRITERS[n][0] for n in names])
    WRITERS[name][1](path, rng, values, variant is not None)
    _rewrite(path, rng)
    return name


def _rewrite(path: Path, rng: Random) -> None:
    """Have a tool rewrite some files, where it is installed; it keeps those it cannot read."""
    command = rng.choice(REWRITE)
    if rng.random() < 0.8 or shutil.which(command[0]) is None:
        return
    copy = path.with_suffix(".rewritten")
    done = subprocess.run([*command, str(path), str(copy)], capture_output=True, timeout=60)
    if done.returncode == 0 and copy.exists():
        copy.replace(path)
    copy.unlink(missing_ok=True)


# ---------------------------------------------------------------------- settings of a file


def _versions(rng: Random) -> tuple[int, int]:
    """Return the bounds of versions; not all pairs are ascending."""
    known = [h5f.LIBVER_EARLIEST, h5f.LIBVER_V18, h5f.LIBVER_V110, h5f.LIBVER_V112]
    known += [getattr(h5f, n) for n in ("LIBVER_V114", "LIBVER_V200") if hasattr(h5f, n)]
    low = rng.choice((0, 0, 0, *range(len(known))))
    # the highest is what "latest" means
    high = rng.choice((len(known) - 1, rng.randrange(max(1, low), len(known))))
    return known[low], known[high]


def _creation(rng: Random, newest: int, shared: bool) -> Any:
    """Return how a file is made: sizes, user block, shared messages, free space, B-trees."""
    plist = h5p.create(h5p.FILE_CREATE)
    if rng.random() < 0.15:
        plist.set_userblock(rng.choice((512, 1024, 2048, 4096)))
    if rng.random() < 0.2:
        plist.set_sizes(rng.choice((4, 8)), rng.choice((4, 8)))
    if rng.random() < 0.25 and newest >= h5f.LIBVER_V110:
        strategy = getattr(h5f, f"FSPACE_STRATEGY_{rng.choice(STRATEGIES)}")
        plist.set_file_space_strategy(strategy, rng.random() < 0.5, rng.choice((1, 100)))
        plist.set_file_space_page_size(rng.choice((512, 4096)))
    if rng.random() < 0.15:
        set_property(plist, "H5Pset_sym_k", rng.choice((2, 16, 32)), rng.choice((1, 4, 9)))
    if rng.random() < 0.15:
        set_property(plist, "H5Pset_istore_k", rng.choice((2, 3, 40)))
    if shared:
        _share_messages(plist, rng)
    _set_group(plist, rng)
    return plist


def _share_messages(plist: Any, rng: Random) -> None:
    count = rng.choice((1, 1, 2))
    set_property(plist, "H5Pset_shared_mesg_nindexes", count)
    names = rng.sample(sorted(SHARED_MESSAGES), k=len(SHARED_MESSAGES))
    for index in range(count):
        flags = sum(SHARED_MESSAGES[name] for name in names[index::count][: rng.choice((2, 5))])
        set_property(plist, "H5Pset_shared_mesg_index", index, flags, rng.choice((1, 30)))
    if rng.random() < 0.4:
        # as a B-tree at once, not as a list
        set_property(plist, "H5Pset_shared_mesg_phase_change", 0, 0)


def _set_group(plist: Any, rng: Random) -> None:
    if rng.random() < 0.4:
        plist.set_link_creation_order(rng.choice((TRACKED, INDEXED)))
    if rng.random() < 0.3:
        plist.set_attr_creation_order(rng.choice((TRACKED, INDEXED)))
    if rng.random() < 0.2:
        set_property(plist, "H5Pset_link_phase_change", *rng.choice(((0, 0), (3, 2), (30, 6))))
    if rng.random() < 0.1:
        plist.set_attr_phase_change(*rng.choice(((0, 0), (2, 1), (20, 10))))


def _open_new(path: Path, rng: Random, shared: bool) -> h5py.File:
    access = h5p.create(h5p.FILE_ACCESS)
    bounds = _versions(rng)
    access.set_libver_bounds(*bounds)
    if rng.random() < 0.2:
        access.set_meta_block_size(rng.choice((0, 512, 8192)))
    if rng.random() < 0.1:
        access.set_alignment(1, rng.choice((64, 512)))
    made = _creation(rng, bounds[1], shared)
    return h5py.File(h5f.create(str(path).encode(), h5f.ACC_TRUNC, made, access))


# ---------------------------------------------------------------------- h5py


def _write_h5py(path: Path, rng: Random, values: Any, alike: bool) -> None:
    shared = rng.random() < 0.2
    with _open_new(path, rng, shared) as file:
        shifted = rng.random() < 0.6
        if shifted:
            # deleted at the end, it leaves a hole of another size in every variant
            file["unrelated"] = np.zeros(int(values.integers(1, 3000)), "u1")
        target = file.create_dataset("target", data=values.integers(0, 99, 6).astype("i2"))
        context = Context(rng, values, (file["/"], target), _commit_types(file, rng), alike)
        axes = _make_axes(rng, values, alike)
        scales = _write_scales(file, axes, context)
        _write_group(file["/"], axes, scales, context, 0)
        _write_links(file, path, rng)
        if shifted:
            del file["unrelated"]
    # HDF5 2.0 cannot close a file with shared messages that was opened again
    if rng.random() < 0.25 and not shared:
        with h5py.File(path, "r+") as file:
            _write_later(file, rng, values)


def _commit_types(file: h5py.File, rng: Random) -> tuple[Any, ...]:
    if rng.random() < 0.7:
        return ()
    for number in range(rng.choice((1, 2))):
        kind = choose(rng, ("integer", "float", "compound", "enum", "text", "array"))
        kind.stored.commit(file.id, f"type{number}".encode())
    return tuple(one for one in file.values() if isinstance(one, h5py.Datatype))


def _make_axes(rng: Random, values: Any, alike: bool) -> list[Axis]:
    """Return dimensions, of which the length of the first differs between variants."""
    axes = [Axis("time", int(values.integers(1, 7)), True)]
    axes += [Axis(name, rng.choice((1, 2, 3, 5, 9))) for name in ("y", "x", "z")]
    if rng.random() < 0.3 and not alike:
        axes[1] = Axis("y", int(values.integers(1, 5)), True)
    if rng.random() < 0.05:
        axes[2] = Axis("x", 0)
    return axes


def _write_scales(file: h5py.File, axes: list[Axis], context: Context) -> dict[str, Any]:
    """Write dimension scales: with values, without any, or named like no variable."""
    rng, scales = context.rng, {}
    for number, axis in enumerate(axes):
        if rng.random() < 0.25 and not (context.alike and axis.unlimited):
            continue
        longest = (None if axis.unlimited else axis.size,)
        kind = rng.choice(("f8", "f4", "i4", ">i2"))
        scale = file.create_dataset(axis.name, (axis.size,), kind, maxshape=longest)
        first = context.values.integers(10) if axis.unlimited else rng.randrange(10)
        scale[...] = np.arange(axis.size) + first
        way = rng.choice(("", axis.name, "This is a netCDF dimension but not a netCDF variable."))
        scale.make_scale(f"{way}{axis.size:10}" if way[:4] == "This" else way)
        if rng.random() < 0.3:
            scale.attrs["_Netcdf4Dimid"] = np.int32(number)
        write_attributes(scale, rng.choice((0, 2, 5)), context)
        scales[axis.name] = scale
    return scales


def _write_group(
    group: Any, axes: list[Axis], scales: dict[str, Any], context: Context, depth: int
) -> None:
    """Write attributes, datasets, many small datasets, and groups below."""
    rng = context.rng
    write_attributes(group, rng.choice((0, 1, 1, 3, 3, 12, 30)), context)
    for number in range(rng.choice((1, 2, 4, 6)) - (depth > 0)):
        name = f"v{number}" if rng.random() < 0.9 else f"variable ü {number}"
        chosen = sorted(rng.sample(axes, k=rng.choice((0, 1, 1, 2, 2, 3))), key=axes.index)
        if rng.random() < 0.2:
            rng.shuffle(chosen)
        dataset = write_dataset(group, name, chosen, context)
        if dataset is None:
            continue
        if dataset.shape and len(dataset.shape) == len(chosen):
            _attach(dataset, chosen, scales, context)
        write_attributes(dataset, rng.choice((0, 1, 2, 4, 14)), context)
    if rng.random() < 0.1:
        for number in range(rng.choice((10, 40))):
            group[f"{rng.choice('abc')}{number}"] = np.int16(number)
    for number in range(rng.choice((0, 0, 1, 2)) if depth < 3 else 0):
        plist = h5p.create(h5p.GROUP_CREATE)
        _set_group(plist, rng)
        inner = h5py.Group(h5g.create(group.id, f"group{number}".encode(), gcpl=plist))
        inherits = rng.random() < 0.7 or context.alike
        _write_group(inner, axes, scales if inherits else {}, context, depth + 1)


def _attach(dataset: Any, axes: list[Axis], scales: dict[str, Any], context: Context) -> None:
    rng = context.rng
    if rng.random() < 0.2 and not context.alike:
        return
    for number, axis in enumerate(axes):
        scale = scales.get(axis.name)
        if scale is not None and dataset.shape[number] == scale.shape[0]:
            dataset.dims[number].attach_scale(scale)
            if rng.random() < 0.1:
                dataset.dims[number].label = f"label {number}"


def _is_dataset(group: Any, name: str) -> bool:
    return group.get(name, getclass=True, getlink=True) is h5py.HardLink and isinstance(
        group[name], h5py.Dataset
    )


def _write_links(file: h5py.File, path: Path, rng: Random) -> None:
    """Write soft, external and second hard links, broken and circular ones among them."""
    if rng.random() < 0.7:
        return
    groups = [name for name in file if isinstance(file.get(name), h5py.Group)]
    where = file[rng.choice(groups)] if groups and rng.random() < 0.5 else file
    makes: list[Callable[[], Any]] = [
        lambda: where.__setitem__("soft", h5py.SoftLink("/target")),
        lambda: where.__setitem__("relative", h5py.SoftLink("v0")),
        lambda: where.__setitem__("hard", file["target"]),
        lambda: where.__setitem__("broken", h5py.SoftLink("/nowhere")),
        lambda: where.__setitem__("circular", file["/"]),
        lambda: where.__setitem__("outside", h5py.ExternalLink("none.h5", "/v")),
        lambda: where.__setitem__("itself", h5py.ExternalLink(path.name, "/target")),
    ]
    for make in rng.sample(makes, k=rng.choice((1, 1, 2, 4))):
        make()


def _write_later(file: h5py.File, rng: Random, values: Any) -> None:
    """Add attributes and a dataset, which need continuation blocks and nodes that split."""
    context = Context(rng, values, (file["/"], file["target"]))
    owners = [file[name] for name in sorted(file) if _is_dataset(file, name)]
    for owner in (file, *owners):
        write_attributes(owner, rng.choice((0, 1, 6)), context, "later")
    write_dataset(file["/"], "later", [Axis("", 4)], context)


Writer = Callable[[Path, Random, Any, bool], None]
WRITERS: dict[str, tuple[int, Writer]] = {
    "h5py": (7, _write_h5py),
    "netCDF4": (2, write_netcdf4),
    "h5netcdf": (1, write_h5netcdf),
}
"""How often, and by what."""
