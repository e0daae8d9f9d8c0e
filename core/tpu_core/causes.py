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
    text = message(answer)
    low, whole = text.lower(), str(answer).lower()
    # From the narrowest cause to the widest: 429 alone is a rate, a quota or a stock-out.
    if code in _EXHAUSTED and any(word in whole for word in _RATE):
        return Cause("too many calls", text)
    if "quota" in low and code in _EXHAUSTED:
        return Cause("quota", text, "request more from Google, or delete what uses it")
    if "capacity" in low or code in _EXHAUSTED:
        return Cause("stock-out", text)
    if "has not been used" in low or "is disabled" in low or "service_disabled" in whole:
        return Cause("disabled API", text, "run `gcloud services enable tpu.googleapis.com`")
    if code in _DENIED and HIDDEN in text:
        return Cause("zone", text, _OTHER_ZONE, passes=False)
    if code in _DENIED:
        return Cause("permission", text, "run `pulumi up`, which grants the agent's roles")
    if code in _UNAUTHENTICATED:
        return Cause("credentials", text)
    if code in _INVALID and _VERSION.search(low):
        return Cause("version", text, _OTHER_VERSION, passes=False)
    if code in _INVALID:
        return Cause("invalid", text, "correct the stack file and run `pulumi up`", passes=False)
    return Cause("unavailable", text)


SHORTAGES = ("stock-out", "quota")
"""Causes that another zone may not have."""
