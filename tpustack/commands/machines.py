"""The commands that log in to a stack's machines: ssh, code and notebook.

gcloud does the work. It makes the key, sends it to Google, and goes through IAP, because machines
have no public address. The stack's file names the machine, so these work for a stack whose first
update failed, too. If a TPU may be in several zones, Google is asked for the one it is in.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from tpu_core.records import replace_file
from tpustack import console, errors
from tpustack.engine import named

if TYPE_CHECKING:
    from tpu_infra.settings import StackSettings

_F = TypeVar("_F", bound=Callable[..., Any])
_GCLOUD, _CODE = "gcloud", "code"
_CURES = {
    _GCLOUD: "the Google Cloud CLI makes this connection, and there is no `gcloud` on PATH. "
    "Install it: https://cloud.google.com/sdk/docs/install",
    _CODE: "VS Code has no `code` on PATH. Install it with the extension Remote - SSH; on a Mac "
    "run `Shell Command: Install 'code' command in PATH` in it",
}
# In ~/.ssh, a file for each machine.
_FOLDER = "tpu-stack"
# Jupyter takes the next free port unless told otherwise, and would then not be behind the tunnel.
# No one sees its token in a list of processes: Jupyter makes it, and prints it in the URL alone
# (jupyter-server.readthedocs.io/en/latest/operators/security.html, read 2026-11-26). The image's
# own TensorFlow or JAX is there as well. A first installation that broke off leaves no jupyter-lab.
# Without -y, the first Ctrl-C only makes Jupyter ask.
_JUPYTER = "\n".join(
    (
        "cd && umask 077 && home=.tpu-stack-notebook",
        "if ! [ -x $home/bin/jupyter-lab ]; then",
        '  echo "installing JupyterLab into ~/$home (once)" >&2',
        "  python3 -m venv --system-site-packages $home &&",
        '    $home/bin/pip install --quiet "jupyterlab>=4,<5"',
        "fi || {{",
        '  echo "if Python lacks venv: sudo apt-get install python3-venv" >&2',
        "  exit 1",
        "}}",
        "exec $home/bin/jupyter-lab -y --no-browser --ip=127.0.0.1 --port={port} --port-retries=0",
    )
)


@dataclass(frozen=True)
class Machine:
    """A machine that gcloud logs in to.

    Attributes:
        name: the instance's, or the TPU's as the Cloud TPU API knows it.
        worker: the host's number in its TPU, from 0; None for an instance of Compute Engine.
    """

    name: str
    project: str
    zone: str
    worker: int | None = None

    def login(self, command: str = "", *ssh: str) -> list[str]:
        """Return gcloud's command line.

        Only the alpha form goes through IAP to a TPU VM: the other one lacks the flag
        (cloud.google.com/sdk/gcloud/reference/compute/tpus/tpu-vm/ssh, read 2026-11-27).

        Args:
            command: what the machine's shell runs; without it, the person gets that shell.
            ssh: arguments of ssh itself.
        """
        words = ["compute", "ssh", self.name]
        if self.worker is not None:
            words = ["alpha", "compute", "tpus", "tpu-vm", "ssh", self.name]
            words.append(f"--worker={self.worker}")
        words += [f"--project={self.project}", f"--zone={self.zone}", "--tunnel-through-iap"]
        words += [f"--command={command}"] if command else []
        return [_GCLOUD, *words, *(["--", *ssh] if ssh else [])]


def _which_machine(command: _F) -> _F:
    """Declare the options that choose the machine."""
    command = click.option(
        "--host", type=click.IntRange(min=0), help="Which host of the TPU, over all its slices."
    )(command)
    command = click.option("--tpu", is_flag=True, help="Log in to a host of the TPU, not the VM.")(
        command
    )
    return console.stack("The stack to log in to.")(command)


@click.command("ssh")
@_which_machine
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def ssh_command(stack: str | None, tpu: bool, host: int | None, command: tuple[str, ...]) -> None:
    """Open a shell on a stack's VM, or on a host of its TPU, through Google's IAP.

    With architecture compute, the TPU's machine is the VM. A COMMAND after -- runs in the
    machine's shell instead; its words are joined by spaces, as ssh does. The exit code is gcloud's.
    """
    _become(_machine(stack, tpu, host).login(" ".join(command)))


@click.command("notebook")
@_which_machine
@click.option(
    "--port",
    type=click.IntRange(1024, 65535),
    default=8888,
    show_default=True,
    help="The port, here and on the machine.",
)
def notebook_command(stack: str | None, tpu: bool, host: int | None, port: int) -> None:
    """Run JupyterLab on a stack's machine, and open a tunnel to it through Google's IAP.

    Jupyter prints the URL to open here. It listens on 127.0.0.1 alone and needs the token in that
    URL. The first start installs it into your home folder there. Ctrl-C ends it.
    """
    machine = _machine(stack, tpu, host)
    console.say(f"JupyterLab on {machine.name}: open the URL with 127.0.0.1:{port} that it prints")
    # With a terminal there, even if there is none here, Jupyter ends when the connection does.
    forward = f"127.0.0.1:{port}:127.0.0.1:{port}"
    options = ("-tt", "-L", forward, "-o", "ExitOnForwardFailure=yes")
    _become(machine.login(_JUPYTER.format(port=port), *options))


@click.command("code")
@_which_machine
def code_command(stack: str | None, tpu: bool, host: int | None) -> None:
    """Open VS Code on a stack's machine, over SSH through Google's IAP.

    It needs VS Code's extension Remote - SSH. The machine's SSH settings go into ~/.ssh/tpu-stack,
    which ~/.ssh/config includes from then on, so that `ssh` knows the machine by its name, too.
    """
    machine = _machine(stack, tpu, host)
    _require(_CODE)
    # A dry run sends no key. So the first of them logs in, and may ask for what a person knows.
    _ask(machine.login("true"))
    said = _ask([*machine.login(), "--dry-run"])
    name = machine.name if machine.worker is None else f"{machine.name}-{machine.worker}"
    _remember(name, ssh_settings(name, said))
    _become([_CODE, "--remote", f"ssh-remote+{name}"])


# Options follow the key, and the machine follows them. `compute ssh` quotes what has spaces, as the
# command of the tunnel does, and `tpu-vm ssh` doesn't (both of them, surface/ in gcloud's source).
_PRINTED = re.compile(
    r"\S*ssh .*?-i (?P<key>.+?)(?P<options>( -o .+)+) (?P<user>\S+)@(?P<host>\S+)"
)


def ssh_settings(name: str, command: str) -> str:
    """Return a machine's entry for ~/.ssh/config, from the ssh command that gcloud prints.

    Raises:
        TpustackError: if it isn't such a command.
    """
    found = _PRINTED.fullmatch(command.strip().replace('"', ""))
    if not found:
        raise errors.TpustackError(
            f"gcloud's ssh command has a form that tpustack doesn't know: {command.strip()}. Use "
            "`tpustack ssh`"
        )
    options = found["options"].split(" -o ")[1:]
    lines = [f"HostName {found['host']}", f"User {found['user']}", f'IdentityFile "{found["key"]}"']
    return "".join(f"{line}\n" for line in (f"Host {name}", *lines, *options))


def _remember(name: str, entry: str) -> None:
    """Write a machine's entry where ssh and VS Code find it."""
    home = Path.home() / ".ssh"
    (home / _FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / _FOLDER / name).write_text(entry, encoding="utf-8")
    # ssh connects to nothing at all while others may write to a file that it includes (readconf.c).
    (home / _FOLDER / name).chmod(0o600)
    # Often a link into a repository of such files.
    config, include = (home / "config").resolve(), f"Include {_FOLDER}/*\n".encode()
    text = config.read_bytes() if config.exists() else b""
    if include not in text:
        mode = config.stat().st_mode if config.exists() else 0o600
        # First, since after a `Host` it would be part of it.
        replace_file(config, include + text)
        config.chmod(mode)


