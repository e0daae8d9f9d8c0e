"""TensorFlow's and Google's own clients inside a machine, with nothing but its environment."""

from __future__ import annotations

import threading

import pytest

from localcloud.core import projects
from localcloud.core.call import CLOUD_PLATFORM
from localcloud.machines.machines import Machines
from localcloud.testing import Client
from tests.patience import until
from tests.unit.localcloud.machines.conftest import Guest, spec
from tpu_agent.bundle import startup_script
from tpu_core.bucket import Bucket
from tpu_training.job.supervision import generation_of, hear_of_tpu
from tpu_training.loop.callbacks import ShutdownRequest
from tpustack.cloud.google import Google

pytestmark = pytest.mark.server

PROJECT = projects.DEFAULT_PROJECT
EMAIL = f"machine@{PROJECT}.iam.gserviceaccount.com"
BUCKET = "storage.googleapis.com/storage/v1/b"
PROGRAM = """
import tensorflow as tf
folder = "gs://machine-bucket/a"
path = f"{folder}/b.txt"
with tf.io.gfile.GFile(path, "w") as file:
    file.write("hello" * 1000)
print("tensorflow read", len(tf.io.gfile.GFile(path).read()), tf.io.gfile.listdir(folder))
from google.cloud import storage
blob = storage.Client().bucket("machine-bucket").blob("a/b.txt")
print("google read", blob.download_as_bytes()[:5])
"""


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com", "iam.googleapis.com", "storage.googleapis.com")


@pytest.fixture
def account(api: Client) -> str:
    """A service account that may use the bucket."""
    accounts = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
    api.post(accounts, {"accountId": "machine"})
    api.post(BUCKET, {"name": "machine-bucket", "location": "US-CENTRAL1"}, project=PROJECT)
    policy = api.get(f"{BUCKET}/machine-bucket/iam")
    binding = {"role": "roles/storage.objectAdmin", "members": [f"serviceAccount:{EMAIL}"]}
    policy["bindings"].append(binding)
    api.put(f"{BUCKET}/machine-bucket/iam", policy)
    return EMAIL


def test_tensorflow_and_googles_clients_reach_the_bucket_as_the_machine(
    guest: Guest, account: str
) -> None:
    pytest.importorskip("tensorflow")
    script = f"cat >p.py <<'END'\n{PROGRAM}\nEND\npython3 p.py 2>&1 | grep -v Warning\n"
    key = guest.boot(spec(script, service_account=account, scopes=(CLOUD_PLATFORM,)))
    # TensorFlow alone takes seconds to import.
    until(lambda: "startup-script exit status" in guest.machines.serial(key)[0])
    text = guest.machines.serial(key)[0]
    assert "tensorflow read 5000 ['b.txt']" in text
    assert "google read b'hello'" in text


def test_a_machine_without_the_scope_is_refused_by_the_bucket(guest: Guest, account: str) -> None:
    ask = (
        "token=$(curl -sS -H Metadata-Flavor:Google http://metadata.google.internal/"
        "computeMetadata/v1/instance/service-accounts/default/token"
        " | python3 -c 'import json, sys; print(json.load(sys.stdin)[\"access_token\"])')\n"
        "curl -sS -H \"Authorization: Bearer $token\" -o /dev/null -w 'status %{http_code}\\n' "
        "https://storage.googleapis.com/storage/v1/b/machine-bucket/o\n"
    )
    monitoring = "https://www.googleapis.com/auth/monitoring"
    for scope, status in ((CLOUD_PLATFORM, 200), (monitoring, 403)):
        key = guest.boot(spec(ask, name=f"m{status}", service_account=account, scopes=(scope,)))
        guest.sees(key, f"status {status}")


def test_a_script_from_a_url_is_refused_aloud(guest: Guest) -> None:
    key = guest.boot(spec(attributes={"startup-script-url": "gs://machine-bucket/start.sh"}))
    guest.sees(key, "startup-script-url: a local machine fetches no scripts")


def test_a_trainer_elsewhere_hears_that_a_tpu_vm_is_taken_away(
    guest: Guest, account: str, api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = {
        "startup-script": startup_script("tpu_vm.sh"),
        "tpu-name": "t",
        "bucket-url": "gs://machine-bucket",
        "tpu-serves-grpc": "true",
        "tpu-runs-training": "false",
    }
    key = guest.boot(spec(attributes=attributes, service_account=account, scopes=(CLOUD_PLATFORM,)))
    guest.sees(key, "Finished running startup scripts.")
    looks, shutdown, over = list[int | None](), ShutdownRequest(), threading.Event()
    there = Bucket("machine-bucket", Google(api.session).exchange)

    def look() -> int | None:
        looks.append(generation_of(there, "notices/t"))
        return looks[-1]

    monkeypatch.setattr("tpu_training.job.supervision._LOOK_SECONDS", 0.05)
    threading.Thread(target=hear_of_tpu, args=(shutdown, over, look), daemon=True).start()
    until(lambda: bool(looks))
    assert looks[0] == 0
    assert isinstance(guest.machines, Machines)
    guest.machines._running[key].metadata.publish(preempted=True)
    until(shutdown.take_notice)
    over.set()
    assert not shutdown.requested
