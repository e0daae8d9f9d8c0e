"""`tpustack cost`: what a user sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpustack.engine import toolchain

from .conftest import Run


def test_a_stack_costs_what_its_parts_cost(project: Path, run: Run) -> None:
    done = run("cost", "--stack", "prod", "--hours", "96")
    assert done.code == 0
    assert done.err == ""
    lines = done.out.splitlines()
    assert lines[0] == "Stack prod in europe-west4, US dollars"
    assert [line.split()[0] for line in lines[3:9]] == [
        "TPU",
        "VM",
        "Disk",
        "Bucket",
        "NAT",
        "Total",
    ]
    assert lines[3].split()[-5:] == ["$24.9600", "$599.04", "$2,396.16", "$2,396.16", "$683.49"]


@pytest.mark.parametrize(
    ("model", "arguments", "cost"),
    [
        ("BERT", "v3-8 --count 16 --hours 96", "$12,288.00"),
        ("BERT", "v3-8 --count 16 --hours 96 --capacity preemptible", "$3,686.40"),
        ("GPT-2", "v3-8 --count 32 --hours 168", "$43,008.00"),
        ("XLNet", "v3-8 --count 128 --hours 60", "$61,440.00"),
        ("BigGAN", "v3-8 --count 64 --hours 48", "$24,576.00"),
        ("StyleGAN", "V100 --count 8 --hours 168", "$3,333.12"),
    ],
)
def test_the_table_of_large_models_comes_out_to_the_cent(
    model: str, arguments: str, cost: str, run: Run
) -> None:
    done = run("cost", "--region", "us-central1", "--accelerator-type", *arguments.split())
    assert done.code == 0
    total = next(line for line in done.out.splitlines() if line.startswith("Total"))
    assert total.split()[3] == cost, model


def test_without_a_stack_the_way_to_the_price_of_a_tpu_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolchain, "clone", lambda: None)
    monkeypatch.setenv("PATH", "/nowhere")
    done = run("cost")
    assert done.code == 1
    assert "pulumi is not on PATH" in done.err
    assert "For a TPU without a stack use --accelerator-type and --region" in done.err


def test_a_machine_type_with_a_tpu_has_a_price_without_a_stack(run: Run) -> None:
    done = run("cost", "--accelerator-type", "ct6e-standard-4t", "--region", "us-east5", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["total"]["onDemand"]["hour"] == "10.8"


def test_spot_is_compared_with_on_demand(run: Run) -> None:
    arguments = "cost --accelerator-type v3-32 --region europe-west4 --capacity spot"
    lines = run(*arguments.split()).out.splitlines()
    assert lines[:5] == [
        "v3-32, spot in europe-west4, US dollars",
        "",
        "                        hour      day  run of 24 h  run on demand  run on spot",
        "TPU    v3-32, spot  $10.5600  $253.44      $253.44        $768.00      $253.44",
        "Total               $10.5600  $253.44      $253.44        $768.00      $253.44",
    ]


def test_json_has_exact_texts_and_the_source_of_each_price(run: Run) -> None:
    arguments = "cost --accelerator-type v2-8 --region asia-east1 --capacity preemptible --json"
    document = json.loads(run(*arguments.split()).out)
    assert document["region"] == "asia-east1"
    assert document["total"]["configured"] == {
        "hour": "1.566",
        "day": "37.584",
        "run": "37.584",
        "complete": True,
    }
    (line,) = document["lines"]
    assert line["onDemand"]["hour"] == "5.22"
    assert set(line["configured"]["source"]) == {"url", "date"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--accelerator-type v2-8", "--accelerator-type without --region. Use"),
        ("--region us-central1", "--region without --accelerator-type. Use"),
        ("--count 2", "--count without --accelerator-type. Use"),
        ("--stack dev --count 2", "--count can't be combined with --stack"),
        ("--stack nosuch", "has no file Pulumi.nosuch.yaml"),
        ("--stack dev --hours nan", "'nan' is not a number of hours above 0"),
        ("--stack dev --hours 0", "'0' is not a number of hours above 0"),
        ("--stack dev --hours 1e9", "'1e9' is not a number of hours above 0, at most 100000"),
        ("--stack dev --hours soon", "'soon' is not a number of hours"),
        (
            "--accelerator-type v3-33 --region us-central1",
            '--accelerator-type: "v3-33" is not an accelerator of the catalog. Use v3-32, ',
        ),
        (
            "--accelerator-type v3-32 --region us-central1",
            '--region: "us-central1" has no v3-32. Use europe-west4.',
        ),
        ("--accelerator-type V100 --region mars-north1", '--region: "mars-north1" has no TPUs.'),
        (
            "--accelerator-type v2-8 --region us-central1 --count 0",
            "0 is not in the range 1<=x<=100000",
        ),
        (
            "--accelerator-type v2-8 --region us-central1 --capacity free",
            "'free' is not one of 'on-demand', 'spot', 'preemptible', 'reserved'",
        ),
    ],
)
def test_wrong_arguments_are_refused_with_one_message(
    arguments: str, message: str, project: Path, run: Run
) -> None:
    done = run("cost", *arguments.split())
    assert done.code == 2
    assert message in done.err
    assert done.out == ""


def test_a_stack_that_is_wrong_is_refused_with_every_problem(project: Path, run: Run) -> None:
    (project / "stacks" / "Pulumi.wrong.yaml").write_text(
        "config:\n  gcp:project: some-project\n  tpu-stack:zone: us-central1-b\n"
        "  tpu-stack:tpu: {acceleratorType: v2-9, runtimeVersion: tpu-vm-tf-2.18.0-pod-se}\n"
        "  tpu-stack:vm: {machineType: n9-nosuch-1}\n",
        encoding="utf-8",
    )
    done = run("cost", "--stack", "wrong")
    assert done.code == 2
    assert '"v2-9" is not a TPU type' in done.err
    assert '"n9-nosuch-1" is not a machine type' in done.err
    assert done.out == ""


def test_a_stack_whose_wheel_is_not_built_yet_has_its_cost(project: Path, run: Run) -> None:
    for path in (project / "dist").iterdir():
        path.unlink()
    assert run("check", "--stack", "dev").code == 2
    assert run("cost", "--stack", "dev").code == 0


def test_all_wrong_arguments_are_named_at_once(run: Run) -> None:
    done = run("cost", "--accelerator-type", "v3-33", "--region", "mars-north1")
    assert '"v3-33"' in done.err
    assert '"mars-north1"' in done.err
