"""The TPU in its four forms, its data disks, and what all forms look like to the program."""

import hashlib
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timezone
from typing import Any

import pulumi
import pulumi_gcp as gcp

from tpu_core import contract, paths, records
from tpu_core.google import Json
from tpu_infra import apis, grants, names
from tpu_infra.catalog.entries import Accelerator, Host
from tpu_infra.components import machine
from tpu_infra.components.identity import grant
from tpu_infra.deployer import form_of
from tpu_infra.settings import machines

_HOUR = 3600
# The API cannot change the labels of a classic node, and a label is no reason to replace a TPU.
_LABELS_ONCE = ["labels", "effectiveLabels", "pulumiLabels"]


class Tpu(pulumi.ComponentResource):
    """What all forms of TPU have in common.

    A form sets `name`, `names` and `endpoints` in `declare`, whatever resources it is made of, so
    that outputs and trainer need not know the form.
    """

    name: pulumi.Output[str]
    """Name of the first slice."""
    names: pulumi.Output[list[str]]
    """Names of all slices."""
    zone: pulumi.Output[str]
    """Zone of all slices, at the last update or refresh."""
    endpoints: pulumi.Output[list[str]]
    """`grpc://IP:PORT` of every worker, worker 0 of the first slice first, slice by slice."""

    def __init__(self, around: machine.Surroundings) -> None:
        super().__init__(f"tpu-stack:infra:{type(self).__name__}", "tpu")
        self.around, self.stack, self.bucket = around, around.stack, around.bucket
        stack = self.stack
        self.settings, self.slices = stack.settings.tpu, stack.names.tpus(stack.settings.tpu.slices)
        self.metadata = machine.tpu_metadata(stack, around.bucket)
        self.zone = pulumi.Output.from_input(stack.settings.zone)
        self.disks: list[pulumi.Resource] = []
        """The stack's own data disks. A TPU waits for them: it refers to them by name."""
        # Names are fixed: the old TPU must be gone before its replacement can be made.
        installs = contract.Metadata.TENSORFLOW_LOCK in self.metadata
        options = around.services.after(
            apis.COMPUTE_API if stack.settings.is_compute else apis.TPU_API,
            parent=self,
            depends_on=around.startup if installs else (),
            delete_before_replace=True,
            custom_timeouts=machine.custom_timeouts(self.settings.timeouts),
        )
        self.declare(options)
        self.register_outputs({"name": self.name, "names": self.names, "endpoints": self.endpoints})

    @abstractmethod
    def declare(self, opts: pulumi.ResourceOptions) -> None:
        """Declare the resource and set the outputs."""

    def attached_disks(self) -> list[list[Json]]:
        """Declare the data disks; return those of each slice as the API wants them, in order.

        Each slice gets its own copy of a disk that is written to; all slices share one that is only
        read.
        """
        shared = {
            disk: self._attached(disk, self.stack.names.tpu)
            for disk in self.settings.data_disks
            if disk.mode is machines.DiskMode.READ_ONLY
        }
        return [
            [shared.get(disk) or self._attached(disk, name) for disk in self.settings.data_disks]
            for name in self.slices
        ]

    def _attached(self, disk: machines.DataDisk, owner: str) -> Json:
        mode = {"mode": disk.mode.name}
        if disk.source:
            return {"sourceDisk": disk.source, **mode}
        stack = self.stack
        accelerator = stack.context.catalog.accelerator(self.settings.accelerator_type)
        kind = str(disk.type or (accelerator.disk_types[0] if accelerator else ""))
        only_read = disk.mode is machines.DiskMode.READ_ONLY
        shared = only_read and kind == machines.TpuDiskType.HYPERDISK_ML.value
        # Another disk is made and attached before the old one goes.
        content = f"{kind} {disk.snapshot or ''} {shared}"
        name = f"{owner}-{disk.name}-{hashlib.sha256(content.encode()).hexdigest()[:4]}"
        project, zone = stack.settings.project, stack.settings.zone
        made = gcp.compute.Disk(
            f"tpu{owner.removeprefix(stack.names.tpu)}-{disk.name}",
            name=name,
            project=project,
            zone=zone,
            size=disk.size_gib,
            type=kind,
            snapshot=disk.snapshot,
            access_mode="READ_ONLY_MANY" if shared else None,
            labels=stack.marked_labels,
            opts=self.around.services.after(
                apis.COMPUTE_API, parent=self, ignore_changes=names.KEPT_LABEL
            ),
        )
        self.disks.append(made)
        return {"sourceDisk": f"projects/{project}/zones/{zone}/disks/{name}", **mode}

    def declare_for_agent(self, bodies: Mapping[str, Any], tpus: Sequence[pulumi.Resource]) -> None:
        """Declare the object from which the agent recreates TPUs: what the API gets, by name.

        It is made after the TPUs and deleted before them, so that the agent never recreates one
        that `destroy` deletes.
        """
        if not self.stack.settings.recovery.enabled:
            return
        gcp.storage.BucketObject(
            "declaration",
            name=paths.DECLARATION,
            bucket=self.bucket.name,
            content=pulumi.Output.json_dumps(
                records.stamped({"tpus": bodies}), sort_keys=True, indent=1
            ),
            content_type="application/json",
            opts=self.around.services.after(
                parent=self, depends_on=tpus, delete_before_replace=True
            ),
        )

    def replace_if_preempted(
        self, name: str, preempted: Mapping[str, str], opts: pulumi.ResourceOptions
    ) -> pulumi.ResourceOptions:
        """Replace a TPU that Google has taken away; leave the description of any other alone.

        It is the one property that tells the new TPU from the old and changes nothing else.
        """
        own = pulumi.ResourceOptions(ignore_changes=["description"])
        if name in preempted:
            text = f"Google has preempted {name}. `pulumi up` deletes and recreates it"
            pulumi.log.info(text, resource=self)
            own = pulumi.ResourceOptions(replace_on_changes=["description"])
        return pulumi.ResourceOptions.merge(opts, own)

    def body(self, disks: Sequence[Json]) -> Json:
        """Return a TPU VM as the API's Node; unset fields are left out."""
        tpu, network = self.settings, self.around.network
        whole = {
            "acceleratorType": tpu.accelerator_type,
            "runtimeVersion": self.stack.tpu_software,
            "networkConfig": {
                "network": network.network,
                "subnetwork": network.subnetwork,
                "enableExternalIps": tpu.external_ips,
            },
            "serviceAccount": {"email": self.around.identity.email, "scope": list(tpu.scopes)},
            "metadata": dict(self.metadata),
            "dataDisks": disks,
            "bootDiskConfig": filled(diskSizeGb=str(tpu.boot_disk_gib or "")),
            "tags": [*self.around.tags, *tpu.tags],
            "shieldedInstanceConfig": filled(enableSecureBoot=tpu.secure_boot),
            "autocheckpointEnabled": tpu.autocheckpoint,
        }
        return filled(**whole)

    def urls(self, endpoints: Sequence[Any]) -> list[str]:
        """Return the addresses of one TPU's workers."""
        port = self.stack.context.catalog.network.grpc_port
        return [f"grpc://{worker.ip_address}:{worker.port or port}" for worker in endpoints]


