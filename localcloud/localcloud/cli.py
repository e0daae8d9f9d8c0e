"""The command line."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from localcloud import __version__, lifecycle
from localcloud.core.cloud import Fault
from localcloud.lifecycle import CommandError, Commands, ask, typed
from localcloud.scenario import Run, ScenarioError, read
from localcloud.server import authority

# --- `python -m localcloud start|status|stop|reset|env|logs|faults|forward|permissions|reach`.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 1 failure, 2 wrong input, 3 not running."""
    options = _parser().parse_args(arguments)
    options.home = options.home.expanduser().absolute()
    try:
        code: int = options.run(options)
    except CommandError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        sys.stderr.close()
        return 0
    return code


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    home = Path(os.environ.get("LOCALCLOUD_HOME", ".localcloud"))
    text = "folder of its state (default: $LOCALCLOUD_HOME, or .localcloud here)"
    common.add_argument("--home", type=Path, default=home, help=text)
    parser = argparse.ArgumentParser(
        prog=os.environ.get("LOCALCLOUD_PROG") or "localcloud",
        description="Google Cloud on localhost, with VMs and TPUs that really run.",
        epilog=f'Point this shell\'s clients at it: eval "$({typed()} env)"',
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    lifecycle.add_lifecycle(commands, common)
    add_environment(commands, common)
    add_logs(commands, common)
    add_faults(commands, common)
    add_forward(commands, common)
    add_permissions(commands, common)
    add_reach(commands, common)
    return parser


# --- `env`: the variables that lead Google's clients to the local cloud.

_LOCAL = "127.0.0.1,localhost,::1"


def add_environment(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    env = commands.add_parser("env", parents=[common], help="print what a shell needs")
    how = env.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as JSON")
    how.add_argument("--unset", action="store_true", help="unset them again")
    env.set_defaults(run=_env)


def _env(options: argparse.Namespace) -> int:
    if options.unset:
        print("\n".join(_taken_back(os.environ)))
        return 0
    found = variables(options.home)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print("\n".join(_export(name, value) for name, value in found.items()))
        back = f'eval "$({typed()} env --unset)" takes that back'
        print(f"for this shell: {', '.join(found)}; {back}", file=sys.stderr)
    return 0


def variables(home: Path) -> dict[str, str]:
    """Return the variables by name; the files that they point at are written beside the state."""
    port = ask(home, "GET", "status")["port"]
    return variables_of(home, port, ask(home, "GET", "credentials"), os.environ)


def variables_of(
    home: Path, port: int, credentials: dict[str, Any], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables for a shell.

    Args:
        home: of the local cloud.
        port: where it listens.
        credentials: as its own API gives them.
        environment: of the shell, whose own authorities stay trusted.
    """
    file = str(_write_credentials(home, credentials))
    tls = home / "tls"
    bundle = authority.write_bundle(tls, (tls / "ca.pem").read_bytes(), environment)
    about = credentials["access_token"], file, credentials["project"]
    return _pointing(port, *about) | _trusting(str(bundle)) | authority.kept_variables(environment)


def _pointing(port: int, token: str, file: str, project: str) -> dict[str, str]:
    proxy = f"http://127.0.0.1:{port}"
    return {
        # Every client: the proxy.
        "HTTPS_PROXY": proxy,
        "https_proxy": proxy,
        "NO_PROXY": _LOCAL,
        "no_proxy": _LOCAL,
        # Who calls: the provider, gcloud, TensorFlow, and Google's Python and Go libraries.
        "GOOGLE_OAUTH_ACCESS_TOKEN": token,
        "CLOUDSDK_AUTH_ACCESS_TOKEN": token,
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": token,
        "GOOGLE_APPLICATION_CREDENTIALS": file,
        "NO_GCE_CHECK": "true",
        # Where: the project; TensorFlow asks a metadata server, for the zone too.
        "GCE_METADATA_IP": f"127.0.0.1:{port}",
        "GOOGLE_PROJECT": project,
        "GOOGLE_CLOUD_PROJECT": project,
        "CLOUDSDK_CORE_PROJECT": project,
    }


def _trusting(bundle: str) -> dict[str, str]:
    """Return the variables that name the authorities, to every client in its own way."""
    return dict.fromkeys([*authority.BUNDLE_VARIABLES, authority.OWN_BUNDLE], bundle)


def _taken_back(environment: Mapping[str, str]) -> list[str]:
    """Return the lines that unset everything and give the user's own authorities back."""
    users = authority.users_variables(environment)
    names = [*_pointing(0, "", "", ""), *_trusting(""), *authority.kept_variables(environment)]
    return [_export(name, users[name]) if name in users else f"unset {name}" for name in names]


def _export(name: str, value: str) -> str:
    return f"export {name}={shlex.quote(value)}"


def _write_credentials(home: Path, credentials: dict[str, Any]) -> Path:
    """Write a user's application default credentials, whose tokens the local cloud renews."""
    path = home / "application_default_credentials.json"
    path.touch(mode=0o600)
    content = {
        "type": "authorized_user",
        "client_id": "local.apps.googleusercontent.com",
        "client_secret": "local",
        "refresh_token": credentials["refresh_token"],
        "quota_project_id": credentials["project"],
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


# --- `logs`: the emulator's log, its requests, or a machine's serial port.

_FILES = {"cloud": "localcloud.log", "requests": "requests.log"}


def add_logs(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    logs = commands.add_parser("logs", parents=[common], help="its log, or a machine's serial port")
    logs.add_argument(
        "source",
        nargs="?",
        default="cloud",
        help="cloud, requests, or the name of a VM or TPU (default: cloud)",
    )
    logs.add_argument("--follow", "-f", action="store_true", help="follow until Ctrl-C")
    logs.set_defaults(run=_logs)


def _logs(options: argparse.Namespace) -> int:
    file = _FILES.get(options.source)
    pieces = _file(options.home / file) if file else _serial(options.home, options.source)
    for piece in pieces:
        print(piece, end="", flush=True)
        if not piece:
            if not options.follow:
                break
            time.sleep(0.3)
    return 0


def _file(path: Path) -> Iterator[str]:
    path.touch()
    with path.open(encoding="utf-8", errors="replace") as file:
        while True:
            yield file.read()


def _serial(home: Path, machine: str) -> Iterator[str]:
    start = 0
    while True:
        answer = ask(home, "POST", "serial", {"machine": machine, "start": start})
        start = answer["next"]
        yield answer["contents"]


# --- `forward`: sets the cloud's clock ahead, for what Google does after hours.


def add_forward(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "forward",
        parents=[common],
        help="set the cloud's clock ahead, until it stops: what is due by then happens now",
    )
    command.add_argument("seconds", type=float, help="more than 0; tokens grow older, too")
    command.set_defaults(run=_forward)


def _forward(options: argparse.Namespace) -> int:
    print(ask(options.home, "POST", "forward", {"seconds": options.seconds})["now"])
    return 0


# --- `permissions`: those that somebody's calls asked for, which a least role must hold.


def add_permissions(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "permissions",
        parents=[common],
        help="show what calls asked of IAM since the start",
    )
    command.add_argument(
        "member", nargs="?", help="such as user:… or serviceAccount:… (default: everybody)"
    )
    command.add_argument("--json", action="store_true", help="by member, true where it was granted")
    command.add_argument("--clear", action="store_true", help="forget them afterwards")
    command.set_defaults(run=_permissions)


def _permissions(options: argparse.Namespace) -> int:
    asked = ask(options.home, "GET", "permissions")
    if options.clear:
        ask(options.home, "DELETE", "permissions")
    if options.member:
        asked = {options.member: asked.get(options.member, {})}
    if options.json:
        print(json.dumps(asked, indent=2, sort_keys=True))
        return 0
    for member, permissions in sorted(asked.items()):
        print(member)
        for permission, granted in sorted(permissions.items()):
            print(f"  {permission}{'' if granted else '  (refused)'}")
    return 0


# --- `reach`: whether a machine reaches another at a port, and which route and rules decide.

_UNREACHABLE = 1


def add_reach(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Declare the command."""
    command = commands.add_parser(
        "reach",
        parents=[common],
        help="say whether a machine reaches another, and by which rule",
        description="Exit code 0: it does; 1: it does not.",
    )
    command.add_argument("source", help="VM, TPU, TPU/HOST or an address")
    command.add_argument("destination", help="the same with :PORT, such as my-tpu/1:8470")
    command.add_argument("--protocol", default="tcp", help="tcp, udp, icmp, … (default: tcp)")
    command.add_argument(
        "--json", action="store_true", help="as ReachabilityDetails of Google's Connectivity Tests"
    )
    command.set_defaults(run=_reach)


def _reach(options: argparse.Namespace) -> int:
    asked = {name: getattr(options, name) for name in ("source", "destination", "protocol")}
    answer = ask(options.home, "POST", "reach", asked)
    details = answer["reachabilityDetails"]
    print(json.dumps(details, indent=2) if options.json else _told(answer))
    return 0 if details["result"] == "REACHABLE" else _UNREACHABLE


def _told(answer: dict[str, Any]) -> str:
    details = answer["reachabilityDetails"]
    word = {"REACHABLE": "reaches", "UNREACHABLE": "does not reach"}
    port = f" {answer['port']}" if answer["port"] else ""
    head = (
        f"{answer['source']} {word.get(details['result'], 'may or may not reach')} "
        f"{answer['destination']} by {answer['protocol']}{port}"
    )
    steps = details["traces"][0]["steps"]
    return "\n".join([head, *(f"  {line}" for line in map(_line, steps) if line)])


def _line(step: dict[str, Any]) -> str:
    if "firewall" in step:
        rule = step["firewall"]
        by = f"rule {rule['displayName']}" if "uri" in rule else "the implied rule"
        verb = "allowed" if rule["action"] == "ALLOW" else "denied"
        return f"{rule['direction'].lower():8}{verb} by {by}, priority {rule['priority']}"
    if "route" in step:
        route = step["route"]
        hop = route["nextHopType"].removeprefix("NEXT_HOP_").replace("_", " ").lower()
        return f"route   {route['displayName']}, {route['destIpRange']} by way of {hop}"
    if "nat" in step:
        return f"nat     {step['nat']['natGatewayName']}"
    for end in ("drop", "abort"):
        if end in step:
            return f"{end:8}{step[end]['cause']}"
    return "forward into Google's own network" if "forward" in step else ""


# --- `faults`: what goes wrong on request.


def add_faults(commands: Commands, common: argparse.ArgumentParser) -> None:
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
