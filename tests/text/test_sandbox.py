"""What a template can reach, and what callers can make ordinary templates do: nothing, and little."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inflight.common.request_error import RequestError
from inflight.text import template_limits as limits
from inflight.text.sandbox import SandboxedTemplate
from tests.fixtures.errors import raises

USER = {"role": "user", "content": "hello"}


def render(source: str, **variables: Any) -> str:
    return SandboxedTemplate("default", source).render({"messages": [USER], **variables})


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ '{0.__class__.__mro__}'.format(messages) }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.__reduce_ex__(2) }}",
        "{{ messages|map(attribute='__class__')|list|first|attr('mro') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ messages[0].pop('role') }}",
        "{{ messages[0].__setitem__('role', 'x') }}",
    ],
)
def test_there_is_no_way_out(source: str) -> None:
    """The sandbox itself refuses it, and nothing else that the template might do wrong."""
    template, before = SandboxedTemplate("default", source), dict(USER)
    with pytest.raises(RequestError) as refusal:
        template.render({"messages": [USER]})
    assert isinstance(refusal.value.__context__, SecurityError)
    assert before == USER


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages|attr('__class__')|attr('__base__') }}",
        "{{ '{a.__class__}'.format_map({'a': 1}) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__code__ }}",
    ],
)
def test_what_is_hidden_shows_as_nothing(source: str) -> None:
    assert render(source) == ""


@pytest.mark.parametrize("source", ["{% include '/etc/passwd' %}", "{% import 'os' as os %}", "{% extends 'x' %}"])
def test_no_file_is_read(source: str) -> None:
    template = SandboxedTemplate("default", source)
    with raises(RequestError, "invalid_messages", naming="loader"):
        template.render({"messages": [USER]})


DOUBLING = (
    "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(60) %}{% set ns.x = @ %}{% endfor %}{{ ns.x }}"
)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * 'a' }}",
        "{{ [0] * 10000000000 }}",
        "{{ 9 ** (9 ** 9) }}",
        "{{ (9 ** 4000) * (9 ** 4000) * (9 ** 4000) }}",
        "{{ '%10000000000d' % 5 }}",
        "{{ '%(a)s%(a)s%(a)s' % {'a': 'a' * 10000000} }}",
        "{{ '%*d' % (10000000000, 5) }}",
        "{{ '%10000000000d' | format(5) }}",
        "{{ '{:10000000000}'.format(5) }}",
        "{{ '{:{}}'.format(5, 10000000000) }}",
        "{{ '{a:10000000000}'.format_map({'a': 5}) }}",
        "{{ '{0}{0}{0}'.format('a' * 10000000) }}",
        "{{ '%.*f' % (10000000000, 0.5) }}",
        "{{ ('a\n' * 100000) | indent('b' * 100000) }}",
        "{{ ('a ' * 100000) | wordwrap(1, wrapstring='b' * 100000) }}",
        "{{ 'a'.ljust(10000000000) }}",
        "{{ 'a'.center(10000000000) }}",
        "{{ '5'.zfill(10000000000) }}",
        "{{ '\t'.expandtabs(10000000000) }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ ('a\n' * 100000) | indent(100000) }}",
        "{{ ('a' * 100000).replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000) | replace('a', 'b' * 100000) }}",
        "{{ ('a' * 100000).join(['b'] * 100000) }}",
        "{{ (['b'] * 100000) | join('a' * 100000) }}",
        "{{ ([{'a': 'a' * 100000}] * 100000) | join(attribute='a') }}",
        "{{ ([[messages] * 10000] * 10000) | tojson }}",
        pytest.param("{{ ([[messages] * 10000] * 10000) | string | length }}", marks=pytest.mark.slow),
        pytest.param("{{ ([[messages] * 10000] * 10000) | tojson(indent=1000) }}", marks=pytest.mark.slow),
        "{{ [[messages] * 10000] * 10000 }}",
        "{{ ('a' * 10000).translate({97: 'b' * 100000}) }}",
        "{{ (1).to_bytes(10000000000, 'big') }}",
        "{{ range(10000000000) | list }}",
        "{{ lipsum(1000000) }}",
        DOUBLING.replace("@", "ns.x + ns.x"),
        DOUBLING.replace("@", "ns.x ~ ns.x"),
        DOUBLING.replace("@", "[ns.x, ns.x]"),
        DOUBLING.replace("@", "'%s%s' % (ns.x, ns.x)"),
        DOUBLING.replace("@", "'{0}{0}'.format(ns.x)"),
        DOUBLING.replace("@", "'%s%s' | format(ns.x, ns.x)"),
        DOUBLING.replace("{% set ns.x = @ %}", "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}"),
        "{% for i in range(100000) %}{% for j in range(100000) %}" + "a" * 10000 + "{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_nothing_grows_without_bounds(source: str) -> None:
    began = time.monotonic()
    with raises(RequestError, "invalid_messages"):
        render(source)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(100) }}",
        "{% for i in range(100000) recursive %}{{ loop(range(100000)) }}{% endfor %}",
    ],
)
def test_nothing_goes_on_for_ever(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_CPU_SECONDS", 0.1)
    with raises(RequestError, "invalid_messages"):
        render(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ [1] + [2] }}{{ 'a' ~ 1 ~ none ~ missing }}", "ababab1024[1, 2]a1None"),
        ("{{ ['a', 1] | join('-') }}{{ '-'.join(['a', 'b']) }}{{ '-'.join('ab') }}", "a-1a-ba-b"),
        ("{{ messages | join(', ', attribute='role') }}{{ missing | join }}", "user"),
        (
            "{{ '{:,}'.format(12345678) }}{{ '%d' | format(1700000000) }}{{ '%d' % 1700000000 }}",
            "12,345,678" + "1700000000" * 2,
        ),
        ("{{ 'a\nb' | indent(2) }}{{ 'x' | center(3) }}{{ '%s-%d' | format('a', 3) }}", "a\n  b x a-3"),
        ("{{ '%3d' % 5 }}{{ '{:>3}|{a}'.format(5, a='b') }}{{ 'aba'.replace('a', 'cc') }}", "  5  5|bccbcc"),
        ("{{ {'a': [1, 'é<']} | tojson }}{{ {'a': 1} | tojson(indent=1) }}", '{"a": [1, "é<"]}{\n "a": 1\n}'),
        ("{% for m in messages %}{{ loop.length }}{{ loop.last }}{% else %}none{% endfor %}", "1True"),
        ("{% set x = 'a' ~ ('b' ~ 'c') %}{{ x ~ ('d' if x ~ 'e' == 'abce') }}", "abcd"),
    ],
)
def test_what_templates_do_stays_as_it_is(source: str, text: str) -> None:
    assert render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ '**%s**' % x }}{{ '* %s' | format(x) }}{{ 'ticket 12345: %s' % x }}{{ '100%% of %s' | format(x) }}",
        """{{ '{"a": {"b": "%s"}}' % x }}{{ '{{%s}}' % x }}{{ '%s %s' % (x, x) }}{{ '%%99999999999d%s' % x }}""",
        "{{ '**{}**'.format(x) }}{{ '{{12345}} {0} * {1!r}'.format(x, x) }}{{ '{x:>9}'.format(x=x) }}",
        "{{ '{:{}}|{:.{}}'.format(x, 9, x, 2) }}{{ '{0.x}{0[x]}'.format({'x': x}) }}{{ '{x}'.format_map({'x': x}) }}",
        "{{ '%*d|%-*s|%.*f' % (5, 3, 7, x, 2, 0.125) }}{{ '%05.1f%+d%x' % (2.25, 3, 255) }}{{ '%(x)s*' % {'x': x} }}",
        "{{ '%(x)s' | format(x=x) }}{{ '%-10d|' % 2 }}{{ '%c%%' % 'c' }}",
        "{{ '%s: %s, %s' | format(long, 1, 2) | length }}{{ '{}{}{}{}'.format(long, 1, 2, 3) | length }}",
        "{{ x | truncate(5000000) }}{{ x.replace('t', 'T', 5000000) }}{{ x.find('a', 5000000) }}{{ 5000000 | round }}",
        "{{ long[:300000] | wordwrap(79) | length }}{{ long | indent(4) | length }}",
        "{{ (long ~ '\n' ~ x) | indent | length }}",
        "{{ x | center(20) }}{{ x.rjust(9) }}{{ '\t'.expandtabs(3) }}{{ [1, 2] | batch(3, 0) | list }}",
        "{{ strange | string }}{{ strange | pprint }}{{ strange | length }}{{ x | indent(width=3, first=true) }}",
    ],
)
def test_harmless_templates_say_what_jinja2_says(source: str) -> None:
    variables = {"x": "tea", "long": "tea " * 1_250_000, "strange": {"a": [1, None, {"b": "{*}"}]}}
    assert render(source, **variables) == ImmutableSandboxedEnvironment().from_string(source).render(variables)


@pytest.mark.parametrize("indent", ["indent=4", "indent='    '", "false, 4"])
def test_indented_json_is_reckoned_by_its_depth_before_it_is_made(indent: str) -> None:
    nested: Any = [0] * 150_000
    for _ in range(60):
        nested = [nested]
    with raises(RequestError, "invalid_messages", naming="characters"):
        render("{% set unseen = x | tojson(@) %}".replace("@", indent), x=nested)


def test_several_conversations_share_what_one_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_MAX_OUTPUT_CHARACTERS", 1000)
    template = SandboxedTemplate("default", "{{ 'a' * 400 }}")
    for _ in range(3):
        assert len(template.render({})) == 400
    with limits.bounded():
        for _ in range(2):
            template.render({})
        with raises(RequestError, "invalid_messages", naming="1000"):
            template.render({})
    assert len(template.render({})) == 400


def test_threads_render_one_template_at_once() -> None:
    template = SandboxedTemplate("default", "{% for i in range(2000) %}{{ 'x' * 100 }}{% endfor %}{{ name }}")
    found: dict[str, str] = {}
    names = [str(number) for number in range(8)]
    threads = [
        threading.Thread(target=lambda name=name: found.update({name: template.render({"name": name})}))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: "x" * 200_000 + name for name in names}