class TpuVm(Tpu):
    """One or more TPU VMs without a queue: the update fails if there is no capacity.

    Each slice is a resource of its own, so that one that Google has taken away is replaced alone.
    """

    def declare(self, opts: pulumi.ResourceOptions) -> None:
        """Declare a `gcp.tpu.V2Vm` for each slice."""
        stack, tpu = self.stack, self.settings
        disks, preempted = self.attached_disks(), stack.context.preempted()
        options = pulumi.ResourceOptions.merge(
            opts,
            pulumi.ResourceOptions(
                depends_on=self.disks,
                ignore_changes=names.KEPT_LABEL,
                replace_on_changes=machine.properties_of_job(self.metadata),
            ),
        )
        on_demand = tpu.capacity is machines.Capacity.ON_DEMAND
        scheduling = {} if on_demand else {tpu.capacity.value: True}
        slices = [
            gcp.tpu.V2Vm(
                f"tpu{name.removeprefix(stack.names.tpu)}",
                name=name,
                project=stack.settings.project,
                zone=stack.settings.zone,
                accelerator_type=tpu.accelerator_type,
                runtime_version=stack.tpu_software,
                network_config={
                    "network": self.around.network.network,
                    "subnetwork": self.around.network.subnetwork,
                    "enable_external_ips": tpu.external_ips,
                },
                scheduling_config=(
                    gcp.tpu.V2VmSchedulingConfigArgs(**scheduling) if scheduling else None
                ),
                shielded_instance_config=(
                    gcp.tpu.V2VmShieldedInstanceConfigArgs(enable_secure_boot=True)
                    if tpu.secure_boot
                    else None
                ),
                service_account={"email": self.around.identity.email, "scopes": list(tpu.scopes)},
                tags=[*self.around.tags, *tpu.tags],
                metadata=dict(self.metadata),
                labels=stack.marked_labels,
                data_disks=[
                    gcp.tpu.V2VmDataDiskArgs(source_disk=disk["sourceDisk"], mode=disk["mode"])
                    for disk in attached
                ]
                or None,
                description=preempted.get(name),
                opts=self.replace_if_preempted(name, preempted, options),
            )
            for name, attached in zip(self.slices, disks, strict=True)
        ]
        bodies = {
            name: {
                **self.body(attached),
                **filled(schedulingConfig=scheduling),
                "labels": stack.marked_labels,
            }
            for name, attached in zip(self.slices, disks, strict=True)
        }
        self.declare_for_agent(bodies, slices)
        self.name = slices[0].name
        self.names = pulumi.Output.all(*(one.name for one in slices)).apply(list)
        self.endpoints = pulumi.Output.all(
            *(one.network_endpoints.apply(self.urls) for one in slices)
        ).apply(lambda workers: [url for of_one in workers for url in of_one])


