"""The module sentence-transformers loads for a static encoder with hashed bigrams; it needs umpteen installed.

Such a folder names a class outside sentence-transformers, which asks for SentenceTransformer(folder,
trust_remote_code=True).
"""

from typing import Any

from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer
from torch import Tensor, nn

from umpteen.encoders.static import bigram_buckets, weighted_mean


class StaticBigrams(StaticEmbedding):
    """sentence-transformers' bag of word pieces, plus the mean over hashed pairs of neighbours."""

    def __init__(self, tokenizer: Tokenizer, table: Tensor, bigrams: Tensor) -> None:
        super().__init__(tokenizer, embedding_weights=table)
        self.bigrams = nn.EmbeddingBag.from_pretrained(bigrams, freeze=False)

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        ids = features["input_ids"]
        offsets = nn.functional.pad(features["offsets"], (0, 1), value=len(ids))
        pairs = bigram_buckets(ids, offsets, self.bigrams.num_embeddings)
        words = weighted_mean(self.embedding.weight, None, ids, offsets)
        features["sentence_embedding"] = words + weighted_mean(self.bigrams.weight, None, *pairs)
        return features

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> "StaticBigrams":
        place: dict[str, Any] = {
            "subfolder": subfolder,
            "token": token,
            "cache_folder": cache_folder,
            "revision": revision,
            "local_files_only": local_files_only,
        }
        words = super().load(model_name_or_path, **place)
        tensors = cls.load_torch_weights(model_name_or_path, **place)
        return cls(words.tokenizer, tensors["embedding.weight"], tensors["bigrams.weight"])
