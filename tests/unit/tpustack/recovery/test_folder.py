from __future__ import annotations

from pathlib import Path

import pytest

from tpustack.recovery.locks import mend_folder


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    folder = tmp_path / ".pulumi" / "locks" / "organization" / "p" / "dev"
    folder.mkdir(parents=True)
    return folder


@pytest.mark.parametrize("content", ["", '{"user.cache'])
@pytest.mark.parametrize("query", ["", "?no_tmp_dir=true"])
def test_attributes_that_were_cut_off_are_removed_and_nothing_else(
    locks: Path, tmp_path: Path, content: str, query: str
) -> None:
    (locks / "1.json").write_text("{}")
    (locks / "1.json.attrs").write_text(content)
    (locks / "2.json.attrs").write_text('{"md5": ""}')
    assert mend_folder(f"file://{tmp_path}{query}") == [locks / "1.json.attrs"]
    assert sorted(path.name for path in locks.iterdir()) == ["1.json", "2.json.attrs"]


def test_a_bucket_is_left_alone(locks: Path) -> None:
    assert mend_folder("gs://bucket") == []
