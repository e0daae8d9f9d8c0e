"""The recipes: each is what the package understands, has a page, and what is quick is run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.unit.training import pages
from tpu_training.models.params import build_params
from tpu_training.models.registry import load_model
from tpu_training.tasks import with_task

ROOT = Path(__file__).parents[3]
RECIPES = ROOT / "training" / "recipes"
NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_has_parameters_that_its_model_knows_and_a_page_that_names_it(name: str) -> None:
    config = yaml.safe_load((RECIPES / f"{name}.yaml").read_text(encoding="utf-8"))
    model = with_task(load_model(config.pop("model", "mnist_cnn")), config.pop("task", None))
    assert build_params(config, (), (), model.params)
    page = (RECIPES / f"{name}.md").read_text(encoding="utf-8")
    assert f"--config training/recipes/{name}.yaml" in page
    assert f"]({name}.md)" in (RECIPES / "README.md").read_text(encoding="utf-8")
    assert f"](../training/recipes/{name}.md)" in pages.text("own-model")


def test_the_encoder_learns_what_only_the_order_of_the_words_tells(reviews: Path) -> None:
    metrics = json.loads((reviews / "results" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test_accuracy"] > 0.99


def test_a_model_of_ones_own_is_one_file_as_its_page_shows_it(
    run_page: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    page = pages.section("models", "Write a model on tf.Module")
    code = pages.programs("models")["wide.py"]
    (tmp_path / "wide.py").write_text(code, encoding="utf-8")
    (tmp_path / "page.md").write_text(page.replace(code, ""), encoding="utf-8")
    run_page(tmp_path / "page.md", tmp_path)
    metrics = json.loads((tmp_path / "results" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["model"] == "wide.py"
    assert metrics["test_accuracy"] >= 0.95
