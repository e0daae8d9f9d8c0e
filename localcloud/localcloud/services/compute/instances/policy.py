"""IAM policies on single instances."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.services import iam_policy
from localcloud.services.compute.api import API
from localcloud.services.compute.instances.records import INSTANCES, KIND
from localcloud.services.compute.instances.records import policies as resources_of
from localcloud.services.compute.resources import load


@INSTANCES.method("getIamPolicy")
def get_iam_policy(cloud: Cloud, call: Call) -> Json:
    """Return the policy that is set on the instance itself."""
    path = KIND.path(call)
    load(cloud, path)
    return iam_policy.shown(iam_policy.read(cloud, path), call.arg("optionsRequestedPolicyVersion"))


@INSTANCES.method("setIamPolicy")
def set_iam_policy(cloud: Cloud, call: Call) -> Json:
    """Replace the policy; an etag must be the current one."""
    path = KIND.path(call)
    load(cloud, path)
    bindings = call.body.get("policy", call.body).get("bindings", [])
    right = "compute.instances.setIamPolicy"
    known = iam_policy.read(cloud, path)["bindings"]
    iam_policy.require_modified(cloud, call, right, resources_of(cloud, call), known, bindings)
    return iam_policy.write(cloud, path, call.body)


@API.method("instances.testIamPermissions")
def test_iam_permissions(cloud: Cloud, call: Call) -> Json:
    """Return which of the named permissions the caller has on the instance."""
    load(cloud, KIND.path(call))
    wanted = call.body.get("permissions", [])
    return iam_policy.granted(cloud, call.principal, resources_of(cloud, call), wanted, "compute")
