"""Elements, tables, pages and strips: what is put in comes out as text, whole and well formed."""

import re
from xml.etree import ElementTree

import pytest
from markup import Tags
from products import looped

from virtualds.pictures import Card, Code, Heading, Section, Table, draw, format_text
from virtualds.pictures.html import (
    GAP,
    MIN_CELL_WIDTH,
    SERIES,
    SHADES,
    STYLE,
    TILE,
    UNKNOWN,
    DrawnSide,
    Markup,
    Span,
    draw_labels,
    draw_legend,
    draw_rect,
    draw_strip,
    element,
    escape,
    get_shade,
    to_notebook_html,
    to_page,
)

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "a & b &lt; c",
    "</style></svg></details>",
    "zero \x00 bell \x07 half \ud800 end \uffff",
    "]]>",
)


def show(words: str) -> list[Markup | None]:
    """Put a text wherever texts go."""
    return [
        element("p", words, title=words, class_=words),
        draw(Section(words, [words, (Code(words), words)], note=words)),
        draw({words: words}),
        draw(Table([words], [[words]] * 3, max_rows=2)),
        draw(Heading(words, [words])),
        draw(Card(words, [words], words, remedy=words, code=words)),
        draw_strip([Span(0, 1, GAP, words)], 2, title=words),
        draw_legend([(SERIES[0], words)]),
        to_notebook_html(words),
    ]


@looped("words", HOSTILE)
@looped("number", range(9))
def test_hostile_text_comes_out_as_text(words: str, number: int) -> None:
    markup = show(words)[number]
    assert markup is not None
    ElementTree.fromstring(markup)
    found, plain = Tags(markup), Tags(show("plain")[number])
    assert (found.tags, found.names) == (plain.tags, plain.names)
    assert markup.encode("utf-8")
    assert not {"script", "img"} & set(found.tags)


@pytest.mark.parametrize("words", HOSTILE, ids=range(len(HOSTILE)))
def test_a_page_of_hostile_text_is_one_page(words: str) -> None:
    markup = to_page(words, words)
    ElementTree.fromstring(markup.removeprefix("<!doctype html>\n"))
    assert Tags(markup).tags == Tags(to_page("plain", "plain")).tags


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
    shown = str(draw(Table(["n", "what"], rows, [0])))
    assert shown.count("<tr>") == 21 and "and 980 more" in shown
    assert "more" not in str(draw(Table(["n", "what"], rows[:20])))
    of_many = Table(["n", "what"], rows[:20], total=5000, rest="in a.csv")
    for text in (str(draw(of_many)), format_text([of_many])):
        assert "and 4,980 more; in a.csv" in text


# ---------------------------------------------------------------------- text


def test_a_table_that_is_too_wide_is_a_list() -> None:
    table = Table(("file", "size", "what"), [("a.nc", "", "it is gone"), ("b.nc", 7, "x" * 9)])
    assert format_text([table], width=24).splitlines() == [
        "file  size  what",
        "a.nc        it is gone",
        "b.nc  7     xxxxxxxxx",
    ]
    assert format_text([table], width=21).splitlines() == [
        "a.nc",
        "  what  it is gone",
        "b.nc",
        "  size  7",
        "  what  xxxxxxxxx",
    ]


def test_values_are_folded_in_their_column_and_code_is_not() -> None:
    card = Card("t", [{"reason": "one two three four five six seven"}], code="a = " + "b" * 50)
    shown = format_text([card], width=32).splitlines()
    assert shown == [
        "t",
        "  reason  one two three four",
        "          five six seven",
        f"  a = {'b' * 50}",
    ]


def test_blocks_without_content_show_nothing() -> None:
    empty = [Table(("file",), []), Section("Left out", [Table(("file",), [])]), "", Markup("<br/>")]
    assert format_text(empty) == ""
    assert [draw(block) for block in empty[:3]] == [None, None, None]


def test_no_name_moves_the_cursor_or_shows_a_secret() -> None:
    odd = "a\x1b[2Jb\r\nc\udcff.nc?token=hunter2"
    for blocks in ([{odd: odd}], [odd], [Table(("f",), [[odd]])], [Card(odd, code=odd)]):
        shown = format_text(blocks)
        assert "\x1b" not in shown and "hunter2" not in shown and shown.encode()


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
    assert [get_shade(n) for n in range(7)] == list(SERIES)


