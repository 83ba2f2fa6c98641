"""One hash for a set of weights: equal hashes mean equal bits, whatever the order they are listed in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import torch


def weights_hash(weights: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of named tensors, as 64 hex digits.

    Covers names (sorted), dtypes, shapes and raw bytes, so one unit in the last place of one element, a cast or a
    reshape changes it, while the order of the mapping, the device and the memory layout (strides) do not.
    Zero and minus zero differ; bytes are taken in the machine's order (little-endian on every supported machine).

    Args:
        weights: canonical parameter name to tensor, any dtype, shape and device.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach()
        # A JSON line fixes how many bytes follow it, so no two different mappings feed the same byte stream.
        header = json.dumps([name, str(tensor.dtype).removeprefix("torch."), list(tensor.shape)])
        digest.update(header.encode() + b"\n")
        # reshape(-1) also copies a strided view, and gives a scalar the dimension that a byte view needs.
        digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
