"""Opening a set far away: few requests, those that need no other's answer at the same time."""

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from counting_server import Counts, counting_proxy, counting_server

import virtualds

MINUTE = 60


def make_dataset(step: int = 0) -> xr.Dataset:
    """Return two steps of a small field with three coordinates."""
    time = np.array([2.0 * step, 2.0 * step + 1])
    return xr.Dataset(
        {"t": (("time", "lat", "lon"), np.arange(24.0).reshape(2, 3, 4) + step)},
        {
            "time": ("time", time, {"units": "days since 2000-01-01"}),
            "lat": [10.0, 20.0, 30.0],
            "lon": [5.0, 6.0, 7.0, 8.0],
        },
    )


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str, Counts]]:
    """A folder on a web server, with two files."""
    for step in range(2):
        make_dataset(step).to_netcdf(tmp_path / f"{step}.nc", engine="netcdf4")
    with counting_server(tmp_path) as (url, counts):
        yield tmp_path, url, counts


def scan(url: str, *steps: int) -> xr.Dataset:
    urls = [f"{url}/{step}.nc" for step in steps or (0, 1)]
    return virtualds.open_virtual_mfdataset(urls, combine="nested", concat_dim="time")


def expected(steps: int = 2) -> xr.Dataset:
    parts = [xr.decode_cf(make_dataset(step)) for step in range(steps)]
    return xr.concat(parts, "time", coords="minimal", compat="override", data_vars="minimal")


def gather(count: int, counts: Counts, belongs: Callable[[str], bool]) -> None:
    """Let no request that belongs be answered before so many of them have come."""
    barrier = threading.Barrier(count)

    def wait(path: str) -> None:
        if belongs(path):
            barrier.wait(MINUTE)

    counts.meanwhile = wait


def gets(counts: Counts) -> list[str]:
    return [path for _, path, _ in counts.requests]


@pytest.mark.parametrize(
    ("name", "most", "together"), [("r.zarr", 1, 0), ("r.json", 1, 0), ("r.parquet", 4, 3)]
)
def test_a_set_opens_in_two_rounds(
    name: str, most: int, together: int, served: tuple[Path, str, Counts]
) -> None:
    folder, url, counts = served
    scan(url).virtual.to_manifest(folder / name)
    counts.requests.clear()
    if together:
        gather(together, counts, lambda path: path.endswith(".parq"))
    with xr.open_dataset(f"{url}/{name}", engine="virtual") as found:
        assert len(counts.requests) <= most
        assert len(set(counts.requests)) == len(counts.requests)
        counts.meanwhile = lambda path: None
        xr.testing.assert_identical(found.load(), expected())


def test_coordinates_that_the_root_does_not_repeat_are_fetched_together(
    served: tuple[Path, str, Counts],
) -> None:
    folder, url, counts = served
    scan(url).virtual.to_manifest(folder / "r.zarr")
    # as earlier versions wrote it
    change_notes(folder / "r.zarr", lambda notes: notes.pop("copies"))
    counts.requests.clear()
    gather(3, counts, lambda path: "/c/" in path)
    with xr.open_dataset(f"{url}/r.zarr", engine="virtual") as found:
        assert sorted(gets(counts)) == [
            "/r.zarr/lat/c/0", "/r.zarr/lon/c/0", "/r.zarr/time/c/0", "/r.zarr/zarr.json",
        ]  # fmt: skip
        xr.testing.assert_identical(found.load(), expected())


def test_virtual_arrays_open_in_as_few_requests_as_lazy_ones(
    served: tuple[Path, str, Counts],
) -> None:
    folder, url, counts = served
    scan(url).virtual.to_manifest(folder / "r.zarr")
    counts.requests.clear()
    assert list(virtualds.open_virtual_dataset(f"{url}/r.zarr").lat.values) == [10, 20, 30]
    assert gets(counts) == ["/r.zarr/zarr.json"]


@pytest.mark.parametrize(
    ("name", "most"), [("tree.zarr", 1), ("tree.json", 1), ("tree.parquet", 37)]
)
def test_all_groups_of_a_tree_open_together(
    name: str, most: int, served: tuple[Path, str, Counts]
) -> None:
    folder, url, counts = served
    part = scan(url, 0)
    tree = xr.DataTree.from_dict(
        {f"/g{n}": part.assign_coords(lat=part.lat + n) for n in range(12)}
    )
    tree.virtual.to_manifest(folder / name)
    counts.requests.clear()
    if most > 1:
        gather(most - 1, counts, lambda path: path.endswith(".parq"))
    with xr.open_datatree(f"{url}/{name}", engine="virtual") as found:
        assert len(counts.requests) <= most
        assert [float(found[f"g{n}"].lat[0]) for n in range(12)] == list(range(10, 22))


def test_of_a_set_longer_than_the_beginning_only_the_rest_is_fetched(
    served: tuple[Path, str, Counts],
) -> None:
    folder, url, counts = served
    dataset = scan(url).assign_attrs(history="x" * 300_000)
    dataset.virtual.to_manifest(folder / "r.json")
    counts.requests.clear()
    before = counts.sent
    xr.open_dataset(f"{url}/r.json", engine="virtual").close()
    assert len(counts.requests) == 2
    assert counts.sent - before == (folder / "r.json").stat().st_size


# ---------------------------------------------------------------------- what is not there


def test_a_web_server_without_the_set_is_asked_in_two_rounds(
    served: tuple[Path, str, Counts],
) -> None:
    _, url, counts = served
    gather(6, counts, lambda path: path.startswith("/absent/"))
    with pytest.raises(FileNotFoundError, match="absent"):
        xr.open_dataset(f"{url}/absent", engine="virtual")
    assert len(set(counts.requests)) == len(counts.requests) == 7


