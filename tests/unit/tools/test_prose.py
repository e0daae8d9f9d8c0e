"""What ships is plain English, by the rules of tools/prose.yaml."""

from __future__ import annotations

import textwrap
from pathlib import Path

import prose
import pytest
import yaml

from tests.unit.structure.modules import ROOT

RULES = yaml.safe_load(prose.RULES.read_text(encoding="utf-8"))
PEOPLE = RULES["people"]


@pytest.mark.slow
def test_everything_that_ships_keeps_to_the_rules() -> None:
    assert prose.problems(ROOT, RULES) == []


def test_a_word_of_the_list_is_named_with_what_to_write_instead() -> None:
    words = {"anew": "again", "e.g.": "for example"}
    assert prose.refused("a.md", "It is\nmade Anew.", words) == ["a.md:2: 'Anew'; write: again"]
    assert prose.refused("a.md", "Names, e.g. this", words) == [
        "a.md:1: 'e.g.'; write: for example"
    ]
    assert prose.refused("a.md", "renewed, the.e.g.x", words) == []


def test_a_page_has_the_sentences_of_its_paragraphs_and_lists() -> None:
    page = """\
        # A title that counts for nothing

        Run `make demo KEEP=1`. It needs
        [version 3.1](a.md#b) and more.

            a block of code. With dots.

        - `--stack`: the stack to use.
        - Another item

        | a table | with cells. And dots |
        |---|---|

        ```text
        More code. Here.
        ```
        <!-- A comment. -->
        \u4e2d\u6587\u3002
        """
    assert [each.text for each in prose.of_page(textwrap.dedent(page))] == [
        "Run code.",
        "It needs version 3.1 and more.",
        "the stack to use.",
        "Another item",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("The preview says what is wrong.", True),
        ("A user says what to train.", False),
        ("Ask who says so.", False),
        ("It says so, as the author says.", True),
        ("It essays a step.", False),
    ],
)
def test_only_people_say_something(text: str, says: bool) -> None:
    (found,) = prose.sentences(text)
    assert found.says(PEOPLE) is says


def test_each_figure_above_its_limit_is_named_with_its_sentences() -> None:
    found = prose.sentences(f"{'word ' * 40}ends. The page says it: twice. Fine.")
    limits = {"mean": 10, "longest": 35, "colons": 0, "says": 0, "above 35": 0}
    assert prose.figures(found, PEOPLE)["mean"] == 15.7
    named = [line for line in prose.beyond("a.md", found, limits, PEOPLE) if line[0] != " "]
    assert named == [
        "a.md: mean is 15.7, at most 10",
        "a.md: longest is 41, at most 35",
        "a.md: colons is 33, at most 0",
        "a.md: says is 1, at most 0",
        "a.md: above 35 is 1, at most 0",
    ]
    assert [*prose.beyond("a.md", found, {"longest": 41}, PEOPLE)] == []


def test_docstrings_and_messages_are_told_apart() -> None:
    source = '''\
"""A module. It does things."""
NAME = "a-key"
raise ValueError(f"the file {NAME} has no data: write it again")
'''
    docstrings, messages = prose.of_code(source)
    assert [each.text for each in docstrings] == ["A module.", "It does things."]
    assert [each.text for each in messages] == ["the file code has no data: write it again"]


def test_the_last_pattern_that_matches_a_page_counts() -> None:
    rules = {"pages": {"*.md": {"mean": 20}, "docs/*.md": {"mean": 16}}}
    assert prose.limits_of("docs/a.md", rules) == {"mean": 16}
    assert prose.limits_of("README.md", rules) == {"mean": 20}


def test_the_problems_of_a_repository_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "a.md"
    page.write_text("One two three. Four: five.\n", encoding="utf-8")
    assert prose.main(str(page)) == 0
    assert "sentences 2 mean 2.5 longest 3" in capsys.readouterr().out
    monkeypatch.setattr(prose, "problems", lambda root, rules: ["a.md:1: 'anew'; write: again"])
    assert prose.main() == 1
    assert capsys.readouterr().out == "a.md:1: 'anew'; write: again\n"
