"""The page in a real browser: what a person sees, chooses, moves and follows.

Those that wait for what moves or changes are of the full suite.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import h5py
import numpy as np
import pytest
import xarray as xr
from browser import browsing
from page_files import SHAPE, make_archive, make_values, update_set, write_day
from serving import serving

import virtualds

pytest.importorskip("zarr", minversion="3.0")

VALUES = make_values()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browsing() as started:
        yield started


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_archive(tmp_path_factory.mktemp("archive"))


@pytest.fixture(scope="module")
def url(archive: Path) -> Iterator[str]:
    with serving(archive) as served:
        yield served


@contextmanager
def looking(browser: Any, url: str, width: int = 1100, **how: Any) -> Iterator[Any]:
    """Open a page; it may raise no error, and ask no other host for anything."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **how)
    page = context.new_page()
    page.set_default_timeout(20_000)
    asked, errors = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(dialog.message))
    try:
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        yield page
    finally:
        context.close()
    assert errors == []
    hosts = {urlsplit(one).netloc for one in asked if not one.startswith(("data:", "blob:"))}
    assert hosts == {urlsplit(url).netloc}


def find_source(page: Any) -> str:
    """Return the address of the picture that is shown."""
    found: str = page.locator("#picture img").get_attribute("src")
    return found


def wait_for_picture(page: Any, part: str) -> None:
    page.wait_for_function(
        "part => document.querySelector('#picture img')?.src.includes(part)", arg=part
    )


def click_at(page: Any, across: float, down: float) -> None:
    """Click on the picture, at parts of its width and height."""
    box = page.locator("#frame").bounding_box()
    page.mouse.click(box["x"] + across * box["width"], box["y"] + down * box["height"])


def read_facts(page: Any) -> dict[str, str]:
    """Return what is said of a value."""
    page.wait_for_selector("#origin dl")
    names = page.locator("#origin dt").all_inner_texts()
    return dict(zip(names, page.locator("#origin dd").all_inner_texts(), strict=True))


# ---------------------------------------------------------------------- looking


