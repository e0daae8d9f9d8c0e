"""An API call as handlers see it: the request, who sends it, its fields and pages; the answer."""

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs

from localcloud.core.errors import ApiError, error_info, invalid

if TYPE_CHECKING:
    from localcloud.core.discovery import Method


Json = dict[str, Any]
_URL_SAFE = str.maketrans("+/", "-_")
Mask = dict[str, "Mask"]
CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
_SCOPES = "https://www.googleapis.com/auth/"
# A scope that is not a URL of that form.
_MAIL = "https://mail.google.com/"
_TOKEN_PREFIX = "ya29.local-"
_EXPECTED = (
    "Expected OAuth 2 access token, login cookie or other valid authentication credential. See "
    "https://developers.google.com/identity/sign-in/web/devconsole-project."
)
TOKENS = "tokens"
"""The setting that says, by machine, since when its tokens must be; older ones have expired."""
INVALID = f"Request had invalid authentication credentials. {_EXPECTED}"
MISSING = f"Request is missing required authentication credential. {_EXPECTED}"
_LARGEST_PAGE = 1000
compact = json.JSONEncoder(separators=(",", ":")).encode
"""Returns JSON as text without blanks."""
# Clients send an object in one request with its metadata up to 16 MiB, the Go client's chunk.
_LARGEST_BODY = 64 << 20
# Of a mask: a separator where a name must be, or a name right behind a list.
_MALFORMED = re.compile(r"(^|[,/(])([,/()]|$)|\)(?![,)]|$)")


def parse_json(text: bytes) -> Json:
    """Return the JSON object in a body; an empty one for an empty body; 400 for anything else."""
    if not text.strip():
        return {}
    try:
        loaded = json.loads(text)
    except ValueError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from None
    if not isinstance(loaded, dict):
        raise invalid("Invalid JSON payload received. Expected an object.")
    return loaded


class Stream(Protocol):
    """A body that is read piece by piece, so that an object of any size passes."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, all for a negative one; nothing at the end.

        Raises ConnectionError: when the client closed before the end.
        """


@dataclass
class Request:
    """An HTTP request as it came in: path still percent-encoded, body not yet read."""

    verb: str
    host: str
    path: str
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    stream: Stream
    length: int
    """Bytes of the body, or -1 for a chunked one, which `stream` decodes."""

    def read(self) -> bytes:
        """Return the whole body; 413 for one that would take too much memory."""
        body = bytearray()
        while chunk := self.stream.read(1 << 20):
            body += chunk
            if len(body) > _LARGEST_BODY:
                most = _LARGEST_BODY >> 20
                raise ApiError(413, f"the local cloud takes at most {most} MiB in such a request")
        return bytes(body)

    def form(self) -> dict[str, str]:
        """Return the fields of a form body; the last value of each."""
        sent = parse_qs(self.read().decode("utf-8", "replace"))
        return {name: values[-1] for name, values in sent.items()}


@dataclass
class Response:
    """An HTTP response that is not plain JSON with status 200."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    """Bytes of an iterable body."""

    @classmethod
    def of_json(cls, body: Json, status: int = 200) -> "Response":
        """Return a response with `body` as JSON."""
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        return cls(status, compact(body).encode(), headers)


@dataclass
class Call:
    """A request matched to a method of an API."""

    request: Request
    method: "Method"
    params: dict[str, str]
    """Path parameters, percent-decoded, by the names of both `path` and `flatPath`."""
    principal: "Principal"
    body: Json = field(default_factory=dict)
    """The JSON body, validated; empty for uploads, whose handler reads `request.stream`."""
    upload: bool = False
    """The call came in at the method's media upload path."""

    def arg(self, name: str, default: str = "") -> str:
        """Return a query parameter's last value."""
        values = self.request.query.get(name)
        return values[-1] if values else default

    def mask(self) -> list[str]:
        """Return the fields of the update mask in camel case; empty if it was not sent."""
        paths = (path.strip() for path in self.arg("updateMask").split(","))
        return [camel(path) for path in paths if path]

    def sent(self, fields: Iterable[str]) -> Json:
        """Return those of the fields that the body has."""
        return {field: self.body[field] for field in fields if field in self.body}

    def flag(self, name: str) -> bool:
        """Return a boolean query parameter."""
        return self.arg(name).lower() == "true"

    def number(self, name: str) -> int | None:
        """Return an integer query parameter, or None when it was not sent.

        Raises ApiError: 400 when it is not an integer.
        """
        value = self.arg(name)
        if not value:
            return None
        if not re.fullmatch(r"-?\d{1,19}", value):
            raise invalid(f"Invalid value for {name}: {value!r} is not an integer.")
        return int(value)

    @property
    def project(self) -> str:
        """The project that the path names, or the empty string."""
        # Where a path parameter has both, `project` is the whole `projects/ID`.
        for key in ("projectsId", "project", "projectId"):
            if key in self.params:
                return self.params[key]
        return ""


def same_bytes(one: str | None, other: str | None) -> bool:
    """Return whether two values of a field of the format `byte` are the same.

    Google's APIs take both alphabets of base64: gcloud sends what it got in the URL-safe one
    (`_SafeEncodeBytes` in apitools/base/py/encoding_helper.py).
    """
    return (one or "").translate(_URL_SAFE) == (other or "").translate(_URL_SAFE)


def camel(name: str) -> str:
    """Return a field's name in JSON: clients may write `display_name` for `displayName`."""
    return re.sub("_(.)", lambda found: found[1].upper(), name)


