"""`faults`: what goes wrong on request."""

from __future__ import annotations

import argparse
import json

from localcloud.cli.client import Commands, ask


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    faults = commands.add_parser("faults", help="make calls fail, preempt, or run out of capacity")
    kinds = faults.add_subparsers(dest="kind", required=True, metavar="WHAT")
    kinds.add_parser("list", parents=[common], help="what is in force").set_defaults(run=_list)
    kinds.add_parser("clear", parents=[common], help="lift everything").set_defaults(run=_clear)
    add = kinds.add_parser("add", parents=[common], help="make calls fail, hang or be slow")
    add.add_argument("method", help="pattern over methods, such as storage.objects.*")
    add.add_argument("--resource", default="*", help="pattern over request paths (default: all)")
    add.add_argument("--status", type=int, default=503, help="0: only slow (default: 503)")
    add.add_argument("--message", default="", help="the error's message")
    add.add_argument("--delay", type=float, default=0.0, help="seconds to hold the call back")
    add.add_argument("--count", type=int, default=0, help="how many calls it hits (default: all)")
    add.add_argument("--skip", type=int, default=0, help="how many calls pass first")
    add.add_argument("--probability", type=float, default=1.0, help="0 to 1 (default: 1)")
    add.set_defaults(run=_add)
    preempt = kinds.add_parser("preempt", parents=[common], help="take a TPU or a spot VM away")
    preempt.add_argument("name", help="of the TPU or VM")
    preempt.add_argument("--after", type=float, default=0.0, help="seconds from now")
    preempt.set_defaults(run=_preempt)
    stockout = kinds.add_parser("stockout", parents=[common], help="a zone has no TPU of a type")
    stockout.add_argument("zone")
    stockout.add_argument("types", nargs="+", help="such as v2-8; * for all; none to lift it")
    stockout.set_defaults(run=_stockout)
    quota = kinds.add_parser("quota", parents=[common], help="limit a TPU quota")
    quota.add_argument("metric", help="such as TPUV2sPerProjectPerZoneForTPUAPI")
    quota.add_argument("limit", type=int)
    quota.set_defaults(run=_quota)
    deny = kinds.add_parser("deny-nodes", parents=[common], help="refuse classic TPU nodes")
    deny.add_argument("switch", choices=("on", "off"))
    deny.set_defaults(run=_deny)


def _list(options: argparse.Namespace) -> int:
    settings = ask(options.home, "GET", "status")["settings"]
    print(json.dumps({"calls": ask(options.home, "GET", "faults"), **settings}, indent=2))
    return 0


def _clear(options: argparse.Namespace) -> int:
    ask(options.home, "DELETE", "faults")
    return 0


def _add(options: argparse.Namespace) -> int:
    names = ("method", "resource", "status", "message", "delay", "count", "skip", "probability")
    fault = {name: getattr(options, name) for name in names}
    print(ask(options.home, "POST", "faults", fault)["id"])
    return 0


def _preempt(options: argparse.Namespace) -> int:
    ask(options.home, "POST", "preempt", {"name": options.name, "after": options.after})
    return 0


def _stockout(options: argparse.Namespace) -> int:
    types = [] if options.types == ["none"] else options.types
    return _set(options, "stockout", {options.zone: types})


def _quota(options: argparse.Namespace) -> int:
    return _set(options, "quota", {options.metric: options.limit})


def _deny(options: argparse.Namespace) -> int:
    return _set(options, "deny-tpu-nodes", {"on": options.switch == "on"})


def _set(options: argparse.Namespace, name: str, value: dict[str, object]) -> int:
    ask(options.home, "POST", "setting", {"name": name, "value": value})
    return 0
