"""The gRPC methods, with their messages and HTTP rules, as Google's own clients have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, get_args

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from localcloud.core import data

Rule = Mapping[str, str]
"""A google.api.http rule: `method`, `uri` and, for a call with a body, `body`."""


@dataclass(frozen=True)
class Rpc:
    """A method of a service.

    Attributes:
        rules: of which the first whose path fits a request is its REST call.
        request: the message that is sent.
        response: the message that is answered.
    """

    rules: Sequence[Rule]
    request: type[Message]
    response: type[Message]


def find(host: str, path: str) -> Rpc | None:
    """Return the method at a path such as `/google.cloud.tpu.v2.Tpu/GetNode`, or None.

    Raises:
        ModuleNotFoundError: when the host speaks gRPC and Google's clients are not installed.
    """
    known = data.load("grpc")["services"]
    mine = [service for service, entry in known.items() if entry["host"] == host]
    if not mine or path.count("/") != 2:
        return None
    _, service, method = path.split("/")
    rpc = methods(service if service in mine else mine[0]).get(method)
    package = service.rpartition(".")[0]
    return rpc if rpc and rpc.request.DESCRIPTOR.file.package == package else None


@cache
def methods(service: str) -> dict[str, Rpc]:
    """Return the methods of a service, and those that its host's versions share, by name.

    Raises:
        ModuleNotFoundError: when Google's client is not installed.
    """
    for module in data.load("grpc")["inside"]:
        import_module(module)
    name = service.rpartition(".")[2]
    entry = data.load("grpc")["services"][service]
    transport = getattr(import_module(entry["transports"] + ".grpc"), f"{name}GrpcTransport")
    rules = _rules(service)
    found = {}
    for attribute, value in vars(transport).items():
        types = _types(value)
        method = "".join(word.capitalize() for word in attribute.split("_"))
        if types is not None and method in rules:
            found[method] = Rpc(rules[method], *types)
    return found


def _rules(service: str) -> dict[str, list[Rule]]:
    entry = data.load("grpc")["services"][service]
    if "like" not in entry:
        return _annotated(service)
    version, other = (name.split(".")[-2] for name in (service, entry["like"]))
    found = {
        method: [
            {**rule, "uri": rule["uri"].replace(f"/{other}/", f"/{version}/")} for rule in all_
        ]
        for method, all_ in _annotated(entry["like"]).items()
    }
    return found | {method: [rule] for method, rule in entry["rules"].items()}


def _annotated(service: str) -> dict[str, list[Rule]]:
    """Return the rules in a client's REST transport, where each method has a class of its own."""
    module = data.load("grpc")["services"][service]["transports"] + ".rest_base"
    base = getattr(import_module(module), f"_Base{service.rpartition('.')[2]}RestTransport")
    return {
        name.removeprefix("_Base"): held._get_http_options()
        for name, held in vars(base).items()
        if hasattr(held, "_get_http_options")
    }


def _types(member: Any) -> tuple[type[Message], type[Message]] | None:
    """Return the messages of a transport's property, which is annotated as `[request] -> response`.

    None stands for other members of the transport.
    """
    getter = member.fget if isinstance(member, property) else None
    types = get_args(getattr(getter, "__annotations__", {}).get("return"))
    if len(types) != 2:
        return None
    (request,), response = types
    return _message(request), _message(response)


def _message(type_: Any) -> Any:
    """Return the message class behind a type of proto-plus, or behind an annotation of nothing."""
    if type_ is type(None):
        return Empty
    return type_.pb() if hasattr(type_, "pb") else type_
