"""Cells of a template are filled in any order, by many writers, and nothing is lost or added."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from forecasts import CELLS, REGION, Cell, Forecasts, fill, iterate_names
from independent_reader import Set
from memory import peak
from pools import quick_processes

import virtualds
from virtualds import CombineError, ManifestArray, UnsupportedError
from virtualds.datasets.lazy import get_virtual_array

NAMES = {"zarr-v3": "refs.zarr", "kerchunk-json": "refs.json", "kerchunk-parquet": "refs.parquet"}
FORMATS = [*NAMES, "zarr-v3 in Parquet"]
CHUNK = {"chunksizes": (1, 2, 1, 4, 6)}


@pytest.fixture(scope="module")
def forecasts(tmp_path_factory: pytest.TempPathFactory) -> Forecasts:
    found = Forecasts(tmp_path_factory.mktemp("forecasts"))
    for cell in CELLS:
        found.path(cell)
    return found


@pytest.fixture(params=FORMATS)
def url(request: pytest.FixtureRequest, tmp_path: Path, forecasts: Forecasts) -> Path:
    """A set that is a template."""
    choices = {"manifest": "parquet"} if "Parquet" in request.param else {}
    path = tmp_path / NAMES[request.param.partition(" ")[0]]
    forecasts.template().virtual.to_manifest(path, **choices)
    return path


@pytest.fixture
def refs(tmp_path: Path, forecasts: Forecasts) -> Path:
    forecasts.template().virtual.to_manifest(tmp_path / "refs.zarr")
    return tmp_path / "refs.zarr"


def opened(url: Path) -> xr.Dataset:
    return xr.open_dataset(url, engine="virtual").load()


def virtual(url: Path, name: str) -> ManifestArray:
    found = get_virtual_array(virtualds.open_virtual_dataset(url).variables[name])
    assert found is not None
    return found


def shuffled(seed: int) -> list[Cell]:
    return random.Random(seed).sample(CELLS, len(CELLS))


# ---------------------------------------------------------------------- filling


def test_a_template_reads_as_missing_values(url: Path, forecasts: Forecasts) -> None:
    xr.testing.assert_equal(opened(url), forecasts.expected([]))
    assert len(virtualds.open_virtual_dataset(url).virtual.sources) == 0


def test_cells_filled_in_any_order_are_all_there_and_nothing_else(
    url: Path, forecasts: Forecasts
) -> None:
    order = shuffled(1)
    for number, cell in enumerate(order, 1):
        fill(url, forecasts.virtual(cell))
        if number % 5 == 1 or number == len(order):
            xr.testing.assert_equal(opened(url), forecasts.expected(order[:number]))
    for name in ("t2m", "rain", "valid"):
        array = virtual(url, name)
        assert (len(array.fragments), len(array.pipelines)) == (1, 1)


@pytest.mark.parametrize("name", NAMES.values())
def test_files_without_a_dimension_fill_cells_once_it_is_added(
    name: str, tmp_path: Path, forecasts: Forecasts
) -> None:
    def open_run(number: int) -> xr.Dataset:
        bare = forecasts.virtual(CELLS[number])[["t2m", "rain"]].isel(member=0, drop=True)
        return bare.expand_dims(run=[number])

    url = tmp_path / name
    template = virtualds.template(open_run(0), {"run": np.arange(3)})
    template.virtual.to_manifest(url)
    for number in (1, 0):
        open_run(number).virtual.to_manifest(url, region={"run": "auto"})
    assert len(virtual(url, "t2m").fragments) == 1
    ds = opened(url)
    assert ds["t2m"].sel(run=2).isnull().all()
    for number in (0, 1):
        expected = forecasts.of(CELLS[number]).isel(member=0, drop=True)["t2m"]
        np.testing.assert_array_equal(ds["t2m"].sel(run=number), expected)


@pytest.mark.parametrize("name", NAMES.values())
def test_files_are_stacked_by_appending_them_with_a_new_dimension(
    name: str, tmp_path: Path, forecasts: Forecasts
) -> None:
    url = tmp_path / name
    for number in range(3):
        run = forecasts.virtual(CELLS[0])[["t2m"]].expand_dims(run=[number])
        run.virtual.to_manifest(url, append_dim="run")
    assert len(virtual(url, "t2m").pipelines) == 1
    expected = forecasts.of(CELLS[0])["t2m"].expand_dims(run=3)
    np.testing.assert_array_equal(opened(url)["t2m"], expected)


def test_attributes_and_coordinates_are_those_of_the_template(
    url: Path, forecasts: Forecasts
) -> None:
    before = opened(url)
    fill(url, forecasts.virtual(CELLS[3]).assign_attrs(title="one file"))
    after = opened(url)
    assert after.attrs == before.attrs and after["valid"].attrs == {"long_name": "no index"}
    xr.testing.assert_identical(after.coords.to_dataset(), before.coords.to_dataset())


def fill_cells(folder: Path, url: Path, cells: list[Cell]) -> None:
    for cell in cells:
        fill(url, Forecasts(folder).virtual(cell), conflict="retry")


@pytest.fixture(scope="module")
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as pool:
        yield pool


@pytest.fixture(scope="module")
def processes() -> Iterator[Executor]:
    """Three processes, started once, since that takes seconds."""
    with quick_processes(3) as pool:
        yield pool


@pytest.mark.parametrize("workers", ["threads", pytest.param("processes", marks=pytest.mark.full)])
def test_many_writers_lose_no_cell(
    workers: str, url: Path, forecasts: Forecasts, request: pytest.FixtureRequest
) -> None:
    parts = [shuffled(2)[number::3] for number in range(3)]
    pool = request.getfixturevalue(workers)
    list(pool.map(fill_cells, [forecasts.folder] * 3, [url] * 3, parts))
    xr.testing.assert_equal(opened(url), forecasts.expected(CELLS))


def test_a_region_is_given_by_slices_or_found_by_its_coordinates(
    url: Path, forecasts: Forecasts
) -> None:
    cells = [(1, 2, 0), (0, 0, 1), (2, 2, 1)]
    place = {"init": slice(1, 2), "lead": slice(2, 4), "member": slice(0, 1)}
    forecasts.virtual(cells[0]).drop_vars(REGION).virtual.to_manifest(url, region=place)
    # all dimensions, also those without "auto" in the other regions
    whole = virtualds.open_virtual_dataset(forecasts.path(cells[1]))
    whole.virtual.to_manifest(url, region="auto", mode="r+")
    mixed = {"init": "auto", "lead": slice(2, None), "member": "auto"}
    forecasts.virtual(cells[2]).virtual.to_manifest(url, region=mixed)
    xr.testing.assert_equal(opened(url), forecasts.expected(cells))


def test_some_variables_may_come_later(url: Path, forecasts: Forecasts) -> None:
    fill(url, forecasts.virtual(CELLS[0])[["rain"]])
    assert opened(url)["t2m"].isnull().all()
    fill(url, forecasts.virtual(CELLS[0])[["t2m", "valid"]])
    xr.testing.assert_equal(opened(url), forecasts.expected(CELLS[:1]))


def test_a_filled_set_grows_by_appending(url: Path, forecasts: Forecasts) -> None:
    fill(url, forecasts.virtual(CELLS[0]))
    later = forecasts.template()
    later = later.assign_coords(init=later["init"] + np.timedelta64(2, "D"))
    later.virtual.to_manifest(url, append_dim="init")
    moved = forecasts.virtual(CELLS[7])
    moved = moved.assign_coords(init=moved["init"] + np.timedelta64(2, "D"))
    fill(url, moved)
    fill(url, forecasts.virtual(CELLS[1]))
    found = opened(url)
    after = forecasts.expected([CELLS[7]])
    after = after.assign_coords(init=after["init"] + np.timedelta64(2, "D"))
    expected = xr.concat([forecasts.expected(CELLS[:2]), after], "init")
    xr.testing.assert_equal(found, expected)


def test_a_filled_set_is_cropped_joined_and_converted(
    url: Path, forecasts: Forecasts, tmp_path: Path
) -> None:
    order = shuffled(3)[:9]
    for cell in order:
        fill(url, forecasts.virtual(cell))
    whole, expected = virtualds.open_virtual_dataset(url), forecasts.expected(order)
    halves = [whole.isel(init=slice(2, None)), whole.isel(init=slice(0, 2))]
    joined = xr.concat(halves, "init", data_vars="minimal", coords="minimal", compat="override")
    for name in NAMES.values():
        target = tmp_path / f"again-{name}"
        joined.virtual.to_manifest(target)
        xr.testing.assert_equal(opened(target).sortby("init"), expected)
        virtualds.convert(url, target, mode="w")
        xr.testing.assert_equal(opened(target), expected)
    part = {"lead": slice(1, 3), "member": slice(None, None, -1)}
    xr.testing.assert_equal(whole.isel(part).load(), expected.isel(part))


def test_a_reindexed_dataset_is_a_template(forecasts: Forecasts, tmp_path: Path) -> None:
    first = virtualds.open_virtual_dataset(forecasts.path(CELLS[0]))[["rain"]]
    whole = forecasts.template()
    wide = first.reindex({dim: whole[dim] for dim in REGION})
    for name in NAMES.values():
        wide.virtual.to_manifest(tmp_path / name)
        for cell in shuffled(4)[:6]:
            if cell != CELLS[0]:
                fill(tmp_path / name, forecasts.virtual(cell)[["rain"]])
        cells = [CELLS[0], *shuffled(4)[:6]]
        xr.testing.assert_equal(opened(tmp_path / name), forecasts.expected(cells)[["rain"]])
        assert len(virtual(tmp_path / name, "rain").fragments) == 1


# ---------------------------------------------------------------------- what is there already


def test_a_cell_that_has_references_is_refused_left_or_replaced(
    url: Path, forecasts: Forecasts
) -> None:
    cell = (0, 2, 1)
    fill(url, forecasts.virtual(cell))
    before = [path.read_bytes() for path in sorted(iterate_names(url.parent))]
    other = forecasts.virtual(CELLS[6]).drop_vars(REGION)
    place = {"init": slice(0, 1), "lead": slice(2, 4), "member": slice(1, 2)}
    with pytest.raises(CombineError, match="2 chunks of the region have references already"):
        other.virtual.to_manifest(url, region=place)
    other.virtual.to_manifest(url, region=place, on_duplicate="skip")
    assert [path.read_bytes() for path in sorted(iterate_names(url.parent))] == before
    other.virtual.to_manifest(url, region=place, on_duplicate="replace")
    found, values = opened(url).isel(place), forecasts.of(CELLS[6])
    for name in ("t2m", "rain", "valid"):
        np.testing.assert_array_equal(found[name], values[name])
    assert opened(url)["t2m"].notnull().sum() == 2 * 24
    assert len(virtual(url, "t2m").fragments) == 1


def test_chunks_that_are_there_stay_and_others_are_added(url: Path, forecasts: Forecasts) -> None:
    cells = [(2, 0, 1), (2, 2, 1)]
    fill(url, forecasts.virtual(cells[1]).isel(lead=[0]))
    both = xr.concat([forecasts.virtual(c) for c in cells], "lead")
    with pytest.raises(CombineError, match="1 chunks of the region"):
        fill(url, both)
    fill(url, both, on_duplicate="skip")
    xr.testing.assert_equal(opened(url), forecasts.expected(cells))


def test_a_missing_chunk_replaces_one_that_was_there(refs: Path, forecasts: Forecasts) -> None:
    fill(refs, forecasts.virtual((2, 0, 1)))
    nothing = forecasts.template().isel(init=[2], lead=slice(0, 2), member=[1])
    nothing = nothing.drop_vars(["x", "y"])
    fill(refs, nothing, on_duplicate="replace")
    xr.testing.assert_equal(opened(refs), forecasts.expected([]))


# ---------------------------------------------------------------------- other encodings


OTHER = [{"zlib": False, "shuffle": False}, {"complevel": 9}, CHUNK, {"rain": {"dtype": "f8"}}]
"""How cells are stored unlike the template; the last is not packed."""


@pytest.mark.parametrize("other", OTHER)
def test_cells_of_other_encodings_stand_among_the_others(
    other: dict[str, Any], refs: Path, forecasts: Forecasts
) -> None:
    cells = shuffled(6)[:8]
    for number, cell in enumerate(cells):
        fill(refs, forecasts.virtual(cell, **(other if number % 3 == 1 else {})))
    xr.testing.assert_equal(opened(refs), forecasts.expected(cells))
    again = forecasts.virtual(cells[0], **other)
    fill(refs, again, on_duplicate="replace")
    xr.testing.assert_equal(opened(refs), forecasts.expected(cells))


@pytest.mark.parametrize("form", ["kerchunk-json", "kerchunk-parquet"])
def test_an_encoding_that_a_format_does_not_hold_is_refused_and_nothing_changes(
    form: str, tmp_path: Path, forecasts: Forecasts
) -> None:
    path = tmp_path / NAMES[form]
    forecasts.template().virtual.to_manifest(path)
    with pytest.raises(UnsupportedError, match=r"t2m: .*2 encodings"):
        fill(path, forecasts.virtual(CELLS[0], zlib=False, shuffle=False))
    xr.testing.assert_equal(opened(path), forecasts.expected([]))


@pytest.mark.parametrize("on_duplicate", ["raise", "replace"])
def test_missing_chunks_of_a_region_keep_their_own_fill_value(
    on_duplicate: str, tmp_path: Path, refs: Path
) -> None:
    def stored(name: str, size: int, filler: int) -> xr.Dataset:
        with h5py.File(tmp_path / name, "w") as file:
            array = file.create_dataset("v", (size,), "i4", chunks=(2,), fillvalue=filler)
            array[:2] = filler * 10, filler * 11
        return virtualds.open_virtual_dataset(tmp_path / name)

    for filler in (-1, 7):
        stored("set.nc", 10, -1).virtual.to_manifest(refs, mode="w")
        added = stored("added.nc", 4, filler)
        region = {"phony_dim_0": slice(4, 8)}
        # the chunks of another pipeline, and none at all
        for part, values in ((added, [filler * 10, filler * 11, filler, filler]),
                             (added.isel(phony_dim_0=slice(2, 4)), [filler, filler])):  # fmt: skip
            place = region if part is added else {"phony_dim_0": slice(8, 10)}
            part.virtual.to_manifest(refs, region=place, on_duplicate=on_duplicate)
            found = opened(refs)["v"].values
            np.testing.assert_array_equal(found[:4], [-10, -11, -1, -1])
            np.testing.assert_array_equal(found[place["phony_dim_0"]], values)


@pytest.mark.parametrize("written", [4, 8])
def test_gaps_of_what_fills_a_region_read_as_they_did(
    written: int, tmp_path: Path, refs: Path
) -> None:
    with h5py.File(tmp_path / "a.nc", "w") as file:
        array = file.create_dataset("v", (8,), "i4", chunks=(2,), fillvalue=-1)
        array[:written] = np.arange(written)
    ds = virtualds.open_virtual_dataset(tmp_path / "a.nc")
    part = ds.isel(phony_dim_0=slice(2, 4)).assign_coords(phony_dim_0=[0, 1])
    for filler in (-1, 99):
        ds.virtual.to_manifest(refs, mode="w")
        added = part.reindex(phony_dim_0=range(4), fill_value=filler).drop_vars("phony_dim_0")
        region = {"phony_dim_0": slice(4, 8)}
        added.virtual.to_manifest(refs, region=region, on_duplicate="replace")
        np.testing.assert_array_equal(opened(refs)["v"], [0, 1, 2, 3, 2, 3, filler, filler])


def test_uncompressed_chunks_are_cut(tmp_path: Path, refs: Path) -> None:
    plain = tmp_path / "plain.nc"
    values = np.arange(24.0).reshape(4, 6)
    xr.Dataset({"v": (("y", "x"), values)}).to_netcdf(plain, engine="netcdf4")
    ds = virtualds.open_virtual_dataset(plain)
    ds.virtual.to_manifest(refs, mode="w")
    region = {"y": slice(1, 3), "x": slice(2, 4)}
    part = ds.isel(y=slice(0, 2), x=slice(0, 2))
    part.virtual.to_manifest(refs, region=region, on_duplicate="replace")
    values[1:3, 2:4] = values[:2, :2].copy()
    np.testing.assert_array_equal(opened(refs)["v"], values)


# ---------------------------------------------------------------------- refusals


def cell(forecasts: Forecasts) -> xr.Dataset:
    return forecasts.virtual((1, 0, 1))


def test_auto_takes_a_dimension_without_coordinate_whole(tmp_path: Path) -> None:
    values = xr.Dataset({"t": (("init", "x"), np.arange(12.0).reshape(3, 4))}, {"init": [1, 2, 3]})
    cells = []
    for number, part in values.groupby("init"):
        part.to_netcdf(tmp_path / f"{number}.nc")
        cells.append(virtualds.open_virtual_dataset(tmp_path / f"{number}.nc"))
    target = tmp_path / "refs.zarr"
    virtualds.template(cells[0], coords={"init": [1, 2, 3]}).virtual.to_manifest(target)
    with pytest.raises(ValueError, match="4 elements of the set, and the new dataset has 2"):
        cells[0].isel(x=slice(0, 2)).virtual.to_manifest(target, region="auto")
    for one in reversed(cells):
        one.virtual.to_manifest(target, region="auto")
    xr.testing.assert_identical(xr.open_dataset(target, engine="virtual").load(), values)


REFUSED: dict[str, tuple[Callable[[xr.Dataset], xr.Dataset], Any, type[Exception], str]] = {
    "no such word": (lambda ds: ds, "automatic", ValueError, "'auto', or a dict"),
    "no such dimension": (lambda ds: ds, {"time": "auto"}, ValueError, "no dimension 'time'"),
    "a step": (lambda ds: ds, {"lead": slice(0, 4, 2)}, ValueError, "has a step"),
    "too long": (lambda ds: ds, {"lead": slice(0, 3)}, ValueError, "selects 3 of the 4 elements"),
    "beyond": (lambda ds: ds, {"lead": slice(3, 5)}, ValueError, "beyond the 4 elements"),
    "beyond, and as long as what is left": (
        lambda ds: ds.isel(lead=[0]), {"lead": slice(3, 5)}, ValueError, "beyond the 4 elements"
    ),
    "no index": (lambda ds: ds.drop_vars("init"), REGION, ValueError, "no index coordinate 'init'"),
    "an unknown value": (
        lambda ds: ds.assign_coords(member=[7]), REGION, CombineError, "'member' of the .* no 7"
    ),
    "not contiguous": (
        lambda ds: ds.isel(lead=[1, 0]), REGION, CombineError, r"at \[1, 0\] of the set"
    ),
    "gaps": (
        lambda ds: ds.assign_coords(lead=[0, 12]), REGION, CombineError, r"at \[0, 2\] of the set"
    ),
    "another place": (
        lambda ds: ds, {"init": slice(0, 1), "lead": slice(0, 2), "member": slice(1, 2)},
        CombineError, "'init' of the set has other values there",
    ),
    "a variable elsewhere": (
        lambda ds: ds.assign(area=("y", np.ones(4))), REGION, ValueError, "variables .'area'. have"
    ),
    "an unknown variable": (
        lambda ds: ds.rename(t2m="t"), REGION, CombineError, "t: the set has no such variable"
    ),
    "other dimensions": (
        lambda ds: ds.transpose("lead", ...), REGION, CombineError, "t2m: its dimensions are"
    ),
    "part of a dimension": (
        lambda ds: ds.isel(x=slice(0, 3)), REGION, CombineError, "t2m: it has 6 elements along 'x'"
    ),
    "in memory": (
        lambda ds: ds.assign(t2m=ds["t2m"].copy(data=ds["t2m"].values)),
        REGION, CombineError, "t2m: it is in memory",
    ),
    "another type": (
        lambda ds: ds.assign(t2m=ds["valid"].astype("c16")), REGION, CombineError, "t2m"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_dataset_that_does_not_fit_the_region_is_refused(
    case: str, refs: Path, forecasts: Forecasts
) -> None:
    change, region, kind, message = REFUSED[case]
    before = sorted(iterate_names(refs))
    with pytest.raises(kind, match=message):
        change(cell(forecasts)).virtual.to_manifest(refs, region=region)
    assert sorted(iterate_names(refs)) == before


def test_a_region_does_not_cut_compressed_chunks(refs: Path, forecasts: Forecasts) -> None:
    place = {"y": slice(0, 2)}
    whole = forecasts.template()[["t2m"]].isel(y=slice(0, 2)).drop_vars("x")
    fill(refs, forecasts.virtual((1, 0, 1)))
    with pytest.raises(CombineError, match="cuts compressed chunks of the set"):
        whole.virtual.to_manifest(refs, region=place, on_duplicate="replace")


OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "mode a": ({"region": REGION, "mode": "a"}, "'r\\+' fills a region"),
    "no region": ({"mode": "r+"}, "to fill a part of them, pass region="),
    "append": ({"region": REGION, "append_dim": "init"}, "'r\\+' fills a region"),
    "position": ({"region": REGION, "position": "start"}, "these are for appending"),
    "word": ({"region": REGION, "on_duplicate": "drop"}, "give one of 'raise', 'skip', 'replace'"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_options_of_a_region_agree(case: str, refs: Path, forecasts: Forecasts) -> None:
    given, message = OPTIONS[case]
    with pytest.raises(ValueError, match=message):
        cell(forecasts).virtual.to_manifest(refs, **given)


def test_there_must_be_a_set(tmp_path: Path, forecasts: Forecasts) -> None:
    with pytest.raises(FileNotFoundError):
        fill(tmp_path / "none.zarr", cell(forecasts))


# ---------------------------------------------------------------------- templates


def test_a_template_names_dimensions_of_the_cell(forecasts: Forecasts) -> None:
    one = cell(forecasts)
    with pytest.raises(ValueError, match="dimension 'time' is not one of the dataset's"):
        virtualds.template(one, {"time": [1, 2]})
    with pytest.raises(ValueError, match="'init' has 2 values in coords and 3 in sizes"):
        virtualds.template(one, {"init": [1, 2]}, sizes={"init": 3})
    assert virtualds.template(one.drop_vars("member"), sizes={"member": 9}).sizes["member"] == 9


def test_a_template_keeps_what_has_none_of_its_dimensions(forecasts: Forecasts) -> None:
    one = cell(forecasts).assign(area=(("y", "x"), np.ones((4, 6))))
    found = virtualds.template(one, {"member": np.arange(50)})
    xr.testing.assert_identical(found["area"], one["area"].drop_vars([]))
    assert found["t2m"].shape == (1, 2, 50, 4, 6)
    assert list(found.data_vars) == list(one.data_vars)


def test_values_in_memory_that_have_no_missing_value_must_be_given(forecasts: Forecasts) -> None:
    one = cell(forecasts).assign_coords(name=("member", ["a"]))
    with pytest.raises(UnsupportedError, match="give all of them in coords"):
        virtualds.template(one, {"member": np.arange(2)})
    found = virtualds.template(
        one, {"member": np.arange(2), "name": ("member", np.array(["a", "b"]))}
    )
    assert found["name"].values.tolist() == ["a", "b"]


def test_values_in_memory_are_filled_too(url: Path, forecasts: Forecasts) -> None:
    def loaded(ds: xr.Dataset) -> xr.Dataset:
        values = ds["valid"].copy(data=ds["valid"].values)
        return ds[["rain", "valid"]].assign(valid=values)

    whole = loaded(forecasts.template())
    whole.virtual.to_manifest(url, mode="w")
    for one in (CELLS[4], CELLS[7]):
        fill(url, loaded(forecasts.virtual(one)))
    expected = forecasts.expected([CELLS[4], CELLS[7]])[["rain", "valid"]]
    xr.testing.assert_equal(opened(url), expected)
    other = loaded(forecasts.virtual(CELLS[4]))
    fill(url, other, on_duplicate="skip")
    with pytest.raises(CombineError, match="other values already"):
        fill(url, other[["valid"]] + 1)


# ---------------------------------------------------------------------- costs


def numbers(folder: Path, inits: slice) -> xr.Dataset:
    """Numbers of which each is a chunk: 100 members and 100 lead times for each initial time."""
    shape = (inits.stop - inits.start, 100, 100)
    path = folder / "numbers.bin"
    if not path.exists():
        path.write_bytes(np.arange(60 * 10**4, dtype="<f4").tobytes())
    offsets = np.arange(inits.start * 10**4, inits.stop * 10**4).reshape(shape) * 4
    array = ManifestArray.from_arrays(
        shape=shape, chunks=(1, 1, 1), dtype="<f4", path=path.as_uri(), offsets=offsets, lengths=4,
    )  # fmt: skip
    index = np.arange(inits.start, inits.stop)
    return xr.Dataset({"v": (("init", "lead", "member"), array)}, {"init": index})


@pytest.mark.full
def test_a_fill_writes_what_is_new_and_reads_little_of_the_rest(tmp_path: Path) -> None:
    refs = tmp_path / "refs.zarr"
    virtualds.template(numbers(tmp_path, slice(0, 1)), {"init": np.arange(60)}).virtual.to_manifest(
        refs
    )
    numbers(tmp_path, slice(0, 30)).virtual.to_manifest(refs, region={"init": "auto"})
    for init in random.Random(0).sample(range(30, 60), 9):
        before = {path: path.stat().st_mtime_ns for path in iterate_names(refs)}
        one = numbers(tmp_path, slice(init, init + 1))
        one.virtual.to_manifest(refs, region={"init": "auto"})
        after = set(iterate_names(refs))
        assert before.keys() <= after
        written = [p for p in after if before.get(p) != p.stat().st_mtime_ns]
        assert sum(path.stat().st_size for path in written) < 600_000
        found = xr.open_dataset(refs, engine="virtual")["v"].sel(init=init)[3, 4:7].values
        assert found.tolist() == [init * 10**4 + 304, init * 10**4 + 305, init * 10**4 + 306]
    found = virtual(refs, "v").manifest
    # small tables were joined: each has at least as many rows as the next
    assert len(found.table.parts) <= 5  # type: ignore[attr-defined]
    numbers_there = found.find_existing()
    assert numbers_there is not None and numbers_there.size == 39 * 10**4


@pytest.mark.full
def test_many_small_fills_leave_few_tables_and_write_each_reference_a_few_times(
    tmp_path: Path,
) -> None:
    refs, one = tmp_path / "refs.zarr", numbers(tmp_path, slice(0, 1))
    whole = virtualds.template(one, {"init": np.arange(60)})
    whole.virtual.to_manifest(refs)
    places = random.Random(0).sample(range(60), 24)
    for number, init in enumerate(places):
        few = numbers(tmp_path, slice(init, init + 1)).isel(lead=[0], member=slice(0, 5))
        region = {"init": "auto", "lead": slice(0, 1), "member": slice(0, 5)}
        few.virtual.to_manifest(refs, region=region)
        if number in (1, 3):
            # in the metadata, over the first table
            assert len([*refs.glob("v/manifest.*")]) == 1
    parts = virtual(refs, "v").manifest.table.parts  # type: ignore[attr-defined]
    assert len(parts) <= 4
    # 24 fills of 5: the first one, and of the others four are a table
    assert len([*refs.glob("v/manifest.*")]) <= 9
    found = xr.open_dataset(refs, engine="virtual")["v"]
    for init in range(60):
        there = found[init, 0, :6].values
        expected = [init * 10**4 + n for n in range(5)] if init in places else [np.nan] * 5
        np.testing.assert_array_equal(there, [*expected, np.nan])
    again = numbers(tmp_path, slice(places[-1], places[-1] + 1)).isel(lead=[1], member=[0])
    again = again.assign_coords(init=[places[-1]])
    region = {"init": "auto", "lead": slice(0, 1), "member": slice(0, 1)}
    again.virtual.to_manifest(refs, region=region, on_duplicate="replace")
    found = xr.open_dataset(refs, engine="virtual")["v"]
    assert found[places[-1], 0, :2].values.tolist() == [
        places[-1] * 10**4 + 100, places[-1] * 10**4 + 1
    ]  # fmt: skip


@pytest.mark.parametrize("form", NAMES)
def test_a_template_of_a_thousand_million_chunks_costs_what_its_references_cost(
    form: str, tmp_path: Path
) -> None:
    one, url = numbers(tmp_path, slice(7, 8)), tmp_path / NAMES[form]
    again = tmp_path / f"again-{NAMES[form]}"

    def work() -> None:
        sizes = {"lead": 1000, "member": 1000}
        whole = virtualds.template(one, {"init": np.arange(1000)}, sizes=sizes)
        whole.virtual.to_manifest(url, mode="w")
        region = {"init": "auto", "lead": slice(0, 100), "member": slice(900, 1000)}
        one.virtual.to_manifest(url, region=region)
        found = virtualds.open_virtual_dataset(url)
        joined = xr.concat([whole, found.isel(init=slice(5, 10))], "init")
        joined.isel(lead=slice(1, None)).virtual.to_manifest(again, format=form, mode="w")

    # 28 bytes for each chunk would be 28 GB
    assert peak(work) < 60_000_000
    for path in (url, again):
        found = xr.open_dataset(path, engine="virtual")["v"]
        place = 7 if path == url else 1002
        values = found[place, 99 - (path == again), 998:].values
        assert values.tolist() == [79998, 79999]
        assert found.size >= 10**9 and np.isnan(found[place - 1, 3, 998:].values).all()
        assert len(virtualds.open_virtual_dataset(path).virtual.sources) == 1


def test_the_specification_is_enough_to_read_a_filled_set(
    forecasts: Forecasts, tmp_path: Path
) -> None:
    refs = tmp_path / "refs.zarr"
    forecasts.template().virtual.to_manifest(refs, manifest="parquet")
    cells = shuffled(8)[:7]
    for number, one in enumerate(cells):
        other = {"zlib": False, "shuffle": False} if number == 3 else {}
        fill(refs, forecasts.virtual(one, **other), manifest="parquet")
    found = Set(refs).read("t2m")
    np.testing.assert_array_equal(found, forecasts.expected(cells)["t2m"])
