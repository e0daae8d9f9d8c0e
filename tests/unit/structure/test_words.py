"""What we ship avoids words that a native engineer would not use there."""

from __future__ import annotations

import re
import subprocess

from tests.unit.structure.modules import ROOT

# The word, and what to say instead.
WORDS = {
    "anew": "recreate, rewrite, again",
    "beside": "next to, with, as well as",
    "by itself": "automatically, alone",
    "can't be had": "is unavailable, failed",
    "for want of": "for lack of",
    "goes on": "continues, keeps running",
    "lies in": "is in",
    "meanwhile": "in the meantime, or nothing",
    "nobody": "no one, nothing, or name who",
    "somebody": "someone, or name who",
    "whoever": "anyone who",
}
# What we ship to users and maintainers; Google's own words are data.
SHIPPED = re.compile(r"\.(css|html|ipynb|js|md|py|sh|toml|ya?ml)$")
OTHERS = ("CHANGELOG.md", "localcloud/localcloud/data/", "tests/")
_PATTERN = re.compile(rf"\b({'|'.join(map(re.escape, WORDS))})\b", re.IGNORECASE)


def refused(path: str, text: str) -> list[str]:
    """Say where a text has one of the words."""
    return [
        f"{path}:{row}: {found[1]!r}; say: {WORDS[found[1].lower()]}"
        for row, line in enumerate(text.splitlines(), 1)
        for found in _PATTERN.finditer(line)
    ]


def test_no_text_that_we_ship_has_a_word_of_the_list() -> None:
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.splitlines()
    shipped = [name for name in names if SHIPPED.search(name) and not name.startswith(OTHERS)]
    assert len(shipped) > 300
    problems = [
        problem
        for name in shipped
        if (ROOT / name).is_file()
        for problem in refused(name, (ROOT / name).read_text(encoding="utf-8"))
    ]
    assert problems == []


def test_a_word_of_the_list_is_named_with_what_to_say_instead() -> None:
    assert refused("a.md", "It is\nmade Anew.") == ["a.md:2: 'Anew'; say: recreate, rewrite, again"]
