"""Alerting policies on log entries: who gets which mail. Policies on metrics are not served."""

from __future__ import annotations

from localcloud.core.call import Call, Json, page
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.registry import Collection
from localcloud.core.store import Record
from localcloud.services.logging import filters
from localcloud.services.monitoring.channels import API, CHANNEL, POLICY

_POLICIES = Collection(API, "projects.alertPolicies", "monitoring.alertPolicies")
_FIELDS = (
    *("displayName", "documentation", "userLabels", "conditions", "combiner", "enabled"),
    *("notificationChannels", "alertStrategy", "severity"),
)
_COMBINERS = ("AND", "OR", "AND_WITH_MATCHING_RESOURCE")


@_POLICIES.method("create")
def create(cloud: Cloud, call: Call) -> Json:
    """Create a policy."""
    name = f"projects/{call.project}/alertPolicies/{cloud.operations.number()}"
    changed = _changed(cloud, call)
    return _put(
        cloud, {"name": name, "creationRecord": changed, "enabled": True} | call.sent(_FIELDS), call
    )


@_POLICIES.method("get")
def get(cloud: Cloud, call: Call) -> Json:
    """Return one policy."""
    return _load(cloud, call)


@_POLICIES.method("list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the policies of a project."""
    found = cloud.store.items(POLICY, f"projects/{call.project}/")
    shown = page(call, "alertPolicies", [record for _, record in found])
    return shown | {"totalSize": len(found)}


@_POLICIES.method("patch", verb="update")
def patch(cloud: Cloud, call: Call) -> Json:
    """Change what the mask names, or all; a field that is not sent is taken away."""
    record, sent = _load(cloud, call), call.sent(_FIELDS)
    mask = call.mask() or list(_FIELDS)
    if unknown := [field for field in mask if field not in _FIELDS]:
        raise ApiError(501, f"the local cloud does not change policies' {', '.join(unknown)}")
    kept = {field: value for field, value in record.items() if field not in mask}
    return _put(cloud, kept | {field: sent[field] for field in mask if field in sent}, call)


@_POLICIES.method("delete")
def delete(cloud: Cloud, call: Call) -> Json:
    """Delete a policy."""
    cloud.store.delete(POLICY, _load(cloud, call)["name"])
    return {}


def _load(cloud: Cloud, call: Call) -> Record:
    number = call.params["alertPoliciesId"]
    name = f"projects/{call.project}/alertPolicies/{number}"
    return cloud.store.load(POLICY, name, ApiError(404, f"Cannot find alert policy {number}."))


def _changed(cloud: Cloud, call: Call) -> Json:
    return {"mutateTime": rfc3339(cloud.clock.now()), "mutatedBy": call.principal.email}


def _put(cloud: Cloud, record: Record, call: Call) -> Json:
    conditions = record.get("conditions") or []
    if not conditions or record.get("combiner") not in _COMBINERS:
        raise invalid("Field alert_policy must have a combiner and at least one condition.")
    for number, condition in enumerate(conditions):
        _check_condition(condition)
        condition.setdefault("name", f"{record['name']}/conditions/{number}")
    strategy = record.get("alertStrategy", {})
    if len(conditions) > 1 or not strategy.get("notificationRateLimit", {}).get("period"):
        # https://docs.cloud.google.com/monitoring/api/ref_v3/rest/v3/projects.alertPolicies
        raise invalid(
            "A policy with a log match condition has one condition, and needs "
            "alert_strategy.notification_rate_limit."
        )
    for channel in record.get("notificationChannels", []):
        if cloud.store.get(CHANNEL, channel) is None:
            raise invalid(f"Field alert_policy.notification_channels: no channel {channel}.")
    record["mutationRecord"] = _changed(cloud, call)
    cloud.store.put(POLICY, record["name"], record)
    return record


def _check_condition(condition: Json) -> None:
    matched = condition.get("conditionMatchedLog")
    if matched is None:
        raise ApiError(501, "the local cloud's policies are on log entries (conditionMatchedLog)")
    if not filters.parse(matched.get("filter", "")):
        raise invalid("Field condition_matched_log.filter is required.")
