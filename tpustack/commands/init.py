"""`tpustack init`: makes a new stack: its settings file, its backend, its secrets provider.

Questions and options are checked by what checks stack files, so that what is accepted deploys:
first each answer alone, with valid answers in place of those that are missing, then all together.
"""

import getpass
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import yaml

from tpu_bootstrap.settings import OLD_VERSIONS, SOFT_DELETE
from tpu_core.words import money
from tpu_infra import checks, cost
from tpu_infra.catalog import Catalog
from tpu_infra.catalog.entries import Accelerator
from tpu_infra.checks.project import LONGEST_PREFIX
from tpu_infra.names import in_bucket_names
from tpu_infra.settings import StackSettings, base, parse
from tpu_infra.settings.machines import Architecture, Capacity, RunOn
from tpustack import console, errors, stacks
from tpustack.cloud.google import Google, NotFound
from tpustack.engine.backend import users_own
from tpustack.errors import TpustackError, UsageError
from tpustack.project import BACKEND, root

# Zones or types that a question offers, before it points to the catalog.
_MOST_SHOWN = 12
# Flex-start needs one more setting (docs/capacity.md#flex-start).
_OFFERED = [capacity for capacity in Capacity if capacity is not Capacity.FLEX_START]


class _Capacities(click.Choice[str]):
    """Those that are offered; of the other it says what it needs."""

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the choice."""
        if value == Capacity.FLEX_START:
            self.fail(
                f"{value} needs tpu.queued.runHours, which this command doesn't set. Use spot, "
                f"then set tpu.capacity: {value} and tpu.queued.runHours in the stack file "
                "(docs/capacity.md#flex-start)",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


@click.command("init")
@click.argument("name")
@click.option("--project", help="The ID of the Google Cloud project.")
@click.option(
    "--zone", shell_complete=console.zones, help="Where the TPU is, for example us-central1-a."
)
@click.option(
    "--accelerator-type",
    shell_complete=console.accelerators,
    help="Type and size of the TPU, for example v5litepod-4; a machine type such as "
    "ct6e-standard-4t makes it one of Compute Engine, for jobs of JAX or PyTorch.",
)
@click.option(
    "--capacity",
    type=_Capacities([str(capacity) for capacity in _OFFERED]),
    help="How the TPU is bought.",
)
@click.option(
    "--data",
    type=click.Path(),
    help="Folder that `tpu-training data convert` wrote. Without it the bucket must have the data.",
)
@click.option(
    "--run-on",
    type=click.Choice([str(machine) for machine in RunOn]),
    help="What trains: the VM, which drives the TPU by gRPC (the default), or the TPU VM itself, "
    "as Google documents. On Compute Engine only tpu.",
)
@click.option(
    "--owner",
    help="Whose stack it is: part of all names, so that two engineers do not collide in one "
    "project. Default: your login name, unless NAME ends in it. '' for a stack of the whole team.",
)
@click.option(
    "--backend",
    help="Where Pulumi keeps the state: gs://BUCKET, created if missing, or file for this "
    "machine alone. Default: what PULUMI_BACKEND_URL says.",
)
@click.option(
    "--secrets-provider",
    help="What encrypts secrets in the state: passphrase, or gcpkms://KEY.",
)
def init_command(
    name: str, backend: str | None, secrets_provider: str | None, **options: str | None
) -> None:
    """Create the stack NAME: write its stack file, choose where its state is, and create it there.

    Prompts for what no option gives, and offers only what the catalog allows. Never changes an
    existing file. Git ignores the file, because it belongs to one person.
    """
    # A name that can't be is refused before the first question.
    path = _path_for(name)
    catalog = Catalog()
    options["owner"] = _owner_of(name) if options["owner"] is None else options["owner"]
    given = {key: value for key, value in options.items() if value is not None}
    backend = backend or os.environ.get(BACKEND)
    if secrets_provider is None and _has_passphrase():
        secrets_provider = PASSPHRASE
    _refuse_wrong(name, given, backend, secrets_provider)
    answers = Answers(**_asked(name, given, catalog))
    home = _home(answers.project, backend, secrets_provider)
    settings = _write_stack_file(name, path, answers, catalog)
    hour = cost.of_stack(settings, name, catalog).configured
    price = money(hour.hour) if hour.complete else f"over {money(hour.hour)}"
    click.echo(f"stacks/{path.name} is written. It costs {price} an hour.")
    for warning in checks.find_warnings(settings, stacks.context_of(name, settings, catalog)):
        click.echo(f"warning: {warning}")
    runtime = catalog.runtime(settings.tpu.runtime_version or "")
    if runtime and runtime.tensorflow:
        click.echo(
            f"{runtime.name} has TensorFlow {runtime.tensorflow}: "
            "test your model with that version."
        )
    try:
        for done in _make_home(name, *home, settings):
            click.echo(done)
    except (TpustackError, console.Interrupted):
        # So that the same command works once the cause is removed.
        path.unlink()
        click.echo(f"stacks/{path.name} is removed again.", err=True)
        raise
    click.echo("Next:\n  pulumi preview\n  pulumi up")


def _refuse_wrong(
    stack: str, given: dict[str, str], backend: str | None, provider: str | None
) -> None:
    """Raise UsageError with all that is wrong with the options, and what is missing unasked."""
    # Two options may have one problem, as a type that the zone lacks.
    found = [_problem_of(stack, key, given) for key in given]
    found.append(_backend_problem(backend) if backend else None)
    found.append(_secrets_problem(provider) if provider else None)
    missing: dict[str, str] = {}
    if not sys.stdin.isatty():
        known = {**given, "backend": backend, "secrets_provider": provider}
        missing = {
            f"--{key.replace('_', '-')}": example
            for key, example in _REQUIRED.items()
            if not known.get(key)
        }
        if provider == PASSPHRASE and not _has_passphrase():
            cure = f"Set {PASSPHRASE_FILE} to a file; `tpustack init` makes one that is missing"
            why = "and there is no terminal to ask on"
            found.append(base.Problem(PASSPHRASE_VARIABLE, base.UNSET, why, cure))
    problems = [str(problem) for problem in dict.fromkeys(found) if problem]
    if missing:
        problems.append(
            f"{', '.join(missing)}: (not set) and there is no terminal to ask on. "
            f"Set, for example, {' '.join(f'{key} {value}' for key, value in missing.items())}"
        )
    if problems:
        raise UsageError("\n".join(problems))


def _asked(stack: str, given: dict[str, str], catalog: Catalog) -> dict[str, str]:
    """Return all answers, after asking for those that no option gives."""
    answers = dict(given)

    def ask(name: str, question: str, default: str | None = None) -> None:
        def problem_with(value: str) -> base.Problem | None:
            return _problem_of(stack, name, {**answers, name: value})

        answers[name] = _until_right(question, default, problem_with)

    if "project" not in answers:
        ask("project", "Google Cloud project (its id)")
    if "zone" not in answers:
        _offer("Zones with TPUs", _zones_for(answers.get("accelerator_type"), catalog))
        ask("zone", "Zone")
    if "accelerator_type" not in answers:
        types = _types_in(answers["zone"], catalog)
        _offer(f"TPUs in {answers['zone']}", types)
        ask("accelerator_type", "TPU", types[0] if types else None)
    if "capacity" not in answers:
        region = answers["zone"].rpartition("-")[0]
        tpu = catalog.accelerator(answers["accelerator_type"])
        for way in _OFFERED:
            price = catalog.prices.tpu(tpu, region, way) if tpu else None
            shown = f"{money(price.amount)} an hour" if price else cost.UNKNOWN
            click.echo(f"  {way}: {shown}")
        ask("capacity", "Capacity", str(Capacity.ON_DEMAND))
    # Optional, so its absence is an answer where nothing can be asked.
    if "data" not in answers and sys.stdin.isatty():
        folder = "folder that `tpu-training data convert` wrote; empty: it is in the bucket"
        ask("data", f"Data ({folder})", "")
    return answers


def _offer(title: str, names: Sequence[str]) -> None:
    """Print the first answers that the catalog allows."""
    more = f", … ({len(names)} in all: `tpustack catalog`)" if len(names) > _MOST_SHOWN else ""
    click.echo(f"{title}: {', '.join(names[:_MOST_SHOWN])}{more}")


def _until_right(
    question: str, default: str | None, problem_with: Callable[[str], base.Problem | None]
) -> str:
    """Ask until the answer is valid; the end of the input aborts the command."""
    while True:
        value = str(click.prompt(question, default=default)).strip()
        problem = problem_with(value)
        if problem is None:
            return value
        click.echo(str(problem), err=True)


# --- The settings file.

# A personal stack: it has a time to live, and leaves nothing when it is destroyed.
_OF_A_PERSON: Mapping[str, Any] = {
    "tpu-stack:limits": {"timeToLiveHours": 12, "idleMinutes": 30},
    "tpu-stack:bucket": {"forceDestroy": True, "softDeleteDays": 0},
}
_OF_A_HOST: Mapping[str, Any] = {
    "tpu-stack:limits": {"timeToLiveHours": 12},
    "tpu-stack:jobs": {"enabled": True},
}
_HEADING = """# Made by `tpustack init`. `tpustack settings` describes every setting.
# limits: the TPU is deleted after timeToLiveHours, and stopped or deleted if it is idle so long.
# bucket.forceDestroy: `pulumi destroy` deletes the bucket with all results. Remove it to keep them.
# bucket.softDeleteDays: 0, since Google bills what it keeps of deleted and replaced objects.
"""


@dataclass(frozen=True)
class Answers:
    """The settings that only the user can know, as text that may still be wrong.

    A stack of the whole team has no owner. Without `data` the bucket must have the data set.
    """

    project: str
    zone: str
    accelerator_type: str
    capacity: str
    data: str = ""
    owner: str = ""
    run_on: str = ""

    def config(self, catalog: Catalog) -> dict[str, Any]:
        """Return the stack file's configuration."""
        tpu = {"acceleratorType": self.accelerator_type}
        is_host = self.accelerator_type in catalog.hosts
        run_on = self.run_on or str(RunOn.TPU if is_host else RunOn.VM)
        if runtime := runtime_for(self.accelerator_type, catalog, run_on):
            tpu["runtimeVersion"] = runtime
        training = {"data": self.data} if self.data else {}
        if run_on != RunOn.VM:
            training["runOn"] = run_on
        return {
            parse.PROJECT_KEY: self.project,
            **({"tpu-stack:owner": self.owner} if self.owner else {}),
            **({"tpu-stack:architecture": str(Architecture.COMPUTE)} if is_host else {}),
            "tpu-stack:zone": self.zone,
            "tpu-stack:tpu": {**tpu, "capacity": self.capacity},
            # Defaults are left out: the file shows what was chosen.
            **({"tpu-stack:training": training} if training else {}),
            **_OF_A_PERSON,
            # What Compute Engine lacks and, on all its generations, has.
            **(_OF_A_HOST if is_host else {}),
        }


