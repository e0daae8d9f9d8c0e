"""Unpack what a job brings along, and trust nothing in it."""

from __future__ import annotations

import gzip
import hashlib
import posixpath
import tarfile
import zlib
from pathlib import Path

# `job submit` packs 200 MiB at most.
_MOST_BYTES = 1 << 30
# Files are read in small parts; what is read at once is a header.
_MOST_AT_ONCE = 1 << 20


class Harmful(Exception):
    """An archive is not what was uploaded, or would write outside of its folder."""


class _Unzipped(gzip.GzipFile):
    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _MOST_AT_ONCE:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def check_digest(path: Path, sha256: str) -> None:
    """Raise Harmful unless a file has this SHA-256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != sha256:
        raise Harmful(f"the archive is not what was uploaded: its SHA-256 is not {sha256}")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz into a folder. Raises Harmful before anything is written, or OSError."""
    try:
        with _Unzipped(archive) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            # Python 3.10 and 3.11.2, which is Debian 12's, don't have it.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            members = _checked(tar)
            # No file is ever written through a link.
            tar.extractall(folder, sorted(members, key=tarfile.TarInfo.issym))
    except (tarfile.TarError, EOFError, zlib.error, RecursionError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Harmful(f"the archive can't be unpacked: {error}") from None


def _checked(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    members: dict[str, tarfile.TarInfo] = {}
    left = _MOST_BYTES
    for member in tar:
        _check(member)
        left -= member.size + tarfile.BLOCKSIZE
        if left < 0:
            raise Harmful(f"the archive has more than {_MOST_BYTES >> 30} GiB when it is unpacked")
        if members.setdefault(posixpath.normpath(member.name), member) is not member:
            raise Harmful(f"{member.name} is in the archive twice")
        # As the person who packed it had it, but nobody's set-user-ID program.
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        member.uid = member.gid = 0
        member.uname = member.gname = ""
    links = {name for name, one in members.items() if one.issym()}
    for name, member in members.items():
        # Links to folders may lead out together.
        if _passes(name, links) or (member.issym() and _passes(_target(member), links)):
            raise Harmful(f"{member.name} in the archive lies behind a link")
    return list(members.values())


def _check(member: tarfile.TarInfo) -> None:
    if not (member.isfile() or member.isdir() or member.issym()):
        raise Harmful(f"{member.name} in the archive is neither file, folder nor symbolic link")
    if _leads_out(member.name):
        raise Harmful(f"{member.name} in the archive lies outside of it")
    if member.issym() and (member.linkname.startswith("/") or _leads_out(_target(member))):
        raise Harmful(f"{member.name} in the archive is a link to {member.linkname}, outside of it")


def _target(member: tarfile.TarInfo) -> str:
    return posixpath.join(posixpath.dirname(member.name), member.linkname)


def _passes(path: str, links: set[str]) -> bool:
    """Return whether the way to a path, with each `..` as it stands, passes a link."""
    parts = path.split("/")
    return any(
        posixpath.normpath("/".join(parts[:count])) in links for count in range(1, len(parts))
    )


def _leads_out(path: str) -> bool:
    normal = posixpath.normpath(path)
    return path.startswith("/") or normal == ".." or normal.startswith("../")
