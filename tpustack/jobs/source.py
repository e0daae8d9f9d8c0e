"""What a job brings along: a folder or a wheel, as an archive in the bucket.

A folder is packed without what its ignore files name. Secrets are refused, since all who may read
the bucket would have them, and so are links out of the folder, which break on another machine.
"""

import gzip
import hashlib
import os
import re
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

from tpu_agent.jobs.queue import Queue
from tpu_core import bucket, paths
from tpustack.errors import UsageError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

    _Specs = list[tuple[Path, GitIgnoreSpec]]

IGNORE_FILES = (".gitignore", ".tpustackignore")
# Never goes along, whatever ignore files say: it is made again there, or is of no use there.
_ALWAYS = (".git", ".hg", ".svn", "__pycache__", ".venv", "venv", ".DS_Store", "node_modules")
# What belongs to a program; data belongs into the bucket, where each attempt finds it.
MOST_BYTES = 200 << 20
_MOST_FILES = 20_000
# Problems that are named: the first ones show which line of an ignore file is missing.
_SHOWN = 10
# https://packaging.python.org/en/latest/specifications/binary-distribution-format/
_WHEEL = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.!+]+(-\d\w*)?-\w[\w.]*-\w[\w.]*-\w[\w.]*\.whl")


@dataclass(frozen=True)
class Archive:
    """What a job brings along.

    Attributes:
        file: its content, from the beginning.
        size: in bytes.
        sha256: its digest, by which the bucket has it: the same files are uploaded once.
        names: the files in it.
    """

    file: IO[bytes]
    size: int
    sha256: str
    names: frozenset[str]


@dataclass(frozen=True)
class Source:
    """An archive, its kind as the job's record names it, and where it came from, for people."""

    kind: str = "none"
    archive: Archive | None = None
    origin: str = ""


def source_of(folder: Path | None, wheel: Path | None) -> Source:
    """Return what one of the arguments means; nothing without any. Raises UsageError."""
    if folder is not None and wheel is not None:
        raise UsageError("--dir and --wheel exclude each other: a job has one source")
    if folder is not None:
        return Source("folder", pack(folder), str(folder.resolve()))
    return Source("wheel", _wheel(wheel), wheel.name) if wheel is not None else Source()


def upload(queue: Queue, archive: Archive) -> None:
    """Upload an archive unless the bucket has it. Raises GoogleError."""
    path = paths.archive(archive.sha256)
    if queue.store.look(path) is not None:
        return
    try:
        # Generation 0: only where there is none. One that is there is equal, and in use.
        queue.store.upload(path, archive.file, archive.size, generation=0)
    except bucket.Conflict:
        return  # Another command has just uploaded the same.


def _wheel(path: Path) -> Archive:
    # pip takes tags from the name and nothing else, so a wheel keeps its own.
    if not _WHEEL.fullmatch(path.name) or not zipfile.is_zipfile(path):
        why = "is not a wheel" if path.exists() else "does not exist"
        raise UsageError(f"--wheel: {path} {why}. `python -m build --wheel` makes one")
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"--wheel: {path} has more than {MOST_BYTES >> 20} MiB")
    return archive_of(path.open("rb"), path.name)


def archive_of(file: IO[bytes], *names: str) -> Archive:
    """Return the content of a file, which has files of these names in it. Raises OSError."""
    digest = hashlib.sha256()
    file.seek(0)
    # In parts: an archive may be larger than what this computer has free.
    while part := file.read(1 << 20):
        digest.update(part)
    size = file.tell()
    file.seek(0)
    return Archive(file, size, digest.hexdigest(), frozenset(names))


def pack(folder: Path, most_bytes: int = MOST_BYTES) -> Archive:
    """Pack a folder as .tar.gz. Raises UsageError with everything that is wrong with it."""
    if not folder.is_dir():
        why = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"--dir: {folder} {why}. Give the folder with the job's files")
    files = list(_files(folder, []))
    if problems := [f"--dir: {problem}" for problem in _problems(folder, files, most_bytes)]:
        if (left := len(problems) - _SHOWN) > 0:
            problems[_SHOWN:] = [f"--dir: and {left} more like these"]
        raise UsageError("\n".join(problems))
    return _packed(folder, files)


