"""Elements, tables, pages and strips: what is put in comes out as text, whole and well formed."""

import re
from xml.etree import ElementTree

import pytest
from markup import Tags
from products import looped

from virtualds.pictures.html import (
    GAP,
    SERIES,
    SHADES,
    STYLE,
    UNKNOWN,
    Markup,
    Span,
    cell,
    element,
    escape,
    facts,
    key,
    page,
    rectangle,
    section,
    shade_of,
    strip,
    table,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "a & b &lt; c",
    "</style></svg></details>",
    "zero \x00 bell \x07 half \ud800 end \uffff",
    "]]>",
)


def show(words: str) -> list[Markup]:
    """Put a text wherever texts go."""
    return [
        element("p", words, title=words, class_=words),
        section(words, words, note=words),
        facts({words: words}),
        table([words], [[words]] * 3, most=2),
        strip([Span(0, 1, GAP, words)], 2, title=words),
        key([(SERIES[0], words)]),
        cell(words),
    ]


@looped("words", HOSTILE)
@looped("number", range(7))
def test_hostile_text_comes_out_as_text(words: str, number: int) -> None:
    markup = show(words)[number]
    ElementTree.fromstring(markup)
    found, plain = Tags(markup), Tags(show("plain")[number])
    assert (found.tags, found.names) == (plain.tags, plain.names)
    assert markup.encode("utf-8")
    assert not {"script", "img"} & set(found.tags)


@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
def test_a_page_of_hostile_text_is_one_page(words: str) -> None:
    markup = page(words, words)
    ElementTree.fromstring(markup.removeprefix("<!doctype html>\n"))
    assert Tags(markup).tags == Tags(page("plain", "plain")).tags


def test_markup_is_not_escaped_again_but_in_attributes() -> None:
    inner = element("b", "a & b")
    assert element("p", inner) == "<p><b>a &amp; b</b></p>"
    assert ElementTree.fromstring(element("p", title=inner)).attrib == {"title": str(inner)}


def test_attributes_without_a_value_are_left_out() -> None:
    assert element("details", open=False, id=None) == "<details></details>"
    assert element("details", open=True) == '<details open=""></details>'
    assert element("path", stroke_width=2) == '<path stroke-width="2"/>'


def test_what_cannot_be_printed_is_replaced() -> None:
    assert escape("a\x00b\ud800c\nd") == "a\ufffdb\ufffdc\nd"


def test_a_long_table_says_how_many_rows_it_leaves_out() -> None:
    rows = [[n, "x"] for n in range(1000)]
    shown = table(["n", "what"], rows, most=20, numbers=[0])
    assert shown.count("<tr>") == 21 and "and 980 more" in shown
    assert "more" not in table(["n", "what"], rows[:20], most=20)
    assert "and 4,980 more" in table(["n", "what"], rows[:20], total=5000)


def test_every_rule_of_the_style_sheet_is_about_our_own_classes() -> None:
    rules = re.sub(r"@media\([^)]*\)\{(.*?\})\}", r"\1", STYLE)
    selectors = [s for head in re.findall(r"([^{}]+)\{[^{}]*\}", rules) for s in head.split(",")]
    assert len(selectors) > 30
    assert [s for s in selectors if ".vds" not in s] == []
    # a rule for the page itself would be one without a descendant of ours
    assert all(re.match(r"(html|body)\S* \.vds$|\.vds\b", s) for s in selectors)
    assert len(STYLE) < 5000


def test_the_style_sheet_follows_light_and_dark_pages() -> None:
    assert "@media(prefers-color-scheme:dark)" in STYLE
    for said in (
        'html[theme="dark"]',
        'html[data-theme="dark"]',
        'body[data-jp-theme-light="false"]',
        "body.vscode-dark",
        'html[theme="light"]',
        'body[data-jp-theme-light="true"]',
    ):
        assert f"{said} .vds" in STYLE


def test_no_two_shades_differ_by_colour_alone() -> None:
    assert len({s.texture for s in (*SERIES, GAP)}) == len(SERIES) + 1
    assert len({s.light for s in SHADES}) == len({s.dark for s in SHADES}) == len(SHADES)
    assert [shade_of(n) for n in range(7)] == list(SERIES)


def test_a_strip_hatches_gaps_and_fills_the_rest() -> None:
    spans = [Span(0, 6, SERIES[0], "2001.nc"), Span(6, 8, GAP), Span(8, 10, SERIES[1])]
    drawn = ElementTree.fromstring(strip(spans, 10, title="time"))
    space = {"s": "http://www.w3.org/2000/svg"}
    patterns = {p.get("id") for p in drawn.iterfind("s:defs/s:pattern", space)}
    full, gap, dotted = drawn.findall("s:rect", space)
    assert full.get("fill") == "var(--vds-blue,#0072b2)"
    assert full.find("s:title", space).text == "2001.nc"
    assert (gap.get("x"), gap.get("width")) == ("360", "120")
    assert {f"url(#{p})" for p in patterns} == {gap.get("fill"), dotted.get("fill")}


def test_textures_of_two_pictures_have_different_names() -> None:
    one, other = (strip([Span(0, 1, GAP)], 1, title="t") for _ in range(2))
    found = [set(re.findall(r'id="([^"]+)"', drawn)) for drawn in (one, other)]
    assert all(found) and not found[0] & found[1]


def test_an_unknown_stretch_has_no_texture() -> None:
    assert "pattern" not in strip([Span(0, 1, UNKNOWN)], 1, title="t")


def test_a_rectangle_has_a_tooltip_only_where_there_is_one() -> None:
    assert rectangle(0, 0, 1, 2, "red") == '<rect x="0" y="0" width="1" height="2" fill="red"/>'
    assert "<title>here</title></rect>" in rectangle(0, 0, 1, 2, "red", "here")
