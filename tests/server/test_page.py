"""What the page asks for: pictures and series of the very values, and where they come from."""

from __future__ import annotations

import io
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import httpx
import numpy as np
import pytest
import xarray as xr
from counting_server import counting_server
from page_files import GAP, SHAPE, make_archive, make_values
from products import looped
from serving import get, make_client, running, running_command, serving

import virtualds
from virtualds_server import ServedData, create_app
from virtualds_server.archive import format_source_name
from virtualds_server.colours import COLORMAPS, LEVELS, draw_png, find_range, make_palette
from virtualds_server.labels import Axis
from virtualds_server.views import MAX_BYTES, MAX_CHUNKS, ChunkSize, choose_steps

pytest.importorskip("zarr", minversion="3.0")
pillow = pytest.importorskip("PIL.Image")

VALUES = make_values()


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def served(archive: Path) -> Any:
    with serving(archive) as url, make_client(base_url=url) as client:
        yield client


def ask(client: httpx.Client, name: str, **query: Any) -> Any:
    """Ask a question; dots in names of a query are written as two underscores."""
    answer = client.get(f"view/{name}", params={k.replace("__", "."): v for k, v in query.items()})
    assert answer.status_code == 200, answer.text
    return answer.json()


def view(what: Any) -> Any:
    """Serve something as `virtualds view` does."""
    return running(create_app(replace(ServedData.of(what, {}), is_private=True)))


def decode_picture(data: bytes) -> np.ndarray[Any, Any]:
    """Return the numbers of the colours of a picture, and 0 where it is transparent."""
    picture = pillow.open(io.BytesIO(data))
    assert picture.mode == "P"
    seen = np.array(picture)
    assert (np.array(picture.convert("RGBA"))[..., 3] == np.where(seen == 0, 0, 255)).all()
    return seen


# ---------------------------------------------------------------------- the page itself


def test_the_page_is_html_that_may_load_only_from_its_server(served: httpx.Client) -> None:
    page = served.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy
    for name in ("page/page.js", "page/page.css", "page/icon.svg"):
        assert name in page.text
        assert served.get(name).status_code == 200
    assert "://" not in page.text
    assert served.get("page/app.py").status_code == 404


def test_pages_of_other_origins_cannot_read_what_the_page_asks(served: httpx.Client) -> None:
    for path in ("/", "/page/page.js", "/view/contents.json", "/view/point.json?variable=/t"):
        answer = served.get(path, headers={"origin": "https://example.org"})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers


def test_answers_have_tags_so_that_browsers_keep_them(served: httpx.Client) -> None:
    path = "view/picture.png?variable=/t&at.time=1"
    first = served.get(path)
    again = served.get(path, headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code) == (200, 304)


# ---------------------------------------------------------------------- contents


def test_contents_name_variables_with_their_dimensions_and_units(served: httpx.Client) -> None:
    told = ask(served, "contents.json")
    [group] = told["groups"]
    first = group["variables"][0]
    assert (told["name"], told["first"], group["path"]) == ("days.zarr", "/t", "/")
    assert (first["dims"], first["shape"]) == (["time", "level", "lat", "lon"], [*SHAPE])
    assert (first["units"], first["dtype"], first["drawn"]) == ("K", "float32", True)
    assert [one["name"] for one in group["variables"] if one["coordinate"]] == [
        "time",
        "level",
        "lat",
        "lon",
    ]


def test_a_tree_is_listed_with_all_its_groups(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "tree.h5", "w") as file:
        file["a/b/t"] = np.arange(6.0).reshape(2, 3)
        file["u"] = np.arange(4)
    with serving(tmp_path / "tree.h5") as url, make_client(base_url=url) as client:
        told = ask(client, "contents.json")
        paths = {one["path"] for group in told["groups"] for one in group["variables"]}
        assert {"/a/b/t", "/u"} <= paths
        assert told["first"] == "/a/b/t"
        assert ask(client, "value.json", variable="/a/b/t")["value"] == "0.0"


def test_latitude_and_longitude_are_drawn_whatever_their_order(tmp_path: Path) -> None:
    dataset = xr.open_dataset(make_archive(tmp_path, 2), engine="virtual").load()
    dataset.transpose("lon", "time", "lat", "level").to_netcdf(tmp_path / "other.nc")
    with serving(tmp_path / "other.nc") as url, make_client(base_url=url) as client:
        told = ask(client, "dimensions.json", variable="/t")
        assert told["plane"] == ["lat", "lon"]
        assert [one["dim"] for one in told["dims"]] == ["lon", "time", "lat", "level"]