_NAME = "NAME"
_DATA, _RUN_ON = "training.data", "training.runOn"
# The settings whose problems are those of an answer.
_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "project": (parse.PROJECT_KEY,),
    "zone": ("zone",),
    # A zone that lacks the type is reported as the zone's problem.
    "accelerator_type": ("tpu.acceleratorType", "zone"),
    "capacity": ("tpu.capacity",),
    "data": (_DATA,),
    "owner": ("owner",),
    "run_on": (_RUN_ON,),
}
# What every stack needs, each with an example.
_REQUIRED: Mapping[str, str] = {
    "project": "YOUR-PROJECT",
    "zone": "us-central1-a",
    "accelerator_type": "v5litepod-4",
    "capacity": "spot",
    "backend": "file",
    "secrets_provider": "passphrase",
}
# Problems that no answer causes: files that are built later, and the runtime, which is chosen here
# and missing only where the type is unknown.
_NOT_ASKED = ("tpu.runtimeVersion", "training.")


def _owner_of(stack: str) -> str:
    """Return who is logged in, as far as it fits into the stack's names.

    Empty if that is unknown, or if the stack's own name says it.
    """
    try:
        person = re.sub(r"[^a-z0-9]+", "-", getpass.getuser().lower())
    except (KeyError, OSError):
        return ""
    if f"-{stack}".endswith(f"-{person.strip('-')}"):
        return ""
    # Names of buckets and accounts have the least room, and a cut name is better than no stack.
    room = LONGEST_PREFIX - len(f"tpu-stack-{stack}-")
    return person.strip("-")[: max(room, 1)].strip("-")


