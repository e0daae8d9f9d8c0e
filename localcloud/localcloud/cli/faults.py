"""`faults`: what goes wrong on request."""

from __future__ import annotations

import argparse
import json
import signal
import time
from dataclasses import fields
from functools import partial
from pathlib import Path

from localcloud.cli.client import CommandError, Commands, ask
from localcloud.cli.scenarios.parse import ScenarioError, read
from localcloud.cli.scenarios.run import Run
from localcloud.core.cloud import Fault


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the commands."""
    faults = commands.add_parser("faults", help="make calls fail, preempt, or run out of capacity")
    kinds = faults.add_subparsers(dest="kind", required=True, metavar="WHAT")
    kinds.add_parser("list", parents=[common], help="what is in force").set_defaults(run=_list)
    kinds.add_parser("clear", parents=[common], help="lift everything").set_defaults(run=_clear)
    add = kinds.add_parser("add", parents=[common], help="make calls fail, hang or be slow")
    add.add_argument("method", help="pattern over methods, such as storage.objects.*")
    add.add_argument("--resource", default="*", help="pattern over request paths (default: all)")
    add.add_argument(
        "--status", type=int, default=503, help="0: none, only slow or lost (default: 503)"
    )
    add.add_argument("--message", default="", help="the error's message")
    add.add_argument("--delay", type=float, default=0.0, help="seconds to hold the call back")
    add.add_argument("--count", type=int, default=0, help="how many calls it hits (default: all)")
    add.add_argument("--skip", type=int, default=0, help="how many calls pass first")
    add.add_argument("--probability", type=float, default=1.0, help="0 to 1 (default: 1)")
    add.add_argument("--carried-out", action="store_true", help="the call takes effect first")
    add.set_defaults(run=_add)
    preempt = kinds.add_parser("preempt", parents=[common], help="take a TPU or a spot VM away")
    preempt.add_argument("name", help="of the TPU or VM")
    preempt.add_argument("--after", type=float, default=0.0, help="seconds from now")
    preempt.set_defaults(run=_preempt)
    stockout = kinds.add_parser("stockout", parents=[common], help="a zone has no TPU of a type")
    stockout.add_argument("zone", help="* for all")
    stockout.add_argument("types", nargs="+", help="such as v2-8; * for all; none to lift it")
    stockout.set_defaults(run=_stockout)
    quota = kinds.add_parser("quota", parents=[common], help="limit a TPU quota")
    quota.add_argument("metric", help="such as TPUV2sPerProjectPerZoneForTPUAPI")
    quota.add_argument("limit", type=int)
    quota.set_defaults(run=_quota)
    _add_machine_faults(kinds, common)
    run = kinds.add_parser("run", parents=[common], help="play a scenario, a YAML file, to its end")
    run.add_argument("file", type=Path)
    run.add_argument("--check", action="store_true", help="only read it")
    run.add_argument("--json", action="store_true", help="a JSON object for each happening")
    run.set_defaults(run=_run)
    put = kinds.add_parser("set", parents=[common], help="an option, for what nobody has seen yet")
    put.add_argument("name", help="such as deny-tpu-nodes")
    put.add_argument("value", type=json.loads, help="""a JSON object, such as '{"on": false}'""")
    put.set_defaults(run=lambda options: _set(options, options.name, options.value))


def _add_machine_faults(kinds: Commands, common: argparse.ArgumentParser) -> None:
    """Declare what can be broken at once, by a name in which * stands for any text."""
    broken = {
        "dead": "a TPU is dead, and the API says READY",
        "hang": "a VM or TPU stands still; --off lets it go on",
        "full-disk": "what runs on a VM can write no file; --off: it can again",
        "kill": "kill processes of a VM",
        "expire-tokens": "a VM's or TPU's tokens have expired; new ones are good",
        "delete-objects": "delete objects of a bucket",
    }
    for what, text in broken.items():
        parser = kinds.add_parser(what, parents=[common], help=text)
        if what == "delete-objects":
            parser.add_argument("name", help="BUCKET/NAME")
        else:
            parser.add_argument("name", help="of the VM or TPU")
        if what in ("hang", "full-disk"):
            parser.add_argument("--off", dest="on", action="store_false", help="lift it")
        if what == "kill":
            parser.add_argument("process", help="regular expression over command lines")
        parser.set_defaults(run=_break, what=what)


def _break(options: argparse.Namespace) -> int:
    names = ("what", "name", "on", "process")
    sent = {name: getattr(options, name) for name in names if hasattr(options, name)}
    ask(options.home, "POST", "break", sent)
    return 0


def _run(options: argparse.Namespace) -> int:
    """Play a scenario; exit code 1 when something of it failed or never had its moment."""
    try:
        events = read(options.file)
    except ScenarioError as error:
        raise CommandError(str(error), 2) from None
    if options.check:
        print(f"{options.file}: {len(events)} events")
        return 0

    def tell(seconds: float, what: str, text: str) -> None:
        said = json.dumps({"seconds": seconds, "what": what, "event": text})
        print(said if options.json else f"{seconds:8.2f} s  {what:8}{text}", flush=True)

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    playing = Run(events, partial(ask, options.home), time, tell)
    playing.play()
    return 1 if playing.failed else 0


def _list(options: argparse.Namespace) -> int:
    settings = ask(options.home, "GET", "status")["settings"]
    print(json.dumps({"calls": ask(options.home, "GET", "faults"), **settings}, indent=2))
    return 0


def _clear(options: argparse.Namespace) -> int:
    ask(options.home, "DELETE", "faults")
    return 0


def _add(options: argparse.Namespace) -> int:
    fault = {field.name: getattr(options, field.name) for field in fields(Fault)}
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


def _set(options: argparse.Namespace, name: str, value: dict[str, object]) -> int:
    ask(options.home, "POST", "setting", {"name": name, "value": value})
    return 0