# ---------------------------------------------------------------------- pictures


def test_a_picture_has_the_colours_of_the_values_of_the_file(served: httpx.Client) -> None:
    query = {"variable": "/t", "at.time": "3", "at.level": "0", "low": "200", "high": "330"}
    seen = decode_picture(served.get("view/picture.png", params=query).content)
    # the north is at the top
    expected = VALUES[3, 0, ::-1].astype("f8")
    colours = np.rint((expected - 200) / 130 * (LEVELS - 1)) + 1
    missing = np.isnan(expected)
    assert missing.sum() == 1
    assert (seen[missing] == 0).all()
    assert (seen[~missing] == colours[~missing]).all()


@looped("case", list(itertools.permutations(("time", "level", "lat", "lon"), 2)))
def test_any_two_dimensions_make_a_picture(served: httpx.Client, case: tuple[str, str]) -> None:
    y, x = case
    at = {"time": 3, "level": 1, "lat": 2, "lon": 5}
    index = {dim: n for dim, n in at.items() if dim not in case}
    query = {"variable": "/t", "y": y, "x": x} | {f"at.{dim}": n for dim, n in index.items()}
    told = ask(served, "slice.json", **query)
    array = xr.DataArray(VALUES, dims=("time", "level", "lat", "lon"))
    expected = array.isel(index).transpose(y, x).values[:: -1 if told["y"]["reversed"] else 1]
    assert told["y"]["reversed"] is (y in ("time", "lat", "lon"))
    assert told["x"]["reversed"] is False
    low, high = told["low"], told["high"]
    query |= {"low": low, "high": high, "map": "grey"}
    seen = decode_picture(served.get("view/picture.png", params=query).content)
    colours = np.rint((np.clip(expected.astype("f8"), low, high) - low) / (high - low) * 254) + 1
    assert (seen == np.where(np.isnan(expected), 0, np.nan_to_num(colours))).all()


def test_labels_are_those_of_the_coordinates(served: httpx.Client) -> None:
    told = ask(served, "slice.json", variable="/t", at__time=3, at__level=2)
    assert told["y"]["labels"][0] == "81°N" and told["y"]["labels"][-1] == "81°S"
    assert told["x"]["labels"][:2] == ["0°", "18°E"] and told["x"]["labels"][-1] == "18°W"
    assert told["at"] == {"time": "2001-01-04", "level": "200 m"}
    for line in (told["y"], told["x"]):
        for at, label in line["ticks"]:
            # a tick stands at the middle of the cell whose label it has
            assert abs(at * line["count"] - 0.5 - _find(line, label)) < 0.51


def _find(line: dict[str, Any], label: str) -> float:
    """Return where a coordinate lies among the labels of an axis."""
    numbers = [_parse(one) for one in line["labels"]]
    if numbers[0] > numbers[-1]:
        return float(np.interp(-_parse(label), [-one for one in numbers], range(len(numbers))))
    return float(np.interp(_parse(label), numbers, range(len(numbers))))


def _parse(label: str) -> float:
    number = float(label.partition("°")[0])
    if label.endswith("W"):
        return 360 - number
    return -number if label.endswith("S") else number


def test_a_part_of_a_slice_is_drawn_alone(served: httpx.Client) -> None:
    query = {"variable": "/t", "part.lat": "2:6", "part.lon": "5:20"}
    seen = decode_picture(served.get("view/picture.png", params=query).content)
    assert seen.shape == (4, 15)
    told = ask(served, "slice.json", variable="/t", part__lat="2:6", part__lon="5:20")
    assert (told["y"]["start"], told["y"]["count"], told["x"]["start"]) == (2, 4, 5)
    assert told["least"] == str(VALUES[0, 0, 2:6, 5:20].min())


def test_a_picture_of_fewer_pixels_has_every_nth_element(served: httpx.Client) -> None:
    query = {"variable": "/t", "width": "7", "height": "4", "low": "200", "high": "330"}
    seen = decode_picture(served.get("view/picture.png", params=query).content)
    expected = VALUES[0, 0, ::3, ::3][::-1].astype("f8")
    assert (seen == np.rint((expected - 200) / 130 * 254) + 1).all()


