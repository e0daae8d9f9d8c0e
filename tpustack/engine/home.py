"""Where a new stack is at home: the backend of its state, and what encrypts its secrets."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.names import in_bucket_names
from infra.settings.base import UNSET, Problem
from tpustack.cloud import state_bucket
from tpustack.cloud.google import Google
from tpustack.engine.backend import users_own
from tpustack.errors import TpustackError
from tpustack.project import BACKEND, root

FILE = "file"
PASSPHRASE = "passphrase"
PASSPHRASE_VARIABLE = "PULUMI_CONFIG_PASSPHRASE"
PASSPHRASE_FILE = f"{PASSPHRASE_VARIABLE}_FILE"
_BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9_.-]{1,61}[a-z0-9])(/.*)?")
_KEY = re.compile(
    r"gcpkms://projects/[^/]+/locations/[^/]+/keyRings/[\w-]+/cryptoKeys/[\w-]+", re.ASCII
)


@dataclass(frozen=True)
class Home:
    """The backend and the secrets provider of a stack.

    Attributes:
        backend: `gs://BUCKET` or `file`, as the user says it, or whatever PULUMI_BACKEND_URL holds.
        secrets_provider: `passphrase` or `gcpkms://KEY`.
        passphrase: typed by the user; None if the environment says it, or a key is used.
    """

    backend: str
    secrets_provider: str
    passphrase: str | None = None

    @property
    def url(self) -> str:
        """The backend as Pulumi takes it; `file` is `.pulumi` in the user's home."""
        return _here() if self.backend == FILE else self.backend


def _here() -> str:
    return f"file://{Path.home()}"


def usual_backend(project: str) -> str:
    """Return the backend to suggest: a bucket of the project's."""
    return f"gs://{in_bucket_names(project)}-pulumi-state"


def backend_problem(backend: str) -> Problem | None:
    """Return what is wrong with `--backend`; what the environment says is Pulumi's to judge."""
    said = os.environ.get(BACKEND)
    if backend == said or (backend == FILE and said in (None, "", _here())):
        return None
    if said:
        why = f"is not what {BACKEND} says ({said}), which Pulumi obeys"
        return Problem("--backend", backend, why, f"Unset {BACKEND}, or leave --backend out")
    if _BUCKET.fullmatch(backend) or re.match("file://.", backend):
        return None
    why = "is no place for Pulumi's state"
    cure = f"Use gs://BUCKET, which is made if it is not there, or {FILE} for this machine alone"
    return Problem("--backend", backend, why, cure)


def secrets_problem(provider: str) -> Problem | None:
    """Return what is wrong with `--secrets-provider`."""
    if provider == PASSPHRASE or _KEY.fullmatch(provider):
        return None
    cure = (
        f"Use {PASSPHRASE}, or gcpkms://projects/P/locations/L/keyRings/R/cryptoKeys/K for a key "
        "of Cloud KMS"
    )
    return Problem("--secrets-provider", provider, "encrypts no secrets here", cure)


def passphrase_problem(provider: str) -> Problem | None:
    """Return how to say the passphrase, where no variable does and nobody can be asked."""
    if provider != PASSPHRASE or passphrase_is_said():
        return None
    cure = f"Set {PASSPHRASE_FILE} to a file; `tpustack init` makes one that is missing"
    return Problem(PASSPHRASE_VARIABLE, UNSET, "and there is no terminal to ask on", cure)


def passphrase_is_said() -> bool:
    """Whether the environment says the passphrase; it may be empty."""
    return PASSPHRASE_VARIABLE in os.environ or bool(os.environ.get(PASSPHRASE_FILE))


def make(home: Home, stack: str, *, project: str, region: str) -> Iterator[str]:
    """Log in to the backend and make the stack there; yield a sentence for each thing done.

    Raises:
        TpustackError: with Google's or Pulumi's own message.
    """
    bucket = _BUCKET.fullmatch(home.backend)
    if bucket and state_bucket.ensure(Google(), bucket[1], project=project, region=region):
        yield f"The bucket gs://{bucket[1]} is made; it keeps old versions of the state."
    if home.secrets_provider == PASSPHRASE and (made := _passphrase_file()):
        yield f"Wrote a new passphrase to {made}. Keep it: every change of the stack needs it."
    pulumi = _pulumi({PASSPHRASE_VARIABLE: home.passphrase} if home.passphrase else {})
    if not os.environ.get(BACKEND):
        pulumi("login", home.url)
    pulumi("stack", "init", stack, f"--secrets-provider={home.secrets_provider}")
    place = "~/.pulumi" if home.backend == FILE else home.backend
    yield f"The stack {stack} is made and selected; its state is in {place}."


def _passphrase_file() -> Path | None:
    """Make the file that the environment names, if it is missing; return it then."""
    named = os.environ.get(PASSPHRASE_FILE)
    if PASSPHRASE_VARIABLE in os.environ or not named or Path(named).exists():
        return None
    path = Path(named)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secrets.token_urlsafe() + "\n", encoding="utf-8")
    except OSError as error:
        raise TpustackError(f"{PASSPHRASE_FILE}: {path} can't be made: {error.strerror}") from None
    return path


def _pulumi(variables: Mapping[str, str]) -> Callable[..., None]:
    """Return what runs a command of the engine in the project's folder."""
    environment = {**os.environ, **users_own().environment, **variables}

    def run(*arguments: str) -> None:
        done = subprocess.run(
            ["pulumi", *arguments, "--non-interactive", "--color=never"],
            cwd=root(),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip()).removeprefix("error: ")
            raise TpustackError(f"`pulumi {' '.join(arguments)}` failed: {said}")

    return run
