"""The number format of the weights, and how a step is rounded into it.

Values of every format are held in float32 arrays: a float16 or bfloat16 array is one whose values lie on that format's
grid. An elementwise operation on half-precision numbers, done in float32 and rounded once, is the correctly rounded
half-precision operation (24 bits are more than twice 11 and 8, so the two roundings cannot disagree), which is also how
torch does it, on the host and on accelerators.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

Dtype = Literal["float32", "bfloat16", "float16"]
Rule = Literal["single", "accumulate", "members", "stochastic", "error-feedback"]

PRECISE_BITS = {"float16": 11, "bfloat16": 8, "float32": 24}
"""Significant bits, the leading one included."""
_LOWEST_EXPONENT = {"float16": -14, "bfloat16": -126, "float32": -126}


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """How the master weights are kept and updated.

    Attributes:
        master: format of theta.
        update: ``single``: step and decay in float32, then one rounding to nearest. ``accumulate``: the code of
            LIT-238: noise, sum over members, step and decay each rounded to ``master``. ``members``: the code of
            LIT-235 and LIT-237: scaled noise of one member after the other rounded and added to theta, decay as above.
            ``stochastic``: ``single`` with a rounding up or down at random that is right on average.
            ``error-feedback``: ``single``, and what rounding left over is added before the next step.
        in_place_members: members per iteration whose noise is added to the master itself and subtracted again, which
            in half precision does not restore it. The first ones; of mirrored pairs both.
    """

    master: Dtype = "float32"
    update: Rule = "single"
    in_place_members: int = 0

    @property
    def published(self) -> bool:
        """Whether every operation is rounded, as published code does, and not the result alone."""
        return self.update in ("accumulate", "members")


FLOAT32 = Precision()
"""The default: a float32 master."""


def rounded(x: Array, dtype: Dtype) -> Array:
    """``x`` to the nearest value of ``dtype``, ties to even; ``x`` itself for float32."""
    if dtype == "float32":
        return x
    # NumPy's own conversion to float16 is ten times slower, and NumPy has no bfloat16.
    import torch

    half = torch.float16 if dtype == "float16" else torch.bfloat16
    result: Array = torch.from_numpy(x).to(half).to(torch.float32).numpy()
    return result


def stochastically_rounded(x: Array, dtype: Dtype, generator: np.random.Generator) -> Array:
    """``x`` to one of its two neighbours in ``dtype``, the nearer one likelier: the expected value is ``x``."""
    if dtype == "float32":
        return x
    spare = PRECISE_BITS["float32"] - PRECISE_BITS[dtype]
    # Adding up to one unit of the kept bits and cutting the rest carries into them with the right probability.
    dither = generator.integers(0, 1 << spare, size=x.shape, dtype=np.uint32)
    bits = np.ascontiguousarray(x).view(np.uint32) + dither
    result: Array = (bits & np.uint32((0xFFFFFFFF << spare) & 0xFFFFFFFF)).view(np.float32)
    if dtype == "float16":
        # Below 2^-14 the grid stops getting finer.
        small = np.abs(x) < 2.0**-14
        if small.any():
            units = np.abs(x[small]).astype(np.float64) * 2.0**24
            units = np.floor(units + generator.random(units.shape))
            result[small] = np.copysign(units * 2.0**-24, x[small])
    return result


def spacing(x: Array, dtype: Dtype) -> NDArray[np.float64]:
    """Distance between neighbouring values of ``dtype`` at ``x`` (one unit in the last place); at 0 the smallest."""
    exponent = np.frexp(x)[1].astype(np.int64) - 1
    exponent[x == 0.0] = _LOWEST_EXPONENT[dtype]
    exponent = np.maximum(exponent, _LOWEST_EXPONENT[dtype])
    return np.ldexp(1.0, exponent - (PRECISE_BITS[dtype] - 1))
