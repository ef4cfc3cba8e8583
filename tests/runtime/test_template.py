"""Chat templates: transformers' goldens, the environment's details, and hostile templates within their limits."""

import json
import threading
import time
import tracemalloc
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from edgewright.errors import TemplateError
from edgewright.runtime.template import MAX_SOURCE_CHARS, ChatTemplate, encode_chat
from edgewright.runtime.text import Tokenizer

GOLDENS = Path(__file__).parents[1] / "goldens" / "tokenizers"
FOLDERS = sorted(path.parent for path in GOLDENS.glob("*/expected.json") if (path.parent / "tokenizer.json").exists())
MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
TIMEOUT_S = 0.15
HOSTILE_TIMEOUT_S = 0.05


def render(source: str, messages: list[dict[str, Any]] = MESSAGES, **extra: Any) -> str:
    template = ChatTemplate(source, special_tokens={"bos_token": "<s>"})
    return template.render(messages, add_generation_prompt=extra.pop("add_generation_prompt", True), **extra)


# --- goldens of transformers ----------------------------------------------------------------------------------------


def test_there_are_goldens() -> None:
    assert FOLDERS, f"no tokenizer goldens in {GOLDENS}; run tools/goldens/make_tokenizers.py"


@cache
def golden(folder: Path) -> tuple[Tokenizer, dict[str, str], list[dict[str, Any]]]:
    config = json.loads((folder / "tokenizer_config.json").read_text())
    templates = config.get("chat_template")
    if isinstance(templates, list):
        templates = {entry["name"]: entry["template"] for entry in templates}
    elif isinstance(templates, str):
        templates = {"default": templates}
    if (folder / "chat_template.jinja").exists():
        templates = {"default": (folder / "chat_template.jinja").read_text()}
    tokenizer = Tokenizer.from_files(folder / "tokenizer.json", config)
    return tokenizer, templates, json.loads((folder / "expected.json").read_text())["chats"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_chats_equal_transformers(folder: Path) -> None:
    tokenizer, templates, chats = golden(folder)
    assert chats
    for chat in chats:
        arguments = {"add_generation_prompt": False, **chat["arguments"]}
        name = "tool_use" if arguments.get("tools") is not None and "tool_use" in templates else "default"
        template = ChatTemplate(templates[name], special_tokens=tokenizer.special_tokens)
        if "error" in chat:
            with pytest.raises(TemplateError) as caught:
                template.render(chat["messages"], **arguments)
            assert chat["error"] in str(caught.value)
            continue
        text = template.render(chat["messages"], **arguments)
        if "today_format" in chat:
            assert text.replace(datetime.now().strftime(chat["today_format"]), "@TODAY@") == chat["text"]
            continue
        assert text == chat["text"]
        assert encode_chat(tokenizer, template, chat["messages"], **arguments) == chat["ids"]


# --- the environment ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0]['role'] }}:{{ messages[1].content }}", "<s>user:yo"),
        ("{% for m in messages %}\n  {% if loop.first %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}", "user\n"),
        ("{{ eos_token }}|{{ tools }}|{{ documents }}|{{ tools is none }}|{{ x is defined }}", "|None|None|True|False"),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}{{ i }}"
         "{% endfor %}", "013"),
        ("{% for i in [3, 1, 2] if i != 1 %}{{ i }}/{{ loop.length }}/{{ loop.last }} {% endfor %}",
         "3/2/False 2/2/True "),
        ("a{% generation %}{% set x = 1 %}<{{ messages[1].content }}>{% endgeneration %}b{{ x }}", "a<yo>b"),
        ("{%- generation -%} z {%- endgeneration -%}", "z"),
        ("{{ {'é': '<&>', 'a': [1, none, true, 1.5]}|tojson }}", '{"é": "<&>", "a": [1, null, true, 1.5]}'),
        ("{{ {'b': 1, 'a': 'é'}|tojson(indent=2, sort_keys=true, ensure_ascii=true) }}",
         '{\n  "a": "\\u00e9",\n  "b": 1\n}'),
        ("{{ [1, 2]|tojson(separators=(',', ':')) }}{{ {}|tojson(indent=4) }}", "[1,2]{}"),
        ("{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}"
         "{% set ns.s = ns.s ~ m.role[0] %}{% endfor %}{{ ns.n }}{{ ns.s }}", "2ua"),
        ("{% macro f(a, b='B') %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1) }}{{ f(1, 2, 3, k=4) }}",
         "1B(){}12(3,){'k': 4}"),
        ("{% macro w() %}[{{ caller('x') }}]{% endmacro %}{% call(v) w() %}{{ v }}{% endcall %}", "[x]"),
        ("{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}"
         "{% endfor %}", "(1(2))(3)"),
        ("{{ messages|map(attribute='role')|join(', ') }}|{{ messages|selectattr('role', 'eq', 'user')|list|length }}",
         "user, assistant|1"),
        ("{{ [3, 1, 2]|sort|join }}{{ [1, 1, 2]|unique|list }}{{ [[1, 2], [3]]|sum(start=[]) }}{{ [1, 2]|sum }}",
         "123[1, 2][1, 2, 3]3"),
        ("{{ [1, 2, 3, 4]|batch(3, 0)|list }}{{ 'abc'|list }}", "[[1, 2, 3], [4, 0, 0]]['a', 'b', 'c']"),
        ("{{ [1, 2]|first }}{{ [1, 2]|last }}{{ [1, 2]|reverse|list }}{{ 'ab'|reverse }}", "12[2, 1]ba"),
        ("{% if messages|select('string') %}truthy{% endif %}", "truthy"),  # an iterator is true, even an empty one
        ("{{ ' a '|trim }}{{ 'ab'|upper }}{{ 'a b'.split(' ') }}{{ '-'.join(['x', 'y']) }}", "aAB['a', 'b']x-y"),
        ("{% for m in messages %}{{ m.content.strip('h') }}{{ m['role'].replace('s', '-', 1) }}{% endfor %}",
         "iu-eryoa-sistant"),
        ("{{ '%s-%03d|' % ('a', 7) }}{{ '%s'|format('z') }}{{ '{:>4}{x!r}'.format('a', x='b') }}", "a-007|z   a'b'"),
        ("{{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ -3 + 1 }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 1 < 2 < 3 }}",
         "3 3 1024 -2 abab [1, 2] True"),
        ("{{ 'x' in 'xyz' }}{{ 'role' in messages[0] }}{{ 3 not in [1, 2] }}{{ {'a': {'b': 1}}.a['b'] }}",
         "TrueTrueTrue1"),
        ("{{ 'abcdef'[1:4] }}{{ [1, 2, 3][::-1] }}{{ messages[-1].role }}{{ messages[1:]|length }}",
         "bcd[3, 2, 1]assistant1"),
        ("{{ {'a': 1, 'b': 2}.items()|list }}{% for k, v in {'z': 1}|items %}{{ k }}{{ v }}{% endfor %}",
         "[('a', 1), ('b', 2)]z1"),
        ("{{ dict(a=1) }}{{ {'a': none}.get('a', 5) }}{{ {}.get('q', 5) }}{{ none or 'd' }}{{ q|default('e') }}",
         "{'a': 1}None5de"),
        ("{% set x %}in {{ 1 }}{% endset %}[{{ x }}]{% filter upper %}a{{ x }}{% endfilter %}", "[in 1]AIN 1"),
        ("{{ '%(a b)-3d|%%|%(a b)05.1f' % {'a b': 7} }}{{ '100%%(%s' % 'x' }}", "7  |%|007.0100%(x"),
        ("{{ ('<%s>{}'|safe % '&').format('<') }}", "<&amp;>&lt;"),
        ("{{ '<b>'|safe }}{{ '<b>'|e }}", "<b>&lt;b&gt;"),
        ("{% raw %}{{ x }}{% endraw %}{# gone #}", "{{ x }}"),
        ("{% block a %}B{{ messages|length }}{% endblock %}{{ self.a() }}", "B2B2"),
    ],
)  # fmt: skip
def test_renders_as_jinja_in_transformers(source: str, expected: str) -> None:
    assert render(source) == expected


