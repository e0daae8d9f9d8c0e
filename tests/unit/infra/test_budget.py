"""The budget, and which APIs the stack enables for it."""

from __future__ import annotations

from typing import Any

import pulumi
import pytest

from .conftest import Declared, Run, config

ACCOUNT = "0A1B2C-3D4E5F-607182"


def services(declared: list[Declared]) -> set[str]:
    return {one.inputs["service"].partition(".")[0] for one in declared}


def test_without_the_setting_there_is_no_budget_and_nothing_is_enabled_for_it(run: Run) -> None:
    engine, _ = run(config())
    assert engine.of("Budget") == []
    assert services(engine.of("Service")) == {
        "tpu", "compute", "storage", "iam", "cloudresourcemanager",
    }  # fmt: skip


def test_a_budget_counts_the_project_and_tells_at_the_thresholds(run: Run) -> None:
    settings = {"amount": 500, "thresholds": [100, 50]}
    engine, _ = run(config(budget=settings))
    budget = engine.one("Budget")
    assert budget["billingAccount"] == ACCOUNT
    assert budget["amount"] == {"specifiedAmount": {"units": "500"}}
    assert budget["budgetFilter"] == {"projects": ["projects/123456789012"]}
    assert [rule["thresholdPercent"] for rule in budget["thresholdRules"]] == [0.5, 1.0]
    assert "allUpdatesRule" not in budget


@pytest.mark.parametrize(
    ("settings", "filtered"),
    [({}, None), ({"scope": "stack"}, {"tpu-stack": "test"})],
)
def test_a_budget_of_the_stack_counts_what_carries_its_label(
    run: Run, settings: dict[str, Any], filtered: dict[str, str] | None
) -> None:
    engine, _ = run(config(budget={"amount": 5, **settings}))
    assert engine.one("Budget")["budgetFilter"].get("labels") == filtered
    assert engine.one("Instance")["labels"]["tpu-stack"] == "test"


def test_addresses_and_a_topic_of_the_stacks_own_are_told(run: Run) -> None:
    told = {"emails": ["a@example.com", "b@example.com"], "pubsubTopic": "alerts"}
    engine, _ = run(config(budget={"amount": 5, **told}))
    channels = {one.inputs["labels"]["email_address"] for one in engine.of("NotificationChannel")}
    assert channels == {"a@example.com", "b@example.com"}
    rule = engine.one("Budget")["allUpdatesRule"]
    assert len(rule["monitoringNotificationChannels"]) == 2
    assert rule["pubsubTopic"] == "topic-id"
    assert services(engine.of("Service")) >= {"monitoring", "pubsub", "billingbudgets"}


def test_a_given_topic_is_told_and_none_is_made(run: Run) -> None:
    topic = "projects/ops/topics/alerts"
    engine, _ = run(config(budget={"amount": 5, "pubsubTopic": topic}))
    assert engine.of("Topic") == []
    assert engine.one("Budget")["allUpdatesRule"] == {"pubsubTopic": topic}


def test_the_stack_enables_no_apis_with_enable_apis_false(run: Run) -> None:
    engine, _ = run(config(enableApis=False, budget={"amount": 5}, bucket={"encryption": {}}))
    assert engine.of("Service") == []
    assert len(engine.of("Budget")) == len(engine.of("CryptoKey")) == 1


def test_a_budget_is_asked_for_with_the_programs_own_credentials_in_its_projects_name(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = {"gcp:accessToken": "a-token"}
    monkeypatch.setattr(
        pulumi.Config,
        "get_secret",
        lambda config, key: (
            pulumi.Output.secret(token[f"{config.name}:{key}"])
            if f"{config.name}:{key}" in token
            else None
        ),
    )
    engine, _ = run(config(budget={"amount": 5}))
    (provider,) = (one.inputs for one in engine.resources if one.kind == "pulumi:providers:gcp")
    assert provider["billingProject"] == "some-project"
    assert provider["userProjectOverride"] == "true"
    # Wrapped as a secret, so that the state has it encrypted.
    assert provider["accessToken"]["value"] == "a-token"
