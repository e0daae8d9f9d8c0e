"""Zones, machine types, images, disks, the project."""

from __future__ import annotations

import pytest

from localcloud.testing import Client

HOST = "compute.googleapis.com/compute/beta"
BASE = f"{HOST}/projects/tpu-stack-local"
ZONE = f"{BASE}/zones/us-central1-b"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com",)


def test_zones_and_regions_point_at_each_other(api: Client) -> None:
    zone = api.get(ZONE)
    region = api.get(f"{BASE}/regions/us-central1")
    assert zone["region"] == region["selfLink"]
    assert zone["selfLink"] in region["zones"]
    assert "europe-west4-a" in {item["name"] for item in api.get(f"{BASE}/zones")["items"]}
    api.get(f"{BASE}/zones/us-central9-z", status=400)


def test_lists_are_paged_and_filtered(api: Client) -> None:
    first = api.get(f"{BASE}/zones", maxResults=5)
    second = api.get(f"{BASE}/zones", maxResults=5, pageToken=first["nextPageToken"])
    assert len(first["items"]) == len(second["items"]) == 5
    assert first["items"][-1] != second["items"][0]
    chosen = api.get(f"{BASE}/zones", filter="name=us-west1-a")
    assert [zone["name"] for zone in chosen["items"]] == ["us-west1-a"]
    chosen = api.get(f"{BASE}/zones", filter="(name eq us-west1-.*) (status = UP)")
    assert len(chosen["items"]) == 3
    api.get(f"{BASE}/zones", filter="name ~~ x", status=400)


@pytest.mark.parametrize(
    ("name", "vcpus", "memory"),
    [("n1-standard-8", 8, 30720), ("n2-highmem-16", 16, 131072), ("e2-medium", 2, 4096)],
)
def test_a_machine_type_has_googles_size(api: Client, name: str, vcpus: int, memory: int) -> None:
    found = api.get(f"{ZONE}/machineTypes/{name}")
    assert (found["guestCpus"], found["memoryMb"]) == (vcpus, memory)


def test_custom_machine_types_are_refused_with_the_choice(api: Client) -> None:
    answer = api.get(f"{ZONE}/machineTypes/n2-custom-4-8192", status=400)
    assert "n2-standard-4" in answer["error"]["message"]


def test_the_newest_image_stands_for_its_family(api: Client) -> None:
    images = f"{HOST}/projects/debian-cloud/global/images"
    newest = api.get(f"{images}/family/debian-12")
    assert newest["name"] == "debian-12-bookworm-v20250610"
    assert api.get(f"{images}/{newest['name']}") == newest
    api.get(f"{images}/family/debian-99", status=404)


def test_anonymous_callers_see_no_images(api: Client) -> None:
    nobody = api.as_member("")
    nobody.get(f"{HOST}/projects/debian-cloud/global/images/family/debian-12", status=401)


def test_a_disk_takes_size_and_licences_from_its_image(api: Client) -> None:
    image = "projects/debian-cloud/global/images/family/debian-12"
    api.post(f"{ZONE}/disks", {"name": "d", "sourceImage": image})
    disk = api.get(f"{ZONE}/disks/d")
    assert disk["sizeGb"] == "10"
    assert disk["status"] == "READY"
    assert disk["sourceImage"].endswith("/global/images/debian-12-bookworm-v20250610")
    assert disk["type"].endswith("/zones/us-central1-b/diskTypes/pd-standard")
    too_small = {"name": "e", "sourceImage": image, "sizeGb": "5"}
    api.post(f"{ZONE}/disks", too_small, status=400)


def test_a_disk_grows_and_never_shrinks(api: Client) -> None:
    api.post(f"{ZONE}/disks", {"name": "d", "sizeGb": "20"})
    api.post(f"{ZONE}/disks/d/resize", {"sizeGb": "30"})
    assert api.get(f"{ZONE}/disks/d")["sizeGb"] == "30"
    api.post(f"{ZONE}/disks/d/resize", {"sizeGb": "20"}, status=400)
    api.delete(f"{ZONE}/disks/d")
    api.get(f"{ZONE}/disks/d", status=404)


def test_disks_of_all_zones_are_listed_together(api: Client) -> None:
    api.post(f"{ZONE}/disks", {"name": "d", "sizeGb": "20"})
    items = api.get(f"{BASE}/aggregated/disks")["items"]
    assert [disk["name"] for disk in items["zones/us-central1-b"]["disks"]] == ["d"]
    assert items["zones/us-west1-a"]["warning"]["code"] == "NO_RESULTS_ON_PAGE"


def test_the_project_names_its_default_service_account(api: Client) -> None:
    project = api.get(BASE)
    assert project["defaultServiceAccount"].endswith("-compute@developer.gserviceaccount.com")
    metadata = {"items": [{"key": "a", "value": "b"}]}
    url = f"{BASE}/setCommonInstanceMetadata"
    api.post(url, metadata, status=412)
    metadata["fingerprint"] = project["commonInstanceMetadata"]["fingerprint"]
    api.post(url, metadata)
    assert api.get(BASE)["commonInstanceMetadata"]["items"] == [{"key": "a", "value": "b"}]


class TestBeforeTheApiIsEnabled:
    @pytest.fixture
    def enabled_apis(self) -> tuple[str, ...]:
        return ()

    def test_nothing_answers(self, api: Client) -> None:
        answer = api.get(f"{BASE}/zones", status=403)
        assert answer["error"]["errors"][0]["reason"] == "accessNotConfigured"
