"""A step of one's own: `Task(step=…)` as a researcher writes it, in three examples."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

import tpu_training
from tests.unit.training import pages
from tpu_training import Callback, InputError, LoopReport, Task
from tpu_training.models.step_context import StepContext

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

KERAS = pytest.mark.skipif(
    not hasattr(pytest.importorskip("keras"), "StatelessScope"), reason="own models need Keras 3"
)
RANDOM = np.random.default_rng(8)
ROWS = RANDOM.normal(size=(48, 4)).astype(np.float32)
CLASSES = (ROWS.sum(axis=1) > 0).astype(np.int64)
SIZES: dict[str, Any] = {"global_batch_size": 16, "evaluation_batch_size": 16, "steps_per_loop": 1}

Fit = Callable[..., tpu_training.Result]


def on(devices: Cluster, **arguments: Any) -> tpu_training.Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpu_training.job.run.connect", functools.cache(lambda *_: devices))
        return tpu_training.fit(**SIZES | arguments)


@pytest.fixture
def fit(one_device: Cluster) -> Fit:
    return lambda **arguments: on(one_device, **arguments)


def dense(*parts: str) -> Callable[..., Any]:
    """Return the creator of a module with a matrix for each of its `parts`."""

    def create_model(params: Any, spec: Any, seed: int) -> Any:
        import tensorflow as tf

        class Net(tf.Module):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__()
                for number, name in enumerate(parts):
                    drawn = tf.random.stateless_normal((4, 2), (seed, number))
                    setattr(self, name, tf.Variable(drawn))

            def __call__(self, features: Any, training: bool) -> Any:
                return features @ getattr(self, parts[0])

        return Net()

    return create_model


def contrast(model: Any, batch: Any, context: Any) -> Any:
    """Find the other view of each row among those of all replicas (InfoNCE)."""
    import tensorflow as tf

    views, _ = batch
    left, right = views["left"] @ model.encoder, views["right"] @ model.encoder
    scores = left @ tf.transpose(context.gather(right))
    own = context.replica * len(left) + tf.range(len(left))
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(own, scores)
    found = tf.argmax(scores, axis=1, output_type=tf.int32) == own
    return losses, {"found": found, "rows": context.sum(tf.ones(()) * len(left))}


def test_a_contrastive_loss_over_8_replicas_is_that_of_the_whole_batch(
    cluster: Cluster, one_device: Cluster, tmp_path: Path
) -> None:
    views = {"left": ROWS, "right": ROWS + np.float32(0.1) * ROWS[:, ::-1]}
    task = Task("contrast", step=contrast, any_targets=True)
    eight, one = (
        on(
            devices,
            model=dense("encoder"),
            data=(views, None),
            task=task,
            model_dir=f"{tmp_path}/{devices.replicas}",
            optimizer="sgd",
            epochs=1,
        )
        for devices in (cluster, one_device)
    )
    for mine, theirs in zip(eight.history, one.history, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-5)
        assert mine["rows"] == 16
    np.testing.assert_allclose(eight.model.encoder.numpy(), one.model.encoder.numpy(), rtol=1e-4)
    assert not np.allclose(one.history[0]["loss"], one.history[-1]["loss"], rtol=1e-6)


def test_numbers_without_a_gradient_are_gathered_next_to_others(
    cluster: Cluster, one_device: Cluster, tmp_path: Path
) -> None:
    def step(model: Any, batch: Any, context: Any) -> Any:
        import tensorflow as tf

        left, classes = batch[0] @ model.encoder, batch[1]
        every = context.gather({"left": left, "classes": classes, "yes": classes > 0})
        same = (classes[:, None] == every["classes"]) & every["yes"]
        scores = left @ tf.transpose(every["left"])
        return tf.reduce_mean((scores - tf.cast(same, tf.float32)) ** 2, axis=1), {}

    task = Task("pairs", step=step, any_targets=True)
    given = {"model": dense("encoder"), "data": (ROWS, CLASSES), "task": task, "optimizer": "sgd"}
    eight, one = (
        on(devices, model_dir=f"{tmp_path}/{devices.replicas}", epochs=1, **given)
        for devices in (cluster, one_device)
    )
    for mine, theirs in zip(eight.history, one.history, strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)


def test_the_pages_contrastive_example_learns(
    one_device: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpu_training.job.run.connect", lambda *_: one_device)
    monkeypatch.chdir(tmp_path)
    file, names = tmp_path / "contrast.py", dict[str, Any]()
    file.write_text(pages.programs("models")["contrast.py"])
    exec(compile(file.read_text(), str(file), "exec"), names)
    history = names["result"].history
    assert history[-1]["loss"] < history[0]["loss"]


def distil(model: Any, batch: Any, context: Any) -> Any:
    """Follow the teacher's probabilities (Hinton et al., arXiv:1503.02531)."""
    import tensorflow as tf

    features, targets = batch
    wanted = tf.nn.softmax(features @ model.teacher)
    logits = model(features, training=True)
    losses = tf.nn.softmax_cross_entropy_with_logits(wanted, logits)
    return losses, {"right": tf.argmax(logits, axis=1, output_type=tf.int32) == targets}


def cross_entropy(outputs: Any, targets: Any, params: Any) -> Any:
    import tensorflow as tf

    return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)