def _packed(folder: Path, files: list[Path]) -> Archive:
    names = [path.relative_to(folder).as_posix() for path in files]
    file = TemporaryFile()  # noqa: SIM115 # It is the result.
    # Neither times nor owners count, or the same files would be uploaded twice.
    with (
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path, name in zip(files, names, strict=True):
            info = tar.gettarinfo(path, name)
            info.mtime = info.uid = info.gid = 0
            info.uname = info.gname = ""
            # Whether it may be run is a part of a file; the rest follows from the umask.
            info.mode = 0o755 if info.mode & 0o100 else 0o644
            if info.issym():
                tar.addfile(info)
                continue
            # tarfile makes the second name of a file a link to the first: then their order counts.
            info.type, info.linkname, info.size = tarfile.REGTYPE, "", path.stat().st_size
            with path.open("rb") as content:
                tar.addfile(info, content)
    return archive_of(file, *names)


def _files(folder: Path, specs: "_Specs") -> Iterator[Path]:
    """Yield files and links below a folder, but for what is ignored, in order.

    Args:
        folder: where to look.
        specs: the rules of the folders above it, the outermost first, each with its folder.
    """
    from pathspec import GitIgnoreSpec

    for name in IGNORE_FILES:
        if (rules := folder / name).is_file():
            lines = rules.read_text("utf-8", errors="replace").splitlines()
            specs = [*specs, (folder, GitIgnoreSpec.from_lines(lines))]
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if path.name in _ALWAYS or _is_ignored(path, specs, is_folder=is_folder):
            continue
        if is_folder:
            yield from _files(path, specs)
        else:
            yield path


def _is_ignored(path: Path, specs: "_Specs", *, is_folder: bool) -> bool:
    """Return what the last matching rule says: as in git, files further down override others."""
    slash = "/" if is_folder else ""
    for folder, spec in reversed(specs):
        found = spec.check_file(f"{path.relative_to(folder).as_posix()}{slash}")
        if found.include is not None:
            return found.include
    return False


def _problems(folder: Path, files: list[Path], most_bytes: int) -> Iterator[str]:
    size = sum(path.lstat().st_size for path in files)
    if not files:
        yield f"{folder} has no files that are not ignored"
    if size > most_bytes or len(files) > _MOST_FILES:
        yield (
            f"{folder} has {len(files)} files of {size / (1 << 20):.0f} MiB together, and at most "
            f"{_MOST_FILES} of {most_bytes >> 20} MiB go along. Name what the job does not need in "
            f"{IGNORE_FILES[1]}, and put data into the bucket"
        )
        return  # Reading them all for secrets would take a while.
    inside, cure = folder.resolve(), f"Name it in {IGNORE_FILES[1]}"
    for path in files:
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            target = os.readlink(path)
            if os.path.isabs(target) or not (path.parent / target).resolve().is_relative_to(inside):
                yield f"{name} is a link to {target}, outside of the folder. {cure}"
        elif not path.is_file():
            yield f"{name} is neither file nor folder. {cure}"
        elif why := why_secret(path):
            yield f"{name} must not go along: {why}. {cure}"


# Names and contents of files with keys, tokens or passwords. Most leaks are by accident, and these
# forms find those; who wants to send a secret can encode it.
_NAMES = (
    *(".env", ".env.*", ".netrc", "_netrc", ".pgpass", ".pypirc", ".npmrc", ".git-credentials"),
    *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks"),
    *("*.keystore", "*.kdbx", "*.ppk", "gha-creds-*.json", "application_default_credentials.json"),
    *("client_secret*.json", "kubeconfig", "credentials.tfrc.json"),
)
# Named like files with secrets, and committed on purpose.
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
# Bytes of a file that are searched: keys are short files, and large ones are data.
_LONGEST = 1 << 20


def why_secret(path: Path) -> str | None:
    """Return why a file must not be uploaded; None if it may be."""
    name = path.name.lower()
    if name not in _EXAMPLES and any(fnmatchcase(name, pattern) for pattern in _NAMES):
        return "its name is that of a file with keys"
    # An example's content is searched all the same: people do fill them in.
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
