"""Listing a bucket: prefixes, delimiters, offsets, globs and pages."""

from __future__ import annotations

import base64
import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from localcloud.core.errors import invalid

Position = tuple[str, int, int]
"""Where an entry stands in a list: its name, 0 for a prefix and 1 for an object, generation."""


@dataclass(frozen=True)
class Listing:
    """What a list call asks for; the fields are the API's parameters."""

    prefix: str = ""
    delimiter: str = ""
    start_offset: str = ""
    end_offset: str = ""
    match_glob: str = ""
    include_trailing_delimiter: bool = False

    def entries(self, keys: list[tuple[str, int]], after: Position | None) -> Iterator[Position]:
        """Return the entries behind `after`, in order.

        Args:
            keys: sorted names and generations of all versions that may be listed.
            after: the last entry of the page before, or None.
        """
        glob = compile_glob(self.match_glob) if self.match_glob else None
        first = max(self.prefix, self.start_offset, after[0] if after else "")
        seen = ""
        for name, generation in keys[bisect_left(keys, (first, -1)) :]:
            if not name.startswith(self.prefix) or (self.end_offset and name >= self.end_offset):
                return
            for entry in self._entries_of(name, generation):
                if entry[1] == 0 and entry[0] == seen:
                    continue
                seen = entry[0] if entry[1] == 0 else seen
                if (after is None or entry > after) and (not glob or glob.fullmatch(entry[0])):
                    yield entry

    def _entries_of(self, name: str, generation: int) -> Iterator[Position]:
        end = name.find(self.delimiter, len(self.prefix)) if self.delimiter else -1
        if end < 0:
            yield name, 1, generation
            return
        folder = name[: end + len(self.delimiter)]
        yield folder, 0, 0
        if self.include_trailing_delimiter and name == folder:
            yield name, 1, generation


def encode_token(position: Position) -> str:
    """Return the page token for the entries behind `position`."""
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def decode_token(token: str) -> Position | None:
    """Return the position in a page token, or None for no token.

    Raises:
        ApiError: 400 when it is none of ours.
    """
    if not token:
        return None
    try:
        name, kind, generation = json.loads(base64.urlsafe_b64decode(token))
        return str(name), int(kind), int(generation)
    except (ValueError, TypeError):
        raise invalid(f"Invalid page token: {token}") from None


@lru_cache(maxsize=64)
def compile_glob(glob: str) -> re.Pattern[str]:
    """Return a glob of Cloud Storage as a regular expression.

    `*` and `?` stop at slashes, `**` doesn't; `[…]` is a set, `{a,b}` alternatives, a backslash
    takes the next character as it is
    (cloud.google.com/storage/docs/json_api/v1/objects/list#list-objects-and-prefixes-using-glob).

    Raises:
        ApiError: 400 when it can't be read.
    """
    tokens = re.findall(r"\*\*|\\.|\[[!^]?\]?[^\]]*\]|.", glob, re.DOTALL)
    depth = 0
    parts: list[str] = []
    for token in tokens:
        if token == "{":
            depth += 1
        elif token == "}":
            depth -= 1
        parts.append(_translate(token, depth))
    try:
        if depth:
            raise re.error("unbalanced braces")
        return re.compile("".join(parts), re.DOTALL)
    except re.error as error:
        raise invalid(f"Invalid glob pattern '{glob}': {error}.") from None


def _translate(token: str, depth: int) -> str:
    plain = {"**": ".*", "*": "[^/]*", "?": "[^/]", "{": "(?:", "}": ")"}
    if token in plain:
        return plain[token]
    if token == "," and depth:
        return "|"
    if len(token) > 2 and token.startswith("["):
        inner = token[1:-1]
        inverted = inner[0] in "!^"
        body = (inner[1:] if inverted else inner).replace("\\", r"\\").replace("[", r"\[")
        body = body.replace("]", r"\]")
        return f"[^/{body}]" if inverted else f"(?!/)[{body}]"
    return re.escape(token[1:] if len(token) == 2 and token.startswith("\\") else token)