def runtime_for(accelerator_type: str, catalog: Catalog, run_on: str = RunOn.VM) -> str | None:
    """Return the first runtime with TensorFlow that fits; None for an unknown type.

    A trainer that drives the TPU of its own host needs no gRPC, all others do.
    """
    tpu = catalog.accelerators.get(accelerator_type)
    fitting = (
        runtime.name
        for runtime in catalog.runtimes.values()
        if tpu and runtime.tensorflow and tpu.family in runtime.families
        if runtime.serves_grpc == (run_on == RunOn.VM or tpu.hosts > 1)
    )
    return next(fitting, None)


def _zones_for(accelerator_type: str | None, catalog: Catalog) -> list[str]:
    """Return the zones that have TPUs, or those that have one type."""
    types = _types(catalog)
    return sorted(
        {zone for tpu in types if accelerator_type in (None, tpu.name) for zone in tpu.zones}
    )


def _types_in(zone: str, catalog: Catalog) -> list[str]:
    """Return the types of TPU in a zone, smallest first within a family."""
    return [tpu.name for tpu in _types(catalog) if zone in tpu.zones]


def _types(catalog: Catalog) -> list[Accelerator]:
    """Return those of the Cloud TPU API, then those of Compute Engine."""
    return [*catalog.accelerators.values(), *(host.tpu for host in catalog.hosts.values())]


