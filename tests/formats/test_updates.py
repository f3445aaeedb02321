"""Sets change by one writer of many, are whole at every moment, and only what is new is written."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
from conftest import write_year
from effort import others_soaked
from fsspec.implementations.memory import MemoryFileSystem
from large_sets import METADATA, counted
from object_stores import OBJECT_STORES, make_folder
from products import looped

import virtualds
from virtualds import ChunkManifest, ConflictError, ManifestArray, ReadError, UnsupportedError
from virtualds.arrays.group import ManifestGroup
from virtualds.chunks.tables import TiledReferences
from virtualds.datasets.conversion import group_from_dataset, to_virtual_dataset
from virtualds.datasets.location import FORMATS
from virtualds.datasets.open_options import OpenOptions
from virtualds.formats import Format, change_set
from virtualds.formats.referenced_files import ReferencedFiles
from virtualds.source_file import SourceFile, StorageOptions
from virtualds.stores import fence, find_store
from virtualds.stores.fsspec import FsspecStore
from virtualds.stores.local import LocalStore
from virtualds.stores.store import Store
from virtualds.writing.write_modes import fill_region

# Icechunk changes its repositories itself
BY_NAME = {form.name: form for form in FORMATS if form.library is None}
pytestmark = pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")

KERCHUNK = ["kerchunk-json", "kerchunk-parquet"]
STORES = ["local", "memory", *OBJECT_STORES]
YEARS = range(2001, 2009)
WRITERS = 8
RIVALS = 3
"""Writers that append files: each has to begin again for each other one."""


@dataclass(frozen=True)
class Target:
    """A set that is written and changed."""

    url: str
    form: str
    options: StorageOptions | None = None

    @property
    def format(self) -> Format:
        return BY_NAME[self.form]

    @property
    def store(self) -> Store:
        return find_store(self.url)

    def open(self) -> xr.Dataset:
        return xr.open_dataset(self.url, engine="virtual", storage_options=self.options)

    def group(self) -> ManifestGroup:
        return self.format.read(SourceFile(self.url, options=self.options))

    def write(self, ds: xr.Dataset, **choices: Any) -> None:
        write: Any = self.format.write
        if self.form == "kerchunk-parquet":
            choices = {"record_size": 5} | choices
        write(group_from_dataset(ds), self.url, self.options, **choices)

    def change(
        self, change: Callable[[xr.Dataset], xr.Dataset], loadable: Any = None, **choices: Any
    ) -> None:
        update: Any = partial(change_set, self.format)

        def changed(old: ManifestGroup) -> ManifestGroup:
            return group_from_dataset(
                change(to_virtual_dataset(old, OpenOptions(loadable_variables=loadable)))
            )

        update(self.url, changed, self.options, **choices)

    def append(self, path: Path) -> None:
        self.change(lambda old: joined([old, self.virtual(path)]))

    def prepend(self, path: Path) -> None:
        self.change(lambda old: joined([self.virtual(path), old]))

    def fill(self, path: Path) -> None:
        """Put a year in place of the one that the set has."""
        new = self.virtual(path)
        new = new.drop_vars(
            [n for n, v in new.variables.items() if "time" not in v.dims] + ["time"]
        )
        region = {"time": slice(0, new.sizes["time"])}
        update: Any = partial(change_set, self.format)
        update(self.url, lambda old: fill_region(old, new, region, "replace"), self.options)

    def virtual(self, path: Path) -> xr.Dataset:
        """A file, in the store of the set, since remote sets may not mean local files."""
        if self.url.startswith("file:"):
            return virtualds.open_virtual_dataset(path)
        url = f"{self.url}.of/{path.name}"
        if self.store.find_version(url, self.options) is None:
            self.store.write_file(url, path.read_bytes(), self.options)
        return virtualds.open_virtual_dataset(url, storage_options=self.options)

    def counted(self, begin: int, end: int) -> xr.Dataset:
        """Numbers of which each is a chunk, in the store of the set."""
        url = f"{self.url}.of/{begin}-{end}.bin"
        data = np.arange(begin, end, dtype="<i4").tobytes()
        self.store.write_file(url, data, self.options)
        array = ManifestArray.from_arrays(
            shape=(end - begin,), chunks=(1,), dtype="<i4", path=url,
            offsets=np.arange(end - begin) * 4, lengths=4,
        )  # fmt: skip
        return xr.Dataset({"v": ("time", array)})

    def files(self) -> dict[str, bytes]:
        """All that lies in the set."""
        if not self.store.list_files(self.url, self.options):
            return {"": self.store.read_all(self.url, self.options)}
        names = [f.path for f in self.store.list_files(self.url, self.options)]
        return {n: self.store.read_all(f"{self.url}/{n}", self.options) for n in names}


def joined(parts: Sequence[xr.Dataset]) -> xr.Dataset:
    return xr.concat(parts, "time", data_vars="minimal", join="exact")


def native(paths: Iterable[Path]) -> xr.Dataset:
    return joined([xr.load_dataset(path) for path in paths])


def same(target: Target, paths: Iterable[Path]) -> None:
    xr.testing.assert_identical(target.open().load(), native(paths))


@pytest.fixture(scope="session")
def years(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Files of one year each, made once."""
    folder = tmp_path_factory.mktemp("years")
    paths = [folder / f"{year}.nc" for year in YEARS]
    for path in paths:
        write_year(path, int(path.stem))
    return paths


@pytest.fixture
def target(request: pytest.FixtureRequest) -> Target:
    """A set, by the name of its format and of its store."""
    form, place = request.param
    name = f"refs{BY_NAME[form].suffixes[0]}"
    if place == "local":
        return Target(f"file://{request.getfixturevalue('tmp_path')}/{name}", form)
    if place == "memory":
        return Target(f"memory://{uuid.uuid4().hex}/{name}", form)
    folder, options = make_folder(place, request)
    return Target(f"{folder}/{name}", form, StorageOptions(options))


_TURNS = itertools.count()


