"""A tower of several encoders of the same text: their vectors added up, or set side by side.

Side by side, each part is trained to rank by itself, and the weights may still be chosen afterwards.
"""

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from umpteen.config.settings import PARTS, PartsTower, TowerConfig
from umpteen.data.tokens import JoinedTokens, TokenTable, segments
from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import Change, Encoder, Leaf, Place, Read, Share, class_of, read_encoder
from umpteen.errors import BadConfig, DamagedModel
from umpteen.parallel.world import Shard

OfParts = Mapping[str, float] | None  # by name


class PartsEncoder(Encoder):
    """sum: length 1 of Σ w_p·v_p, all w but the first learned. concat: √w_p·v_p side by side, w adding up to 1.

    `skip` is, for each part, the share of a step's texts that go without it: a strong part must not drown the others.
    """

    def __init__(
        self, parts: Mapping[str, Encoder], how: str, *, weights: OfParts = None, skip: OfParts = None, **own: Any
    ) -> None:
        super().__init__(**own)
        self.normalise = self.normalise and how == "sum"
        sizes = {name: part.dimension for name, part in parts.items()}
        if how == "sum" and len(set(sizes.values())) > 1:
            raise BadConfig(f"the parts of a sum have vectors of different sizes ({sizes}); give them one dimension")
        self.parts = nn.ModuleDict(parts)
        self.how = how
        self.skip = {name: (skip or {}).get(name, 0.0) for name in parts}
        self.dimension = next(iter(sizes.values())) if how == "sum" else sum(sizes.values())
        start = torch.tensor([(weights or {}).get(name, 1.0) for name in parts])
        self.weights = nn.Parameter(start, requires_grad=how == "sum")
        # Only the proportions of a sum matter, and a table's rows have whatever length they learn.
        self._fixed = [number == 0 or name == "table" for number, name in enumerate(parts)]

    @classmethod
    def build(cls, settings: PartsTower, place: Place) -> "PartsEncoder":
        parts: dict[str, Encoder] = {}
        for name, own in settings.parts.items():
            if name == "table":  # it adds to the first part's vectors
                place = place._replace(beside=next(iter(parts.values())))
            parts[name] = class_of(name).build(own, place)
        given = {name: own.model_dump(include={"weight", "skip"}) for name, own in settings.parts.items()}
        weights, skip = ({name: own[key] for name, own in given.items()} for key in ("weight", "skip"))
        how = settings.model_dump(include={"normalise", "dropout"})
        return cls(parts, settings.kind, weights=weights, skip=skip, **how)

    def start(self, settings: PartsTower, leaves: list[Leaf]) -> None:
        for name, own in settings.parts.items():
            self.encoders[name].start(own, leaves)

    @property
    def encoders(self) -> dict[str, Encoder]:
        """The parts by kind, in order."""
        return dict(self.parts.items())  # type: ignore[arg-type]

    def rearrange(self, rows: Tensor, labels: Shard, seed: int) -> None:
        for part in self.encoders.values():
            part.rearrange(rows, labels, seed)

    def takes(self, read: Read, rows: NDArray[np.int64]) -> TokenTable:
        return JoinedTokens([part.takes(read, rows) for part in self.encoders.values()])

    def leaves(self, tokens: TokenTable) -> list[Leaf]:
        assert isinstance(tokens, JoinedTokens)
        parts = zip(self.encoders.values(), tokens.parts, strict=True)
        return [leaf for part, own in parts for leaf in part.leaves(own)]

    @property
    def shares(self) -> list[Share]:
        if self.how == "sum":
            return super().shares
        found, start = [], 0
        for part, share in zip(self.encoders.values(), self._proportions().tolist(), strict=True):
            found.append(Share(slice(start, start + part.dimension), share))
            start += part.dimension
        return found

    def learned_weights(self) -> Tensor:
        """Of a sum: the weights, of which the first part's and a table's stay as they are."""
        return torch.where(torch.tensor(self._fixed, device=self.weights.device), self.weights.detach(), self.weights)

    def _proportions(self) -> Tensor:
        return self.weights / self.weights.sum()

    def weigh(self, weights: Mapping[str, float]) -> None:
        """Sets how much each part's score counts from now on."""
        with torch.no_grad():
            self.weights.copy_(torch.tensor([weights[name] for name in self.parts]))

    def rates(self, settings: TowerConfig, usual: float) -> list[tuple[nn.Module, float]]:
        usual = settings.learning_rate or usual
        known = settings.parts  # a trained tower may have others
        parts = [rate for name, part in self.encoders.items() for rate in part.rates(known.get(name, settings), usual)]
        return [*parts, (self, usual)]

    @property
    def pads(self) -> bool:
        return any(part.pads for part in self.encoders.values())

    @property
    def token_budget(self) -> int:
        return min(part.token_budget for part in self.encoders.values())

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        parts = zip(self.encoders.items(), segments(ids, offsets, len(self.parts)), strict=True)
        found = [self._kept(name, part(*segment)) for (name, part), segment in parts]
        if self.how == "sum":
            vectors = torch.stack(found, 1).mul(self.learned_weights()[:, None]).sum(1)
        else:
            vectors = torch.cat([v * w.sqrt() for v, w in zip(found, self._proportions(), strict=True)], 1)
        return self.finished(vectors)

    def _kept(self, name: str, vectors: Tensor) -> Tensor:
        if not self.training or not self.skip[name]:
            return vectors
        return vectors * (torch.rand(len(vectors), 1, device=vectors.device) >= self.skip[name])

    def with_transformers(self, change: Change) -> Encoder:
        twin = copy(self)
        parts = {name: part.with_transformers(change) for name, part in self.encoders.items()}
        twin._modules = {**self._modules, "parts": nn.ModuleDict(parts)}
        return twin

    def save(self, folder: Path, beside: Encoder | None = None) -> None:
        for name, part in self.encoders.items():
            part.save(folder / name, beside)
        layout.write_tensors(folder / layout.WEIGHTS_FILE, {"weights": self.weights})
        self.write_settings(folder, layout.OWN_MODULES, kind=self.how, skip=self.skip)

    @classmethod
    def read(cls, folder: Path, settings: dict[str, Any], beside: Encoder | None) -> "PartsEncoder":
        skip = {str(name): float(rate) for name, rate in settings["skip"].items()}
        if not skip or set(skip) - set(PARTS) or not all(0 <= rate < 1 for rate in skip.values()):
            raise DamagedModel(f"{folder}: skips the parts {skip}; there is {', '.join(PARTS)}, each from 0 to below 1")
        parts = {name: read_encoder(folder / name, beside) for name in skip}
        encoder = cls(parts, settings["kind"], skip=skip, **{name: settings[name] for name in ("normalise", "dropout")})
        weights = layout.read_tensors(folder / layout.WEIGHTS_FILE)["weights"]
        if not torch.isfinite(weights).all() or (encoder.how == "concat" and not (weights > 0).all()):
            raise DamagedModel(f"{folder}: its parts' weights are {weights.tolist()}; copy or save the model again")
        encoder.weigh(dict(zip(parts, weights.tolist(), strict=True)))
        return encoder

    def describe(self) -> str:
        parts = "; ".join(part.describe() for part in self.encoders.values())
        return f"{'sum' if self.how == 'sum' else 'scores added up'} of {len(self.parts)} parts ({parts})"
