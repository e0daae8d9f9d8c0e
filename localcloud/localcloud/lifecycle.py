"""The emulator as a process: how it starts, runs, answers its command line and stops.

The commands `start`, `status`, `stop` and `reset` are here, and what all commands need.
"""

import contextlib
import fcntl
import http.client
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import IO, Any

import click

from localcloud.core import cloud as core
from localcloud.machines import processes
from localcloud.server import proxy

# Until it answers, until its machines have ended by their grace, and until killed ones are gone.
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_KILL_SECONDS = 10.0
_LOG_BYTES = 50 << 20
_NOT_RUNNING = 3
# The umask: all that it writes is this user's alone.
_OWN_FILES = 0o077
# What `reset` removes.
_STATE = (
    *("state.sqlite", "state.sqlite-shm", "state.sqlite-wal", "machines", "objects", "tpu"),
    *("localcloud.log", "requests.log", "requests.log.1"),
)


class CommandError(click.ClickException):
    """A command that fails with one message."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message on standard error."""
        click.echo(f"error: {self.message}", file=file, err=True)


home_option = click.option(
    "--home",
    type=click.Path(path_type=Path),
    default=".localcloud",
    envvar="LOCALCLOUD_HOME",
    callback=lambda ctx, param, home: home.expanduser().absolute(),
    help="Folder of its state (default: $LOCALCLOUD_HOME, or .localcloud here).",
)


def command_name() -> str:
    """Return the command as people type it; `tpustack local` passes its own name."""
    return os.environ.get("LOCALCLOUD_PROG") or "python -m localcloud"


def run_file(home: Path) -> Path:
    """Return the file in which a running emulator leaves its process id and port."""
    return home / "run.json"


def running(home: Path) -> dict[str, int] | None:
    """Return process id and port of the emulator that runs on `home`, or None."""
    try:
        known: dict[str, int] = json.loads(run_file(home).read_text(encoding="utf-8"))
        os.kill(known["pid"], 0)
        # The process id may belong to another process by now; the answer on the port decides.
        status = _request(home, known["port"], "GET", "status", {})
    except (OSError, ValueError, KeyError, http.client.HTTPException, CommandError):
        return None
    # The next emulator may have the same port before it says so in its run file.
    answers = status["home"], status["pid"]
    return known if answers == (str(home), known["pid"]) else None


