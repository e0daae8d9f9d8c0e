"""Stacks of requests: `pr-7` has the settings of another stack, and a time to live."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import yaml

from infra.settings.base import SettingsError
from infra.settings.parse import load_stack_file, load_yaml, stack_path
from tpustack.ci.settings import FILE, REQUEST, PullRequests
from tpustack.errors import TpustackError, UsageError

NAME = REQUEST
BRANCH, EXPIRES = "tpustack:branch", "tpustack:expires"


def name(number: int) -> str:
    """Return the name of a request's stack."""
    return f"pr-{number}"


def write(root: Path, number: int, how: PullRequests | None) -> str:
    """Write the settings file of a request's stack; return the stack's name.

    It differs from the one it is like in its project and names, and in that nothing of it is kept.
    """
    if how is None:
        raise UsageError(f"{FILE} has no pullRequests, so requests get no stacks of their own")
    stack = name(number)
    document = _document(root, how.like)
    config: dict[str, Any] = document["config"]
    config["gcp:project"] = how.project
    # Its deployer can't use the key of another environment.
    for of_another in ("secretsprovider", "encryptedkey"):
        document.pop(of_another, None)
    for names_somebody in ("tpu-stack:namePrefix", "tpu-stack:owner"):
        config.pop(names_somebody, None)
    bucket = {**(config.get("tpu-stack:bucket") or {}), "forceDestroy": True, "protect": False}
    bucket["softDeleteDays"] = 0
    bucket.pop("name", None)
    config["tpu-stack:bucket"] = bucket
    config["tpu-stack:labels"] = {**(config.get("tpu-stack:labels") or {}), "request": stack}
    text = yaml.safe_dump(document, sort_keys=False)
    stack_path(root, stack).write_text(text, encoding="utf-8")
    return stack


def _document(root: Path, like: str) -> dict[str, Any]:
    """Return the stack file that requests' stacks are like. Raises UsageError if it is wrong."""
    path = stack_path(root, like)
    try:
        load_stack_file(path)
        document: dict[str, Any] = load_yaml(path.read_text(encoding="utf-8"))
    except SettingsError as error:
        raise UsageError(f"{FILE}: pullRequests.like: {error}") from None
    return document


def tags(branch: str, how: PullRequests, now: datetime) -> dict[str, str]:
    """Return the tags that tell the sweeper when the stack may go."""
    expires = now + timedelta(hours=how.hours)
    return {BRANCH: branch, EXPIRES: expires.isoformat(timespec="seconds")}


def are_whole(tags: Mapping[str, str]) -> bool:
    """Return whether a run has noted all of them, which it does before it makes a resource."""
    return BRANCH in tags and EXPIRES in tags


def reason_to_sweep(tags: Mapping[str, str], branches: set[str], now: datetime) -> str:
    """Return why a request's stack must go; empty if it may stay.

    Raises TpustackError if it can't be told.
    """
    if not are_whole(tags):
        return "The run that made it failed before it was done."
    branch, expires = tags[BRANCH], tags[EXPIRES]
    if branch not in branches:
        return f"Its branch `{branch}` is gone."
    try:
        ends = datetime.fromisoformat(expires).astimezone(timezone.utc)
    except ValueError:
        raise TpustackError(
            f"its tag {EXPIRES} is {expires!r}, which is no time, so it stays. Delete the stack "
            "with `tpustack ci destroy`"
        ) from None
    if ends <= now:
        return f"Its time was up at {expires}."
    return ""


def now() -> datetime:
    """Return the current time, with its zone."""
    return datetime.now(timezone.utc)