def test_a_picture_reads_only_the_chunks_that_it_shows(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("t", (64, 4096), "f4", chunks=(1, 4096), data=np.ones((64, 4096)))
    with counting_server(tmp_path) as (base, counts):
        virtualds.open_virtual_dataset(f"{base}/large.h5").virtual.to_manifest(tmp_path / "r.zarr")
        with serving(tmp_path / "r.zarr") as url, make_client(base_url=url) as client:
            ask(client, "dimensions.json", variable="/t")
            before = counts.sent
            client.get("view/picture.png?variable=/t&width=64&height=8").raise_for_status()
            assert counts.sent - before <= 8 * 4096 * 4
            before = counts.sent
            # other colours are of values that are kept
            client.get("view/picture.png?variable=/t&width=64&height=8&map=grey")
            client.get("view/slice.json?variable=/t&width=64&height=8").raise_for_status()
            assert counts.sent == before


def test_what_would_read_too_many_bytes_shows_fewer_elements() -> None:
    for nbytes in (4e4, 4e6, 4e8):
        steps = choose_steps([100_000, 100_000], [1000, 1000], ChunkSize((10.0, 1000.0), nbytes))
        touched = np.ceil(100_000 / np.maximum(steps, (10, 1000)))
        assert 4 <= touched.prod() <= min(MAX_CHUNKS, max(MAX_BYTES / nbytes, 4))


UNANSWERED = "low=x low=nan map=none y=time&x=time y=none at.time=12 at.time=x part.lat=5:5"
UNANSWERED += " part.lat=0:11 part.lat=3 width=0 width=-3"


@looped("case", UNANSWERED.split())
def test_a_question_that_has_no_answer_is_told_so(served: httpx.Client, case: str) -> None:
    answer = served.get(f"view/picture.png?variable=/t&{case}")
    assert answer.status_code == 400
    assert case.partition("=")[0].rpartition(".")[2] in answer.text


def test_unknown_variables_and_questions_are_404(served: httpx.Client) -> None:
    for path in (
        "slice.json?variable=/none",
        "slice.json?variable=/g/t",
        "slice.json",
        "none.json",
    ):
        assert served.get(f"view/{path}").status_code == 404
    assert served.get("view/slice.json?variable=/time").status_code == 400


def test_infinite_values_have_the_colours_of_the_ends() -> None:
    values = np.array([[-np.inf, 0.0, 1.0, np.inf, np.nan]])
    assert decode_picture(draw_png(values, 0, 1, "fire")).tolist() == [[1, 1, 255, 255, 0]]
    assert find_range(values) == (0.0, 1.0)


def test_equal_values_are_one_colour() -> None:
    values = np.full((2, 3), 7.5)
    assert find_range(values) == (7.5, 7.5)
    assert len(set(decode_picture(draw_png(values, 7.5, 7.5, "grey")).ravel().tolist())) == 1


@looped("name", [name for name in COLORMAPS if name not in ("blue-red", "cyclic")])
def test_colours_grow_lighter_or_darker_all_the_way(name: str) -> None:
    colours = np.frombuffer(make_palette(name), np.uint8).reshape(-1, 3) / 255
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    # luminance (ITU-R BT.709)
    light = linear @ [0.2126, 0.7152, 0.0722]
    steps = np.diff(light) * (1 if light[0] < light[-1] else -1)
    assert steps.min() > -1e-3
    assert abs(light[-1] - light[0]) > 0.5


def test_colours_around_zero_are_symmetric() -> None:
    light = np.frombuffer(make_palette("blue-red"), np.uint8).reshape(-1, 3).sum(axis=1)
    assert np.abs(light.astype(int) - light[::-1]).max() < 120
    assert light.argmax() in range(100, 155)
    ends = np.frombuffer(make_palette("cyclic"), np.uint8).reshape(-1, 3).astype(int)
    assert np.abs(ends[0] - ends[-1]).max() <= 2


# ---------------------------------------------------------------------- series and values


def test_a_series_has_the_values_of_the_files(served: httpx.Client) -> None:
    told = ask(served, "series.json", variable="/t", along="time", at__lat=2, at__lon=5)
    expected = VALUES[:, 0, 2, 5]
    assert np.isnan(expected[GAP[0]]) and told["values"][GAP[0]] is None
    found = np.array([np.nan if one is None else one for one in told["values"]], "f4")
    assert np.array_equal(found, expected, equal_nan=True)
    assert told["x"]["labels"][0] == "2001-01-01"


def test_a_series_has_gaps_where_dates_are_missing(tmp_path: Path) -> None:
    days = np.datetime64("2001-01-01", "ns") + np.array([0, 1, 2, 10, 11]) * np.timedelta64(1, "D")
    xr.Dataset({"t": ("time", np.arange(5.0))}, {"time": days}).to_netcdf(tmp_path / "gap.nc")
    with serving(tmp_path / "gap.nc") as url, make_client(base_url=url) as client:
        told = ask(client, "series.json", variable="/t", along="time")
        assert told["gaps"] == [2]
        assert told["places"] == [0, 0.09091, 0.18182, 0.90909, 1]
        ticks = told["x"]["ticks"]
        assert [label for _, label in ticks] == told["x"]["labels"]
        assert np.allclose([at for at, _ in ticks], told["places"], atol=1e-4)


def test_a_series_of_few_points_has_every_nth_value(served: httpx.Client) -> None:
    told = ask(served, "series.json", variable="/t", along="lon", points=7)
    assert (told["x"]["step"], told["limited"]) == (3, False)
    assert np.array_equal(np.array(told["values"], "f4"), VALUES[0, 0, 0, ::3])


def test_a_value_has_all_its_digits_and_its_coordinates(served: httpx.Client) -> None:
    told = ask(served, "point.json", variable="/t", at__time=5, at__level=2, at__lat=9, at__lon=19)
    assert told["value"] == str(VALUES[5, 2, 9, 19])
    assert told["units"] == "K"
    assert dict(told["coordinates"]) == {
        "time": "2001-01-06",
        "level": "200 m",
        "lat": "81°N",
        "lon": "18°W",
    }


def test_a_value_comes_from_the_bytes_of_its_file(served: httpx.Client, archive: Path) -> None:
    told = ask(served, "point.json", variable="/t", at__time=5, at__level=2, at__lat=3, at__lon=4)
    origin = told["origin"]
    with h5py.File(archive.parent / "secret" / "files" / "day05.nc") as file:
        stored = file["t"].id.get_chunk_info_by_coord((0, 2, 0, 0))
    assert (origin["offset"], origin["length"]) == (stored.byte_offset, stored.size)
    assert (origin["chunk"], origin["position"]) == ([5, 2, 0, 0], [0, 0, 3, 4])
    assert origin["chunk_shape"] == [1, 1, 10, 20]
    assert origin["encoding"] == "float32, shuffle, zlib"


def test_what_no_file_has_is_told_so(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "gaps.h5", "w") as file:
        made = file.create_dataset("t", (4, 4), "f4", chunks=(2, 4), fillvalue=-1)
        made[:2] = 5
    with serving(tmp_path / "gaps.h5") as url, make_client(base_url=url) as client:
        dims = [one["dim"] for one in ask(client, "dimensions.json", variable="/t")["dims"]]
        told = ask(client, "point.json", variable="/t", **{f"at__{dims[0]}": 3})
        assert told["origin"]["file"] is None
        assert "missing" in told["origin"]["reason"]
        assert told["origin"]["chunk"] == [1, 0]


def test_texts_and_single_values_are_listed(tmp_path: Path) -> None:
    values = {"names": ("station", ["a", "<b>", "ü"]), "n": ((), 7)}
    xr.Dataset(values).to_netcdf(tmp_path / "texts.nc")
    with serving(tmp_path / "texts.nc") as url, make_client(base_url=url) as client:
        assert ask(client, "values.json", variable="/names")["values"] == ["a", "<b>", "ü"]
        assert ask(client, "values.json", variable="/n")["values"] == ["7"]
        assert client.get("view/slice.json?variable=/names").status_code == 400


def test_dates_and_durations_are_drawn(tmp_path: Path) -> None:
    days = np.datetime64("2001-01-01", "ns") + np.arange(6).reshape(2, 3) * np.timedelta64(1, "D")
    days[1, 2] = np.datetime64("NaT")
    steps = np.arange(6).reshape(2, 3) * np.timedelta64(6, "h")
    dims = ("y", "x")
    xr.Dataset({"day": (dims, days), "step": (dims, steps)}).to_netcdf(tmp_path / "dates.nc")
    with serving(tmp_path / "dates.nc") as url, make_client(base_url=url) as client:
        told = ask(client, "slice.json", variable="/day")
        assert (told["least"], told["greatest"]) == ("2001-01-01", "2001-01-05")
        assert round(told["missing"] * 6) == 1
        assert ask(client, "value.json", variable="/day", at__x=1)["value"] == "2001-01-02"
        assert ask(client, "value.json", variable="/step", at__x=1)["value"] == "6 hours"
        assert ask(client, "series.json", variable="/step", along="x")["shown"][2] == "12 hours"


# ---------------------------------------------------------------------- labels


@looped("case", [
    (np.datetime64("2000-01-31") + np.arange(400), ["2000-07-01", "2001-01-01"]),
    (np.datetime64("2000-01-30") + np.arange(5), ["2000-01-30", "2000-01-31", "2000-02-01"]),
    (np.datetime64("1900-01-01") + 365 * np.arange(120), ["1900-01-01", "1920-01-01"]),
    (np.datetime64("2000-01-01T00:00", "m") + 10 * np.arange(100), ["2000-01-01 06:00"]),
    (np.array([1000.0, 850, 500, 200]), ["1000", "850", "500", "200"]),
    (np.linspace(0, 1, 101), ["0", "0.2", "0.4"]),
    (np.linspace(50, -50, 201), ["40", "20", "0", "-20"]),
    (np.array(["a", "b", "c"]), ["a", "b", "c"]),
    (np.array([3.0, 1.0, 2.0] * 9), ["3", "2"]),
])  # fmt: skip
def test_ticks_are_at_round_values(case: tuple[np.ndarray[Any, Any], list[str]]) -> None:
    values, expected = case
    ticks = Axis("x", values).choose_ticks(np.arange(values.size), 6)
    labels = [tick.label for tick in ticks]
    assert 2 <= len(labels) <= 7
    assert labels[: len(expected)] == expected or set(expected) <= set(labels), labels
    assert all(0 <= tick.at <= values.size - 1 for tick in ticks)


# ---------------------------------------------------------------------- secrets and errors


def test_a_server_for_others_shows_no_folder_of_its_files(
    served: httpx.Client, archive: Path
) -> None:
    point = ask(served, "point.json", variable="/t", at__time=5)
    assert point["origin"]["file"] == "day05.nc"
    urls = ("file:///home/first.last/secret/grib", "zip://a.nc::file:///secret/x/z.zip")
    assert [format_source_name(url) for url in (*urls, "https://host/a?key=1")] == [
        "grib",
        "z.zip",
        "a",
    ]
    for path in ("contents.json", "point.json?variable=/t", "variable.json?variable=/t"):
        assert "secret" not in served.get(f"view/{path}").text
    facts = ask(served, "variable.json", variable="/t")
    assert "day05.nc" in facts["strips"][0]
    assert "<svg" in facts["chunks"]


def test_on_the_own_machine_the_page_names_whole_paths(archive: Path) -> None:
    with view(archive) as url, make_client(base_url=url) as client:
        point = ask(client, "point.json", variable="/t", at__time=5)
        assert point["origin"]["file"].endswith("/secret/files/day05.nc")
        contents = ask(client, "contents.json")
        assert contents["code"] == f'xr.open_dataset({str(archive)!r}, engine="virtual")'
        # any page of a browser could read it as Zarr
        assert contents["zarr"] is False
        assert client.get("zarr/zarr.json").status_code == 404


def test_on_the_own_machine_names_of_other_servers_are_refused(archive: Path) -> None:
    with view(archive) as url, make_client(base_url=url) as client:
        assert client.get("view/contents.json").status_code == 200
        for host in ("example.org", "127.0.0.1.example.org"):
            assert client.get("view/contents.json", headers={"host": host}).status_code == 400


def test_other_users_of_the_machine_do_not_get_in(archive: Path) -> None:
    served = replace(ServedData.of(archive, {}), is_private=True)
    with running(create_app(served, token="secret")) as url, make_client(base_url=url) as client:
        for path in ("", "page/page.js", "health", "view/contents.json", "?token=none", "?token="):
            answer = client.get(path)
            assert (answer.status_code, "virtualds view" in answer.text) == (403, True)
        answer = client.get("?token=secret")
        # the address that the browser shows has no token
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=strict"} <= set(answer.headers["set-cookie"].split("; "))
        assert client.get("").status_code == client.get("view/contents.json").status_code == 200


def test_the_command_prints_an_address_that_opens_the_page(archive: Path) -> None:
    with running_command("view", str(archive), "--no-browser") as told:
        assert (told["first"], told["variables"]) == ("/t", 5)
        with make_client(follow_redirects=True) as client:
            assert "page/page.js" in client.get(told["url"]).text
        assert get(told["url"].partition("?")[0]).status_code == 403


def test_a_file_that_is_gone_is_an_error_and_no_picture(tmp_path: Path) -> None:
    archive = make_archive(tmp_path, 3)
    with serving(archive) as url, make_client(base_url=url) as client:
        assert client.get("view/picture.png?variable=/t&at.time=0").status_code == 200
        (tmp_path / "secret" / "files" / "day01.nc").unlink()
        for name in ("slice.json", "picture.png", "point.json", "series.json"):
            answer = client.get(f"view/{name}?variable=/t&at.time=1")
            assert answer.status_code == 502
            assert "secret" not in answer.text
        with view(archive) as own:
            answer = get(f"{own}view/slice.json?variable=/t&at.time=1")
            assert (answer.status_code, "day01.nc" in answer.text) == (502, True)


def test_names_and_attributes_arrive_as_they_are_or_escaped(served: httpx.Client) -> None:
    contents = ask(served, "contents.json")
    assert contents["groups"][0]["variables"][0]["title"].startswith("<img src=x")
    facts = ask(served, "variable.json", variable="/t")
    assert "<img" not in facts["chunks"] + "".join(facts["strips"])


def test_errors_are_not_for_pages_of_other_origins(tmp_path: Path) -> None:
    archive = make_archive(tmp_path, 2)
    origin = {"origin": "https://example.org"}
    paths = ("view/point.json?variable=/none", "view/point.json?variable=/t", "view/none.json")
    with view(archive) as own, serving(archive) as url:
        get(f"{own}view/contents.json").raise_for_status()
        (tmp_path / "secret" / "files" / "day00.nc").unlink()
        for path in (*paths, "health", "none"):
            assert "access-control-allow-origin" not in get(own + path, headers=origin).headers
        for path in paths:
            assert "access-control-allow-origin" not in get(url + path, headers=origin).headers
        # readers of Zarr may be pages
        answer = get(f"{url}zarr/none", headers=origin)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert get(f"{url}view/contents.json").json()["code"] is None


def test_a_picture_of_another_version_is_refused(tmp_path: Path) -> None:
    archive = make_archive(tmp_path, 2)
    with serving(archive) as url, make_client(base_url=url) as client:
        version = ask(client, "slice.json", variable="/t")["version"]
        path = f"view/picture.png?variable=/t&version={version}"
        assert client.get(path).status_code == 200
        assert client.get(f"{path}x").status_code == 409
    with serving(archive) as url:
        # another process, or the same one that was started again
        assert get(f"{url}{path}").status_code == 409


def test_files_of_several_hosts_keep_different_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "secret" / name).mkdir(parents=True)
        with h5py.File(tmp_path / "secret" / name / "t.h5", "w") as file:
            file.create_dataset("t", data=np.zeros((2, 3)), chunks=(1, 3))
    with counting_server(tmp_path) as (base, _):
        urls = [str(tmp_path / "secret" / "a" / "t.h5"), f"{base}/secret/b/t.h5"]
        parts = [virtualds.open_virtual_dataset(one) for one in urls]
        xr.concat(parts, parts[0]["t"].dims[0]).virtual.to_manifest(tmp_path / "both.zarr")
        with serving(tmp_path / "both.zarr") as url, make_client(base_url=url) as client:
            facts = ask(client, "variable.json", variable="/t")
    shown = facts["chunks"] + "".join(facts["strips"])
    assert "secret" not in shown and str(tmp_path) not in shown and base not in shown
    assert "1/t.h5" in shown and "2/t.h5" in shown


