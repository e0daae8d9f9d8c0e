"""Checks of the project's id and of names."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.parse import PROJECT_KEY
from infra.settings.problems import UNSET, Problem

_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
# What the stack files of this repository say (stacks/).
_EXAMPLES = ("my-project-dev", "my-project-staging", "my-project-prod")
_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]")
# A service account's id has 6 to 30 characters: the shortest limit of all names.
_SHORTEST_ID, _LONGEST_ID = 6, 30
LONGEST_PREFIX = _LONGEST_ID - len("-sa")
_SHORTEST_PREFIX = _SHORTEST_ID - len("-sa")


def is_project_id(text: str) -> bool:
    """Return whether a text has the form of a project's id."""
    return _PROJECT.fullmatch(text) is not None


def check_project(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the project's id has the form of Google's ids and is not an example's."""
    if settings.project in _EXAMPLES:
        yield Problem(
            PROJECT_KEY,
            settings.project,
            "stands in the example for a project of yours",
            f"Run `pulumi config set {PROJECT_KEY} YOUR-PROJECT --stack {context.stack}`, or make "
            "a stack of your own with `tpustack init NAME`",
        )
    if not is_project_id(settings.project):
        yield Problem(
            PROJECT_KEY,
            settings.project,
            "is no project id (6 to 30 lower-case letters, digits and hyphens, a letter first)",
            "Use the id, not the name or the number: `gcloud projects list` shows it",
        )


def check_prefix(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the prefix leaves room for the longest of all names (RFC 1035)."""
    if settings.owner and settings.name_prefix:
        yield Problem(
            "owner",
            settings.owner,
            f"is part of no name, because namePrefix is {settings.name_prefix!r}",
            "Remove one of the two",
        )
    prefix = context.names.prefix
    value = settings.name_prefix or UNSET
    said = "" if settings.name_prefix else f" and would be {prefix!r}, which"
    if not _NAME.fullmatch(prefix):
        yield Problem(
            "namePrefix",
            value,
            f"{said} is no name for resources (lower-case letters, digits and hyphens, a letter "
            "first, no hyphen last)".strip(),
            "Set one like tpu-stack-dev",
        )
    elif not _SHORTEST_PREFIX <= len(prefix) <= LONGEST_PREFIX:
        yield Problem(
            "namePrefix",
            value,
            f"{said} has {len(prefix)} characters, but a service account's id, which begins with "
            f"it, has {_SHORTEST_ID} to {_LONGEST_ID}".strip(),
            f"Set one of {_SHORTEST_PREFIX} to {LONGEST_PREFIX} characters",
        )


def check_bucket_name(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the bucket's name follows Google's rules."""
    name = context.names.bucket
    value = settings.bucket.name or UNSET
    said = "" if settings.bucket.name else f" and would be {name!r}, which"
    if not _BUCKET.fullmatch(name):
        why = (
            "is no bucket name (3 to 63 lower-case letters, digits, hyphens, dots and underscores)"
        )
    elif settings.bucket.create and "." in name:
        why = "has a dot: only who owns a domain can make a bucket that is called like it"
    elif name.startswith("goog") or "google" in name:
        why = 'has "goog" first or "google" in it, which Google keeps for itself'
    else:
        return
    if not settings.bucket.name and any(check_project(settings, context)):
        return  # The name is wrong because the project is.
    yield Problem("bucket.name", value, f"{said} {why}".strip(), "Set one like my-project-tpu-data")
