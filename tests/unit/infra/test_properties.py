"""Properties that hold for every input, not only for chosen ones."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.examples import examples
from tpu_infra.catalog import Catalog
from tpu_infra.checks import find_problems
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import Problem, SettingsError
from tpu_infra.settings.parse import parse

from .conftest import config, context_of

CATALOG = Catalog()
NODES = {name: a for name, a in CATALOG.accelerators.items() if "node" in a.architectures}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)
RULES = st.fixed_dictionaries(
    {},
    optional={
        "action": st.sampled_from(["delete", "nearline", "coldline", "archive"]),
        "prefix": st.text(alphabet="jobs/acheckpointsd*", min_size=1, max_size=12),
        "ageDays": st.integers(0, 400),
        "noncurrentDays": st.integers(0, 400),
        "newerVersions": st.integers(0, 5),
    },
)
KEYS = st.sampled_from(["us-central1", "europe-west4", "US"]).map(
    lambda place: f"projects/p/locations/{place}/keyRings/r/cryptoKeys/k"
)
BUCKETS = st.fixed_dictionaries(
    {},
    optional={
        "create": st.booleans(),
        "name": st.text(alphabet="abg-._/0", max_size=6),
        "versioning": st.booleans(),
        "softDeleteDays": st.integers(-1, 100),
        "lifecycle": st.lists(RULES, max_size=4),
        "encryption": st.fixed_dictionaries(
            {}, optional={"key": KEYS | st.text(max_size=6), "rotationDays": st.integers(0, 400)}
        ),
    },
)
BUDGETS = st.fixed_dictionaries(
    {},
    optional={
        "amount": st.integers(-1, 10**6),
        "scope": st.sampled_from(["project", "stack"]),
        "thresholds": st.lists(st.integers(0, 1001), max_size=4),
        "emails": st.lists(st.text(alphabet="a@.b ", max_size=8), max_size=7),
        "pubsubTopic": st.text(alphabet="projects/topics-a1", max_size=20),
        "billingAccount": st.text(alphabet="0AF-x", max_size=20),
    },
)
NAMES = st.sampled_from(sorted(StackSettings.model_json_schema()["properties"])) | st.text(
    max_size=8
)


@given(st.dictionaries(NAMES, VALUES, max_size=6))
@settings(max_examples=examples(200))
def test_any_settings_are_parsed_or_refused_with_whole_sentences(values: dict[str, object]) -> None:
    keys: dict[str, object] = {f"tpu-stack:{name}": value for name, value in values.items()}
    problems: tuple[Problem, ...] = ()
    try:
        parse({"gcp:project": "some-project", **keys}, "test")
    except SettingsError as error:
        problems = error.problems
    for problem in problems:
        assert problem.setting
        assert problem.why
        assert str(problem).endswith((".", "?"))


@given(
    zone=st.sampled_from(sorted({zone for a in CATALOG.accelerators.values() for zone in a.zones})),
    accelerator=st.sampled_from(sorted(CATALOG.accelerators)),
    runtime=st.sampled_from(sorted(CATALOG.runtimes)) | st.none(),
    architecture=st.sampled_from(["vm", "node"]),
    node_version=st.sampled_from(sorted(CATALOG.node_versions)) | st.none(),
    cidr=st.text(alphabet="0123456789./", max_size=18) | st.none(),
    machine=st.sampled_from(sorted(CATALOG.machine_types)) | st.text(max_size=12),
    memory=st.floats(min_value=0.1, max_value=1000),
    queued=st.none() | st.builds(dict, waitMinutes=st.floats(1, 10080)),
    capacity=st.sampled_from(["on-demand", "spot", "preemptible", "reserved"]),
    run_on=st.sampled_from(["vm", "tpu"]),
)
@settings(max_examples=examples(200))
def test_checks_never_fail_and_always_say_what_would_be_right(
    zone: str,
    accelerator: str,
    runtime: str | None,
    architecture: str,
    node_version: str | None,
    cidr: str | None,
    machine: str,
    memory: float,
    queued: dict[str, float] | None,
    capacity: str,
    run_on: str,
) -> None:
    tpu = {
        "acceleratorType": accelerator,
        "runtimeVersion": runtime,
        "tensorflowVersion": node_version,
        "cidrBlock": cidr,
        "queued": queued,
        "capacity": capacity,
    }
    training = {"runOn": run_on, "modelMemoryGib": memory}
    try:
        parsed = parse(
            config(
                zone=zone,
                architecture=architecture,
                tpu=tpu,
                vm={"machineType": machine},
                training=training,
            ),
            "test",
        )
    except SettingsError:
        return
    for problem in find_problems(parsed, context_of(parsed, Path("nowhere"))):
        assert problem.why
        assert problem.cure


@given(bucket=BUCKETS, budget=st.none() | BUDGETS)
@settings(max_examples=examples(200))
def test_any_bucket_and_budget_are_right_or_refused_saying_what_would_be(
    bucket: dict[str, object], budget: dict[str, object] | None
) -> None:
    try:
        parsed = parse(config(bucket=bucket, budget=budget), "test")
    except SettingsError:
        return
    for problem in find_problems(parsed, context_of(parsed, Path("nowhere"))):
        assert problem.why
        assert problem.cure


blocks = st.builds(
    lambda address, prefix: IPv4Network((address, prefix), strict=False),
    st.integers(min_value=0, max_value=2**32 - 1),
    st.integers(min_value=8, max_value=32),
)


def cidr_is_refused(accelerator: str, block: str, subnet: IPv4Network) -> bool:
    parsed = parse(
        config(
            zone=NODES[accelerator].zones[0],
            architecture="node",
            tpu={
                "acceleratorType": accelerator,
                "tensorflowVersion": "2.12.1",
                "cidrBlock": block,
            },
            network={"subnetRange": str(subnet)},
        ),
        "test",
    )
    problems = find_problems(parsed, context_of(parsed, Path("nowhere")))
    return any(problem.setting == "tpu.cidrBlock" for problem in problems)


@given(st.sampled_from(sorted(NODES)), blocks, blocks)
@settings(max_examples=examples(500))
def test_a_block_is_accepted_exactly_if_it_is_private_large_enough_and_free(
    accelerator: str, block: IPv4Network, subnet: IPv4Network
) -> None:
    needed = NODES[accelerator].cidr_prefix
    assert needed is not None
    first, last = int(block[0]), int(block[-1])
    private = any(
        low <= first and last < high
        for low, high in (
            (10 << 24, 11 << 24),
            ((172 << 24) + (16 << 16), (172 << 24) + (32 << 16)),
            ((192 << 24) + (168 << 16), (192 << 24) + (169 << 16)),
        )
    )
    large = block.num_addresses >= 2 ** (32 - needed)
    free = last < int(subnet[0]) or int(subnet[-1]) < first
    assert cidr_is_refused(accelerator, str(block), subnet) == (not (private and large and free))


@given(blocks, st.integers(min_value=1, max_value=2**20))
@settings(max_examples=examples(200))
def test_a_block_that_does_not_begin_at_its_first_address_is_refused(
    block: IPv4Network, offset: int
) -> None:
    address = block[offset % block.num_addresses]
    if address == block[0]:
        return
    text = f"{address}/{block.prefixlen}"
    assert cidr_is_refused("v2-8", text, IPv4Network("10.10.0.0/20"))


@pytest.mark.parametrize("name", sorted(CATALOG.accelerators))
def test_every_tpu_type_in_its_zone_with_a_runtime_of_its_family_is_accepted(
    name: str, root: Path
) -> None:
    accelerator = CATALOG.accelerators[name]
    runtime = next(
        r.name
        for r in CATALOG.runtimes.values()
        if r.serves_grpc and accelerator.family in r.families
    )
    parsed = parse(
        config(
            zone=accelerator.zones[-1], tpu={"acceleratorType": name, "runtimeVersion": runtime}
        ),
        "test",
    )
    assert find_problems(parsed, context_of(parsed, root)) == []
