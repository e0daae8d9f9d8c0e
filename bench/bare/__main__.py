"""What stack `local` declares as anyone would write it: literals, one resource after another.

It is only previewed, as the yardstick of `make bench ONLY=preview`.
"""

import os
from pathlib import Path

import pulumi
from pulumi_gcp import compute, projects, serviceaccount, storage, tpu

PROJECT, REGION, ZONE = "tpu-stack-local", "us-central1", "us-central1-b"
CLOUD_PLATFORM = "https://www.googleapis.com/auth/cloud-platform"
# Where the wheel and the data are that both programs upload.
FILES = Path(os.environ["TPUSTACK_BENCH_FILES"])

apis = [
    projects.Service(f"{name}.googleapis.com", project=PROJECT, service=f"{name}.googleapis.com")
    for name in ("storage", "tpu", "compute", "iam", "cloudresourcemanager")
]
bucket = storage.Bucket(
    "bucket",
    project=PROJECT,
    name="bare-bucket",
    location="US-CENTRAL1",
    uniform_bucket_level_access=True,
    public_access_prevention="enforced",
    force_destroy=True,
)
files = [*FILES.glob("*.whl"), *sorted((FILES / "data").glob("*"))]
objects = [
    storage.BucketObject(
        file.name, bucket=bucket.name, name=file.name, source=pulumi.FileAsset(str(file))
    )
    for file in files
]
account = serviceaccount.Account("account", project=PROJECT, account_id="bare-account")
member = account.email.apply(lambda email: f"serviceAccount:{email}")
for role in ("roles/storage.objectUser", "roles/storage.legacyBucketReader"):
    storage.BucketIAMMember(role, bucket=bucket.name, role=role, member=member)
for role in ("roles/tpu.viewer", "roles/logging.logWriter"):
    projects.IAMMember(role, project=PROJECT, role=role, member=member)
network = compute.Network(
    "network", project=PROJECT, name="bare-net", auto_create_subnetworks=False
)
subnetwork = compute.Subnetwork(
    "subnetwork",
    project=PROJECT,
    region=REGION,
    network=network.id,
    ip_cidr_range="10.10.0.0/20",
    private_ip_google_access=True,
)
compute.Firewall(
    "machines",
    project=PROJECT,
    network=network.id,
    source_tags=["bare-net"],
    target_tags=["bare-net"],
    allows=[compute.FirewallAllowArgs(protocol="all")],
)
compute.Firewall(
    "ssh",
    project=PROJECT,
    network=network.id,
    source_ranges=["35.235.240.0/20"],
    allows=[compute.FirewallAllowArgs(protocol="tcp", ports=["22"])],
)
router = compute.Router("router", project=PROJECT, region=REGION, network=network.id)
compute.RouterNat(
    "nat",
    project=PROJECT,
    region=REGION,
    router=router.name,
    nat_ip_allocate_option="AUTO_ONLY",
    source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
)
tpu.V2Vm(
    "tpu",
    project=PROJECT,
    zone=ZONE,
    name="bare-tpu",
    accelerator_type="v2-8",
    runtime_version="tpu-vm-tf-2.19.0-pod-pjrt",
    network_config=tpu.V2VmNetworkConfigArgs(
        network=network.id, subnetwork=subnetwork.id, enable_external_ips=False
    ),
    service_account=tpu.V2VmServiceAccountArgs(email=account.email, scopes=[CLOUD_PLATFORM]),
    tags=["bare-net"],
)
compute.Instance(
    "vm",
    project=PROJECT,
    zone=ZONE,
    name="bare-vm",
    machine_type="n1-standard-2",
    boot_disk=compute.InstanceBootDiskArgs(
        initialize_params=compute.InstanceBootDiskInitializeParamsArgs(
            image="debian-cloud/debian-12", size=50, type="pd-balanced"
        )
    ),
    network_interfaces=[compute.InstanceNetworkInterfaceArgs(subnetwork=subnetwork.id)],
    service_account=compute.InstanceServiceAccountArgs(
        email=account.email, scopes=[CLOUD_PLATFORM]
    ),
    tags=["bare-net"],
    metadata={"bucket-url": bucket.url, "tpu-name": "bare-tpu"},
)
