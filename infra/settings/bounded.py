"""YAML that somebody else wrote: read without harm, however deep or large it says to be.

PyYAML's loader in C ends the process where lists nest a hundred thousand deep, and a few lines with
aliases can stand for more values than any memory holds.
"""

from __future__ import annotations

from typing import Any

import yaml

# The C loader is some ten times as fast; wheels of PyYAML for a few platforms come without it.
Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The largest of our stack files has some hundred values, five deep.
DEEPEST, MOST = 50, 20_000


def load(text: str) -> Any:
    """Return the document in a text. Raises YAMLError if it is none, too deep or too large."""
    depth = 0
    for event in yaml.parse(text, Loader=Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise yaml.YAMLError(f"it nests more than {DEEPEST} deep")
    try:
        document = yaml.load(text, Loader=Loader)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        # A date that is none, or a value that is not of the type that its tag names.
        raise yaml.YAMLError(f"it has a value that is none ({error})") from None
    _require_bounded(document)
    return document


def _require_bounded(document: object) -> None:
    waiting, seen = [(document, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        seen += 1
        if seen > MOST:
            raise yaml.YAMLError(f"it has more than {MOST} values, aliases counted each time")
        if depth > DEEPEST:
            raise yaml.YAMLError(f"it nests more than {DEEPEST} deep, or in itself")
        if isinstance(value, dict):
            waiting += [(each, depth + 1) for pair in value.items() for each in pair]
        elif isinstance(value, (list, tuple, set)):
            waiting += [(each, depth + 1) for each in value]
