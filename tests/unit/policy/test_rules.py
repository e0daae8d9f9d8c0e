"""Each rule of the policy pack lets something pass and refuses something, by plain arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tpu_policy.resource import UNKNOWN
from tpu_policy.rules import RULES, Rule

from .conftest import (
    BUCKET,
    DEFAULT,
    ENTRY,
    LABELS,
    NODE,
    OF_COMPONENT,
    OWN,
    QUEUED,
    TEMPLATE,
    TPU,
    VM,
    Case,
    bucket,
    entry,
    resource,
    tpu,
    vm,
    with_account,
)

BY_NAME: Mapping[str, Rule] = {rule.name: rule for rule in RULES}
DISK = "gcp:compute/disk:Disk"
MEMBER = "gcp:storage/bucketIAMMember:BucketIAMMember"
BINDING = "gcp:storage/bucketIAMBinding:BucketIAMBinding"
POLICY = "gcp:storage/bucketIAMPolicy:BucketIAMPolicy"
ACCOUNT_MEMBER = "gcp:serviceaccount/iAMMember:IAMMember"
KEY_MEMBER = "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember"
SECRET_BINDING = "gcp:secretmanager/secretIamBinding:SecretIamBinding"
STORAGE_AGENT = "serviceAccount:service-1@gs-project-accounts.iam.gserviceaccount.com"
ADA = "user:ada@example.com"
HOME = resource("gcp:projects/service:Service", project="some-project")
PRIVATE: dict[str, Any] = {"publicAccessPrevention": "enforced", "uniformBucketLevelAccess": True}
PUBLIC_POLICY = json.dumps({"bindings": [{"role": "r", "members": ["user:a@b.c", "allUsers"]}]})
SPOT = {"schedulingConfig": {"spot": True}}
REASON = {"labels": {"capacity-reason": "a-bake-off"}}

GROUP = "gcp:compute/instanceGroupManager:InstanceGroupManager"
SLICE_ZONE = "us-east5-a"
TEMPLATE_OF_SLICE = resource(TEMPLATE, name="slice-1", machineType="ct6e-standard-4t")
NAMED = [{"instanceTemplate": "projects/p/global/instanceTemplates/slice-1?uniqueId=7"}]

CASES = [
    Case("all in one", "regions-agree", [bucket(), tpu(), vm()]),
    Case("nothing is placed", "regions-agree", [resource("x:y:Z")]),
    Case("bucket", "regions-agree", [bucket("EUROPE-WEST4"), tpu()], "Move it to us-central1"),
    Case("multi-region", "regions-agree", [bucket("US"), tpu()], 'location is "US", but V2Vm'),
    Case("VM", "regions-agree", [tpu(), vm(zone="us-east1-d")], 'zone is "us-east1-d"'),
    Case(
        "queue entry",
        "regions-agree",
        [bucket("EUROPE-WEST4"), entry({"acceleratorType": "v2-8"})],
        "QueuedResource it is in us-central1",
    ),
    Case("elsewhere", "regions-agree", [bucket("US"), tpu()], config={"allowed": ["da*"]}),
    Case("unknown", "regions-agree", [resource(BUCKET, location=UNKNOWN), tpu()]),
    Case("private", "no-public-buckets", [bucket(**PRIVATE)]),
    Case(
        "inherited",
        "no-public-buckets",
        [bucket(**PRIVATE | {"publicAccessPrevention": "inherited"})],
        'Bucket data: publicAccessPrevention is "inherited"',
    ),
    Case(
        "lists of its own",
        "no-public-buckets",
        [bucket(publicAccessPrevention="enforced")],
        "uniformBucketLevelAccess is not set",
    ),
    Case("allowed", "no-public-buckets", [bucket()], config={"allowed": ["data"]}),
    Case(
        "a grant to one",
        "no-public-buckets",
        [resource(MEMBER, member=f"serviceAccount:{OWN}")],
    ),
    Case(
        "a grant to all",
        "no-public-buckets",
        [resource(MEMBER, member="allUsers")],
        'member is "allUsers"',
    ),
    Case(
        "a grant to all on an allowed bucket",
        "no-public-buckets",
        [resource(MEMBER, member="allUsers", bucket="site-1")],
        config={"allowed": ["site-*"]},
    ),
    Case(
        "a binding",
        "no-public-buckets",
        [resource(BINDING, members=["allAuthenticatedUsers"])],
        'members[0] is "allAuthenticatedUsers"',
    ),
    Case(
        "a policy",
        "no-public-buckets",
        [resource(POLICY, policyData=PUBLIC_POLICY)],
        "policyData.bindings[0].members[1]",
    ),
    Case(
        "an unknown policy",
        "no-public-buckets",
        [resource(POLICY, policyData=UNKNOWN)],
    ),
    Case(
        "an access list",
        "no-public-buckets",
        [resource("gcp:storage/bucketACL:BucketACL", roleEntities=["READER:allUsers"])],
        "roleEntities[0]",
    ),
    Case("inside", "no-public-addresses", [vm(networkInterfaces=[{"network": "n"}]), tpu()]),
    Case(
        "VM",
        "no-public-addresses",
        [vm(networkInterfaces=[{}, {"accessConfigs": [{}]}])],
        "networkInterfaces[1].accessConfigs",
    ),
    Case(
        "template",
        "no-public-addresses",
        [resource(TEMPLATE, networkInterfaces=[{"ipv6AccessConfigs": [{"networkTier": "X"}]}])],
        "ipv6AccessConfigs",
    ),
    Case(
        "TPU",
        "no-public-addresses",
        [tpu(networkConfig={"enableExternalIps": True})],
        "networkConfig.enableExternalIps is true",
    ),
    Case(
        "queue entry",
        "no-public-addresses",
        [entry({"networkConfig": {"enableExternalIps": True}})],
        "request.tpu.nodeSpec[0].node.networkConfig.enableExternalIps",
    ),
    Case(
        "queued resource",
        "no-public-addresses",
        [
            resource(
                QUEUED,
                tpu={"nodeSpecs": [{"node": {"networkConfig": {"enableExternalIps": True}}}]},
            )
        ],
        "tpu.nodeSpecs[0].node.networkConfig.enableExternalIps",
    ),
    Case(
        "allowed",
        "no-public-addresses",
        [tpu(networkConfig={"enableExternalIps": True})],
        config={"allowed": ["slice"]},
    ),
    Case("own", "known-members", [HOME, resource(ACCOUNT_MEMBER, member=f"serviceAccount:{OWN}")]),
    Case("Google's own", "known-members", [HOME, resource(KEY_MEMBER, member=STORAGE_AGENT)]),
    Case("known in the update", "known-members", [HOME, resource(MEMBER, member=UNKNOWN)]),
    Case(
        "of another project",
        "known-members",
        [HOME, resource(KEY_MEMBER, member="serviceAccount:a@other.iam.gserviceaccount.com")],
        "which isn't a service account of this stack's projects",
    ),
    Case(
        "an account that looks like Google's",
        "known-members",
        [HOME, resource(MEMBER, member="serviceAccount:service-1@other.iam.gserviceaccount.com")],
        "service-1@other",
    ),
    Case("a person", "known-members", [HOME, resource(SECRET_BINDING, members=[ADA])], ADA),
    Case(
        "a whole policy", "known-members", [HOME, resource(POLICY, policyData=PUBLIC_POLICY)], "u"
    ),
    Case(
        "a person who may",
        "known-members",
        [HOME, resource(SECRET_BINDING, members=[ADA])],
        config={"allowed": ["user:*@example.com"]},
    ),
    Case("own account", "full-scope-with-own-account", [with_account(VM, OWN)]),
    Case("account of this update", "full-scope-with-own-account", [with_account(TPU, UNKNOWN)]),
    Case("unknown group", "full-scope-with-own-account", [tpu(serviceAccount=UNKNOWN)]),
    Case("narrow scope", "full-scope-with-own-account", [with_account(VM, DEFAULT, ["logging"])]),
    Case("no account", "full-scope-with-own-account", [vm()]),
    Case("classic node", "full-scope-with-own-account", [resource(NODE)]),
    Case("default", "full-scope-with-own-account", [with_account(VM, DEFAULT)], DEFAULT),
    Case("unnamed", "full-scope-with-own-account", [with_account(VM, None)], "email is not set"),
    Case("TPU's default", "full-scope-with-own-account", [tpu()], "email is not set"),
    Case(
        "App Engine's",
        "full-scope-with-own-account",
        [with_account(TPU, "p@appspot.gserviceaccount.com", ["cloud-platform"])],
        "appspot",
    ),
    Case("queued", "full-scope-with-own-account", [entry({})], "nodeSpec[0].node.serviceAccount"),
    Case("queued own", "full-scope-with-own-account", [entry({"serviceAccount": {"email": OWN}})]),
    Case("on demand", "no-spot-in-production", [tpu(stack="prod"), vm(stack="prod")]),
    Case("not production", "no-spot-in-production", [tpu(**SPOT)]),
    Case("justified", "no-spot-in-production", [tpu(stack="prod", **SPOT, **REASON)]),
    Case("TPU", "no-spot-in-production", [tpu(stack="prod", **SPOT)], "schedulingConfig.spot"),
    Case(
        "no reason",
        "no-spot-in-production",
        [tpu(stack="prod-eu", **SPOT, labels={"capacity-reason": ""})],
        "stack prod-eu",
    ),
    Case(
        "VM",
        "no-spot-in-production",
        [vm(stack="prod", scheduling={"provisioningModel": "SPOT", "preemptible": True})],
        'scheduling.provisioningModel is "SPOT"',
    ),
    Case(
        "classic node",
        "no-spot-in-production",
        [resource(NODE, stack="live", schedulingConfig={"preemptible": True})],
        "schedulingConfig.preemptible",
        {"productionStacks": ["live"]},
    ),
    Case("spot", "spot-outside-production", [tpu(**SPOT), vm()]),
    Case("reserved", "spot-outside-production", [entry({}, guaranteed={"reserved": True})]),
    Case(
        "reserved in calendar mode",
        "spot-outside-production",
        [entry({}, provisioningModel="RESERVATION_BOUND")],
    ),
    Case(
        "a reserved machine with a TPU",
        "spot-outside-production",
        [
            vm(
                machineType="ct6e-standard-4t",
                scheduling={"provisioningModel": "STANDARD"},
                reservationAffinity={"type": "SPECIFIC_RESERVATION"},
            )
        ],
    ),
    Case(
        "a machine with a TPU on demand",
        "spot-outside-production",
        [vm(machineType="ct6e-standard-4t", reservationAffinity={"type": "ANY_RESERVATION"})],
        "scheduling is not set",
    ),
    Case("for a while", "spot-outside-production", [entry({}, provisioningModel="FLEX_START")]),
    Case(
        "guaranteed for a while",
        "spot-outside-production",
        [entry({}, guaranteed={"minDuration": "3600s"})],
        "QueuedResource it: request.guaranteed is",
    ),
    Case("best effort", "spot-outside-production", [entry({}, bestEffort={})]),
    Case("production", "spot-outside-production", [tpu(stack="prod")]),
    Case("free", "spot-outside-production", [tpu(stack="local")]),
    Case("justified", "spot-outside-production", [tpu(**REASON)]),
    Case("unknown labels", "spot-outside-production", [tpu(labels=UNKNOWN)]),
    Case("on demand", "spot-outside-production", [tpu()], "schedulingConfig is not set"),
    Case("queued", "spot-outside-production", [entry({})], "request.spot is not set"),
    Case("protected", "protect-in-production", [bucket(stack="prod", protect=True)]),
    Case("not production", "protect-in-production", [bucket()]),
    Case("no data", "protect-in-production", [vm(stack="prod")]),
    Case("bucket", "protect-in-production", [bucket(stack="prod")], "protect is false"),
    Case(
        "disk",
        "protect-in-production",
        [resource("gcp:compute/disk:Disk", stack="prod")],
        "Set protect: true",
    ),
    Case("scratch", "protect-in-production", [bucket(stack="prod")], None, {"allowed": ["data"]}),
    Case("cheap", "cost-ceiling", [tpu(), vm()]),
    Case("nothing", "cost-ceiling", []),
    Case(
        "a machine with a TPU",
        "cost-ceiling",
        [vm(machineType="zones/us-east5-a/machineTypes/ct6e-standard-4t", zone="us-east5-a")],
        "ct6e-standard-4t, on-demand $10.80",
    ),
    Case(
        "a spot machine with a TPU",
        "cost-ceiling",
        [
            vm(
                machineType="ct6e-standard-4t",
                zone="us-east5-a",
                scheduling={"provisioningModel": "SPOT", "preemptible": True},
            )
        ],
        config={"dollarsPerHour": 5.62},
    ),
    Case(
        "flex-start of a machine with a TPU",
        "cost-ceiling",
        [
            vm(
                machineType="ct6e-standard-4t",
                zone="us-east5-a",
                scheduling={"provisioningModel": "FLEX_START"},
            )
        ],
        "TPU ct6e-standard-4t, flex-start $5.40",
        {"dollarsPerHour": 5},
    ),
    Case("dear", "cost-ceiling", [tpu(acceleratorType="v3-32", zone="europe-west4-a")], "$32.00"),
    Case(
        "production",
        "cost-ceiling",
        [tpu(stack="prod", acceleratorType="v3-32", zone="europe-west4-a")],
    ),
    Case(
        "the sum",
        "cost-ceiling",
        [tpu(), tpu(), tpu()],
        "stack dev costs $13.50 an hour (TPU v2-8, on-demand $4.50, TPU v2-8, on-demand $4.50, "
        "TPU v2-8, on-demand $4.50), more than its ceiling of $10.00",
    ),
    Case("lower", "cost-ceiling", [tpu()], "ceiling of $4.49", {"dollarsPerHour": 4.49}),
    Case("spot is cheaper", "cost-ceiling", [tpu(**SPOT)], config={"dollarsPerHour": 1.36}),
    Case(
        "a reservation at its list price",
        "cost-ceiling",
        [tpu(schedulingConfig={"reserved": True})],
        "TPU v2-8, reserved $4.50",
        {"dollarsPerHour": 1},
    ),
    Case(
        "flex-start at the list price",
        "cost-ceiling",
        [entry({"acceleratorType": "v2-8"}, provisioningModel="FLEX_START")],
        "TPU v2-8, flex-start $4.50",
        {"dollarsPerHour": 1},
    ),
    Case(
        "a queued TPU of a component",
        "cost-ceiling",
        [entry({"acceleratorType": "v2-8"}, OF_COMPONENT)],
        "TPU v2-8, on-demand $4.50",
        {"dollarsPerHour": 1},
    ),
    Case(
        "disks count",
        "cost-ceiling",
        [
            vm(bootDisk={"initializeParams": {"size": 65536, "type": "pd-ssd"}}),
            resource(
                TEMPLATE,
                region="us-central1",
                machineType="e2-standard-2",
                disks=[{"diskSizeGb": 100}],
            ),
        ],
        "Disk 65536 GiB pd-ssd $15.26",
    ),
    Case(
        "several slices of one request",
        "cost-ceiling",
        [
            resource(
                ENTRY,
                zone="us-central1-b",
                request={
                    "tpu": {
                        "nodeSpec": [
                            {
                                "node": {"acceleratorType": "v2-8"},
                                "multiNodeParams": {"nodeCount": 4, "nodeIdPrefix": "slice"},
                            }
                        ]
                    }
                },
            )
        ],
        "TPU 4 x v2-8, on-demand $18.00",
    ),
    Case(
        "a slice costs what all its machines and their disks cost",
        "cost-ceiling",
        [TEMPLATE_OF_SLICE, resource(GROUP, targetSize=4, zone=SLICE_ZONE, versions=NAMED)],
        # 4 machines of 4 chips at $2.70.
        "TPU 4 x ct6e-standard-4t, on-demand $43.20",
    ),
    Case(
        "a slice whose template is not made yet",
        "cost-ceiling",
        [TEMPLATE_OF_SLICE, resource(GROUP, targetSize=4, zone=SLICE_ZONE, versions=UNKNOWN)],
        "TPU 4 x ct6e-standard-4t, on-demand $43.20",
    ),
    Case(
        "a group of another template",
        "cost-ceiling",
        [
            TEMPLATE_OF_SLICE,
            resource(GROUP, targetSize=1, zone=SLICE_ZONE, versions=NAMED),
            resource(GROUP, targetSize=4, versions=[{"instanceTemplate": "x/other"}]),
        ],
        config={"dollarsPerHour": 10.9},
    ),
    Case(
        "data disks count",
        "cost-ceiling",
        [resource(DISK, zone="us-central1-b", type="pd-balanced", size=65536), tpu()],
        "Disk 65536 GiB pd-balanced $8.98",
    ),
    Case("a copy's size is not known", "cost-ceiling", [resource(DISK, zone="us-central1-b")]),
    Case("size unknown", "cost-ceiling", [vm(bootDisk={"initializeParams": {"size": UNKNOWN}})]),
    Case(
        "no price",
        "cost-ceiling",
        [vm(machineType="z9-mega-1000")],
        "the catalog has no price for VM z9-mega-1000, on-demand",
    ),
    Case("labelled", "required-labels", [vm(labels=LABELS), tpu(labels=LABELS)]),
    Case("cannot have any", "required-labels", [resource("gcp:compute/network:Network")]),
    Case("no field for any", "required-labels", [resource(QUEUED, tpu={"nodeSpecs": [{}]})]),
    Case("unknown", "required-labels", [bucket(labels=UNKNOWN)]),
    Case("none", "required-labels", [bucket()], "labels is not set"),
    Case("empty", "required-labels", [vm(labels=LABELS | {"tpu-stack": ""})], "without tpu-stack"),
    Case(
        "more",
        "required-labels",
        [vm(labels=LABELS)],
        "without environment,",
        {"required": ["tpu-stack", "environment"]},
    ),
]


def messages(case: Case) -> list[str]:
    rule = BY_NAME[case.rule]
    if rule.of_stack:
        return [message for _, message in rule.violations(case.resources, case.config)]
    return [text for each in case.resources for text in rule.violations(each, case.config)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.rule}: {case.id}")
def test_a_rule_refuses_what_it_should_and_nothing_else(case: Case) -> None:
    found = messages(case)
    if case.says is None:
        assert found == []
    else:
        assert [message for message in found if case.says in message], found


@pytest.mark.parametrize("rule", BY_NAME)
def test_every_rule_has_something_that_passes_and_something_that_fails(rule: str) -> None:
    assert {case.says is None for case in CASES if case.rule == rule} == {True, False}
