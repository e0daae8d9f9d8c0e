"""The Service Usage API: which APIs a project has enabled, and its quotas of TPUs."""

from collections.abc import Sequence
from urllib.parse import quote

from localcloud.core import Api, ApiError, Call, Cloud, Collection, Json, invalid, page, projects
from localcloud.core.errors import error_info, failed_precondition, not_found
from localcloud.core.store import EMPTY, Record, Work, effect
from localcloud.services.compute import catalog as machines
from localcloud.services.tpu import catalog

API = Api("serviceusage", ("v1", "v1beta1"), gated=False)
_TYPE = "type.googleapis.com/google.api.serviceusage"
# Google's name of an operation that had nothing to do; the provider knows it.
_NOTHING_TO_DO = "operations/noop.DONE_OPERATION"
# "The default page size is 50" (the discovery document).
_PAGE = 50


def _project(cloud: Cloud, call: Call) -> str:
    parent = call.params.get("parent") or call.params.get("name", "")
    return projects.identifier(cloud, parent.split("/")[1])


def resources_of(cloud: Cloud, call: Call) -> Sequence[str]:
    """Return whose policy counts: the project's."""
    return (f"projects/{_project(cloud, call)}",)


_SERVICES = Collection(API, "services", "serviceusage.services", resources_of)


def _service(call: Call) -> str:
    name = call.params.get("name") or call.params["parent"]
    return _known(name.split("/")[-1])


def _known(service: str) -> str:
    if service in projects.known_services():
        return service
    reason, domain = "SERVICE_CONFIG_NOT_FOUND_OR_PERMISSION_DENIED", "serviceusage.googleapis.com"
    message = f"Not found or permission denied for service(s): {service}."
    raise ApiError(403, message, details=[error_info(reason, domain, services=service)])


def _is_enabled(cloud: Cloud, project: str, service: str) -> bool:
    key = projects.service_key(project, service)
    return cloud.store.get(projects.ENABLED_SERVICE, key) is not None


def _view(cloud: Cloud, project: str, service: str) -> Json:
    number = projects.number(project)
    return {
        "name": f"projects/{number}/services/{service}",
        "parent": f"projects/{number}",
        "config": {"name": service, "title": projects.known_services()[service]["title"]},
        "state": "ENABLED" if _is_enabled(cloud, project, service) else "DISABLED",
    }


@_SERVICES.method("get")
def _get(cloud: Cloud, call: Call) -> Json:
    return _view(cloud, _project(cloud, call), _service(call))


@_SERVICES.method("list")
def list_(cloud: Cloud, call: Call) -> Json:
    """Return the APIs, all or by `filter=state:ENABLED` or `state:DISABLED`."""
    project = _project(cloud, call)
    views = [_view(cloud, project, service) for service in sorted(projects.known_services())]
    if wanted := call.arg("filter"):
        field, _, state = wanted.partition(":")
        if field != "state" or state not in ("ENABLED", "DISABLED"):
            raise invalid(f"Invalid filter {wanted}: it must be state:ENABLED or state:DISABLED")
        views = [view for view in views if view["state"] == state]
    return page(call, "services", views, size=_PAGE)


@_SERVICES.method("enable")
def _enable(cloud: Cloud, call: Call) -> Json:
    return _start(cloud, _project(cloud, call), [_service(call)], "EnableServiceResponse")


@_SERVICES.method("batchEnable", verb="enable")
def batch_enable(cloud: Cloud, call: Call) -> Json:
    """Enable several APIs, at most 20 as the discovery document says, all or none."""
    names = call.body.get("serviceIds", [])
    if not 0 < len(names) <= 20:
        raise invalid(f"serviceIds must name 1 to 20 services, got {len(names)}")
    known = list(map(_known, names))
    return _start(cloud, _project(cloud, call), known, "BatchEnableServicesResponse")


@_SERVICES.method("disable")
def disable(cloud: Cloud, call: Call) -> Json:
    """Disable one API; those that depend on it only if the caller says so.

    What the API has made stays: it is there again when it is enabled.
    """
    project, service = _project(cloud, call), _service(call)
    if call.body.get("checkIfServiceHasUsage") == "CHECK":
        raise ApiError(501, "the local cloud keeps no usage of an API, by which to refuse")
    needing = [
        name
        for name, about in projects.known_services().items()
        if service in about.get("needs", []) and _is_enabled(cloud, project, name)
    ]
    if not call.body.get("disableDependentServices") and needing:
        raise failed_precondition(
            f"The service {service} is depended on by the following active service(s): "
            f"{', '.join(needing)}. Please specify disable_dependent_services=true if you want "
            "to proceed with disabling all services."
        )
    for name in [*needing, service]:
        cloud.store.delete(projects.ENABLED_SERVICE, projects.service_key(project, name))
    shown = _view(cloud, project, service)
    response = {"@type": f"{_TYPE}.v1.DisableServiceResponse", "service": shown}
    return _operation(cloud, Work("report", {"response": response}))


@_SERVICES.method("generateServiceIdentity", verb="enable", versions=("v1beta1",))
def generate_service_identity(cloud: Cloud, call: Call) -> Json:
    """Return the account as which the API acts in the project.

    An API without an agent of its own answers without an address, as Google does.
    """
    service = _service(call)
    number = projects.number(_project(cloud, call))
    short = service.split(".")[0]
    agent = projects.known_services()[service].get("agent", f"gcp-sa-{short}")
    identity = {"@type": f"{_TYPE}.v1beta1.ServiceIdentity"}
    if agent:
        identity["email"] = f"service-{number}@{agent}.iam.gserviceaccount.com"
        identity["uniqueId"] = str(100_000_000_000_000_000_000 + int(number))
    return _operation(cloud, Work("report", {"response": identity}))