def ask(home: Path, verb: str, name: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Call the emulator's own API.

    Raises CommandError: with its message, that it was killed before it answered, or that it does
    not run (exit code 3).
    """
    known = running(home)
    if known is None:
        raise CommandError(
            f"the local cloud of {home} is not running; start it with `{command_name()} start`",
            exit_code=_NOT_RUNNING,
        )
    try:
        return _request(home, known["port"], verb, name, body or {})
    except (OSError, http.client.HTTPException) as error:
        raise CommandError(f"the local cloud of {home} doesn't answer: {error}") from None


def _request(home: Path, port: int, verb: str, name: str, body: dict[str, Any]) -> dict[str, Any]:
    key = core.admin_key((home / "secret").read_bytes())
    headers = {"Local-Cloud": key, "Content-Type": "application/json"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request(verb, f"/_local/v1/{name}", json.dumps(body), headers)
        response = connection.getresponse()
        answer: dict[str, Any] = json.loads(response.read())
    # 400 and 404 are the user's own mistakes: 2, as click has it for wrong input.
    if response.status >= 400:
        raise CommandError(answer["error"]["message"], 2 if response.status in (400, 404) else 1)
    return answer


@click.command()
@home_option
@click.option("--port", type=int, help="0 uses any free port (default: the last one, or any).")
@click.option(
    "--latency",
    type=click.Choice(["none", "real"]),
    default="none",
    help="real: operations take as long as Google's (default: none).",
)
@click.option("--foreground", is_flag=True, help="Run here until Ctrl-C.")
@click.option("--starter", type=int, hidden=True)
def start(
    home: Path, port: int | None, latency: core.Latency, foreground: bool, starter: int | None
) -> None:
    """Start it, in the background."""
    known = running(home)
    if known:
        print(f"the local cloud already listens on 127.0.0.1:{known['port']}")
        return
    if port is not None and not 0 <= port < 65536:
        raise CommandError(f"--port {port}: a port is 0 to 65535", exit_code=2)
    # Tokens and keys are below the home folder.
    os.umask(_OWN_FILES)
    try:
        core.own(home)
    except OSError as error:
        raise CommandError(f"--home {home}: {error.strerror}", exit_code=2) from None
    except core.NotOwnError as error:
        raise CommandError(f"--home {error}", exit_code=2) from None
    if foreground:
        _serve(home, port, latency, starter)
        return
    # A session of its own: Ctrl-C in the shell that started it is not meant for it.
    command = [sys.executable, "-m", "localcloud", "start", "--foreground"]
    command += ["--home", str(home), "--latency", latency, "--starter", str(os.getpid())]
    command += [] if port is None else ["--port", str(port)]
    with (home / "localcloud.log").open("ab") as log:
        offset = log.tell()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        known = _wait_until_up(home, process, offset)
    except BaseException:
        process.terminate()
        raise
    print(f"the local cloud listens on 127.0.0.1:{known['port']}")
    print(_who_gets_in())


def _who_gets_in() -> str:
    """Return what holds on a machine with several users, and what does not.

    TPU workers listen by themselves, and know addresses, not users.
    """
    others = (
        "other users of this computer have no access, except to TPU workers"
        if proxy.knows_users()
        else (
            "other users of this computer have access, because this system doesn't show who owns "
            "a connection"
        )
    )
    users = "its VMs run as you, whatever users they name"
    return f"{others}; {users}, and programs there can read your files"


def _wait_until_up(home: Path, process: subprocess.Popen[bytes], offset: int) -> dict[str, int]:
    """Return what `running` does; CommandError with the last line of the log if it ends before."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None and lock_holder(home) is None:
            log = (home / "localcloud.log").read_bytes()[offset:].decode(errors="replace")
            last = log.strip().splitlines()[-1] if log.strip() else "it printed nothing"
            raise CommandError(f"the local cloud exited at once: {last.removeprefix('error: ')}")
        known = running(home)
        if known:
            if known["pid"] != process.pid:
                # Another start was faster; this one must not wait for the lock.
                process.terminate()
                process.wait()
            return known
        time.sleep(0.05)
    raise CommandError(f"the local cloud did not answer within {_START_SECONDS:.0f} s")


def _serve(home: Path, port: int | None, latency: core.Latency, starter: int | None) -> None:
    # Imported late: all APIs take a second to load, which only the server needs.
    from localcloud.app import LocalCloud, PortError

    held = _take_lock(home)
    # Problems go to standard error, which `start` keeps in a file.
    plain = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=plain, stream=sys.stderr)
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: stopped.set())
    try:
        cloud = LocalCloud(home, port=_last_port(home) if port is None else port, latency=latency)
    except PortError as error:
        if port is not None:
            raise CommandError(f"cannot listen on --port {port}: {error}") from None
        cloud = LocalCloud(home, latency=latency)
    if starter not in (None, os.getppid()):
        # The process that started it was killed, and may have found nothing to stop.
        raise CommandError("the command that started it has ended")
    cloud.cloud.log_request = RequestsLog(home / "requests.log").write
    cloud.start()
    # Replaced in one step: other commands may read it at any moment.
    part = run_file(home).with_suffix(".part")
    part.write_text(json.dumps({"pid": os.getpid(), "port": cloud.listener.port}), encoding="utf-8")
    part.replace(run_file(home))
    print(f"the local cloud listens on 127.0.0.1:{cloud.listener.port}", flush=True)
    print(_who_gets_in(), flush=True)
    stopped.wait()
    cloud.stop()
    held.close()


