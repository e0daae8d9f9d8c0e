"""Language models: every token counts alike, and several texts fit into one example."""

from __future__ import annotations

import csv
import logging
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

import tpu_training
from tests.unit.training.test_own_step import KERAS, dense, on
from tpu_training.__main__ import main
from tpu_training.data.data_set import open_data
from tpu_training.data.pipeline import training_rows
from tpu_training.models.params import Params
from tpu_training.models.registry import BertParams, load_model
from tpu_training.models.spec import IGNORED
from tpu_training.tasks.built_in import TASKS, cross_entropy

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

# Which reads CSV.
pytest.importorskip("datasets")
pytestmark = pytest.mark.training

RANDOM = np.random.default_rng(12)
LENGTH = 32
# Of one to eighty words: some need several examples.
TEXTS = [" ".join(RANDOM.choice(["a", "bee", "cat", "dog", "eel"], size)) for size in range(1, 81)]
START, END = 2, 3


def write(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for split, texts in (("train", TEXTS), ("test", TEXTS[::3])):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *((text, 0) for text in texts)])
    return folder


def convert(folder: Path, *options: str) -> str:
    source, output = write(folder / "csv"), str(folder / "data")
    lengths = [f"--text-length={LENGTH}", "--vocabulary-size=64"]
    given = [f"--source={source}", f"--output={output}", *lengths, *options]
    assert main(["data", "convert", *given]) == 0
    return output


