"""Benchmark: everything around the loss. Tokenising, encoding, the whole training step, batching, evaluation.

Each stage beside what it would be without us: the bare tokenizers library, sentence-transformers, a step written
naively, a dense search. Texts and labels are a dataset's own.
"""

from collections.abc import Callable
from functools import partial
from itertools import chain, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer

from benchmarks.steps import static_step, transformer_step
from benchmarks.turns import Turns
from umpteen.data.dataset import Dataset, open_dataset
from umpteen.data.tokens import TokenTable, tokenise
from umpteen.encoders.backbone import quiet
from umpteen.encoders.encoder import encode_tokens, tokens_now
from umpteen.encoders.folder import TOKENIZER_FILE, TextTokenizer, locate
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.encoders.transformer import TransformerEncoder
from umpteen.errors import BadInput
from umpteen.evaluation.report import Evaluator
from umpteen.files.progress import Progress
from umpteen.search.exact import top_k

MODEL = "all-MiniLM-L6-v2"
DATASET = "wordnet-nouns"
MAX_LENGTH = 64  # tokens
BATCH_SIZE = 32  # texts, sentence-transformers' own default
STATIC_BIGRAMS = 100_000  # as in the demo's recipe, whose dropout on the vectors is:
STATIC_DROPOUT = 0.3


def run(
    texts: int = 20_000,
    labels: int | None = None,
    *,
    batch: int = 256,
    repeats: int = 3,
    source: str | Path = DATASET,
    model: str | Path = MODEL,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """A row for each stage. `labels` takes only the first ones of the dataset, for a quick look.

    tokenise_ratio, encode_ratio, step_ratio, search_ratio: their seconds ÷ ours, so more than 1 where we are faster.
    outside_products: share of a step's time that is neither matrix product nor fused attention, on one thread.
    batching_share: share of a step that goes into drawing the batch, finding its texts and fetching their tokens.
    """
    if min(texts, batch, repeats) < 1 or (labels is not None and labels < 2):
        raise BadInput("the benchmark needs one text, one query in a batch, one repeat and two labels or more")
    dataset = open_dataset(source)
    some = texts_of(dataset, texts)
    transformer = TransformerEncoder.load(model, max_length=MAX_LENGTH)
    static = [
        StaticEncoder.from_token_table(model, bigrams=bigrams, dropout=STATIC_DROPOUT, max_length=MAX_LENGTH)
        for bigrams in (STATIC_BIGRAMS, 0)
    ]
    stages = [
        partial(tokenising, some, model, transformer.tokenizer, repeats),
        partial(encoding, some, transformer, repeats),
        partial(transformer_step, dataset, transformer, labels, batch, repeats),
        partial(static_step, dataset, Towers(*static), labels, batch, repeats),
        partial(evaluation, dataset, Towers(*static), repeats),
    ]
    results = []
    for number, stage in enumerate(stages):
        results.append(stage())
        if progress is not None:
            progress("measuring", number + 1, len(stages))
    return {
        "benchmark": "pipeline",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dataset": dataset.name,
        "model": str(model),
        "max_length": MAX_LENGTH,
        "repeats": repeats,
        "results": results,
    }


def texts_of(dataset: Dataset, count: int) -> list[str]:
    """Label texts, then query texts, then from the beginning again until there are enough."""
    splits = [split.texts for split in (dataset.train, dataset.validation, dataset.test) if split is not None]
    every = chain.from_iterable((texts[row] for row in range(len(texts))) for texts in (dataset.labels.texts, *splits))
    return list(islice(cycle(every), count))


def tokenising(texts: list[str], model: str | Path, tokenizer: TextTokenizer, repeats: int) -> dict[str, Any]:
    """Texts to token tables, against the library that does the work, its result left as it is."""
    bare = Tokenizer.from_file(str(locate(model, weights=False) / TOKENIZER_FILE))
    bare.no_padding()
    bare.enable_truncation(tokenizer.max_length)
    sides = {
        "ours": lambda: TokenTable.of(tokenizer(texts), tokenizer.vocabulary_size),
        "theirs": lambda: bare.encode_batch(texts),
    }
    turns = Turns(sides, repeats)
    return {
        "stage": "tokenising",
        "texts": len(texts),
        "texts_per_second": len(texts) / turns.seconds["ours"],
        "tokenise_ratio": turns.ratio("theirs", to="ours"),
        "seconds": turns.seconds,
    }


def encoding(texts: list[str], encoder: TransformerEncoder, repeats: int) -> dict[str, Any]:
    """Texts to vectors with a transformer, tokenising included, against sentence-transformers with the same weights.

    Their batches have 32 texts; ours as many padded tokens as 32 texts of average length have.
    """
    from sentence_transformers import SentenceTransformer

    encoder.eval()
    with TemporaryDirectory() as folder:
        Towers(encoder).save(Path(folder))
        with quiet():
            theirs = SentenceTransformer(folder, device="cpu", local_files_only=True, trust_remote_code=False)
    tokens = sum(map(len, encoder.tokenizer(texts)))
    token_budget = BATCH_SIZE * -(-tokens // len(texts))

    def by_them(texts: list[str]) -> torch.Tensor:
        vectors = theirs.encode(texts, batch_size=BATCH_SIZE, convert_to_tensor=True, show_progress_bar=False)
        return torch.as_tensor(vectors)

    few = texts[: 8 * BATCH_SIZE]  # to warm up, and to compare

    def by_us(asked: list[str]) -> torch.Tensor:  # all at once, where `encode_texts` takes 16,384 at a time
        return encode_tokens(encoder, tokens_now(encoder, asked), token_budget)

    difference = (by_us(few) - by_them(few)).abs().max()
    sides = {"ours": lambda: by_us(texts), "theirs": lambda: by_them(texts)}
    turns = Turns(sides, repeats)
    return {
        "stage": "encoding",
        "texts": len(texts),
        "tokens": tokens,
        "batch_size": BATCH_SIZE,
        "token_budget": token_budget,
        "texts_per_second": len(texts) / turns.seconds["ours"],
        "encode_ratio": turns.ratio("theirs", to="ours"),
        "largest_difference": float(difference),
        "seconds": turns.seconds,
    }


def evaluation(dataset: Dataset, towers: Towers, repeats: int) -> dict[str, Any]:
    """A test split evaluated with a static model: where the time goes, and the search against a dense one."""
    split = dataset.test or dataset.train
    evaluator = Evaluator(dataset, split)
    towers.eval()
    tables = tokenise(dataset.labels.texts, towers.label.tokenizer), tokenise(split.texts, towers.query.tokenizer)
    labels, queries = encode_tokens(towers.label, tables[0]), encode_tokens(towers.query, tables[1])
    best = max(evaluator.at)
    ranking = top_k(queries, labels, best, excluding=split.filtered.matrix)
    sides: dict[str, Callable[[], object]] = {
        "encode": lambda: (encode_tokens(towers.label, tables[0]), encode_tokens(towers.query, tables[1])),
        "search": lambda: top_k(queries, labels, best),
        "dense_search": lambda: (queries @ labels.T).topk(best),
        "metrics": lambda: evaluator.report(ranking, bootstrap=0),
        "metrics_with_intervals": lambda: evaluator.report(ranking),
    }
    turns = Turns(sides, repeats)
    whole = sum(turns.seconds[part] for part in ("encode", "search", "metrics"))
    return {
        "stage": "evaluation",
        "labels": len(labels),
        "queries": len(queries),
        "queries_per_second": len(queries) / whole,
        "search_ratio": turns.ratio("dense_search", to="search"),
        "seconds": turns.seconds,
    }
