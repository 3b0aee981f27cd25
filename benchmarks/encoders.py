"""Benchmark: texts a second of a transformer by onnxruntime beside torch, one text and several at a time.

Real texts of wordnet-nouns, tokenised on the way, as a service encodes them; both sides take turns in one process.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks.turns import Turns
from umpteen.data.dataset import open_dataset
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.runtime import export
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.files.progress import Progress
from umpteen.model.catalogue import encode_new

DATA, MODEL = "wordnet-nouns", "all-MiniLM-L6-v2"
BATCHES, THREADS = (1, 32), (1, 2)


def run(model: str = MODEL, *, texts: int = 64, repeats: int = 7, progress: Progress | None = None) -> dict[str, Any]:
    """results: a line for each number of threads and of texts encoded together; ratio: onnx ÷ torch, of speeds.

    error: the largest difference of two numbers of the vectors.
    """
    tower, known = TransformerEncoder.load(model).eval(), open_dataset(DATA).train.texts
    chosen = [known[row * len(known) // texts] for row in range(texts)]
    outcome: dict[str, Any] = {"model": model, "texts": texts, "repeats": repeats}
    had, results = torch.get_num_threads(), []
    with TemporaryDirectory() as made:
        sides: dict[str, Encoder] = {"torch": tower, "onnx": export(tower, Path(made))}
        vectors = [encode_new(side, chosen) for side in sides.values()]
        try:
            for threads in THREADS:
                torch.set_num_threads(threads)
                for batch in BATCHES:
                    results.append({"threads": threads, "batch": batch, **_measured(sides, chosen, batch, repeats)})
                    if progress is not None:
                        progress("encoding", len(results), len(THREADS) * len(BATCHES))
        finally:
            torch.set_num_threads(had)
    return {**outcome, "error": float((vectors[0] - vectors[1]).abs().max()), "results": results}


def _measured(sides: dict[str, Encoder], texts: list[str], batch: int, repeats: int) -> dict[str, float]:
    def encode(tower: Encoder) -> None:
        for start in range(0, len(texts), batch):
            encode_new(tower, texts[start : start + batch])

    for tower in sides.values():  # sessions are opened, and memory is there
        encode(tower)
    turns = Turns({name: lambda tower=tower: encode(tower) for name, tower in sides.items()}, repeats)  # type: ignore[misc]
    speeds = {f"{name}_texts_a_second": round(len(texts) / one, 1) for name, one in turns.seconds.items()}
    return {**speeds, "ratio": round(turns.ratio("torch", "onnx"), 3)}