DAYS_OF_SERIES = ["2000-01-01", "missing", "2000-01-03"]


@looped("values, expected", [
    (np.array([[True, False, True]] * 2), ["True", "False", "True"]),
    (np.array([["2000-01-01", "NaT", "2000-01-03"]] * 2, "M8[ns]"), DAYS_OF_SERIES),
    (np.array([[2**53 + 1, 2**53 + 3, 1]] * 2), ["9007199254740993", "9007199254740995", "1"]),
    (np.array([[1e9, 1e9 + 0.001, 1e9 + 0.002]] * 2), ["1000000000", "1000000000", "1000000000"]),
    (np.array([[-1.7e308, 0, 1.7e308]] * 2), ["-1.7e+308", "0", "1.7e+308"]),
    (np.array([[5e-324, 1e-322, 2e-322]] * 2), [f"{n:.12g}" for n in (5e-324, 1e-322, 2e-322)]),
    (np.array([[np.nan, np.inf, -np.inf]] * 2), ["missing", "inf", "-inf"]),
])  # fmt: skip
def test_values_of_all_kinds_have_pictures_and_series(
    tmp_path: Path, values: np.ndarray[Any, Any], expected: list[str]
) -> None:
    xr.Dataset({"t": (("y", "x"), values)}).to_netcdf(tmp_path / "t.nc")
    with serving(tmp_path / "t.nc") as url, make_client(base_url=url) as client:
        told = ask(client, "slice.json", variable="/t")
        assert all(0 <= at <= 1 and label for at, label in told["scale"])
        seen = decode_picture(client.get("view/picture.png?variable=/t").content)
        numbers = values[0].astype("f8") if values.dtype.kind != "M" else np.array([1, np.nan, 3])
        assert ((seen[0] == 0) == np.isnan(numbers)).all()
        finite = np.isfinite(numbers)
        assert (np.diff(seen[0][finite][np.argsort(numbers[finite])].astype(int)) >= 0).all()
        assert ask(client, "series.json", variable="/t", along="x")["shown"] == expected
        told = ask(client, "value.json", variable="/t", at__x=1)
        assert told["value"] in (str(values[0, 1]), expected[1])


