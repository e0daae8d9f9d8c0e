"""The container of an attempt, where its job names an image.

Docker's daemon has it, not the attempt: a killed `docker run` leaves it running. So what ends an
attempt also removes its container, by a name that no other attempt has.

A container that drives a TPU is privileged, which is root on the machine. Source:
docs.cloud.google.com/tpu/docs/run-in-container (2026-11).
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tpu_agent.jobs.environment import SetupError

# https://docs.docker.com/engine/containers/run/#exit-status (2026-11)
CAUSES = {
    125: "Docker could not start the container (exit code 125): the end of the log says why",
    126: "the command can't be run in the image (exit code 126). Is the file executable?",
    127: "the command, or /bin/bash, doesn't exist in the image (exit code 127)",
}
# They get the machine's token, and are Google: pkg.dev has no names of others.
_REGISTRY = re.compile(r"[a-z0-9-]+-docker\.pkg\.dev")
_READER = "roles/artifactregistry.reader"
_TAG = re.compile(r":[^:/]*$")
_GONE = "No such container"
# Before a pull is tried again: Docker itself repeats only layers, and no attempt follows.
_PAUSES = (2.0, 8.0)
# What the runner's lease can do without.
_PATIENCE = 20.0


class Container:
    """The container of the attempt in a folder."""

    def __init__(self, folder: Path) -> None:
        """Use the folder's name, which is that of the job and the attempt's number."""
        self._name = f"tpu-stack-{folder.name}"
        self._work, self._artifacts = folder / "work", folder / "artifacts"
        self._login, self._image = folder / "login", folder / "image"

    @property
    def image(self) -> str:
        """The image that it ran in, by its digest; empty if none ever ran."""
        return self._image.read_text("utf-8") if self._image.exists() else ""

    def pull(
        self,
        image: str,
        project: str,
        call: Callable[[Sequence[str], Mapping[str, str]], int],
        token: Callable[[], str],
    ) -> None:
        """Bring an image here, and find out its digest.

        Args:
            image: its name.
            project: of the registry that gets the machine's token; all others must be public.
            call: runs a command with further variables, and returns its exit code.
            token: returns a token of the machine's account.

        Raises:
            SetupError: the image is unavailable.
            OSError: there is no token.
        """
        if not shutil.which("docker"):
            raise SetupError(
                f"this machine has no Docker, which {image} needs (--image). Use a runtime or "
                "machine image that has Docker, or submit the job without --image"
            )
        if why := self._remove():
            raise SetupError(f"Docker doesn't work on this machine: {why}")
        host, _, path = image.partition("/")
        is_own = _REGISTRY.fullmatch(host) and path.startswith(f"{project.replace(':', '/')}/")
        config = {"DOCKER_CONFIG": str(self._login)} if is_own else {}
        try:
            for pause in (*_PAUSES, 0.0):
                # After each call all that it left is removed, the login as well.
                why = self._log_in(host, token(), config) if is_own else ""
                if not why and call(["docker", "pull", "--quiet", image], config) == 0:
                    break
                time.sleep(pause)
            else:
                raise SetupError(
                    f"--image: Docker can't log in to {host}: {why}"
                    if why
                    else f"--image: {image} can't be pulled (see the log). Is the name right? An "
                    f"image in Artifact Registry of the project {project} needs {_READER} for the "
                    "machine's service account; any other must be public"
                )
        finally:
            shutil.rmtree(self._login, ignore_errors=True)
        self._image.write_text(image if "@" in image else self._digest(image), "utf-8")

    def command(
        self, command: Sequence[str], variables: Mapping[str, str], *, has_chips: bool
    ) -> list[str]:
        """Return what runs a command in the image, with variables of the environment."""
        folders = (self._work, self._artifacts)
        return [
            # The job may have a PATH of its own, which is the image's.
            shutil.which("docker") or "docker",
            *("run", "--rm", "--name", self._name, "--user=0", "--net=host", "--ipc=host"),
            *(["--privileged"] if has_chips else []),
            # The attempt has the output. SIGTERM goes to all that bash started, as without Docker.
            *("--log-driver=none", "--init", "--env=TINI_KILL_PROCESS_GROUP=1"),
            *(f"--volume={path}:{path}" for path in folders),
            f"--workdir={self._work}",
            # Docker takes the values from its own environment, where they may have any text.
            *(f"--env={name}" for name in variables),
            *(f"--entrypoint={command[0]}", self.image, *command[1:]),
        ]

    def end(self) -> bool:
        """Remove it, if it ever began; return False if it may still run."""
        shutil.rmtree(self._login, ignore_errors=True)
        return not self._image.exists() or not self._remove()

    def _remove(self) -> str:
        """Remove a container of that name; return why there may still be one."""
        try:
            done = _docker("rm", "--force", self._name)
        except OSError as error:
            return str(error)
        return "" if done.returncode == 0 or _GONE in done.stderr else done.stderr.strip()

    def _log_in(self, host: str, token: str, config: Mapping[str, str]) -> str:
        """Log in to a registry, in a folder of the attempt's own; return why it failed, or ""."""
        self._login.mkdir(mode=0o700, exist_ok=True)
        user = ("--username=oauth2accesstoken", "--password-stdin")
        done = _docker("login", *user, host, given=token, variables=config)
        return done.stderr.strip() or f"exit code {done.returncode}" if done.returncode else ""

    def _digest(self, image: str) -> str:
        """Return the name with digest of an image that is here."""
        done = _docker("image", "inspect", "--format={{json .RepoDigests}}", image)
        found = json.loads(done.stdout or "[]") if done.returncode == 0 else []
        own = [one for one in found if one.startswith(f"{_TAG.sub('', image)}@")]
        if not found:
            raise SetupError(f"--image: {image} has no digest here: {done.stderr.strip()}")
        return str((own or found)[0])


def machine_stops() -> bool:
    """Return whether the machine goes down: Docker ends its containers before all processes end."""
    try:
        asked = ("systemctl", "is-system-running")
        done = subprocess.run(asked, capture_output=True, timeout=_PATIENCE, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.strip() == b"stopping"


def _docker(
    *arguments: str, given: str = "", variables: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    command = ["docker", *arguments]
    try:
        return subprocess.run(
            command,
            env={**os.environ, **(variables or {})},
            input=given,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        why = f"docker {arguments[0]} gave no answer in {_PATIENCE:g} s"
        return subprocess.CompletedProcess(command, 1, "", why)
