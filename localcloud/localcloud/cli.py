"""The command line: `localcloud`, `python -m localcloud` and `tpustack local`."""

import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from localcloud import __version__, lifecycle
from localcloud.core.cloud import Fault
from localcloud.lifecycle import CommandError, ask, command_name, home_option
from localcloud.server import authority

# What the proxy must not be asked for: it would ask itself.
_LOCAL = "127.0.0.1,localhost,::1"
_LOGS = {"cloud": "localcloud.log", "requests": "requests.log"}
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _json_object(ctx: click.Context, param: click.Parameter, value: str) -> dict[str, Any]:
    """Return an argument that must be a JSON object; exit code 2 for anything else."""
    try:
        found = json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise click.BadParameter(f"{value!r} is not a JSON object")
    return found


@click.group(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f'Point this shell\'s clients at it: eval "$({command_name()} env)"',
)
@click.version_option(__version__, message="%(version)s")
def cli() -> None:
    """Google Cloud on localhost, with VMs and TPUs that really run."""


for _command in lifecycle.COMMANDS:
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 1 failure, 2 wrong input, 3 not running."""
    name, output = os.environ.get("LOCALCLOUD_PROG") or "localcloud", sys.stdout
    code = 0
    try:
        code = cli.main(arguments, prog_name=name, standalone_mode=False) or 0
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as asked:
        asked.show()
        return asked.exit_code
    except click.UsageError as error:
        text = error.format_message()
        text = text if text.endswith((".", "?")) else f"{text}."
        advice = f" Try: {error.ctx.command_path} --help" if error.ctx else ""
        click.echo(f"error: {text}{advice}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except (BrokenPipeError, SystemExit) as error:
        # `… | head -1`: who reads has enough. Click swaps standard output then, and exits with 1.
        if isinstance(error, SystemExit) and sys.stdout is output:
            raise
        # Python flushes once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


@cli.command()
@home_option
@json_option
@click.option("--unset", is_flag=True, help="Unset them again.")
def env(home: Path, as_json: bool, unset: bool) -> None:
    """Print the variables that a shell needs."""
    if as_json and unset:
        raise click.UsageError("--json and --unset exclude each other")
    if unset:
        print("\n".join(_unset_lines(os.environ)))
        return
    found = variables(home)
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print("\n".join(_export(name, value) for name, value in found.items()))
    back = f'eval "$({command_name()} env --unset)" takes that back'
    print(f"for this shell: {', '.join(found)}; {back}", file=sys.stderr)


def variables(home: Path) -> dict[str, str]:
    """Return the variables by name; the files that they name are written next to the state."""
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
    pointing = _pointing(port, credentials["access_token"], file, credentials["project"])
    return pointing | _trusting(str(bundle)) | authority.kept_variables(environment)


# The provider, gcloud and TensorFlow take a token, Google's libraries a file.
_TOKENS = (
    "GOOGLE_OAUTH_ACCESS_TOKEN",
    "CLOUDSDK_AUTH_ACCESS_TOKEN",
    "GOOGLE_AUTH_TOKEN_FOR_TESTING",
)
_PROJECTS = ("GOOGLE_PROJECT", "GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")


def _pointing(port: int, token: str, file: str, project: str) -> dict[str, str]:
    return {
        # Programs differ in which spelling they read.
        **dict.fromkeys(("HTTPS_PROXY", "https_proxy"), f"http://127.0.0.1:{port}"),
        **dict.fromkeys(("NO_PROXY", "no_proxy"), _LOCAL),
        **dict.fromkeys(_TOKENS, token),
        "GOOGLE_APPLICATION_CREDENTIALS": file,
        # TensorFlow asks a metadata server for project and zone, and without a check for Google.
        "NO_GCE_CHECK": "true",
        "GCE_METADATA_IP": f"127.0.0.1:{port}",
        **dict.fromkeys(_PROJECTS, project),
    }


def _trusting(bundle: str) -> dict[str, str]:
    """Return the variables by which each client finds the authorities.

    Each client looks in another one, and all get the same file.
    """
    return dict.fromkeys([*authority.BUNDLE_VARIABLES, authority.OWN_BUNDLE], bundle)


def _unset_lines(environment: Mapping[str, str]) -> list[str]:
    """Return the lines that unset everything and give the user's own authorities back."""
    users = authority.users_variables(environment)
    kept = authority.kept_variables(environment)
    names = [*_pointing(0, "", "", ""), *_trusting(""), *kept]
    return [_export(name, users[name]) if name in users else f"unset {name}" for name in names]


