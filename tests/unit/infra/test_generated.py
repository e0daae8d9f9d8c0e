"""Stacks by chance, ten thousand in all: no traceback; Google refuses what the checks refuse."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.examples import examples
from tpu_infra.catalog import Catalog
from tpu_infra.checks import find_problems
from tpu_infra.checks.context import Context
from tpu_infra.checks.tpu import warn_about_unlisted
from tpu_infra.names import names_of
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import Problem, SettingsError
from tpu_infra.settings.parse import parse
from tpustack.commands.reference import all_settings

from .calls import Call
from .generate import compute_stack, stack
from .generate_values import Json
from .machine_calls import calls
from .replay import Google

PARTS, OF_EACH = 10, examples(1000)
# What Google itself refuses, by setting (`*` is any number) and the beginning of the reason; the
# other rules are this project's own (what the trainer needs, what costs without use), and no cloud
# knows them.
GOOGLES: dict[str, str | tuple[str, ...]] = {
    "zone": "",
    "tpu.acceleratorType": "",
    "tpu.runtimeVersion": ("is not a runtime", "does not run on"),
    "tpu.tensorflowVersion": ("is not a version", "is no longer"),
    "tpu.cidrBlock": ("is not an IPv4", "does not begin", "has", "is not private", "overlaps"),
    "tpu.tags[*]": "is not a network tag",
    "tpu.scopes[*]": "is not an access scope",
    "tpu.dataDisks": "disks are more",
    "tpu.dataDisks[*].name": ("is not a valid disk name", "has"),
    "tpu.dataDisks[*].source": ("is not the full name", "is not in", "is listed twice"),
    "tpu.dataDisks[*].type": ("is not a disk type", "can be", "and would be"),
    "tpu.dataDisks[*].mode": ("is for a TPU with one host", "is for one TPU"),
    "tpu.capacity": "is for v5e",
    "tpu.queued.runHours": ("is required", "is shorter"),
    "tpu.topology": "is not a topology",
    "limits.timeToLiveHours": "is longer",
    "tpu.queued.reservation": "is not a reservation",
    "network.subnetRange": ("is not an IPv4", "has no size", "does not begin", "is smaller"),
    "vm.machineType": "is not a machine type",
    "vm.shielded.integrityMonitoring": "",
    "bucket.name": "",
    "bucket.softDeleteDays": "",
    "bucket.lifecycle": "",
    "bucket.encryption.key": "",
    "budget.billingAccount": "",
    "budget.pubsubTopic": "",
    "budget.emails": ("is not an e-mail", "are too many"),
    "namePrefix": "",
    "namePattern": ("makes", "gives"),
    "labels": "",
}
CATALOG = Catalog()


@pytest.fixture(scope="module")
def google(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Google]:
    google = Google(tmp_path_factory.mktemp("google"))
    yield google
    google.stop()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("root")
    (root / "dist").mkdir()
    (root / "dist" / "tpu_stack_training-0.1.0-py3-none-any.whl").write_bytes(b"a wheel")
    return root


def is_googles(problem: Problem) -> bool:
    setting = re.sub(r"\[\d+\]", "[*]", problem.setting)
    return setting in GOOGLES and problem.why.startswith(GOOGLES[setting])


def judged(config: dict[str, object], root: Path) -> tuple[StackSettings | None, list[Problem]]:
    """The settings as far as they can be read, and every problem with them."""
    try:
        settings = parse(config, "test")
    except SettingsError as error:
        if {problem.setting for problem in error.problems} != {"labels"}:
            return None, list(error.problems)
        # Labels are read with the rest; Google is asked about them all the same.
        settings = parse({**config, "tpu-stack:labels": {}}, "test")
        labels = config["tpu-stack:labels"]
        return settings.model_copy(update={"labels": labels}), list(error.problems)
    return settings, find_problems(settings, _context(settings, root))


def _context(settings: StackSettings, root: Path) -> Context:
    # Slices of machines take the second.
    provider = "9.20.0" if settings.is_compute else "8.34.0"
    return Context("test", root, CATALOG, names_of(settings, "test"), provider=provider)


@pytest.mark.parametrize("part", range(PARTS))
def test_google_takes_what_is_accepted_and_refuses_what_is_refused(
    part: int, google: Google, root: Path
) -> None:
    compare(stack, range(part * OF_EACH, (part + 1) * OF_EACH), google, root)


@pytest.mark.parametrize("part", range(PARTS))
def test_google_judges_machines_with_a_tpu_as_the_checks_do_and_each_refusal_has_a_cure(
    part: int, google: Google, root: Path
) -> None:
    many = OF_EACH // 5
    seeds = range(part * many, (part + 1) * many)
    for seed in seeds:
        _, problems = judged(compute_stack(Random(seed)), root)
        assert all(problem.why and problem.cure for problem in problems)
    compare(compute_stack, seeds, google, root)


def compare(made: Callable[[Random], Json], seeds: range, google: Google, root: Path) -> None:
    """Ask the checks and Google about stacks, of which both must refuse the same."""
    asked: list[tuple[list[Call], list[Problem], int]] = []
    for seed in seeds:
        settings, problems = judged(made(Random(seed)), root)
        if settings is None or any(warn_about_unlisted(settings, _context(settings, root))):
            continue  # Of what the catalog does not know the checks say nothing.
        if all(map(is_googles, problems)):
            asked.append((list(calls(settings, _context(settings, root))), problems, seed))
    wrong = []
    # Sorted, for the cloud leaves standing what the next one begins with, too.
    for wanted, problems, seed in sorted(asked, key=repr):
        said = google.refuses(wanted)
        if bool(said) != bool(problems):
            found = "; ".join(map(str, problems)) or "nothing is wrong"
            wrong.append(
                f"{seed}: {json.dumps(made(Random(seed)))}\n  {found}\n  {said or 'taken'}"
            )
    assert wrong == []
    refused = sum(bool(problems) for _, problems, _ in asked)
    # Of a few, most may fall on one side.
    assert min(refused, len(asked) - refused) > (len(seeds) / 10 if len(seeds) >= 100 else 0)


# Settings that Google never sees, or sees as one text among others.
NOT_ASKED = {
    "gcp:project": "one that is not there is for Google alone to know",
    "owner": "a part of every name, of which namePrefix is the whole beginning",
    "enableApis": "the local cloud of these tests has all of them",
    "serviceAccount": "one that is there, which test_landing_zone.py has",
    "grantRoles": "grants, which test_landing_zone.py has",
    "vm.create": "a TPU that trains alone, which test_landing_zone.py has",
    "jobs.serviceAccount": "one that is there, which test_landing_zone.py has",
    "jobs.vertex.serviceAccount": "one that is there, which test_landing_zone.py has",
    "tpu.queued.waitMinutes": "the program's own patience",
    "tpu.queued.fallbackZones": "other zones, which test_recovery.py and agent/test_zones.py have",
    "tpu.queued.zoneMinutes": "the program's own patience",
    "tpu.timeouts.createMinutes": "the engine's patience",
    "tpu.timeouts.updateMinutes": "the engine's patience",
    "tpu.timeouts.deleteMinutes": "the engine's patience",
    "network.project": "a second project, which test_shared_vpc.py has",
    "bucket.create": "one that is there already is asked for nothing",
    "bucket.forceDestroy": "the engine's, on destroy",
    "bucket.protect": "the engine's, on destroy",
    "jobs.asRoot": "that there is no such account",
    "messages.channels": "channels that exist already, as test_resources.py has it",
    "messages.emails": "an alert and its channels, which test_bucket_and_budget.py has",
    "messages.pubsubTopic": "a topic and a grant, which test_bucket_and_budget.py has",
    "jobs.vertex": "an account and its grants, which test_vertex_training.py has",
    "jobs.vertex.region": "a text in a request of `tpustack job submit`",
    "jobs.vertex.network": "a text in a request of `tpustack job submit`",
    "jobs.vertex.submitters": "members, whom Google alone knows",
    "limits.role": "the name of a role that its owner made",
    "recovery.enabled": "the machine's own doing, which test_recovery.py has",
    "recovery.failuresPerDay": "a number for the machine",
    "recovery.preemptionsPerDay": "a number for the machine",
    "recovery.serviceAccount": "of the VM on Compute Engine, which test_compute.py has",
    "training.backend": "what the machine installs",
    "training.job": "a text in the machine's metadata",
    "training.wheel": "a file here",
    "training.data": "files here",
    "training.args": "a text in the machine's metadata",
}


def test_every_setting_is_asked_of_google_by_chance_or_named_with_a_reason() -> None:
    made: set[str] = set()
    for seed in range(1000):
        made |= set(paths(stack(Random(seed)), "")) | set(paths(compute_stack(Random(seed)), ""))
    known = {setting.path for setting in all_settings()}
    assert (made - {"gcp:project"}) & NOT_ASKED.keys() == set()
    assert known - made == NOT_ASKED.keys() - {"gcp:project"}


def paths(value: object, path: str) -> Iterator[str]:
    """`tpu`, `tpu.dataDisks`, `tpu.dataDisks[].name` … as far as something is set there."""
    if isinstance(value, dict):
        for key, inner in value.items():
            here = f"{path}.{key}".strip(".").removeprefix("tpu-stack:")
            yield here
            yield from paths(inner, here)
    if isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{path}[]")
