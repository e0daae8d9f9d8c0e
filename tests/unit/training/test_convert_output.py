"""What `data convert` leaves in the folder that it writes to, and what it says."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from tpu_training.__main__ import main
from tpu_training.data.conversion import convert
from tpu_training.errors import InputError, translate

pytestmark = [pytest.mark.training, pytest.mark.usefixtures("cluster")]
NEEDS_DATASETS = pytest.mark.skipif(find_spec("datasets") is None, reason="an optional library")


def reviews(folder: Path) -> str:
    path = folder / "reviews.csv"
    path.write_text("label,text\n" + "0,so so\n1,fine\n" * 10)
    return str(path)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@NEEDS_DATASETS
def test_a_used_output_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    convert("digits", str(out))
    before = {path: path.stat().st_mtime_ns for path in out.iterdir()}
    with pytest.raises(InputError) as caught:
        convert(reviews(tmp_path), str(out))
    assert str(caught.value).startswith(f"--output={out}: is not empty (digits-test-00000-of-0")
    assert str(caught.value).endswith("manifest.json); choose a new folder, or remove this one")
    assert {path: path.stat().st_mtime_ns for path in out.iterdir()} == before
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("")
    with pytest.raises(InputError, match=r"notes: is not empty \(mine\.txt\); choose a new folder"):
        convert(reviews(tmp_path), str(tmp_path / "notes"))


def test_a_folder_is_refused_before_the_source_is_read(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match=r"is not empty \(manifest\.json\)"):
        convert(str(tmp_path / "nowhere.csv"), str(tmp_path))


@NEEDS_DATASETS
def test_a_failed_conversion_removes_the_folders_it_created(
    tmp_path: Path,
) -> None:
    (tmp_path / "photos" / "red").mkdir(parents=True)
    for number in range(10):
        content = b"\xff\xd8\xff no picture"
        (tmp_path / "photos" / "red" / f"{number}.jpg").write_bytes(content)
    (tmp_path / "empty").mkdir()
    for output in ("new/below/it", "empty"):
        with pytest.raises(InputError, match="can't be decoded"):
            convert(str(tmp_path / "photos"), str(tmp_path / output))
    assert names(tmp_path) == ["empty", "photos"]
    assert names(tmp_path / "empty") == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_is_reported_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    writer = tf.io.TFRecordWriter
    monkeypatch.setattr(tf.io, "TFRecordWriter", lambda _: writer("/dev/full"))
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        convert("digits", str(tmp_path / "out"))
    assert str(translate(caught.value)).startswith("the disk is full")
    assert names(tmp_path) == []


@NEEDS_DATASETS
def test_the_first_huge_image_logs_a_warning_with_its_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="an optional library")
    folder = tmp_path / "photos" / "sky"
    folder.mkdir(parents=True)
    for number, width in enumerate((64, 64, 64, 64, 9000, 9000)):
        pillow.fromarray(np.zeros((40, width), np.uint8)).save(folder / f"{number}.png")
    convert(str(tmp_path / "photos"), str(tmp_path / "out"))
    (line,) = [line for line in caplog.messages if "pixels" in line]
    assert line.startswith(f"data: {folder}/")
    assert line.endswith(
        ".png has 9000x40 pixels; every epoch decodes images wider or higher than 4096 at full "
        "size; scale them down first"
    )


@NEEDS_DATASETS
def test_convert_prints_the_data_set_and_output_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "convert", f"--source={reviews(tmp_path)}", f"--output={tmp_path}/o"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"data convert finished data=reviews output={tmp_path}/o"