def test_a_strip_hatches_gaps_and_fills_the_rest() -> None:
    spans = [Span(0, 6, SERIES[0], "2001.nc"), Span(6, 8, GAP), Span(8, 10, SERIES[1])]
    drawn = ElementTree.fromstring(draw_strip(spans, 10, title="time"))
    space = {"s": "http://www.w3.org/2000/svg"}
    patterns = {p.get("id") for p in drawn.iterfind("s:defs/s:pattern", space)}
    full, gap, dotted = drawn.findall("s:rect", space)
    assert full.get("fill") == "var(--vds-blue,#0072b2)"
    assert full.find("s:title", space).text == "2001.nc"
    assert (gap.get("x"), gap.get("width")) == ("360", "120")
    assert {f"url(#{p})" for p in patterns} == {gap.get("fill"), dotted.get("fill")}


def test_textures_of_two_pictures_have_different_names() -> None:
    one, other = (draw_strip([Span(0, 1, GAP)], 1, title="t") for _ in range(2))
    found = [set(re.findall(r'id="([^"]+)"', drawn)) for drawn in (one, other)]
    assert all(found) and not found[0] & found[1]


def test_lines_of_a_texture_continue_in_the_next_tile() -> None:
    drawn = "".join(shade.texture for shade in SERIES)
    lines = re.findall(r"M0 \d+h(\d+)|M\d+ 0v(\d+)", drawn)
    assert len(lines) == 4 and {int(across or down) for across, down in lines} == {TILE}


def test_labels_of_a_strip_stand_at_their_places_and_end_as_their_names_do() -> None:
    name = "d" * 10 + "/2001-12-31.nc"
    shown = ElementTree.fromstring(draw_labels([(0.25, "2001-01-01"), (1.0, name)]))
    words = [(span.text, span.get("style", "").partition(";")[2]) for span in shown]
    assert words == [("2001-01-01", "left:25.0%"), (f"…{name[-21:]}", "right:0")]


def test_an_unknown_stretch_has_no_texture() -> None:
    assert "pattern" not in draw_strip([Span(0, 1, UNKNOWN)], 1, title="t")


def test_a_rectangle_has_a_tooltip_only_where_there_is_one() -> None:
    assert draw_rect(0, 0, 1, 2, "red") == '<rect x="0" y="0" width="1" height="2" fill="red"/>'
    assert "<title>here</title></rect>" in draw_rect(0, 0, 1, 2, "red", "here")


def test_no_element_shows_a_secret() -> None:
    url = "https://h/a.nc?token=abc&n=1"
    shown = element("p", url, title=url)
    assert "abc" not in shown and shown.count("token=...&amp;n=1") == 2


def test_lines_are_drawn_between_all_cells_unless_they_would_hide_them() -> None:
    cells = tuple(range(0, 101, 25))
    assert DrawnSide(100, cells).inner == (25, 50, 75)
    assert DrawnSide(4 * MIN_CELL_WIDTH, cells).inner == (25, 50, 75)
    assert DrawnSide(4 * MIN_CELL_WIDTH - 0.1, cells).inner == ()


def test_only_what_there_is_is_drawn() -> None:
    shown, alone, whole = draw({"a": "x", "b": None}), draw(Card("t")), draw(Card("t", code="c"))
    assert ">a<" in str(shown) and ">b<" not in str(shown)
    assert "<pre" not in str(alone) and "<pre" in str(whole)
    signed = draw(Card("t", sign="✓"))
    assert "<b>t</b>" in str(alone) and "<b>✓ t</b>" in str(signed)


def test_a_long_word_is_never_broken() -> None:
    words = ["x" * 15 + "-" + "y" * 15, "z" * 40]
    shown = format_text([{"name": " ".join(words)}], width=24)
    assert all(word in shown for word in words)


def test_long_lines_are_folded_and_lines_stay_apart() -> None:
    words = "one two three four five six seven"
    assert len(format_text([words], width=24).splitlines()) == 2
    assert format_text([f"{words}\nmore"], width=24).splitlines() == [words, "more"]