def test_a_frozen_teacher_is_followed_and_stays_as_it_is(fit: Fit, tmp_path: Path) -> None:
    def fitted(epochs: int) -> tpu_training.Result:
        return fit(
            model=dense("student", "teacher"),
            data=(ROWS, CLASSES),
            test=(ROWS[:9], CLASSES[:9]),
            task=Task("distil", cross_entropy, step=distil),
            model_dir=f"{tmp_path}/{epochs}",
            freeze="teacher",
            epochs=epochs,
            learning_rate=0.1,
        )

    short, long = fitted(1), fitted(15)
    np.testing.assert_array_equal(short.model.teacher.numpy(), long.model.teacher.numpy())
    said, wanted = (ROWS @ part.numpy() for part in (long.model.student, long.model.teacher))
    assert np.mean(said.argmax(axis=1) == wanted.argmax(axis=1)) > 0.9
    assert set(long.history[0]) == {"step", "loss", "learning_rate", "right"}
    assert long.metrics["test_examples"] == 9


def compete(model: Any, batch: Any, context: Any) -> Any:
    """Train a generator against a discriminator (Goodfellow et al., arXiv:1406.2661)."""
    import tensorflow as tf

    real, _ = batch
    noise = tf.random.stateless_normal((len(real), 4), context.next_seed())
    made = noise @ tf.tile(model.generator, (1, 2))
    on_real, on_made = (tf.reduce_sum(each @ model.critic, axis=1) for each in (real, made))
    fooled = tf.nn.softplus(-on_made)
    told = tf.nn.softplus(-on_real) + tf.nn.softplus(on_made)
    return {"generator": fooled, "critic": told}, {"fooled": on_made > 0}


GAN = Task(
    "gan",
    step=compete,
    any_targets=True,
    optimizers={"generator": {"optimizer": "sgd"}, "critic": {"learning_rate": 0.05}},
)


class Fail(Callback):
    def between_loops(self, step: int, report: LoopReport) -> None:
        if step == 5:
            raise InterruptedError


def test_a_gan_resumes_exactly_with_the_state_of_both_optimizers(fit: Fit, tmp_path: Path) -> None:
    import tensorflow as tf

    given = {"model": dense("generator", "critic"), "data": (ROWS, None), "task": GAN, "epochs": 3}
    whole = fit(**given, model_dir=f"{tmp_path}/whole")
    parted = {**given, "model_dir": f"{tmp_path}/parted", "checkpoint_interval": 4}
    with pytest.raises(tpu_training.TrainingError):
        fit(**parted, callbacks=[Fail()])
    names = [name for name, _ in tf.train.list_variables(f"{tmp_path}/parted/checkpoints")]
    slots = [name for name in names if name.startswith("optimizer/")]
    assert len(slots) == 3, "a velocity of the one, two moments of the other"
    resumed = fit(**parted)
    for mine, theirs in zip(whole.model.variables, resumed.model.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    assert whole.history[4:] == resumed.history


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"step": lambda m, b, c: 1.0}, "step returned a float, expected the loss and a dict"),
        ({"step": lambda m, b, c: ([[1.0]], {})}, "the loss of the shape (1, 1), expected a num"),
        ({"step": lambda m, b, c: (1.0, {}), "optimizers": GAN.optimizers}, "as its loss, expec"),
        ({"optimizers": {"generator": {}}}, "critic is in none of these parts of the model"),
        ({"optimizers": {"*": {}, "head": {}}}, "'head' matches none of the model's variables"),
        ({"optimizers": {"*": {"epochs": 2}}}, "optimizers['*']: epochs is not an optimizer's"),
        ({"step": None}, "the task own has neither losses nor a step"),
    ],
)
def test_a_wrong_step_is_refused_before_it_runs(
    fit: Fit, tmp_path: Path, changed: Any, message: str
) -> None:
    task = Task("own", any_targets=True, **{"step": compete, **changed})
    model = dense("generator", "critic")
    with pytest.raises(InputError, match=re.escape(message)):
        fit(model=model, data=(ROWS, None), task=task, model_dir=str(tmp_path), epochs=1)


def test_a_task_without_losses_does_not_evaluate(fit: Fit, tmp_path: Path) -> None:
    rows = (ROWS, None)
    with pytest.raises(InputError, match=r"task gan has no losses, so it can't evaluate .*test"):
        fit(model=dense("generator", "critic"), data=rows, test=rows, task=GAN,
            model_dir=str(tmp_path), epochs=1)  # fmt: skip
    assert not (tmp_path / "model.json").exists()


@pytest.mark.usefixtures("one_device")
def test_an_infinite_value_is_gathered_without_spoiling_other_rows() -> None:
    seed = tf.zeros((2,), tf.int32)
    context = StepContext(seed, replica=tf.constant(1), replicas=2)
    assert context.gather(tf.constant([float("inf")])).numpy().tolist() == [0.0, float("inf")]
    assert context.gather({"yes": tf.constant([True])})["yes"].numpy().tolist() == [False, True]


@KERAS
def test_two_examples_that_are_mixed_have_no_weights(one_device: Cluster, tmp_path: Path) -> None:
    images = RANDOM.integers(0, 255, (16, 4, 4, 1)).astype(np.float32)

    def pooled(params: Any, spec: Any, seed: int) -> Any:
        import keras

        layers = [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(2)]
        return keras.Sequential(layers)

    with pytest.raises(InputError, match="has weights, but --mixup and --cutmix mix two examples"):
        on(
            one_device,
            model=pooled,
            data=(images.astype(np.uint8), np.arange(16) % 2, np.ones(16, np.float32)),
            model_dir=str(tmp_path),
            mixup=0.2,
        )
    assert not [*tmp_path.iterdir()], "nothing is written before"
