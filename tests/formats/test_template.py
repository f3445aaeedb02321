"""Templates render as Jinja renders them, and nothing else than the specification says does."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from fsspec.implementations.reference import ReferenceFileSystem
from products import looped

from virtualds import FormatError
from virtualds.formats.kerchunk import templates as template
from virtualds.formats.kerchunk.json import _expand_document
from virtualds.formats.kerchunk.templates import (
    MAX_CHARACTERS,
    MAX_REFERENCES,
    MAX_TOKENS,
    Templates,
    generate_references,
)

EXAMPLE = {
    # kerchunk documentation, "References specification"
    "version": 1,
    "templates": {"u": "server.domain/path", "f": "{{c}}"},
    "gen": [
        {
            "key": "gen_key{{i}}", "url": "http://{{u}}_{{i}}", "offset": "{{(i + 1) * 1000}}",
            "length": "1000", "dimensions": {"i": {"stop": 5}},
        }
    ],
    "refs": {
        "key0": "data",
        "key1": ["http://target_url", 10000, 100],
        "key2": ["http://{{u}}", 10000, 100],
        "key3": ["http://{{f(c='text')}}", 10000, 100],
        "key4": ["http://target_url"],
    },
}  # fmt: skip


def gen(**changes: Any) -> dict[str, Any]:
    plain = {"key": "v/{{i}}", "url": "s3://b/{{i}}", "dimensions": {"i": {"stop": 3}}}
    found = plain | changes
    return {name: value for name, value in found.items() if value is not None}


def of_gen(*items: dict[str, Any], **templates: str) -> dict[str, Any]:
    return {"version": 1, "templates": templates, "gen": list(items), "refs": {}}


RANGE = {"offset": "{{i}}", "length": "8"}
DOCUMENTS: dict[str, dict[str, Any]] = {
    "of the specification": EXAMPLE,
    "whole files": of_gen(gen()),
    "two dimensions": of_gen(
        gen(key="v/{{i}}.{{j}}", dimensions={"i": {"stop": 3}, "j": {"start": 4, "stop": 6}})
    ),
    "a dimension nobody uses": of_gen(gen(dimensions={"i": {"stop": 2}, "j": [1, 2]})),
    "a list": of_gen(gen(dimensions={"i": [7, -3, 5]})),
    "a list of texts": of_gen(gen(dimensions={"i": ["a", "bc"]})),
    "a falling range": of_gen(gen(dimensions={"i": {"start": 9, "stop": 0, "step": -4}})),
    "an empty range": of_gen(gen(dimensions={"i": {"start": 9, "stop": 9}})),
    "no dimensions": of_gen(gen(key="v/0", url="x", dimensions={})),
    "generated twice": of_gen(gen(), gen(url="s3://other/{{i}}")),
    "arithmetic": of_gen(
        gen(
            key="v/{{ i * 2 - 1 }}.{{j%2}}.{{ (j+i)//2 }}.{{ - i }}.{{ 7 - -i }}.{{-(-7) // 2 }}"
            .replace("{{-(", "{{ -("),
            offset="{{ 100 * (i + 10 * j) + 7 % 4 }}", length="{{10 // 3 * 2}}",
            dimensions={"i": {"start": -2, "stop": 3}, "j": {"stop": 4}},
        )
    ),
    "not affine": of_gen(
        gen(offset="{{ i * i * i % 7 + (i // 2) * (i % 3) }}", length="{{i*i+1}}",
            dimensions={"i": {"stop": 50}})
    ),
    "numbers composed as texts": of_gen(gen(offset="1{{i}}0", length="{{'4'}}{{2}}")),
    "templates in generators": of_gen(
        gen(url="{{u}}/{{f(c=i + 1, d='x')}}", **RANGE), u="s3://b", f="{{d}}{{c}}{{c * 10}}.nc"
    ),
    "a template in a template's argument": of_gen(gen(url="{{f(c=f(c=u))}}"), u="z", f="({{c}})"),
    "quotes": {
        "version": 1, "templates": {"f": "{{c}}"}, "refs": {
            "a": ['{{f(c="it\'s }} here")}}'], "b": ["{{ f ( c = 'x' ) }}/{{ 'y' }}", 1, 2],
        },
    },
    "names that Python keeps for itself": of_gen(
        gen(url="{{class}}/{{i}}/{{f(from=i)}}"), **{"class": "x", "f": "{{from}}"}
    ),
    "blanks": of_gen(gen(url="{{  i  }}{{\ni\t}}")),
}  # fmt: skip


@pytest.mark.parametrize("which", DOCUMENTS)
def test_documents_expand_as_fsspec_expands_them(which: str) -> None:
    pytest.importorskip("jinja2", reason="fsspec renders with it")
    document = json.loads(json.dumps(DOCUMENTS[which]))
    _, found, _ = _expand_document(copy.deepcopy(document), "refs.json")
    expected = ReferenceFileSystem(
        fo=document, simple_templates=False, remote_protocol="memory", skip_instance_cache=True
    ).references
    assert dict(found) == expected
    for value in found.values():
        if isinstance(value, list):
            assert [type(part) for part in value] in ([str], [str, int, int])


def test_the_example_of_the_specification() -> None:
    _, found, _ = _expand_document(EXAMPLE, "refs.json")
    assert found["key2"] == ["http://server.domain/path", 10000, 100]
    assert found["key3"] == ["http://text", 10000, 100]
    assert found["gen_key4"] == ["http://server.domain/path_4", 5000, 1000]
    assert len(found) == 10


def test_a_division_without_rest_is_exact() -> None:
    found = generate_references(
        [gen(offset="{{ i * 6 / 3 }}", length="{{ 8 / 2 }}")], Templates({})
    )
    assert [value[1:] for value in found.values()] == [[0, 4], [2, 4], [4, 4]]


HOSTILE_EXPRESSIONS = [
    "", "i.real", "i.__class__", "''.__class__.__mro__", "i['a']", "i[0]", "''|upper", "i|string",
    "i ** 2", "9**9**9", "2 ** i", "i if i else 0", "not i", "i and i", "i < 2", "i == 1", "i ~ i",
    "[i]", "{}", "{'a': 1}", "(i, i)", "()", "i,", "lambda: 0", "range(3)", "i()", "u()", "f",
    "f()", "f('x')", "f(**{})", "f(c='x', c='y')", "f(c='x'", "f(c=)", "f(=1)", "f(c='x',)x",
    "f(c=f)", "cycler()", "self", "self()", "namespace()", "lipsum()", "undefined", "i j", "1 2",
    "'a' 'b'", "'a' * 3", "'a' + 'b'", "'%s' % 3", "i + 'a'", "-'a'", "1.5", "1e9", "0x10",
    "1_000", "'\\x41'", "'a", "i +", "+ ", "* i", "((i)", "(i))", "i / 1", "i // 0", "i % 0",
    "1 // (i - i)", "9" * 19, "999999999999999999 * 999999999999999999",
    "+".join(["999999999999999999"] * 99), "i; i", "i\\", "é", "import os", "__import__('os')",
    "r'a'", "True", "f(*i)", "f(c=*i)", "(i := 1)", "i @ i", "i if i",
    "(" * MAX_TOKENS + "i" + ")" * MAX_TOKENS, "(" * 4000, "- " * 4000 + "i",
    "f(c=" * MAX_TOKENS + "1" + ")" * MAX_TOKENS, "+".join("1" * 999),
]  # fmt: skip
HOSTILE_TEXTS = [
    "{% for i in range(9) %}x{% endfor %}", "{{i}}{# #}", "{{- i}}", "{{i -}}", "{{+i}}", "{{i",
    "{{",     "{{{i}}}", "x" * (MAX_CHARACTERS + 1), "{{i}}" * 100, "{{ {{i}} }}",
]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("place", ["key", "url", "offset"])
@looped("source", [f"a{{{{ {e} }}}}" for e in HOSTILE_EXPRESSIONS] + HOSTILE_TEXTS)
def test_hostile_templates_are_format_errors(source: str, place: str) -> None:
    if place == "offset" and source == "a{{ i / 1 }}":
        source = "{{ 3 / 2 }}"
    templates = Templates({"u": "x", "f": "{{c}}"})
    ranges = {"offset": "0", "length": "1"}
    with pytest.raises(FormatError):
        generate_references([gen(**(ranges | {place: source}))], templates)


@pytest.mark.parametrize("body", ["{{f(c=c)}}", "{{g(c=c)}}", "{{u}}", "{{f}}", "{{i}}"])
def test_templates_see_nothing_but_their_arguments(body: str) -> None:
    templates = Templates({"f": body, "g": "{{f(c=c)}}", "u": "x"})
    with pytest.raises(FormatError) as caught:
        generate_references([gen(url="{{f(c=1)}}")], templates)
    assert "template 'f'" in "".join(caught.value.__notes__)


HOSTILE_GENERATORS: dict[str, dict[str, Any]] = {
    "a huge range": gen(dimensions={"i": {"stop": 10**15}}),
    "a range beyond 64 bits": gen(dimensions={"i": {"stop": 10**40}}),
    "a huge product": gen(dimensions={name: {"stop": 1000} for name in "ijkl"}),
    "many dimensions": gen(dimensions={f"i{n}": [1] for n in range(99)}),
    "no step": gen(dimensions={"i": {"stop": 5, "step": 0}}),
    "no stop": gen(dimensions={"i": {"start": 5}}),
    "a step of text": gen(dimensions={"i": {"stop": 5, "step": "1"}}),
    "a fraction": gen(dimensions={"i": {"stop": 5.5}}),
    "a list of fractions": gen(dimensions={"i": [1.5]}),
    "a mixed list": gen(dimensions={"i": [1, "a"]}),
    "a list of lists": gen(dimensions={"i": [[1]]}),
    "booleans": gen(dimensions={"i": [True]}),
    "a number": gen(dimensions={"i": 3}),
    "offset alone": gen(offset="0"),
    "length alone": gen(length="0"),
    "an offset that is no text": gen(offset=0, length="1"),
    "a key that is no text": gen(key=3),
    "no key": gen(key=None),
    "no dimensions": gen(dimensions=None),
    "offset of text": gen(offset="{{'a'}}", length="1"),
    "long offset": gen(offset="9" * 30, length="1"),
    "overflow": gen(offset="{{ i * 4611686018427387904 }}".replace("4611686018427387904", "9" * 18),
                    length="1", dimensions={"i": [100]}),
}  # fmt: skip


@pytest.mark.parametrize("which", HOSTILE_GENERATORS)
def test_hostile_generators_are_format_errors(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    spend = Templates.spend

    def counted(self: Templates, effort: int) -> None:
        rendered.append(effort)
        spend(self, effort)

    monkeypatch.setattr(Templates, "spend", counted)
    document = {"version": 1, "refs": {".zgroup": {"zarr_format": 2}}}
    with pytest.raises((FormatError, AttributeError, KeyError, TypeError)):
        _expand_document(document | {"gen": [HOSTILE_GENERATORS[which]]}, "refs.json")
    assert sum(rendered) < 10_000


def test_all_generators_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = gen(dimensions={"i": {"stop": 2048}, "j": {"stop": 2049}})
    with pytest.raises(FormatError, match="4194304 references are generated"):
        generate_references([many], Templates({}))
    monkeypatch.setattr(template, "MAX_REFERENCES", 1000)
    half = gen(dimensions={"i": {"stop": 600}})
    assert len(generate_references([half], Templates({}))) == 600
    with pytest.raises(FormatError, match="600"):
        generate_references([half, half], Templates({}))


def test_the_length_of_rendered_templates_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = {f"f{n}": "{{c}}" * 60 for n in range(9)}
    call = "'aaaaaaaaaaaaaaaaaaaaaa'"
    for n in range(9):
        call = f"f{n}(c={call})"
    with pytest.raises(FormatError, match="renders to"):
        Templates(longer).render_text(f"{{{{{call}}}}}")
    monkeypatch.setattr(template, "MAX_EFFORT", 10_000)
    long = gen(url="x" * 50 + "{{i}}", dimensions={"i": {"stop": 1000}})
    with pytest.raises(FormatError, match="too much work"):
        generate_references([long], Templates({}))


def test_a_dimension_may_not_hide_a_template() -> None:
    with pytest.raises(FormatError, match="'i' is a dimension and a template"):
        generate_references([gen()], Templates({"i": "x"}))


def test_expressions_are_evaluated_once_for_all_references(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    computed = template._compute

    def counted(*args: Any) -> Any:
        calls.append(args)
        return computed(*args)

    monkeypatch.setattr(template, "_compute", counted)
    item = gen(
        key="v/{{i}}.{{j}}", url="{{i // 100}}.nc", offset="{{(i % 100 * 300 + j) * 8}}",
        length="8", dimensions={"i": {"stop": 400}, "j": {"stop": 300}},
    )  # fmt: skip
    found = generate_references([item], Templates({}))
    assert len(found) == 400 * 300 <= MAX_REFERENCES
    assert found["v/399.299"] == ["3.nc", (99 * 300 + 299) * 8, 8]
    assert len(calls) == 5
    assert all(np.size(array) <= 400 for _, array, _, _ in calls[:3])


def test_a_plus_is_no_minus() -> None:
    found = generate_references([gen(offset="{{ +i * 10 }}", length="1")], Templates({}))
    assert [value[1] for value in found.values()] == [0, 10, 20]


def test_a_document_creates_some_million_references_and_no_more() -> None:
    with pytest.raises(FormatError, match="references"):
        generate_references([gen(dimensions={"i": {"stop": 2**22 + 1}})], Templates({}))
