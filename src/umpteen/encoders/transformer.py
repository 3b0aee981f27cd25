"""Any Hugging Face encoder, pooled into one vector a text."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from umpteen.config.settings import TransformerTower
from umpteen.data.tokens import places
from umpteen.encoders import backbone as precisions
from umpteen.encoders import folder as layout
from umpteen.encoders.backbone import load_backbone, positions, quiet, train_last_layers
from umpteen.encoders.encoder import Change, Encoder, Place, micro_batches
from umpteen.errors import BadInput

PADDED_TOGETHER = 1_024  # tokens of texts of similar length: enough to fill a core, and little is padding


class TransformerEncoder(Encoder):
    """Transformer → mean of the tokens, or the first one → projection → dropout → length 1; the last three optional."""

    def __init__(
        self,
        tokenizer: layout.TextTokenizer,
        model: PreTrainedModel,
        *,
        pooling: str = "mean",
        projection: int | None = None,
        precision: str = "float32",
        trained_layers: int | None = None,
        **how: Any,
    ) -> None:
        super().__init__(**how)
        if pooling not in ("mean", "first") or precision not in precisions.DTYPES:  # a saved folder may say anything
            known = f"known are mean and first, {', '.join(precisions.DTYPES)}"
            raise ValueError(f"pooling = {pooling!r}, precision = {precision!r}: {known}")
        if tokenizer.vocabulary_size > model.config.vocab_size:
            both = f"{tokenizer.vocabulary_size:,} tokens but the model {model.config.vocab_size:,}"
            raise BadInput(f"the tokenizer has {both}; take both from the same model")
        size: int = model.config.hidden_size
        self.tokenizer = tokenizer.within(positions(model))
        self.model, self.pooling, self.trained_layers = model, pooling, trained_layers
        self.runtime: Any = None  # what computes the last states [n, longest, h] in the place of torch
        self.projection = None if projection is None else nn.Linear(size, projection)
        self.dimension = size if projection is None else projection
        self.precision, self._dtype = precision, precisions.DTYPES[precision]
        if trained_layers is not None:
            train_last_layers(model, trained_layers)
        # Some models (RoBERTa) count positions from the padding's id, so it has to be the model's.
        padding = model.config.pad_token_id
        self.pad_id: int = tokenizer.pad_id if padding is None else padding

    @classmethod
    def load(cls, source: str | Path, *, max_length: int = 128, **own: Any) -> "TransformerEncoder":
        """A model from a folder or the hub, as `load_backbone` has it, with what else its encoder takes.

        `hidden_dropout` overrides the rates inside its layers, attention included; `trained_layers` trains the last so
        many and nothing below them. Of a text of more tokens than it has positions, pieces are read one by one.
        """
        shape = {name: own.pop(name) for name in ("random_weights", "hidden_dropout", "layers") if name in own}
        folder = layout.locate(source, weights=not shape.get("random_weights"))
        tokenizer = layout.TextTokenizer.load(folder, max_length, special_tokens=True)
        return cls(tokenizer, load_backbone(folder, **shape), **own)

    @classmethod
    def build(cls, settings: TransformerTower, place: Place) -> "TransformerEncoder":
        own = settings.model_dump(exclude={"kind", "start", "learning_rate", "weight", "skip"})
        return cls.load(settings.start, **own)

    @property
    def pads(self) -> bool:
        return next(self.parameters()).device.type == "cpu"

    @property
    def token_budget(self) -> int:
        # A CPU gains nothing beyond this: padding grows, and memory for larger states is fetched anew for each layer.
        return 4_096 if next(self.parameters()).device.type == "cpu" else 16_384

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        if offsets.numel() == 1:
            return next(self.parameters()).new_zeros(0, self.dimension)
        pieces, text = _pieces(offsets, self.tokenizer.window)
        starts, lengths = pieces[:-1], pieces.diff()
        # A GPU would rather pad than be called again; a CPU pays for each padding token.
        parts = micro_batches(lengths.numpy(), PADDED_TOGETHER) if self.pads else [np.arange(len(starts))]
        order = torch.from_numpy(np.concatenate(parts)).to(ids.device)
        places_of = torch.split(order, [*map(len, parts)])
        found = torch.cat([self._pooled(ids, starts[part], lengths[part]) for part in places_of])
        vectors = torch.empty_like(found).index_copy(0, order, found)
        if len(vectors) >= len(offsets):  # some texts have several pieces, which count by their tokens
            total = vectors.new_zeros(len(offsets) - 1, vectors.shape[1])
            vectors = total.index_add(0, text, vectors * lengths[:, None]) / offsets.diff()[:, None].clamp_min(1)
        if self.projection is not None:
            vectors = self.projection(vectors)
        return self.finished(vectors)

    def _pooled(self, ids: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
        """The vectors of some stretches of ids, padded to the longest of them."""
        place = torch.arange(max(int(lengths.max()), 1), device=ids.device)
        mask = place < lengths[:, None]  # [n, longest]
        padded = ids.new_full(mask.shape, self.pad_id)
        padded[mask] = ids[(starts[:, None] + place)[mask]]
        # A text without tokens attends to one padding token, and its vector is zeroed below.
        attended = mask.clone()
        attended[:, 0] = True
        states = (self.runtime or self._states)(padded, attended.long())  # [n, longest, h]
        if self.pooling == "first":
            return states[:, 0] * mask[:, :1]
        return (states * mask[:, :, None]).sum(1) / lengths[:, None].clamp_min(1)

    def _states(self, ids: Tensor, mask: Tensor) -> Tensor:
        precisions.require(self.precision, ids.device.type)
        with torch.autocast(ids.device.type, self._dtype, enabled=self.precision != "float32"):
            states: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return states.float() if self.precision != "float32" else states

    def with_transformers(self, change: Change) -> Encoder:
        changed: Encoder = change(self)
        return changed

    def save(self, folder: Path, beside: Encoder | None = None) -> None:
        with quiet():
            self.model.save_pretrained(folder)
        self.tokenizer.save(folder)
        limits = {"max_seq_length": self.tokenizer.window, "do_lower_case": False}
        layout.write_json(folder / "sentence_bert_config.json", limits)
        modes = {"pooling_mode_cls_token": self.pooling == "first", "pooling_mode_mean_tokens": self.pooling == "mean"}
        pooling = {"word_embedding_dimension": self.model.config.hidden_size, **modes}
        layout.write_json(folder / "1_Pooling" / "config.json", pooling)
        modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
        if self.projection is not None:
            sizes = {"in_features": self.projection.in_features, "out_features": self.projection.out_features}
            dense = {**sizes, "bias": True, "activation_function": "torch.nn.modules.linear.Identity"}
            layout.write_json(folder / "2_Dense" / "config.json", dense)
            tensors = {"linear.weight": self.projection.weight, "linear.bias": self.projection.bias}
            layout.write_tensors(folder / "2_Dense" / layout.WEIGHTS_FILE, tensors)
            modules.append(("Dense", "2_Dense"))
        if self.normalise:
            modules.append(("Normalize", f"{len(modules)}_Normalize"))
        in_pieces = self.tokenizer.window < self.tokenizer.max_length  # sentence-transformers would cut
        own = {name: getattr(self, name) for name in ("pooling", "precision", "trained_layers")}
        own["projection"] = None if self.projection is None else self.projection.out_features
        about = {"kind": "transformer", **own, "max_length": self.tokenizer.max_length}
        self.write_settings(folder, layout.OWN_MODULES if in_pieces else modules, **about)

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any], beside: Encoder | None = None) -> "TransformerEncoder":
        weight = bias = None
        if settings["projection"] is not None:
            tensors = layout.read_tensors(folder / "2_Dense" / layout.WEIGHTS_FILE)
            weight, bias = tensors["linear.weight"], tensors["linear.bias"]
        own = {name: settings[name] for name in ("pooling", "normalise", "dropout", "precision")}
        own["trained_layers"] = settings.get("trained_layers")
        own["projection"] = None if bias is None else len(bias)  # as many as there are: others would only cost memory
        tokenizer = layout.TextTokenizer.read(folder, settings["max_length"], special_tokens=True)
        encoder = cls(tokenizer, load_backbone(folder), **own)
        if encoder.projection is not None:
            encoder.projection.load_state_dict({"weight": weight, "bias": bias})
        return encoder

    def describe(self) -> str:
        unit = "unit vectors" if self.normalise else "vectors"
        layers = getattr(self.model.config, "num_hidden_layers", "?")
        pooled = "mean of the tokens" if self.pooling == "mean" else "first token"
        precision = "" if self.precision == "float32" else f", {self.precision}"
        read = f"{self.model.config.model_type} of {layers} layers, {pooled}, up to {self.tokenizer.max_length} tokens"
        return f"{read}, {unit} of {self.dimension}{precision}"


def _pieces(offsets: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Offsets of pieces of at most so many tokens, and which text each is a piece of; a short text is one piece."""
    counts = -(offsets.diff() // -window).clamp_max(-1)
    text = torch.repeat_interleave(torch.arange(len(counts), device=offsets.device), counts)
    number = places(counts - counts.cumsum(0), counts)  # within the text
    return torch.cat([offsets[:-1][text] + window * number, offsets[-1:]]), text
