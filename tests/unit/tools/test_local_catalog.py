import local_catalog
import pytest

from tpu_infra.catalog import Catalog

FILES = local_catalog.files(Catalog())


@pytest.mark.parametrize("name", sorted(FILES))
def test_the_local_cloud_has_the_file_that_make_catalog_writes(name: str) -> None:
    assert (local_catalog.DATA / name).read_text(encoding="utf-8") == FILES[name]


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_generated_file_says_so_in_its_first_line(name: str) -> None:
    assert "`make catalog`" in FILES[name].splitlines()[0]
