"""A Pulumi program with something against every rule of the policy pack; for a stack `prod`."""

import pulumi_gcp as gcp

ZONE = "europe-west4-a"
bucket = gcp.storage.Bucket("open", name="open-data", location="US-CENTRAL1")
gcp.storage.BucketIAMMember(
    "everyone", bucket=bucket.name, role="roles/storage.objectViewer", member="allUsers"
)
gcp.compute.Instance(
    "driver",
    name="driver",
    zone=ZONE,
    machine_type="n1-standard-2",
    boot_disk={"initialize_params": {"image": "debian-cloud/debian-12", "size": 50}},
    network_interfaces=[{"network": "default", "access_configs": [{}]}],
    scheduling={"preemptible": True, "automatic_restart": False},
    service_account={
        "email": "123456-compute@developer.gserviceaccount.com",
        "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
    },
)
for name, spot in (("taken-away", True), ("dear", False)):
    gcp.tpu.V2Vm(
        name,
        name=name,
        zone=ZONE,
        accelerator_type="v3-32",
        runtime_version="tpu-vm-tf-2.16.1-pod-se",
        network_config={"enable_external_ips": True},
        scheduling_config={"spot": spot},
    )
