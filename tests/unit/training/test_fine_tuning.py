"""LoRA and KerasHub's presets: `fit` takes such models as Keras makes them.

KerasHub needs another TensorFlow than the locked one, so its tests (some are in
test_public_weights.py) are left out here. They run in an environment of their own, with
PYTHONPATH=core:training, after
`pip install keras-hub safetensors google-auth pyyaml requests pytest pytest-xdist hypothesis`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

import tpu_training
from tests.unit.training.test_own_step import KERAS, on
from tpu_training import Callback, LoopReport

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

RANDOM = np.random.default_rng(6)
TABLE = RANDOM.normal(size=(48, 8)).astype(np.float32)
CLASSES = TABLE[:, :3].argmax(axis=1)
SIZES: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.02, "epochs": 2}


class Stop(Callback):
    """Ends the training after its first loop."""

    def between_loops(self, step: int, report: LoopReport) -> None:
        self.control.stop()


def named(result: tpu_training.Result) -> dict[str, Any]:
    return {each.name: each.numpy() for each in result.model.variables}


@KERAS
def test_lora_trains_its_adapters_from_other_weights_and_resumes_bit_for_bit(
    one_device: Cluster, tmp_path: Path
) -> None:
    def create_model(params: Any, spec: Any, seed: int) -> Any:
        import keras

        body = keras.layers.Dense(16, activation="relu", name="body")
        model = keras.Sequential([keras.Input((8,)), body, keras.layers.Dense(3, name="top")])
        if adapts:
            body.enable_lora(2)
        return model

    given = {"model": create_model, "data": (TABLE, CLASSES), **SIZES}
    adapts = False
    base = on(one_device, model_dir=f"{tmp_path}/base", **given)
    adapts, given["init_from"] = True, base.model_dir
    whole = on(one_device, model_dir=f"{tmp_path}/whole", **given)
    on(one_device, model_dir=f"{tmp_path}/halves", callbacks=[Stop()], **given)
    second = on(one_device, model_dir=f"{tmp_path}/halves", **given)
    before, after = named(base), named(whole)
    kernel = next(name for name in before if name.endswith("body/kernel:0"))
    (moved,) = (after[name] for name in after if name.endswith("body/kernel:0"))
    np.testing.assert_array_equal(moved, before[kernel])
    assert next(after[name] for name in after if "lora_kernel_b" in name).any()
    for mine, other in zip(named(second).values(), after.values(), strict=True):
        np.testing.assert_array_equal(mine, other)


@KERAS
@pytest.mark.parametrize("decay", [0.0, 0.9])
def test_checkpoints_of_the_adapters_alone_resume_and_load_on_their_own_base_only(
    one_device: Cluster, tmp_path: Path, decay: float
) -> None:
    def create_model(params: Any, spec: Any, seed: int) -> Any:
        import keras

        norm = keras.layers.BatchNormalization(name="norm")
        body = keras.layers.Dense(64, kernel_initializer=start, name="body")
        top = keras.layers.Dense(3, name="top")
        model = keras.Sequential([keras.Input((8,)), norm, body, top])
        body.enable_lora(1)
        return model

    start = "glorot_uniform"
    given = {"model": create_model, "data": (TABLE, CLASSES), **SIZES, "ema_decay": decay}
    whole = on(one_device, model_dir=f"{tmp_path}/whole", **given)
    given["checkpoint_weights"] = "trained"
    on(one_device, model_dir=f"{tmp_path}/halves", callbacks=[Stop()], **given)
    second = on(one_device, model_dir=f"{tmp_path}/halves", **given)
    for mine, other in zip(named(second).values(), named(whole).values(), strict=True):
        np.testing.assert_array_equal(mine, other)
    loaded = tpu_training.load(f"{tmp_path}/halves", model=create_model)
    told = loaded.predict(TABLE)["probabilities"]
    np.testing.assert_allclose(told, whole.predict(TABLE)["probabilities"], rtol=1e-5)
    path = tf.train.latest_checkpoint(f"{tmp_path}/halves/checkpoints")
    names = [name for name, _ in tf.train.list_variables(path)]
    kept = [name for name in names if "body" in name and "/kernel" in name]
    assert not kept
    assert [name for name in names if "moving_mean" in name]
    start = "zeros"
    for resume in (
        lambda: on(one_device, model_dir=f"{tmp_path}/halves", **{**given, "epochs": 9}),
        lambda: tpu_training.load(f"{tmp_path}/halves", model=create_model),
    ):
        with pytest.raises(tpu_training.TrainingError, match="was trained with other frozen ones"):
            resume()
    given["checkpoint_weights"] = "all"
    with pytest.raises(tpu_training.TrainingError, match="checkpoint_weights=trained"):
        on(one_device, model_dir=f"{tmp_path}/halves", **given)


def test_a_preset_in_a_bucket_is_read_from_a_copy_that_is_made_once(tmp_path: Path) -> None:
    for name, text in {"config.json": "{}", "assets/tokenizer/vocabulary.txt": "a b"}.items():
        tf.io.gfile.makedirs(f"ram://bucket/preset/{name}".rpartition("/")[0])
        with tf.io.gfile.GFile(f"ram://bucket/preset/{name}", "w") as file:
            file.write(text)
    copy = Path(tpu_training.local_copy("ram://bucket/preset"))
    assert (copy / "config.json").read_text() == "{}"
    assert (copy / "assets" / "tokenizer" / "vocabulary.txt").read_text() == "a b"
    assert tpu_training.local_copy("ram://bucket/preset") == str(copy)
    assert tpu_training.local_copy(str(tmp_path)) == str(tmp_path)
    with pytest.raises(tpu_training.InputError, match="there is no folder ram://bucket/none"):
        tpu_training.local_copy("ram://bucket/none")


@KERAS
def test_a_preset_of_kerashub_answers_as_it_does_and_learns(
    one_device: Cluster, tmp_path: Path
) -> None:
    hub = pytest.importorskip("keras_hub")
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
    made = hub.models.BertBackbone(vocabulary_size=64, max_sequence_length=16, **sizes)
    made.save_to_preset(str(tmp_path / "preset"))

    def create_model(params: Any, spec: Any, seed: int) -> Any:
        model = hub.models.BertTextClassifier.from_preset(
            str(tmp_path / "preset"), num_classes=2, preprocessor=None
        )
        model.backbone.enable_lora(4)
        return model

    ids = RANDOM.integers(1, 64, (48, 16)).astype(np.int32)
    mask = np.ones_like(ids)
    texts = {"token_ids": ids, "padding_mask": mask, "segment_ids": np.zeros_like(ids)}
    result = on(
        one_device,
        model=create_model,
        data=(texts, (ids[:, 0] > 32).astype(np.int64)),
        model_dir=str(tmp_path / "results"),
        **SIZES,
    )
    said = result.predict(texts)["probabilities"]
    logits = result.model.keras()(texts, training=False).numpy()
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(said, shares, atol=1e-5)
    # With the weights of the preset under the adapters, which start as nothing.
    fresh = create_model(None, None, 0).backbone(texts)["pooled_output"].numpy()
    np.testing.assert_allclose(fresh, made(texts)["pooled_output"].numpy(), atol=1e-5)
    kept = {each.path: each.numpy() for each in made.variables if "query/kernel" in each.path}
    left = [each for each in result.model.variables if each.name.endswith("query/kernel:0")]
    for mine, other in zip(left, kept.values(), strict=True):
        np.testing.assert_array_equal(mine.numpy(), other)


SMALL = {"num_layers": 2, "hidden_dim": 16}
WORDS = {"vocabulary_size": 64, "intermediate_dim": 32, **SMALL}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("CausalLM", {**WORDS, "num_heads": 2, "max_sequence_length": 16}),
    "Gemma": ("CausalLM", {**WORDS, "num_query_heads": 2, "num_key_value_heads": 1, "head_dim": 8}),
    "ViT": (
        "ImageClassifier",
        {**SMALL, "image_shape": (8, 8, 3), "patch_size": 4, "num_heads": 2, "mlp_dim": 32},
    ),
}


@KERAS
@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_kerashub_train_and_answer_as_the_library_does(
    one_device: Cluster, tmp_path: Path, family: str
) -> None:
    hub = pytest.importorskip("keras_hub")
    task, sizes = FAMILIES[family]
    made = getattr(hub.models, f"{family}Backbone")(**sizes)
    made.save_to_preset(str(tmp_path / "preset"))
    reads = task == "CausalLM"
    options: dict[str, Any] = {} if reads else {"num_classes": 2}

    def library() -> Any:
        kind = getattr(hub.models, family + task)
        return kind.from_preset(str(tmp_path / "preset"), preprocessor=None, **options)

    def create_model(params: Any, spec: Any, seed: int) -> Any:
        import keras

        if not reads:
            return library()
        ids = keras.Input(spec.shape, dtype="int32")
        mask = keras.ops.not_equal(ids, spec.padding)
        return keras.Model(ids, library()({"token_ids": ids, "padding_mask": mask}))

    ids = RANDOM.integers(1, 64, (48, 9)).astype(np.int32)
    images = RANDOM.random((48, 8, 8, 3), np.float32)
    data = (ids, None) if reads else (images, (images.mean(axis=(1, 2, 3)) > 0.5).astype(np.int64))
    # So low that the weights stay those of the preset, to compare.
    given = {**SIZES, "learning_rate": 1e-9, **({"task": "causal_lm"} if reads else {})}
    result = on(one_device, model=create_model, data=data, model_dir=f"{tmp_path}/r", **given)
    assert result.metrics["steps"] > 0
    if reads:
        texts = {"token_ids": ids[:, :-1], "padding_mask": np.ones_like(ids[:, :-1])}
        expected, answer = library()(texts), result.model.keras()(ids[:, :-1])
    else:
        expected, answer = made(images), result.model.keras().backbone(images)
    np.testing.assert_allclose(answer, expected, atol=1e-5)
