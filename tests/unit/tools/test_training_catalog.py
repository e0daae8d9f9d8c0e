import training_catalog

from tpu_infra.catalog import Catalog
from tpu_training.cluster import machine

CATALOG = Catalog()
CONTENT = training_catalog.content(CATALOG)


def test_the_trainer_has_the_file_that_make_catalog_writes() -> None:
    assert training_catalog.FILE.read_text(encoding="utf-8") == CONTENT


def test_the_file_says_where_to_edit_its_facts() -> None:
    assert "`make catalog`" in CONTENT.splitlines()[1]


def test_the_trainer_finds_the_chips_of_each_generation_on_its_machine() -> None:
    ours = {tpu.family for tpu in CATALOG.accelerators.values()}
    ours |= {host.tpu.family for host in CATALOG.hosts.values()}
    found = {name for names in machine.TPU_DEVICES.values() for name in names.split(" or ")}
    assert ours <= found
