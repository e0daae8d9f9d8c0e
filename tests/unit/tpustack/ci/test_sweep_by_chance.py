"""Whatever is in a project, a sweep deletes nothing of a stack that lives in any backend."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cache
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as st

from tests.examples import examples
from tpu_infra.names import JOB_LABEL, MADE_FOR, MARK, VERTEX, mark_of
from tpu_infra.settings import OWN_LABELS
from tpu_infra.settings.base import SettingsError
from tpu_infra.settings.parse import parse
from tpustack.ci.result import Run
from tpustack.ci.sweep import MOST_ORPHANS, SETTLED, sweep_orphans
from tpustack.cloud.google import Google, NotFound

NOW = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
PROJECT = "p"
BACKENDS = ("gs://ours", "gs://ours/", "gs://theirs", "file:///root")
STACKS = ("pr-1", "pr-2", "pr-12", "dev", "prod", "pr-1x")
KINDS = ("queued", "node", "vm", "disk", "template", "bucket", "network", "check", "account", "job")
UNLABELLED = ("network", "check", "account")
COMPUTE = f"https://compute.googleapis.com/compute/v1/projects/{PROJECT}"


@dataclass(frozen=True)
class Made:
    """A resource that somebody's stack made, with labels that its settings add."""

    kind: str
    backend: str
    stack: str
    added: tuple[tuple[str, str], ...]
    minutes: int
    """How long ago."""


@dataclass(frozen=True)
class Scene:
    """Backends with their stacks, and what stacks have made in the project."""

    stacks: tuple[frozenset[str], ...]
    """Of each of BACKENDS."""
    resources: tuple[Made, ...]
    late: str
    """A stack that our backend gets while the sweeper looks."""

    def may_go(self, made: Made) -> bool:
        """Whether no state knows of it, and only ours could."""
        alive = {*self.stacks[0], self.late}
        return made.backend == BACKENDS[0] and made.stack not in alive


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
    st.integers(0, 600),
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
    """As infra/tpu_infra/checks/__init__.py puts them together, for requests."""
    request = {"request": made.stack} if made.stack.startswith("pr-") else {}
    own = {"managed-by": "pulumi", "tpu-stack": made.stack, MARK: mark(made.backend, made.stack)}
    return {**request, **dict(made.added), **own}


@dataclass
class Project:
    """Google's lists of what is there, each resource by the address that deletes it."""

    scene: Scene
    known: set[str]
    deleted: set[int] = field(default_factory=set)

    pages = Google.pages

    def __post_init__(self) -> None:
        self.all = self.scene.resources

    def get(self, url: str, parameters: Mapping[str, str] | None = None) -> dict[str, Any]:
        self.known |= {self.scene.late} - {""}
        path = url.partition(PROJECT + "/")[2] or url
        if "/b/" in url or ("customJobs" in url and "us-central1" not in url):
            return {}
        for kind, (ending, items) in LISTS.items():
            if path.endswith(ending):
                found = [self.shown(n) for n in range(len(self.all)) if self.all[n].kind == kind]
                aggregated = "aggregated" in url
                return {"items": {"z": {items: found}}} if aggregated else {items: found}
        return {}

    def shown(self, number: int) -> dict[str, Any]:
        made = self.all[number]
        when = (NOW - timedelta(minutes=made.minutes)).isoformat()
        told = f"{MADE_FOR}{made.stack} ({mark(made.backend, made.stack)})"
        labels = {} if made.kind in UNLABELLED else {"labels": labels_of(made)}
        common = {
            "name": f"p/serviceAccounts/n{number}-vx@p" if made.kind == "account" else f"n{number}",
            "selfLink": f"{COMPUTE}/n{number}",
            "description": told if made.kind in UNLABELLED else "",
            "email": f"n{number}-vx@p",
            "displayName": VERTEX,
            **labels,
        }
        times = {} if made.kind == "account" else {TIMES.get(made.kind, "creationTimestamp"): when}
        if made.kind == "queued":
            return {"name": f"n{number}", "tpu": {"nodeSpec": [{"node": labels}]}, **times}
        if made.kind == "job":
            own = {"labels": {JOB_LABEL: "x"}, "jobSpec": {"serviceAccount": self.runner(made)}}
            return {"name": f"customJobs/n{number}", **own, **times}
        if made.kind == "template":
            return {**common, "properties": labels, **times}
        return {**common, **times}

    def runner(self, job: Made) -> str:
        """The account of the stack that a job is of; it may have gone."""
        made_by = (job.backend, job.stack)
        found = [
            f"n{number}-vx@p"
            for number, each in enumerate(self.all)
            if each.kind == "account" and (each.backend, each.stack) == made_by
        ]
        return found[0] if found else "gone-vx@p"

    def post(self, url: str, body: object) -> None:
        assert url.endswith(":cancel")
        self.deleted.add(int(url.removesuffix(":cancel").rpartition("/n")[2]))

    def delete(self, url: str, parameters: Mapping[str, str] | None = None) -> None:
        number = int(url.rpartition("/n")[2].removesuffix("-vx@p"))
        if number in self.deleted:
            raise NotFound(url)
        self.deleted.add(number)


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
    "job": ("customJobs", "customJobs"),
}
TIMES = {"queued": "createTime", "node": "createTime", "bucket": "timeCreated", "job": "createTime"}


def test_settings_can_set_none_of_the_labels_that_the_sweeper_goes_by() -> None:
    marks = labels_of(Made("vm", BACKENDS[0], "pr-1", (), 0)).keys() - {"request"}
    assert marks == set(OWN_LABELS)
    with pytest.raises(SettingsError) as refused:
        parse({"tpu-stack:labels": dict.fromkeys(OWN_LABELS, "x")}, "dev")
    assert "which the stack uses to find its own resources" in str(refused.value)


@settings(max_examples=examples(2500), deadline=None)
@given(SCENES)
def test_nothing_of_a_living_stack_is_ever_deleted(scene: Scene) -> None:
    ours = BACKENDS[0]
    known = set(scene.stacks[0])
    google = Project(scene, known)
    job = cast(Run, SimpleNamespace(backend=SimpleNamespace(stacks=lambda: dict.fromkeys(known))))
    before = set(known)
    with backend(ours):
        sweep_orphans(job, cast(Google, google), PROJECT, NOW, before, remove=True)
    gone = [google.all[number] for number in google.deleted]
    assert [each for each in gone if not scene.may_go(each)] == []
    young = NOW - SETTLED
    assert all(
        each.kind == "account" or NOW - timedelta(minutes=each.minutes) <= young for each in gone
    )
    assert len(gone) <= MOST_ORPHANS
    assert not gone or any(each in ("pr-1", "pr-2", "pr-12") for each in before)


def test_orphans_of_a_dead_stack_are_deleted_up_to_the_limit() -> None:
    left = [
        Made(kind, BACKENDS[0], f"pr-{stack}", (), 300)
        for stack in range(2, 12)
        for kind in KINDS
        if kind != "network"
    ]
    scene = Scene((frozenset(),) * 4, tuple(left), "")
    google = Project(scene, {"pr-1"})
    job = cast(Run, SimpleNamespace(backend=SimpleNamespace(stacks=lambda: {"pr-1": None})))
    with backend(BACKENDS[0]):
        first = sweep_orphans(job, cast(Google, google), PROJECT, NOW, ["pr-1"], remove=True)
    # Each stack's account waits until its job has ended.
    assert len(google.deleted) == MOST_ORPHANS // 9 * 8
    assert not any(google.all[number].kind == "account" for number in google.deleted)
    assert "They wait for the next sweep, because one deletes at most 60" in first[-1].notes[0]
