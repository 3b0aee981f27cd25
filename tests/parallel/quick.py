"""A recipe on the miniature that starts at once."""

from pathlib import Path

from miniature import write_recipe
from tiny import tiny_tokenizer

# A static encoder with random weights: nothing has to wait for transformers.
RANDOM = ("encoder.query.random_weights=true", "encoder.query.dimension=32")


def quick_recipe(folder: Path, *changes: str) -> Path:
    tiny_tokenizer(folder / "start")
    return write_recipe(folder, *RANDOM, *changes)