def _ask(words: list[str]) -> str:
    """Run gcloud on this terminal, and return what it prints. Raises TpustackError if it fails."""
    _require(_GCLOUD)
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise errors.TpustackError("gcloud can't log in to the machine; the reason is above")
    return done.stdout


def _require(program: str) -> None:
    if shutil.which(program) is None:
        raise errors.TpustackError(_CURES[program])


def _become(words: list[str]) -> NoReturn:
    """Run a program in place of this process: the terminal, its signals and exit are its own.

    Raises:
        TpustackError: when it isn't installed.
    """
    _require(words[0])
    os.execvp(words[0], words)


def _machine(stack: str | None, tpu: bool, host: int | None) -> Machine:
    """Return the machine that the options name; warn of what only Google knows.

    Raises TpustackError.
    """
    from tpustack import stacks

    stack = named(stack)
    settings = stacks.load(stack)
    machine = find_machine(stack, settings, tpu, host)
    network = settings.network
    if not network.create:
        from tpu_infra.catalog import Catalog

        facts = Catalog().network
        console.say(
            f"network.create is false: tpustack can't see whether the network {network.given_name} "
            f"lets {facts.iap_range} (IAP) reach port {facts.ssh_port}. A connection that times "
            "out means that it lacks such a firewall rule"
        )
    return machine