def test_content_is_data() -> None:
    hostile = "{{ 7 * 7 }}{% for x in y %}{{ bos_token }}"
    assert render("{{ messages[0].content }}", [{"role": "user", "content": hostile}]) == hostile
    assert render("{{ messages[0].content|tojson }}", [{"role": "user", "content": hostile}]) == json.dumps(hostile)


def test_extra_variables_override_special_tokens() -> None:
    assert render("{{ bos_token }}{{ enable_thinking }}", bos_token="<B>", enable_thinking=False) == "<B>False"


def test_messages_are_normalised_as_transformers_does() -> None:
    messages = [{"role": "assistant", "content": None, "reasoning": "r", "tool_calls": None}]
    source = "{{ messages[0].keys()|list }}{{ messages[0].thinking }}{{ messages[0].reasoning_content }}"
    assert render(source, messages) == "['thinking', 'role', 'reasoning', 'reasoning_content']rr"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''['__class__'] }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ '{0.__globals__}'.format(raise_exception) }}",
        "{{ raise_exception|attr('__globals__') }}",
        "{{ namespace(a=1)['_Namespace__attrs'] }}",
        "{{ self._TemplateReference__context }}",
        "{{ cycler(1).__init__ }}",
    ],
)
def test_internals_are_undefined(source: str) -> None:
    assert render(source) == ""


