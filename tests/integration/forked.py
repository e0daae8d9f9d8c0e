"""Starts Python programs from a process that has imported what is slow to import.

Each update of a stack runs a program that needs Pulumi's SDK and Google's provider, and importing
those is most of what it takes. So the environment of the tests' programs asks this process, which
forks: `python -S forked.py SOCKET -u SCRIPT …` ends as `python -u SCRIPT …` would. Of this project
nothing is imported before: a program's own folder says which code of it runs.

Such a test doesn't prove that a program imports all that it needs, that a signal to the engine's
group reaches it (it is killed instead), or that its result is the same under any seed of hashes.
tests/e2e/ does, with Pythons of their own: test_first_hour, test_demo and test_interruption; and
test_installed, in an environment that has the wheels alone.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

SLOW = (
    "click",
    "google.auth.transport.requests",
    "google.oauth2.credentials",
    "psutil",
    "pulumi.automation",
    "pulumi.provider.server",
    "pulumi_gcp.compute",
    "pulumi_gcp.projects",
    "pulumi_gcp.serviceaccount",
    "pulumi_gcp.storage",
    "pulumi_gcp.tpu",
    "pydantic.fields",
    "pydantic.main",
    "pydantic.types",
    "requests",
    "rich.console",
    "yaml",
)


@contextlib.contextmanager
def forking(folder: Path) -> Iterator[None]:
    """Make `folder` a virtual environment that starts its programs so."""
    address, python = folder / "forked", folder / "bin" / "python"
    python.parent.mkdir()
    ask = f"{sys.executable} -S -E {__file__} {address}"
    # Before each run the engine has pip look for packages that need plugins, which takes a second.
    # The SDK names the plugin once more when it declares a resource. Before it generates a package
    # the engine has pip upgrade itself and setuptools, which would be those of this clone.
    python.write_text(
        f"""#!/bin/sh
case "$*" in
  "-m pip list"*) echo "[]" ;;
  "-m pip install"*) ;;
  /* | "-u "* | "-m tpustack "*) exec {ask} "$@" ;;
  *) exec {sys.executable} "$@" ;;
esac
""",
        encoding="utf-8",
    )
    python.chmod(0o755)
    command = [sys.executable, __file__, str(address)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as server:
        assert server.wait() == 0
        yield


def _serve(address: str) -> None:
    """Answer until standard input ends, as it does with the process that has started this one."""
    for name in SLOW:
        # The provider's modules are imported when something is asked of them.
        hasattr(importlib.import_module(name), "__all__")
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    # No child of the tests' process, whose other tests count and end its children.
    if os.fork():
        os._exit(0)
    # Nobody waits for the children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        asking, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(asking)
            return
        asking.close()


def _answer(asking: socket.socket) -> None:
    """Run the program that is asked for in a fork of this one, and say how it ended."""
    _, files, _, _ = socket.recv_fds(asking, 1, 3)
    with asking.makefile(encoding="utf-8") as lines:
        arguments, folder, environment = json.loads(lines.readline())
    program = os.fork()
    if program == 0:
        asking.close()
        _become(files, folder, environment)
        _run(arguments)
        return
    for file in files:
        os.close(file)
    # It ends when the process that asked is killed, as it would be this one.
    if asking.fileno() in select.select([asking.fileno(), os.pidfd_open(program)], [], [])[0]:
        os.kill(program, signal.SIGKILL)
    _, status = os.waitpid(program, 0)
    with contextlib.suppress(OSError):
        asking.sendall(bytes([os.waitstatus_to_exitcode(status) % 256]))


def _become(files: Sequence[int], folder: str, environment: Mapping[str, str]) -> None:
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0)
    # As `-u` has them: a plugin writes its port, and nothing more that would push it out.
    raw = (os.fdopen(number, "wb", buffering=0) for number in (1, 2))
    sys.stdout, sys.stderr = (io.TextIOWrapper(each, write_through=True) for each in raw)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)


def _run(arguments: Sequence[str]) -> None:
    arguments = arguments[arguments[0] == "-u" :]
    module = arguments[0] == "-m"
    sys.argv = list(arguments[module:])
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    script = Path(sys.argv[0]).resolve()
    first = os.getcwd() if module else script if script.is_dir() else script.parent
    sys.path[:1] = [str(first), *paths]
    if module:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(sys.argv[0], run_name="__main__")


def _ask(address: str, arguments: Sequence[str]) -> int:
    """Have a program run with this process' files, folder and environment; return its code."""
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        socket.send_fds(server, [b"-"], [0, 1, 2])
        request = json.dumps([arguments, os.getcwd(), dict(os.environ)])
        server.sendall(f"{request}\n".encode())
        code = server.recv(1)
    return code[0] if code else 1


if __name__ == "__main__":
    if sys.argv[2:]:
        sys.exit(_ask(sys.argv[1], sys.argv[2:]))
    _serve(sys.argv[1])
