"""IAM policies on single instances."""

from __future__ import annotations

from localcloud.core import access
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.services.compute.api import API
from localcloud.services.compute.fingerprints import fingerprint
from localcloud.services.compute.instances.records import path_of_call, policies
from localcloud.services.compute.resources import load


@API.method(
    "instances.getIamPolicy", permission="compute.instances.getIamPolicy", resources=policies
)
def get_iam_policy(cloud: Cloud, call: Call) -> Json:
    """The policy that is set on the instance itself."""
    path = path_of_call(call)
    load(cloud, path)
    return access.policy(cloud, path)


@API.method(
    "instances.setIamPolicy", permission="compute.instances.setIamPolicy", resources=policies
)
def set_iam_policy(cloud: Cloud, call: Call) -> Json:
    """Replace the policy; an etag must be the current one."""
    path = path_of_call(call)
    with cloud.store.locked():
        load(cloud, path)
        # The plain bindings and etag beside `policy` are the deprecated form of the request.
        sent = call.body.get("policy") or {k: v for k, v in call.body.items() if k != "policy"}
        current = access.policy(cloud, path)
        if sent.get("etag", current["etag"]) != current["etag"]:
            raise ApiError(
                409,
                "There were concurrent policy changes. Please retry the whole read-modify-write "
                "with exponential backoff.",
                status="ABORTED",
            )
        bindings = sent.get("bindings", [])
        fresh = {
            "version": sent.get("version", 1),
            "etag": fingerprint([current["etag"], bindings]),
            "bindings": bindings,
        }
        cloud.store.put(access.POLICY, path, fresh)
        return fresh


@API.method("instances.testIamPermissions")
def test_iam_permissions(cloud: Cloud, call: Call) -> Json:
    """Which of the named permissions the caller has on the instance."""
    resources = policies(cloud, call)
    load(cloud, path_of_call(call))
    wanted = call.body.get("permissions", [])
    granted = [p for p in wanted if access.allowed(cloud, call.principal, p, resources)]
    return {"permissions": granted} if granted else {}
