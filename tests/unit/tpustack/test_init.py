"""`tpustack init`: a new stack in one command, asked or told."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from infra.catalog import Catalog
from tpustack.stacks import files as stacks
from tpustack.stacks.new import Answers, problems_of

from .conftest import Run

CATALOG = Catalog()
TypeIn = Callable[..., None]
PLACES = [(tpu.name, zone) for tpu in CATALOG.accelerators.values() for zone in tpu.zones]
TOLD = ["--project", "my-project", "--zone", "us-central1-b"]
TOLD += ["--accelerator-type", "v2-8", "--capacity", "spot"]


@pytest.fixture
def type_in(monkeypatch: pytest.MonkeyPatch) -> TypeIn:
    """A terminal on which somebody types these lines."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def lines(*answers: str) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal("".join(f"{line}\n" for line in answers)))

    return lines


def config_of(project: Path, stack: str) -> dict[str, object]:
    text = (project / "stacks" / f"Pulumi.{stack}.yaml").read_text(encoding="utf-8")
    config: dict[str, object] = yaml.safe_load(text)["config"]
    return config


def test_options_alone_make_a_stack_that_passes_the_check(project: Path, run: Run) -> None:
    done = run("init", "mine", *TOLD)
    assert done.code == 0
    assert done.out.splitlines() == [
        "stacks/Pulumi.mine.yaml is written. It costs $1.46 an hour. Next:",
        "  pulumi stack init mine",
        "  pulumi up",
    ]
    assert config_of(project, "mine") == {
        "gcp:project": "my-project",
        "tpu-stack:zone": "us-central1-b",
        "tpu-stack:tpu": {
            "acceleratorType": "v2-8",
            "runtimeVersion": "tpu-vm-tf-2.18.0-pod-pjrt-v5p-and-below",
            "capacity": "spot",
        },
    }
    assert run("check", "--stack", "mine").code == 0


def test_what_no_option_says_is_asked_until_it_is_right(
    project: Path, run: Run, type_in: TypeIn
) -> None:
    type_in("Bad Project", "my-project", "mars", "europe-west4-b", "v2-8", "v5litepod-4", "spot")
    done = run("init", "mine")
    assert done.code == 0
    assert 'gcp:project: "Bad Project" is no project id' in done.err
    assert 'zone: "mars" has no TPUs.' in done.err
    assert "TPUs in europe-west4-b: v5litepod-1, v5litepod-4" in done.out
    assert "spot: $1.78 an hour" in done.out
    config = config_of(project, "mine")
    assert config["tpu-stack:zone"] == "europe-west4-b"
    tpu = config["tpu-stack:tpu"]
    assert isinstance(tpu, dict)
    assert (tpu["acceleratorType"], tpu["capacity"]) == ("v5litepod-4", "spot")


def test_a_wrong_option_is_refused_before_anything_is_asked(
    project: Path, run: Run, type_in: TypeIn
) -> None:
    type_in("my-project")
    done = run("init", "mine", "--zone", "mars", "--accelerator-type", "v2-8")
    assert done.code == 2
    assert done.err.startswith('error: zone: "mars" has no TPUs.')
    assert len(done.err.splitlines()) == 1
    assert done.out == ""


def test_an_end_of_input_writes_nothing(project: Path, run: Run, type_in: TypeIn) -> None:
    type_in("my-project")
    done = run("init", "mine")
    assert done.code == 1
    assert "Aborted!" in done.err
    assert not stacks.path_of("mine").exists()


def test_only_zones_that_have_the_type_are_offered(
    project: Path, run: Run, type_in: TypeIn
) -> None:
    type_in("us-central1-b", "europe-west4-a")
    done = run("init", "mine", *TOLD[:2], "--accelerator-type", "v3-32", "--capacity", "spot")
    assert done.code == 0
    assert "Zones with TPUs: europe-west4-a\n" in done.out
    assert 'zone: "us-central1-b" offers no v3-32.' in done.err


def test_nothing_is_asked_where_nobody_can_answer(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    done = run("init", "mine", "--zone", "us-central1-b")
    assert done.code == 2
    assert (
        "say --project, --accelerator-type, --capacity: there is no terminal to ask on" in done.err
    )
    assert not stacks.path_of("mine").exists()
    done = run("init", "mine", "--project", "My Project", "--zone", "mars-north1-a")
    assert 'gcp:project: "My Project" is no project id' in done.err
    assert 'zone: "mars-north1-a" has no TPUs' in done.err
    assert "say --accelerator-type, --capacity" in done.err


def test_a_file_that_is_there_is_never_touched(project: Path, run: Run) -> None:
    before = stacks.path_of("dev").read_bytes()
    done = run("init", "dev", *TOLD)
    assert done.code == 2
    assert "stacks/Pulumi.dev.yaml is there already" in done.err
    assert stacks.path_of("dev").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("BIG", 'NAME: "BIG" is no good beginning of names: it would be'),
        ("a-very-long-name-of-a-stack", "has 37 characters"),
        ("-", "is no good beginning of names"),
        ("../up", '"../up" is no name of a stack'),
    ],
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_asked(
    name: str, message: str, project: Path, run: Run
) -> None:
    done = run("init", *TOLD, "--", name)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_all_wrong_options_are_named_at_once_and_nothing_is_written(
    project: Path, run: Run
) -> None:
    wrong = "--project X --zone us-central1 --accelerator-type v2-9 --capacity spot"
    done = run("init", "mine", *wrong.split())
    assert done.code == 2
    assert [line.split(":")[0] for line in done.err.removeprefix("error: ").splitlines()] == [
        "gcp",
        "zone",
        "tpu.acceleratorType",
    ]
    assert not stacks.path_of("mine").exists()


@given(place=st.sampled_from(PLACES), capacity=st.sampled_from(["on-demand", "spot", "reserved"]))
@settings(max_examples=200)
def test_everything_that_the_catalog_offers_is_accepted(
    place: tuple[str, str], capacity: str
) -> None:
    name, zone = place
    assert problems_of("mine", Answers("my-project", zone, name, capacity), CATALOG) == []


@given(project=st.text(max_size=40))
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_project_is_accepted_or_refused_with_a_whole_sentence(project: str) -> None:
    answers = Answers(project, "us-central1-b", "v2-8", "spot")
    for problem in problems_of("mine", answers, CATALOG):
        assert str(problem).endswith((".", "?"))
        assert json.dumps(problem.cure)
