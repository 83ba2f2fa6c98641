"""Where theta_0 comes from: the embedded model, a Hugging Face folder, a GGUF file or the hub.

Every source ends in the same two things: a live model in the served dtype, and a float32 copy of its parameters taken
before that rounding.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig, GgufConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

from driftlab.errors import DriftlabError, MissingDataError
from driftlab.models.hashing import weights_hash

# Its annotation knows nothing of output_loading_info, which makes it return a pair.
_from_pretrained: Any = AutoModelForCausalLM.from_pretrained

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Served dtypes by the name a spec gives them."""

ATTENTION = "sdpa"
"""The one attention implementation of every run: two checkpoints are compared under the same arithmetic."""

EMBEDDED = "nano"
"""Source name of the model that is shipped in the package."""

SourceKind = Literal["embedded", "folder", "gguf", "hub"]

_REMEDY = "run `driftlab models fetch smollm2-135m` or give a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct"


class ModelError(DriftlabError):
    """A model that is there but cannot be used as a base, fetched, or written as asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseModel:
    """A base model, live and as numbers.

    Attributes:
        model: the live model: evaluation mode, no gradients, parameters in the served dtype, greedy generation.
        tokenizer: its tokenizer; pads on the left with a pad token that is always set.
        weights: theta_0 as float32 CPU tensors under canonical Hugging Face names, before any rounding to the served
            dtype. A tied tensor appears once; buffers do not appear.
        source_kind: where it came from.
        source: the source as given.
        revision: commit of the hub snapshot; None for every other kind.
        weights_hash: ``hashing.weights_hash(weights)``.
        n_parameters: number of elements in ``weights``, the d of the random-walk law.
    """

    model: PreTrainedModel
    tokenizer: Any
    weights: dict[str, torch.Tensor]
    source_kind: SourceKind
    source: str
    revision: str | None
    weights_hash: str
    n_parameters: int

    def described(self) -> dict[str, Any]:
        """What a run's manifest says of its base."""
        return {
            "source_kind": self.source_kind,
            "weights_hash": self.weights_hash,
            "n_parameters": self.n_parameters,
        }


def load_base(source: str, *, dtype: torch.dtype, device: str, revision: str | None = None) -> BaseModel:
    """Load a base model for measuring and training.

    Args:
        source: ``nano`` (shipped in the package), a Hugging Face folder, a ``.gguf`` file, or a hub id
            ``owner/name`` (with HF_HUB_OFFLINE=1 only what is in the local cache).
        dtype: floating dtype in which the parameters are served: one rounding of the float32 master. Buffers, such as
            the rotary frequencies, keep the precision that transformers gives them.
        device: torch device of the live model; the float32 copy always stays on the CPU.
        revision: branch, tag or commit, for a hub id only.

    Raises:
        MissingDataError: the folder, file or hub model is not there or is incomplete.
        ModelError: it is there but is no causal language model, is quantised, is damaged, or needs a missing package.
    """
    kind, path = resolve_source(source)
    _check_request(kind, source, dtype, device, revision)
    with progress_bars_off(), _explained(kind, source):
        model, tokenizer = _load_gguf(source, path) if kind == "gguf" else _load_hub_format(source, path, revision)
    _prepare_tokenizer(tokenizer, source)
    weights = {name: p.detach().to("cpu", torch.float32, copy=True) for name, p in model.named_parameters()}
    _serve(model, tokenizer, dtype, device)
    return BaseModel(
        model=model,
        tokenizer=tokenizer,
        weights=weights,
        source_kind=kind,
        source=source,
        revision=getattr(model.config, "_commit_hash", None) if kind == "hub" else None,
        weights_hash=weights_hash(weights),
        n_parameters=sum(w.numel() for w in weights.values()),
    )


def resolve_source(source: str) -> tuple[SourceKind, Path | None]:
    """Kind of a model source, and its path (None for a hub id). Nothing is loaded.

    Raises:
        MissingDataError: it names a folder or file that is not there, or a folder without ``config.json``.
    """
    if source == EMBEDDED:
        folder = Path(str(importlib.resources.files("driftlab.models"))) / EMBEDDED
        if not (folder / "config.json").is_file():
            raise MissingDataError(
                "the embedded model 'nano' is missing from this installation; install driftlab again"
            )
        return "embedded", folder
    path = Path(source).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise MissingDataError(f"folder {source!r} holds no config.json, so it is no Hugging Face model; {_REMEDY}")
        return "folder", path
    if path.is_file():
        if path.suffix != ".gguf":
            raise MissingDataError(f"model file {source!r} does not end in .gguf; give a .gguf file or a model folder")
        return "gguf", path
    # Dots or a tilde in front, a third part or a .gguf ending can only have meant a path.
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", source) and not source.endswith(".gguf"):
        return "hub", None
    raise MissingDataError(f"no model folder or file at {source!r}; {_REMEDY}")


def _check_request(kind: SourceKind, source: str, dtype: torch.dtype, device: str, revision: str | None) -> None:
    """Refuse what could only fail after minutes of loading."""
    if not dtype.is_floating_point:
        raise ModelError(f"dtype {dtype} cannot serve model {source!r}; use float32, bfloat16 or float16")
    if revision is not None and kind != "hub":
        raise ModelError(f"revision {revision!r} was given for {source!r}, which is no hub id; leave the revision out")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"device {device!r} cannot be used here ({_reason(error)}); use 'cpu'") from error
    if kind == "gguf" and importlib.util.find_spec("gguf") is None:
        raise ModelError(f"reading {source!r} needs the gguf package; install it with `pip install 'driftlab[gguf]'`")


