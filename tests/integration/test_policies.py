"""The policy pack on the real engine: what passes, and what each rule refuses."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tpu_policy.rules import RULES
from tpustack.engine import toolchain
from tpustack.engine.toolchain import Toolchain
from tpustack.project import root

PACK = root() / "policy"
PAGE = (root() / "docs" / "cost.md").read_text(encoding="utf-8")
REPORT = re.compile(r"^Policies:\n((?:    .*\n)+)", re.MULTILINE)
Config = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Preview:
    """How a preview ended, and the part of its output that the policies wrote."""

    code: int
    output: str

    @property
    def report(self) -> str:
        found = REPORT.search(self.output)
        assert found, self.output
        return re.sub(r"\(local: .*\)", "(local: policy)", found[1])


Previewer = Callable[..., Preview]


@pytest.fixture
def preview(tmp_path: Path, tools: Toolchain, quick_python: Path) -> Previewer:
    """Previews a stack of a project in tmp_path with the pack; no cloud is needed for that."""
    pack = tmp_path / "policy"
    pack.mkdir()
    (pack / "__main__.py").symlink_to(PACK / "__main__.py")
    _run_in(quick_python, PACK / "PulumiPolicy.yaml", pack / "PulumiPolicy.yaml")
    environment = os.environ | toolchain.environment(tools, tmp_path / "state")
    # Nothing is asked of Google in a preview of what is not there yet.
    environment |= {
        "GOOGLE_OAUTH_ACCESS_TOKEN": "none",
        "PULUMI_GCP_SKIP_REGION_VALIDATION": "true",
        "HTTPS_PROXY": "http://127.0.0.1:1",
    }

    def run(stack: str, config: Config | None = None) -> Preview:
        (tmp_path / "config.json").write_text(json.dumps(config or {}), encoding="utf-8")
        base = ["pulumi", "--non-interactive", "--color=never", "-C", str(tmp_path / "project")]
        pack_options = ["--policy-pack", str(pack)]
        if config:
            pack_options += ["--policy-pack-config", str(tmp_path / "config.json")]
        subprocess.run(
            [*base, "stack", "init", stack], env=environment, check=True, capture_output=True
        )
        done = subprocess.run(
            [*base, "preview", "--stack", stack, *pack_options],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return Preview(done.returncode, done.stdout)

    return run


@pytest.fixture
def stack_file(tmp_path: Path, trainer: Path, quick_python: Path) -> Callable[[str], None]:
    """A project with this repository's program and one of its stack files."""
    project = tmp_path / "project"
    (project / "stacks").mkdir(parents=True)
    (project / "infra").symlink_to(root() / "infra")
    _run_in(quick_python, root() / "Pulumi.yaml", project / "Pulumi.yaml")

    def make(stack: str) -> None:
        path = root() / "stacks" / f"Pulumi.{stack}.yaml"
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
        settings["config"]["gcp:project"] = "some-project"
        training = settings["config"].setdefault("tpu-stack:training", {})
        training.pop("data", None)
        training["wheel"] = str(trainer)
        (project / "stacks" / path.name).write_text(yaml.safe_dump(settings), encoding="utf-8")

    return make


@pytest.mark.parametrize("stack", ["local", "dev", "staging", "prod"])
def test_a_stack_file_keeps_to_every_rule(
    stack: str, stack_file: Callable[[str], None], preview: Previewer
) -> None:
    stack_file(stack)
    done = preview(stack)
    assert done.code == 0, done.output
    assert done.report == "    ✅ tpu-stack@v0.1.0 (local: policy)\n"


def test_the_engine_refuses_what_is_against_a_rule_and_says_which(
    tmp_path: Path, preview: Previewer, quick_python: Path
) -> None:
    project = tmp_path / "project"
    (project / "stacks").mkdir(parents=True)
    shutil.copy(root() / "tests/integration/stack_that_violates.py", project / "__main__.py")
    plain = {"main": ".", "config": {}, "plugins": {}}
    _run_in(quick_python, root() / "Pulumi.yaml", project / "Pulumi.yaml", **plain)
    settings = {"config": {"gcp:project": "some-project"}}
    (project / "stacks/Pulumi.prod.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    config: Config = {
        "cost-ceiling": {"productionDollarsPerHour": 5},
        "regions-agree": {"alowed": ["open"]},
        # A stack cannot be production and not production, but a rule can take it for either.
        "spot-outside-production": {"productionStacks": ["live"]},
    }
    done = preview("prod", config)
    assert done.code != 0
    lines = done.report.splitlines()
    found = {
        (match["level"], match["rule"], match["resource"])
        for line in lines
        if (match := re.match(r" +- \[(?P<level>\w+)\]  (?P<rule>\S+)  \((?P<resource>.*)\)", line))
    }
    bucket, member = "gcp:storage:Bucket: open", "gcp:storage:BucketIAMMember: everyone"
    vm, spot, dear = (
        "gcp:compute:Instance: driver",
        "gcp:tpu:V2Vm: taken-away",
        "gcp:tpu:V2Vm: dear",
    )
    expected = {
        "regions-agree": {bucket, "pulumi:pulumi:Stack: tpu-stack-prod"},
        "no-public-buckets": {bucket, member},
        "no-public-addresses": {vm, spot, dear},
        "full-scope-with-own-account": {vm, spot, dear},
        "no-spot-in-production": {vm, spot},
        "spot-outside-production": {dear},
        "protect-in-production": {bucket},
        "cost-ceiling": {dear},
        "required-labels": {bucket, vm, spot, dear},
        "known-members": {member},
    }
    assert found == {
        (rule.level.value, rule.name, resource)
        for rule in RULES
        for resource in expected[rule.name]
    }
    assert "regions-agree.alowed" in done.report
    assert "Did you mean allowed?" in done.report
    assert 'Bucket open-data: location is "US-CENTRAL1", but V2Vm ' in done.report


def test_the_pages_example_is_what_the_engine_prints(
    stack_file: Callable[[str], None], preview: Previewer
) -> None:
    (config,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (stack, report) = re.findall(
        r"```console\n\$ pulumi preview --stack (\S+) .*\\\n.*\n...\nPolicies:\n(.*?)```",
        PAGE,
        re.DOTALL,
    )[0]
    stack_file(stack)
    done = preview(stack, json.loads(config))
    assert done.code != 0
    assert done.report == report


def _run_in(environment: Path, source: Path, target: Path, **changes: Any) -> None:
    """A copy of a project file whose programs run in this environment."""
    definition = yaml.safe_load(source.read_text(encoding="utf-8")) | changes
    definition["runtime"]["options"]["virtualenv"] = str(environment)
    target.write_text(yaml.safe_dump(definition), encoding="utf-8")
