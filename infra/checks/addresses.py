"""Checks of what budgets and messages have in common: e-mail addresses, and names of topics."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from infra.settings.problems import Problem

_EMAIL = re.compile(r"[^@\s]+@[^@\s.]+(\.[^@\s.]+)+")
_TOPIC = re.compile(r"(projects/[^/]+/topics/)?(?!goog)[A-Za-z][\w.~+%-]{2,254}", re.ASCII)


def is_topic(name: str) -> bool:
    """Return whether a topic may be called so."""
    return _TOPIC.fullmatch(name) is not None


def email_problems(setting: str, addresses: Sequence[str]) -> Iterator[Problem]:
    """Yield what is wrong with addresses."""
    for address in addresses:
        if not _EMAIL.fullmatch(address):
            yield Problem(setting, address, "is no e-mail address", "Use one like me@example.com")
    if len(set(addresses)) < len(addresses):
        yield Problem(setting, list(addresses), "has one twice", "Name each of them once")
