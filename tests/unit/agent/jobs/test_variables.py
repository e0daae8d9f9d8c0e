"""What a job finds in its environment, by framework and by machine."""

from __future__ import annotations

import dataclasses

import pytest

from tpu_agent.jobs.environment import Tpu, variables
from tpu_agent.jobs.queue import Spec

BESIDE = Tpu("t", "us-central1-b", "p", ("10.0.0.2", "10.0.0.3"), "2026-01-01T00:00:00Z")
HERE = dataclasses.replace(BESIDE, hosts=("10.0.0.2",), is_here=True)


def of(tpu: Tpu, framework: str, **env: str) -> dict[str, str]:
    return variables("one", 2, "b", Spec("true", framework=framework, env=env), tpu)


@pytest.mark.parametrize(
    ("tpu", "framework", "expected"),
    [
        (BESIDE, "none", {"PJRT_DEVICE": "CPU", "TPU_NAME": "t"}),
        (HERE, "none", {"PJRT_DEVICE": "TPU", "TPU_NAME": "t"}),
        (BESIDE, "tensorflow", {"TPU_NAME": "t"}),
        (HERE, "tensorflow", {"TPU_NAME": "local"}),
        # PJRT drives chips of its own machine only.
        (BESIDE, "jax", {"PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu"}),
        (HERE, "jax", {"PJRT_DEVICE": "TPU", "JAX_PLATFORMS": "tpu,cpu"}),
        (
            BESIDE,
            "pytorch",
            {"XRT_TPU_CONFIG": "tpu_worker;0;10.0.0.2:8470|tpu_worker;1;10.0.0.3:8470"},
        ),
        (HERE, "pytorch", {"PJRT_DEVICE": "TPU"}),
    ],
)
def test_a_framework_is_told_of_the_tpu_in_its_own_way(
    tpu: Tpu, framework: str, expected: dict[str, str]
) -> None:
    assert expected.items() <= of(tpu, framework).items()


def test_jax_on_a_slice_is_told_its_coordinator_count_and_number() -> None:
    second = dataclasses.replace(BESIDE, is_here=True, worker=1)
    expected = {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.2:8476",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PROCESS_ID": "1",
    }
    assert expected.items() <= of(second, "jax").items()
    for alone in (HERE, BESIDE, dataclasses.replace(HERE, hosts=())):
        assert expected.keys().isdisjoint(of(alone, "jax"))


def test_old_pytorch_is_told_of_one_runtime_since_the_other_would_count_first() -> None:
    assert "PJRT_DEVICE" not in of(BESIDE, "pytorch")
    assert "XRT_TPU_CONFIG" not in of(HERE, "pytorch")


def test_every_job_knows_where_it_is_and_where_its_things_belong() -> None:
    found = of(BESIDE, "none")
    assert found["TPU_GRPC_URL"] == "grpc://10.0.0.2:8470"
    assert (found["TPU_WORKER_ID"], found["TPU_WORKER_HOSTNAMES"]) == ("0", "10.0.0.2,10.0.0.3")
    assert (found["JOB_NAME"], found["JOB_TRY"]) == ("one", "2")
    assert (found["JOB_DIR"], found["MODEL_DIR"]) == ("gs://b/jobs/one", "gs://b/jobs/one/model")


def test_the_persons_own_variables_count_before_all_others() -> None:
    assert of(HERE, "jax", PJRT_DEVICE="CPU", MINE="1")["PJRT_DEVICE"] == "CPU"
