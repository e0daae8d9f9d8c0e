"""The catalog's files are read once, however many catalogs a command makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_infra.catalog import Catalog


def test_a_second_catalog_reads_no_file_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def tables(catalog: Catalog) -> tuple[object, ...]:
        packages = catalog.packages.oldest_tensorflow
        return catalog.accelerators, catalog.machine_types, packages, catalog.prices.sources

    first = tables(Catalog())
    monkeypatch.setattr(Path, "read_text", lambda path, *_: pytest.fail(f"reads {path}"))
    assert tables(Catalog()) == first