def parse_mask(text: str) -> Mask:
    """Return the mask `a,b(c,d/e)` as a tree; an empty subtree means everything below.

    Raises ValueError: for a mask of another form.
    """
    tree: Mask = {}
    lists, below = [tree], tree
    for token in re.findall(r"[^,/()]+|[,/()]", text):
        if token == "(":
            lists.append(below)
        elif token in ",)":
            if token == ")" and len(lists) > 1:
                lists.pop()
            below = lists[-1]
        elif token != "/":
            below = below.setdefault(token.strip(), {})
    if _MALFORMED.search(text) or text.count("(") != text.count(")") or len(lists) > 1:
        raise ValueError(f"Invalid field selection {text}")
    return tree


def apply_mask(mask: Mask, value: Any) -> Any:
    """Return the parts of `value` that `mask` names."""
    if not mask or "*" in mask:
        return value
    if isinstance(value, list):
        return [apply_mask(mask, item) for item in value]
    if isinstance(value, dict):
        return {key: apply_mask(mask[key], item) for key, item in value.items() if key in mask}
    return value


def is_scope(text: str) -> bool:
    """Return whether `text` has the form of Google's OAuth scopes."""
    return text.startswith(_SCOPES) or text == _MAIL


@dataclass(frozen=True)
class Principal:
    """Who calls: an IAM member (`user:…`, `serviceAccount:…`) and its token's scopes."""

    member: str
    scopes: frozenset[str] = field(default_factory=lambda: frozenset({CLOUD_PLATFORM}))
    sets: frozenset[str] = frozenset()
    """The sets (`principalSet:…`) by which a policy may mean a federated identity, too."""
    own_client: bool = False
    """A person's token came by an OAuth client of their own, whose project calls count against."""

    @property
    def email(self) -> str:
        """The member's e-mail address."""
        return self.member.partition(":")[2]


ANONYMOUS = Principal("allUsers", frozenset())


class Tokens:
    """Issues and reads access tokens: their claims in base64 and a signature, no list of them.

    Nothing has to be stored, and a token stays good over a restart.

    Args:
        secret: the signing key, kept with the emulator's state.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        # A client sends the same one with each call.
        self._verified = lru_cache(maxsize=256)(self._verify)

    def issue(
        self, principal: Principal, *, issued: float, expires: float, machine: str = ""
    ) -> str:
        """Return a bearer token.

        Args:
            principal: whose it is.
            issued: seconds since the epoch.
            expires: until when it is valid, in the same way.
            machine: the machine whose metadata server gave it out; empty for none.
        """
        claims = {"m": principal.member, "s": sorted(principal.scopes), "i": issued, "e": expires}
        if machine:
            claims["h"] = machine
        if principal.sets:
            claims["g"] = sorted(principal.sets)
        if principal.own_client:
            claims["c"] = True
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()
        return f"{_TOKEN_PREFIX}{payload}.{self._sign(payload)}"

    def read(
        self, token: str, *, now: float, since: Mapping[str, float] | None = None
    ) -> Principal:
        """Return the principal of `token`; a machine's from before `since` has expired.

        Raises ApiError: 401 when the token is not the emulator's, was altered or has expired.
        """
        claims, principal = self._verified(token)
        earliest = (since or {}).get(claims.get("h", ""), 0.0)
        if claims["e"] <= now or claims.get("i", 0.0) < earliest:
            raise unauthenticated(INVALID, "ACCESS_TOKEN_EXPIRED")
        return principal

    def _verify(self, token: str) -> tuple[dict[str, Any], Principal]:
        payload, _, signature = token.removeprefix(_TOKEN_PREFIX).rpartition(".")
        if not token.startswith(_TOKEN_PREFIX) or not hmac.compare_digest(
            signature, self._sign(payload)
        ):
            raise unauthenticated(INVALID, "ACCESS_TOKEN_TYPE_UNSUPPORTED")
        claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(payload))
        sets, own = frozenset(claims.get("g", ())), bool(claims.get("c"))
        return claims, Principal(claims["m"], frozenset(claims["s"]), sets, own)

    def _sign(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode(), hashlib.sha256).hexdigest()[:40]


def unauthenticated(message: str, reason: str = "CREDENTIALS_MISSING") -> ApiError:
    """Return a 401 with a reason of google.api.ErrorReason."""
    return ApiError(401, message, details=[error_info(reason)])


def page(call: Call, field: str, items: list[Json], *, size: int = 100) -> Json:
    """Return one page of `items` under the name `field`, as the call's parameters ask for it.

    Args:
        call: the list call.
        field: of the response, such as `nodes`; left out when the page is empty.
        items: all of them, in the order in which they are shown.
        size: how many a page has when the caller doesn't say.
    """
    # Older APIs call the size `maxResults`.
    size = min(call.number("pageSize") or call.number("maxResults") or size, _LARGEST_PAGE)
    token = call.arg("pageToken")
    if size < 0 or (token and not token.isdigit()):
        raise invalid("Request contains an invalid argument: page size or token.")
    return cut(field, items, token, size)


def cut(field: str, items: list[Json], token: str, size: int) -> Json:
    """Return `size` items from the one on that `token` names, and the token of the next page."""
    begin = int(token or 0)
    result: Json = {field: items[begin : begin + size]} if items[begin : begin + size] else {}
    if begin + size < len(items):
        result["nextPageToken"] = str(begin + size)
    return result
