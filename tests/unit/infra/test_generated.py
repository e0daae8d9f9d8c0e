"""Ten thousand stacks by chance: no traceback, and Google refuses what the checks refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from infra.catalog import Catalog
from infra.checks import find_problems
from infra.checks.context import Context
from infra.names import names_of
from infra.settings import StackSettings
from infra.settings.parse import parse
from infra.settings.problems import Problem, SettingsError

from .conftest import Run
from .generate import stack
from .replay import Call, Google, calls

PARTS, OF_EACH = 10, 1000
# What Google itself refuses, by setting and the beginning of the reason; the other rules are this
# project's own (what the trainer needs, what costs without use), and no cloud knows them.
GOOGLES: dict[str, str | tuple[str, ...]] = {
    "zone": "",
    "tpu.acceleratorType": "",
    "tpu.runtimeVersion": ("is no runtime", "does not run on"),
    "tpu.tensorflowVersion": ("is no version", "is no longer"),
    "tpu.cidrBlock": ("is no IPv4", "does not begin", "has", "is not private", "overlaps"),
    "tpu.tags[0]": "is no network tag",
    "network.subnetRange": ("is no IPv4", "has no size", "does not begin", "is smaller"),
    "vm.machineType": "is no machine type",
    "vm.shielded.integrityMonitoring": "",
    "bucket.name": "",
    "namePrefix": "",
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
    return problem.setting in GOOGLES and problem.why.startswith(GOOGLES[problem.setting])


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
    return Context("test", root, CATALOG, names_of(settings, "test"), provider="8.34.0")


@pytest.mark.parametrize("part", range(PARTS))
def test_google_takes_what_is_accepted_and_refuses_what_is_refused(
    part: int, google: Google, root: Path
) -> None:
    wrong: list[str] = []
    accepted = refused = 0
    for seed in range(part * OF_EACH, (part + 1) * OF_EACH):
        config = stack(Random(seed))
        settings, problems = judged(config, root)
        if settings is None or not all(map(is_googles, problems)):
            continue
        said = google.refuses(_calls(settings, root))
        if bool(said) != bool(problems):
            found = "; ".join(map(str, problems)) or "nothing is wrong"
            wrong.append(f"{seed}: {json.dumps(config)}\n  {found}\n  {said or 'taken'}")
        accepted, refused = accepted + (not problems), refused + bool(problems)
    assert wrong == []
    assert min(accepted, refused) > OF_EACH / 10


def test_what_google_is_asked_is_what_the_program_declares(run: Run, root: Path) -> None:
    compared = 0
    for seed in range(25):
        config = stack(Random(seed))
        settings, problems = judged(config, root)
        if settings is None or problems:
            continue
        engine, _ = run(config)
        asked = {path.rpartition("/")[2]: body for _, path, _, body in _calls(settings, root)}
        assert engine.one("Bucket")["name"] == asked["b"]["name"]
        assert engine.one("Account")["accountId"] == asked["serviceAccounts"]["accountId"]
        for subnetwork in engine.of("Subnetwork"):
            assert subnetwork.inputs["ipCidrRange"] == asked["subnetworks"]["ipCidrRange"]
        vm, disk = asked["instances"], asked["instances"]["disks"][0]["initializeParams"]
        instance = engine.one("Instance")
        assert vm["machineType"].endswith(f"/{instance['machineType']}")
        assert int(disk["diskSizeGb"]) == instance["bootDisk"]["initializeParams"]["size"]
        assert vm["labels"].items() >= instance["labels"].items()
        assert vm["scheduling"] == instance["scheduling"]
        for tpu in [*engine.of("V2Vm"), *engine.of("Node")]:
            same = ("acceleratorType", "runtimeVersion", "tensorflowVersion", "cidrBlock")
            node = {key: asked["nodes"].get(key) or None for key in same}
            assert node == {key: tpu.inputs.get(key) for key in same}
        compared += 1
    assert compared > 5


def _calls(settings: StackSettings, root: Path) -> Iterator[Call]:
    return calls(settings, _context(settings, root))
