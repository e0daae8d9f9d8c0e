"""Checks of the network: the size, place and privacy of address ranges (CIDR)."""

from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Interface, IPv4Network, NetmaskValueError

from tpu_infra.checks.context import Context
from tpu_infra.checks.project import is_project_id
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import UNSET, Problem, misplaced


def check_network(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that no existing network is named where the stack makes its own."""
    network = settings.network
    if network.create:
        yield from misplaced(
            {
                "network.project": network.project,
                "network.name": network.name,
                "network.subnetwork": network.subnetwork,
            },
            "names an existing network, but the stack creates its own",
            "Set network.create: false to use it, or remove it",
        )


def check_shared_vpc(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check what a network of another project, a Shared VPC's, needs.

    Its administrators decide there: the stack makes neither the network nor firewall rules in it.
    """
    host = settings.network.project
    if host is None or settings.network.create:
        return
    if not is_project_id(host):
        why = "is not a project ID (6 to 30 lower-case letters, digits and hyphens, a letter first)"
        yield Problem("network.project", host, why, "Use the ID of the Shared VPC's host project")
    elif host == settings.project:
        cure = "Remove it, or name the host project of a Shared VPC"
        yield Problem("network.project", host, "is the stack's own project", cure)
    if settings.network.name is None:
        why = f"is required with network.project: {host} may share several networks"
        cure = "Set it, and network.subnetwork if that has another name"
        yield Problem("network.name", UNSET, why, cure)
    if settings.is_node:
        why = "is for architecture vm; a TPU Node would need a Service Networking connection"
        cure = "Use architecture vm, or a network of the stack's own project"
        yield Problem("network.project", host, why, cure)


def warn_about_network(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn that the rules of a network that is not the stack's own decide who reaches whom."""
    network = settings.network
    own_default = network.project is None and network.given_name == "default"
    if network.create or own_default:
        return
    where = f"{network.name} of {network.project}" if network.project else f"{network.name}"
    checked = network.project and settings.vm.instance_group
    health = ", and Google's health checks at the VM's health port" if checked else ""
    yield (
        f"network.create is false, so the stack creates no firewall rules. Network {where} must "
        f"allow all ports between VMs and TPUs with the tag {context.names.network}{health} "
        "(commands: docs/team.md)."
    )
    if network.project:
        yield (
            f"network.project is {network.project}: the deployer needs roles/compute.networkUser "
            "on the subnetwork, and Cloud TPU's service account needs roles/tpu.xpnAgent in that "
            "project (commands: docs/team.md)."
        )


def check_subnet(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the subnet's range is private and large enough for Google."""
    text = settings.network.subnet_range
    if text is None:
        return
    yield from _range_problems("network.subnetRange", text, context)
    smallest = context.catalog.network.smallest_subnet_prefix
    block = _parsed(text)
    if block and block.prefixlen > smallest:
        why = f"is smaller than the smallest subnet of Google Cloud (/{smallest})"
        cure = f"Use a range with a prefix of at most {smallest}, for example "
        cure += f"{context.catalog.network.own_subnet_range}"
        yield Problem("network.subnetRange", text, why, cure)


def check_room(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the subnet has an address for every host of the TPU VMs and for the VM.

    Google reserves a few addresses of each subnet for itself (catalog/network.yaml). Without this
    check a large TPU would fail after the queue had given it, which may take days.
    """
    tpu = settings.tpu
    accelerator = context.catalog.accelerator(tpu.accelerator_type, tpu.topology)
    prefix = _subnet_prefix(settings, context)
    facts = context.catalog.network
    if settings.is_node or accelerator is None:
        return
    if prefix is None or prefix > facts.smallest_subnet_prefix:
        return  # The size is not known, or `check_subnet` says that it is too small.
    # The VM is the one more.
    machines = accelerator.hosts * tpu.slices + settings.has_vm
    needed = facts.reserved_addresses + machines
    if needed > 2 ** (32 - prefix):
        why = f"{'' if settings.network.subnet_range else f'and would be a /{prefix}, which '}has "
        why += f"{2 ** (32 - prefix) - facts.reserved_addresses} addresses for machines, but there "
        why += f"are {machines}"
        cure = f"Use a /{32 - (needed - 1).bit_length()} or larger"
        yield Problem("network.subnetRange", settings.network.subnet_range or UNSET, why, cure)


def check_cidr(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that a classic node's block is well written, private, large enough and free.

    The node is in a network of Google's that is connected to the stack's: an address that is in
    both would be reached in one of them alone.
    """
    text = settings.tpu.cidr_block
    if text is None or not settings.is_node:
        return
    yield from _range_problems("tpu.cidrBlock", text, context)
    block = _parsed(text)
    if block is None:
        return
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    if accelerator and accelerator.cidr_prefix and block.prefixlen > accelerator.cidr_prefix:
        yield Problem(
            "tpu.cidrBlock",
            text,
            f"has {block.num_addresses} addresses, too few for a {accelerator.name}",
            f"Use a /{accelerator.cidr_prefix} or larger, for example "
            f"{block.supernet(new_prefix=accelerator.cidr_prefix)}",
        )
    for subnet in _taken(settings, context):
        if block.overlaps(subnet):
            cure = "Use private addresses outside of it"
            yield Problem("tpu.cidrBlock", text, f"overlaps the subnet's range {subnet}", cure)
            return


def subnet_range(settings: StackSettings, context: Context) -> IPv4Network | None:
    """Return the range of the subnet of VM and TPU; None if it is not known."""
    network = settings.network
    if network.subnet_range:
        return _parsed(network.subnet_range)
    return context.catalog.network.own_subnet_range if network.create else None


def _taken(settings: StackSettings, context: Context) -> tuple[IPv4Network, ...]:
    """Return the ranges of the network's subnets, as far as they are known."""
    network = settings.network
    if subnet := subnet_range(settings, context):
        return (subnet,)
    default = network.given_name == "default"
    return context.catalog.network.auto_mode_ranges if default else ()


def _subnet_prefix(settings: StackSettings, context: Context) -> int | None:
    """Return the prefix length of the subnet; None if it is not known or not readable."""
    network = settings.network
    if subnet := subnet_range(settings, context):
        return subnet.prefixlen
    default = network.given_name == network.given_subnetwork == "default"
    alike = context.catalog.network.auto_mode_ranges[0].prefixlen
    return alike if default and network.subnet_range is None else None


def _range_problems(setting: str, text: str, context: Context) -> Iterator[Problem]:
    example = context.catalog.network.own_subnet_range
    try:
        interface = IPv4Interface(text)
    except (AddressValueError, NetmaskValueError, ValueError):
        yield Problem(setting, text, "is not an IPv4 range", f"Use one like {example}")
        return
    if "/" not in text:
        yield Problem(setting, text, "has no size", f"Add one, as in {text}/{example.prefixlen}")
        return
    if interface.ip != interface.network.network_address:
        why = f"does not begin at the first address of a /{interface.network.prefixlen}"
        yield Problem(setting, text, why, f"Use {interface.network}")
    private = context.catalog.network.private_ranges
    if not any(interface.network.subnet_of(block) for block in private):
        why, cure = "is not private (RFC 1918)", f"Use addresses in {', '.join(map(str, private))}"
        yield Problem(setting, text, why, cure)


def _parsed(text: str) -> IPv4Network | None:
    """Return the range; None if it is not readable (`_range_problems` says why)."""
    try:
        return IPv4Network(text, strict=False) if "/" in text else None
    except (AddressValueError, NetmaskValueError, ValueError):
        return None
