"""A change in place is one in the preview and in the update, for every form of TPU.

A reviewed plan is refused where the two decide differently. What decides is made of the inputs, so
a preview must know all of them, although it does not know what Google will answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pulumi_gcp as gcp
import pytest
from pulumi import dynamic
from pulumi.runtime import rpc
from pulumi.runtime.mocks import MockResourceArgs

from tpu_infra.resources import request as request_module
from tpu_infra.resources.request import QueuedNodeProvider, QueuedRequestProvider, id_of
from tpu_infra.resources.vertex import VertexJobsProvider

from .conftest import Engine, Run, config, whole

REQUEST = "pulumi-python:dynamic/tpu:QueuedResource"
PROVIDERS: dict[str, dynamic.ResourceProvider] = {
    REQUEST: QueuedRequestProvider(),
    "pulumi-python:dynamic/tpu:QueuedNode": QueuedNodeProvider(),
    "pulumi-python:dynamic/vertex:CustomJobs": VertexJobsProvider(),
}
POD = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"}
ON_TPU = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-se"}
LITE = {
    "acceleratorType": "v5litepod-8",
    "runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt-v5e-and-v6",
}
LIMITS = {"timeToLiveHours": 12}
FORMS: dict[str, dict[str, Any]] = {
    "on demand": {"tpu": POD},
    "on demand, with a trainer": {"tpu": ON_TPU, "training": {"runOn": "tpu"}},
    "slices on demand": {"tpu": {**POD, "slices": 2}},
    "spot": {"tpu": {**POD, "capacity": "spot"}},
    "spot, with a trainer": {"tpu": {**ON_TPU, "capacity": "spot"}, "training": {"runOn": "tpu"}},
    "slices out of the queue": {"tpu": {**POD, "capacity": "spot", "slices": 2}},
    "in one of several zones": {
        "tpu": {**POD, "capacity": "spot", "queued": {"fallbackZones": ["us-central1-c"]}}
    },
    "guaranteed": {"tpu": {**POD, "queued": {"guaranteedHours": 4}}},
    "flex-start": {
        "zone": "europe-west4-b",
        "tpu": {**LITE, "capacity": "flex-start", "queued": {"runHours": 2}},
    },
    "classic node": {
        "architecture": "node",
        "tpu": {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"},
    },
}
# Each is made in place in all of the forms, or does nothing.
CHANGES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "labels": {"labels": {"team": "audio"}},
    "limits": {"limits": {"timeToLiveHours": 4}},
    "messages": {"messages": {"pubsubTopic": "told"}},
    "machine type": {"vm": {"machineType": "n2-highmem-8"}},
    "bucket": {"bucket": {"versioning": True, "softDeleteDays": 0}},
    "timeouts": {"tpu": {"timeouts": {"deleteMinutes": 45}}},
    "jobs on Vertex AI": {"jobs": {"vertex": {}}},
}
OF_THE_QUEUE: dict[str, dict[str, Any]] = {
    "patience": {"tpu": {"queued": {"waitMinutes": 5}}},
    "deadline": {"tpu": {"queued": {"validUntil": "2099-01-31T17:00:00Z"}}},
    "further zone": {"tpu": {"queued": {"fallbackZones": ["us-central1-c"]}}},
    "no further zone": {"tpu": {"queued": {"fallbackZones": []}}},
}


@dataclass
class Updating(Engine):
    """An engine that knows what the update before made, and asks our own providers what to do."""

    before: dict[str, dict[str, Any]] = field(default_factory=dict)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    decided: dict[str, str] = field(default_factory=dict)
    previews: bool = False

    def new_resource(self, args: MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        id_, outs = super().new_resource(args)
        if args.typ not in PROVIDERS:
            return id_, outs
        id_ = id_of(args.inputs) if args.typ == REQUEST else id_
        outs |= {"loss": "", "at": args.inputs.get("zone")}
        olds, news = self.before.get(args.typ), whole(dict(args.inputs))
        if olds is not None:
            # Pulumi's mocks leave out what is unknown.
            unknown = rpc.deserialize_property(rpc.UNKNOWN, True)
            asked = {"requested": unknown, **news}
            diff = PROVIDERS[args.typ].diff("id", olds, asked)
            done = "update" if diff.changes else "same"
            self.decided[args.typ] = f"replace for {diff.replaces}" if diff.replaces else done
            if self.previews and diff.changes:
                # The engine does not ask these providers what an update will give.
                return "" if diff.replaces else id_, dict(args.inputs)
        self.made[args.typ] = whole(outs)
        return id_, outs


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Settings with some of them changed."""
    groups = {key for key in one.keys() & other if isinstance(one[key], dict)}
    return {**one, **other, **{key: merged(one[key], other[key]) for key in groups}}


Made = dict[str, dict[str, dict[str, Any]]]
Compare = Callable[[str, dict[str, Any]], tuple[Updating, Updating]]


@pytest.fixture(scope="module")
def made() -> Made:
    """What the first update of each form made, which each change of it finds."""
    return {}


@pytest.fixture
def compare(run: Run, monkeypatch: pytest.MonkeyPatch, made: Made) -> Compare:
    """Previews and makes a change of a stack of one of the forms."""
    monkeypatch.setattr(request_module, "_lost_by_now", lambda _props: "")

    def both(form: str, change: dict[str, Any]) -> tuple[Updating, Updating]:
        settings = merged({"labels": {"team": "vision"}, "limits": LIMITS}, FORMS[form])
        if form not in made:
            first = Updating()
            run(config(**settings), engine=first)
            made[form] = first.made
        preview = Updating(before=made[form], previews=True)
        update = Updating(before=made[form])
        changed = config(**merged(settings, change))
        run(changed, engine=preview, preview=True)
        run(changed, engine=update)
        return preview, update

    return both


def inputs(engine: Engine) -> dict[tuple[str, str], Any]:
    """What is asked for, but for files, and for the place of the TPUs, which decides nothing."""
    return {
        (one.kind, one.name): {k: v for k, v in one.inputs.items() if k not in ("source", "at")}
        for one in engine.resources
    }


CASES = [
    *((form, change) for form in FORMS for change in CHANGES),
    *((form, change) for form in ("spot", "in one of several zones") for change in OF_THE_QUEUE),
]


@pytest.mark.parametrize(("form", "change"), CASES)
def test_a_preview_decides_as_the_update_does_and_replaces_no_tpu(
    compare: Compare, form: str, change: str
) -> None:
    if form == "classic node" and not hasattr(gcp.tpu, "Node"):
        pytest.skip("this generation of the provider has no classic nodes")
    preview, update = compare(form, {**CHANGES, **OF_THE_QUEUE}[change])
    assert preview.decided == update.decided
    assert not [each for each in update.decided.values() if each.startswith("replace")]
    assert inputs(preview) == inputs(update)


@pytest.mark.parametrize("form", ["spot", "slices out of the queue", "in one of several zones"])
def test_another_request_means_other_tpus_in_the_preview(compare: Compare, form: str) -> None:
    """In the update the engine has deleted them before the request, and makes them again."""
    preview, _ = compare(form, {"tpu": {"secureBoot": True}})
    assert set(preview.decided.values()) == {"replace for ['request']", "replace for ['requested']"}