def problems_of(stack: str, answers: Answers, catalog: Catalog) -> list[base.Problem]:
    """Return every problem with the answers."""
    try:
        settings = parse.parse(answers.config(catalog), stack)
    except base.SettingsError as error:
        return list(error.problems)
    found = checks.find_problems(settings, stacks.context_of(stack, settings, catalog))
    if wrong := [problem for problem in found if problem.setting == "namePrefix"]:
        # The file does not set it: it follows from the stack's name, so that is what is wrong.
        why = wrong[0].why.removeprefix("and ")
        cure = "Use a short one of lower-case letters, digits and hyphens"
        return [base.Problem(_NAME, stack, f"can't begin names: it {why}", cure)]
    return [
        problem
        for problem in found
        if problem.setting in (_DATA, _RUN_ON) or not problem.setting.startswith(_NOT_ASKED)
    ]


def _problem_of(stack: str, name: str, known: Mapping[str, str]) -> base.Problem | None:
    """Return the first problem with the answer `name`, given the answers so far."""
    found = problems_of(stack, _completed(known), Catalog())
    about = (p for setting in _SETTINGS[name] for p in found if p.setting == setting)
    return next(about, None)


def _completed(known: Mapping[str, str]) -> Answers:
    """Fill in valid answers where there are none yet: the checks take whole settings."""
    catalog = Catalog()
    zones = _zones_for(known.get("accelerator_type"), catalog) or _zones_for(None, catalog)
    zone = known.get("zone", zones[0])
    types = _types_in(zone, catalog) or list(catalog.accelerators)
    usual = {"project": "some-project", "zone": zone, "accelerator_type": types[0]}
    return Answers(**{**usual, "capacity": str(Capacity.ON_DEMAND), **known})


def _path_for(stack: str) -> Path:
    """Return the path to write to. Raises UsageError if the stack has a file or cannot have one."""
    path = stacks.path_of(stack)
    if path.exists():
        raise _exists(path)
    wrong = [p for p in problems_of(stack, _completed({}), Catalog()) if p.setting == _NAME]
    errors.refuse(wrong[:1])
    return path


