"""What can go wrong, in words for the person who ran the command."""

from __future__ import annotations

import re


class ToolchainError(Exception):
    """A failure with a message that says what to do about it."""


def without_hosts(text: str) -> str:
    """Take the names of package indexes and module proxies out of a tool's output.

    They are often private, and what is printed here ends up in public pipeline logs.
    """
    hosts = set(re.findall(r"https?://(?:[^/\s@]*@)?([^/\s:\"']+)", text))
    text = re.sub(r"https?://[^/\s\"']+", "<host>", text)
    for host in hosts:
        text = text.replace(host, "<host>")
    return text