def targets(forms: Iterable[str] = tuple(BY_NAME), stores: Iterable[str] = STORES) -> Any:
    """Every form in near stores and in one S3; of the other object stores one for each form."""
    near = [store for store in stores if store not in OBJECT_STORES[1:]]
    others = [store for store in stores if store not in near]
    pairs = [(form, store) for form in forms for store in near]
    if others:
        turn = next(_TURNS)
        pairs += [(form, others[(n + turn) % len(others)]) for n, form in enumerate(forms)]
    return pytest.mark.parametrize("target", pairs, ids="-".join, indirect=True)


everywhere = targets()
parquet = targets(["kerchunk-parquet"], ["local"])


# ---------------------------------------------------------------------- what it is afterwards


@pytest.mark.product
@everywhere
def test_appending_is_concatenation(target: Target, years: list[Path]) -> None:
    target.write(target.virtual(years[0]))
    for count in range(2, 5):
        target.append(years[count - 1])
        same(target, years[:count])


@targets(stores=["local"])
def test_any_change_of_a_set_is_written(target: Target, years: list[Path]) -> None:
    target.write(target.virtual(years[1]))
    target.prepend(years[0])
    same(target, years[:2])
    middle = xr.Dataset.isel
    target.change(lambda old: joined([middle(old, time=slice(0, 12)), target.virtual(years[3]),
                                      middle(old, time=slice(12, None))]))  # fmt: skip
    same(target, [years[0], years[3], years[1]])
    target.change(lambda old: old.isel(time=slice(12)).assign_attrs(title="one"))
    xr.testing.assert_identical(target.open().load(), native(years[:1]).assign_attrs(title="one"))


def notes_of(raw: bytes) -> Any:
    """Return our notes in a document of kerchunk's formats; in JSON they are text."""
    notes = json.loads(raw)["virtualds"]
    return json.loads(notes) if isinstance(notes, str) else notes


@targets(KERCHUNK, ["local"])
def test_files_that_no_reference_uses_are_forgotten(target: Target, years: list[Path]) -> None:
    target.write(joined([target.virtual(path) for path in years[:3]]))
    target.change(lambda old: old.isel(time=slice(12, None)))
    raw = target.files().get(".zmetadata") or target.files()[""]
    noted = notes_of(raw)["files"]
    assert {Path(url).name for url in noted} == {"2002.nc", "2003.nc"}
    target.append(years[3])
    raw = target.files().get(".zmetadata") or target.files()[""]
    noted = notes_of(raw)["files"]
    assert {Path(url).name for url in noted} == {"2002.nc", "2003.nc", "2004.nc"}
    assert all(size == years[0].parent.joinpath(Path(url).name).stat().st_size
               for url, (size, _, _) in noted.items())  # fmt: skip


@everywhere
def test_a_change_of_nothing_writes_nothing(target: Target, years: list[Path]) -> None:
    target.write(target.virtual(years[0]))
    before = target.files()
    change_set(target.format, target.url, lambda old: old, target.options)
    assert target.files() == before


@targets(stores=["local"])
def test_changing_a_missing_set_is_an_error(target: Target) -> None:
    with pytest.raises(FileNotFoundError):
        target.change(lambda old: old)


@pytest.mark.parametrize("suffix", [".json.gz", ".json.zst"])
def test_a_compressed_set_stays_compressed(suffix: str, tmp_path: Path, years: list[Path]) -> None:
    target = Target(f"file://{tmp_path}/refs{suffix}", "kerchunk-json")
    target.write(target.virtual(years[0]))
    os.rename(tmp_path / f"refs{suffix}", tmp_path / "other")
    magic = (tmp_path / "other").read_bytes()[:2]
    other = Target(f"file://{tmp_path}/other", "kerchunk-json")
    other.append(years[1])
    assert (tmp_path / "other").read_bytes()[:2] == magic
    same(other, years[:2])


@pytest.mark.parametrize("templates", [True, False])
def test_templates_are_kept(templates: bool, tmp_path: Path, years: list[Path]) -> None:
    target = Target(f"file://{tmp_path}/refs.json", "kerchunk-json")
    target.write(target.virtual(years[0]), templates=templates)
    target.append(years[1])
    assert ("templates" in json.loads((tmp_path / "refs.json").read_bytes())) is templates
    same(target, years[:2])
    target.change(lambda old: joined([old, target.virtual(years[2])]), templates=not templates)
    assert ("templates" in json.loads((tmp_path / "refs.json").read_bytes())) is not templates
    same(target, years[:3])


VALUES: dict[str, Callable[[int, int], xr.Dataset]] = {
    "numbers": lambda a, b: xr.Dataset({"v": ("time", np.arange(a, b))}),
    "rows": lambda a, b: xr.Dataset({"v": (("time", "x"), np.arange(a, b)[:, None] * [1.0, -1])}),
    "strings": lambda a, b: xr.Dataset({"v": ("time", [f"n{i}" * (i % 3) for i in range(a, b)])}),
    "nothing": lambda a, b: xr.Dataset({"v": (("time", "x"), np.zeros((b - a, 0)))}),
    "a scalar": lambda a, b: xr.Dataset({"v": 7, "w": ("time", np.arange(a, b))}),
}  # fmt: skip


@looped("cuts", [(3, 7, 8), (1, 2, 9), (5, 6, 7), (0, 4, 5)], quick=1)
@looped("what", VALUES)
def test_values_in_memory_grow_at_their_end(
    what: str, cuts: tuple[int, ...], tmp_path: Path
) -> None:
    target = Target(f"file://{tmp_path}/refs.parquet", "kerchunk-parquet")
    target.write(VALUES[what](0, cuts[0]), record_size=2)
    folder = os.stat(tmp_path / "refs.parquet").st_ino
    readers = [(target.open(), VALUES[what](0, cuts[0]))]
    for begin, end in pairwise(cuts):
        target.change(lambda old, a=begin, b=end: joined([old, VALUES[what](a, b)]), "*")
        readers.append((target.open(), VALUES[what](0, end)))
    for reader, expected in readers:
        xr.testing.assert_equal(reader.load(), expected)
    assert os.stat(tmp_path / "refs.parquet").st_ino == folder


