"""Estimates: the seeds' table of large models, stacks, and what holds for all of them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from tests.examples import examples
from tpu_core.words import money
from tpu_infra.catalog import Catalog
from tpu_infra.cost import Estimate, as_json, of_accelerator, of_stack, table
from tpu_infra.settings.machines import Capacity
from tpu_infra.settings.parse import load_stack_file, parse

CATALOG = Catalog()
STACKS = Path(__file__).parents[4] / "stacks"
REGIONS = sorted(
    {zone.rpartition("-")[0] for tpu in CATALOG.accelerators.values() for zone in tpu.zones}
)
# A quotient such as the price of one of 6,144 chips ends after 28 digits.
TINY = Decimal("1e-18")


@pytest.mark.parametrize(
    ("model", "accelerator", "count", "days", "capacity", "cost"),
    [
        ("BERT", "v3-8", 16, "4", Capacity.ON_DEMAND, "$12,288.00"),
        ("BERT, preemptible", "v3-8", 16, "4", Capacity.PREEMPTIBLE, "$3,686.40"),
        ("GPT-2", "v3-8", 32, "7", Capacity.ON_DEMAND, "$43,008.00"),
        ("XLNet", "v3-8", 128, "2.5", Capacity.ON_DEMAND, "$61,440.00"),
        ("BigGAN", "v3-8", 64, "2", Capacity.ON_DEMAND, "$24,576.00"),
        ("StyleGAN", "V100", 8, "7", Capacity.ON_DEMAND, "$3,333.12"),
    ],
)
def test_the_large_models_cost_what_the_first_users_computed(
    model: str, accelerator: str, count: int, days: str, capacity: Capacity, cost: str
) -> None:
    hours = Decimal(days) * 24
    estimate = of_accelerator(accelerator, "us-central1", capacity, count, hours, CATALOG)
    assert money(estimate.configured.hour * hours) == cost, model


def estimate_of(stack: str, hours: int = 24) -> Estimate:
    path = STACKS / f"Pulumi.{stack}.yaml"
    return of_stack(load_stack_file(path), stack, CATALOG, Decimal(hours))


def stack(**settings: object) -> Estimate:
    """The estimate of a stack with some settings of a test's own."""
    config = {"gcp:project": "some-project", "tpu-stack:zone": "us-central1-b"}
    own = {f"tpu-stack:{name}": value for name, value in settings.items()}
    return of_stack(parse({**config, **own}, "test"), "test", CATALOG)


def lines_of(**tpu: object) -> dict[str, str]:
    """What each part of a stack is, with the price of an hour as far as it is known."""
    wanted = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.18.0-pod-se", **tpu}
    config = {"tpu-stack:zone": "us-central1-b", "tpu-stack:tpu": wanted}
    parsed = parse({"gcp:project": "some-project", **config}, "test")
    return {
        f"{line.part}: {line.what}": money(line.configured.amount, 4) if line.configured else ""
        for line in of_stack(parsed, "test", CATALOG).lines
    }


def test_slices_cost_as_many_times_and_their_hosts_are_behind_the_nat() -> None:
    lines = lines_of(slices=4)
    assert lines["TPU: 4 x v2-8, on-demand"] == "$18.0000"
    assert "NAT: 5 machines" in lines


def test_data_disks_of_the_stacks_own_cost_and_given_ones_do_not() -> None:
    given = {"source": "projects/p/zones/us-central1-b/disks/d", "mode": "read-only"}
    own = {"name": "scratch", "sizeGib": 730}
    copy = {"name": "corpus", "snapshot": "projects/p/global/snapshots/s", "mode": "read-only"}
    lines = lines_of(slices=2, dataDisks=[own, given, copy])
    disks = {what: price for what, price in lines.items() if what.startswith("Data disk")}
    assert disks == {
        "Data disk: 2 x 730 GiB pd-balanced": "$0.2000",
        "Data disk: as its snapshot pd-balanced": "",
    }