def test_the_first_picture_is_there_without_a_click(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        assert page.title() == "days.zarr"
        image = page.locator("#picture img")
        sizes = image.evaluate("image => [image.naturalWidth, image.naturalHeight]")
        assert sizes == [SHAPE[3], SHAPE[2]]
        box = page.locator("#frame").bounding_box()
        assert box["width"] > 500 and box["height"] > 200
        assert page.locator("#yticks span").first.inner_text().endswith("°N")
        # what the picture shows is drawn, not only loaded
        colours = page.evaluate(
            """() => {
                const image = document.querySelector("#picture img");
                const canvas = document.createElement("canvas");
                canvas.width = image.naturalWidth; canvas.height = image.naturalHeight;
                const pen = canvas.getContext("2d");
                pen.drawImage(image, 0, 0);
                const data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
                return new Set(Array.from({length: data.length / 4}, (_, n) =>
                    data.slice(4 * n, 4 * n + 3).join())).size;
            }"""
        )
        assert colours > 40


def test_a_value_is_that_of_the_file_under_the_pointer(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        box = page.locator("#frame").bounding_box()
        # the third row from the north, the sixth column
        page.mouse.move(box["x"] + box["width"] * 5.5 / 20, box["y"] + box["height"] * 2.5 / 10)
        expected = f"{VALUES[0, 0, 7, 5]!s} K"
        page.wait_for_function("text => document.querySelector('#tip b')?.textContent === text",
                               arg=expected)  # fmt: skip
        assert "45°N" in page.locator("#tip").inner_text()


def test_a_click_tells_file_chunk_and_bytes_of_a_value(
    browser: Any, url: str, archive: Path
) -> None:
    with looking(browser, f"{url}#at.time=5&at.level=2") as page:
        click_at(page, 5.5 / 20, 2.5 / 10)
        facts = read_facts(page)
        assert page.locator("#value").inner_text().startswith(str(VALUES[5, 2, 7, 5]))
        with h5py.File(archive.parent / "secret" / "files" / "day05.nc") as file:
            stored = file["t"].id.get_chunk_info_by_coord((0, 2, 0, 0))
        assert facts["file"] == "day05.nc"
        assert facts["bytes"].startswith(f"{stored.byte_offset:,} to ")
        assert facts["chunk"] == "(5, 2, 0, 0) of shape 1 × 1 × 10 × 20"
        assert (facts["time"], facts["level"]) == ("2001-01-06", "200 m")


def test_a_click_draws_the_series_through_a_value(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        click_at(page, 5.5 / 20, 2.5 / 10)
        page.wait_for_selector("#series-line svg")
        # one dot for each value, and a break at none of them
        assert page.locator("#series-line circle").count() == SHAPE[0]
        page.locator("#along").select_option("level")
        page.wait_for_function(
            "n => document.querySelectorAll('#series-line circle').length === n", arg=SHAPE[1]
        )


def test_a_slider_moves_the_picture_and_its_label(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        page.locator("input[id='at.time']").focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        wait_for_picture(page, "at.time=3")
        page.wait_for_function(
            "() => document.getElementById('label.time')?.textContent.startsWith('2001-01-04')"
        )
        assert "4 of 12" in page.locator("output[id='label.time']").inner_text()


def test_colours_stay_while_a_slider_moves_and_fit_on_request(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        before = page.locator("#low").input_value()
        page.locator("button[aria-label='Forward along level']").click()
        wait_for_picture(page, "at.level=1")
        assert page.locator("#low").input_value() == before
        page.locator("#fit").click()
        page.wait_for_function("low => document.getElementById('low').value !== low", arg=before)
        assert float(page.locator("#low").input_value()) < float(before)


def test_another_map_and_another_range_are_drawn(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        page.locator("#maps summary").click()
        page.locator("#maps label", has_text="fire").click()
        wait_for_picture(page, "map=fire")
        page.locator("#low").fill("200")
        page.locator("#low").press("Enter")
        page.locator("#high").focus()
        wait_for_picture(page, "low=200")
        page.locator("#low").fill("warm")
        page.locator("#high").focus()
        assert page.locator("#low").input_value() == "200"


@pytest.mark.full
def test_playing_moves_along_and_stops(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        page.locator("button[id='play.time']").click()
        wait_for_picture(page, "at.time=3")
        page.locator("button[id='play.time']").click()
        stopped = page.locator("input[id='at.time']").input_value()
        page.wait_for_timeout(700)
        assert page.locator("input[id='at.time']").input_value() == stopped


def test_a_rectangle_enlarges_and_a_double_click_shows_all(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        box = page.locator("#frame").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.26, box["y"] + box["height"] * 0.21)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + box["height"] * 0.6, steps=4)
        assert page.locator("#rubber").is_visible()
        page.mouse.up()
        wait_for_picture(page, "part.lon=5%3A13")
        assert "part.lat=4%3A8" in find_source(page)
        page.locator("#frame").dblclick()
        page.wait_for_function(
            "() => !document.querySelector('#picture img').src.includes('part.')"
        )


def test_dimensions_can_be_exchanged_and_chosen(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        page.locator("#swap").click()
        wait_for_picture(page, "y=lon&x=lat")
        page.locator("#x").select_option("time")
        wait_for_picture(page, "y=lon&x=time")
        assert page.locator("input[id='at.lat']").count() == 1
        assert page.locator("#xticks span").first.inner_text().startswith("2001-01")


def test_a_link_restores_what_was_seen(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        page.locator("button[aria-label='Forward along time']").click()
        wait_for_picture(page, "at.time=1")
        page.locator("#low").fill("240")
        page.locator("#high").focus()
        wait_for_picture(page, "low=240")
        click_at(page, 0.4, 0.4)
        facts, source, link = read_facts(page), find_source(page), page.url
    with looking(browser, link) as page:
        assert find_source(page) == source
        assert read_facts(page) == facts
        assert page.locator("#cross-x").is_visible()


def test_everything_is_reached_by_the_keyboard(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        page.keyboard.press("/")
        page.keyboard.type("lev")
        page.keyboard.press("Enter")
        page.wait_for_selector("#line svg")
        assert page.locator("#title").inner_text() == "level"
        page.locator("#filter").fill("")
        page.locator(".variable", has_text="temperature").focus()
        page.keyboard.press("Enter")
        page.wait_for_selector("#picture img")
        page.locator("#frame").focus()
        page.keyboard.press("ArrowRight")
        first = read_facts(page)["lon"]
        page.keyboard.press("ArrowRight")
        page.wait_for_function("lon => ![...document.querySelectorAll('#origin dd')].some(one => one.textContent === lon)", arg=first)  # fmt: skip  # noqa: E501
        page.keyboard.press("+")
        wait_for_picture(page, "part.lat")
        page.keyboard.press("Escape")
        page.wait_for_function(
            "() => !document.querySelector('#picture img').src.includes('part.')"
        )
        page.keyboard.press(".")
        wait_for_picture(page, "at.time=1")


def test_all_that_can_be_focused_has_a_name(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        click_at(page, 0.5, 0.5)
        read_facts(page)
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll("button, input, select, [tabindex='0']")]
                .filter(one => one.offsetParent && !one.getAttribute("aria-label")
                    && !one.textContent.trim() && !one.labels?.length).map(one => one.outerHTML)"""
        )
        assert unnamed == []


# ---------------------------------------------------------------------- screens


@pytest.mark.parametrize("width", [350, 700, 1000, 1400])
def test_the_page_fits_on_screens_of_any_width(browser: Any, url: str, width: int) -> None:
    with looking(browser, url, width) as page:
        click_at(page, 0.5, 0.5)
        read_facts(page)
        page.locator("#structure summary").first.click()
        page.wait_for_selector("#chunks svg")
        wide, visible = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert wide <= visible
        box = page.locator("#frame").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
        assert box["width"] > 0.5 * min(width, 900)
        # no label covers another
        for ticks in ("#yticks span", "#xticks span"):
            boxes = [one.bounding_box() for one in page.locator(ticks).all()]
            side, length = ("y", "height") if ticks.startswith("#y") else ("x", "width")
            ends = sorted((one[side], one[side] + one[length]) for one in boxes)
            assert all(a[1] <= b[0] + 1 for a, b in pairwise(ends)), ticks


def test_a_finger_taps_as_a_mouse_clicks(browser: Any, url: str) -> None:
    with looking(browser, url, 400, has_touch=True, is_mobile=True) as page:
        page.locator("#frame").tap()
        assert read_facts(page)["file"] == "day00.nc"
        assert not page.locator("#tip").is_visible()


def test_the_page_is_dark_where_the_system_is_and_keeps_a_choice(browser: Any, url: str) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    with looking(browser, url, color_scheme="light") as page:
        light = page.evaluate(ground)
    with looking(browser, url, color_scheme="dark") as page:
        assert page.evaluate(ground) != light
        page.locator("#theme").click()
        assert page.evaluate(ground) == light
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate(ground) == light


# ---------------------------------------------------------------------- what goes wrong


def test_names_and_attributes_cannot_run_a_script(browser: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script>"
    with h5py.File(tmp_path / "evil.nc", "w") as file:
        file.attrs["title"] = evil
        for name in ("<b onclick=alert(1)>t", "<svg onload=alert(1)>/u"):
            t = file.create_dataset(name, data=np.arange(20.0).reshape(4, 5))
            t.attrs.update({"long_name": evil, "units": evil, evil[:40]: evil})
    with serving(tmp_path / "evil.nc") as url, looking(browser, url) as page:
        for entry in page.locator(".variable").all():
            entry.click()
            page.wait_for_selector("#picture img")
            click_at(page, 0.5, 0.5)
            read_facts(page)
            if page.locator("#structure[open]").count() == 0:
                page.locator("#structure > summary").click()
                page.locator("#attributes > summary").click()
            page.wait_for_selector("#chunks svg")
        page.wait_for_timeout(200)
        assert page.title() == "evil.nc"
        assert page.locator("main img:not(#picture img), main script, nav img").count() == 0
        assert evil in page.locator("#attrs").inner_text()


def test_a_broken_source_is_told_and_others_can_be_looked_at(browser: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path, 3)
    with serving(archive) as url, looking(browser, url) as page:
        (tmp_path / "secret" / "files" / "day01.nc").unlink()
        page.locator("button[aria-label='Forward along time']").click()
        page.wait_for_selector("#problem:visible")
        assert "the log of the server says why" in page.locator("#problem").inner_text()
        page.locator("button[aria-label='Forward along time']").click()
        wait_for_picture(page, "at.time=2")
        page.wait_for_selector("#problem", state="hidden")


def test_a_new_version_of_the_archive_is_shown(browser: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path, 3)
    with serving(archive) as url, looking(browser, url) as page:
        assert "3 of 3" not in page.locator("#sliders").inner_text()
        write_day(tmp_path / "secret" / "files" / "day03.nc", 3)
        update_set(tmp_path)
        page.wait_for_timeout(1200)
        page.locator("button[aria-label='Forward along time']").click()
        page.wait_for_function(
            "() => document.getElementById('label.time')?.textContent.includes('of 4')"
        )
        assert "has changed" in page.locator("#notice").inner_text()


@pytest.mark.full
def test_a_new_version_shows_its_own_picture(browser: Any, tmp_path: Path) -> None:
    seen = """() => {
        const image = document.querySelector("#picture img");
        const canvas = document.createElement("canvas");
        [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
        canvas.getContext("2d").drawImage(image, 0, 0);
        return [...canvas.getContext("2d").getImageData(0, 0, 4, 3).data].join();
    }"""
    pictures = list[str]()
    with h5py.File(tmp_path / "t.h5", "w") as file:
        file["t"] = np.eye(3, 4)
    with serving(tmp_path / "t.h5") as url, looking(browser, url) as page:
        for shift in (1, 2):
            pictures.append(page.evaluate(seen))
            with h5py.File(tmp_path / "new.h5", "w") as file:
                file["t"] = np.roll(np.eye(3, 4), shift, axis=1)
            (tmp_path / "new.h5").rename(tmp_path / "t.h5")
            before = find_source(page)
            page.wait_for_timeout(1200)
            page.locator("#swap").click()
            page.locator("#swap").click()
            page.wait_for_function(
                "before => { const src = document.querySelector('#picture img')?.src; "
                "return src && !src.endsWith(before) && src.includes('y=phony_dim_0'); }",
                arg=before,
            )
        pictures.append(page.evaluate(seen))
    assert len(set(pictures)) == 3


@pytest.mark.full
def test_nothing_of_another_variable_stays_where_one_cannot_be_read(
    browser: Any, tmp_path: Path
) -> None:
    for name, value in (("alpha", 1.0), ("beta", 2.0)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file[name] = np.full((3, 4), value)
            file[f"{name}_line"] = np.arange(4.0)
    parts = [virtualds.open_virtual_dataset(tmp_path / f"{one}.h5") for one in ("alpha", "beta")]
    renamed = [part.rename({dim: f"d{part.sizes[dim]}" for dim in part.dims}) for part in parts]
    xr.merge(renamed).virtual.to_manifest(tmp_path / "both.zarr")
    with serving(tmp_path / "both.zarr") as url, looking(browser, url) as page:
        page.locator(".variable", has_text="alpha").first.click()
        wait_for_picture(page, "alpha")
        (tmp_path / "beta.h5").unlink()
        for name in ("beta", "beta_line"):
            page.locator(f".variable[data-path='/{name}']").click()
            page.wait_for_selector("#problem:visible")
            assert page.locator("#title").inner_text() == name
            assert page.locator("#picture img, #yticks span, #bar-ticks span").count() == 0
        page.locator(".variable b", has_text="alpha").first.click()
        wait_for_picture(page, "alpha")
        assert not page.locator("#problem").is_visible()


@pytest.mark.full
def test_the_value_under_the_pointer_is_of_the_picture_that_is_seen(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        box = page.locator("#frame").bounding_box()
        page.mouse.move(box["x"] + box["width"] * 5.5 / 20, box["y"] + box["height"] * 2.5 / 10)
        page.wait_for_selector("#tip b:not(:empty)")
        page.keyboard.press(".")
        wait_for_picture(page, "at.time=1")
        page.wait_for_selector("#tip", state="hidden")
        page.mouse.move(box["x"] + box["width"] * 5.6 / 20, box["y"] + box["height"] * 2.6 / 10)
        expected = f"{VALUES[1, 0, 7, 5]!s} K"
        page.wait_for_function(
            "text => document.querySelector('#tip b')?.textContent === text", arg=expected
        )


def test_sliders_stand_where_the_cross_is(browser: Any, url: str) -> None:
    with looking(browser, f"{url}#at.time=2") as page:
        click_at(page, 4.5 / 20, 6.5 / 10)
        read_facts(page)
        page.locator("#y").select_option("time")
        wait_for_picture(page, "y=time")
        assert page.locator("input[id='at.lat']").input_value() == "3"
        page.locator(".variable", has_text="level").last.click()
        page.wait_for_selector("#line svg")
        page.locator(".variable", has_text="temperature").click()
        page.wait_for_selector("#picture img")
        assert not page.locator("#cross-x").is_visible()


@pytest.mark.full
def test_a_slider_that_is_dragged_asks_for_few_pictures(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        asked = list[str]()
        page.on("request", lambda one: asked.append(one.url) if "slice.json" in one.url else None)
        page.evaluate(
            """() => {
                const slider = document.getElementById("at.time");
                for (let n = 0; n < 200; n++) {
                    slider.value = n % 12;
                    slider.dispatchEvent(new Event("input"));
                }
            }"""
        )
        wait_for_picture(page, "at.time=7")
        page.wait_for_timeout(300)
        assert "at.time=7" in find_source(page)
        assert len(asked) <= 5


def test_back_returns_to_the_variable_before(browser: Any, url: str) -> None:
    with looking(browser, url) as page:
        page.locator(".variable", has_text="level").last.click()
        page.wait_for_selector("#line svg")
        page.go_back()
        page.wait_for_selector("#picture img")
        assert page.url.startswith(url)


def test_a_variable_that_is_gone_is_told(browser: Any, url: str) -> None:
    with looking(browser, f"{url}#variable=/none") as page:
        assert "no /none" in page.locator("#notice").inner_text()
        assert page.locator("#picture img").count() == 1