def _exists(path: Path) -> UsageError:
    return UsageError(
        f"{stacks.shown(path)} is there already. Choose another name, or keep the file and run "
        f"`pulumi stack init {parse.stack_name(path)}` if its stack is missing"
    )


def _write_stack_file(stack: str, path: Path, answers: Answers, catalog: Catalog) -> StackSettings:
    """Write the file. Raises UsageError, and writes nothing, if anything is wrong."""
    errors.refuse(problems_of(stack, answers, catalog))
    config = answers.config(catalog)
    text = yaml.safe_dump({"config": config}, sort_keys=False, allow_unicode=True)
    path.parent.mkdir(exist_ok=True)
    try:
        # "x" refuses to overwrite a file that has appeared since: questions take a while.
        with path.open("x", encoding="utf-8") as file:
            file.write(_HEADING + text)
    except FileExistsError:
        raise _exists(path) from None
    return parse.parse(config, stack)


# --- The backend of its state, and what encrypts its secrets.

_FILE_BACKEND = "file"
PASSPHRASE = "passphrase"
PASSPHRASE_VARIABLE = "PULUMI_CONFIG_PASSPHRASE"
PASSPHRASE_FILE = f"{PASSPHRASE_VARIABLE}_FILE"
# https://docs.cloud.google.com/storage/docs/buckets#naming; the state may be in a folder of it.
_BUCKET = re.compile(r"gs://([a-z0-9][a-z0-9_.-]{1,61}[a-z0-9])(/.*)?")
_KEY = re.compile(
    r"gcpkms://projects/[^/]+/locations/[^/]+/keyRings/[\w-]+/cryptoKeys/[\w-]+", re.ASCII
)


def _home(project: str, backend: str | None, provider: str | None) -> tuple[str, str, str | None]:
    """Return a stack's backend and secrets provider, after asking for those that nothing says.

    The third is the passphrase that was typed; None if the environment has it, or a key is used.
    """
    backend = backend or _until_right(
        "Pulumi's state (gs://BUCKET, or file)",
        f"gs://{in_bucket_names(project)}-pulumi-state",
        _backend_problem,
    )
    provider = provider or _until_right(
        "Secrets provider (passphrase, or gcpkms://KEY)", PASSPHRASE, _secrets_problem
    )
    passphrase = None
    if provider == PASSPHRASE and not _has_passphrase():
        # Handed to the engine alone: in a file of ours it would outlive its purpose.
        passphrase = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True)
    return backend, provider, passphrase


def _file_url() -> str:
    """Return `file` as Pulumi has it: `.pulumi` in the user's home."""
    return f"file://{Path.home()}"


def _backend_problem(backend: str) -> base.Problem | None:
    """Return what is wrong with `--backend`; what the environment says is Pulumi's to judge."""
    given = os.environ.get(BACKEND)
    if backend == given or (backend == _FILE_BACKEND and given in (None, "", _file_url())):
        return None
    if given:
        why = f"is not what {BACKEND} says ({given}), which Pulumi obeys"
        return base.Problem("--backend", backend, why, f"Unset {BACKEND}, or leave --backend out")
    if _BUCKET.fullmatch(backend) or re.match("file://.", backend):
        return None
    why = "is not a place for Pulumi's state"
    cure = "Use gs://BUCKET, which is made if it is not there, or file for this machine alone"
    return base.Problem("--backend", backend, why, cure)


def _secrets_problem(provider: str) -> base.Problem | None:
    """Return what is wrong with `--secrets-provider`.

    Pulumi has more; these are the ones that need no other vendor than Google.
    """
    if provider == PASSPHRASE or _KEY.fullmatch(provider):
        return None
    cure = (
        f"Use {PASSPHRASE}, or gcpkms://projects/P/locations/L/keyRings/R/cryptoKeys/K for a key "
        "of Cloud KMS"
    )
    return base.Problem("--secrets-provider", provider, "encrypts no secrets here", cure)


