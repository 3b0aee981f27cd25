"""Datasets: labels, queries, and which belongs to which, memory-mapped from any known format."""

from umpteen.data.dataset import Dataset, open_dataset
from umpteen.data.labels import LabelCatalogue, Relevance, Split
from umpteen.data.texts import Texts, TextsWriter

__all__ = ["Dataset", "LabelCatalogue", "Relevance", "Split", "Texts", "TextsWriter", "open_dataset"]
