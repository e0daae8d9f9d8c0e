"""README's and the first TPU's commands, word for word, by two engineers in one project.

Each has an empty home with nothing but a way to log in. The project's owner goes by the README; at
the same time someone goes by the page who has only the role that docs/team.md has owners make.
The local cloud takes time where people wait on Google (see `hurry`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from localcloud.app import LocalCloud, resource_names, soft_deleted_bytes
from localcloud.core import projects
from localcloud.core.call import Principal
from localcloud.core.cloud import DEVELOPER, Cloud
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.services.oauth2 import SCOPES
from localcloud.services.storage.records import DELETED
from localcloud.services.tpu import hosts
from localcloud.services.tpu.catalog import accelerators
from localcloud.testing import Client
from tests.watch import asked_hosts, configured_indexes
from tpu_infra.catalog import Catalog
from tpu_infra.deployer import permissions_of
from tpu_infra.settings.parse import load_stack_file
from tpustack.commands.init import runtime_for

from .engineer import Engineer, Life
from .pages import ROOT, commands

GRACE = "user:grace@example.com"
STATE = f"{DEFAULT_PROJECT}-pulumi-state"
# What people wait for most, and a third of Google's time for it. The rest is done at once: Google's
# provider asks after a network, router or address only every ten seconds.
WAITED_FOR = re.compile(r"(tpu|queue|service)\.|compute\.create$")
HURRY = 3
# Only an owner gets as far as enabling an API while these are disabled.
ASKED_FIRST = ("iam.googleapis.com", "cloudresourcemanager.googleapis.com")
ACCELERATOR, RUN_ON = "v5litepod-4", "tpu"
# The chips of a TPU VM, which libtpu would drive: four devices of this machine's processor.
CHIPS = """
import sys
if "tpu_training" in sys.orig_argv:
    from tpu_training.cluster import cluster
    cluster._use_local_tpu = lambda: cluster._use_this_machine(4)[0]
"""


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The TPU VM's image has the TensorFlow of its runtime: this environment's, renamed.

    So nothing is downloaded. What a machine installs, and how, tests/unit/infra shows.
    """
    runtime = Catalog().runtimes[runtime_for(ACCELERATOR, Catalog(), RUN_ON) or ""]
    metadata = f"Metadata-Version: 2.1\nName: tensorflow\nVersion: {runtime.tensorflow}\n"
    info = tmp_path / "image" / f"tensorflow-{runtime.tensorflow}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(metadata, encoding="utf-8")
    (info.parent / "sitecustomize.py").write_text(CHIPS, encoding="utf-8")
    program = {"python3": f'PYTHONPATH={info.parent} exec {sys.executable} "$@"'}
    monkeypatch.setattr(hosts, "_programs", lambda worker: program)


@pytest.fixture
def cloud(tmp_path: Path, image: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    on_google = Cloud.seconds

    def hurry(cloud: Cloud, what: str) -> float:
        return on_google(cloud, what) / HURRY if WAITED_FOR.match(what) else 0.0

    monkeypatch.setattr(Cloud, "seconds", hurry)
    made = LocalCloud(tmp_path / "cloud", latency="real")
    made.start()
    gone = [name for name in accelerators() if name.startswith(("v2-", "v3-"))]
    made.cloud.store.put("setting", "stockout", {"*": gone})
    yield made
    made.stop()


@pytest.fixture
def asked() -> Iterator[set[str]]:
    """The hosts that are not Google's and that anything asked, machines included."""
    with asked_hosts(reached={*configured_indexes(), "127.0.0.1"}) as (hosts, _):
        yield hosts


def engineer(name: str, member: str, cloud: LocalCloud, tmp_path: Path) -> Engineer:
    """Someone in an empty home; logging in makes them `member`."""
    bundle = str(cloud.authority.bundle)
    ours = ("HTTPS_PROXY", "https_proxy")
    network = dict.fromkeys(ours, f"http://127.0.0.1:{cloud.listener.port}")
    network |= dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"), bundle)
    principal = Principal(f"refresh-token:{member}", SCOPES)
    token = cloud.cloud.token(principal, lifetime=86400)
    return Engineer(
        name, tmp_path / name, refresh_token=token, network=network, project=DEFAULT_PROJECT
    )


def make_deployer(cloud: LocalCloud) -> None:
    """What docs/team.md has the project's owner do for an engineer: a role and its grant."""
    owner = Client(cloud)
    dev = load_stack_file(ROOT / "stacks" / "Pulumi.dev.yaml")
    role = {"title": "Deployer", "includedPermissions": permissions_of(dev).of_project()}
    project = f"projects/{DEFAULT_PROJECT}"
    projects.enable_services(cloud.cloud, DEFAULT_PROJECT, list(ASKED_FIRST))
    made = owner.post(f"iam.googleapis.com/v1/{project}/roles", {"roleId": "dev", "role": role})
    resource = f"cloudresourcemanager.googleapis.com/v1/{project}"
    policy = owner.post(f"{resource}:getIamPolicy", {})
    policy["bindings"].append({"role": made["name"], "members": [GRACE]})
    owner.post(f"{resource}:setIamPolicy", {"policy": policy})


def made_in(cloud: LocalCloud) -> dict[str, list[str]]:
    return resource_names(cloud.cloud)


def trained(life: Life) -> float:
    """The test accuracy that `follow` showed."""
    assert life.code == 0, life.said[-6000:]
    found = re.findall(r"training finished test_accuracy=([\d.]+)", life.said)
    assert found, life.said[-6000:]
    return float(found[-1])


def test_two_engineers_get_from_a_clone_to_a_trained_model_and_back_to_nothing(
    cloud: LocalCloud, tmp_path: Path, asked: set[str]
) -> None:
    make_deployer(cloud)
    before = made_in(cloud)
    ada = engineer("ada", DEVELOPER, cloud, tmp_path)
    grace = engineer("grace", GRACE, cloud, tmp_path)
    with ThreadPoolExecutor() as side_by_side:
        readme = side_by_side.submit(ada.live, commands("README.md", "Use it on Google"))
        page = side_by_side.submit(grace.live, commands("docs/first-tpu.md"))
        lives = [readme.result(), page.result()]
    assert [trained(life) > 0.9 for life in lives] == [True, True]
    # The engine warns of a provider that it takes from PATH.
    assert not [line for life in lives for line in life.said.splitlines() if "from $PATH" in line]
    # As the page says, the bucket with Pulumi's state stays; its states have no resources.
    left = {
        kind: sorted({*keys} - {*before.get(kind, [])}) for kind, keys in made_in(cloud).items()
    }
    assert left.pop("objects")
    assert {kind: keys for kind, keys in left.items() if keys} == {"buckets": [STATE]}
    # Cents: of the two stacks' buckets Google keeps nothing, of Pulumi's states little.
    assert soft_deleted_bytes(cloud.cloud) < 10_000_000
    assert all(key.startswith(f"{STATE}/") for key in cloud.cloud.store.keys(DELETED))
    assert cloud.cloud.machines.processes() == []
    # As docs/commands.md says, Pulumi's own command asks for its newest release.
    assert asked <= {*configured_indexes(), "api.pulumi.com", "127.0.0.1"}
