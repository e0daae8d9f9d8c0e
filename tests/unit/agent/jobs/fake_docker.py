"""A stand-in for Docker: its containers are processes that no client owns, as the daemon's are.

It keeps what it was asked in a folder, `FAKE_DOCKER`, and ends itself (`client`) or the process
that called it (`caller`) at a step that `FAKE_KILL` names, such as `caller before pull`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(os.environ.get("FAKE_DOCKER", "."))
DIGEST = f"python@sha256:{'0' * 64}"


def main(verb: str, arguments: list[str]) -> int:
    """Do what Docker would."""
    with (HERE / "asked").open("a") as file:
        file.write(json.dumps([verb, *arguments]) + "\n")
    (HERE / "variables").write_text(json.dumps(dict(os.environ)))
    if (HERE / "down").exists():
        print("Cannot connect to the Docker daemon", file=sys.stderr)
        return 1
    killed(f"before {verb}")
    code = {"login": login, "pull": pull, "image": inspect, "run": run, "rm": rm}[verb](arguments)
    killed(f"after {verb}")
    return code


def killed(when: str) -> None:
    """Kill what the test says."""
    wanted = os.environ.get("FAKE_KILL", "")
    if wanted == f"caller {when}":
        os.kill(os.getppid(), signal.SIGKILL)
    elif wanted == f"client {when}":
        os.kill(os.getpid(), signal.SIGKILL)


def login(arguments: list[str]) -> int:
    """Keep the token where Docker does; fail once if the test wants it, or always."""
    if (refuses := HERE / "refuses").exists():
        if not refuses.read_text():
            refuses.unlink()
        print("denied: try later", file=sys.stderr)
        return 1
    config = Path(os.environ["DOCKER_CONFIG"]) / "config.json"
    config.write_text(json.dumps({"auths": {arguments[-1]: sys.stdin.read()}}))
    return 0


def pull(arguments: list[str]) -> int:
    """Know every image but one, and a private one with a token alone."""
    config = Path(os.environ.get("DOCKER_CONFIG", "/nowhere")) / "config.json"
    host = arguments[-1].partition("/")[0]
    if "docker.pkg.dev" in host and not (config.exists() and host in config.read_text()):
        print("denied: Unauthenticated request", file=sys.stderr)
        return 1
    if (HERE / "busy").exists():
        (HERE / "busy").unlink()
        print("received unexpected HTTP status: 503", file=sys.stderr)
        return 1
    return int("no-such" in arguments[-1])


def inspect(arguments: list[str]) -> int:
    """Tell the digests of an image."""
    print(json.dumps([f"other@sha256:{'1' * 64}", DIGEST]))
    return 0


def run(arguments: list[str]) -> int:
    """Start a container that outlives this client, and pass signals on to it."""
    options = [one for one in arguments if one.startswith("--")]
    name = arguments[arguments.index("--name") + 1]
    names = [one.removeprefix("--env=") for one in options if one.startswith("--env=")]
    work = next(one.removeprefix("--workdir=") for one in options if one.startswith("--workdir="))
    entry = next(o.removeprefix("--entrypoint=") for o in options if o.startswith("--entrypoint="))
    program = [entry, *arguments[arguments.index("-c") :]]
    # The daemon's: without the marks of whoever called.
    own = {one: os.environ[one] for one in names if one in os.environ}
    path = {"PATH": "/usr/bin:/bin", "FAKE_DOCKER": str(HERE)}
    try:
        process = subprocess.Popen(program, cwd=work, env={**path, **own}, start_new_session=True)
    except OSError:
        return 125
    (HERE / f"{name}.pid").write_text(str(process.pid))
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(process.pid, signal.SIGTERM))
    killed("during run")
    code = process.wait()
    (HERE / f"{name}.pid").unlink(missing_ok=True)
    return code if code >= 0 else 128 - code


def rm(arguments: list[str]) -> int:
    """End a container, whoever started it."""
    path = HERE / f"{arguments[-1]}.pid"
    if (HERE / "removing").exists():
        print("removal of container 1 is already in progress", file=sys.stderr)
        return 1
    if not path.exists():
        print(f"Error: No such container: {arguments[-1]}", file=sys.stderr)
        return 1
    group = int(path.read_text())
    try:
        while True:
            os.killpg(group, signal.SIGKILL)
            time.sleep(0.01)
            if Path(f"/proc/{group}/stat").read_text().split()[2] == "Z":
                break
    except (ProcessLookupError, FileNotFoundError):
        pass
    path.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
