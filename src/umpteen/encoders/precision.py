"""Which precisions this machine can really compute in.

Some processors advertise bfloat16 units and are killed by the first matrix product that uses them, because the
virtual machine around them does not pass the units through. So a child process tries first.
"""

import subprocess
import sys
from functools import cache
from typing import Literal

import torch

from umpteen.errors import BadConfig

Precision = Literal["float32", "bfloat16", "float16"]
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# A layer forward and backward, and attention: what a transformer step is made of.
PROBE = """
import sys, torch
from torch.nn.functional import scaled_dot_product_attention
torch.set_num_threads(1)
layer, rows = torch.nn.Linear(256, 256), torch.ones(64, 256, requires_grad=True)
with torch.autocast("cpu", getattr(torch, sys.argv[1])):
    heads = layer(rows).view(1, 4, 64, 64)
    total = scaled_dot_product_attention(heads, heads, heads).float().sum()
total.backward()
assert torch.isfinite(rows.grad).all()
"""
PROBE_SECONDS = 120


def checked_precision(precision: Precision) -> Precision:
    """The precision, if there is one of that name."""
    if precision not in DTYPES:
        raise BadConfig(f"precision = {precision!r}: known are {', '.join(DTYPES)}")
    return precision


def require(precision: Precision, device: str) -> None:
    """Does nothing if `device` ("cpu", "cuda", …) computes in `precision`, else BadConfig says what happened."""
    if checked_precision(precision) == "float32":
        return
    outcome = probe(precision) if device == "cpu" else _gpu_outcome(precision, device)
    if outcome is not None:
        raise BadConfig(f"precision = {precision!r} does not work on this {device}: {outcome}. Use 'float32'")


@cache
def probe(precision: str) -> str | None:
    """Tries a small step on the CPU in a child process: None if it went well, else what became of the child."""
    command = [sys.executable, "-c", PROBE, precision]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"a trial in a child process took more than {PROBE_SECONDS} s"
    if child.returncode == 0:
        return None
    if child.returncode < 0:
        return (
            f"a trial in a child process was killed by signal {-child.returncode}; "
            "with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment it may work"
        )
    reason = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return f"a trial in a child process failed ({reason})"


def _gpu_outcome(precision: str, device: str) -> str | None:
    if device == "cuda" and precision == "bfloat16" and not torch.cuda.is_bf16_supported():
        return "the GPU has no bfloat16 units"
    return None
