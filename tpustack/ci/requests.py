"""Stacks of requests: `pr-7` has the settings of another stack, and a time to live."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import yaml

from infra.settings.stack_file import Loader, load_stack_file, stack_path
from tpustack.ci.settings import FILE, PullRequests
from tpustack.errors import UsageError

NAME = re.compile(r"pr-\d+")
BRANCH, EXPIRES = "tpustack:branch", "tpustack:expires"


def write(root: Path, number: int, how: PullRequests | None) -> str:
    """Write the settings file of a request's stack; return the stack's name.

    It differs from the one it is like in its names, and in that nothing of it is kept.
    """
    if how is None:
        raise UsageError(f"{FILE} has no pullRequests, so requests get no stacks of their own")
    stack = f"pr-{number}"
    try:
        document = yaml.load(stack_path(root, how.like).read_text(encoding="utf-8"), Loader=Loader)
    except (OSError, yaml.YAMLError) as error:
        raise UsageError(
            f"{FILE}: pullRequests.like: {how.like!r} can't be read: {error}"
        ) from None
    config: dict[str, Any] = document["config"]
    config.pop("tpu-stack:namePrefix", None)
    bucket = {**config.get("tpu-stack:bucket", {}), "forceDestroy": True, "protect": False}
    bucket.pop("name", None)
    config["tpu-stack:bucket"] = bucket
    config["tpu-stack:labels"] = {**config.get("tpu-stack:labels", {}), "request": stack}
    text = yaml.safe_dump(document, sort_keys=False)
    stack_path(root, stack).write_text(text, encoding="utf-8")
    return stack


def project_of(root: Path, how: PullRequests | None) -> str:
    """Return the Google project of requests' stacks; empty if there are none."""
    if how is None:
        return ""
    return load_stack_file(stack_path(root, how.like)).project


def tags(branch: str, how: PullRequests, now: datetime) -> dict[str, str]:
    """Return the tags that tell the sweeper when the stack may go."""
    expires = now + timedelta(hours=how.hours)
    return {BRANCH: branch, EXPIRES: expires.isoformat(timespec="seconds")}


def reason_to_sweep(tags: Mapping[str, str], branches: set[str], now: datetime) -> str:
    """Return why a request's stack must go; empty if it may stay."""
    branch, expires = tags.get(BRANCH), tags.get(EXPIRES)
    if branch is None or expires is None:
        return "The run that made it failed before it was done."
    if branch not in branches:
        return f"Its branch `{branch}` is gone."
    if datetime.fromisoformat(expires) <= now:
        return f"Its time was up at {expires}."
    return ""


def now() -> datetime:
    """Return the current time, with its zone."""
    return datetime.now(timezone.utc)
