"""The form of a stack file: what stands in the wrong place, or is written as another type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulumi
import pytest
import yaml

from tpu_infra.checks import with_checks
from tpu_infra.settings.base import SettingsError
from tpu_infra.settings.parse import load_stack_file, parse, settings_from_engine

from .conftest import config, context_of

RIGHT = "config: {gcp:project: some-project, tpu-stack:zone: us-central1-b}\n"
POD = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se"}


def said(refusal: pytest.ExceptionInfo[SettingsError]) -> list[str]:
    return [str(problem) for problem in refusal.value.problems]


def refused(settings: dict[str, Any]) -> list[str]:
    with pytest.raises(SettingsError) as refusal:
        parse(settings, "test")
    return said(refusal)


@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        (
            "tpustack:tpu",
            {"slices": 2},
            'tpustack:tpu: {"slices": 2} is in a namespace that this program doesn\'t read. Write '
            "tpu-stack:tpu.",
        ),
        (
            "google:number",
            1,
            (
                "google:number: 1 is in a namespace that this program doesn't read. Use "
                "tpu-stack or gcp."
            ),
        ),
        (
            "tpustack:project",
            "p",
            "tpustack:project: \"p\" is the provider's setting, not this program's. "
            "Set it as gcp:project.",
        ),
        (
            "gcp:zone",
            "us-central1-b",
            'gcp:zone: "us-central1-b" is a default of the provider, which has no effect here. '
            "Set tpu-stack:zone, whose region all resources use.",
        ),
    ],
)
def test_a_setting_in_a_namespace_that_nothing_reads_is_refused(
    setting: str, value: object, told: str
) -> None:
    assert refused({**config(), setting: value}) == [told]


def test_settings_of_the_provider_and_of_pulumi_are_left_alone() -> None:
    parse({**config(), "gcp:accessToken": "t", "pulumi:tags": {"a": "b"}}, "test")


def test_a_setting_without_a_namespace_is_the_programs_own_as_pulumi_reads_it() -> None:
    settings = {"gcp:project": "some-project", "zone": "us-central1-b"}
    assert parse(settings, "test").zone == "us-central1-b"


def test_settings_next_to_config_are_reported_and_read_as_they_were_meant(tmp_path: Path) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text(
        "secretsprovider: passphrase\nconfig:\n  gcp:project: some-project\n"
        "tpu-stack:zone: us-central1-b\ntpu-stack:vm: {bootDiskGib: 5}\nnonsense: 1\n"
    )
    with pytest.raises(SettingsError) as refusal:
        load_stack_file(path)
    where = "is next to config, where Pulumi doesn't read it. Indent it, below config."
    assert said(refusal) == [
        f'tpu-stack:zone: "us-central1-b" {where}',
        f'tpu-stack:vm: {{"bootDiskGib": 5}} {where}',
        f"nonsense: 1 {where}",
        "vm.bootDiskGib: 5 is too small. Use at least 20.",
    ]


@pytest.mark.parametrize(
    ("group", "told"),
    [
        ({"tpu": {**POD, "slices": "2"}}, 'tpu.slices: "2" is not a whole number.'),
        ({"tpu": {**POD, "slices": True}}, "tpu.slices: true is not a whole number."),
        ({"bucket": {"protect": "yes"}}, 'bucket.protect: "yes" is not true or false.'),
        ({"bucket": {"protect": 1}}, "bucket.protect: 1 is not true or false."),
        ({"limits": {"idleMinutes": "30"}}, 'limits.idleMinutes: "30" is not a number.'),
        (
            {"tpu": {**POD, "dataDisks": [{"name": "a", "sizeGib": "100"}]}},
            'tpu.dataDisks[0].sizeGib: "100" is not a whole number.',
        ),
        (
            {"budget": {"amount": 1, "thresholds": ["50"]}},
            'budget.thresholds[0]: "50" is not a whole number.',
        ),
        (
            {"tpu": {**POD, "queued": yaml.safe_load("validUntil: 2099-01-31T18:00:00Z")}},
            "tpu.queued.validUntil: 2099-01-31 18:00:00+00:00 is a date in YAML, which Pulumi",
        ),
    ],
)
def test_a_text_in_the_place_of_a_number_or_a_flag_is_refused(
    group: dict[str, Any], told: str
) -> None:
    (problem,) = refused(config(**group))
    assert problem.startswith(told)


def test_a_value_of_another_type_is_refused_once() -> None:
    settings = config(tpu={**POD, "slices": "many"}, bucket={"protect": {"x": "perhaps"}})
    assert [problem.partition(":")[0] for problem in refused(settings)] == [
        "tpu.slices",
        "bucket.protect",
    ]


def test_a_flag_in_no_group_may_be_a_text_as_pulumi_writes_it() -> None:
    assert not parse(config(enableApis="false"), "test").enable_apis


def test_every_wrong_label_is_told_at_once() -> None:
    (problem,) = refused(config(labels={"Team": "a", "ok": "fine", "b": "B", "tpu-stack": "c"}))
    for label in ("'Team': 'a'", "'b': 'B'", "'tpu-stack'"):
        assert label in problem
    assert "'ok'" not in problem


def problems_of(settings: dict[str, object], root: Path) -> list[str]:
    with pytest.raises(SettingsError) as refusal:
        parse(settings, "test")
    whole = with_checks(refusal.value, lambda rest: context_of(rest, root))
    return [str(problem) for problem in whole.problems]


def test_what_is_missing_is_told_all_at_once(root: Path) -> None:
    found = problems_of({"tpu-stack:vm": {"machineType": "n1-nosuch-2"}}, root)
    assert [problem.partition(" ")[0].rstrip(":") for problem in found] == [
        "gcp:project",
        "zone",
        "vm.machineType",
        "tpu.runtimeVersion",
    ]


def test_a_misspelled_setting_is_not_reported_as_missing_too(
    root: Path,
) -> None:
    (problem,) = problems_of(config(tpu={"runtime": "tpu-vm-tf-2.18.0-pod-se"}), root)
    assert problem.startswith("tpu.runtime: ")


SECRET = (
    'training: "[secret]" is a secret, but settings are stored unencrypted in the state and in '
    "the resources. Set it without --secret if it is public. Put a token in Secret Manager, from "
    "which the training reads it (docs/ci-cd.md)."
)


def test_a_secret_is_refused_alike_in_a_file_and_by_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "Pulumi.dev.yaml"
    path.write_text(f"{RIGHT[:-2]}, tpu-stack:training: {{args: [a, {{secure: v1:x}}]}}}}\n")
    with pytest.raises(SettingsError) as refusal:
        load_stack_file(path)
    assert said(refusal) == [SECRET]
    there = {"gcp:project": "some-project", "tpu-stack:zone": "us-central1-b"}
    there |= {"tpu-stack:training": '{"args":["--token=hush"]}', "gcp:accessToken": "hush"}
    monkeypatch.setenv("PULUMI_CONFIG", json.dumps(there))
    keys = ["tpu-stack:training", "gcp:accessToken"]
    monkeypatch.setenv("PULUMI_CONFIG_SECRET_KEYS", json.dumps(keys))
    monkeypatch.setattr(pulumi, "get_stack", lambda: "dev")
    with pytest.raises(SettingsError) as refusal:
        settings_from_engine()
    assert said(refusal) == [SECRET]
    assert "hush" not in str(refusal.value)


@pytest.mark.parametrize("setting", ["gcp:project", "tpu-stack:zone"])
def test_a_required_setting_that_is_a_secret_is_refused_once(setting: str) -> None:
    (problem,) = refused({**config(), setting: {"secure": "v1:x"}})
    assert problem.startswith(f'{setting.removeprefix("tpu-stack:")}: "[secret]" is a secret')
