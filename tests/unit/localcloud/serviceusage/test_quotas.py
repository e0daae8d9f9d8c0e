"""Quotas of TPUs as Service Usage tells them."""

from __future__ import annotations

from localcloud.core import projects
from localcloud.core.cloud import SETTING, Cloud
from localcloud.testing import Client

METRICS = (
    f"serviceusage.googleapis.com/v1beta1/projects/{projects.DEFAULT_PROJECT}/services/"
    "{}/consumerQuotaMetrics"
)


def limits(api: Client, zone: str) -> dict[str, str]:
    metrics = api.get(METRICS.format("tpu.googleapis.com"))["metrics"]
    return {
        metric["metric"].partition("/")[2]: bucket["effectiveLimit"]
        for metric in metrics
        for bucket in metric["consumerQuotaLimits"][0]["quotaBuckets"]
        if bucket.get("dimensions") == {"zone": zone}
    }


def test_a_tpus_quota_is_what_the_setting_says_and_unlimited_without(
    api: Client, cloud: Cloud
) -> None:
    assert set(limits(api, "us-central1-b").values()) == {"-1"}
    cloud.store.put(SETTING, "quota", {"TPUV2sPreemptiblePerProjectPerZoneForTPUAPI": 8})
    found = limits(api, "us-central1-b")
    assert found["tpu-v2-preemptible"] == "8"
    assert (found["tpu-v2"], found["tpu-v2-pod-preemptible"]) == ("-1", "-1")
    assert found.keys() >= {"tpu-v5s-litepod-preemptible", "tpu-v5s-litepod-serving-preemptible"}
    assert "tpu-v4s-preemptible" in found


def test_other_apis_have_no_quotas_and_strangers_see_none(api: Client) -> None:
    assert api.get(METRICS.format("storage.googleapis.com")) == {}
    url = METRICS.format("tpu.googleapis.com")
    api.as_member("user:stranger@example.com").get(url, status=403)