def _export(name: str, value: str) -> str:
    return f"export {name}={shlex.quote(value)}"


def _write_credentials(home: Path, credentials: dict[str, Any]) -> Path:
    """Write a user's application default credentials, whose tokens the local cloud renews.

    The form is gcloud's (cloud.google.com/docs/authentication/application-default-credentials).
    """
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


@cli.command()
@home_option
@click.argument("source", default="cloud")
@click.option("-f", "--follow", is_flag=True, help="Follow until Ctrl-C.")
def logs(home: Path, source: str, follow: bool) -> None:
    """Print the emulator's log, its requests, or a machine's serial port.

    SOURCE is `cloud` (the default), `requests`, or the name of a VM or TPU.
    """
    file = _LOGS.get(source)
    for piece in _pieces(home / file) if file else _serial(home, source):
        print(piece, end="", flush=True)
        if not piece:
            if not follow:
                break
            time.sleep(0.3)


def _pieces(path: Path) -> Iterator[str]:
    """Yield what is new in a file, an empty text when nothing is; so does `_serial`."""
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


@cli.command(context_settings={"ignore_unknown_options": True})
@home_option
@click.argument("seconds", type=float)
def forward(home: Path, seconds: float) -> None:
    """Set the cloud's clock ahead by SECONDS, until it stops.

    What is due by then happens now; tokens grow older, too.
    """
    print(ask(home, "POST", "forward", {"seconds": seconds})["now"])


@cli.command()
@home_option
@json_option
@click.argument("member", required=False)
@click.option("--clear", is_flag=True, help="Clear the list afterwards.")
def permissions(home: Path, member: str | None, as_json: bool, clear: bool) -> None:
    """Show which permissions calls have needed since the start, for a least-privilege role.

    MEMBER is such as user:… or serviceAccount:…; all are shown without one.
    """
    asked = ask(home, "GET", "permissions")
    if clear:
        ask(home, "DELETE", "permissions")
    if member:
        asked = {member: asked.get(member, {})}
    if as_json:
        print(json.dumps(asked, indent=2, sort_keys=True))
        return
    for one, names in sorted(asked.items()):
        print(one)
        for name, granted in sorted(names.items()):
            print(f"  {name}{'' if granted else '  (refused)'}")


@cli.command()
@home_option
@json_option
@click.argument("source")
@click.argument("destination")
def reach(home: Path, as_json: bool, source: str, destination: str) -> int:
    """Show whether SOURCE reaches DESTINATION, and by which route and rules.

    SOURCE is a VM, a TPU, TPU/HOST or an address; DESTINATION the same with :PORT, such as
    my-tpu/1:8470. Exit code 0: it does; 1: it does not.
    """
    answer = ask(home, "POST", "reach", {"source": source, "destination": destination})
    if as_json:
        print(json.dumps(answer, indent=2))
    else:
        verb = "reaches" if answer["reached"] else "can't reach"
        print(f"{answer['source']} {verb} {answer['destination']} at port {answer['port']}")
        print(*(f"  {step}" for step in answer["steps"]), sep="\n")
    return 0 if answer["reached"] else 1


@cli.group()
def faults() -> None:
    """Make calls fail, preempt machines, or run out of capacity."""


@faults.command("list")
@home_option
def list_faults(home: Path) -> None:
    """Print the faults in force."""
    settings = ask(home, "GET", "status")["settings"]
    print(json.dumps({"calls": ask(home, "GET", "faults"), **settings}, indent=2))


@faults.command()
@home_option
def clear(home: Path) -> None:
    """Lift everything."""
    ask(home, "DELETE", "faults")


