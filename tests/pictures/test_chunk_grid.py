"""A chunk grid of one to three axes: its faces meet, and its labels stand beside them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from markup import SVG, rectangles_of

from virtualds.pictures.html import (
    MAX_LENGTH,
    SERIES,
    Box,
    Cell,
    Face,
    Markup,
    Side,
    draw_box,
    draw_line,
    draw_rectangle,
)

Point = tuple[float, float]
FULL = Cell(SERIES[0])


def cells(rows: int, columns: int) -> Face:
    return [[FULL] * columns] * rows


def corners(face: ElementTree.Element) -> dict[str, Point]:
    """Return where the corners of a face are in its picture."""
    outline = face.findall(f"{SVG}path")[-1].get("d", "")
    width, height = (float(n) for n in re.findall(r"[hv]([\d.]+)", outline))
    matrix = np.eye(3)
    for name, found in re.findall(r"(\w+)\(([^)]*)\)", face.get("transform", "")):
        a, b, c, d, e, f = (
            (float(n) for n in found.split())
            if name == "matrix"
            else (1, 0, 0, 1, *(float(n) for n in found.split()))
        )
        matrix = matrix @ [[a, c, e], [b, d, f], [0, 0, 1]]
    flat = {"a": (0, 0), "b": (width, 0), "c": (0, height), "d": (width, height)}
    places = {name: matrix @ [*point, 1] for name, point in flat.items()}
    return {name: (float(x), float(y)) for name, (x, y, _) in places.items()}


def labels(picture: ElementTree.Element) -> dict[str, tuple[float, float, str]]:
    """Return where each label is, and which part of it is there."""
    return {
        found.text or "": (
            float(found.get("x", "")),
            float(found.get("y", "")),
            found.get("text-anchor", ""),
        )
        for found in picture.findall(f"{SVG}text")
    }


def length_of(markup: Markup) -> float:
    (face,) = ElementTree.fromstring(markup).findall(f"{SVG}g")
    return corners(face)["b"][0] - corners(face)["a"][0]


@pytest.fixture
def box() -> ElementTree.Element:
    back, down, across = (
        Side("time 8", range(0, 9, 2)),
        Side("y 100", range(0, 101, 50)),
        Side("x 200", range(0, 201, 50)),
    )
    faces = Box(cells(4, 4), cells(2, 4), cells(2, 4))
    return ElementTree.fromstring(draw_box(back, down, across, faces, "t"))


def test_the_faces_of_a_box_meet_at_its_edges(box: ElementTree.Element) -> None:
    top, left, front = map(corners, box.findall(f"{SVG}g"))
    for one, other in (
        (top["a"], left["a"]),
        (top["c"], left["b"]),
        (top["c"], front["a"]),
        (top["d"], front["b"]),
        (left["d"], front["c"]),
    ):
        assert one == pytest.approx(other, abs=0.2)


def test_the_labels_of_a_box_stand_beside_its_edges(box: ElementTree.Element) -> None:
    _, left, front = map(corners, box.findall(f"{SVG}g"))
    found = labels(box)
    (x, y, anchor) = found["x 200"]
    assert (x, anchor) == (pytest.approx((front["c"][0] + front["d"][0]) / 2, abs=0.2), "middle")
    assert 10 < y - front["c"][1] < 20
    (x, y, anchor) = found["y 100"]
    assert (x, anchor) == (pytest.approx(front["b"][0] + 8, abs=0.2), "start")
    assert y == pytest.approx((front["b"][1] + front["d"][1]) / 2 + 4, abs=1.2)
    # below the slanted edge
    (x, y, anchor) = found["time 8"]
    middle = np.mean([left["c"], left["d"]], axis=0)
    assert (x, y) == pytest.approx((middle[0] - 6, middle[1] + 10), abs=1.2) and anchor == "end"


def test_light_falls_on_a_box_from_above(box: ElementTree.Element) -> None:
    top, left, front = box.findall(f"{SVG}g")
    lit = [face.find(f"{SVG}g/{SVG}rect") for face in (top, left, front)]
    assert [None if one is None else one.get("fill") for one in lit] == ["#fff", "#000", None]


def test_a_picture_has_room_for_what_is_drawn(box: ElementTree.Element) -> None:
    sides = Side("y 100", range(0, 101, 50)), Side("x 200", range(0, 201, 50))
    rectangle = ElementTree.fromstring(draw_rectangle(*sides, cells(2, 4), "t"))
    for picture in (box, rectangle):
        width, height = (float(picture.get(name, "")) for name in ("width", "height"))
        drawn = [point for face in picture.findall(f"{SVG}g") for point in corners(face).values()]
        assert all(0 < x < width and 0 < y < height for x, y in drawn)
        assert labels(picture)["y 100"][0] + 6 * len("y 100") < width


def test_a_single_axis_has_twice_the_length() -> None:
    across, down = Side("x 8", range(9)), Side("y 8", range(9))
    assert length_of(draw_rectangle(down, across, cells(8, 8), "t")) == MAX_LENGTH
    assert length_of(draw_line(across, cells(1, 8)[0], "t")) == 2 * MAX_LENGTH


def test_a_chunk_is_as_long_as_its_share_of_the_axis() -> None:
    drawn = draw_line(Side("x 8", (0, 2, 8)), [FULL, Cell(SERIES[1])], "t")
    first, second = rectangles_of(ElementTree.fromstring(drawn))
    assert (first.get("x"), first.get("width")) == ("0", "75")
    assert (second.get("x"), second.get("width")) == ("75", "225")