@pytest.fixture(scope="module")
def packed(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    return convert(tmp_path_factory.mktemp("packed"), "--pack")


def rows(place: str) -> Any:
    data = open_data(place)
    params = Params(global_batch_size=data.manifest.split("train").examples)
    ((tokens, *_),) = training_rows(data, params, 0, 1, 0).take(1).as_numpy_iterator()
    return tokens


def texts_of(row: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the texts in an example."""
    found: list[list[int]] = []
    for token in row:
        if token == START:
            found.append([])
        if token:
            found[-1].append(int(token))
    return [tuple(each) for each in found]


def test_packed_examples_hold_each_token_of_each_text_once_and_are_full(
    packed: str, one_device: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    tokens = rows(convert(tmp_path, "--pack"))
    share = re.search(
        r"packed 80 texts into \d+ examples .* train, ([\d.]+) % of them used", caplog.text
    )
    assert share
    assert float(share[1]) == pytest.approx(100 * np.mean(tokens > 0), abs=0.05)
    assert np.mean(tokens > 0) > 0.95
    # With a start before each, the parts of a long text are texts.
    words = [len(text.split()) + 1 for text in TEXTS]
    parts = [text for row in tokens for text in texts_of(row)]
    assert sum(len(part) - 1 for part in parts) == sum(words)
    assert sum(part[-1] == END for part in parts) == len(TEXTS)
    whole = sorted(len(part) for part in parts if part[-1] == END and len(part) < LENGTH)
    assert len(whole) >= LENGTH - 2


def test_a_packed_text_is_answered_as_if_it_were_alone(packed: str, one_device: Cluster) -> None:
    spec = open_data(packed).manifest.spec
    assert spec.start == START
    task = TASKS["causal_lm"]
    params = BertParams(hidden_size=16, layers=2, heads=2, dropout=0.0, precision="float32")
    model = load_model("bert").create_model(params, task.model_spec(spec), 5)
    assert task.prepare
    prepare = task.prepare(spec)

    def losses_of(row: Any) -> Any:
        inputs, targets = prepare(row[None], None, False)
        return cross_entropy(model(inputs, training=False), targets)[0].numpy(), targets[0].numpy()

    row = next(row for row in rows(packed) if len(texts_of(row)) > 2)
    together, targets = losses_of(row)
    at = 0
    for text in texts_of(row):
        alone = np.zeros(LENGTH, np.int32)
        alone[: len(text)] = text
        count = len(text) - 1
        np.testing.assert_allclose(
            together[at : at + count], losses_of(alone)[0][:count], rtol=1e-4
        )
        at += len(text)
    assert (targets != IGNORED).sum() == at - len(texts_of(row))


def bpe(folder: Path, special: Sequence[str], post: bool) -> str:
    """Write a tokenizer.json, like GPT-2's or, with what it puts around texts, like BERT's."""
    library = pytest.importorskip("tokenizers")
    tokens = library.Tokenizer(library.models.BPE())
    tokens.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = library.pre_tokenizers.ByteLevel.alphabet()
    first = list(special) if post else []
    trainer = library.trainers.BpeTrainer(
        vocab_size=300, special_tokens=first, initial_alphabet=letters
    )
    tokens.train_from_iterator(TEXTS, trainer)
    tokens.add_special_tokens(list(special))
    if post:
        around = [(name, tokens.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
        tokens.post_processor = library.processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=around
        )
    tokens.save(str(folder / "tokenizer.json"))
    return str(folder / "tokenizer.json")


def pieces(folder: Path, **special: int) -> str:
    """Write a model of SentencePiece."""
    library = pytest.importorskip("sentencepiece")
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_prefix=str(folder / "spiece"),
        vocab_size=20,
        hard_vocab_limit=False,
        minloglevel=2,
        **special,
    )
    return str(folder / "spiece.model")


TOKENIZERS: dict[str, tuple[Any, int, int, int]] = {
    # What makes it, then the start and the end (-1: the last token), and padding (-1: one more).
    "gpt2": (lambda to: bpe(to, ["<|endoftext|>"], post=False), -1, -1, -1),
    "bert": (lambda to: bpe(to, ["[PAD]", "[CLS]", "[SEP]"], post=True), 1, 2, 0),
    "t5": (lambda to: pieces(to, pad_id=0, eos_id=1, unk_id=2, bos_id=-1), 1, 1, 0),
    "llama": (lambda to: pieces(to), 1, 2, -1),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_of_a_library_gives_its_ids_and_stays_with_the_data(
    name: str, tmp_path: Path
) -> None:
    make, start, end, padding = TOKENIZERS[name]
    file = make(tmp_path)
    given = [f"--source={write(tmp_path / 'csv')}", f"--vocabulary={file}", "--text-length=40"]
    for packs in ([], ["--pack"]):
        output = tmp_path / f"data{len(packs)}"
        assert main(["data", "convert", *given, *packs, f"--output={output}"]) == 0
        kept = open_data(str(output)).manifest.vocabulary
        assert (output / kept).read_bytes() == Path(file).read_bytes()
    if file.endswith(".json"):
        library = pytest.importorskip("tokenizers").Tokenizer.from_file(file)
        ids = [library.encode(text, add_special_tokens=False).ids for text in TEXTS]
        size = library.get_vocab_size()
    else:
        made: Any = pytest.importorskip("sentencepiece")
        library = made.SentencePieceProcessor(model_file=file)
        ids, size = [library.encode(text) for text in TEXTS], library.get_piece_size()
    start, end = (size - 1 if each < 0 else each for each in (start, end))
    vocabulary, padding = (size, padding) if padding >= 0 else (size + 1, size)
    wanted = [[start, *text, end] for text in ids]
    cut = [each if len(each) <= 40 else [*each[:39], end] for each in wanted]
    found = rows(str(tmp_path / "data0"))
    assert sorted([int(i) for i in row if i != padding] for row in found) == sorted(cut)
    spec = open_data(str(tmp_path / "data1")).manifest.spec
    assert (spec.start, spec.end, spec.padding, spec.vocabulary) == (
        start,
        end,
        padding,
        vocabulary,
    )
    tokens = [int(i) for row in rows(str(tmp_path / "data1")) for i in row]
    inside = [i for i in tokens if i not in (padding, start)]
    assert sorted(inside) == sorted(i for each in wanted for i in each if i != start)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_padding_beyond_the_tokens_is_never_learned_hidden_or_drawn(
    name: str, one_device: Cluster, tmp_path: Path
) -> None:
    file = TOKENIZERS[name][0](tmp_path)
    place = convert(tmp_path, f"--vocabulary={file}", "--pack")
    spec, tokens = open_data(place).manifest.spec, rows(place).copy()
    # An ordinary token, such as "!" of GPT-2's.
    tokens[:, 2] = 0
    tokens = tf.constant(tokens)
    following = tokens[:, 1:]
    made = [TASKS[task].prepare for task in ("causal_lm", "masked_lm")]
    shift, hide = (prepare(spec) for prepare in made if prepare)
    _, targets = (each.numpy() for each in shift(tokens, None, False))
    # Where one token begins and ends texts, the beginning of the next one is the end.
    others = spec.padding if name == "gpt2" else (spec.padding, spec.start)
    np.testing.assert_array_equal(targets == IGNORED, np.isin(following, others))
    shown, targets = (each.numpy() for each in hide(tokens, None, False))
    assert (targets != IGNORED).any()
    tokens = tokens.numpy()
    np.testing.assert_array_equal(shown == spec.padding, tokens == spec.padding)
    params = BertParams(hidden_size=16, layers=1, heads=2, dropout=0.0, precision="float32")
    model = load_model("bert").create_model(params, TASKS["masked_lm"].model_spec(spec), 5)
    filled = (tokens == spec.padding).any(axis=1)
    before = model(tokens[filled], training=False).numpy()
    model.tokens.table.scatter_nd_update([[spec.padding]], tf.ones((1, 16)))
    after = model(tokens[filled], training=False).numpy()
    seen = tokens[filled] != spec.padding
    np.testing.assert_array_equal(before[seen], after[seen])
    assert (before[~seen] != after[~seen]).any()


def test_a_tokenizer_goes_with_the_model_which_then_takes_texts(
    one_device: Cluster, tmp_path: Path
) -> None:
    library, file = pytest.importorskip("tokenizers"), TOKENIZERS["gpt2"][0](tmp_path)
    labels = np.arange(len(TEXTS)) % 2
    data, results = f"{tmp_path}/data", f"{tmp_path}/results"
    texts = {"train": (TEXTS, labels), "test": (TEXTS, labels)}
    tpu_training.write_data(data, **texts, text_length=16, vocabulary=file)  # type: ignore[arg-type]
    small = {"hidden_size": 8, "layers": 1, "heads": 2}
    result = on(one_device, model="bert", data=data, params=small, model_dir=results, epochs=1)
    export = ["export", f"--model-dir={results}", f"--output={tmp_path}/exported"]
    assert main(export) == 0
    (kept,) = tmp_path.glob("exported/*/assets.extra/tokenizer.json")
    assert kept.read_bytes() == Path(file).read_bytes()
    tokenizer = library.Tokenizer.from_file(str(kept))
    end, few = tokenizer.token_to_id("<|endoftext|>"), TEXTS[:5]
    ids = [[end, *tokenizer.encode(text).ids, end][:16] for text in few]
    filled = np.array([each + [end + 1] * (16 - len(each)) for each in ids], np.int32)
    model = tpu_training.load(results)
    told = model.predict(filled)["probabilities"]
    np.testing.assert_allclose(model.predict(few)["probabilities"], told, rtol=1e-6)
    of_strings = tf.data.Dataset.from_tensor_slices(few)
    for given in (few, of_strings):
        found = tpu_training.predict(model, given)["probabilities"]
        np.testing.assert_allclose(found, told, rtol=1e-5)
        found = tpu_training.predict(result, given)["probabilities"]
        np.testing.assert_allclose(found, told, rtol=1e-4)
    assert tpu_training.evaluate(model, (filled, labels[:5]))["loss"] > 0
    (Path(data) / "tokenizer.json").unlink()
    with pytest.raises(tpu_training.TrainingError, match=r"tokenizer\.json is missing; copy"):
        tpu_training.evaluate(model, data)


@pytest.mark.parametrize("fill", [None, 500])
def test_ids_with_gaps_or_padding_outside_are_all_in_the_vocabulary(
    tmp_path: Path, fill: int | None
) -> None:
    library = pytest.importorskip("tokenizers")
    known = {"a": 3, "bee": 7, "<unk>": 1, "<s>": 5, "</s>": 9}
    tokens = library.Tokenizer(library.models.WordLevel(known, unk_token="<unk>"))
    tokens.pre_tokenizer = library.pre_tokenizers.Whitespace()
    if fill:
        tokens.enable_padding(pad_id=fill)
    # A name that another file in a dataset has.
    tokens.save(str(tmp_path / "manifest.json"))
    place = convert(tmp_path, f"--vocabulary={tmp_path / 'manifest.json'}", "--pack")
    spec = open_data(place).manifest.spec
    assert (spec.vocabulary, spec.start, spec.end, spec.padding) == (11, 5, 9, 10)
    assert rows(place).max() == 10
    assert (Path(place) / "tokenizer.json").read_bytes() == (
        tmp_path / "manifest.json"
    ).read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{}", "tokenizers can't read it ("),
        ("spiece.model", "no model", "sentencepiece can't read it ("),
    ],
)
def test_a_file_that_is_no_tokenizer_is_refused(
    name: str,
    content: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip(words.split()[0])
    (tmp_path / name).write_text(content)
    given = [f"--source={write(tmp_path / 'csv')}", f"--vocabulary={tmp_path / name}"]
    assert main(["data", "convert", *given, f"--output={tmp_path / 'data'}"]) == 2
    assert f"--vocabulary={tmp_path / name}: {words}" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_a_missing_library_of_a_tokenizer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    (tmp_path / "spiece.model").write_text("")
    given = [f"--source={write(tmp_path / 'csv')}", f"--vocabulary={tmp_path / 'spiece.model'}"]
    assert main(["data", "convert", *given, f"--output={tmp_path / 'data'}"]) == 2
    assert "sentencepiece: pip install 'tpu-stack-training[text]'" in capsys.readouterr().err


@KERAS
def test_a_model_with_fewer_tokens_than_the_tokenizer_is_refused(
    packed: str, one_device: Cluster, tmp_path: Path
) -> None:
    def create_model(spec: Any) -> Any:
        import keras

        inputs = keras.Input(spec.shape, dtype="int32")
        x = keras.layers.Embedding(10, 4)(inputs)
        return keras.Model(inputs, keras.layers.Dense(spec.vocabulary)(x))

    words = r"tokenizer has 19 tokens, but the model's embedding 10; convert the texts with the mod"
    with pytest.raises(tpu_training.TrainingError, match=words):
        on(one_device, model=create_model, data=packed, task="causal_lm", model_dir=str(tmp_path))


@KERAS
def test_a_model_without_a_row_for_the_padding_of_gpt2_s_tokenizer_is_told_so(
    one_device: Cluster, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers")
    data = convert(tmp_path, f"--vocabulary={TOKENIZERS['gpt2'][0](tmp_path)}")
    padding = open_data(data).manifest.spec.padding

    def create_model(spec: Any) -> Any:
        import keras

        inputs = keras.Input(spec.shape, dtype="int32")
        x = keras.layers.Embedding(padding, 4)(inputs)
        return keras.Model(inputs, keras.layers.Dense(spec.vocabulary)(x))

    words = (
        rf"has {padding} tokens and none for padding, whose id is {padding}; give .* one more than"
    )
    with pytest.raises(tpu_training.TrainingError, match=words):
        on(one_device, model=create_model, data=data, task="causal_lm", model_dir=f"{tmp_path}/m")


def test_no_beginning_of_a_text_is_hidden_or_drawn(packed: str, one_device: Cluster) -> None:
    task, spec = TASKS["masked_lm"], open_data(packed).manifest.spec
    assert task.prepare
    tokens = rows(packed)
    shown, targets = (each.numpy() for each in task.prepare(spec)(tokens, None, False))
    assert (targets != IGNORED).any()
    np.testing.assert_array_equal(shown == START, tokens == START)
    assert START not in targets


def test_a_model_of_packed_texts_evaluates_single_ones_and_resumes_on_its_own_alone(
    packed: str, one_device: Cluster, tmp_path: Path
) -> None:
    small = {"hidden_size": 8, "layers": 1, "heads": 2}
    given = {"model": "bert", "task": "causal_lm", "params": small, "model_dir": f"{tmp_path}/m"}
    result = on(one_device, data=packed, epochs=1, **given)
    single = convert(tmp_path)
    assert result.evaluate(single)["token_loss"] > 0
    with pytest.raises(tpu_training.TrainingError, match="packed texts, here one in each example"):
        on(one_device, data=single, epochs=2, **given)


def test_weights_and_shares_multiply_alike_in_training_and_test(
    one_device: Cluster, tmp_path: Path
) -> None:
    table = RANDOM.normal(size=(16, 4)).astype(np.float32)
    examples = (table, np.arange(16) % 2, np.full(16, 2.0, np.float32))

    def entropy(outputs: Any, targets: Any, params: Any) -> Any:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(targets, outputs)

    def half(targets: Any) -> Any:
        return 0.01 * tf.ones_like(targets, tf.float32)

    found = []
    for number, shares in enumerate((None, half)):
        result = on(
            one_device,
            model=dense("kernel"),
            task=tpu_training.Task("own", entropy, shares=shares),
            data={"train": examples, "test": examples},
            model_dir=f"{tmp_path}/{number}",
            optimizer="sgd",
            learning_rate=1e-9,
            epochs=1,
        )
        found += [result.history[0]["loss"], result.metrics["test_loss"]]
    assert found == pytest.approx([found[0]] * 4, rel=1e-5)


def test_shares_that_are_not_one_for_each_example_are_refused(
    one_device: Cluster, tmp_path: Path
) -> None:
    def column(targets: Any) -> Any:
        return tf.ones((targets.shape[0], 1))

    task = tpu_training.Task("own", lambda outputs, *_: outputs[:, 0], shares=column)
    table = RANDOM.normal(size=(16, 4)).astype(np.float32)
    with pytest.raises(tpu_training.InputError, match=r"test_packing.py:\d+: shares returned"):
        on(
            one_device,
            model=dense("kernel"),
            task=task,
            data=(table, np.arange(16) % 2),
            model_dir=str(tmp_path),
        )


def test_each_token_counts_alike_over_replicas_and_parts(
    cluster: Cluster, one_device: Cluster, tmp_path: Path
) -> None:
    """The texts have 1 to 31 tokens, and the replicas different numbers of them."""
    place = convert(tmp_path)
    small = {"hidden_size": 16, "layers": 1, "heads": 2, "dropout": 0.0, "learning_rate": 0.01}
    results = [
        on(
            devices,
            model="bert",
            task="causal_lm",
            data=place,
            params=small,
            model_dir=f"{tmp_path}/{devices.replicas}-{parts}",
            epochs=1,
            gradient_accumulation=parts,
        )
        for devices, parts in ((one_device, 1), (cluster, 1), (one_device, 4))
    ]
    one, *others = results
    for other in others:
        for mine, theirs in zip(other.history, one.history, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-4)
    for result in results:
        assert result.metrics["test_loss"] == pytest.approx(result.metrics["test_token_loss"])
    # The first step's loss is the mean over its tokens, of a model that knows nothing yet.
    data = open_data(place)
    ((tokens, *_),) = training_rows(data, Params(global_batch_size=16), 0, 1, 0).take(1)
    spec = TASKS["causal_lm"].model_spec(data.manifest.spec)
    params = BertParams(hidden_size=16, layers=1, heads=2, dropout=0.0, precision="float32")
    from tpu_training.loop.state import derive_seed

    seed = derive_seed(params.seed, "weights")
    model = load_model("bert").create_model(params, spec, seed)
    following = tokens[:, 1:]
    targets = tf.where(following > 0, following, IGNORED)
    losses = cross_entropy(model(tokens[:, :-1]), targets).numpy()
    mean = losses.sum() / (targets.numpy() != IGNORED).sum()
    assert one.history[0]["loss"] == pytest.approx(mean, rel=1e-4)


def test_what_are_no_texts_is_not_packed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "one.txt"
    file.write_text("to be or not to be " * 90, encoding="utf-8")
    output = tmp_path / "data"
    assert main(["data", "convert", f"--source={file}", f"--output={output}", "--pack"]) == 2
    assert "--pack: is for texts, but one has token ids; omit it" in capsys.readouterr().err
    assert not output.exists()


@KERAS
def test_a_penalty_is_shown_once_whatever_the_number_of_optimizers(
    one_device: Cluster, tmp_path: Path
) -> None:
    def create_model(params: Any, spec: Any, seed: int) -> Any:
        import keras

        penalty = keras.regularizers.L2(0.1)
        inner = keras.layers.Dense(2, name="body", kernel_regularizer=penalty)
        return keras.Sequential([keras.Input((3,)), inner, keras.layers.Dense(2, name="top")])

    def step(model: Any, batch: Any, context: Any) -> Any:
        outputs = model(batch[0], training=True)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(batch[1], outputs)
        return ({"body": losses, "top": 0.0 * losses} if parts else losses), {}

    shown = []
    for parts in (False, True):
        optimizers = {"body": {"learning_rate": 1e-9}, "top": {"learning_rate": 1e-9}}
        task = tpu_training.Task(
            "own", step=step, any_targets=True, optimizers=optimizers if parts else {}
        )
        result = on(
            one_device,
            model=create_model,
            task=task,
            data=(np.ones((16, 3), np.float32), np.arange(16) % 2),
            model_dir=f"{tmp_path}/{parts}",
            optimizer="sgd",
            epochs=1,
        )
        shown.append(result.history[0]["loss"])
    assert shown[0] == pytest.approx(shown[1])
