"""The bare Hugging Face transformer under an encoder: loaded quietly, complete or not at all.

The folder may come from a stranger: none of its code runs, nothing is unpickled, and no file outside it is read.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from umpteen.encoders.layer_dropout import quicken_dropout
from umpteen.encoders.layout import WEIGHTS_FILE
from umpteen.errors import BadConfig, BadFile, BadInput

CONFIG_FILE = "config.json"
ADAPTER_FILE = "adapter_config.json"


def load_backbone(
    folder: Path, *, random_weights: bool = False, hidden_dropout: float | None = None
) -> PreTrainedModel:
    """A float32 model from its folder; `random_weights` takes its shape only, drawn from torch's generator."""
    config = _config(folder)
    if hidden_dropout is not None:
        _override_dropout(config, hidden_dropout)
    settings = {"attn_implementation": "sdpa", "dtype": torch.float32, "trust_remote_code": False}
    missing: list[str] = []
    try:
        with quiet():
            if random_weights:
                model = AutoModel.from_config(config, **settings)  # type: ignore[no-untyped-call]
            else:
                model, report = AutoModel.from_pretrained(
                    folder, config=config, use_safetensors=True, output_loading_info=True, **settings
                )
                missing = sorted(report["missing_keys"])
            quicken_dropout(model)
    except (OSError, ImportError, ValueError, TypeError, KeyError, RuntimeError, SafetensorError) as problem:
        raise BadInput(f"{folder}: transformers cannot load the model ({problem})") from problem
    # transformers fills gaps with random numbers. Only the pooler's don't matter: we pool ourselves.
    gaps = [name for name in missing if "pooler" not in name]
    if gaps:
        raise BadInput(f"{folder}: the weights lack {len(gaps)} of the model's tensors, such as {gaps[0]}")
    loaded: PreTrainedModel = model.train()
    return loaded


def check_sizes(model: PreTrainedModel, max_length: int, vocabulary_size: int) -> None:
    """The model has a position for every token of the longest text, and a row for every token."""
    limit = _positions(model)
    if limit is not None and max_length > limit:
        raise BadConfig(
            f"max_length = {max_length}: this {model.config.model_type} knows {limit} positions; give {limit} or less"
        )
    if vocabulary_size > model.config.vocab_size:
        raise BadInput(
            f"the tokenizer has {vocabulary_size:,} tokens but the model {model.config.vocab_size:,}; "
            "take both from the same model"
        )


def _positions(model: PreTrainedModel) -> int | None:
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
    adapter = folder / ADAPTER_FILE
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
    rates = [
        name
        for name, value in config.to_dict().items()
        if ("dropout" in name or "pdrop" in name) and "classif" not in name and isinstance(value, int | float)
    ]
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