def test_public_addresses_of_a_tpu_are_counted_and_need_no_nat() -> None:
    lines = lines_of(externalIps=True, slices=2)
    assert lines["Address: public, of the TPU"] == ""
    assert "NAT: 1 machine" in lines


def test_a_stack_is_tpu_vm_disk_bucket_and_nat() -> None:
    lines = estimate_of("prod").lines
    assert [line.part for line in lines] == ["TPU", "VM", "Disk", "Bucket", "NAT"]
    assert [line.what for line in lines] == [
        "v5litepod-16, on-demand",
        "n2-highmem-8, on-demand",
        "50 GiB pd-balanced",
        "100 GiB Standard",
        "5 machines",
    ]


def test_only_the_vm_of_a_stack_with_a_classic_node_is_behind_the_gateway() -> None:
    assert estimate_of("local-node").lines[-1].what == "1 machine"


def test_an_unused_gateway_costs_nothing() -> None:
    config: dict[str, object] = {
        "gcp:project": "some-project",
        "tpu-stack:zone": "us-central1-b",
        "tpu-stack:architecture": "node",
        "tpu-stack:vm": {"publicIp": True},
    }
    parts = [line.part for line in of_stack(parse(config, "test"), "test", CATALOG).lines]
    assert parts == ["TPU", "VM", "Disk", "Address", "Bucket"]


def test_a_table_has_the_same_columns_in_every_line() -> None:
    text = table(estimate_of("dev", hours=96))
    assert text.splitlines()[:9] == [
        "Stack dev in us-central1, US dollars",
        "",
        "                                hour     day  run of 96 h  run on demand  run on spot",
        "TPU     v5litepod-4, spot    $0.9797  $23.51       $94.05        $460.80       $94.05",
        "VM      n1-standard-2, spot  $0.0260   $0.62        $2.50          $9.12        $2.50",
        "Disk    50 GiB pd-balanced   $0.0068   $0.16        $0.66          $0.66        $0.66",
        "Bucket  100 GiB Standard     $0.0027   $0.07        $0.26          $0.26        $0.26",
        "NAT     2 machines           $0.0078   $0.19        $0.75          $0.75        $0.75",
        "Total                        $1.0231  $24.55       $98.22        $471.59       $98.22",
    ]


def v4(capacity: str = "on-demand", **vm: object) -> Estimate:
    config: dict[str, object] = {
        "gcp:project": "some-project",
        "tpu-stack:zone": "us-central2-b",
        "tpu-stack:tpu": {"acceleratorType": "v4-8", "capacity": capacity},
        "tpu-stack:vm": vm,
    }
    return of_stack(parse(config, "test"), "test", CATALOG)


def test_an_unknown_price_says_so_and_the_total_says_that_it_is_more() -> None:
    text = table(v4())
    vm = next(line for line in text.splitlines() if line.startswith("VM"))
    total = next(line for line in text.splitlines() if line.startswith("Total"))
    assert vm.split()[-5:] == ["unknown"] * 5
    assert total.count("over $") == 5
    assert (
        "unknown: the catalog has no price for VM n1-standard-2, on-demand in us-central2 (as it "
        "is set, on demand, spot)." in text
    )


def test_a_reservation_has_no_list_price() -> None:
    tpu = v4(capacity="reserved").lines[0]
    assert tpu.configured is None
    assert tpu.on_demand is not None


def test_an_unknown_machine_type_is_an_unknown_price() -> None:
    vm = v4(machineType="n9-nosuch-1").lines[1]
    assert (vm.configured, vm.on_demand, vm.spot) == (None, None, None)


def test_json_has_exact_texts_and_null_for_what_is_unknown() -> None:
    document = as_json(v4())
    assert document["currency"] == "USD"
    assert document["hours"] == "24"
    tpu, vm = document["lines"][:2]
    assert tpu["part"] == "TPU"
    assert tpu["configured"]["hour"] == "12.88"
    assert tpu["configured"]["day"] == "309.12"
    assert tpu["configured"]["source"]["date"] == "2026-11-21"
    assert vm["configured"] is None
    assert document["total"]["configured"]["complete"] is False


