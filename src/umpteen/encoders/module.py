"""The module sentence-transformers loads for encoders it has none for: bigrams, frozen ones, towers of several parts.

Such a folder names a class outside sentence-transformers, which asks for umpteen to be installed, and for
SentenceTransformer(folder, trust_remote_code=True).
"""

from pathlib import Path
from typing import Any

from sentence_transformers.base.modules.input_module import InputModule
from torch import Tensor

from umpteen.encoders.encoder import Encoder
from umpteen.encoders.folder import LABEL_FOLDER
from umpteen.encoders.towers import Towers


class EncoderModule(InputModule):
    """One of our encoders, texts in, vectors out."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.encoder = encoder
        self.tokenizer = None  # type: ignore[assignment]  # each of several parts has its own, inside

    def preprocess(self, inputs: Any, prompt: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        ids, offsets = self.encoder.read_now(self._prepend_prompt(list(inputs), prompt or ""))
        return {"input_ids": ids, "offsets": offsets}

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        features["sentence_embedding"] = self.encoder(features["input_ids"], features["offsets"])
        return features

    def get_embedding_dimension(self) -> int:
        return self.encoder.dimension

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        self.encoder.save(Path(output_path))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> "EncoderModule":  # type: ignore[override]
        """The encoder of a saved tower, or of a whole model's folder the one that the subfolder names."""
        towers = Towers.load(model_name_or_path)
        return cls(towers.label if Path(subfolder).parts[:1] == (LABEL_FOLDER,) else towers.query)
