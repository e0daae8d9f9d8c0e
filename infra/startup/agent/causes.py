"""Tell apart why Google does not give a TPU, and what helps."""

from __future__ import annotations

from dataclasses import dataclass

from .google import Json, message

_INVALID, _EXHAUSTED = (3, 400), (8, 429)
_DENIED, _UNAUTHENTICATED = (7, 403), (16, 401)


@dataclass(frozen=True)
class Cause:
    """Why a TPU could not be made.

    Attributes:
        name: such as `stock-out`.
        said: Google's own words.
        cure: what a person can do; empty where waiting helps.
        passes: whether to try again.
    """

    name: str
    said: str
    cure: str = ""
    passes: bool = True

    def __str__(self) -> str:
        return f"{self.name} ({self.said}){f': {self.cure}' if self.cure else ''}"


def cause_of(code: int, answer: Json) -> Cause:
    """Return what a refusal means; `code` is an HTTP status or that of an operation's error."""
    said = message(answer)
    low = said.lower()
    if "quota" in low and code in _EXHAUSTED:
        return Cause("quota", said, "ask Google for more, or delete what holds it")
    if "capacity" in low or code in _EXHAUSTED:
        return Cause("stock-out", said)
    if "has not been used" in low or "is disabled" in low or "SERVICE_DISABLED" in str(answer):
        return Cause("disabled API", said, "run `gcloud services enable tpu.googleapis.com`")
    if code in _DENIED:
        return Cause("permission", said, "run `pulumi up`, which grants what the agent needs")
    if code in _UNAUTHENTICATED:
        return Cause("credentials", said)
    if code in _INVALID:
        return Cause("invalid", said, "correct the stack and run `pulumi up`", passes=False)
    return Cause("unavailable", said)
