"""What a project may use of TPUs, as Service Usage tells it: by metric, limit and zone."""

from __future__ import annotations

from urllib.parse import quote

from localcloud.core import projects
from localcloud.core.call import Call, Json, page
from localcloud.core.cloud import Cloud
from localcloud.core.registry import Collection
from localcloud.services.serviceusage import API, resources_of
from localcloud.services.tpu import catalog

_SERVICE = "tpu.googleapis.com"
_UNIT = "1/{project}/{zone}"
# "The limit is unlimited", in the words of the discovery document.
_UNLIMITED = "-1"
_METRICS = Collection(API, "services.consumerQuotaMetrics", "serviceusage.quotas", resources_of)


@_METRICS.method("list", verb="get", versions=("v1beta1",))
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the quotas of an API; of those here, Cloud TPU alone has some."""
    _, project, _, service = call.params["parent"].split("/")
    if service != _SERVICE:
        return page(call, "metrics", [])
    limits = cloud.setting("quota")
    metrics = {
        accelerator.quota_metric(preemptible=preemptible): accelerator.metric(
            preemptible=preemptible
        )
        for accelerator in catalog.accelerators().values()
        for preemptible in (False, True)
    }
    number = projects.number(projects.identifier(cloud, project))
    shown = [
        _view(f"projects/{number}/services/{service}", metric, limits.get(limit))
        for metric, limit in sorted(metrics.items())
    ]
    return page(call, "metrics", shown)


def _view(parent: str, metric: str, limit: int | None) -> Json:
    name = f"{parent}/consumerQuotaMetrics/{quote(metric, safe='')}"
    effective = _UNLIMITED if limit is None else str(limit)
    buckets = [
        {"effectiveLimit": effective, "defaultLimit": "0", "dimensions": {"zone": zone}}
        for zone in catalog.zones()
    ]
    one = {
        "name": f"{name}/limits/{quote('/project/zone', safe='')}",
        "metric": metric,
        "unit": _UNIT,
        "quotaBuckets": [{"effectiveLimit": effective, "defaultLimit": "0"}, *buckets],
    }
    short = metric.partition("/")[2]
    return {
        "name": name,
        "metric": metric,
        "displayName": short,
        "consumerQuotaLimits": [one],
        "unit": "1",
    }
