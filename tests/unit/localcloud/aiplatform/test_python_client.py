"""Google's own Python client against custom jobs."""

from __future__ import annotations

from typing import Any

import pytest
import requests
from googleapiclient.discovery import build
from googleapiclient.errors import HttpError

from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.localcloud.tpu.test_python_client import ProxiedHttp

PARENT = "projects/tpu-stack-local/locations/us-west4"
V5E = {"machineType": "ct5lp-hightpu-4t", "tpuTopology": "2x2"}
POOL = {
    "machineSpec": V5E,
    "replicaCount": "1",
    "containerSpec": {"imageUri": "python:3.11", "command": ["true"]},
}


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("aiplatform.googleapis.com",)


def test_a_job_is_made_found_cancelled_and_deleted(
    session: requests.Session, machines: FakeMachines
) -> None:
    host = {"api_endpoint": "https://us-west4-aiplatform.googleapis.com"}
    google: Any = build("aiplatform", "v1", http=ProxiedHttp(session), client_options=host)
    jobs = google.projects().locations().customJobs()
    body = {"displayName": "one", "jobSpec": {"workerPoolSpecs": [POOL]}}
    made = jobs.create(parent=PARENT, body=body).execute()
    (listed,) = jobs.list(parent=PARENT).execute()["customJobs"]
    assert listed["name"] == made["name"]
    with pytest.raises(HttpError, match="cancel it first"):
        jobs.delete(name=made["name"]).execute()
    assert jobs.cancel(name=made["name"], body={}).execute() == {}
    assert jobs.get(name=made["name"]).execute()["state"] == "JOB_STATE_CANCELLED"
    operation = jobs.delete(name=made["name"]).execute()
    assert jobs.operations().get(name=operation["name"]).execute()["done"]
    assert jobs.list(parent=PARENT).execute() == {}
