"""The bare Hugging Face transformer under an encoder: loaded quietly, complete or not at all.

The folder may come from a stranger: none of its code runs, nothing is unpickled, and no file outside it is read.
"""

import json
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AttentionInterface, AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.utils import logging

from umpteen.encoders.encoder import drop
from umpteen.encoders.folder import WEIGHTS_FILE
from umpteen.errors import BadConfig, BadFile, BadInput

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


# Some processors advertise bfloat16 units and are killed by the first matrix product that uses them, because the
# virtual machine around them does not pass the units through. So a child process tries first.
def require(precision: str, device: str) -> None:
    """Does nothing if `device` ("cpu", "cuda", …) computes in `precision`, else BadConfig says what happened."""
    if precision == "float32":
        return
    outcome = probe(precision) if device == "cpu" else None
    if device == "cuda" and precision == "bfloat16" and not torch.cuda.is_bf16_supported():
        outcome = "the GPU has no bfloat16 units"
    if outcome is not None:
        raise BadConfig(f"precision = {precision!r} does not work on this {device}: {outcome}. Use 'float32'")


@cache
def probe(precision: str) -> str | None:
    """Tries a small step on the CPU in a child process: None if it went well, else what became of the child."""
    outcome = trial(PROBE, precision)
    advice = "; with ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment it may work"
    return f"{outcome}{advice}" if outcome is not None and "signal" in outcome else outcome


def trial(program: str, argument: str) -> str | None:
    """Lets a child process do first what may kill it: None if it went well, else what became of it."""
    command = [sys.executable, "-c", program, argument]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"a trial in a child process took more than {PROBE_SECONDS} s"
    if child.returncode == 0:
        return None
    if child.returncode < 0:
        return f"a trial in a child process was killed by signal {-child.returncode}"
    reason = (child.stderr.strip().splitlines() or ["no message"])[-1]
    return f"a trial in a child process failed ({reason})"


ATTENTION = "umpteen"  # the name transformers knows `attention` by


# On a CPU torch's own masks, and its detour around fused attention, were the largest part of a training step besides
# the matrix products. Elsewhere torch's kernels stay.
class LayerDropout(nn.Dropout):
    """nn.Dropout with quick masks."""

    def forward(self, states: Tensor) -> Tensor:
        return drop(states, self.p, self.training) if states.device.type == "cpu" else super().forward(states)


def quicken_dropout(model: PreTrainedModel) -> None:
    """Gives a model's layers these masks, in place; rates, weights and everything it computes without dropout stay."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, LayerDropout(child.p))
    if model.config._attn_implementation == "sdpa":  # what transformers chooses where the family has it; MPNet has not
        AttentionInterface.register(ATTENTION, attention)
        AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        model.set_attn_implementation(ATTENTION)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **special: Any,
) -> tuple[Tensor, Tensor | None]:
    """torch's fused attention [n, heads, length, size] → [n, length, heads, size], written out where dropout is on."""
    plain = query.shape == key.shape and not getattr(module, "is_causal", True)
    asked = any(value is not None and value is not False for value in special.values())
    if asked or not (dropout and plain and query.device.type == "cpu"):
        given = {"dropout": dropout, "scaling": scaling, **special}
        attended: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **given)
        return attended
    scores = (query * (query.shape[-1] ** -0.5 if scaling is None else scaling)) @ key.transpose(2, 3)
    if attention_mask is not None:
        # Not −∞: a padding token may see nothing at all, and NaN would spread to the mean of the tokens.
        scores.masked_fill_(~attention_mask, torch.finfo(scores.dtype).min)
    weights = drop(scores.softmax(-1), dropout, training=True)
    return (weights @ value).transpose(1, 2).contiguous(), None


CONFIG_FILE = "config.json"


