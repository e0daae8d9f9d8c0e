"""An archive is somebody's: nothing in it is written outside of its folder."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from tpu_agent.jobs.environment import Harmful, check_digest, unpack

Change = Callable[[tarfile.TarInfo], None]


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> Change:
    def change(info: tarfile.TarInfo) -> None:
        info.name, info.type, info.linkname, info.mode = name, kind, link, mode

    return change


def archive(folder: Path, *changes: Change) -> Path:
    path = folder / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for change in changes:
            info = tarfile.TarInfo()
            change(info)
            info.size = 1 if info.isreg() else 0
            tar.addfile(info, io.BytesIO(b"x"))
    return path


THROUGH = [member("f", tarfile.SYMTYPE, "p/q/e/../../owned")]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([member("../out")], "is outside"),
        ([member("a/../../out")], "is outside"),
        ([member("/tmp/out")], "is outside"),
        ([member("l", tarfile.SYMTYPE, "../out")], "is a link to ../out"),
        ([member("l", tarfile.SYMTYPE, "/etc")], "is a link to /etc"),
        ([member("a/l", tarfile.SYMTYPE, "../../out")], "is a link to"),
        ([member("l", tarfile.LNKTYPE, "/etc/passwd")], "is neither file"),
        ([member("d", tarfile.CHRTYPE)], "is neither file"),
        ([member("p", tarfile.FIFOTYPE)], "is neither file"),
        ([member("l", tarfile.SYMTYPE, "."), member("l/x")], "is behind a link"),
        ([member("x"), member("l", tarfile.SYMTYPE, "d"), member("l/y/z")], "is behind a link"),
        ([member("p/q/e", tarfile.SYMTYPE, "../.."), *THROUGH], "is behind a link"),
        ([member("l", tarfile.SYMTYPE, "d/x"), member("l")], "l is in the archive twice"),
        ([member("d", tarfile.DIRTYPE), member("./d//")], "is in the archive twice"),
    ],
)
def test_what_leads_out_is_refused_before_anything_is_written(
    tmp_path: Path, changes: list[Change], why: str
) -> None:
    with pytest.raises(Harmful, match=why):
        unpack(archive(tmp_path, *changes), tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_files_and_links_inside_are_unpacked_unchanged_but_without_set_user_id(
    tmp_path: Path,
) -> None:
    made = archive(
        tmp_path,
        member("d/run.sh", mode=0o4755),
        member("d/plain"),
        member("l", tarfile.SYMTYPE, "d/plain"),
    )
    unpack(made, tmp_path / "work")
    assert (tmp_path / "work/l").read_text() == "x"
    assert (tmp_path / "work/d/run.sh").stat().st_mode & 0o7777 == 0o755
    assert (tmp_path / "work/d/plain").stat().st_mode & 0o7777 == 0o644


@pytest.mark.parametrize("content", [b"", b"no archive", b"\x1f\x8b\x08\x00broken"])
def test_what_is_no_archive_is_said(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(Harmful, match="can't be extracted"):
        unpack(tmp_path / "a", tmp_path / "work")


def test_a_changed_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    check_digest(tmp_path / "a", hashlib.sha256(b"1").hexdigest())
    with pytest.raises(Harmful, match="is not the uploaded one"):
        check_digest(tmp_path / "a", hashlib.sha256(b"2").hexdigest())


def test_what_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        info = tarfile.TarInfo("zeros")
        info.size = 5 << 30
        # The header alone tells it.
        assert tar.fileobj is not None
        tar.fileobj.write(info.tobuf())
    with pytest.raises(Harmful, match="more than 1 GiB"):
        unpack(tmp_path / "a.tar.gz", tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_a_header_that_fills_the_memory_is_refused_before_it_is_read(tmp_path: Path) -> None:
    def change(info: tarfile.TarInfo) -> None:
        info.name, info.pax_headers = "x", {"comment": "x" * (2 << 20)}

    with pytest.raises(Harmful, match="a header of 2"):
        unpack(archive(tmp_path, change), tmp_path / "work")


PART = st.sampled_from(["a", "a", "b", "..", "."])
PATH = st.lists(PART, min_size=1, max_size=5).map("/".join)
KIND = st.sampled_from([tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE])
MEMBERS = st.lists(st.builds(member, PATH, KIND, PATH), max_size=8)


@given(MEMBERS)
def test_whatever_an_archive_has_nothing_is_written_or_linked_outside_its_folder(
    changes: list[Change],
) -> None:
    with tempfile.TemporaryDirectory() as made:
        top = Path(made).resolve()
        packed = archive(top, *changes)
        work = top / "deep" / "er" / "work"
        work.mkdir(parents=True)
        with contextlib.suppress(Harmful, OSError):
            unpack(packed, work)
        assert [path.name for path in top.iterdir() if path != packed] == ["deep"]
        assert [path.name for path in (top / "deep").rglob("*") if work not in path.parents] == [
            *("er", "work")
        ]
        for path in work.rglob("*"):
            target = Path(os.path.realpath(path))
            assert work in (target, *target.parents)


def test_a_link_to_a_link_is_as_good_as_the_file(tmp_path: Path) -> None:
    made = archive(
        tmp_path,
        member("so", tarfile.SYMTYPE, "so.1"),
        member("so.1", tarfile.SYMTYPE, "so.1.2"),
        member("so.1.2"),
    )
    unpack(made, tmp_path / "work")
    assert (tmp_path / "work/so").read_text() == "x"