def test_series_of_many_centuries_lie_within_their_figure() -> None:
    dates = np.arange("1700", "2091", dtype="M8[Y]").astype("M8[ns]")
    places = Axis("time", dates).find_relative_positions(np.arange(dates.size))
    assert places is not None
    assert places[0] == 0 and places[-1] == 1 and (np.diff(places) > 0).all()


def test_a_chunk_that_is_too_large_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "large.h5", "w") as file:
        file.create_dataset("t", (20_000, 20_000), "f8", chunks=(20_000, 20_000), fillvalue=1)
    with serving(tmp_path / "large.h5") as url, make_client(base_url=url) as client:
        for name in ("picture.png", "slice.json", "series.json", "point.json", "values.json"):
            answer = client.get(f"view/{name}?variable=/t")
            assert (answer.status_code, "3,052 MiB" in answer.text) == (501, True)


def test_values_of_one_chunk_are_read_once(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file.create_dataset("t", data=np.arange(4096.0).reshape(64, 64), chunks=(32, 64))
    with counting_server(tmp_path) as (base, counts):
        virtualds.open_virtual_dataset(f"{base}/t.h5").virtual.to_manifest(tmp_path / "r.zarr")
        with serving(tmp_path / "r.zarr") as url, make_client(base_url=url) as client:
            [y, x] = (one["dim"] for one in ask(client, "dimensions.json", variable="/t")["dims"])
            ask(client, "value.json", variable="/t")
            before = len(counts.requests)
            for n in range(1, 30):
                told = ask(
                    client, "value.json", variable="/t", **{f"at__{y}": n, f"at__{x}": 2 * n}
                )
                assert told["value"] == str(64.0 * n + 2 * n)
            assert len(counts.requests) == before


def test_what_zarr_has_no_form_for_can_be_looked_at(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["t"] = np.arange(6.0).reshape(2, 3)
        file["wide"] = np.zeros((2, 3), [("a", "f4"), ("b", "f8", (2,))])
    with view(tmp_path / "odd.h5") as url, make_client(base_url=url) as client:
        names = [v["name"] for v in ask(client, "contents.json")["groups"][0]["variables"]]
        assert "t" in names
        assert client.get("view/picture.png?variable=/t").status_code == 200
