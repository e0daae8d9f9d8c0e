"""What the checks let pass and say: what the catalog does not know, what is unverified."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tpu_infra.checks import find_problems, find_warnings
from tpu_infra.settings.parse import parse

from .conftest import REPOSITORY, config, context_of

V2 = {"acceleratorType": "v2-8"}
V5E = {"acceleratorType": "v5litepod-8", "runtimeVersion": "tpu-vm-tf-2.16.1-pjrt"}
ON_TPU = {"runOn": "tpu"}


def said(root: Path, **settings: object) -> list[str]:
    parsed = parse(config(**settings), "test")
    context = context_of(parsed, root)
    assert find_problems(parsed, context) == []
    return find_warnings(parsed, context)


def unverified(warnings: list[str]) -> list[str]:
    """Without those of packages that no lock covers, or not wholly."""
    return [text for text in warnings if "hash check" not in text]


@pytest.mark.parametrize(
    ("settings", "unknown"),
    [
        ({"zone": "us-east9-b", "tpu": V5E}, "zone: the catalog does not know v5litepod-8 in us-e"),
        (
            {
                "zone": "us-central1-a",
                "tpu": {"acceleratorType": "v5p-24", "runtimeVersion": "tpu-vm-tf-2.16.1-pod-pjrt"},
            },
            "tpu.acceleratorType: the catalog does not know v5p-24",
        ),
        (
            {"tpu": {**V2, "runtimeVersion": "tpu-vm-tf-2.20.0-pod-se"}},
            "tpu.runtimeVersion: the catalog does not know tpu-vm-tf-2.20.0-pod-se",
        ),
        (
            {"vm": {"machineType": "c4-highmem-8"}},
            "vm.machineType: the catalog does not know c4-highmem-8",
        ),
        ({"vm": {"image": "my-images/trainer"}}, "vm.image: the catalog does not know the Python"),
        (
            {"training": {"tensorflowVersion": "2.22.0"}},
            "training.tensorflowVersion: the catalog does not know tensorflow-cpu 2.22.0",
        ),
    ],
)
def test_what_google_may_have_added_is_let_pass_with_a_warning(
    root: Path, settings: dict[str, object], unknown: str
) -> None:
    if "tpu" in settings and "zone" in settings:
        settings["training"] = ON_TPU
    assert [text for text in said(root, **settings) if text.startswith(unknown)]


def test_a_warning_of_something_unknown_names_what_is_like_it(root: Path) -> None:
    (first, *_) = said(root, vm={"machineType": "c4-highmem-8"})
    assert "If it is a typo: Use n2-highmem-8, n1-highmem-8" in first


@pytest.mark.parametrize(
    ("tpu", "training", "parts"),
    [
        ("tpu-vm-tf-2.16.1-se", ON_TPU, []),
        (
            "tpu-vm-tf-2.16.1-pod-se",
            {},
            ["runOn: vm (the default) with tpu-vm-tf-2.16.1-pod-se", "runOn: tpu"],
        ),
        ("tpu-vm-tf-2.16.1-pod-se", {"runOn": "vm"}, []),
        ("tpu-vm-tf-2.16.1-se", {}, ["with the tensorflow-tpu wheel's worker"]),
        (
            "tpu-vm-tf-2.18.0-pod-pjrt-v5p-and-below",
            ON_TPU,
            ["tpu-vm-tf-2.18.0-pod-pjrt-v5p-and-below may not exist", "crashes on import"],
        ),
        ("tpu-vm-tf-2.17.1-pod-se", {}, ["crashes on import", "runOn: vm"]),
    ],
)
def test_what_is_unverified_on_a_tpu_is_one_warning(
    root: Path, tpu: str, training: dict[str, object], parts: list[str]
) -> None:
    warnings = unverified(said(root, tpu={**V2, "runtimeVersion": tpu}, training=training))
    assert len(warnings) == bool(parts)
    assert all(part in warnings[0] for part in parts)
    # It comes with every preview: the page has the evidence for each part.
    assert all(len(warning.split()) <= 35 for warning in warnings)
    assert all(warning.endswith("docs/verification.md#vm-drives-a-tpu-vm") for warning in warnings)


def test_the_local_stack_has_chosen_where_it_trains() -> None:
    path = REPOSITORY / "stacks" / "Pulumi.local.yaml"
    settings = parse(yaml.safe_load(path.read_text("utf-8"))["config"], "local")
    context = context_of(settings, REPOSITORY)
    assert [text for text in find_warnings(settings, context) if "unverified" in text] == []


def test_tensorflow_on_v6e_is_doubted(root: Path) -> None:
    tpu = {"acceleratorType": "v6e-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pjrt-v5e-and-v6"}
    (warning,) = unverified(said(root, tpu=tpu, training=ON_TPU))
    assert "TensorFlow fails on v6e" in warning


@pytest.mark.parametrize("zone", ["us-central1-ai1a", "us-south1-ai1b"])
def test_an_ai_zone_is_a_zone_that_has_to_be_switched_on(root: Path, zone: str) -> None:
    tpu = {"acceleratorType": "v6e-1", "runtimeVersion": "v2-alpha-tpuv6e"}
    training = {**ON_TPU, "tensorflowVersion": "2.19.1"}
    [warning] = [text for text in said(root, zone=zone, tpu=tpu, training=training) if zone in text]
    assert "preview-features update ai-zones-visibility" in warning
    assert "--project=some-project" in warning
    assert f"The VM is in {zone.replace('-ai1', '-')}" in warning


def test_a_machine_of_compute_engine_in_an_ai_zone_has_no_vm_elsewhere(root: Path) -> None:
    about = {"zone": "us-central1-ai1a", "tpu": {"acceleratorType": "tpu7x-standard-4t"}}
    found = said(root, architecture="compute", training=ON_TPU, jobs={"enabled": True}, **about)
    [warning] = [text for text in found if "is an AI zone" in text]
    assert "preview-features update" in warning
    assert "The VM is in" not in warning


def test_an_ai_zone_that_the_catalog_does_not_know_may_be_new(root: Path) -> None:
    said_ = said(root, zone="us-east5-ai1c", tpu=V5E, training=ON_TPU)
    assert [text for text in said_ if "does not know v5litepod-8 in us-east5-ai1c" in text]


def test_a_classic_node_is_let_pass_with_googles_answer_to_others(root: Path) -> None:
    node = {"acceleratorType": "v2-8", "tensorflowVersion": "2.12.1"}
    [warning] = [text for text in said(root, architecture="node", tpu=node) if "2025" in text]
    assert "Your request to provision TPU Node has been denied" in warning
    assert "Use architecture vm" in warning


LIMITS = {"timeToLiveHours": 8}


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"vm": {"capacity": "spot"}, "limits": LIMITS}, True),
        ({"vm": {"capacity": "preemptible"}, "limits": {"idleMinutes": 30}}, True),
        ({"vm": {"capacity": "spot"}}, False),
        ({"vm": {"capacity": "spot", "instanceGroup": {}}, "limits": LIMITS}, False),
        ({"limits": LIMITS}, False),
    ],
)
def test_a_vm_that_stays_away_with_the_limits_it_keeps_is_warned_of(
    root: Path, settings: dict[str, object], told: bool
) -> None:
    found = [text for text in said(root, **settings) if text.startswith("limits: ")]
    assert bool(found) == told
    assert all("`tpustack ci limits --stack test` each hour" in text for text in found)