def find_machine(stack: str, settings: "StackSettings", tpu: bool, host: int | None) -> Machine:
    """Return the VM, or a host of the TPU.

    Args:
        stack: the stack's name.
        settings: its settings.
        tpu: whether it is a host of the TPU.
        host: its number over all slices, as in the output `tpu_endpoints`; None for the first.

    Raises:
        UsageError: if there is no such machine, or Google lets no one log in to it.
        TpustackError: if none of several zones has the TPU, or Google doesn't answer.
    """
    from tpu_core.words import plural
    from tpu_infra.catalog import Catalog
    from tpu_infra.names import names_of

    names, project, slices = names_of(settings, stack), settings.project, settings.tpu.slices
    if host is not None and not tpu:
        raise errors.UsageError(f"--host {host} is a host of the TPU, which needs --tpu, too")
    if not tpu and not settings.is_compute:
        if not settings.has_vm:
            raise errors.UsageError("vm.create is false, so there is no VM. Use --tpu")
        name = names.vm if settings.vm.instance_group is None else names.vm_of_group
        return Machine(name, project, settings.vm_zone)
    if settings.is_node:
        raise errors.UsageError(
            "architecture is node: Google lets no one log in to the hosts of a TPU Node. Without "
            "--tpu you get the VM that drives it"
        )
    kind = settings.tpu.accelerator_type
    shape = Catalog().accelerator(kind, settings.tpu.topology)
    if shape is None:
        raise errors.UsageError(
            f"tpu.acceleratorType: {kind} is no known type, so its number of hosts is unknown. "
            f"`tpustack check --stack {stack}` lists what is wrong"
        )
    number, most = host or 0, shape.hosts * slices
    if number >= most:
        where = f"{kind} has {plural(shape.hosts, 'host')}"
        where += f" in each of its {slices} slices" if slices > 1 else ""
        right = f"a number from 0 to {most - 1}" if most > 1 else "--host 0"
        raise errors.UsageError(f"--host {number}: {where}. Use {right}")
    name = names.tpus(slices)[number // shape.hosts]
    if settings.is_compute:
        name = name if shape.hosts == 1 else names.machine_of_slice(name, number)
        return Machine(name, project, settings.zone)
    return Machine(name, project, _zone(settings, name), number % shape.hosts)


def _zone(settings: "StackSettings", name: str) -> str:
    """Return the zone of a TPU; of several that it may be in, Google decides."""
    zones = settings.tpu_zones
    if len(zones) == 1:
        return zones[0]
    from tpustack.cloud.google import Google, NotFound, look_up

    place = {"project": settings.project, "tpu_zone": zones[0], "tpu_zones": zones}
    try:
        return look_up(Google(), place, name)[0]
    except NotFound:
        raise errors.TpustackError(
            f"no zone of {', '.join(zones)} has the TPU {name}: it isn't created yet, waits in "
            "Google's queue, or was taken. `tpustack doctor` shows its state"
        ) from None