def load_backbone(
    folder: Path, *, random_weights: bool = False, hidden_dropout: float | None = None, layers: int | None = None
) -> PreTrainedModel:
    """A float32 model from its folder, or of its shape with weights from torch's generator; its first layers or all."""
    config = _config(folder)
    config._attn_implementation = None  # a folder's own wish may be code of a hub: transformers chooses
    if layers is not None:
        there = getattr(config, "num_hidden_layers", 0)
        if layers > there:
            raise BadConfig(f"layers = {layers}: this {config.model_type} has {there}; give {there} or fewer")
        config.num_hidden_layers = layers
    if hidden_dropout is not None:
        _override_dropout(config, hidden_dropout)
    settings = {"dtype": torch.float32, "trust_remote_code": False}
    from_files = {"use_safetensors": True, "output_loading_info": True, **settings}
    gaps: list[str] = []
    try:
        with quiet():
            if random_weights:
                model = AutoModel.from_config(config, **settings)  # type: ignore[no-untyped-call]
            else:
                model, report = AutoModel.from_pretrained(folder, config=config, **from_files)
                # transformers fills gaps with random numbers. Only the pooler's don't matter: we pool ourselves.
                gaps = sorted(name for name in report["missing_keys"] if "pooler" not in name)
            quicken_dropout(model)
    except (OSError, ImportError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as problem:
        raise BadInput(f"{folder}: transformers cannot load the model ({problem})") from problem
    if gaps:
        raise BadInput(f"{folder}: the weights lack {len(gaps)} of the model's tensors, such as {gaps[0]}")
    loaded: PreTrainedModel = model.train()
    return loaded


def train_last_layers(model: PreTrainedModel, count: int) -> None:
    """Only the last so many layers learn; no gradient is computed below them."""
    there = model.config.num_hidden_layers
    stacks = [part for part in model.modules() if isinstance(part, nn.ModuleList) and len(part) == there]
    if count > there or len(stacks) != 1:
        advice = "give fewer" if count > there else "its layers share their weights or lie elsewhere; leave it out"
        raise BadConfig(f"trained_layers = {count}: this {model.config.model_type} has {there} layers; {advice}")
    model.requires_grad_(False)
    for layer in stacks[0][there - count :]:
        layer.requires_grad_(True)


def positions(model: PreTrainedModel) -> int | None:
    """How many tokens it can take at once, if that is limited."""
    for name, module in model.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            # RoBERTa and its kin number the positions after the padding's row.
            return module.num_embeddings - (0 if module.padding_idx is None else module.padding_idx + 1)
    limit: int | None = getattr(model.config, "max_position_embeddings", None)
    return limit


def _config(folder: Path) -> PretrainedConfig:
    file = folder / CONFIG_FILE
    if not file.is_file():
        raise BadFile(file, "is missing; give the folder of a Hugging Face model")
    _refuse_other_places(folder)
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ImportError, ValueError, TypeError, KeyError, AttributeError) as problem:
        raise BadFile(file, f"is not a configuration transformers can read ({problem})") from problem
    return config


def _refuse_other_places(folder: Path) -> None:
    """Metadata by which transformers would read other files than the model's own weights beside it."""
    adapter = folder / "adapter_config.json"
    if adapter.exists():
        raise BadFile(adapter, "is of an adapter to another model; merge the two, and save the result")
    for file in (folder / CONFIG_FILE, *sorted(folder.glob("*.safetensors.index.json"))):
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            named = {*content.get("weight_map", {}).values(), *content.get("configuration_files", ())}
            named |= {content.get("transformers_weights", WEIGHTS_FILE)} - {None}
        except (ValueError, TypeError, AttributeError) as problem:
            raise BadFile(file, f"is not what transformers writes ({problem})") from problem
        for name in named:
            if not (isinstance(name, str) and name == Path(name).name and name.endswith(".safetensors")):
                raise BadFile(file, f"names {name!r}, which is no .safetensors file beside it; save the model again")


def _override_dropout(config: PretrainedConfig, hidden_dropout: float) -> None:
    """Every family has its own names for the rates in its layers; those of classification heads stay."""
    numbers = [name for name, value in config.to_dict().items() if isinstance(value, int | float)]
    rates = [name for name in numbers if ("dropout" in name or "pdrop" in name) and "classif" not in name]
    if not rates:
        raise BadConfig(f"hidden_dropout = {hidden_dropout}: a {config.model_type} has no dropout; leave it out")
    for name in rates:
        setattr(config, name, hidden_dropout)


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bar and no report on the console while transformers loads; the command line draws its own."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            with warnings.catch_warnings(action="ignore"):  # where the environment forbids bars, it says so
                logging.enable_progress_bar()  # type: ignore[no-untyped-call]