def _has_passphrase() -> bool:
    """Return whether the environment has the passphrase; it may be empty."""
    return PASSPHRASE_VARIABLE in os.environ or bool(os.environ.get(PASSPHRASE_FILE))


def _make_home(
    stack: str,
    backend: str,
    provider: str,
    passphrase: str | None,
    settings: StackSettings,
) -> Iterator[str]:
    """Log in to the backend and make the stack there; yield a sentence for each thing done.

    What fails may be repeated: a bucket, a login and a passphrase that exist are left as they are.

    Raises:
        TpustackError: with Google's or Pulumi's own message.
    """
    bucket, where = _BUCKET.fullmatch(backend), (settings.project, settings.region)
    if bucket and ensure_state_bucket(Google(), bucket[1], *where):
        yield f"The bucket gs://{bucket[1]} is made; it keeps old versions of the state."
    if provider == PASSPHRASE and (made := _passphrase_file()):
        yield f"Wrote a new passphrase to {made}. Keep it: every change of the stack needs it."
    variables = {PASSPHRASE_VARIABLE: passphrase} if passphrase else {}
    is_file = backend == _FILE_BACKEND
    # A login would change the backend of all projects of the user, against the variable's word.
    if not os.environ.get(BACKEND):
        _pulumi(variables, "login", _file_url() if is_file else backend)
    _pulumi(variables, "stack", "init", stack, f"--secrets-provider={provider}")
    place = "~/.pulumi" if is_file else backend
    yield f"The stack {stack} is made and selected; its state is in {place}."


def _passphrase_file() -> Path | None:
    """Make the file that the environment names, if it is missing; return it then."""
    named = os.environ.get(PASSPHRASE_FILE)
    if PASSPHRASE_VARIABLE in os.environ or not named or Path(named).exists():
        return None
    path = Path(named)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Only its owner may read it, from the first byte on.
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(secrets.token_urlsafe() + "\n", encoding="utf-8")
    except OSError as error:
        raise TpustackError(f"{PASSPHRASE_FILE}: {path} can't be made: {error.strerror}") from None
    return path


def _pulumi(variables: Mapping[str, str], *arguments: str) -> None:
    """Run a command of the engine in the project's folder. Raises TpustackError."""
    done = subprocess.run(
        ["pulumi", *arguments, "--non-interactive", "--color=never"],
        cwd=root(),
        env={**os.environ, **users_own().environment, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        # Some errors of the engine are on standard output.
        message = (done.stderr.strip() or done.stdout.strip()).removeprefix("error: ")
        raise TpustackError(f"`pulumi {' '.join(arguments)}` failed: {message}")


# --- The bucket of the state.

_BUCKETS = "https://storage.googleapis.com/storage/v1/b"


def ensure_state_bucket(google: Google, name: str, project: str, region: str) -> bool:
    """Make the bucket if there is none, private and with its old versions; return whether it did.

    Raises:
        TpustackError: with Google's own message, such as that the name is in use.
    """
    if _is_there(google, name):
        return False
    delete_old = {
        "action": {"type": "Delete"},
        "condition": {"numNewerVersions": OLD_VERSIONS, "isLive": False},
    }
    bucket = {
        "name": name,
        "location": region.upper(),
        # The state names every resource, and has secrets, if only encrypted ones.
        "iamConfiguration": {
            "uniformBucketLevelAccess": {"enabled": True},
            "publicAccessPrevention": "enforced",
        },
        "versioning": {"enabled": True},
        "softDeletePolicy": {"retentionDurationSeconds": str(SOFT_DELETE)},
        "lifecycle": {"rule": [delete_old]},
    }
    try:
        google.post(_BUCKETS, bucket, {"project": project})
    except TpustackError:
        # A colleague may have made it at the same moment.
        if not _is_there(google, name):
            raise
        return False
    return True


def _is_there(google: Google, name: str) -> bool:
    """Return whether the caller has such a bucket; one of a stranger's is refused as forbidden."""
    try:
        google.get(f"{_BUCKETS}/{quote(name)}", {"fields": "name"})
    except NotFound:
        return False
    return True
