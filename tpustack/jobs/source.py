"""What a job brings along: a folder, a wheel, or a commit of a git repository, as an archive.

A folder is packed without what its ignore files name; secrets and links to the outside are refused.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import re
import subprocess
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, TYPE_CHECKING

from tpustack.errors import TpustackError, UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


# Nothing that runs a program of the repository's choice.
_PROTOCOLS = "https:ssh:git:file"
_WHEEL = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.!+]+(-\d\w*)?-\w[\w.]*-\w[\w.]*-\w[\w.]*\.whl")


@dataclass(frozen=True)
class Source:
    """An archive, its kind as the job's record names it, and where it came from, for people."""

    kind: str = "none"
    archive: Archive | None = None
    origin: str = ""


@contextlib.contextmanager
def source_of(folder: Path | None, wheel: Path | None, git: str | None) -> Iterator[Source]:
    """Return what one of the three arguments means; nothing without any.

    Raises:
        UsageError: for more than one, or one that can't be used.
        TpustackError: when git fails.
    """
    if sum(one is not None for one in (folder, wheel, git)) > 1:
        raise UsageError("--dir, --wheel and --git exclude each other: a job has one source")
    if folder is not None:
        yield Source("folder", pack(folder), str(folder.resolve()))
    elif wheel is not None:
        yield Source("wheel", _wheel(wheel), wheel.name)
    elif git is not None:
        with TemporaryDirectory() as temporary:
            commit = _check_out(git, Path(temporary))
            yield Source("folder", pack(Path(temporary)), f"{git.rpartition('@')[0]}@{commit}")
    else:
        yield Source()


def _wheel(path: Path) -> Archive:
    if not _WHEEL.fullmatch(path.name) or not zipfile.is_zipfile(path):
        why = "is no wheel" if path.exists() else "does not exist"
        raise UsageError(f"--wheel: {path} {why}. `python -m build --wheel` makes one")
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"--wheel: {path} has more than {MOST_BYTES >> 20} MiB")
    return _archive_of(path.open("rb"), frozenset({path.name}))


def _check_out(git: str, folder: Path) -> str:
    """Fetch one commit into a folder, with the person's own rights; return its hash."""
    url, at, ref = git.rpartition("@")
    # The user's name in an ssh URL has an @ of its own.
    if not at or not url or not ref or "/" in ref.partition(":")[2] or ref.startswith("-"):
        raise UsageError(
            f"--git: {git} names no commit. Write it like https://github.com/OWNER/NAME@v1.2"
        )
    if url.startswith("-"):
        raise UsageError(f"--git: {url} is no address of a repository")
    _git(folder, "init", "--quiet")
    _git(folder, "fetch", "--quiet", "--depth=1", "--no-tags", "--", url, ref)
    _git(folder, "-c", "core.symlinks=true", "checkout", "--quiet", "FETCH_HEAD")
    return _git(folder, "rev-parse", "HEAD").strip()


def _git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise TpustackError("--git needs git, which is not installed here") from None
    if done.returncode != 0:
        raise UsageError(f"--git: git can't fetch it: {done.stderr.strip()}")
    return done.stdout


IGNORE_FILES = (".gitignore", ".tpustackignore")
_ALWAYS = (".git", ".hg", ".svn", "__pycache__", ".venv", "venv", ".DS_Store", "node_modules")
MOST_BYTES = 200 << 20
_MOST_FILES = 20_000
_SHOWN = 10


@dataclass(frozen=True)
class Archive:
    """What a job brings along.

    Attributes:
        file: its content, from the beginning.
        size: in bytes.
        sha256: its digest: the same files always give the same.
        names: the files in it.
    """

    file: IO[bytes]
    size: int
    sha256: str
    names: frozenset[str]


def pack(folder: Path, most_bytes: int = MOST_BYTES) -> Archive:
    """Pack a folder as .tar.gz.

    Raises:
        UsageError: with everything that is wrong with it, at once.
    """
    if not folder.is_dir():
        why = "is no folder" if folder.exists() else "does not exist"
        raise UsageError(f"--dir: {folder} {why}. Give the folder with the job's files")
    paths = list(_files(folder, folder, []))
    problems = list(_problems(folder, paths, most_bytes))
    if problems:
        left = len(problems) - _SHOWN
        shown = [*problems[:_SHOWN], *([f"and {left} more like these"] if left > 0 else [])]
        raise UsageError("\n".join(f"--dir: {problem}" for problem in shown))
    return _archive(folder, paths)


def _archive_of(file: IO[bytes], names: frozenset[str]) -> Archive:
    """Return a file's content as an archive. Raises OSError."""
    digest = hashlib.sha256()
    file.seek(0)
    while part := file.read(1 << 20):
        digest.update(part)
    size = file.tell()
    file.seek(0)
    return Archive(file, size, digest.hexdigest(), names)


def _files(root: Path, folder: Path, specs: list[tuple[Path, GitIgnoreSpec]]) -> Iterator[Path]:
    """Yield files and links below a folder, but for what is ignored, in order."""
    specs = [*specs, *_read_ignored(folder)]
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if path.name in _ALWAYS or _is_ignored(path, specs, is_folder=is_folder):
            continue
        if is_folder:
            yield from _files(root, path, specs)
        else:
            yield path