def _last_port(home: Path) -> int:
    # The same port again, so that a shell's environment outlives a restart.
    try:
        return int(json.loads(run_file(home).read_text(encoding="utf-8"))["port"])
    except (OSError, ValueError, KeyError):
        return 0


class RequestsLog:
    """A line for each request, in a file that starts again when it is long; the last one stays.

    A handler of `logging` takes five times as long.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def write(self, text: str) -> None:
        """Append a line; without a place on the disk it is lost."""
        now = datetime.now().isoformat(" ", "milliseconds")
        with self._lock, contextlib.suppress(OSError):
            self._file.write(f"{now} {text}\n".encode())
            if self._file.tell() >= _LOG_BYTES:
                # It may have been deleted to free the disk.
                with contextlib.suppress(FileNotFoundError):
                    self._path.replace(f"{self._path}.1")
                self._file = self._path.open("ab", buffering=0)


@click.command()
@home_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(home: Path, as_json: bool) -> int:
    """Show what it holds and runs."""
    if running(home) is None:
        print("the local cloud is not running", file=sys.stderr)
        return _NOT_RUNNING
    found = ask(home, "GET", "status")
    if as_json:
        print(json.dumps(found, indent=2))
        return 0
    resources = ", ".join(f"{kind} ({count})" for kind, count in found["resources"].items())
    rows = {
        "listens on": f"127.0.0.1:{found['port']} (pid {found['pid']})",
        "state": found["home"],
        "project": found["project"],
        "latency": found["latency"],
        "resources": resources or "none",
        "faults": found["faults"],
        "bad calls": f"{found['problems']} (see `logs`)",
    }
    for name, value in rows.items():
        print(f"{name:14}{value}")
    for key, machine in found["machines"].items():
        pids = ", ".join(map(str, machine["pids"]))
        print(f"machine       {key}: {f'running (pids {pids})' if machine['running'] else 'off'}")
    return 0


@click.command()
@home_option
def stop(home: Path) -> None:
    """Stop it and its machines."""
    _stop(home)


def _stop(home: Path) -> None:
    pid = lock_holder(home)
    if pid is None:
        print("the local cloud is not running")
        return
    # Asked before it goes: afterwards nothing knows the machines' processes.
    pids = {pid}
    if running(home):
        pids |= {*ask(home, "GET", "status")["processes"]}
    os.kill(pid, signal.SIGTERM)
    if _left(pids, _STOP_SECONDS):
        # It hangs; killing it ends its machines too.
        os.kill(pid, signal.SIGKILL)
        if left := _left(pids, _KILL_SECONDS):
            raise CommandError(f"these processes don't end: {', '.join(map(str, sorted(left)))}")
    print("the local cloud is stopped")


def _left(pids: set[int], seconds: float) -> set[int]:
    """Wait for processes to end, at most so long, and return those that have not."""
    deadline = time.monotonic() + seconds
    while (left := pids & processes.living()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


@click.command()
@home_option
def reset(home: Path) -> None:
    """Stop it and forget everything."""
    _stop(home)
    # Remove only what the emulator made: the folder may be the user's own. Keys and certificates
    # stay, so that shells keep a valid environment.
    for name in _STATE:
        path = home / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    print("all resources are deleted")


COMMANDS = (start, status, stop, reset)


# The lock is the kernel's: it goes with the process, however that ends, so that it says who runs.


def _take_lock(home: Path) -> IO[str]:
    """Hold the home's lock until the file is closed or the process ends.

    Raises CommandError: when another emulator holds it.
    """
    file = _try_lock(home)
    if file is None:
        raise CommandError(f"another local cloud runs on {home}")
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def lock_holder(home: Path) -> int | None:
    """Return the process id of the emulator that runs on `home`, even if it hangs."""
    path = home / "lock"
    if not path.exists():
        return None
    file = _try_lock(home)
    if file is not None:
        file.close()
        return None
    with contextlib.suppress(ValueError):
        return int(path.read_text(encoding="ascii"))
    return None


def _try_lock(home: Path) -> IO[str] | None:
    file = (home / "lock").open("a", encoding="ascii")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file
