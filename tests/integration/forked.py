"""Starts Python programs from a process that has imported what is slow to import.

Each update of a stack runs a program that needs Pulumi's SDK and Google's provider, and importing
those is most of what it takes. So the environment of the tests' programs asks this process, which
forks: `python -S forked.py SOCKET -u SCRIPT …` ends as `python -u SCRIPT …` would. Of this project
nothing is imported before: a program's own folder says which code of it runs.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


@contextmanager
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
        while not address.exists():
            assert server.poll() is None
            time.sleep(0.05)
        yield


def _serve(address: str) -> None:
    """Answer until standard input ends, as it does with the process that has started this one."""
    for name in SLOW:
        # The provider's modules are imported when something is asked of them.
        hasattr(importlib.import_module(name), "__all__")
    gc.collect()
    gc.freeze()
    fresh = f"{address}.fresh"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(fresh)
    listener.listen()
    os.rename(fresh, address)
    # Nobody waits for the children.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while sys.stdin not in select.select([listener, sys.stdin], [], [])[0]:
        asking, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _become(asking)
        asking.close()


def _become(asking: socket.socket) -> None:
    """Run the program that is asked for, and end."""
    _, files, _, _ = socket.recv_fds(asking, 1, 3)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0)
    # As `-u` has them: a plugin writes its port, and nothing more that would push it out.
    raw = (os.fdopen(number, "wb", buffering=0) for number in (1, 2))
    sys.stdout, sys.stderr = (io.TextIOWrapper(each, write_through=True) for each in raw)
    with asking.makefile(encoding="utf-8") as lines:
        arguments, folder, environment = json.loads(lines.readline())
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    threading.Thread(target=_end_with, args=(asking,), daemon=True).start()
    code = _run(arguments)
    asking.sendall(bytes([code]))
    sys.exit(code)


def _end_with(asking: socket.socket) -> None:
    """End when the process that asked is killed, as it would be this one."""
    if not asking.recv(1):
        os._exit(1)


def _run(arguments: Sequence[str]) -> int:
    import runpy
    import traceback

    arguments = arguments[arguments[0] == "-u" :]
    module = arguments[0] == "-m"
    sys.argv = list(arguments[module:])
    paths = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    script = Path(sys.argv[0]).resolve()
    first = os.getcwd() if module else script if script.is_dir() else script.parent
    sys.path[:1] = [str(first), *paths]
    try:
        if module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


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
