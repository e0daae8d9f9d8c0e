"""Each command of docs/data.md does what the page shows."""

from __future__ import annotations

import io
import json
import re
import shlex
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from tests.unit.training import pages
from tpu_training.__main__ import main, parse
from tpu_training.data.manifest import parse_manifest
from tpu_training.models.params import Params, build_params

pytestmark = pytest.mark.training

PAGE = pages.text("data")
COMMANDS = re.findall(r"^    tpu-training (data .+)$", PAGE, re.M)
# What test_sources.py, test_more_sources.py and test_bucket_data.py have.
ELSEWHERE = (
    "colors/1.0.0",
    "rows.parquet",
    "tfds:mnist",
    "hf:OWNER/NAME",
    "gs://BUCKET/data/photos",
)


def write_images(folder: Path) -> None:
    for name in ("one", "two"):
        (folder / name).mkdir(parents=True)
        for number in range(5):
            image = tf.fill((12, 12, 3), tf.constant(20 * number, tf.uint8))
            (folder / name / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())


def write_sources_of_other_targets(folder: Path) -> None:
    (folder / "prices.csv").write_text("text,price,year\n" + "a cup,1.5,1998\na pot,20,2001\n" * 10)
    (folder / "films.csv").write_text("text,funny,sad\n" + "ha,1,0\noh,0,1\n" * 10)
    (folder / "play.txt").write_text("to be or not to be\n" * 20)
    for part in ("images", "masks"):
        (folder / "lakes" / part).mkdir(parents=True)
        for number in range(10):
            image = tf.fill((4, 4, 3 if part == "images" else 1), tf.constant(number, tf.uint8))
            (folder / "lakes" / part / f"{number}.png").write_bytes(tf.io.encode_png(image).numpy())


def write_shards(folder: Path) -> None:
    folder.mkdir()
    with tarfile.open(folder / "0000.tar", "w") as archive:
        for number in range(10):
            png = tf.io.encode_png(tf.fill((4, 4, 3), tf.constant(number, tf.uint8))).numpy()
            for name, content in ((f"{number}.png", png), (f"{number}.cls", b"%d" % (number % 2))):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


@pytest.mark.usefixtures("cluster")
def test_the_commands_run_in_the_order_of_the_page(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    write_mnist: Callable[..., None],
) -> None:
    pytest.importorskip("datasets", reason="an optional library")
    monkeypatch.chdir(tmp_path)
    write_mnist(tmp_path / "mnist")
    write_images(tmp_path / "photos")
    write_images(tmp_path / "icons" / "train")
    write_images(tmp_path / "icons" / "test")
    (tmp_path / "pixels.csv").write_text("label,a,b,c,d\n" + "0,1,2,3,4\n1,5,6,7,8\n" * 10)
    (tmp_path / "reviews.csv").write_text("text,stars\n" + "so so,1\nfine,2\n" * 10)
    write_sources_of_other_targets(tmp_path)
    write_shards(tmp_path / "shards")
    (tmp_path / "squares.py").write_text(pages.programs("data")["squares.py"])
    assert len(COMMANDS) == 19
    for command in COMMANDS:
        arguments = shlex.split(command)
        if any(word in arguments for word in ELSEWHERE):
            parse(arguments)
            continue
        capsys.readouterr()
        assert main(arguments) == 0, capsys.readouterr().err
        if "convert" in arguments:
            written = tmp_path / arguments[arguments.index("--output") + 1] / "manifest.json"
            assert parse_manifest(written.read_text(), command).split("test").examples > 0
        if "--json" in arguments:
            assert json.loads(capsys.readouterr().out)["checksums"] == "verified"


def test_the_parameters_of_the_page_exist() -> None:
    rows = re.findall(r"^\| `--(\w+)=(\S*?)` \| (.*)\|$", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for name, value, text in rows:
        assert hasattr(Params(), name)
        values = [value] if value else re.findall(r"`(\w+)`", text)
        for given in values:
            build_params({}, [(name, given.replace("=N", "=1") if given != "N" else "1")])
