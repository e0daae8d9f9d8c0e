"""Google's rules for the names of buckets and objects."""

from __future__ import annotations

import ipaddress
import re

from localcloud.core.errors import ApiError, invalid

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]*[a-z0-9]")
_LABEL_LENGTH = 63
_WHOLE_LENGTH = 222


def check_bucket_name(name: str) -> None:
    """Refuse a name that no bucket may have (cloud.google.com/storage/docs/buckets#naming).

    Raises:
        ApiError: 400 with the rule that is broken; 403 for a domain name, which takes a proof
            of ownership.
    """
    problem = _bucket_problem(name)
    if problem:
        raise invalid(f"Invalid bucket name: '{name}': {problem}.")
    if "." in name:
        raise ApiError(
            403,
            f"The bucket name '{name}' is a domain name: you must verify site or domain ownership "
            "at https://search.google.com/search-console.",
        )


def check_object_name(name: str) -> None:
    """Refuse a name that no object may have (cloud.google.com/storage/docs/objects#naming).

    Raises:
        ApiError: 400 with the rule that is broken.
    """
    problem = _object_problem(name)
    if problem:
        raise invalid(f"Invalid object name: {name[:80]!r}: {problem}.")


def _bucket_problem(name: str) -> str:
    length = _WHOLE_LENGTH if "." in name else _LABEL_LENGTH
    if not 3 <= len(name) <= length:
        return f"it must have 3 to {length} characters"
    if not _BUCKET.fullmatch(name):
        return (
            "it may hold lower-case letters, digits, dashes, underscores and dots, and must begin "
            "and end with a letter or digit"
        )
    if any(not label or len(label) > _LABEL_LENGTH for label in name.split(".")):
        return f"each part between dots must have 1 to {_LABEL_LENGTH} characters"
    if name.startswith("goog") or "google" in name or "g00gle" in name:
        return "it must not begin with 'goog' nor contain 'google' or something close to it"
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return ""
    return "it must not look like an IP address"


def _object_problem(name: str) -> str:
    if not name:
        return "it must not be empty"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "it must be valid Unicode"
    if size > 1024:
        return "it must not be longer than 1024 bytes in UTF-8"
    if "\n" in name or "\r" in name:
        return "it must not contain a line feed or carriage return"
    if name in (".", ".."):
        return "it must not be '.' or '..'"
    if name.startswith(".well-known/acme-challenge/"):
        return "it must not begin with '.well-known/acme-challenge/'"
    return ""