class QueuedTpu(Tpu):
    """TPU VMs that wait in Google's queue for capacity; the update waits until all are READY.

    Several slices are one request: Google gives all of them or none.
    """

    def declare(self, opts: pulumi.ResourceOptions) -> None:
        """Declare the request and the TPU VMs that it becomes."""
        from tpu_infra.resources.request import QueuedNode, QueuedRequest, body_of

        stack, queue = self.stack, self.settings.queue or machines.QueueSettings()
        if pulumi.runtime.is_dry_run():
            pulumi.log.info(self._notice(queue), resource=self)
        disks = self.attached_disks()
        project, zone = stack.settings.project, stack.settings.zone
        where = {
            "project": project,
            "zone": zone,
            "name": stack.names.tpu,
            **filled(fallbackZones=list(queue.fallback_zones)),
        }
        spec = {
            "parent": f"projects/{project}/locations/{zone}",
            **self._node_names(),
            # Slices of one request have the same disks: the checks let them only read.
            "node": self.body(disks[0]),
        }
        requested = {
            "request": {"tpu": {"nodeSpec": [spec]}, **self._tier(queue)},
            "queueing": _policy(queue),
            "labels": stack.marked_labels,
        }
        request = QueuedRequest(
            "tpu",
            {
                **where,
                **requested,
                **filled(
                    deleteMinutes=self.settings.timeouts.delete_minutes,
                    zoneMinutes=queue.minutes_in_zone,
                ),
            },
            pulumi.ResourceOptions.merge(
                opts, pulumi.ResourceOptions(depends_on=self.disks, ignore_changes=names.KEPT_LABEL)
            ),
        )
        nodes = QueuedNode(
            "tpu-node",
            {
                **where,
                **({"nodes": list(self.slices)} if len(self.slices) > 1 else {}),
                "requested": request.id,
                **({"at": request.at} if queue.fallback_zones else {}),
                "waitMinutes": queue.wait_minutes,
            },
            pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        body = pulumi.Output.from_input(requested).apply(body_of)
        self.declare_for_agent({stack.names.tpu: body}, [request, nodes])
        self.name = pulumi.Output.from_input(self.slices[0])
        self.names = pulumi.Output.from_input(list(self.slices))
        if queue.fallback_zones:
            self.zone = request.at
        port = stack.context.catalog.network.grpc_port
        self.endpoints = nodes.endpoints.apply(
            lambda workers: [
                f"grpc://{worker['ipAddress']}:{worker['port'] or port}" for worker in workers
            ]
        )

    def _notice(self, queue: machines.QueueSettings) -> str:
        """Say how long an update waits, and what ends the TPU."""
        several = len(self.slices) > 1
        whose = f"its {len(self.slices)} TPU VMs" if several else "its TPU VM"
        ends = " Google deletes it when the reservation ends." if queue.reservation_bound else ""
        if queue.run_hours:
            ends = f" Google deletes it {queue.run_hours:g} hours after its creation."
        return (
            f"{self.stack.names.tpu} is a queued resource: `pulumi up` waits for "
            f"{'them' if several else 'it'}, at most {queue.wait_minutes:g} minutes.{ends} "
            f"Replacing or destroying it also deletes {whose}, even while in use."
        )

    def _node_names(self) -> Json:
        name = self.stack.names.tpu
        if len(self.slices) == 1:
            return {"nodeId": name}
        return {"multiNodeParams": {"nodeCount": len(self.slices), "nodeIdPrefix": name}}

    def _tier(self, queue: machines.QueueSettings) -> Json:
        """Return the tier of the queue that the request is in; empty for on demand."""
        capacity, stack = self.settings.capacity, self.stack.settings
        if capacity is machines.Capacity.SPOT:
            return {"spot": {}}
        if capacity is machines.Capacity.PREEMPTIBLE:
            return {"bestEffort": {}}
        if capacity is machines.Capacity.FLEX_START:
            seconds = round((queue.run_hours or 0) * _HOUR)
            duration = {"maxRunDuration": f"{seconds}s"}
            return {"provisioningModel": "FLEX_START", "runDuration": duration}
        hours = queue.guaranteed_hours
        reserved = capacity is machines.Capacity.RESERVED and not queue.reservation_bound
        shortest = f"{round(hours * _HOUR)}s" if hours else None
        guaranteed = filled(reserved=reserved, minDuration=shortest)
        name = queue.reservation
        if name and "/" not in name:
            name = f"projects/{stack.project}/locations/{stack.zone}/reservations/{name}"
        bound = "RESERVATION_BOUND" if queue.reservation_bound else None
        return filled(guaranteed=guaranteed, reservationName=name, provisioningModel=bound)


class TpuNode(Tpu):
    """The classic TPU node, for projects in which Google still allows one.

    It has neither metadata nor a start-up script: the VM drives it by gRPC. Its account, which is
    one of Google's, gets the bucket's roles.
    """

    def declare(self, opts: pulumi.ResourceOptions) -> None:
        """Declare a `gcp.tpu.Node`, which reads and writes the bucket as an account of Google's."""
        stack, tpu, name = self.stack, self.settings, self.stack.names.tpu
        preempted = stack.context.preempted()
        once = pulumi.ResourceOptions(ignore_changes=_LABELS_ONCE)
        preemptible = (
            {"preemptible": True} if tpu.capacity is machines.Capacity.PREEMPTIBLE else None
        )
        # Newer generations of the provider lack the class; check_provider refuses nodes with them.
        provider: Any = gcp.tpu
        node = provider.Node(
            "tpu",
            name=name,
            project=stack.settings.project,
            zone=stack.settings.zone,
            accelerator_type=tpu.accelerator_type,
            tensorflow_version=stack.tpu_software,
            network=self.around.network.network,
            cidr_block=tpu.cidr_block,
            scheduling_config=preemptible,
            labels=stack.marked_labels,
            description=preempted.get(name),
            opts=self.replace_if_preempted(
                name, preempted, pulumi.ResourceOptions.merge(opts, once)
            ),
        )
        body = {
            "acceleratorType": tpu.accelerator_type,
            "tensorflowVersion": stack.tpu_software,
            "network": self.around.network.network,
            "labels": stack.marked_labels,
            **filled(cidrBlock=tpu.cidr_block, schedulingConfig=preemptible),
        }
        self.declare_for_agent({name: body}, [node])
        read_only = grants.read_only_object(stack.settings)
        only = grants.JOBS_OBJECTS if stack.settings.jobs.apart else ()
        member = pulumi.Output.concat("serviceAccount:", node.service_account)
        given = grants.on_bucket("tpu-", stack.names, "", read_only, only)
        grant(given, stack, self.around.services, self.bucket, node, member=member)
        self.name = node.name
        self.names = node.name.apply(lambda name: [name])
        self.endpoints = node.network_endpoints.apply(self.urls)


class ComputeTpu(Tpu):
    """Machines of Compute Engine with a TPU: its hosts, on which the trainer or the jobs run.

    Google stops one for maintenance, since no TPU moves to another machine, and deletes one that it
    takes: that is what ends its costs, and a refresh sees that it is gone.
    """

    host: pulumi.Output[str]
    """Name of the machine; of several, the first."""

    def declare(self, opts: pulumi.ResourceOptions) -> None:
        """Declare a machine from Google's image for its type, or a group that is a slice."""
        tpu = self.settings
        host = self.stack.context.catalog.hosts[tpu.accelerator_type]
        whole = host.tpu_of(tpu.topology)
        self.name = (self._slice if whole.hosts > 1 else self._machine)(host, whole, opts)
        self.names = self.name.apply(lambda name: [name])
        # Nothing serves gRPC: what trains runs on the machines themselves.
        self.endpoints = pulumi.Output.from_input([])

    def _machine(
        self, host: Host, whole: Accelerator, opts: pulumi.ResourceOptions
    ) -> pulumi.Output[str]:
        stack, disk = self.stack, self._disk(whole)
        own = pulumi.ResourceOptions(
            # The provider takes an image for one of another family if -amd64 is not at the end of
            # the family's name (diskImageFamilyEquals of google-beta 6.39, disk.go): each update
            # would replace the TPU.
            ignore_changes=["bootDisk.initializeParams.image", *names.KEPT_LABEL],
            # Each of these needs a stop, after which the zone may have no room for the TPU.
            replace_on_changes=[
                *machine.properties_of_job(self.metadata),
                *("machineType", "scheduling", "serviceAccount", "shieldedInstanceConfig"),
            ],
        )
        made = gcp.compute.Instance(
            # The image is ignored, so that another one is another resource.
            f"tpu-{host.image.rpartition('-')[2]}",
            name=self.slices[0],
            zone=stack.settings.zone,
            boot_disk={"auto_delete": True, "initialize_params": disk},
            labels=stack.marked_labels,
            opts=pulumi.ResourceOptions.merge(opts, own),
            **self._properties(host),
        )
        self.declare_for_agent({self.slices[0]: self._instance(host, disk)}, [made])
        self.host = made.name
        return self.host

    def _instance(self, host: Host, disk: Any) -> Json:
        """Return the machine as the API's Instance, which is what the provider asks for."""
        own, zone = self._properties(host), f"zones/{self.stack.settings.zone}"
        # The provider takes PROJECT/FAMILY, the API the whole path.
        project, _, family = disk["image"].partition("/")
        boot = {
            "sourceImage": f"projects/{project}/global/images/family/{family}",
            "diskSizeGb": str(disk["size"]),
            "diskType": f"{zone}/diskTypes/{disk['type']}",
        }
        (interface,) = own["network_interfaces"]
        spread = own["advanced_machine_features"]
        return filled(
            name=self.slices[0],
            machineType=f"{zone}/machineTypes/{own['machine_type']}",
            disks=[{"boot": True, "autoDelete": True, "initializeParams": boot}],
            networkInterfaces=[_in_camel_case(interface)],
            advancedMachineFeatures=_in_camel_case(spread or {}),
            scheduling=_in_camel_case(own["scheduling"]),
            shieldedInstanceConfig=_in_camel_case(own["shielded_instance_config"]),
            serviceAccounts=[own["service_account"]],
            tags={"items": own["tags"]},
            metadata={"items": [{"key": k, "value": v} for k, v in own["metadata"].items()]},
            labels=self.stack.marked_labels,
        )

    def _slice(
        self, host: Host, whole: Accelerator, opts: pulumi.ResourceOptions
    ) -> pulumi.Output[str]:
        """Declare a group that makes all machines at once, connected in the topology.

        Sources: docs.cloud.google.com/compute/docs/instance-groups/about-bulk-mode and
        /about-workload-policies (2026-11). A slice is replaced as a whole, whatever changes: a
        group in bulk mode grows from nothing only.
        """
        stack, name, disk = self.stack, self.slices[0], self._disk(whole)
        boot = {"source_image": disk["image"], "disk_size_gb": disk["size"]}
        disks: Any = [{"boot": True, "auto_delete": True, "disk_type": disk["type"], **boot}]
        properties = self._properties(host)
        kept = contract.NO_REASON_TO_RECREATE
        told = {key: value for key, value in self.metadata.items() if key not in kept}
        jax = "-jax" if stack.backend is machines.Backend.JAX else ""
        template = gcp.compute.InstanceTemplate(
            # Image and packages are ignored, so that others are another resource.
            f"tpu-template-{host.image.rpartition('-')[2]}-{stack.trainer_tensorflow}{jax}",
            name=machine.name_by_content(
                name, [properties | {"metadata": told}, disks, stack.labels]
            ),
            disks=disks,
            labels=stack.marked_labels,
            opts=self.around.services.after(
                apis.COMPUTE_API,
                parent=self,
                # The provider may mistake the image, as that of a machine.
                ignore_changes=[
                    "disks[0].sourceImage",
                    *names.KEPT_LABEL,
                    *(f'metadata["{key}"]' for key in kept),
                ],
            ),
            **properties,
        )
        policy = gcp.compute.ResourcePolicy(
            "tpu-topology",
            # One of another topology is made before the group that uses this one is gone.
            name=f"{name}-{whole.topology}",
            project=stack.settings.project,
            region=stack.settings.region,
            workload_policy={"type": "HIGH_THROUGHPUT", "accelerator_topology": whole.topology},
            opts=self.around.services.after(apis.COMPUTE_API, parent=self),
        )
        # Older generations of the provider lack two of the arguments; check_provider refuses a
        # slice with them.
        provider: Any = gcp.compute
        flexible = self.settings.capacity is machines.Capacity.FLEX_START
        ends = flexible or self.settings.capacity is machines.Capacity.SPOT
        group = provider.InstanceGroupManager(
            "tpu-slice",
            name=name,
            project=stack.settings.project,
            zone=stack.settings.zone,
            # A pattern makes their names known (`Names.machine_of_slice`).
            base_instance_name=f"{name}-###",
            versions=[{"instance_template": template.self_link}],
            target_size=whole.hosts,
            target_size_policies=[{"mode": "BULK"}],
            # The whole URL: a name alone is not found.
            resource_policies={"workload_policy": policy.self_link},
            # Bulk mode wants it with flex-start. On spot, Google must not restart the machines of
            # a lost slice that have turned themselves off (agent/tpu_agent/jobs/hosts.py).
            instance_lifecycle_policy={"default_action_on_failure": "DO_NOTHING"} if ends else None,
            wait_for_instances=True,
            opts=pulumi.ResourceOptions.merge(
                opts, pulumi.ResourceOptions(replace_on_changes=["*"])
            ),
        )
        body = self._group(whole.hosts, template.self_link, policy.self_link)
        self.declare_for_agent({name: body}, [group])
        made: pulumi.Output[str] = group.name
        self.host = made.apply(lambda name: stack.names.machine_of_slice(name, 0))
        return made

    def _group(self, hosts: int, template: Any, policy: Any) -> Json:
        """Return a spot slice as the API's InstanceGroupManager."""
        return {
            "name": self.slices[0],
            "baseInstanceName": f"{self.slices[0]}-###",
            "versions": [{"instanceTemplate": template}],
            "targetSize": hosts,
            "targetSizePolicy": {"mode": "BULK"},
            "resourcePolicies": {"workloadPolicy": policy},
            "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING"},
            "labels": self.stack.marked_labels,
        }

    def _disk(self, whole: Accelerator) -> Any:
        return {
            "image": self.stack.tpu_software,
            "size": self.settings.compute_disk_gib,
            "type": whole.disk_types[0],
        }

    def _properties(self, host: Host) -> dict[str, Any]:
        """Return what a machine and a template of machines have in common."""
        stack, tpu, network = self.stack, self.settings, self.around.network
        return {
            "project": stack.settings.project,
            "machine_type": tpu.accelerator_type,
            "network_interfaces": [
                {
                    "network": network.network,
                    "subnetwork": network.subnetwork,
                    "nic_type": "GVNIC",
                    # An empty one asks for a public address of Google's choice.
                    "access_configs": [{}] if tpu.external_ips else [],
                }
            ],
            "advanced_machine_features": (
                {"threads_per_core": host.threads_per_core} if host.threads_per_core else None
            ),
            "scheduling": self._scheduling(),
            "reservation_affinity": self._reservation(),
            # Said even if false: the provider keeps what is left out as it was.
            "shielded_instance_config": {"enable_secure_boot": tpu.secure_boot},
            "service_account": {"email": self.around.identity.email, "scopes": list(tpu.scopes)},
            "tags": [*self.around.tags, *tpu.tags],
            "metadata": dict(self.metadata),
        }

    def _scheduling(self) -> Any:
        """Return how the machine is bought, and what Google does at the end.

        Source: docs.cloud.google.com/compute/docs/instances/provisioning-models, and the checks of
        google-beta 7.41 for FLEX_START. A group deletes its machines at their time limit, too
        (docs.cloud.google.com/compute/docs/instance-groups/limit-vm-runtime-in-migs). Of a
        reservation in calendar mode: Google's sample `hypercomputer_tpu_tune_llama_rl_create`.
        """
        capacity, queued = self.settings.capacity, self.settings.queued
        stands = capacity not in (machines.Capacity.SPOT, machines.Capacity.FLEX_START)
        ends = capacity is machines.Capacity.FLEX_START
        bound = queued is not None and queued.reservation_bound
        model = "RESERVATION_BOUND" if bound else "STANDARD" if stands else capacity.name
        life = self.stack.settings.limits.time_to_live_hours
        hours = (queued and queued.run_hours) if ends else life
        # A stopped one is seen to be preempted; what is gone may have been deleted by a person.
        kept = self.stack.settings.has_watcher and form_of(self.stack.settings) == "machine"
        scheduling: dict[str, Any] = {
            "on_host_maintenance": "TERMINATE",
            "provisioning_model": model,
            "automatic_restart": stands,
        }
        if capacity is machines.Capacity.SPOT:
            scheduling["preemptible"] = True
        if hours:
            scheduling["max_run_duration"] = {"seconds": round(hours * _HOUR)}
        if hours or bound or not stands:
            scheduling["instance_termination_action"] = "STOP" if kept else "DELETE"
        return scheduling

    def _reservation(self) -> Any:
        """Return which reservation the machine comes from; None for spot, which uses none."""
        capacity, queued = self.settings.capacity, self.settings.queued
        if capacity is machines.Capacity.SPOT:
            return None
        if capacity is machines.Capacity.FLEX_START:
            return {"type": "NO_RESERVATION"}
        if queued is None or queued.reservation is None:
            # Google's default. Without it the provider would keep a reservation that is removed.
            return {"type": "ANY_RESERVATION"}
        name = queued.reservation
        if "/" in name:
            _, project, *_, name = name.split("/")
            # So Compute Engine calls one that another project shares.
            name = f"projects/{project}/reservations/{name}"
        key = "compute.googleapis.com/reservation-name"
        return {
            "type": "SPECIFIC_RESERVATION",
            "specific_reservation": {"key": key, "values": [name]},
        }


def filled(**values: Any) -> Json:
    """Return the values that are not empty: Google's JSON leaves the others out."""
    return {name: value for name, value in values.items() if value}


def _in_camel_case(properties: Json) -> Json:
    """Return properties of the provider under the names that the API has for them."""
    return {
        re.sub("_([a-z])", lambda found: found[1].upper(), name): value
        for name, value in properties.items()
    }


def _policy(queue: machines.QueueSettings) -> dict[str, str]:
    if queue.valid_until is None:
        return {}
    moment = queue.valid_until.astimezone(timezone.utc)
    return {"validUntilTime": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}
