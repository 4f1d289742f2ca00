"""Untrusted templates: published ones render as jinja2 renders them, escapes and bombs end in one line."""

from __future__ import annotations

import time
import tracemalloc

import jinja2
import pytest

from foretell.errors import TokenizerError
from foretell.text.template_sandbox import SandboxedTemplate

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a\nb"}]


def render(source: str, **values: object) -> str:
    return SandboxedTemplate(source, "the template").render(messages=MESSAGES, **values)


def grow(expression: str, first: str = "'a'") -> str:
    """A template that applies an expression to its own result 99 times."""
    return (
        f"{{% set ns = namespace(x={first}) %}}{{% for i in range(99) %}}{{% set ns.x = {expression} %}}{{% endfor %}}"
    )


EACH = "{% for m in messages %}"
LOOP = "{% for a in range(100000) %}"
ESCAPES = [  # to Python through attributes
    "{{ ''.__class__.__mro__ }}",
    "{{ ''['__class__'] }}",
    "{{ messages.__init__.__globals__ }}",
    "{{ range.__globals__ }}",
    "{{ raise_exception.__globals__['__builtins__'] }}",
    "{{ cycler.__init__.__globals__.os }}",
    "{{ lipsum.__globals__ }}",
    "{{ ''|attr('__class__') }}",
    "{{ ['__class__']|map('attr') }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ messages|selectattr('__class__', 'defined')|list }}",
    "{{ messages|sort(attribute='__class__') }}",
    "{{ '{0.__class__}'.format(1) }}",
    "{% set f = 'a{0.__class__}'.format %}{{ f(1) }}",
    "{{ ['{0.__class__}']|map('format', 1)|list }}",
    "{{ '%s'|format(1) }}",
    "{{ undefined_name.__class__ }}",
    "{{ undefined_name() }}",
    "{{ namespace.__init__ }}",
    "{{ namespace(a=1).__class__ }}",
    "{% for m in messages %}{{ loop.__init__.__globals__ }}{% endfor %}",
    "{% for m in messages %}{{ loop._iterator }}{% endfor %}",
    "{% macro f() %}{% endmacro %}{{ f._func.__globals__ }}",
    "{% macro f() %}{% endmacro %}{{ f }}",
    "{{ range }}",
    "{{ self._TemplateReference__context }}",
    "{{ dict.__base__ }}",
]
FILES = ["{% include '/etc/passwd' %}", "{% import 'os' as os %}", "{% from 'os' import path %}", "{% extends 'a' %}"]
CHANGES = [  # of what it was given
    "{{ messages.append(1) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update({'a': 1}) }}",
    "{{ messages[0].pop('role') }}",
    "{% do messages.append(1) %}",
]
ENDLESS = [
    LOOP * 3 + "{% endfor %}" * 3,
    "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "{% macro f(n) %}{% if n < 60 %}{{ f(n + 1) }}{{ f(n + 1) }}{% endif %}{% endmacro %}{{ f(0) }}",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{% for a in range(10 ** 9) %}{% endfor %}",
    "{% for a in range(99999999) %}{% endfor %}",
    "{{ range(1000000000000000000000) }}",
]
LARGE = [
    "{{ 'a' * 999999999999 }}",
    "{{ 999999999999 * 'a' }}",
    "{{ [1] * 999999999 }}",
    "{{ 9 ** 9 ** 9 }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '{:>999999999}'.format('a') }}",
    "{{ 'a'.zfill(999999999) }}",
    "{{ 'a'|center(999999999) }}",
    "{{ ['a']|tojson(indent=999999999) }}",
    "{{ strftime_now('%099999999d') }}",
    "{{ ('9' * 4301)|int * 1 + ('9' * 4300)|int * ('9' * 4300)|int }}",
    "{{ [1, 2]|tojson(separators=('a' * 900000, ':')) }}",
    "{{ messages|tojson(indent=-999999999) }}",
    "{% set ns = namespace() %}{% set ns.a = [ns] %}{{ ns.a }}",
    grow("ns.x * ns.x", "9"),
    grow("ns.x ~ ns.x"),
    grow("ns.x + ns.x"),
    grow("[ns.x, ns.x]"),
    grow("(ns.x, ns.x)"),
    grow("{'a': ns.x, 'b': ns.x}"),
    grow("[ns.x, ns.x]|join"),
    grow("ns.x|replace('a', 'aa')"),
    grow("ns.x.replace('a', 'aa')"),
    grow("ns.x.join([ns.x, ns.x, ns.x])"),
    grow("ns.x[:] + ns.x[:]"),
    "{% set ns = namespace(x='a') %}"
    + LOOP
    + "{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}{% endfor %}",
    "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" + "{{ " + "f(" * 30 + "'a'" + ")" * 30 + " }}",
    "{% filter upper %}" + LOOP + "a" * 99 + "{% endfor %}{% endfilter %}",
    "{{ ('a' * 100000)" + "|map('upper')|list" * 50 + " }}",
    "{% macro f(n) %}{% if n < 60 %}{{ f(n + 1, varargs, varargs) }}{% else %}{{ varargs|upper }}{% endif %}"
    "{% endmacro %}{{ f(0, 1) }}",
    "{% set a0 = namespace() %}"
    + "".join(f"{{% set a{n} = namespace(x=a{n - 1}, y=a{n - 1}) %}}" for n in range(1, 60))
    + "{{ a59|upper }}",
]
DEEP = [
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{{ a" + ".b" * 3000 + " }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "{{ 1 }}" * 15000,
]
BROKEN = ["{% if %}", "{{ 1 // 0 }}", "{{ messages[::0] }}", "{{ 'a' + 1 }}", "{% block a %}{% endblock %}"]


@pytest.mark.parametrize("source", [*ESCAPES, *FILES, *CHANGES, *ENDLESS, *LARGE, *DEEP, *BROKEN], ids=lambda s: s[:60])
def test_a_template_that_reaches_out_or_does_not_end_is_one_line(source):
    started, before = time.process_time(), str(MESSAGES)
    with pytest.raises(TokenizerError) as refusal:
        render(source)
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith("the template")
    assert str(MESSAGES) == before
    assert time.process_time() - started < 10  # the limit is 5 seconds; without one, these take years


@pytest.mark.parametrize(
    "source",
    [
        EACH + "{{ loop.index0 }}{{ m['role'] ~ ': ' + m.content|trim }}{{ ', ' if not loop.last }}{% endfor %}",
        "{% set ns = namespace(n=0) %}" + EACH + "{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        EACH + "{% if loop.first %}{% continue %}{% endif %}{{ m.content.split('\n')[-1] }}{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{{ m.content }}{% else %}none{% endfor %}",
        "{% macro f(m, k=2) %}{{ m.content * k }}{% endmacro %}{{ f(messages[0], k=3) }}",
        "{{ messages[1:]|map(attribute='role')|join('-') }} {{ messages|length }} {{ messages[-1].content[::-1] }}",
        "{{ messages|selectattr('role', 'equalto', 'user')|list|tojson }} {{ 'é'|tojson }}",
        "{% if messages[0].tools is not defined and 'x' not in messages[0] %}{{ messages[0].items()|list }}{% endif %}",
        "{% set a, b = 1, 2 %}{{ (a + b) * 2 - 1 }} {{ 7 % 4 }} {{ 'a' if a is string else none }}",
        "{% set t %}x{{ messages[0].content }}{% endset %}{{ t|upper|replace('X', 'yy') }}",
        "{{ none_given }}{{ missing|default('d') }} {{ 'ab'.startswith('a') }} {{ {'k': [1, 2]}['k'][1] }}",
    ],
)
def test_what_chat_templates_use_renders_as_jinja_renders_it(source):
    extensions = ["jinja2.ext.loopcontrols"]
    plain = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions, autoescape=False)
    plain.filters["tojson"] = lambda value: __import__("json").dumps(value, ensure_ascii=False)
    assert render(source) == plain.from_string(source).render(messages=MESSAGES)


def test_the_tag_of_training_frameworks_is_read_through():
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "hi!"


def test_a_template_may_refuse_a_conversation_in_its_own_words():
    with pytest.raises(TokenizerError, match="the template cannot write this conversation: roles must alternate"):
        render("{{ raise_exception('roles must\nalternate') }}")


def test_long_conversations_have_a_larger_budget():
    text = "a long message. " * 200_000
    assert (
        len(SandboxedTemplate("{% for m in messages %}{{ m }}{{ m|trim }}{% endfor %}", "t").render(messages=[text]))
        > 6e6
    )


@pytest.mark.parametrize(
    "source",
    [
        "{% set x = 'a' * 200000 %}{{ x" + " ~ x" * 2000 + " }}",
        "{% set x = 'a' * 200000 %}{{ [" + "x, " * 2000 + "] }}",
        "{% set x = 'a' * 200000 %}{{ ([0] * 2000)|map('replace', '0', x)|list }}",
        "{% set x = 'a' * 200000 %}{{ ([none] * 2000)|map('default', x, true)|list }}",
        "{% set x = 'a' * 200000 %}{{ [x] * 2000 }}",
        "{% set x = 'a' * 20000 %}{{ range(9000)|list|tojson(separators=(x, x)) }}",
    ],
)
def test_a_value_is_charged_before_it_takes_memory(source):
    template = SandboxedTemplate(source, "the template")
    tracemalloc.start()
    try:
        with pytest.raises(TokenizerError, match="too large"):
            template.render(messages=MESSAGES)
        assert tracemalloc.get_traced_memory()[1] < 20e6  # 400 MB of characters otherwise
    finally:
        tracemalloc.stop()


def test_integers_have_as_many_digits_as_python_writes():
    assert render("{{ 99999999999999999999999 + 1 }} {{ ('9' * 4000)|int }}") == f"{10**23} {'9' * 4000}"