def test_objects_are_out_of_reach() -> None:
    class Media:
        def delete(self) -> str:
            raise AssertionError("a template called this")

        def __str__(self) -> str:
            raise AssertionError("a template read this")

    message = {"role": "user", "content": [{"type": "image", "image": Media()}]}
    assert render("{{ messages[0].content[0].image }}", [message]) == "<Media>"
    with pytest.raises(TemplateError, match="has no attribute 'delete'"):
        render("{{ messages[0].content[0].image.delete() }}", [message])
    assert isinstance(message["content"], list)
    assert isinstance(message["content"][0]["image"], Media)  # the caller's objects stay as they are


def test_raise_exception_gives_the_templates_message_and_line() -> None:
    with pytest.raises(TemplateError, match=r"at line 3 \(only user: please\)"):
        render("{% if true %}\n\n{{ raise_exception('only user: please') }}{% endif %}")


def test_strftime_now() -> None:
    before = datetime.now().strftime("%Y-%m-%d")
    assert render("{{ strftime_now('%Y-%m-%d') }}") in (before, datetime.now().strftime("%Y-%m-%d"))


@pytest.mark.parametrize("messages", [[], ["hi"], [None]])
def test_messages_of_another_form_are_refused(messages: Any) -> None:
    with pytest.raises(TemplateError, match="non-empty list of objects"):
        render("x", messages)
    with pytest.raises(TemplateError, match="JSON schema"):
        render("x", tools=[len])


def test_messages_that_contain_themselves_are_refused() -> None:
    content: list[Any] = []
    content.append(content)
    with pytest.raises(TemplateError, match="contain themselves"):
        render("x", [{"role": "user", "content": content}])


@pytest.mark.parametrize(
    ("source", "line"),
    [("\n{{ x }", 2), ("{% for %}", 1), ("a\n\n{% endif %}", 3), ("{% if x %}", 1), ("{{ 'x'|no_such_filter }}", 1)],
)
def test_syntax_errors_name_the_line(source: str, line: int) -> None:
    with pytest.raises(TemplateError, match=f"malformed at line {line} "):
        ChatTemplate(source, special_tokens={})


# --- hostile templates ----------------------------------------------------------------------------------------------

