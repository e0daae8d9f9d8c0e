"""Releases of TensorFlow that the start-up scripts can install, and the Python of the images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from infra.catalog.model import Release, Source
from infra.catalog.tables import read

VM_PACKAGE = "tensorflow-cpu"
TPU_PACKAGE = "tensorflow-tpu"


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, by which versions are ordered."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


class Packages:
    """The list in one file."""

    def __init__(self, path: Path) -> None:
        document = read(path)
        sources = {
            key: Source(entry["url"], entry["date"]) for key, entry in document["sources"].items()
        }
        wheels: str = document["wheels"]["url"]
        self._releases: Mapping[str, Mapping[str, Release]] = {
            package: {
                version: Release(
                    version,
                    tuple(entry["pythons"]),
                    wheels if entry.get("libtpu") == "list" else None,
                    sources[entry["source"]],
                    entry.get("broken"),
                )
                for entry in entries
                for version in entry["versions"]
            }
            for package, entries in document["packages"].items()
        }
        self._images: Mapping[str, str] = {
            image: entry["python"] for image, entry in document["images"].items()
        }
        self.oldest_tensorflow: str = document["oldest"]["tensorflow"]
        self.oldest_python: str = document["oldest"]["python"]
        self.sources = tuple(sources.values())

    def releases(self, package: str) -> Mapping[str, Release]:
        """Return the releases of a package by version, newest first."""
        return self._releases[package]

    def runs_with(self, tensorflow: str) -> bool:
        """Return whether the training package runs with a version of TensorFlow."""
        return numbers(tensorflow) >= numbers(self.oldest_tensorflow)

    def image_python(self, image: str) -> str | None:
        """Return the Python of an image of the VM; None if it is not known."""
        return self._images.get(image)
