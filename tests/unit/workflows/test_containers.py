"""The images and the development container, as far as they can be read: nothing here builds one."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from typing import Any

from tpustack.project import root

DEVELOPMENT: dict[str, Any] = json.loads(
    (root() / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8")
)


def instructions() -> list[tuple[str, str]]:
    text = (root() / "Containerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def of(word: str) -> list[str]:
    return [rest for each, rest in instructions() if each == word]


def test_every_image_is_that_of_the_pipeline_by_its_digest() -> None:
    gitlab = (root() / "ci" / "gitlab.yml").read_text(encoding="utf-8")
    (pinned,) = set(re.findall(r"image: (python:\S+@sha256:[0-9a-f]{64})\n", gitlab))
    stages = [line.split(" AS ") for line in of("FROM")]
    names = [name for _, name in stages]
    assert {image for image, _ in stages} - {*names} == {pinned}
    assert {"tpustack", "localcloud"} <= {*names}
    assert DEVELOPMENT["image"] == pinned


def test_an_image_installs_locked_packages_and_the_wheels_alone() -> None:
    right = r"--require-hashes|--no-deps /tmp/dist/\*\.whl"
    installs = [line for line in of("RUN") if "pip install" in line]
    assert len(installs) == 2
    assert all(re.search(right, each) for each in installs)
    sent = [source for line in of("COPY") for source in shlex.split(line)[:-1]]
    ignored = (root() / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert sorted(ignored) == sorted(["*", *(f"!{source}" for source in sent)])
    assert (root() / "requirements-deploy.txt").is_file()


def test_nothing_runs_as_root() -> None:
    order = [word for word, _ in instructions()]
    assert of("USER") == ["user"]
    assert order.index("USER") < order.index("ENTRYPOINT")


def test_an_image_starts_a_command_of_the_wheels() -> None:
    text = "".join((root() / f / "pyproject.toml").read_text("utf-8") for f in (".", "localcloud"))
    for line in of("ENTRYPOINT"):
        (command,) = json.loads(line)
        assert re.search(rf'^{command} = "[\w.]+:main"$', text, re.MULTILINE), command


def test_the_development_container_is_made_by_targets_of_the_makefile() -> None:
    command = ["make", "--dry-run", "--directory", str(root())]
    wanted = shlex.split(DEVELOPMENT["postCreateCommand"])
    assert wanted[0] == "make"
    assert subprocess.run([*command, *wanted[1:]], capture_output=True, check=False).returncode == 0
