"""Subnetworks: ranges that must not overlap, and the addresses given out of them."""

from __future__ import annotations

from ipaddress import IPv4Network

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.core.store import Record
from localcloud.services.compute import catalog, shared_vpc
from localcloud.services.compute.api import API, STORE
from localcloud.services.compute.kinds import Kind, tidy
from localcloud.services.compute.links import last, path_from, path_of, url_of
from localcloud.services.compute.networks import SUBNETWORK, require_own_network, subnets
from localcloud.services.compute.paging import page
from localcloud.services.compute.resources import changes, load, serve

_LONGEST_PREFIX = 29
_USABLE = ("network", "ipCidrRange", "purpose", "stackType")


def parse_range(text: str, field: str) -> IPv4Network:
    """Return an IPv4 range in CIDR notation.

    Raises:
        ApiError: 400 when it is not one, has host bits, or is longer than /29.
    """
    try:
        network = IPv4Network(text)
    except ValueError as error:
        raise invalid(f"Invalid value for field '{field}': '{text}'. {error}.") from None
    if "/" not in text or network.prefixlen > _LONGEST_PREFIX:
        raise invalid(
            f"Invalid value for field '{field}': '{text}'. The range must have a prefix length "
            f"between 8 and {_LONGEST_PREFIX}."
        )
    return network


def ranges(subnet: Record) -> list[IPv4Network]:
    """Return the primary and secondary ranges of a subnetwork."""
    secondary = [r["ipCidrRange"] for r in subnet.get("secondaryIpRanges", [])]
    return [IPv4Network(text) for text in [subnet["ipCidrRange"], *secondary]]


def require_subnetwork(
    cloud: Cloud, project: str, zone: str, reference: str, network: str
) -> Record:
    """Return the subnetwork that `reference` names, or the network's own one in the zone's region.

    Args:
        cloud: the cloud.
        project: of references that name none.
        zone: where the machine is.
        reference: URL, path, bare name, or empty.
        network: path of the network, for an empty `reference`.

    Raises:
        ApiError: 404 when there is none, 400 when it lies in another region or network.
    """
    region = catalog.region_of(zone)
    if not reference:
        for subnet in subnets(cloud, network):
            if last(subnet["region"]) == region:
                return subnet
        raise invalid(
            f"Invalid value for field 'networkInterfaces[0].subnetwork': ''. Network '{network}' "
            f"has no subnetwork in region {region}; name one."
        )
    if "/" not in reference:
        reference = f"regions/{region}/subnetworks/{reference}"
    path = path_of(reference, project)
    subnet = load(cloud, path)
    shared_vpc.require_lent(cloud, project, path)
    if last(subnet["region"]) != region:
        raise invalid(f"Subnetwork '{reference}' lies in another region than zone {zone}.")
    if network and path_from(subnet["network"]) != network:
        raise invalid(f"Subnetwork '{reference}' is not in network '{network}'.")
    return subnet


def _require_no_overlap(cloud: Cloud, record: Json) -> None:
    wanted = ranges(record)
    for other in subnets(cloud, path_from(record["network"])):
        if other["selfLink"] == record["selfLink"]:
            continue
        for mine in wanted:
            for theirs in ranges(other):
                if mine.overlaps(theirs):
                    raise invalid(
                        f"Invalid IPCidrRange: {mine} conflicts with existing subnetwork "
                        f"'{other['name']}' in region '{last(other['region'])}'."
                    )
    for index, mine in enumerate(wanted):
        if any(mine.overlaps(other) for other in wanted[:index]):
            raise invalid(f"Invalid IPCidrRange: {mine} overlaps another range of the subnetwork.")


def _check_ranges(record: Json) -> None:
    if not record.get("ipCidrRange"):
        raise invalid("Invalid value for field 'resource.ipCidrRange': ''. It must be given.")
    record["ipCidrRange"] = str(parse_range(record["ipCidrRange"], "resource.ipCidrRange"))
    for secondary in record.get("secondaryIpRanges", []):
        parse_range(secondary["ipCidrRange"], "resource.secondaryIpRanges.ipCidrRange")


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    network = require_own_network(cloud, call.project, record.get("network", ""))
    record["network"] = url_of(network)
    _check_ranges(record)
    _require_no_overlap(cloud, record)
    _complete_logging(record, record)
    first = IPv4Network(record["ipCidrRange"])[1]
    record["gatewayAddress"] = str(first)
    owner = load(cloud, network)
    owner["subnetworks"] = [*owner.get("subnetworks", []), record["selfLink"]]
    cloud.store.put(STORE, network, owner)


def _complete_logging(record: Json, sent: Json) -> None:
    """Write the switch of the flow logs, if `sent` has one, into both of its places."""
    if "enable" in sent.get("logConfig", {}):
        record["enableFlowLogs"] = sent["logConfig"]["enable"]
    elif "enableFlowLogs" in sent:
        record["logConfig"] = record.get("logConfig", {}) | {"enable": sent["enableFlowLogs"]}


def _change(cloud: Cloud, call: Call, before: Json, after: Json) -> None:
    for field in ("ipCidrRange", "network", "name"):
        if before[field] != after[field]:
            raise invalid(f"Invalid value for field 'resource.{field}': it cannot be changed here.")
    _check_ranges(after)
    _require_no_overlap(cloud, after)
    _complete_logging(after, tidy(call.body))


def _remove(cloud: Cloud, path: str, record: Json) -> None:
    network = path_from(record["network"])
    owner = load(cloud, network)
    if record.get("_automatic"):
        raise invalid(f"Cannot delete auto subnetwork '{path}' of the auto mode network.")
    left = [url for url in owner.pop("subnetworks") if url != record["selfLink"]]
    cloud.store.put(STORE, network, owner | ({"subnetworks": left} if left else {}))


KIND = Kind(
    collection="subnetworks",
    parameter="subnetwork",
    scope="regions",
    defaults=SUBNETWORK,
    prepare=_prepare,
    change=_change,
    remove=_remove,
    stamped=True,
    also=("compute.networks.updatePolicy",),
    latency="network",
)
serve(KIND)


@changes(KIND, "expandIpCidrRange")
def expand_range(cloud: Cloud, call: Call, record: Record) -> None:
    """Widen a subnetwork's primary range; it cannot shrink."""
    wider = parse_range(call.body.get("ipCidrRange", ""), "ipCidrRange")
    if not IPv4Network(record["ipCidrRange"]).subnet_of(wider):
        raise invalid(
            f"Invalid value for field 'ipCidrRange': '{wider}'. It must contain the current "
            f"range {record['ipCidrRange']}."
        )
    record["ipCidrRange"] = str(wider)
    _require_no_overlap(cloud, record)


@changes(KIND, "setPrivateIpGoogleAccess")
def set_private_access(cloud: Cloud, call: Call, record: Record) -> None:
    """Let machines without an external address reach Google's APIs, or not."""
    record["privateIpGoogleAccess"] = call.body.get("privateIpGoogleAccess", False)


@API.method("subnetworks.listUsable", permission="compute.subnetworks.list")
def list_usable(cloud: Cloud, call: Call) -> Json:
    """List the subnetworks of the project that machines may use."""
    items = [
        {"subnetwork": record["selfLink"], **{field: record[field] for field in _USABLE}}
        for path, record in cloud.store.items(STORE, f"projects/{call.project}/regions/")
        if "/subnetworks/" in path
    ]
    path = f"projects/{call.project}/aggregated/subnetworks/listUsable"
    return page(call, "compute#usableSubnetworksAggregatedList", path, items)
