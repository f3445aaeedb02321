"""Datasets and attributes of HDF5 in every storage, for files that are made at random.

What `random.Random` chooses is structure, and equal in all variants of a file; `Values` differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import h5py
import hdf5plugin
import numpy as np
from fuzz.hdf5_library import DONT_FILTER_PARTIAL_CHUNKS, set_property
from fuzz.hdf5_types import Kind, Values, choose, memory_type, values
from h5py import h5a, h5d, h5p, h5s, h5z

CANNOT = (OSError, RuntimeError, TypeError, ValueError)
"""What h5py raises for combinations that HDF5 does not allow; they are left out."""


class Axis(NamedTuple):
    """A dimension of a file; the length of an unlimited one differs between variants."""

    name: str
    size: int
    unlimited: bool = False


@dataclass(frozen=True)
class Context:
    """What datasets of a file share.

    Parameters
    ----------
    rng : Random
        Chooses structure.
    values : Values
        Chooses values.
    targets : tuple
        A group and a dataset that references refer to.
    types : tuple of h5py.Datatype
        Committed types.
    alike : bool
        Whether the file is one of several that are joined.
    """

    rng: Random
    values: Values
    targets: tuple[Any, Any]
    types: tuple[Any, ...] = ()
    alike: bool = False

    def make(self, kind: Kind, shape: tuple[int, ...]) -> Any:
        return values(self.values, kind.memory, shape, self.targets)


# ---------------------------------------------------------------------- storage


def _compact(plist: Any, axes: Sequence[Axis], context: Context) -> None:
    plist.set_layout(h5d.COMPACT)


def _contiguous(plist: Any, axes: Sequence[Axis], context: Context) -> None:
    plist.set_layout(h5d.CONTIGUOUS)


def _chunked(plist: Any, axes: Sequence[Axis], context: Context) -> None:
    # the length of an unlimited axis is no structure
    lengths = [context.rng.choice((1, 2, 3, 4, 7)) for _ in axes]
    room = [7 if axis.unlimited else max(axis.size, 1) for axis in axes]
    whole = context.rng.random() < 0.15
    plist.set_chunk(tuple(room if whole else map(min, lengths, room)))
    if context.rng.random() < 0.1:
        set_property(plist, "H5Pset_chunk_opts", DONT_FILTER_PARTIAL_CHUNKS)


def _paged(plist: Any, axes: Sequence[Axis], context: Context) -> None:
    """So many chunks that an index has pages; `write_dataset` makes the first axis long."""
    plist.set_chunk((1,) * len(axes))


def _external(plist: Any, axes: Sequence[Axis], context: Context) -> None:
    # beside the file: whoever writes it is in its folder
    name = Path(context.targets[0].file.filename).with_suffix(".raw").name
    plist.set_layout(h5d.CONTIGUOUS)
    plist.set_external(name.encode(), 0, 100_000)


def _virtual(plist: Any, axes: Sequence[Axis], context: Context) -> None:
    target = context.targets[1]
    space = h5s.create_simple(tuple(axis.size for axis in axes))
    start = (0,) * len(axes)
    size = min(target.size, axes[0].size)
    space.select_hyperslab(start, (size, *(1,) * (len(axes) - 1)))
    source = h5s.create_simple(target.shape)
    source.select_hyperslab((0,), (size,))
    plist.set_virtual(space, b".", target.name.encode(), source)


LAYOUTS: dict[str, tuple[int, Callable[[Any, Sequence[Axis], Context], None]]] = {
    "contiguous": (5, _contiguous),
    "chunked": (12, _chunked),
    "compact": (2, _compact),
    "paged": (1, _paged),
    "external": (1, _external),
    "virtual": (1, _virtual),
}


def _plugin(made: Any) -> Callable[[Any, Random], None]:
    return lambda plist, rng: plist.set_filter(
        made.filter_id, h5z.FLAG_OPTIONAL, made.filter_options
    )


FILTERS: dict[str, tuple[int, Callable[[Any, Random], Any]]] = {
    "shuffle": (4, lambda plist, rng: plist.set_shuffle()),
    "deflate": (6, lambda plist, rng: plist.set_deflate(rng.choice((0, 4, 9)))),
    "fletcher32": (2, lambda plist, rng: plist.set_fletcher32()),
    "szip": (1, lambda plist, rng: plist.set_szip(h5z.SZIP_NN_OPTION_MASK, 2)),
    "scaleoffset": (1, lambda plist, rng: plist.set_scaleoffset(h5z.SO_INT, 0)),
    "nbit": (1, lambda plist, rng: set_property(plist, "H5Pset_nbit")),
    "lzf": (1, lambda plist, rng: plist.set_filter(h5z.FILTER_LZF, h5z.FLAG_OPTIONAL)),
    "zstd": (1, _plugin(hdf5plugin.Zstd())),
    "blosc": (1, _plugin(hdf5plugin.Blosc())),
    "bitshuffle": (1, _plugin(hdf5plugin.Bitshuffle())),
}
WITHOUT_FILL = ("reference", "region", "array", "padded", "tagged")
"""Types whose fill values h5py cannot set. At those that hold objects, but text, it crashes."""
OF_PLUGINS = ("zstd", "blosc", "bitshuffle")
"""Filters that are not for values in the heap: Blosc crashes at types without a size."""
FOR_NUMBERS = ("szip", "scaleoffset", "nbit", "bitshuffle")


def _set_filters(plist: Any, kind: Kind, rng: Random) -> None:
    if rng.random() < 0.35:
        return
    names = [n for n in FILTERS if kind.is_number or n not in FOR_NUMBERS]
    names = [n for n in names if not (kind.in_heap and n in OF_PLUGINS)]
    chosen = rng.choices(names, [FILTERS[n][0] for n in names], k=rng.choice((1, 1, 2, 3)))
    # those that take numbers apart must see them first, and only one of them
    first = [name for name in chosen if name in FOR_NUMBERS][:1]
    for name in dict.fromkeys(first + [name for name in chosen if name not in FOR_NUMBERS]):
        FILTERS[name][1](plist, rng)


def _set_fill(plist: Any, kind: Kind, context: Context) -> None:
    way = context.rng.choice(("default", "default", "user", "undefined", "never"))
    if way == "user" and kind.name not in WITHOUT_FILL and not kind.in_heap:
        fill = values(np.random.default_rng(context.rng.randrange(99)), kind.memory, (), None)
        plist.set_fill_value(np.asarray(fill, kind.memory))
    if way == "user" and kind.name == "text":
        plist.set_fill_value(np.array("fill", kind.memory))
    if way == "undefined":
        set_property(plist, "H5Pset_fill_value", kind.stored.id, None)
    if way == "never" and not kind.in_heap:
        plist.set_fill_time(h5d.FILL_TIME_NEVER)
    elif context.rng.random() < 0.2 and way != "undefined":
        plist.set_fill_time(h5d.FILL_TIME_ALLOC)
    times = (h5d.ALLOC_TIME_EARLY, h5d.ALLOC_TIME_LATE, h5d.ALLOC_TIME_INCR)
    if context.rng.random() < 0.25 and plist.get_layout() != h5d.COMPACT:
        plist.set_alloc_time(context.rng.choice(times))


# ---------------------------------------------------------------------- datasets


def write_dataset(parent: Any, name: str, axes: Sequence[Axis], context: Context) -> Any:
    """Write a dataset of any type in any storage; return None if HDF5 does not allow it."""
    rng, kind = context.rng, _choose_type(context, 0.1)
    grows = any(axis.unlimited for axis in axes)
    names = [n for n in LAYOUTS if n == "chunked" or not (grows or n == "chunked")] if grows else []
    names = names or [n for n in LAYOUTS if axes or n in ("contiguous", "compact")]
    [layout] = rng.choices(names, [LAYOUTS[n][0] for n in names])
    if layout == "paged":
        length = rng.choice((1030, 1500, 2600))
        axes = [Axis("", length, rng.random() < 0.5), *[Axis("", 1)] * (rng.random() < 0.3)]
        kind = choose(rng, ("integer",))
    try:
        dataset = _create(parent, name, axes, kind, layout, context)
        _write(dataset, kind, context)
        # a filter that cannot encode says so now
        dataset.flush()
    except CANNOT:
        if name in parent:
            del parent[name]
        return None
    if axes and layout == "chunked" and rng.random() < 0.1 and not context.alike:
        kept = zip(dataset.shape, axes, strict=True)
        dataset.resize(tuple(max(min(n, 1), n - axis.unlimited) for n, axis in kept))
    return dataset


def _choose_type(context: Context, committed: float) -> Kind:
    """Return a type; at times one that is committed in the file."""
    if context.types and context.rng.random() < committed:
        one = context.rng.choice(context.types)
        return Kind("committed", one.id, one.dtype)
    return choose(context.rng)


def _create(
    parent: Any, name: str, axes: Sequence[Axis], kind: Kind, layout: str, context: Context
) -> Any:
    rng = context.rng
    plist = h5p.create(h5p.DATASET_CREATE)
    LAYOUTS[layout][1](plist, axes, context)
    if layout in ("chunked", "paged"):
        _set_filters(plist, kind, rng)
    _set_fill(plist, kind, context)
    if rng.random() < 0.3:
        plist.set_attr_creation_order(
            h5p.CRT_ORDER_TRACKED | rng.choice((0, h5p.CRT_ORDER_INDEXED))
        )
    if rng.random() < 0.1:
        plist.set_attr_phase_change(*rng.choice(((0, 0), (2, 1), (20, 10))))
    plist.set_obj_track_times(rng.random() < 0.1)
    grows = layout == "paged" or (layout == "chunked" and rng.random() < 0.2)
    longest = [h5s.UNLIMITED if a.unlimited else a.size + 3 * grows for a in axes]
    if axes and layout == "chunked" and rng.random() < 0.1:
        longest[rng.randrange(len(axes))] = h5s.UNLIMITED
    space = h5s.create_simple(tuple(a.size for a in axes), tuple(longest)) if axes else None
    if space is None:
        space = h5s.create(h5s.NULL if rng.random() < 0.2 else h5s.SCALAR)
    return h5py.Dataset(
        h5d.create(parent.id, name.encode(), kind.stored, space, plist, lcpl=_link_plist(name))
    )


def _link_plist(name: str) -> Any:
    plist = h5p.create(h5p.LINK_CREATE)
    plist.set_char_encoding(h5py.h5t.CSET_ASCII if name.isascii() else h5py.h5t.CSET_UTF8)
    return plist


def _write(dataset: Any, kind: Kind, context: Context) -> None:
    """Write all of a dataset, its beginning, some chunks, or nothing."""
    way = context.rng.choice(("all", "all", "all", "beginning", "chunks", "nothing"))
    shape = dataset.shape
    if shape is None or not prod(shape) or way == "nothing" or dataset.is_virtual:
        return
    box = tuple(slice(0, n) for n in shape)
    if way == "beginning" and shape:
        box = (slice(0, (shape[0] + 1) // 2), *box[1:])
    if way == "chunks" and dataset.chunks and kind.memory.kind in "iuf":
        return _write_chunks(dataset, kind, context)
    sizes = tuple(k.stop - k.start for k in box)
    made = np.ascontiguousarray(context.make(kind, sizes))
    space = dataset.id.get_space()
    if sizes:
        space.select_hyperslab((0,) * len(sizes), sizes)
    memory = h5s.create_simple(sizes) if sizes else h5s.create(h5s.SCALAR)
    dataset.id.write(memory, space, made, memory_type(kind))
    return None


def _write_chunks(dataset: Any, kind: Kind, context: Context) -> None:
    """Write every other chunk, and some of them raw, with a mask that skips all filters."""
    count = dataset.id.get_create_plist().get_nfilters()
    raw = context.rng.random() < 0.5
    for number, box in enumerate(dataset.iter_chunks()):
        if number % 2:
            continue
        whole = tuple(dataset.chunks)
        if raw and number % 4 == 0:
            data = context.make(kind, whole)
            stored = np.asarray(data, dataset.dtype).tobytes()
            start = tuple(k.start for k in box)
            dataset.id.write_direct_chunk(start, stored, 2**count - 1)
        else:
            dataset[box] = context.make(kind, tuple(k.stop - k.start for k in box))


# ---------------------------------------------------------------------- attributes


def write_attributes(owner: Any, count: int, context: Context, prefix: str = "a") -> None:
    """Write attributes of all types; some are large, and some are deleted or renamed again."""
    rng = context.rng
    for number in range(count):
        name = f"{prefix}{number}" if rng.random() < 0.9 else f"{prefix} ü{number} " + "n" * 80
        try:
            _write_attribute(owner, name, context)
        except CANNOT:
            continue
    names = list(owner.attrs)
    if names and rng.random() < 0.15:
        del owner.attrs[rng.choice(names)]


def _write_attribute(owner: Any, name: str, context: Context) -> None:
    rng, kind = context.rng, _choose_type(context, 0.15)
    shape: tuple[int, ...] = rng.choice(((), (), (), (1,), (3,), (2, 2)))
    if rng.random() < 0.03 and not kind.in_heap:
        shape = (rng.choice((300, 9000)),)
    space = h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
    if rng.random() < 0.05:
        space = h5s.create(h5s.NULL)
    made = h5a.create(owner.id, name.encode(), kind.stored, space)
    if space.get_simple_extent_type() != h5s.NULL:
        data = context.make(kind, shape)
        made.write(
            np.asarray(data, kind.memory if not kind.memory.subdtype else None), memory_type(kind)
        )