@API.method("operations.get")
def _get_operation(cloud: Cloud, call: Call) -> Json:
    name = call.params["name"]
    if name == _NOTHING_TO_DO:
        return {"name": name, "done": True}
    record = cloud.operations.load(f"serviceusage/{name}", not_found(name))
    return _operation_view(name, record)


@effect("service.enabled")
def tell_enabled(cloud: Cloud, project: str, services: list[str], kind: str) -> Json:
    """Return the enabled services, as the operation's response.

    They are read when it ends, not when it began.
    """
    views = [_view(cloud, project, service) for service in services]
    what = {"service": views[0]} if kind == "EnableServiceResponse" else {"services": views}
    return {"@type": f"{_TYPE}.v1.{kind}", **what}


def _start(cloud: Cloud, project: str, services: list[str], kind: str) -> Json:
    if all(_is_enabled(cloud, project, service) for service in services):
        response = tell_enabled(cloud, project, services, kind)
        return {"name": _NOTHING_TO_DO, "done": True, "response": response}
    # The operation ends first; calls are let through only after as long again.
    seconds = cloud.seconds("service.enable")
    projects.enable_services(cloud, project, services, after=2 * seconds)
    arguments = {"project": project, "services": services, "kind": kind}
    work = Work("service.enabled", arguments, seconds)
    names = [_view(cloud, project, service)["name"] for service in services]
    batch = {"@type": f"{_TYPE}.v1.OperationMetadata", "resourceNames": names}
    return _operation(cloud, work, EMPTY if kind == "EnableServiceResponse" else batch)


def _operation(cloud: Cloud, work: Work, metadata: Json | None = None) -> Json:
    name, about = f"operations/acf.local-{cloud.operations.number()}", {"metadata": metadata or {}}
    return _operation_view(name, cloud.operations.start(f"serviceusage/{name}", work, about))


# Fields that are empty are left out, as in recorded answers: not even `done` is there before the
# end.
def _operation_view(name: str, record: Record) -> Json:
    view: Json = {"name": name}
    if not record["done"]:
        return view
    view["done"] = True
    if record["about"]["metadata"]:
        view["metadata"] = record["about"]["metadata"]
    if record.get("error"):
        view["error"] = {key: record["error"][key] for key in ("code", "message")}
    else:
        view["response"] = record["response"]
    return view


# Quotas of TPUs: by metric and zone, and those of Compute Engine by metric and region.

_TPU, _COMPUTE = "tpu.googleapis.com", "compute.googleapis.com"
# "The limit is unlimited", in the words of the discovery document.
_UNLIMITED = "-1"
_METRICS = Collection(API, "services.consumerQuotaMetrics", "serviceusage.quotas", resources_of)


@_METRICS.method("list", verb="get", versions=("v1beta1",))
def list_quotas(cloud: Cloud, call: Call) -> Json:
    """Return the quotas of an API; only TPUs have any here.

    Limits are the ones of the settings `quota` and `compute.quota`; without an entry there is no
    limit. The buckets have one for all places and one for each.
    """
    _, project, _, service = call.params["parent"].split("/")
    parent = f"projects/{projects.number(projects.identifier(cloud, project))}/services/{service}"
    of = {_TPU: _of_nodes, _COMPUTE: _of_machines}.get(service)
    found = of(cloud) if of else {}
    shown = [_quota_view(parent, metric, *found[metric]) for metric in sorted(found)]
    return page(call, "metrics", shown)


Buckets = tuple[str, list[tuple[dict[str, str], int | None]]]


def _of_nodes(cloud: Cloud) -> dict[str, Buckets]:
    limits, found = cloud.setting("quota"), dict[str, Buckets]()
    for one in catalog.accelerators().values():
        for spot in (False, True):
            limit = limits.get(one.metric(preemptible=spot))
            everywhere = [({"zone": zone}, limit) for zone in catalog.zones()]
            found[one.quota_metric(preemptible=spot)] = ("zone", [({}, limit), *everywhere])
    return found


def _of_machines(cloud: Cloud) -> dict[str, Buckets]:
    """Return the quotas of machines with a TPU; generations that share one have their own part."""
    limits, found = cloud.setting("compute.quota"), dict[str, Buckets]()
    for about in machines.tpu_machines().values():
        quotas = about["quotas"]
        for kind in ("standard", "spot") if quotas else ():
            own = (
                {"tpu_family": quotas["family"]}
                if kind == "standard" and "family" in quotas
                else {}
            )
            given = limits.get(quotas[kind], {})
            regions = sorted({zone.rpartition("-")[0] for zone in about["zones"]})
            buckets = [({"region": one, **own}, given.get(one)) for one in regions]
            found[f"{_COMPUTE}/{quotas[kind].lower()}"] = ("region", buckets)
    return found


# A metric has one limit here, by project and place; its name in a path is percent-encoded.
def _quota_view(
    parent: str, metric: str, place: str, limits: list[tuple[dict[str, str], int | None]]
) -> Json:
    name = f"{parent}/consumerQuotaMetrics/{quote(metric, safe='')}"
    buckets = [
        {
            "effectiveLimit": _UNLIMITED if limit is None else str(limit),
            "defaultLimit": "0",
            **({"dimensions": dimensions} if dimensions else {}),
        }
        for dimensions, limit in limits
    ]
    one = {
        "name": f"{name}/limits/{quote(f'/project/{place}', safe='')}",
        "metric": metric,
        "unit": f"1/{{project}}/{{{place}}}",
        "quotaBuckets": buckets,
    }
    shown = {"name": name, "metric": metric, "displayName": metric.partition("/")[2]}
    return shown | {"consumerQuotaLimits": [one], "unit": "1"}
