"""Hold a model directory on this machine's disks by a lock, which ends with its process."""

import errno
import fcntl
import logging
import os
from contextlib import suppress

from tpu_training.checkpoints.lease.holder import Holder, given_back, parse_holder
from tpu_training.errors import LeaseError

_FILE_NAME = "lease.json"
# Some network file systems have no locks.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)

logger = logging.getLogger(__name__)


class LocalLease:
    """The right to write a model directory, which one process has at a time."""

    def __init__(self, directory: str, me: Holder) -> None:
        """Hold `directory` as `me`."""
        self._directory, self._me = directory, me
        self._path = os.path.join(directory, _FILE_NAME)
        self._file = -1

    def acquire(self) -> None:
        """Lock the directory.

        Raises:
            LeaseError: Another process trains there.
        """
        os.makedirs(self._directory, exist_ok=True)
        while self._file < 0:
            self._file = self._lock()
        os.truncate(self._file, 0)
        os.write(self._file, self._me.to_json().encode())

    def confirm(self) -> None:
        """Raise LeaseError if the lock was given back; before that no other process gets it."""
        if self._file < 0:
            raise LeaseError(given_back(self._directory))

    check = confirm

    def release(self) -> None:
        """Remove the file while it is locked, then the lock."""
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        os.close(self._file)
        self._file = -1

    def _lock(self) -> int:
        """Return the locked file; -1 if its last holder removed it meanwhile."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = parse_holder(os.read(file, 4096).decode(errors="replace"))
            if error.errno in _NO_LOCKS:
                logger.warning(
                    "lease: the file system of %s has no locks: take care that no other job "
                    "trains there",
                    self._directory,
                )
                return file
            os.close(file)
            who = holder.describe() if holder else "another process"
            raise LeaseError(
                f"--model-dir={self._directory}: {who} trains there; let it finish or stop it "
                "first, or give another --model-dir"
            ) from error
        if _is_same(file, self._path):
            return file
        os.close(file)
        return -1


def _is_same(file: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(file), os.stat(path))
    except FileNotFoundError:
        return False
