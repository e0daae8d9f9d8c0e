"""The answer to one question to Google, and the questions' order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit

from infra.checks.context import Context
from infra.settings import StackSettings
from tpustack.cloud.google import Forbidden, Google, says_disabled
from tpustack.errors import TpustackError

_PROJECT = "https://cloudresourcemanager.googleapis.com/v1/projects/{}"
OK = "ok"
WARNING = "warning"
WRONG = "wrong"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Finding:
    """One line of the table.

    Attributes:
        about: what was asked about, such as `quota`.
        state: `ok`, `warning`, `wrong` (`pulumi up` would fail) or `unknown` (Google did not say).
        said: what was found.
        cure: what to do; empty if all is fine.
    """

    about: str
    state: str
    said: str
    cure: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the finding for programs."""
        return asdict(self)


@dataclass(frozen=True)
class Asked:
    """Whom and about what the questions are."""

    google: Google
    settings: StackSettings
    context: Context
    _known: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def project(self) -> str:
        """The project that everything would be made in."""
        return self.settings.project

    def look(self, url: str) -> dict[str, Any]:
        """Return what is at `url`, which several questions need and one asks for."""
        if url not in self._known:
            self._known[url] = self.google.get(url)
        return self._known[url]

    def record(self) -> dict[str, Any]:
        """Return Google's record of the project."""
        return self.look(_PROJECT.format(self.project))


Question = Callable[[Asked], Iterator[Finding]]


def _refused(about: str, error: Forbidden, project: str) -> Finding:
    """Return why a question got no answer: its API is off, or the caller may not ask it."""
    api = urlsplit(str(error).partition(" ")[0]).hostname
    if says_disabled(error) and api:
        said = f"cannot be asked before {api} is enabled"
        return Finding(about, WARNING, said, f"`gcloud services enable {api} --project {project}`")
    return Finding(about, UNKNOWN, str(error), "Let somebody look who may")


def answers(about: str, question: Question, asked: Asked) -> list[Finding]:
    """Return the findings of a question; one that says why, where Google does not answer."""
    found: list[Finding] = []
    try:
        found.extend(question(asked))
    except Forbidden as error:
        found.append(_refused(about, error, asked.project))
    except TpustackError as error:
        found.append(Finding(about, UNKNOWN, str(error), "Try again"))
    return found
