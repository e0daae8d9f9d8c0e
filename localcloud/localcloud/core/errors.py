"""Errors in the shape in which Google's APIs return them (google.aip.dev/193)."""

from typing import Any

_CONSOLE = "https://console.developers.google.com"
# By HTTP status: the canonical status, and the short reason in `errors[]`.
_DEFAULTS = {
    400: ("INVALID_ARGUMENT", "invalid"),
    401: ("UNAUTHENTICATED", "authError"),
    403: ("PERMISSION_DENIED", "forbidden"),
    404: ("NOT_FOUND", "notFound"),
    409: ("ALREADY_EXISTS", "conflict"),
    411: ("INVALID_ARGUMENT", "required"),
    412: ("FAILED_PRECONDITION", "conditionNotMet"),
    413: ("INVALID_ARGUMENT", "uploadTooLarge"),
    416: ("OUT_OF_RANGE", "requestedRangeNotSatisfiable"),
    429: ("RESOURCE_EXHAUSTED", "rateLimitExceeded"),
    500: ("INTERNAL", "backendError"),
    501: ("UNIMPLEMENTED", "notImplemented"),
    503: ("UNAVAILABLE", "backendError"),
    504: ("DEADLINE_EXCEEDED", "backendError"),
    507: ("RESOURCE_EXHAUSTED", "insufficientStorage"),
}
# How APIs write errors, as recorded from Google (2024-26), and as its Go client prints them, which
# ends with the reason where `errors[]` has one (issues 2760 and 9375 of github.com/hashicorp/
# terraform-provider-google). APIs that are named here neither way have a status and no `errors[]`.
# The old ones have `errors[]`, and a status only where Google's front end refuses, with details.
OLD = frozenset({"compute", "storage"})
_BOTH = frozenset({"cloudbilling", "cloudresourcemanager", "iam", "serviceusage"})
# By canonical status: the reason in `errors[]` of the APIs that have both.
_REASONS = {
    "INVALID_ARGUMENT": "badRequest",
    "FAILED_PRECONDITION": "failedPrecondition",
    "ALREADY_EXISTS": "alreadyExists",
    "ABORTED": "aborted",
}
_CODES = (
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS "
    "PERMISSION_DENIED RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED "
    "INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"
)
RPC_CODE = {name: number for number, name in enumerate(_CODES.split())}
"""google.rpc.Code of the canonical statuses, for gRPC and errors inside long-running operations."""


class ApiError(Exception):
    """An API call that fails.

    Args:
        code: HTTP status.
        message: what Google says, word for word where clients look for it.
        status: canonical status; by default the one that belongs to `code`.
        reason: the short reason in `errors[]`; by default the one that belongs to `code`.
        details: entries of `error.details`, such as a google.rpc.ErrorInfo.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        status: str | None = None,
        reason: str | None = None,
        details: list[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        usual_status, usual_reason = _DEFAULTS.get(code, ("UNKNOWN", "unknown"))
        # Only a reason that a caller has given outweighs the one by status in `_old`.
        self.status = status or usual_status
        self.reason = reason or usual_reason
        self.details = details or []
        self._own_reason = reason

    def body(self, api: str = "") -> dict[str, Any]:
        """Return the JSON body of an API's HTTP response."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if api in OLD | _BOTH:
            error["errors"] = [self._old(api)]
        if api not in OLD or self.details:
            error["status"] = self.status
        if self.details:
            error["details"] = self.details
        return {"error": error}

    def _old(self, api: str) -> dict[str, str]:
        reason = self.reason
        if api in _BOTH and not self._own_reason:
            reason = _REASONS.get(self.status, reason)
        entry = {"message": self.message, "domain": "global", "reason": reason}
        if reason == "accessNotConfigured":
            entry |= {"domain": "usageLimits", "extendedHelp": _CONSOLE}
        if reason == "conditionNotMet":
            entry |= {"location": "If-Match", "locationType": "header"}
        return entry

    def rpc_status(self) -> dict[str, Any]:
        """Return the google.rpc.Status for a long-running operation that failed."""
        return {"code": RPC_CODE.get(self.status, 2), "message": self.message}


def error_info(reason: str, domain: str = "googleapis.com", **metadata: str) -> dict[str, Any]:
    """Return a google.rpc.ErrorInfo for the details of an error."""
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    info: dict[str, Any] = {"@type": kind, "reason": reason, "domain": domain}
    return info | ({"metadata": metadata} if metadata else {})


def not_found(what: str) -> ApiError:
    """Return the 404 for a resource by its full name."""
    return ApiError(404, f"The resource '{what}' was not found")


def failed_precondition(message: str) -> ApiError:
    """Return the 400 for a call that the state of its resource forbids."""
    return ApiError(400, message, status="FAILED_PRECONDITION")


def invalid(message: str) -> ApiError:
    """Return a 400 with `message`."""
    return ApiError(400, message)
