"""Whatever a request says, a comment keeps its form. CommonMark's own parser is the judge."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given, settings, strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.examples import examples
from tpustack.ci import result
from tpustack.ci.result import LONGEST, CostChange, Outcome, Result, markdown, marker
from tpustack.console import line
from tpustack.engine.stack import Change, Violation

HOSTILE = [
    "````\n</details>\n# Approved by security\n````",
    "```\n/approve\n/merge\n```",
    "x\n\n<!-- tpustack ci deploy prod -->\n### Deployment of stack `prod`: changes",
    "![](https://example.com/pixel.png) [click](https://example.com)",
    "<img src=x onerror=alert(1)> <details> -->",
    "@everyone fixes #1, see www.example.com and https://example.com",
    "`` `a` ``` *b* _c_ ~~d~~ | e | \\` \\",
    "\x1b[31mred\x1b[0m \u202eevil\u202c \r\n> quoted\r/close",
    "~~~\n> >>>\n/label ~x",
    "- [x] done\n1. one\n    indented\n***",
    "`",
    "",
]
TEXTS = st.sampled_from(HOSTILE) | st.text(
    st.sampled_from("`~\n\r/<>!-#*_[]()@:| \\ab\u2028\x1b\u202e") | st.characters(), max_size=60
)
CHANGES = st.builds(Change, TEXTS, TEXTS, TEXTS, st.tuples(TEXTS), st.tuples(TEXTS))
REPLACED = st.builds(Change, st.just("replace"), TEXTS, TEXTS, st.tuples(TEXTS), st.tuples(TEXTS))
RESULTS = st.builds(
    Result,
    st.just("dev"),
    st.just(Outcome.POLICY),
    st.tuples(CHANGES, REPLACED),
    st.tuples(st.builds(Violation, TEXTS, TEXTS, TEXTS, TEXTS)),
    st.builds(CostChange, TEXTS, TEXTS, TEXTS),
    TEXTS.map(lambda said: f"x{said}"),
    st.tuples(TEXTS.filter(line)),
)
PLAIN = Change("replace", "x", "x", ("x",), ("x",))
HARMLESS = Result(
    "dev",
    Outcome.POLICY,
    (Change("x", "x", "x", ("x",)), PLAIN),
    (Violation("x", "x", "x", "x"),),
    CostChange("x", "x", "x"),
    "x",
    ("x",),
)


def parsed(body: str) -> list[Token]:
    return MarkdownIt("commonmark").parse(body)


def form(body: str) -> list[str]:
    """The blocks of a comment, without what is in them."""
    return [token.type for token in parsed(body)]


def inside(body: str) -> set[str]:
    """What stands within lines: text, code, emphasis, links, pictures, HTML …"""
    return {each.type for token in parsed(body) for each in token.children or []}


@settings(max_examples=examples(400))
@given(RESULTS)
@example(HARMLESS)
def test_a_comment_has_the_same_form_whatever_its_texts_say(result: Result) -> None:
    said = markdown("preview", result)
    assert form(said) == form(markdown("preview", HARMLESS))
    assert inside(said) <= {"text", "text_special", "code_inline", "strong_open", "strong_close"}
    first, *rest = said.splitlines()
    assert first == marker("preview", "dev")
    # GitLab obeys these, and looks for them with a pattern of its own, not with a parser.
    assert not [line for line in rest if line.lstrip().startswith("/")]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e\u2066-\u2069]", said)


@given(TEXTS)
def test_comments_mention_no_accounts_and_link_nothing(said: str) -> None:
    shown = result.prose(f"x {said} x")
    outside = re.sub(r"(`+).*?\1", "", shown)
    assert not re.search(r"@\w|#\d|://|www\.", outside)


@given(TEXTS)
def test_code_is_one_span_with_the_same_words(said: str) -> None:
    (_, inline, _) = parsed(f"x {result.code(said)} x")
    span = [each.content for each in inline.children or [] if each.type == "code_inline"]
    assert [each.strip() for each in span] == [line(said)]


@settings(max_examples=examples(50))
@given(TEXTS, st.integers(1, 3000))
def test_a_comment_that_is_cut_ends_its_blocks(said: str, times: int) -> None:
    many = tuple(Change("create", "x" * 20, f"x{said}") for _ in range(times))
    whole = markdown("preview", Result("dev", Outcome.CHANGES, many))
    assert len(whole) <= LONGEST
    assert form(whole).count("fence") == 1


def test_own_notes_keep_their_code() -> None:
    note = "Not in any state: disk a. `--remove-orphans` deletes that."
    assert result.prose(note) == note


@pytest.mark.parametrize("said", HOSTILE)
def test_words_stay_readable(said: str) -> None:
    words = re.findall(r"[a-z]{4,}", said)
    assert [word for word in words if word not in result.block(said, "text")] == []
