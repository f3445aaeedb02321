"""What rewriting costs: per variable the main encoding, the chunks to rewrite, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import prod
from textwrap import wrap
from typing import Any

import numpy as np
import pandas as pd

from virtualds.arrays.array import ManifestArray, fills_with
from virtualds.arrays.group import ManifestGroup, ManifestVariable
from virtualds.chunks.columns import INLINE
from virtualds.chunks.fragment import Fragment, make_regular_axes
from virtualds.chunks.manifest import ChunkManifest
from virtualds.codecs import codec_from_zarr_v2
from virtualds.codecs.cf_packing import PACKING_ATTRIBUTES
from virtualds.codecs.codec import Codec
from virtualds.codecs.hdf5 import Shuffle
from virtualds.codecs.pipeline import CodecPipeline
from virtualds.codecs.zlib import Zlib
from virtualds.datasets.from_dataset import unpack
from virtualds.datasets.rewrite.encodings import (
    Cells,
    MainEncoding,
    Mask,
    can_hold,
    is_lossless,
    name_of,
    pack,
    plain_pipeline,
    strip_flat_axes,
)
from virtualds.errors import UnsupportedError, VirtualdsError, cannot_hold, without_secrets
from virtualds.formats.zarr.data_types import to_packed
from virtualds.formats.zarr.v2_arrays import build_fill_pipeline
from virtualds.pictures.html import cell, element, table
from virtualds.quantities import format_bytes, format_count
from virtualds.reading.stored_chunks import replace_chunks
from virtualds.source_file import SourceFile

# ---------------------------------------------------------------------- what is rewritten
# The choice of the main encoding of a variable: the fewest bytes to rewrite.


Obstacles = Callable[[ManifestVariable], list[str]]
"""Returns why a format cannot hold a virtual variable; empty if it can."""
MOST_CANDIDATES = 48
"""Encodings of one variable that are compared: those of most of its elements."""
MOST_ELEMENTS = 2**20
"""Elements of a chunk of variables that have none, if a row is not longer."""
LEVEL = 4
"""Compression level of encodings whose own codecs have no encoder."""


WANTED = ("chunks", "codecs", "dtype")
"""What a user may say about the main encoding of a variable."""
Wanted = Mapping[str, Any]
"""What a user says about it; other things are free."""


def _apply_wanted(
    wanted: Wanted, main: MainEncoding, dims: tuple[str, ...]
) -> Iterator[MainEncoding]:
    """Yield an encoding with the codecs and chunks that the user wants, if its dtype is too."""
    dtype, codecs, chunks = (wanted.get(name) for name in ("dtype", "codecs", "chunks"))
    pipeline = main.pipeline
    if dtype is not None and np.dtype(dtype) != pipeline.dtype:
        return
    if codecs is not None:
        made = tuple(c if isinstance(c, Codec) else codec_from_zarr_v2(c) for c in codecs)
        pipeline = replace(pipeline, codecs=made, layout=tuple(range(len(main.chunks))))
    if isinstance(chunks, Mapping):
        if unknown := set(chunks) - set(dims):
            raise ValueError(f"main_encoding: chunks along {unknown}; give dimensions of {dims}")
        pairs = zip(dims, main.chunks, strict=True)
        chunks = [chunks.get(dim, length) for dim, length in pairs]
    yield MainEncoding(pipeline, main.chunks if chunks is None else tuple(map(int, chunks)))


def choose_encoding(variable: ManifestVariable, obstacles: Obstacles, wanted: Wanted) -> Cells:
    """Return the cells of the main encoding of a variable.

    An `UnsupportedError` is raised if the format can hold none, or none of those that are wanted.
    """
    array: ManifestArray = variable.data  # type: ignore[assignment]
    costs = {main: Cells(array, main).nbytes for main in _list_candidates(variable, wanted)}
    why = "there is no encoding that it could hold"
    for main in sorted(costs, key=lambda one: costs[one]):
        reason = _find_objection(variable, main, costs[main], obstacles)
        if reason is None:
            return Cells(array, main)
        why = reason
    raise UnsupportedError(f"its chunks cannot be rewritten: {why}")


def _list_candidates(variable: ManifestVariable, wanted: Wanted) -> Iterator[MainEncoding]:
    """Yield the encodings that chunks have, then those that can hold any of their values."""
    found = list(islice(_list_present(variable), MOST_CANDIDATES))
    dims = variable.dims
    array: ManifestArray = variable.data  # type: ignore[assignment]
    if not found:
        # nothing but gaps
        found = [MainEncoding(build_fill_pipeline(array), _cut_rows(array.shape))]
    for main in (*found, *(_make_plain(variable, main) for main in found)):
        yield from _apply_wanted(wanted, main, dims)


def _list_present(variable: ManifestVariable) -> Iterator[MainEncoding]:
    """Yield the encodings of chunks, those of most elements first."""
    array: ManifestArray = variable.data  # type: ignore[assignment]
    sizes: dict[MainEncoding, int] = {}
    for fragment in array.fragments:
        chunks = tuple(_find_usual_length(fragment, axis) for axis in range(array.ndim))
        if 0 in fragment.shape:
            continue
        for number in fragment.manifest.used_pipelines(len(array.pipelines)).tolist():
            pipeline = strip_flat_axes(array.pipelines[number], chunks)
            main = MainEncoding(pipeline, chunks)
            sizes[main] = sizes.get(main, 0) + int(np.prod(fragment.shape))
    yield from sorted(sizes, key=lambda main: -sizes[main])


def _cut_rows(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of chunks of whole rows with at most `MOST_ELEMENTS`."""
    rest = prod(shape[1:])
    return (max(1, min(shape[0], MOST_ELEMENTS // rest)), *shape[1:]) if shape else ()


def _find_usual_length(fragment: Fragment, axis: int) -> int:
    """Return the stored length of chunks that covers most of an axis."""
    lengths, counts = np.unique(fragment.axes[axis].slabs().encoded, return_counts=True)
    return int(lengths[np.argmax(lengths * counts)]) if lengths.size else 1


def _make_plain(variable: ManifestVariable, main: MainEncoding) -> MainEncoding:
    """Return an encoding with the chunks of another one that holds any values of a variable."""
    array: ManifestArray = variable.data  # type: ignore[assignment]
    dtype = to_packed(array.dtype)
    bare = not set(PACKING_ATTRIBUTES) & variable.attributes.keys()
    size = 8 if bare and dtype.kind in "mM" else dtype.itemsize
    codecs = _adapt_codecs(main.pipeline.codecs, size)
    fill = array.fill_value
    return MainEncoding(plain_pipeline(dtype, fill, array.ndim, codecs, bare), main.chunks)


def _adapt_codecs(codecs: tuple[Codec, ...], itemsize: int) -> tuple[Codec, ...]:
    """Return codecs for elements of another size; others where they have no encoder."""
    shuffle = (Shuffle(itemsize),) if itemsize > 1 else ()
    if codecs and not all(map(is_lossless, codecs)):
        return (*shuffle, Zlib(LEVEL))
    found: tuple[Codec, ...] = ()
    for codec in codecs:
        found += shuffle if name_of(codec) == "shuffle" else (codec,)
    return found


def _find_objection(
    variable: ManifestVariable, main: MainEncoding, nbytes: int, obstacles: Obstacles
) -> str | None:
    """Return why an encoding cannot be the main one; None if it can."""
    array: ManifestArray = variable.data  # type: ignore[assignment]
    if main.pipeline.decoded_dtype != array.dtype.newbyteorder("=") and not array.dtype.names:
        return f"its values are {array.dtype}, {main.describe()} has others"
    if nbytes and not main.is_encodable:
        return f"there is no encoder for {main.describe()}"
    if nbytes and not all(can_hold(main.pipeline, p) for p in array.pipelines):
        return f"{main.describe()} would change values that are packed in another way"
    if array.has_gaps and not _holds_gaps(array, main.pipeline):
        return f"{main.describe()} has no number for gaps of {array.fill_value}"
    one = ChunkManifest.build((1,) * len(main.chunks), file=INLINE, length=1, inline=(b"\0",))
    try:
        found = obstacles(as_stored(variable, main, one))
    except VirtualdsError as error:
        return f"{error}"
    return "; ".join(found) or None


def _holds_gaps(array: ManifestArray, pipeline: CodecPipeline) -> bool:
    if fills_with(pipeline, array.fill_value):
        return True
    try:
        pack(np.full(1, array.fill_value, array.dtype), pipeline)
    except UnsupportedError:
        return False
    return True


def as_stored(
    variable: ManifestVariable,
    main: MainEncoding,
    manifest: ChunkManifest,
    shape: tuple[int, ...] | None = None,
) -> ManifestVariable:
    """Return a variable whose chunks all have the main encoding, as a set holds it."""
    array: ManifestArray = variable.data  # type: ignore[assignment]
    shape = main.chunks if shape is None else shape
    fragment = Fragment.whole(make_regular_axes(shape, main.chunks), manifest)
    whole = ManifestArray(
        shape,
        main.pipeline.decoded_dtype,
        array.fill_value,
        (main.pipeline,),
        (fragment,),
        array.name,
    )
    plain, packed = unpack(whole)
    return replace(variable, data=plain, attributes=variable.attributes | (packed or {}))  # type: ignore[operator]


# ---------------------------------------------------------------------- costs
# The table of what rewriting costs: a pandas table that is readable on 80 columns.


COLUMNS = ["variable", "chunks", "rewritten", "bytes", "encoding", "reason"]
WIDTH = 80
"""Letters of a line, if words allow that."""
MOST_ROWS = 20
"""Variables that a text shows; the table has them all."""


class CostTable(pd.DataFrame):  # type: ignore[misc]  # pandas has no types
    """A row for each virtual variable: what rewriting it costs, and why.

    It is a pandas table in all but its looks; what is made of it is a plain one.

    Examples
    --------
    >>> row = ("t", 8, 7, 30380, "float32, zlib, chunks (31, 5)", "chunk lengths vary")
    >>> CostTable([row, ("lat", 1, 0, 0, "", "")], columns=COLUMNS)
    7 of 9 chunks to rewrite, 30.4 kB decoded
      t: 7 of 8 chunks, 30.4 kB
          as float32, zlib, chunks (31, 5)
          since chunk lengths vary
      lat: nothing
    """

    def __repr__(self) -> str:
        rows = [line for n in range(min(len(self), MOST_ROWS)) for line in self._describe_row(n)]
        more = len(self) - MOST_ROWS
        rest = [f"  ... and {more:,} more variables"] if more > 0 else []
        return without_secrets("\n".join([self._summary, *rows, *rest]))

    def _repr_html_(self) -> str:
        cells = [
            (r.variable, f"{r.chunks:,}", f"{r.rewritten:,}", format_bytes(r.bytes), *r[5:])
            for r in self.itertuples()
        ]
        head = element("div", self._summary, class_="vds-title")
        return without_secrets(cell(head, table(COLUMNS, cells, numbers=[1, 2, 3])))

    @property
    def _summary(self) -> str:
        return (
            f"{self['rewritten'].sum():,} of {format_count(int(self['chunks'].sum()), 'chunk')} to "
            f"rewrite, {format_bytes(self['bytes'].sum())} decoded"
        )

    def _describe_row(self, number: int) -> Iterator[str]:
        row = self.iloc[number]
        if not row["rewritten"]:
            yield f"  {row['variable']}: nothing"
            return
        of = format_count(int(row["chunks"]), "chunk")
        yield f"  {row['variable']}: {row['rewritten']:,} of {of}, {format_bytes(row['bytes'])}"
        for text in (f"as {row['encoding']}", f"since {row['reason']}"):
            yield from wrap(
                *(text, WIDTH),
                initial_indent=" " * 6,
                subsequent_indent=" " * 8,
                break_long_words=False,
                break_on_hyphens=False,
            )


# ---------------------------------------------------------------------- plans


PLACEHOLDER = SourceFile("file:///rewritten")
"""The file of chunks that are still to be written, to ask a format about the result."""


@dataclass(frozen=True)
class VariablePlan:
    """How one variable, which the format cannot hold for some reasons, is written.

    ``cells`` are those of its main encoding. ``filled`` are missing chunks that must be written,
    since the format has no place for their value.
    """

    path: str
    variable: ManifestVariable
    cells: Cells
    filled: Mask
    reasons: tuple[str, ...]

    @classmethod
    def of(
        cls, path: str, variable: ManifestVariable, obstacles: Obstacles, wanted: Wanted | None
    ) -> VariablePlan | None:
        """Return the plan of a variable, None if it can be written as it is."""
        if not isinstance(variable.data, ManifestArray) or not variable.data.size:
            return None
        reasons = obstacles(variable)
        if not reasons and wanted is None:
            return None
        cells = choose_encoding(variable, obstacles, wanted or {})
        plan = cls(path, variable, cells, np.zeros(cells.grid, bool), tuple(reasons))
        if cells.missing.any():
            kept, written = cells.kept, np.flatnonzero(plan.to_write)
            files = (*kept.files, PLACEHOLDER)
            row = {"file": len(kept.files), "offset": 0, "length": 1}
            assumed = replace_chunks(kept, written, files, kept.inline, **row)
            if obstacles(plan.finish(assumed)):
                plan = replace(plan, filled=cells.missing)
        return plan

    @property
    def array(self) -> ManifestArray:
        """The array as it is."""
        return self.cells.array

    @property
    def main(self) -> MainEncoding:
        """The main encoding."""
        return self.cells.main

    @property
    def to_write(self) -> Mask:
        """Cells that become chunks of the set."""
        return self.cells.rewritten | self.cells.gaps | self.filled

    @property
    def nchunks(self) -> int:
        """Number of chunks to write; equal ones are written once, and counted each."""
        return int(np.count_nonzero(self.to_write))

    @property
    def nbytes(self) -> int:
        """Bytes of the chunks to write, before codecs."""
        return self.nchunks * self.main.nbytes

    def finish(self, manifest: ChunkManifest) -> ManifestVariable:
        """Return the variable with its chunks in the main encoding."""
        return as_stored(self.variable, self.main, manifest, self.array.shape)


def plan_rewriting(
    group: ManifestGroup, obstacles: Obstacles, main_encoding: Mapping[str, Any], target: str
) -> dict[str, VariablePlan]:
    """Return the plans of all variables that have to be rewritten, by path."""
    variables = dict(group.walk_variables())
    if unknown := set(main_encoding) - variables.keys():
        raise ValueError(f"main_encoding of {sorted(unknown)}: give names of {sorted(variables)}")
    plans, problems = {}, []
    for path, variable in variables.items():
        wanted = main_encoding.get(path)
        if path in main_encoding and (
            not isinstance(wanted, Mapping) or not wanted.keys() <= set(WANTED)
        ):
            raise ValueError(f"main_encoding of {path!r}: {wanted!r}; give a dict of {WANTED}")
        try:
            plan = VariablePlan.of(path, variable, obstacles, wanted)
        except UnsupportedError as error:
            problems.append(f"{path}: {error}")
            continue
        if plan is not None:
            plans[path] = plan
    if problems:
        remedy = "load these variables before (ds.virtual.load()), or leave them out (ds.drop_vars)"
        raise cannot_hold(target, "the format", problems, remedy)
    return plans


def build_cost_table(group: ManifestGroup, plans: Mapping[str, VariablePlan]) -> CostTable:
    """Return a row for each virtual variable: what rewriting it costs, and why."""
    rows: list[tuple[Any, ...]] = []
    for path, variable in group.walk_variables():
        if (plan := plans.get(path)) is not None:
            reason = "; ".join(plan.reasons) or "main_encoding says so"
            costs = (prod(plan.cells.grid), plan.nchunks, plan.nbytes)
            rows.append((path, *costs, plan.main.describe(), reason))
        elif isinstance(variable.data, ManifestArray):
            rows.append((path, variable.data.nchunks, 0, 0, "", ""))
    return CostTable(rows, columns=COLUMNS)
