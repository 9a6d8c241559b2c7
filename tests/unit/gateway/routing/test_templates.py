"""Templates: what they make, and what nobody can make them do."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlane.gateway.prompts.engine import MAX_SECONDS, Budget, Text
from fairlane.gateway.prompts.errors import TemplateError, VariablesError
from fairlane.gateway.prompts.templates import Template, read_variables

LARGE = "word " * 3_000_000


def render(source: str, **variables: Any) -> str:
    return Text(source).render(variables, Budget())


def greeting(**more: Any) -> Template:
    messages = {
        "": [("user", "Hello {{ name }}")],
        "de": [("user", "Hallo {{ name }}")],
        "fr": [("user", "Salut")],
    }
    return Template("greet", messages, **more)


@given(st.text(max_size=200))
def test_a_variable_is_data_whatever_it_holds(text: str) -> None:
    assert render("<{{ x }}>", x=text) == f"<{text}>"


def test_texts_loops_conditions_and_filters() -> None:
    source = "{{ a|upper }}{% for one in list %} {{ loop.index }}:{{ one.name }}{% endfor %}{% if not b %}!{% endif %}"
    assert render(source, a="x", list=[{"name": "p"}, {"name": "q"}], b="") == "X 1:p 2:q!"
    assert render("{{ list|join(', ') }} {{ list|length }} {{ o|tojson }}", list=["a", "b"], o={"k": 1}) == (
        'a, b 2 {"k": 1}'
    )


def test_a_text_without_variables_is_rendered_too() -> None:
    assert Text("a{# note #} b").render({}, Budget()) == "a b"
    assert Text("{% raw %}{{ x }}{% endraw %}").render({}, Budget()) == "{{ x }}"


def test_a_loop_goes_through_lists_and_objects_and_an_empty_text_is_none() -> None:
    source = "{% for one in x %}{{ one }}{% if not loop.last %},{% endif %}{% else %}none{% endfor %}"
    told = [render(source, x=x) for x in (["ab", 2], {"k": 1}, [], "")]
    assert told == ["ab,2", "k", "none", "none"]


@pytest.mark.parametrize(
    ("source", "variables", "sentence"),
    [
        ("{{ 'a' * 9 }}", {}, "moderate size"),
        ("{{ 9 ** 9 }}", {}, "moderate size"),
        ("{{ x % y }}", {"x": "%999999999d", "y": 1}, "moderate size"),
        ("{% for a in x %}{% for b in x %}{% endfor %}{% endfor %}", {"x": [0] * 10_000}, "longer than"),
        ("{% for a in x %}{{ x }}{% endfor %}", {"x": LARGE}, "bytes"),
        ("{{ x ~ x ~ x }}", {"x": LARGE}, "bytes"),
        ("{{ x.__class__ }}", {"x": ""}, "unsafe"),
        ("{{ x|sum }}", {"x": [1, "a"]}, "TypeError"),
        ("{{ x.y }}", {"x": {}}, "no attribute"),
        ("{{ x }}", {}, "undefined"),
    ],
)
def test_what_a_caller_could_make_large_or_wrong_is_refused_in_time(
    source: str, variables: dict[str, Any], sentence: str
) -> None:
    began = time.thread_time()
    with pytest.raises(TemplateError, match=sentence):
        render(source, **variables)
    assert time.thread_time() - began < 10 * MAX_SECONDS


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{{ x", "line 1"),
        ("\n{% include 'a' %}", "line 2: calls, include"),
        ("{{ x.ljust(10 ** 9) }}", "calls, include"),
        ("{% macro m() %}{% endmacro %}", "macro"),
        ("{{ x|replace('a', 'b') }}", "No filter named 'replace'"),
        ("x" * 300_000, "more than"),
        ("{% set ns = namespace() %}", "calls"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_with_its_place(source: str, sentence: str) -> None:
    with pytest.raises(TemplateError, match=sentence):
        Text(source)


@pytest.mark.parametrize(
    ("locale", "default", "used"),
    [("de", "", "de"), ("de-AT", "", "de"), ("zh", "", ""), ("", "", ""), ("", "de", "de"), ("zh", "de", "")],
)
def test_the_messages_of_a_locale_of_its_language_or_of_all(locale: str, default: str, used: str) -> None:
    prompt = greeting(default_locale=default).render({"name": "n"} if used != "fr" else {}, locale)
    assert prompt.locale == used


def test_without_messages_for_all_those_of_the_default_locale_are_used() -> None:
    template = Template("t", {"en": [("user", "en")], "de": [("user", "de")]}, default_locale="en")
    assert [template.render({}, locale).locale for locale in ("", "de", "zh")] == ["en", "de", "en"]


def test_missing_and_unknown_variables_are_named() -> None:
    with pytest.raises(VariablesError) as wrong:
        greeting().render({"nam": 1, "zzz": 2})
    assert str(wrong.value) == "missing: name; unknown: nam, zzz. It takes name"


def test_an_optional_variable_is_an_empty_text_also_where_it_is_null() -> None:
    template = Template(
        "t", {"": [("user", "a{% if b %}{{ b }}{% endif %}{{ b }}")]}, optional=["b", "unused"]
    )
    for variables in ({}, {"b": None}, {"b": "", "unused": 5}):
        assert template.render(variables).body["messages"][0]["content"] == "a"


IMAGE = [
    ("user", [{"type": "text", "text": "{{ t }}"}, {"type": "image_url", "image_url": {"url": "{{ u }}"}}])
]


def test_an_image_whose_url_comes_to_nothing_is_left_out() -> None:
    template = Template("t", {"": IMAGE}, optional=["u"])
    with_it = template.render({"t": "x", "u": "https://i"}).body["messages"][0]["content"]
    without = template.render({"t": "x"}).body["messages"][0]["content"]
    assert [part["type"] for part in with_it] == ["text", "image_url"]
    assert without == [{"type": "text", "text": "x"}]
    assert template.holds_image({"u": "https://i"})
    assert not template.holds_image({"t": "x"})


def test_the_version_names_the_content_and_nothing_else() -> None:
    assert greeting().version == greeting().version
    others = [
        greeting(parameters={"temperature": 1}),
        greeting(optional=["name"]),
        greeting(json_schema={"type": "object"}),
        greeting(default_locale="de"),
        Template("greet", {"": [("user", "Hello {{ name }} ")]}),
    ]
    assert len({template.version for template in [greeting(), *others]}) == 6


@pytest.mark.parametrize("text", ["ab", "é", "\n\n"])
def test_a_prompt_is_bounded_in_bytes(text: str) -> None:
    assert greeting().render({"name": text}, "", len("Hello ab")).body
    with pytest.raises(TemplateError, match="more than 7 bytes"):
        greeting().render({"name": text}, "", len("Hello ab") - 1)


def test_a_number_beyond_all_is_named() -> None:
    with pytest.raises(TemplateError, match="the variable b cannot be read: Number out of range"):
        read_variables({"a": b"1", "b": b"1e999"})


def test_a_schema_goes_to_the_model_as_openai_has_it() -> None:
    body = greeting(json_schema={"type": "object"}).render({"name": "n"}).body
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "greet", "schema": {"type": "object"}},
    }