def _read_ignored(folder: Path) -> Iterator[tuple[Path, GitIgnoreSpec]]:
    from pathspec import GitIgnoreSpec

    for name in IGNORE_FILES:
        path = folder / name
        if path.is_file():
            lines = path.read_text("utf-8", errors="replace").splitlines()
            yield folder, GitIgnoreSpec.from_lines(lines)


def _is_ignored(path: Path, specs: list[tuple[Path, GitIgnoreSpec]], *, is_folder: bool) -> bool:
    """Return what the last rule says that speaks of a path: a later file goes before."""
    slash = "/" if is_folder else ""
    for folder, spec in reversed(specs):
        found = spec.check_file(f"{path.relative_to(folder).as_posix()}{slash}")
        if found.include is not None:
            return found.include
    return False


def _problems(folder: Path, paths: list[Path], most_bytes: int) -> Iterator[str]:
    size = sum(path.lstat().st_size for path in paths)
    if not paths:
        yield f"{folder} has no files that are not ignored"
    if size > most_bytes or len(paths) > _MOST_FILES:
        yield (
            f"{folder} has {len(paths)} files of {size / (1 << 20):.0f} MiB together, and at most "
            f"{_MOST_FILES} of {most_bytes >> 20} MiB go along. Name what the job does not need in "
            f"{IGNORE_FILES[1]}, and put data into the bucket"
        )
        return
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            yield from _problems_of_link(folder, path, name)
        elif not path.is_file():
            yield f"{name} is neither file nor folder. Name it in {IGNORE_FILES[1]}"
        elif why := why_secret(path):
            yield f"{name} must not go along: {why}. Name it in {IGNORE_FILES[1]}"


def _problems_of_link(folder: Path, path: Path, name: str) -> Iterator[str]:
    target = os.readlink(path)
    inside = folder.resolve()
    if os.path.isabs(target) or not (path.parent / target).resolve().is_relative_to(inside):
        yield f"{name} is a link to {target}, outside of the folder. Name it in {IGNORE_FILES[1]}"


def _archive(folder: Path, paths: list[Path]) -> Archive:
    file = TemporaryFile()  # noqa: SIM115 # It is the result.
    # Neither times nor owners count, or the same files would be uploaded twice.
    with (
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in paths:
            info = tar.gettarinfo(path, path.relative_to(folder).as_posix())
            info.mtime = info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mode = 0o755 if info.mode & 0o100 else 0o644
            if info.isfile() or info.islnk():
                info.type, info.linkname = tarfile.REGTYPE, ""
                info.size = path.stat().st_size
                with path.open("rb") as content:
                    tar.addfile(info, content)
            else:
                tar.addfile(info)
    return _archive_of(file, frozenset(path.relative_to(folder).as_posix() for path in paths))


# Names and contents of files with keys, tokens or passwords, which must not leave this machine.
_NAMES = (
    *(".env", ".env.*", ".netrc", "_netrc", ".pgpass", ".pypirc", ".npmrc", ".git-credentials"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks"),
    *("*.keystore", "*.kdbx", "*.ppk", "gha-creds-*.json", "application_default_credentials.json"),
    *("client_secret*.json", "kubeconfig", "credentials.tfrc.json"),
)
_EXAMPLES = (".env.example", ".env.sample", ".env.template")
# The forms that the givers of tokens document, or that gitleaks knows.
_PATTERNS: Mapping[str, re.Pattern[bytes]] = {
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "a key of a Google service account": re.compile(rb'"private_key_id"\s*:\s*"[0-9a-f]{40}"'),
    "a Google API key": re.compile(rb"\bAIza[0-9A-Za-z_-]{35}\b"),
    "a Google OAuth token": re.compile(rb"\b(?:ya29\.[0-9A-Za-z_-]{30,}|1//[0-9A-Za-z_-]{40,})"),
    "an AWS access key": re.compile(rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": re.compile(rb"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_\w{60,})"),
    "a GitLab token": re.compile(rb"\bglpat-[0-9A-Za-z_-]{20,}"),
    "a Hugging Face token": re.compile(rb"\bhf_[0-9A-Za-z]{34}\b"),
    "a Slack token": re.compile(rb"\bxox[abposr]-[0-9A-Za-z-]{10,}"),
    "a Weights & Biases or PyPI token": re.compile(rb"\b(?:pypi-AgEI|wandb_v1_)[0-9A-Za-z_-]{20,}"),
}
_LONGEST = 1 << 20


def why_secret(path: Path) -> str | None:
    """Return why a file must not be uploaded; None if it may be."""
    name = path.name.lower()
    if name not in _EXAMPLES and any(fnmatchcase(name, pattern) for pattern in _NAMES):
        return "its name is that of a file with keys"
    try:
        with path.open("rb") as file:
            return secret_in(file.read(_LONGEST))
    except OSError as error:
        return f"it can't be read ({error.strerror})"


def secret_in(text: bytes) -> str | None:
    """Return what secret a text holds; None if none is known."""
    for what, pattern in _PATTERNS.items():
        if pattern.search(text):
            return f"it holds {what}"
    return None