@pytest.mark.parametrize(("name", "most"), [("absent", 2), ("absent.nc", 2), ("absent.zarr", 3)])
def test_an_object_store_without_the_set_is_asked_three_times_at_most(
    name: str, most: int, s3_bucket: str, s3_server: dict[str, Any]
) -> None:
    pytest.importorskip("obstore")
    with counting_proxy(s3_server["client_kwargs"]["endpoint_url"]) as (url, counts):
        client = {**s3_server["client_kwargs"], "endpoint_url": url}
        with pytest.raises(FileNotFoundError, match=name):
            xr.open_dataset(
                f"{s3_bucket}/{name}",
                engine="virtual",
                storage_options={**s3_server, "client_kwargs": client},
            )
        assert len(counts.requests) <= most


@pytest.mark.parametrize("name", ["set", "set.zarr", "set.parquet"])
def test_a_set_is_found_whatever_its_suffix(
    name: str, served: tuple[Path, str, Counts], s3_bucket: str, s3_server: dict[str, Any]
) -> None:
    folder, url, _ = served
    dataset = make_dataset()
    dataset.virtual.to_manifest(folder / name, format="kerchunk-parquet")
    dataset.virtual.to_manifest(f"{s3_bucket}/{name}", format="zarr-v3", storage_options=s3_server)
    for there, options in ((f"{url}/{name}", None), (f"{s3_bucket}/{name}", s3_server)):
        found = xr.load_dataset(there, engine="virtual", storage_options=options)
        xr.testing.assert_identical(found, xr.decode_cf(dataset))


# ---------------------------------------------------------------------- what the root repeats


def read_notes(folder: Path) -> Any:
    return json.loads((folder / "zarr.json").read_bytes())["attributes"]["virtualds"]


def change_notes(folder: Path, change: Callable[[Any], Any]) -> None:
    root = json.loads((folder / "zarr.json").read_bytes())
    change(root["attributes"]["virtualds"])
    (folder / "zarr.json").write_text(json.dumps(root))


def test_the_root_repeats_equal_coordinates_of_many_groups_once(
    served: tuple[Path, str, Counts],
) -> None:
    folder, url, _ = served
    part = scan(url, 0)
    tree = xr.DataTree.from_dict({f"/g{n}": part for n in range(5)})
    tree.virtual.to_manifest(folder / "r.zarr")
    assert len(read_notes(folder / "r.zarr")["copies"]) == 3


def test_an_append_leaves_out_what_the_set_no_longer_holds_and_keeps_the_rest(
    served: tuple[Path, str, Counts],
) -> None:
    folder, url, counts = served
    scan(url, 0).virtual.to_manifest(folder / "r.zarr")
    before = read_notes(folder / "r.zarr")
    scan(url, 1).virtual.to_manifest(folder / "r.zarr", append_dim="time")
    after = read_notes(folder / "r.zarr")
    kept = {digest for n in ("lat", "lon") for _, _, digest in before["values"][n]["chunks"]}
    assert after["copies"].keys() & before["copies"].keys() == kept
    assert len(after["copies"]) == 3
    # earlier snapshots open from their files, so that a history does not repeat copies
    for name, _ in [*after["history"], (after["snapshot"], "")]:
        kept = gzip.decompress((folder / f"r.zarr/__virtualds__/{name}/zarr.json.gz").read_bytes())
        assert "copies" not in json.loads(kept)["attributes"]["virtualds"]
    counts.requests.clear()
    with xr.open_dataset(f"{url}/r.zarr", engine="virtual") as found:
        assert gets(counts) == ["/r.zarr/zarr.json"]
        xr.testing.assert_identical(found.load(), expected())
    earlier = xr.open_dataset(f"{url}/r.zarr", engine="virtual", snapshot=before["snapshot"])
    xr.testing.assert_identical(earlier.load(), expected(1))


def test_a_large_chunk_is_not_repeated(served: tuple[Path, str, Counts]) -> None:
    folder, _, _ = served
    rng = np.random.default_rng(1)
    coordinates = {"x": rng.random(2**14), "y": np.arange(8.0)}
    xr.Dataset(coords=coordinates).virtual.to_manifest(folder / "r.zarr")
    notes = read_notes(folder / "r.zarr")
    [[_, _, small]] = notes["values"]["y"]["chunks"]
    assert list(notes["copies"]) == [small]


@pytest.mark.parametrize("wrong", ["AAAA", "not base64", 7])
def test_a_copy_that_is_not_the_chunk_is_not_used(
    wrong: object, served: tuple[Path, str, Counts]
) -> None:
    folder, url, counts = served
    scan(url).virtual.to_manifest(folder / "r.zarr")

    def damage(notes: Any) -> None:
        notes["copies"] = dict.fromkeys(notes["copies"], wrong)

    change_notes(folder / "r.zarr", damage)
    counts.requests.clear()
    with xr.open_dataset(f"{url}/r.zarr", engine="virtual") as found:
        assert counts.of("lat/c/0") == 1
        xr.testing.assert_identical(found.load(), expected())


def test_copies_are_named_by_what_they_hold(served: tuple[Path, str, Counts]) -> None:
    folder, url, _ = served
    scan(url).virtual.to_manifest(folder / "r.zarr")
    [[_, _, digest]] = read_notes(folder / "r.zarr")["values"]["lat"]["chunks"]
    assert digest == sha256((folder / "r.zarr/lat/c/0").read_bytes()).hexdigest()
    assert digest in read_notes(folder / "r.zarr")["copies"]