@faults.command()
@home_option
@click.argument("method")
@click.option("--resource", default="*", help="Pattern over request paths (default: all).")
@click.option(
    "--status",
    type=int,
    default=503,
    help="0 sends none: the call is only slow or lost (default: 503).",
)
@click.option("--message", default="", help="The error's message.")
@click.option("--delay", type=float, default=0.0, help="Seconds to delay the call.")
@click.option("--count", type=int, default=0, help="How many calls fail (default: all).")
@click.option("--skip", type=int, default=0, help="How many calls pass first.")
@click.option(
    "--probability", type=float, default=1.0, help="Probability from 0 to 1 (default: 1)."
)
@click.option("--carried-out", is_flag=True, help="The call takes effect first.")
def add(home: Path, **fault: Any) -> None:
    """Make calls of METHOD, a pattern such as storage.objects.*, fail, hang or be slow."""
    print(ask(home, "POST", "faults", vars(Fault(**fault)))["id"])


@faults.command()
@home_option
@click.argument("zone")
@click.argument("types", nargs=-1, required=True)
def stockout(home: Path, zone: str, types: tuple[str, ...]) -> None:
    """Let ZONE (* for all) have no TPU of TYPES, such as v2-8; * for all, none to lift it."""
    _set(home, "stockout", {zone: [] if types == ("none",) else list(types)})


@faults.command()
@home_option
@click.argument("metric")
@click.argument("limit", type=int)
def quota(home: Path, metric: str, limit: int) -> None:
    """Limit the TPU quota METRIC, such as TPUV2sPerProjectPerZoneForTPUAPI."""
    _set(home, "quota", {metric: limit})


@faults.command("set")
@home_option
@click.argument("name")
@click.argument("value", callback=_json_object)
def set_option(home: Path, name: str, value: dict[str, Any]) -> None:
    """Set an option: a fact about a project, or behaviour that no source shows.

    NAME is such as deny-tpu-nodes, VALUE a JSON object such as '{"on": false}'.
    """
    _set(home, name, value)


def _set(home: Path, name: str, value: dict[str, Any]) -> None:
    ask(home, "POST", "setting", {"name": name, "value": value})


def _breaks(what: str, text: str, *parameters: Any) -> None:
    """Add a command that breaks the machine or object called NAME at once.

    What is broken at once has no state: no option lists it, and only what has an end can be lifted.
    """

    def command(home: Path, name: str, off: bool | None = None, **more: str) -> None:
        lifted = {} if off is None else {"on": not off}
        ask(home, "POST", "break", {"what": what, "name": name, **lifted, **more})

    for parameter in (*parameters, click.argument("name"), home_option):
        command = parameter(command)
    faults.command(what, help=text)(command)


_off = click.option("--off", is_flag=True, help="Lift it.")
_breaks("preempt", "Preempt the TPU or spot VM NAME.")
_breaks("dead", "Turn off the hosts of TPU NAME while the API reports READY.")
_breaks("hang", "Make the VM or TPU NAME hang.", _off)
_breaks("full-disk", "Fill the disk of VM NAME: its processes can't write files.", _off)
_breaks(
    "kill",
    "Kill processes of VM NAME whose command lines match the regular expression PROCESS.",
    click.argument("process"),
)
_breaks("expire-tokens", "Revoke the tokens of the VM or TPU NAME.")
_breaks("delete-objects", "Delete objects of a bucket; NAME is BUCKET/NAME.")


@faults.command()
@home_option
@json_option
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--check", is_flag=True, help="Only check the file.")
def run(home: Path, as_json: bool, file: Path, check: bool) -> int:
    """Play the scenario FILE to its end; exit code 1 if an event failed or never happened."""
    # Imported late: it needs APIs, and takes a third of the time in which other commands begin.
    from localcloud.scenario import Run, ScenarioError, read

    try:
        events = read(file)
    except ScenarioError as error:
        raise CommandError(str(error), 2) from None
    if check:
        print(f"{file}: {len(events)} events")
        return 0

    def tell(seconds: float, what: str, text: str) -> None:
        line = json.dumps({"seconds": seconds, "what": what, "event": text})
        print(line if as_json else f"{seconds:8.2f} s  {what:8}{text}", flush=True)

    # Told to end, it lifts what is in force, as after Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    playing = Run(events, partial(ask, home), time, tell)
    playing.play()
    return 1 if playing.failed else 0
