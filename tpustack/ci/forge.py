"""Comments and issues on GitHub and GitLab, each written once and then updated."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tpustack.ci.api import Api

LABEL = "drift"


@dataclass(frozen=True)
class Text:
    """A comment or an issue of the forge."""

    id: int
    body: str
    author: str


@dataclass(frozen=True)
class Previewed:
    """A request: its number, and the files of its last previews, a zip archive for each stack."""

    request: int
    archives: Mapping[str, bytes]


def comment(forge: Forge, request: int, texts: Mapping[str, str]) -> None:
    """Write each text, which begins with its marker, over our own one with the same marker.

    What somebody else wrote is left alone, whatever it begins with.
    """
    there = _ours(forge, forge.comments(request))
    for body in texts.values():
        known = there.get(_marker(body))
        if known is None:
            forge.add_comment(request, body)
        elif known.body.strip() != body.strip():
            forge.change_comment(request, known.id, body)


def issue(forge: Forge, texts: Mapping[str, str], drifted: set[str]) -> None:
    """Open or update an issue for each stack that drifted; close those of the others."""
    there = _ours(forge, forge.issues())
    for stack, body in texts.items():
        known = there.get(_marker(body))
        if known is not None:
            forge.change_issue(known.id, body, closed=stack not in drifted)
        elif stack in drifted:
            forge.add_issue(f"Drift of stack {stack}", body)


def _ours(forge: Forge, texts: Iterator[Text]) -> dict[str, Text]:
    """Return by their markers the texts that we wrote."""
    us = forge.login()
    return {_marker(each.body): each for each in texts if each.author == us}


class Forge(ABC):
    """Comments and open issues of one repository; a subclass says what its forge calls them."""

    comments_path: str
    comment_path: str
    change_verb: str
    issue_number: str
    issue_body: str
    author: str
    login_name: str
    open_state: str
    labels: ClassVar[str | list[str]]
    closing: ClassVar[Mapping[bool, Mapping[str, str]]]
    run: re.Pattern[str]
    ended: ClassVar[frozenset[str]]

    def __init__(self, api: Api) -> None:
        self._api = api

    def comments(self, request: int) -> Iterator[Text]:
        """Yield the comments of a request."""
        for each in self._api.all(self.comments_path.format(request=request)):
            yield self._text(each, "id", "body")

    def add_comment(self, request: int, body: str) -> None:
        """Write a new comment."""
        self._api.send("POST", self.comments_path.format(request=request), body=body)

    def change_comment(self, request: int, comment: int, body: str) -> None:
        """Replace the text of a comment."""
        path = self.comment_path.format(request=request, comment=comment)
        self._api.send(self.change_verb, path, body=body)

    def issues(self) -> Iterator[Text]:
        """Yield the open issues with the label LABEL."""
        for each in self._api.all("/issues", state=self.open_state, labels=LABEL):
            yield self._text(each, self.issue_number, self.issue_body)

    def add_issue(self, title: str, body: str) -> None:
        """Open an issue with the label LABEL."""
        fields = {"title": title, self.issue_body: body, "labels": self.labels}
        self._api.send("POST", "/issues", **fields)

    def change_issue(self, issue: int, body: str, *, closed: bool) -> None:
        """Replace the text of an issue, and close it if told to."""
        fields = {self.issue_body: body, **self.closing[closed]}
        self._api.send(self.change_verb, f"/issues/{issue}", **fields)

    def has_ended(self, run: str) -> bool:
        """Return whether a run of this repository, which somebody has written down, has ended."""
        path = self._api.path_of(run)
        found = self._api.find(path) if self.run.fullmatch(path) else None
        return (found or {}).get("status") in self.ended

    def _text(self, found: Mapping[str, Any], number: str, body: str) -> Text:
        # GitHub keeps the comments of accounts that are gone, without an author.
        author = (found.get(self.author) or {}).get(self.login_name, "")
        return Text(found[number], found[body] or "", author)

    @abstractmethod
    def login(self) -> str:
        """Return the name of the account that our token writes as."""

    @abstractmethod
    def opened(self) -> Iterator[tuple[int, Callable[[], Previewed | None]]]:
        """Yield each open request that nothing else comments on, and what asks for its preview."""

    @abstractmethod
    def unprotected(self, environment: str) -> tuple[list[str], list[str]]:
        """Return what an environment lacks that its approval needs, and what weakens that.

        Raises Refused where our token may not see it.
        """

    @abstractmethod
    def reviewed(self, commit: str) -> Previewed | None:
        """Return what was previewed in the request that brought a commit; None without one."""


def _marker(body: str) -> str:
    return body.strip().partition("\n")[0].strip()
