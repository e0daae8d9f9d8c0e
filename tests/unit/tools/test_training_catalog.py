import training_catalog

from infra.catalog import Catalog

CONTENT = training_catalog.content(Catalog())


def test_the_trainer_has_the_file_that_make_catalog_writes() -> None:
    assert training_catalog.FILE.read_text(encoding="utf-8") == CONTENT


def test_the_file_says_where_to_edit_its_facts() -> None:
    assert "`make catalog`" in CONTENT.splitlines()[1]