@given(
    name=st.sampled_from(sorted(CATALOG.accelerators)),
    region=st.sampled_from(REGIONS),
    capacity=st.sampled_from(list(Capacity)),
    first=st.integers(min_value=1, max_value=1000),
    second=st.integers(min_value=1, max_value=1000),
    hours=st.decimals(min_value=0, max_value=10000, places=3),
)
@settings(max_examples=examples(300))
def test_costs_are_never_negative_and_add_up(
    name: str, region: str, capacity: Capacity, first: int, second: int, hours: Decimal
) -> None:
    one, other, both = (
        of_accelerator(name, region, capacity, count, hours, CATALOG).configured
        for count in (first, second, first + second)
    )
    assert one.complete == other.complete == both.complete
    assert one.hour >= 0
    assert abs(one.hour + other.hour - both.hour) <= TINY * (1 + both.hour)


@given(
    zone=st.sampled_from(sorted({z for tpu in CATALOG.accelerators.values() for z in tpu.zones})),
    accelerator=st.sampled_from(sorted(CATALOG.accelerators)) | st.text(min_size=1, max_size=5),
    machine=st.sampled_from(sorted(CATALOG.machine_types)) | st.text(min_size=1, max_size=5),
    gib=st.integers(min_value=20, max_value=65536),
    disk=st.sampled_from(["pd-balanced", "pd-standard", "pd-ssd"]),
    own_network=st.booleans(),
    public=st.booleans(),
)
@settings(max_examples=examples(300))
def test_a_total_is_the_sum_of_its_lines_whatever_the_settings_are(
    zone: str,
    accelerator: str,
    machine: str,
    gib: int,
    disk: str,
    own_network: bool,
    public: bool,
) -> None:
    config: dict[str, object] = {
        "gcp:project": "some-project",
        "tpu-stack:zone": zone,
        "tpu-stack:tpu": {"acceleratorType": accelerator.strip() or "v2-8"},
        "tpu-stack:vm": {
            "machineType": machine.strip() or "n1-standard-2",
            "bootDiskGib": gib,
            "bootDiskType": disk,
            "publicIp": public,
        },
        "tpu-stack:network": {"create": own_network},
    }
    estimate = of_stack(parse(config, "test"), "test", CATALOG)
    known = [line.on_demand for line in estimate.lines if line.on_demand]
    assert all(price.amount > 0 for price in known)
    assert estimate.on_demand.hour == sum(price.amount for price in known)
    assert estimate.on_demand.complete == (len(known) == len(estimate.lines))
    assert all(line.what in table(estimate) for line in estimate.lines)


def test_only_a_key_of_the_stacks_own_has_a_price() -> None:
    lines = {line.part: line for line in stack(bucket={"encryption": {}}).lines}
    assert lines["Key"].configured is not None
    assert abs(lines["Key"].configured.amount * 730 - Decimal("0.06")) < TINY
    given = {"key": "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"}
    assert "Key" not in {line.part for line in stack(bucket={"encryption": given}).lines}


def test_the_notes_say_what_replaced_checkpoints_cost_while_google_keeps_them() -> None:
    def said(**bucket: object) -> str:
        return "".join(note for note in stack(bucket=bucket).notes if "softDeleteDays" in note)

    # 168 GiB at $0.02 a month.
    assert "for 7 more days, even after `destroy`" in said()
    assert "replaced hourly costs $3.36 a month" in said()
    assert "costs $14.40 a month" in said(softDeleteDays=30)
    assert said(softDeleteDays=0) == said(create=False, name="our-data") == ""


def test_the_notes_say_what_the_vm_is_for_where_it_does_not_train() -> None:
    (said,) = [note for note in stack(training={"runOn": "tpu"}).notes if "VM:" in note]
    assert said.startswith("VM: it doesn't train")
    assert not [note for note in stack().notes if "VM:" in note]
