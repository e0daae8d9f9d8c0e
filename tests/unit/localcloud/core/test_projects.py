from __future__ import annotations

from localcloud.core import projects
from localcloud.core.cloud import DEVELOPER, Cloud


def test_the_default_project_stands_after_the_start(cloud: Cloud) -> None:
    record = projects.find(cloud, "tpu-stack-local")
    assert record is not None
    assert record["lifecycleState"] == "ACTIVE"


def test_a_project_is_found_by_its_number(cloud: Cloud) -> None:
    number = projects.number("tpu-stack-local")
    assert projects.identifier(cloud, number) == "tpu-stack-local"


def test_a_project_that_exists_is_left_alone(cloud: Cloud) -> None:
    before = projects.find(cloud, "tpu-stack-local")
    projects.ensure(cloud, "tpu-stack-local", owner=DEVELOPER)
    assert projects.find(cloud, "tpu-stack-local") == before


def test_a_new_project_has_storage_enabled_but_not_compute(cloud: Cloud) -> None:
    assert projects.is_service_enabled(cloud, "tpu-stack-local", "storage.googleapis.com")
    assert not projects.is_service_enabled(cloud, "tpu-stack-local", "compute.googleapis.com")
