"""Tell apart why Google does not give a TPU, and what helps."""

import re
from dataclasses import dataclass

from tpu_core.google import HIDDEN, Json, message

_INVALID, _EXHAUSTED = (3, 400, 5, 404), (8, 429)
_DENIED, _UNAUTHENTICATED = (7, 403), (16, 401)
# 'The field "TensorflowVersion" cannot be "2.4"' (tensorflow/tpu, issue 877). What Google says of
# an unknown runtime has not been seen.
_VERSION = re.compile(r"(runtime|tensorflow|software)[ _]?version")
# "Maximum number of CreateNode requests per minute" (marin-community/marin, pull 6198), and the
# reason that Google's APIs have for it (google/api/error_reason.proto).
_RATE = ("per minute", "rate_limit_exceeded")
_OTHER_ZONE = (
    "enable AI zones (docs/capacity.md#ai-zones), or remove the zone from the stack and run "
    "`pulumi up`"
)
_OTHER_VERSION = (
    "set tpu.runtimeVersion (tpu.tensorflowVersion of a TPU Node) to one that `tpustack check "
    "--live` finds, and run `pulumi up`"
)


CAUSES = {
    "too many calls": ("too many calls in a minute", "", True),
    "quota": ("the quota is used up", "request more from Google, or delete what uses it", True),
    "stock-out": ("the zone has no capacity", "", True),
    "disabled API": (
        "the project has the API disabled",
        "run `gcloud services enable tpu.googleapis.com`",
        True,
    ),
    "zone": ("the project can't see the zone", _OTHER_ZONE, False),
    "permission": (
        "the machine's service account may not create it",
        "run `pulumi up`, which grants the agent's roles",
        True,
    ),
    "credentials": ("the metadata server gave no valid token", "", True),
    "version": ("Google doesn't offer the runtime", _OTHER_VERSION, False),
    "invalid": ("Google rejects the request", "correct the stack file and run `pulumi up`", False),
    "unavailable": ("Google's API fails", "", True),
}
"""By name: what it means, what a person can do (nothing: waiting helps), whether to try again."""


@dataclass(frozen=True)
class Cause:
    """Why a TPU could not be made.

    Attributes:
        name: one of CAUSES.
        said: Google's own words.
        cure: what a person can do; empty where waiting helps.
        passes: whether to try again.
    """

    name: str
    said: str
    cure: str
    passes: bool

    def __str__(self) -> str:
        return f"{self.name} ({self.said}){f': {self.cure}' if self.cure else ''}"


def cause_of(code: int, answer: Json) -> Cause:
    """Return what a refusal means; `code` is an HTTP status or that of an operation's error."""
    text = message(answer)
    name = _name(code, text, str(answer).lower())
    _, cure, passes = CAUSES[name]
    return Cause(name, text, cure, passes)


def _name(code: int, text: str, whole: str) -> str:
    low = text.lower()
    # From the narrowest cause to the widest: 429 alone is a rate, a quota or a stock-out.
    if code in _EXHAUSTED and any(word in whole for word in _RATE):
        return "too many calls"
    if "quota" in low and code in _EXHAUSTED:
        return "quota"
    if "capacity" in low or code in _EXHAUSTED:
        return "stock-out"
    if "has not been used" in low or "is disabled" in low or "service_disabled" in whole:
        return "disabled API"
    if code in _DENIED:
        return "zone" if HIDDEN in text else "permission"
    if code in _UNAUTHENTICATED:
        return "credentials"
    if code in _INVALID:
        return "version" if _VERSION.search(low) else "invalid"
    return "unavailable"


SHORTAGES = ("stock-out", "quota")
"""Causes that another zone may not have."""