NS = "{% set ns = namespace(x=[1], s='a', t=(1,)) %}"
HOSTILE = {
    "huge range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loop condition": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "long filters": "{% for i in range(99999) %}{% set x = range(99999)|map('string')|sort %}{% endfor %}",
    "recursive macro": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loop": "{% for x in messages recursive %}{{ loop(messages) }}{% endfor %}",
    "recursive block": "{% block a %}{{ self.a() }}{% endblock %}",
    "macro bomb": "{% macro m0() %}{% endmacro %}"
    + "".join(f"{{% macro m{i}() %}}" + f"{{{{ m{i - 1}() }}}}" * 9 + "{% endmacro %}" for i in range(1, 12))
    + "{{ m11() }}",
    "huge output": "{% for i in range(99999) %}{% for j in range(99) %}aaaaaaaaaaaaaaaaaaa{% endfor %}{% endfor %}",
    "huge block": "{% set x %}{% for i in range(99999) %}" + "a" * 30000 + "{% endfor %}{% endset %}",
    "str * int": "{{ 'a' * 10**10 }}",
    "int * str": "{{ 10**10 * 'a' }}",
    "list * int": "{{ [0] * 10**10 }}",
    "doubling ~": NS + "{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubling +": NS + "{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling list": NS + "{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling join": NS + "{% for i in range(99) %}{% set ns.s = [ns.s, ns.s]|join %}{% endfor %}",
    "doubling str.join": NS + "{% for i in range(99) %}{% set ns.s = ns.s.join([ns.s, ns.s]) %}{% endfor %}",
    "doubling %": NS + "{% for i in range(99) %}{% set ns.s = '%s%s' % (ns.s, ns.s) %}{% endfor %}",
    "doubling format": NS + "{% for i in range(99) %}{% set ns.s = '{0}{0}'.format(ns.s) %}{% endfor %}",
    "doubling replace": NS + "{% for i in range(99) %}{% set ns.s = ns.s.replace('a', 'aa') %}{% endfor %}",
    "many big strings": "{% set l = namespace(x=[]) %}{% set b = 'a' * 300000 %}{% for i in range(99999) %}"
    "{% set l.x = l.x + [b ~ i] %}{% endfor %}",
    "many slices": "{% set l = namespace(x=[]) %}{% set b = 'a' * 300000 %}{% for i in range(99999) %}"
    "{% set l.x = l.x + [b[1:]] %}{% endfor %}",
    "shared lists as text": NS + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "shared lists as json": NS + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
    "shared lists compared": NS + "{% set y = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}"
    "{% set y.x = [y.x, y.x] %}{% endfor %}{{ ns.x == y.x }}",
    "shared dicts": NS + "{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x ~ '' }}",
    "shared tuples hashed": NS + "{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {ns.t: 1} }}",
    "shared tuples looked up": NS + "{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {}[ns.t] }}",
    "shared tuples in dict()": NS + "{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
    "{{ dict([(ns.t, 1)]) }}",
    "shared tuples in a test": NS + "{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
    "{{ ns.t is in({}) }}",
    "shared tuples unique": NS + "{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
    "{{ [ns.t]|unique|list }}",
    "deep tuples hashed": NS + "{% for i in range(9999) %}{% set ns.t = (ns.t,) %}{% endfor %}{{ {}[ns.t] }}",
    "deep varargs": "{% macro m() %}{{ varargs[0] }}{% set q.t = varargs %}{% endmacro %}{% set q = namespace(t=1) %}"
    "{% for i in range(9999) %}{% set x = m(q.t, q.t) %}{% endfor %}",
    "namespace in itself": "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
    "power": "{{ 2 ** 10000000 }}",
    "power tower": NS + "{% set ns.x = 7 %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "int in base 16": "{{ ('f' * 300000)|int(0, 16) }}",
    "literal": "{{ " + "9" * 9000 + " }}",
    "center": "{{ 'x'.center(10**10) }}",
    "|center": "{{ 'x'|center(10**10) }}",
    "ljust": "{{ 'x'.ljust(10**10) }}",
    "zfill": "{{ 'x'.zfill(10**10) }}",
    "expandtabs": "{{ '\\t'.expandtabs(10**10) }}",
    "replace": "{{ ('a' * 3000).replace('a', 'b' * 30000) }}",
    "|replace": "{{ ('a' * 3000)|replace('', 'b' * 30000) }}",
    "|indent": "{{ 'a\\nb'|indent(10**10) }}",
    "|indent text": "{{ ('\\n' * 3000)|indent('x' * 30000, true) }}",
    "|batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "|slice": "{{ [1]|slice(10**9)|list }}",
    "|round": "{{ 1|round(10**8, 'ceil') }}",
    "tojson indent": "{{ [1]|tojson(indent=10**10) }}",
    "tojson indent text": "{{ (range(999)|list)|tojson(indent='x' * 99999) }}",
    "% width": "{{ '%10000000000d' % 1 }}",
    "% star": "{{ '%*d' % (10**10, 1) }}",
    "% precision": "{{ '%.10000000000f' % 1 }}",
    "|format width": "{{ '%10000000000d'|format(1) }}",
    "is divisibleby": "{{ '%10000000000d' is divisibleby(1) }}",
    "is odd": "{{ '%10000000000d' is odd }}",
    "format width": "{{ '{:10000000000}'.format(1) }}",
    "format nested width": "{{ '{:{w}}'.format(1, w=10**10) }}",
    "format_map width": "{{ '{a:10000000000}'.format_map({'a': 1}) }}",
    "format by attr": "{{ ('{:10000000000}'|attr('format'))(1) }}",
    "format by item": "{{ '{:10000000000}'['format'](1) }}",
    "format by map": "{{ ['{:10000000000}']|map('format', 1)|list and '%10000000000d'|format(1) }}",
    "safe format": "{{ ('{:10000000000}'|safe).format(1) }}",
    "strftime width": "{{ strftime_now('%0999999999Y') }}",
    "rfind": "{{ ('a' * 390000).rfind('b' + 'a' * 190000) }}",
    "strip": "{{ ('a' * 390000).strip('b' * 390000 + 'a') }}",
    "|trim": "{{ ('a' * 390000)|trim('b' * 390000 + 'a') }}",
    "|sort by a long path": "{{ ([{'a': 1}] * 99999)|sort(attribute='a' ~ '.a' * 99999) }}",
    "|map tojson indent": "{{ [[1]]|map('tojson', indent=10**10)|list }}",
    "|title": "{{ ('a-' * 190000)|title }}",
    "in many equal strings": "{% set s = 'a' * 390000 %}{{ (s ~ 'b') in [s ~ 'c'] * 99999 }}",
    "sum of lists": "{{ ([[1] * 9999] * 9999)|sum(start=[]) }}",
    "many searches": "{% set s = 'a' * 390000 %}" + "{% if 'b' in s or s.count('ab') %}{% endif %}" * 1500
    + "{% for i in range(99999) %}{% if 'ab' in s %}{% endif %}{% endfor %}",
    "rsplit by keywords": "{{ ('a' * 390000).rsplit(maxsplit=1, sep='ab' + 'a' * 190000) }}",
    "% unclosed keys": "{{ ('%(' * 190000) % 1 }}",
    "% key with parentheses": "{{ '%(a(b)c)9999999999d' % {'a(b)c': 1} }}",
    "|indent by other line ends": "{{ ('a\\r' * 30000)|indent('x' * 90000) }}",
    "many varargs": "{% set s = 'a' * 390000 %}{% macro m() %}{{ m(*s) }}{{ varargs|length }}{% endmacro %}{{ m() }}",
    "many keywords": "{% macro m() %}{{ kwargs|length }}{% endmacro %}{% set p = namespace(x=[]) %}"
    "{% for i in range(2000) %}{% set p.x = p.x + [(i|string, i)] %}{% endfor %}{{ m(**dict(p.x)) }}",
    "set of tuples as text": "{% set s = 'a' * 390000 %}{{ [{(s, 1): 0}.keys() - []] * 5000 }}",
    "shared tuples in a difference": NS + "{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
    "{{ {}.keys() - [ns.t] }}",
    "shared tuples in another difference": NS + "{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}"
    "{{ [ns.t] - {}.keys() }}",
    "shared lists in a view's mapping": NS + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ {'a': ns.x}.keys().mapping }}",
    "shared lists in an error": NS + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ messages[ns.x].y }}",
    "shared lists in a call's error": "{% set ns = namespace(x=[1], unsafe_callable=true) %}"
    "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns() }}",
    "shared lists escaped": NS + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
    "{{ ('x'|safe).escape(ns.x) }}",
    "lipsum": "{{ lipsum(n=10**9) }}",
    "class": "{{ ''.__class__.__mro__ }}",
    "class by attr": "{{ (''|attr('__class__')).x }}",
    "class in format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "class in format_map": "{{ '{a.__class__.__mro__}'.format_map({'a': 1}) }}",
    "globals of a function": "{{ namespace.__init__.__globals__ }}",
    "globals by map": "{{ [raise_exception]|map(attribute='__globals__.os')|first }}",
    "globals in format": "{{ '{0.__globals__[os]}'.format(raise_exception) }}",
    "closure of a filter": "{{ (namespace|attr('__closure__'))[0] }}",
    "method of a type": "{{ dict.mro() }}",
    "mutation": "{{ messages.append(1) }}",
    "mutation of a message": "{{ messages[0].update(a=1) }}",
    "bytes": "{{ 'a'.encode() }}",
    "to_bytes": "{{ (1).to_bytes(10**10, 'big') }}",
    "translate": "{{ 'aaa'.translate({97: 'x' * 9}) }}",
    "underscore namespace": "{{ namespace(__class__=1) }}",
    "include": "{% include 'x' %}",
    "include nothing": "{% include ['x'] ignore missing %}",
    "import": "{% import 'x' as y %}",
    "from import": "{% from 'x' import y %}",
    "extends": "{% extends 'x' %}",
    "autoescape": "{% autoescape 'a'|center(10**10) %}{% endautoescape %}",
    "parentheses": "{{ " + "(" * 9000 + "1" + ")" * 9000 + " }}",
    "minus": "{{ " + "-" * 9000 + "1 }}",
    "sum": "{{ 1" + "+1" * 9000 + " }}",
    "attributes": "{{ a" + ".b" * 9000 + " }}",
    "nested if": "{% if 1 %}" * 900 + "{% endif %}" * 900,
    "nested for": "{% for i in [1] %}" * 50 + "{% endfor %}" * 50,
    "long source": "{{ 1 }}" * MAX_SOURCE_CHARS,
    "call of nothing": "{{ nothing() }}",
    "attribute of nothing": "{{ nothing.x }}",
}  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_hostile_template_ends_with_a_template_error_in_time(source: str) -> None:
    start = [time.thread_time()]  # not the clock: other processes may hold the cores

    def compile_and_render() -> None:
        template = ChatTemplate(source, special_tokens={}, timeout_s=HOSTILE_TIMEOUT_S, max_output_chars=400_000)
        start.append(time.thread_time())  # compiling has a limit of its own
        template.render(MESSAGES, add_generation_prompt=True)

    with pytest.raises(TemplateError) as caught:
        compile_and_render()
    assert time.thread_time() - start[-1] < HOSTILE_TIMEOUT_S + 1.0
    message = str(caught.value)
    assert message.startswith(("the chat template ", "the messages "))
    assert message.endswith(".")
    assert len(message) < 800


