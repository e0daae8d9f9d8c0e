"""Whatever is in a project, a sweep names nothing of a stack that lives in any backend."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.names import MADE_FOR, MARK, mark_of
from infra.settings import OWN_LABELS
from infra.settings.base import SettingsError
from infra.settings.parse import parse
from tests.examples import examples
from tpustack.ci.result import Run
from tpustack.ci.sweep import orphans
from tpustack.cloud.google import Google

PROJECT = "p"
BACKENDS = ("gs://ours", "gs://ours/", "gs://theirs", "file:///root")
STACKS = ("pr-1", "pr-2", "pr-12", "dev", "prod", "pr-1x")
KINDS = ("queued", "node", "vm", "disk", "template", "bucket", "network", "check", "account")
UNLABELLED = ("network", "check", "account")
COMPUTE = f"https://compute.googleapis.com/compute/v1/projects/{PROJECT}"


@dataclass(frozen=True)
class Made:
    """A resource that somebody's stack made, with labels that its settings add."""

    kind: str
    backend: str
    stack: str
    added: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scene:
    """Backends with their stacks, and what stacks have made in the project."""

    stacks: tuple[frozenset[str], ...]
    """Of each of BACKENDS."""
    resources: tuple[Made, ...]
    late: str
    """A stack that our backend gets while the sweeper looks."""

    def is_orphan(self, made: Made) -> bool:
        """Whether no state knows of it, and only ours could."""
        alive = {*self.stacks[0], self.late}
        is_request = made.stack in ("pr-1", "pr-2", "pr-12")
        return is_request and made.backend == BACKENDS[0] and made.stack not in alive


ADDED = st.lists(
    st.tuples(
        st.sampled_from(["request", "team", "tpu-stack", "managed-by", MARK]),
        st.sampled_from([*STACKS, "pulumi", "0f1e2d3c"]),
    ),
    max_size=2,
).map(tuple)
MADE = st.builds(
    Made,
    st.sampled_from(KINDS),
    st.sampled_from(BACKENDS),
    st.sampled_from(STACKS),
    ADDED,
)
SCENES = st.builds(
    Scene,
    st.tuples(*[st.frozensets(st.sampled_from(STACKS))] * len(BACKENDS)),
    st.lists(MADE, max_size=10, unique=True).map(tuple),
    st.sampled_from(["", *STACKS]),
)


@contextmanager
def backend(url: str) -> Iterator[None]:
    with patch.dict(os.environ, {"PULUMI_BACKEND_URL": url}):
        yield


@cache
def mark(url: str, stack: str) -> str:
    with backend(url):
        return mark_of(stack)


def labels_of(made: Made) -> dict[str, str]:
    """As infra/checks/__init__.py puts them together, for requests."""
    request = {"request": made.stack} if made.stack.startswith("pr-") else {}
    own = {"managed-by": "pulumi", "tpu-stack": made.stack, MARK: mark(made.backend, made.stack)}
    return {**request, **dict(made.added), **own}


@dataclass
class Project:
    """Google's lists of what is there."""

    scene: Scene
    known: set[str]

    pages = Google.pages

    def __post_init__(self) -> None:
        self.all = self.scene.resources

    def get(self, url: str, parameters: Mapping[str, str] | None = None) -> dict[str, Any]:
        self.known |= {self.scene.late} - {""}
        path = url.partition(PROJECT + "/")[2] or url
        for kind, (ending, items) in LISTS.items():
            if path.endswith(ending):
                found = [self.shown(n) for n in range(len(self.all)) if self.all[n].kind == kind]
                aggregated = "aggregated" in url
                return {"items": {"z": {items: found}}} if aggregated else {items: found}
        return {}

    def shown(self, number: int) -> dict[str, Any]:
        made = self.all[number]
        told = f"{MADE_FOR}{made.stack} ({mark(made.backend, made.stack)})"
        labels = {} if made.kind in UNLABELLED else {"labels": labels_of(made)}
        common = {
            "name": f"p/serviceAccounts/n{number}" if made.kind == "account" else f"n{number}",
            "description": told if made.kind in UNLABELLED else "",
            **labels,
        }
        if made.kind == "queued":
            return {"name": f"n{number}", "tpu": {"nodeSpec": [{"node": labels}]}}
        if made.kind == "template":
            return {**common, "properties": labels}
        return common


LISTS = {
    "queued": ("queuedResources", "queuedResources"),
    "node": ("nodes", "nodes"),
    "vm": ("aggregated/instances", "instances"),
    "disk": ("aggregated/disks", "disks"),
    "template": ("instanceTemplates", "items"),
    "bucket": ("/b", "items"),
    "network": ("networks", "items"),
    "check": ("healthChecks", "items"),
    "account": ("serviceAccounts", "accounts"),
}


def test_settings_can_set_none_of_the_labels_that_the_sweeper_goes_by() -> None:
    marks = labels_of(Made("vm", BACKENDS[0], "pr-1", ())).keys() - {"request"}
    assert marks == set(OWN_LABELS)
    with pytest.raises(SettingsError) as refused:
        parse({"tpu-stack:labels": dict.fromkeys(OWN_LABELS, "x")}, "dev")
    assert "which is the stack's own" in str(refused.value)


@settings(max_examples=examples(2500), deadline=None)
@given(SCENES)
def test_exactly_what_no_state_knows_of_is_named(scene: Scene) -> None:
    known = set(scene.stacks[0])
    google = Project(scene, known)
    run = cast(Run, SimpleNamespace(backend=SimpleNamespace(stacks=lambda: dict.fromkeys(known))))
    with backend(BACKENDS[0]):
        found = orphans(run, cast(Google, google), PROJECT, set(known))
    named = {
        int(word.strip(",")[1:])
        for one in found
        for word in one.problem.partition(", made for")[0].split()
        if word.strip(",")[1:].isdigit()
    }
    for number, made in enumerate(scene.resources):
        # A setting of labels can't make one ours; it may hide one of ours.
        assert number not in named or scene.is_orphan(made)
        assert number in named or not scene.is_orphan(made) or "request" in dict(made.added)