def test_a_set_whose_strings_move_is_written_anew(tmp_path: Path) -> None:
    target = Target(f"file://{tmp_path}/refs.parquet", "kerchunk-parquet")
    target.write(VALUES["strings"](0, 4))
    target.change(lambda old: joined([old, VALUES["strings"](4, 6)]), "*")
    folder = os.stat(tmp_path / "refs.parquet").st_ino
    reader = target.open()
    target.change(lambda old: joined([old, VALUES["strings"](0, 6)]).isel(time=slice(3, 12)), "*")
    assert reader["v"].values.tolist() == ["", "n1", "n2n2", "", "n4", "n5n5"]
    assert target.open()["v"].values.tolist()[:4] == ["", "n4", "n5n5", ""]
    assert os.stat(tmp_path / "refs.parquet").st_ino != folder


def test_files_without_a_fill_value_go_on_with_a_set_of_them(tmp_path: Path) -> None:
    paths = [tmp_path / f"{n}.nc" for n in range(2)]
    for n, path in enumerate(paths):
        ds = xr.Dataset({"v": (("time", "x"), np.arange(6.0).reshape(2, 3) + n)})
        ds.to_netcdf(path, encoding={"v": {"chunksizes": (1, 3), "_FillValue": None}})
    for form in KERCHUNK:
        target = Target(f"file://{tmp_path}/{form}", form)
        target.write(target.virtual(paths[0]))
        target.append(paths[1])
        xr.testing.assert_identical(target.open().load(), native(paths))


def test_a_set_of_others_is_appended_to(tmp_path: Path) -> None:
    target = Target(f"file://{tmp_path}/refs.parquet", "kerchunk-parquet")
    target.write(target.counted(0, 10), record_size=4)
    marker = tmp_path / "refs.parquet" / ".zmetadata"
    document = json.loads(marker.read_bytes())
    del document["virtualds"]
    # they leave out records of missing chunks
    document["metadata"]["v/.zarray"]["shape"] = [14]
    marker.write_text(json.dumps(document))
    old = target.open()
    target.change(lambda old: joined([old, target.counted(14, 19)]))
    expected = [*range(10), 0, 0, 0, 0, *range(14, 19)]
    # such a set names no writing: nobody could tell this change from any other
    with pytest.raises(ReadError, match="open it again"):
        old["v"].values.tolist()
    assert target.open()["v"].values.tolist() == expected
    target.change(lambda old: joined([old, target.counted(19, 20)]))
    assert target.open()["v"].values.tolist() == [*expected, 19]


# ---------------------------------------------------------------------- no more than new


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of stores of references."""
    found: list[str] = []
    for name in ("read_all", "read_with_version", "find_version", "write_version", "write_file"):
        for kind in (LocalStore, FsspecStore):
            monkeypatch.setattr(kind, name, noting(found, name, getattr(kind, name)))
    return found


def noting(found: list[str], name: str, method: Any) -> Any:
    def noted(self: Any, url: str, *rest: Any, **more: Any) -> Any:
        count = len(found)
        answer = method(self, url, *rest, **more)
        # what a method asks of others is one request all the same
        del found[count:]
        found.append(f"{name} {url.rpartition('refs.parquet/')[2]}")
        return answer

    return noted


@targets(["kerchunk-parquet"])
def test_appending_reads_and_writes_only_new_records(
    target: Target, calls: list[str], tmp_path: Path
) -> None:
    old = xr.concat([target.counted(0, 903), target.counted(903, 907)], "time")
    target.write(old, record_size=10)
    before = target.files()
    new = target.counted(907, 925)
    calls.clear()
    target.change(lambda old: joined([old, new]))
    assert len([c for c in calls if c.startswith("write_version")]) == 2 + 3, calls
    assert {c for c in calls if c.startswith("read_all")} == {"read_all v/refs.90.parq"}
    assert len(calls) <= 2 + 3 * 2 + 4 + 5, calls
    after = target.files()
    changed = {name for name in after if after[name] != before.get(name)}
    assert changed == {".zmetadata", *(f"v/refs.{n}.parq" for n in (90, 91, 92))}


@parquet
def test_an_append_lists_no_chunks_of_the_set(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set and what is appended to it are all chunks: to list them took longer than to write."""
    target.write(target.counted(0, 40), record_size=10)
    listed: list[Any] = []
    method = TiledReferences.find_existing_rows

    def noted(self: TiledReferences) -> Any:
        listed.append(method(self))
        return listed[-1]

    monkeypatch.setattr(TiledReferences, "find_existing_rows", noted)
    with counted(Path(target.url.removeprefix("file://"))) as traffic:
        target.change(lambda old: joined([old, target.counted(40, 60)]))
    assert listed and set(listed) == {None}
    assert set(traffic.written) == {".zmetadata", "v/refs.4.parq", "v/refs.5.parq"}
    # the marker: to read it, and to see that it is the one that was read
    assert set(traffic.read) == {".zmetadata"}
    assert sum(traffic.read.values()) <= 4 and traffic.nbytes_read < 8 * METADATA
    # where chunks are missing between two parts, those that may exist are listed
    part = ChunkManifest.build((2,), files=(SourceFile("a"),), file=0, offset=0, length=1)
    table = TiledReferences((6,), (((0,), part.loaded()), ((4,), part.loaded())))
    found = method(table)
    assert found is not None and found.tolist() == [0, 1, 4, 5]