BIG = ["many big strings", "many slices", "huge block", "doubling +", "doubling list", "shared lists as json"]
BIG += ["many varargs"]


@pytest.mark.parametrize("name", BIG)
def test_memory_stays_within_the_allowance(name: str) -> None:
    template = ChatTemplate(HOSTILE[name], special_tokens={}, timeout_s=TIMEOUT_S, max_output_chars=400_000)
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            template.render(MESSAGES, add_generation_prompt=True)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 400_000 * 64 * 1.5


def test_limits_hold_on_any_thread_and_are_per_render() -> None:
    endless = ChatTemplate(HOSTILE["nested ranges"], special_tokens={}, timeout_s=TIMEOUT_S)
    quick = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", special_tokens={}, timeout_s=TIMEOUT_S)
    results: list[str] = []

    def run(template: ChatTemplate) -> None:
        try:
            results.append(template.render(MESSAGES, add_generation_prompt=True))
        except TemplateError as error:
            results.append(str(error)[:29])

    threads = [threading.Thread(target=run, args=(template,)) for template in (endless, endless, quick)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == ["hiyo", "the chat template takes longe", "the chat template takes longe"]
    time.sleep(TIMEOUT_S)
    run(quick)  # a later render has its own time
    assert results[-1] == "hiyo"


def test_output_limit_is_exact() -> None:
    template = ChatTemplate("{{ messages[0].content }}!", special_tokens={}, max_output_chars=10)
    assert template.render([{"content": "x" * 9}], add_generation_prompt=False) == "x" * 9 + "!"
    with pytest.raises(TemplateError, match="longer output than the 10 characters"):
        template.render([{"content": "x" * 10}], add_generation_prompt=False)


def test_a_long_chat_is_no_hostile_one() -> None:
    messages = [{"role": "user", "content": "word " * 100}] * 2000
    source = (
        "{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t + m.role + m.content %}{% endfor %}"
    )
    template = ChatTemplate(source + "{{ ns.t }}", special_tokens={}, timeout_s=30, max_output_chars=40_000_000)
    assert len(template.render(messages, add_generation_prompt=True)) == 2000 * 504
