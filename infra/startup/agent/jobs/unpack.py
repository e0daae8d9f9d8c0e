"""Unpack what a job brings along, and trust nothing in it."""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from pathlib import Path


class Harmful(Exception):
    """An archive is not what was uploaded, or would write outside of its folder."""


def check_digest(path: Path, sha256: str) -> None:
    """Raise Harmful unless a file has this SHA-256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != sha256:
        raise Harmful(f"the archive is not what was uploaded: its SHA-256 is not {sha256}")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz into a folder. Raises Harmful before anything is written."""
    # Python 3.10 and 3.11.2, which is Debian 12's, have no filters for this.
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = tar.getmembers()
            for member in members:
                _check(member)
            links = {posixpath.normpath(one.name) for one in members if one.issym()}
            for member in members:
                _check_way(member, links)
                # As the person who packed it had it, but nobody's set-user-ID program.
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.uid = member.gid = 0
                member.uname = member.gname = ""
            tar.extractall(folder, members)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise Harmful(f"the archive can't be unpacked: {error}") from None


def _check(member: tarfile.TarInfo) -> None:
    if not (member.isfile() or member.isdir() or member.issym()):
        raise Harmful(f"{member.name} in the archive is neither file, folder nor symbolic link")
    if _leads_out(member.name):
        raise Harmful(f"{member.name} in the archive lies outside of it")
    target = posixpath.join(posixpath.dirname(member.name), member.linkname)
    if member.issym() and (member.linkname.startswith("/") or _leads_out(target)):
        raise Harmful(f"{member.name} in the archive is a link to {member.linkname}, outside of it")


def _check_way(member: tarfile.TarInfo, links: set[str]) -> None:
    """Refuse what lies behind a link: links to folders may lead out together."""
    parts = posixpath.normpath(member.name).split("/")
    for count in range(1, len(parts)):
        if "/".join(parts[:count]) in links:
            raise Harmful(f"{member.name} in the archive lies behind a link")


def _leads_out(path: str) -> bool:
    normal = posixpath.normpath(path)
    return path.startswith("/") or normal == ".." or normal.startswith("../")
