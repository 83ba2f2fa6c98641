"""Gaussian noise keyed by (seed, canonical tensor name).

The scheme ``keyed`` draws each tensor from its own stream, so tensors are independent, order of traversal does not
matter, and fusing or sharding the model cannot change the noise: it is drawn in the canonical Hugging Face layout.
NumPy's generator is used because its stream depends on neither instruction set nor thread count (``torch.randn``
differs in the last bits between AVX512 and plain kernels).

The scheme ``shared-by-shape`` exists only to replay published runs that re-seeded one torch generator for every
tensor, so that tensors of equal shape received identical noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Scheme = Literal["keyed", "shared-by-shape"]

Array = NDArray[np.float32]

# Elements drawn at a time: small enough for the second-level cache. The stream does not depend on it (tested).
CHUNK = 1 << 16


def noise(seed: int, name: str, shape: Sequence[int], scheme: Scheme = "keyed") -> Array:
    """Standard normal float32 noise of ``shape`` for tensor ``name``; the same arguments give the same bytes."""
    out = np.empty(int(np.prod(shape, dtype=np.int64)), dtype=np.float32)
    for start, chunk in noise_chunks(seed, name, shape, scheme):
        out[start : start + chunk.size] = chunk
    return out.reshape(tuple(shape))


def noise_chunks(
    seed: int, name: str, shape: Sequence[int], scheme: Scheme = "keyed", chunk: int = CHUNK
) -> Iterator[tuple[int, Array]]:
    """``noise`` in flat pieces: (offset, float32 array). A yielded array is overwritten by the next step."""
    size = int(np.prod(shape, dtype=np.int64))
    if scheme == "shared-by-shape":
        flat = _shared_by_shape(seed, shape)
        for start in range(0, size, chunk):
            yield start, flat[start : start + chunk].copy()
        return
    generator = np.random.Generator(np.random.SFC64(np.random.SeedSequence(_key(seed, name))))
    buffer = np.empty(min(chunk, size), dtype=np.float32)
    for start in range(0, size, chunk):
        view = buffer[: min(chunk, size - start)]
        generator.standard_normal(dtype=np.float32, out=view)
        yield start, view


def private_generator(key: str) -> np.random.Generator:
    """A stream of its own for ``key``; hashed, because numbers side by side could meet another stream's."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(_hashed(key))))


def _key(seed: int, name: str) -> int:
    # Hash-mixed: adding a tensor index to the seed would make neighbouring seeds share streams.
    return _hashed(f"{seed}|{name}")


def _hashed(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=32).digest(), "little")


def _shared_by_shape(seed: int, shape: Sequence[int]) -> Array:
    import torch

    generator = torch.Generator(device="cpu").manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator, dtype=torch.float32).numpy().reshape(-1)
