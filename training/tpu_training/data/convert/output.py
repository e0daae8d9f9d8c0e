"""The folder that a conversion writes to: new or empty before, and without traces of a failure."""

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tpu_training.data.manifest import FILE_NAME
from tpu_training.errors import InputError

_CURE = "give a new folder, or remove this one"


def refuse_used(directory: Path) -> None:
    """Raise InputError if `directory` holds something: a second set would mix with the first."""
    if not directory.is_dir():
        return
    names = sorted(path.name for path in directory.iterdir() if not path.name.startswith("."))
    if FILE_NAME in names:
        what = f"holds {_data_set(directory / FILE_NAME)} already"
    elif names:
        what = f"is not empty ({', '.join(names[:3])}{', …' if len(names) > 3 else ''})"
    else:
        return
    raise InputError(f"--output={directory}: {what}; {_CURE}")


@contextmanager
def new_folder(directory: Path) -> Iterator[None]:
    """Create `directory` with missing parents; after an error remove what was made in it, and it.

    Raises:
        InputError: It can't be created or written.
    """
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    found = set(directory.iterdir()) if directory.is_dir() else set()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for path in set(directory.iterdir()) - found if directory.is_dir() else ():
            path.unlink(missing_ok=True)
        for path in missing:
            with suppress(OSError):
                path.rmdir()
        if isinstance(error, OSError):
            raise InputError(f"--output={directory}: can't be written ({error})") from error
        raise


def _data_set(manifest: Path) -> str:
    with suppress(OSError, ValueError, LookupError, TypeError):
        return f"the data set {json.loads(manifest.read_text(encoding='utf-8'))['name']}"
    return "a data set"