@parquet
def test_an_append_looks_at_the_files_that_are_new(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set may list millions of files: each of them costs a check of where it may lie."""
    parts = [target.counted(number, number + 1) for number in range(41)]
    target.write(joined(parts[:40]), record_size=1)
    asked: list[str] = []
    method = ReferencedFiles.get_file

    def noted(self: ReferencedFiles, url: str) -> SourceFile:
        asked.append(url)
        return method(self, url)

    monkeypatch.setattr(ReferencedFiles, "get_file", noted)
    parts[40].virtual.to_manifest(target.url, append_dim="time")
    assert len(asked) < 10, asked
    assert target.open()["v"].values.tolist() == [*range(41)]


@parquet
def test_records_that_stay_are_not_touched(target: Target, years: list[Path]) -> None:
    target.write(target.virtual(years[0]))
    folder = Path(target.url.removeprefix("file://"))

    def seen() -> dict[str, tuple[int, int]]:
        found = {p: p.stat() for p in folder.rglob("*") if p.is_file()}
        return {str(p.relative_to(folder)): (s.st_ino, s.st_mtime_ns) for p, s in found.items()}

    before = seen()
    target.append(years[1])
    after = seen()
    new = {name for name in after if after[name] != before.get(name)}
    # 12 chunks are records 0 and 1 and a part of 2; times are in memory and so in the set
    assert new == {".zmetadata", *(f"t/refs.{n}.parq" for n in (2, 3, 4)), "time/refs.0.parq"}
    target.change(lambda old: old.assign_attrs(title="other"))
    assert {name for name in seen() if seen()[name] != after[name]} == {".zmetadata"}


@parquet
def test_records_whose_rows_change_are_written_and_no_others(
    target: Target, tmp_path: Path
) -> None:
    """The folder is exchanged, and the others have the same files in both."""
    target.write(joined([target.counted(0, 6), target.counted(6, 40)]))
    reader, folder = target.open(), tmp_path / "refs.parquet"

    def seen() -> dict[str, int]:
        return {p.name: p.stat().st_ino for p in folder.glob("v/*.parq")}

    def change(make: Callable[[xr.Dataset], list[xr.Dataset]]) -> set[int]:
        """Make a change, and return the numbers of the records that are other files."""
        before = seen()
        target.change(lambda old: joined(make(old)))
        after = seen()
        return {int(n.split(".")[1]) for n in before | after if before.get(n) != after.get(n)}

    part = xr.Dataset.isel
    new = [target.counted(100 + n, 103 + n) for n in range(0, 30, 3)]
    # from the middle of a record to the middle of the next
    assert change(
        lambda old: [part(old, time=slice(13)), new[0], part(old, time=slice(16, None))]
    ) == {2, 3}
    values = [*range(13), 100, 101, 102, *range(16, 40)]
    assert target.open()["v"].values.tolist() == values
    # a reader goes on with what has not changed, and is told of what has
    assert reader["v"][:10].values.tolist() == [*range(10)]
    assert reader["v"][20:].values.tolist() == [*range(20, 40)]
    with pytest.raises(ReadError, match="open it again"):
        reader["v"][10:20].load()
    # all rows move behind the place of insertion
    assert change(lambda old: [part(old, time=slice(31)), new[1], part(old, time=slice(31, None))])
    values[31:31] = [103, 104, 105]
    assert target.open()["v"].values.tolist() == values
    # the end is cut off, and the last record goes
    assert change(lambda old: [part(old, time=slice(38))]) == {8}
    assert target.open()["v"].values.tolist() == values[:38]
    # then it grows in place
    inode = folder.stat().st_ino
    assert change(lambda old: [old, new[2]]) == {7, 8}
    assert folder.stat().st_ino == inode
    assert target.open()["v"].values.tolist() == [*values[:38], *range(106, 109)]


@parquet
def test_a_set_that_is_replaced_often_is_written_anew_at_times(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("virtualds.formats.kerchunk.parquet.MAX_EARLIER", 2)
    target.write(target.counted(0, 10))
    kept = []
    for number in range(6):
        before = (tmp_path / "refs.parquet/v/refs.1.parq").stat().st_ino
        new = target.counted(100 * number, 100 * number + 5)
        target.change(lambda old, new=new: joined([new, old.isel(time=slice(5, None))]))
        kept.append((tmp_path / "refs.parquet/v/refs.1.parq").stat().st_ino == before)
        found = target.open()["v"].values.tolist()
        assert found == [*range(100 * number, 100 * number + 5), *range(5, 10)]
    assert kept == [True, True, False, True, True, False]


@parquet
def test_where_files_have_one_name_records_are_copied(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any) -> None:
        raise PermissionError("no links here")

    target.write(target.counted(0, 10))
    monkeypatch.setattr("os.link", refuse)
    new = target.counted(100, 105)
    target.change(lambda old: joined([new, old.isel(time=slice(5, None))]))
    assert target.open()["v"].values.tolist() == [*range(100, 105), *range(5, 10)]


@parquet
def test_a_set_that_lacks_a_record_is_damaged_and_stays(target: Target, tmp_path: Path) -> None:
    target.write(target.counted(0, 10))
    (tmp_path / "refs.parquet/v/refs.1.parq").unlink()
    before = target.files()
    new = target.counted(100, 105)
    with pytest.raises(ReadError, match="it is gone"):
        target.change(lambda old: joined([new, old.isel(time=slice(5, None))]))
    assert target.files() == before


@parquet
def test_new_variables_are_added_beside_the_old(target: Target, tmp_path: Path) -> None:
    target.write(target.counted(0, 12))
    before = target.files()
    target.change(lambda old: old.assign(w=target.counted(5, 17)["v"], s=3.0))
    after = target.files()
    assert {n for n in after if after[n] != before.get(n)} == {
        ".zmetadata", "s/refs.0.parq", *(f"w/refs.{n}.parq" for n in range(3)),
    }  # fmt: skip
    assert target.open()["w"].values.tolist() == list(range(5, 17))
    assert target.open()["s"].item() == 3.0


@pytest.mark.parametrize("engine", ["pyarrow", "fastparquet"])
@parquet
def test_fsspec_reads_what_was_appended(target: Target, engine: str, tmp_path: Path) -> None:
    reference = pytest.importorskip("fsspec.implementations.reference")
    pytest.importorskip(engine)
    target.write(target.counted(0, 12))
    root = target.url.removeprefix("file://")

    def mapper() -> Any:
        return reference.LazyReferenceMapper(root, fsspec.filesystem("file"), engine=engine)

    old = mapper()
    assert json.loads(old[".zmetadata"])["metadata"]["v/.zarray"]["shape"] == [12]
    target.change(lambda old: joined([old, target.counted(12, 21)]))
    new = mapper()

    def check(found: Any, values: Iterable[int]) -> None:
        for number, value in enumerate(values):
            url, offset, size = found[f"v/{number}"]
            with open(url.removeprefix("file://"), "rb") as file:
                file.seek(offset)
                assert np.frombuffer(file.read(size), "<i4").tolist() == [value]

    check(old, range(12))
    check(new, range(21))
    # records that stay are links to those of the set before
    target.change(lambda old: joined([target.counted(50, 55), old.isel(time=slice(5, None))]))
    assert (tmp_path / "refs.parquet/v/refs.1.parq").stat().st_nlink == 1
    check(mapper(), [*range(50, 55), *range(5, 21)])


# ---------------------------------------------------------------------- readers


@targets(["kerchunk-parquet"])
def test_readers_keep_what_they_opened_while_appends_go_on(
    target: Target, years: list[Path]
) -> None:
    target.write(target.virtual(years[0]))
    readers = []
    for count in range(1, 5):
        readers.append((target.open(), native(years[:count])))
        pickled = pickle.dumps(target.group())  # without what it has read
        target.append(years[count])
        again = to_virtual_dataset(pickle.loads(pickled))
        np.testing.assert_array_equal(again["t"].values, native(years[:count])["t"].values)
    for reader, expected in readers:
        xr.testing.assert_identical(reader.load(), expected)


@parquet
def test_readers_never_take_a_set_for_another_one(target: Target, years: list[Path]) -> None:
    target.write(target.virtual(years[1]))
    changes: list[Callable[[xr.Dataset], xr.Dataset]] = [
        lambda old: joined([target.virtual(years[0]), old]),
        lambda old: joined([old.isel(time=slice(5)), old.isel(time=slice(6, None))]),
        lambda old: old.isel(time=slice(0, 20)),
        lambda old: old.drop_vars("t"),
        lambda old: target.virtual(years[3]),
    ]
    for change in changes:
        reader = target.open()
        target.change(change)
        if "t" in reader:
            with pytest.raises(ReadError, match="open it again"):
                reader["t"].load()
        target.open().load()


# ---------------------------------------------------------------------- where it cannot be


@targets(["kerchunk-parquet"], ["memory", *OBJECT_STORES])
def test_references_in_object_stores_are_not_replaced(target: Target, years: list[Path]) -> None:
    target.write(target.virtual(years[1]))
    before = target.files()
    changes: list[Callable[[], None]] = [
        lambda: target.prepend(years[0]),
        lambda: target.change(lambda old: old.isel(time=slice(6))),
        lambda: target.change(lambda old: old.drop_vars("t")),
        lambda: target.write(target.virtual(years[0])),
    ]
    for change in changes:
        with pytest.raises(UnsupportedError, match=r"another url.*zarr-v3"):
            change()
        assert target.files() == before
    with pytest.raises(FileExistsError):
        target.write(target.virtual(years[0]), replace=False)
    target.append(years[2])
    same(target, years[1:3])


@pytest.mark.parametrize("form", KERCHUNK)
def test_stores_without_conditions_are_not_written_to(form: str, tmp_path: Path) -> None:
    target = Target("dir://refs", form, StorageOptions(path=str(tmp_path)))
    with pytest.raises(UnsupportedError, match="conditional writes"):
        target.write(VALUES["numbers"](0, 3), replace=False)
    with virtualds.set_options(only_writer=True):
        target.write(VALUES["numbers"](0, 3), replace=False)
    before = target.files()
    with pytest.raises(UnsupportedError, match="conditional writes"):
        target.change(lambda old: joined([old, VALUES["numbers"](3, 5)]), "*")
    assert target.files() == before


class Unconditional(MemoryFileSystem):  # type: ignore[misc]
    """A store that knows nothing but whole files."""

    protocol = "unconditional"
    store: dict[str, Any] = {}  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return "/" + path.removeprefix("unconditional://").strip("/")


@pytest.mark.parametrize("form", BY_NAME)
def test_the_only_writer_needs_no_conditions(form: str) -> None:
    fsspec.register_implementation("unconditional", Unconditional, clobber=True)
    target = Target(f"unconditional://{form}/refs", form)
    with pytest.raises(UnsupportedError, match="only_writer=True"):
        target.write(VALUES["numbers"](0, 3), replace=False)
    if form == "cfa":
        # a file of values alone is no aggregation, which could be changed
        return
    with virtualds.set_options(only_writer=True):
        target.write(VALUES["numbers"](0, 3), replace=False)
        target.change(lambda old: joined([old, VALUES["numbers"](3, 5)]), "*")
    xr.testing.assert_equal(target.open().load(), VALUES["numbers"](0, 5))


# ---------------------------------------------------------------------- several writers


@everywhere
def test_of_two_writers_one_gets_an_error(target: Target, years: list[Path]) -> None:
    target.write(target.virtual(years[0]))

    def late(old: xr.Dataset) -> xr.Dataset:
        target.append(years[1])
        return joined([old, target.virtual(years[2])])

    with pytest.raises(ConflictError, match="another writer"):
        target.change(late)
    same(target, years[:2])


@parquet
def test_a_writer_that_has_seen_the_old_set_does_not_replace_the_new_one(
    target: Target, years: list[Path]
) -> None:
    target.write(target.virtual(years[0]))
    actions: list[Callable[[], None]] = [
        lambda: target.prepend(years[1]),
        lambda: target.append(years[2]),
        lambda: target.write(target.virtual(years[3])),
    ]
    for other in actions:
        for mine in (lambda old: old.isel(time=slice(3, None)), lambda old: old.assign(x=1)):

            def late(old: xr.Dataset, other: Any = other, mine: Any = mine) -> xr.Dataset:
                other()
                found: xr.Dataset = mine(old)
                return found

            with pytest.raises(ConflictError):
                target.change(late)
    same(target, years[3:4])


@parquet
def test_damage_is_not_taken_for_another_writer(target: Target) -> None:
    """Whoever tries again after a conflict would try for ever."""
    target.write(target.counted(0, 12))
    Path(target.url.removeprefix("file://"), "v", "refs.2.parq").unlink()
    with pytest.raises(ReadError, match=r"refs\.2\.parq"):
        target.change(lambda old: joined([old, target.counted(12, 19)]))


@parquet
def test_a_file_that_changed_is_not_appended_under_its_old_fingerprint(
    target: Target, tmp_path: Path
) -> None:
    path = tmp_path / "2001.nc"
    write_year(path, 2001)
    target.write(target.virtual(path))
    os.utime(path, ns=(0, 0))
    before = target.files()
    with pytest.raises(UnsupportedError, match="scanned twice"):
        target.append(path)
    assert target.files() == before


def add(target: Target, path: Path) -> int:
    """Append as often as it takes; say how often that was."""
    # on a busy machine another writer may hold the set for a thousand attempts
    last = time.monotonic() + 300
    attempt = 0
    while time.monotonic() < last:
        attempt += 1
        with suppress(ConflictError):
            target.append(path)
            return attempt
    raise AssertionError("no progress")


def all_are_there(target: Target, paths: Sequence[Path]) -> None:
    found = target.open().load()
    assert found.sizes["time"] == 12 * len(paths)
    xr.testing.assert_identical(found.sortby("time"), native(paths))


@parquet
def test_of_writers_that_try_again_at_once_one_always_succeeds(target: Target) -> None:
    """Eight of them end sixteen appends each; they would displace each other without waiting."""
    rounds = 16
    new = [target.counted(n, n + 1) for n in range(WRITERS * rounds + 1)]
    target.write(new.pop())

    def loop(number: int) -> int:
        conflicts = 0
        for added in new[number::WRITERS]:
            while True:
                try:
                    target.change(lambda old, added=added: joined([old, added]))
                    break
                except ConflictError:
                    conflicts += 1
        return conflicts

    with ThreadPoolExecutor(WRITERS) as pool:
        conflicts = sum(pool.map(loop, range(WRITERS)))
    assert sorted(target.open()["v"].values.tolist()) == list(range(WRITERS * rounds + 1))
    # each conflict is one that a rival has won: one success conflicts with seven writers at most
    assert conflicts <= 2 * WRITERS * len(new)


@targets(["kerchunk-parquet"], ["local", "memory"])
def test_a_fence_of_a_killed_writer_stands_for_a_time(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.write(target.counted(0, 12))
    put, writes = type(target.store).write_version, iter(range(99))

    def killed(self: Any, *args: Any) -> str:
        if next(writes) == 1:
            raise KeyboardInterrupt
        return put(self, *args)

    waits = []
    for patience in (0.2, 0.1):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            writes = iter(range(99))
            patch.setattr(type(target.store), "write_version", killed)
            patch.setattr(fence, "WAIT_SECONDS", patience)
            start = time.monotonic()
            target.change(lambda old: joined([old, target.counted(100, 103)]))
        waits.append(time.monotonic() - start)
    monkeypatch.setattr(fence, "WAIT_SECONDS", 0.1)
    start = time.monotonic()
    target.change(lambda old: joined([old, target.counted(12, 19)]))
    # the second fence displaced the first one, so it stands twice as long
    assert time.monotonic() - start >= 0.2
    assert waits[1] >= 0.1
    assert target.open()["v"].values.tolist() == list(range(19))


@pytest.mark.product
@everywhere
def test_threads_that_append_lose_nothing(target: Target, years: list[Path]) -> None:
    target.write(target.virtual(years[0]))
    with ThreadPoolExecutor(RIVALS) as pool:
        list(pool.map(lambda path: add(target, path), years[1 : RIVALS + 1]))
    all_are_there(target, years[: RIVALS + 1])


CALLED = """
import pickle, sys
import test_updates

print("ready", flush=True)
while job := pickle.load(sys.stdin.buffer):
    function, arguments = job
    print(getattr(test_updates, function)(*arguments), flush=True)
"""
"""Calls one function of this module after the other: a process takes long to start."""


@contextmanager
def called_processes(number: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    # -P: what is tested may be a copy of the package, not the one that lies here
    command, env = [sys.executable, "-P", "-c", CALLED], {**os.environ, "PYTHONPATH": paths}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, env=env, **pipes)) for _ in range(number)
        ]
        assert [answer(process) for process in processes] == ["ready"] * number
        yield processes
        for process in processes:
            if process.poll() is None:
                call(process, None)


def call(process: subprocess.Popen[bytes], job: tuple[str, tuple[Any, ...]] | None) -> None:
    assert process.stdin is not None
    process.stdin.write(pickle.dumps(job))
    process.stdin.flush()


def answer(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


# ---------------------------------------------------------------------- several first writers


def add_first(target: Target, path: Path) -> None:
    """Append to a set that may not be there, as users do."""
    dataset = target.virtual(path)
    dataset.virtual.to_manifest(
        target.url, append_dim="time", conflict="retry", storage_options=target.options
    )


@everywhere
def test_threads_that_append_first_lose_nothing(target: Target, years: list[Path]) -> None:
    with ThreadPoolExecutor(RIVALS) as pool:
        list(pool.map(lambda path: add_first(target, path), years[:RIVALS]))
    all_are_there(target, years[:RIVALS])


@everywhere
def test_of_threads_that_create_a_set_one_succeeds(target: Target, years: list[Path]) -> None:
    barrier = threading.Barrier(4)
    datasets = [target.virtual(path) for path in years[:4]]

    def create(dataset: xr.Dataset) -> bool:
        barrier.wait(300)
        try:
            dataset.virtual.to_manifest(target.url, storage_options=target.options)
        except (FileExistsError, ConflictError):
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(create, datasets))
    assert won.count(True) == 1 or (won.count(True) == 0 and target.form == "kerchunk-parquet")
    if any(won):
        same(target, [years[won.index(True)]])
    else:
        # each took over from another: whoever comes next creates it
        create_alone = target.virtual(years[0])
        create_alone.virtual.to_manifest(target.url, storage_options=target.options)
        same(target, years[:1])


def append_in_processes(target: Target, paths: list[Path]) -> int:
    """Append each file in a process of its own; return how many failed."""
    folder, _, name = target.url.rpartition("/")
    another = replace(target, url=f"{folder}/another-{name}")
    import_what_it_imports(partial(add_first, another, paths[0]))
    children = [start_forked(partial(add_first, target, path)) for path in paths]
    return sum(map(wait_for, children))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked there")
@pytest.mark.full
@pytest.mark.parametrize(
    "target",
    [("kerchunk-json", OBJECT_STORES[0]), ("kerchunk-parquet", "local"), ("zarr-v3", "local")],
    ids="-".join,
    indirect=True,
)
def test_processes_that_append_first_lose_nothing(
    target: Target, years: list[Path], killer: subprocess.Popen[bytes]
) -> None:
    call(killer, ("append_in_processes", (target, years[:3])))
    assert answer(killer) == "0"
    all_are_there(target, years[:3])


@pytest.mark.product
@targets(stores=["memory", *OBJECT_STORES])
def test_readers_see_no_set_or_all_of_it_while_it_is_created(
    target: Target, years: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    with monkeypatch.context() as patch:
        for name in ("write_version", "write_file"):
            method = getattr(FsspecStore, name)

            def watched(self: Any, *args: Any, method: Any = method) -> Any:
                answer = method(self, *args)
                seen.append(whole_or_nothing(target, years[0]))
                return answer

            patch.setattr(FsspecStore, name, watched)
        target.virtual(years[0]).virtual.to_manifest(target.url, storage_options=target.options)
    assert seen[-1] and seen == sorted(seen)


def whole_or_nothing(target: Target, path: Path) -> bool:
    """Say whether there is a set; if there is, it is whole."""
    try:
        same(target, [path])
    except FileNotFoundError:
        return False
    return True


@targets(["kerchunk-parquet"], ["memory", *OBJECT_STORES])
def test_a_set_begun_by_a_killed_writer_is_taken_over(
    target: Target, years: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, "WAIT_SECONDS", 0.05)
    put, late = FsspecStore.write_version, list[Callable[[], str]]()

    def failing(self: Any, url: str, *args: Any) -> str:
        if url.endswith("/t/refs.0.parq"):
            late.append(lambda: put(self, url, *args))
            raise KeyboardInterrupt
        return put(self, url, *args)

    with monkeypatch.context() as patch:
        patch.setattr(FsspecStore, "write_version", failing)
        with pytest.raises(KeyboardInterrupt):
            target.write(target.virtual(years[0]))
    assert target.files()
    with pytest.raises(FileNotFoundError, match="refs"):
        target.open()
    with pytest.raises(FileNotFoundError, match="is creating this set"):
        target.change(lambda old: old)
    target.write(target.virtual(years[1]))
    # what the first one was about to write fails
    with pytest.raises(OSError, match="another writer"):
        late[0]()
    same(target, years[1:2])


# ---------------------------------------------------------------------- killed

WRITING = {"os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


def die_at(number: int, folder: str) -> None:
    """End this process at its write of this number, as if it were killed."""
    count = iter(range(10_000))
    fsync = os.fsync

    def counts() -> None:
        if next(count) == number:
            os._exit(9)

    def watch(event: str, args: Any) -> None:
        writes = (
            event == "open"
            and isinstance(args[0], str)
            and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if writes or event in WRITING:
            if str(args[0]).startswith(folder):
                counts()
        elif event == "ctypes.dlsym" and args[1] == "renameat2":
            counts()

    def synced(handle: int) -> None:
        counts()
        fsync(handle)

    os.fsync = synced
    sys.addaudithook(watch)


ACTIONS: dict[str, Callable[[Target, Path], None]] = {
    "append": Target.append,
    "prepend": Target.prepend,
    "write": lambda target, path: target.write(target.virtual(path)),
    "fill": Target.fill,
}
KILLED = [
    *(("kerchunk-json", "append"), ("kerchunk-parquet", "append"), ("zarr-v3", "append")),
    ("kerchunk-parquet", "prepend"),
]
"""What is killed at each write: a change in place of each format, and one of a whole folder.

A soak tries each action with each format; in ``tests/protocol`` writers die before any request.
"""
UPKEEP: dict[str, Callable[[Target, Path], Any]] = {
    "compact": lambda target, _: virtualds.compact(target.url),
    "move": lambda target, path: virtualds.rename_paths(
        target.url, lambda url: f"file://{path}/{url.rpartition('/')[2]}"
    ),
}
AFTERWARDS: dict[str, Callable[[Path, Path], xr.Dataset]] = {
    "append": lambda old, new: native([old, new]),
    "prepend": lambda old, new: native([new, old]),
    "write": lambda old, new: native([new]),
    "fill": lambda old, new: native([new]).assign_coords(time=native([old])["time"]),
}


def kill_everywhere(folder: str, form: str, action: str, path: Path) -> int:
    """Kill a process for each write that it does, each with a set of its own; count the writes."""
    name = f"refs{BY_NAME[form].suffixes[0]}"

    def act(place: str) -> None:
        (ACTIONS | UPKEEP)[action](Target(f"file://{place}/{name}", form), path)

    def die(number: int, place: str) -> None:
        die_at(number, place)
        act(place)

    shutil.copytree(f"{folder}/before", f"{folder}/whole")
    import_what_it_imports(partial(act, f"{folder}/whole"))
    number, code = -1, 9
    while code == 9:
        number += 1
        place = f"{folder}/{number}"
        shutil.copytree(f"{folder}/before", place)
        code = run_forked(partial(die, number, place))
    assert code == 0
    return number


def start_forked(do: Callable[[], None]) -> int:
    """Do something in a child of this process, and return the number of the child."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            do()
            code = 0
        finally:
            os._exit(code)
    return child


def wait_for(child: int) -> int:
    """Return the exit code of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def run_forked(do: Callable[[], None]) -> int:
    """Do something in a child of this process, and return its exit code."""
    return wait_for(start_forked(do))


def import_what_it_imports(do: Callable[[], None]) -> None:
    """Import what a child imports to do something: it takes ten times as long as what it does."""
    read, write = os.pipe()

    def tell() -> None:
        do()
        os.write(write, "\n".join(sys.modules).encode())

    assert run_forked(tell) == 0
    os.close(write)
    with open(read) as names:
        for name in names.read().split("\n"):
            # what stands under two names is imported under one of them
            with suppress(ImportError):
                importlib.import_module(name)


@pytest.fixture(scope="module")
def killer() -> Iterator[subprocess.Popen[bytes]]:
    """A process that starts no threads, so that it may be forked."""
    with called_processes(1) as [process]:
        yield process


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers that are gone are waited for, which another test is about."""
    monkeypatch.setattr(fence, "WAIT_SECONDS", 0.001)
    monkeypatch.setattr(fence, "MAX_WAIT", 0.02)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked there")
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("form", "action"), others_soaked(itertools.product(BY_NAME, ACTIONS), KILLED)
)
def test_a_writer_killed_at_any_write_leaves_the_old_set_or_the_new_one(
    form: str, action: str, tmp_path: Path, years: list[Path], killer: subprocess.Popen[bytes]
) -> None:
    name = f"refs{BY_NAME[form].suffixes[0]}"
    (tmp_path / "before").mkdir()
    target = Target(f"file://{tmp_path}/before/{name}", form)
    target.write(target.virtual(years[1]))
    call(killer, ("kill_everywhere", (str(tmp_path), form, action, years[2])))
    writes = int(answer(killer))
    old, new = native(years[1:2]), AFTERWARDS[action](years[1], years[2])
    seen = []
    for number in range(writes + 1):
        target = Target(f"file://{tmp_path}/{number}/{name}", form)
        found = target.open().load()
        seen.append(not found.identical(old))
        xr.testing.assert_identical(found, new if seen[-1] else old)
        if number % 4 == 0 or seen[-1]:
            target.append(years[5])
            expected = joined([new if seen[-1] else old, native(years[5:6])])
            xr.testing.assert_identical(target.open().load(), expected)
    assert seen == sorted(seen) and not seen[0] and seen[-1]
    assert writes >= 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are not forked there")
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("form", "action"),
    others_soaked(
        [*itertools.product(("kerchunk-parquet", "zarr-v3"), UPKEEP), ("kerchunk-json", "move")],
        [("kerchunk-parquet", "move"), ("zarr-v3", "compact")],
    ),
)
def test_upkeep_killed_at_any_write_leaves_a_whole_set(
    form: str, action: str, tmp_path: Path, killer: subprocess.Popen[bytes]
) -> None:
    name = f"refs{BY_NAME[form].suffixes[0]}"
    (tmp_path / "before").mkdir()
    target = Target(f"file://{tmp_path}/before/{name}", form)
    # few references of zarr-v3 stand in its document, and there is nothing to compact
    count = 10_000 if form == "zarr-v3" else 1000
    choices = {"record_size": 100} if form == "kerchunk-parquet" else {}
    target.write(target.counted(0, count // 2), **choices)
    target.change(lambda old: joined([old, target.counted(count // 2, count)]))
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in (tmp_path / "before" / f"{name}.of").iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    call(killer, ("kill_everywhere", (str(tmp_path), form, action, moved)))
    writes = int(answer(killer))
    for number in range(writes + 1):
        target = Target(f"file://{tmp_path}/{number}/{name}", form)
        virtualds.clean_up(target.url, older_than=timedelta(0))
        np.testing.assert_array_equal(target.open()["v"].values, np.arange(count))
        where = set(virtualds.open_virtual_dataset(target.url).virtual.sources["url"])
        assert len({url.rpartition("/")[0] for url in where}) == 1
        target.change(lambda old, target=target: joined([old, target.counted(count, count + 3)]))
        assert target.open().sizes["time"] == count + 3
    assert all("/moved/" in url for url in where) == (action == "move")
    assert writes >= 3


# Parquet's writer sends some forty requests, and each is tried.
@pytest.mark.full
@pytest.mark.usefixtures("impatient")
@targets(stores=["memory"])
def test_a_writer_that_ends_at_any_request_leaves_the_old_set(
    target: Target, years: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    target.write(target.virtual(years[0]))
    before, done, number = native(years[:1]), False, 0
    writing = [(FsspecStore, n, getattr(FsspecStore, n)) for n in ("write_version", "write_file")]
    while not done:
        count = iter(range(999))

        def failing(method: Any, count: Any = count, number: int = number) -> Any:
            def write(self: Any, *args: Any) -> Any:
                if next(count) == number:
                    raise KeyboardInterrupt
                return method(self, *args)

            return write

        with monkeypatch.context() as patch:
            for kind, name, method in writing:
                patch.setattr(kind, name, failing(method))
            try:
                target.append(years[1])
                done = True
            except KeyboardInterrupt:
                pass
        if target.open().sizes["time"] == 12:
            xr.testing.assert_identical(target.open().load(), before)
        else:
            # what follows the one write that counts are copies
            done = True
        number += 1
    same(target, years[:2])
    assert number > 1
