"""Read a data set's manifest without TensorFlow, where that is possible."""

from pathlib import Path

from tpu_training.data.manifest import FILE_NAME, Manifest, parse_manifest
from tpu_training.errors import DataError


def read_manifest(directory: str) -> Manifest:
    """Return the manifest of the data set in `directory`; its files need not be there.

    Loads TensorFlow for a gs:// URL only.

    Raises:
        DataError: There is none, or it is damaged.
    """
    path = f"{directory.rstrip('/')}/{FILE_NAME}"
    if directory.startswith("gs://"):
        from tpu_training.data import files

        text = files.read_text(path)
    else:
        local = Path(path)
        text = local.read_text(encoding="utf-8") if local.is_file() else None
    if text is None:
        raise DataError(
            f"--data={directory}: contains no {FILE_NAME}; write the data set with `tpu-training "
            "data convert`, or describe the data with --shape and --classes"
        )
    return parse_manifest(text, path)
