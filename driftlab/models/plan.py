"""What a model would take before any of it is downloaded: parameters, bytes on the wire, bytes in host memory."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from driftlab.errors import MissingDataError, SpecError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one parameter, by dtype name."""

FAMILIES = ("llama", "qwen2", "qwen3")
"""Model types whose parameters are counted in closed form."""

_QWEN25 = {"model_type": "qwen2", "vocab_size": 151936, "tie_word_embeddings": True, "dtype": "bfloat16"}

KNOWN_CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen/Qwen2.5-3B-Instruct": _QWEN25
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "intermediate_size": 11008,
    },
    "Qwen/Qwen2.5-1.5B-Instruct": _QWEN25
    | {
        "hidden_size": 1536,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "intermediate_size": 8960,
    },
    "Qwen/Qwen3-4B-Instruct-2507": {
        "model_type": "qwen3",
        "hidden_size": 2560,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 9728,
        "vocab_size": 151936,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
    "HuggingFaceTB/SmolLM2-135M-Instruct": {
        "model_type": "llama",
        "hidden_size": 576,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "intermediate_size": 1536,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
}
"""Published ``config.json`` values, as far as they bear on size, of hub models that presets or published
tables name: no network needed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPlan:
    """Size of a model, from its configuration alone.

    Attributes:
        source: the source as given.
        model_type: architecture family, for example ``qwen2``.
        n_parameters: parameters, a tied head counted once: the d of the random-walk law.
        n_embedding: of these, the token embedding.
        tied: the output head is the embedding.
        checkpoint_dtype: dtype of the files, a key of ``DTYPE_BYTES``; None where the configuration does not say.
        to_download: the weights come from the hub (or its local cache), not from this disk.
    """

    source: str
    model_type: str
    n_parameters: int
    n_embedding: int
    tied: bool
    checkpoint_dtype: str | None
    to_download: bool

    def bytes_in(self, dtype: str) -> int:
        """Bytes of the parameters in ``dtype``: of the live model, a keyframe, or a download in that dtype.

        Raises:
            SpecError: ``dtype`` is no key of ``DTYPE_BYTES``.
        """
        if dtype not in DTYPE_BYTES:
            raise SpecError(f"no size is known for dtype {dtype!r}; use one of {', '.join(DTYPE_BYTES)}")
        return self.n_parameters * DTYPE_BYTES[dtype]

    @property
    def download_bytes(self) -> int | None:
        """Bytes of weights to fetch (tokenizer and headers, a few MB, left out); None where the dtype is not known."""
        if not self.to_download:
            return 0
        return None if self.checkpoint_dtype is None else self.bytes_in(self.checkpoint_dtype)

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory for the float32 master and the float32 anchor theta_0; the live model not included."""
        return 2 * self.bytes_in("float32")


def plan_model(source: str) -> ModelPlan:
    """Plan for any source that ``load_base`` takes; no weights are read, and known hub ids need no network.

    Raises:
        MissingDataError: folder or file missing, or the configuration of an unlisted hub model cannot be had.
        SpecError: the configuration is unreadable, or not of a family in ``FAMILIES``.
    """
    if source in KNOWN_CONFIGS:
        return plan_config(source, KNOWN_CONFIGS[source], to_download=True)
    # base imports transformers, which the known models do not need.
    from driftlab.models.base import resolve_source

    kind, path = resolve_source(source)
    if path is None:
        return plan_config(source, _remote_config(source), to_download=True)
    if kind == "gguf":
        return plan_config(source, _gguf_config(source, path), to_download=False)
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"config.json of model {source!r} is no readable JSON; get the folder again") from error
    return plan_config(source, config, to_download=False)


def plan_config(source: str, config: Mapping[str, Any], *, to_download: bool) -> ModelPlan:
    """Plan from a configuration in the keys of ``config.json``. Raises SpecError as ``parameter_count`` does."""
    total = parameter_count(config)
    # transformers wrote this key as torch_dtype until version 5.
    dtype = config.get("dtype", config.get("torch_dtype"))
    return ModelPlan(
        source=source,
        model_type=config["model_type"],
        n_parameters=total,
        n_embedding=config["vocab_size"] * config["hidden_size"],
        tied=bool(config.get("tie_word_embeddings", False)),
        checkpoint_dtype=dtype if dtype in DTYPE_BYTES else None,
        to_download=to_download,
    )


def parameter_count(config: Mapping[str, Any]) -> int:
    """Exact number of parameters of a Llama, Qwen2 or Qwen3 causal language model, a tied head counted once.

    With hidden size h, L layers, a query heads and k key/value heads of size e, intermediate size m, vocabulary v, a
    layer holds h(a + 2k)e + aeh (attention), 3hm (gate, up, down), 2h (norms). To it Qwen2 adds (a + 2k)e biases,
    Qwen3 2e (query and key norms); Llama and Qwen3 add biases where the configuration asks for them. Around the
    layers: vh (embedding), h (last norm), vh again for an untied head.

    Args:
        config: values in the keys of ``config.json``; absent optional keys mean what transformers takes them for.

    Raises:
        SpecError: another family, or a needed key is missing.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise SpecError(f"parameters of model type {family!r} cannot be planned; known: {', '.join(FAMILIES)}")
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    missing = [key for key in needed if not isinstance(config.get(key), int)]
    if missing:
        raise SpecError(f"the {family} configuration lacks a whole number for {missing[0]}; complete its config.json")
    hidden, layers, heads, inner, vocabulary = (int(config[key]) for key in needed)
    kv_heads = config.get("num_key_value_heads", None if family == "llama" else 32) or heads
    head = config.get("head_dim") or (128 if family == "qwen3" else hidden // heads)
    fused = (heads + 2 * kv_heads) * head
    layer = hidden * fused + heads * head * hidden + 3 * hidden * inner + 2 * hidden
    if family == "qwen2":
        layer += fused
    elif config.get("attention_bias", False):
        layer += fused + hidden
    if family == "llama" and config.get("mlp_bias", False):
        layer += 2 * inner + hidden
    if family == "qwen3":
        layer += 2 * head
    embeddings = vocabulary * hidden * (1 if config.get("tie_word_embeddings", False) else 2)
    return embeddings + layers * layer + hidden


def _remote_config(source: str) -> dict[str, Any]:
    """Configuration of a hub model that is not in ``KNOWN_CONFIGS``: a file of a few kB, from cache or network."""
    from transformers import AutoConfig

    try:
        return _config_dict(AutoConfig.from_pretrained(source, trust_remote_code=False))
    except (OSError, ValueError) as error:
        raise MissingDataError(
            f"the configuration of hub model {source!r} cannot be had here; go online, give a local folder, "
            f"or use one whose size is built in ({', '.join(KNOWN_CONFIGS)})"
        ) from error


def _gguf_config(source: str, path: Path) -> dict[str, Any]:
    """Configuration from the header of a GGUF file."""
    from transformers import AutoConfig

    try:
        return _config_dict(AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name))
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise SpecError(
            f"the header of {source!r} cannot be read; check the file and `pip install 'driftlab[gguf]'`"
        ) from error


def _config_dict(config: Any) -> dict[str, Any]:
    values = dict(config.to_dict())
    return values | {"tie_word_embeddings": bool(config.tie_word_embeddings)}