def _load_hub_format(source: str, path: Path | None, revision: str | None) -> tuple[PreTrainedModel, Any]:
    """Model in float32 and tokenizer from a folder or the hub."""
    if path is not None:
        _check_files(path, source)
    where = source if path is None else str(path)
    # No code from a checkpoint is run; without this, transformers would ask at the terminal.
    options: dict[str, Any] = {"revision": revision or "main", "trust_remote_code": False}
    config = AutoConfig.from_pretrained(where, **options)
    _check_architecture(config, source)
    model, info = _from_pretrained(
        where, dtype=torch.float32, attn_implementation=ATTENTION, output_loading_info=True, **options
    )
    _check_complete(info, source)
    return model, AutoTokenizer.from_pretrained(where, **options)


def _load_gguf(source: str, path: Path | None) -> tuple[PreTrainedModel, Any]:
    """Model in float32 and tokenizer from a GGUF file, its blocks unpacked to ordinary dense tensors."""
    assert path is not None
    model, info = _from_pretrained(
        str(path.parent),
        gguf_file=path.name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.float32,
        attn_implementation=ATTENTION,
        output_loading_info=True,
        trust_remote_code=False,
    )
    _check_complete(info, source)
    # The tensors are dense now; with this note in its configuration the model could not be saved.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name, trust_remote_code=False)
    return model, tokenizer


def _check_files(folder: Path, source: str) -> None:
    """Name what a folder lacks; transformers would say it in a page."""
    tokenizers = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json")
    for what, patterns in (("weights", ("*.safetensors", "*.bin")), ("tokenizer", tokenizers)):
        if not any(any(folder.glob(pattern)) for pattern in patterns):
            raise MissingDataError(f"model folder {source!r} holds no {what} ({patterns[0]}); get the folder again")


def _check_architecture(config: Any, source: str) -> None:
    """Refuse what AutoModelForCausalLM would load although its weights are another model's, and packed weights."""
    declared = list(getattr(config, "architectures", None) or [])
    causal = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    known = config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    if not known or (declared and causal.isdisjoint(declared)) or getattr(config, "is_encoder_decoder", False):
        got = ", ".join(declared) or config.model_type
        raise ModelError(f"model {source!r} is {got}, not a causal language model; choose one that generates text")
    if getattr(config, "quantization_config", None) is not None:
        raise ModelError(
            f"model {source!r} holds quantised weights, which cannot be trained; use its full-precision form"
        )


def _check_complete(info: Mapping[str, Any], source: str) -> None:
    """Refuse a checkpoint whose gaps transformers would fill with random numbers."""
    gaps = sorted([*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])])
    if gaps:
        raise ModelError(
            f"model {source!r} lacks {len(gaps)} parameters its config.json asks for, or has them in another shape "
            f"(first: {gaps[0]}); get the folder again"
        )


def _prepare_tokenizer(tokenizer: Any, source: str) -> None:
    """Left padding, so that every prompt ends where generation begins; a pad token, which masks hide anyway."""
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is not None:
        return
    if tokenizer.eos_token_id is None:
        raise ModelError(f"tokenizer of {source!r} has neither a pad nor an end-of-sequence token; add one to it")
    tokenizer.pad_token = tokenizer.eos_token


def _serve(model: PreTrainedModel, tokenizer: Any, dtype: torch.dtype, device: str) -> None:
    """Turn a freshly loaded float32 model into the live one."""
    # model.to(dtype) would round the rotary frequencies too, which no checkpoint of this dtype has rounded.
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.to(device)  # type: ignore[arg-type]
    model.config.dtype = dtype
    model.eval()
    model.requires_grad_(False)
    # A model's own generation settings (sampling, penalties, lengths) would leak into greedy comparisons.
    own = model.generation_config
    stop = own.eos_token_id if own is not None and own.eos_token_id is not None else tokenizer.eos_token_id
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=stop,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
        repetition_penalty=1.0,
    )


@contextmanager
def progress_bars_off() -> Iterator[None]:
    """Loading bars of transformers off, and afterwards as they were."""
    were_on = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if were_on:
            transformers_logging.enable_progress_bar()


@contextmanager
def _explained(kind: SourceKind, source: str) -> Iterator[None]:
    """Turn what transformers, safetensors and gguf raise into one sentence."""
    try:
        yield
    except (DriftlabError, MemoryError):
        raise
    except Exception as error:  # tokenizers raises no narrower class for a damaged file
        if kind == "hub" and isinstance(error, OSError):
            raise MissingDataError(f"hub model {source!r} could not be read ({_reason(error)}); {_REMEDY}") from error
        raise ModelError(f"{kind} model {source!r} could not be read ({_reason(error)}); get it again") from error


def _reason(error: BaseException) -> str:
    """First sentence of a foreign error, so that ours stays one sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0].split(". ")[0].rstrip(".:") if lines else ""
    return f"{type(error).__name__}: {first[:200]}" if first else type(error).__name__
