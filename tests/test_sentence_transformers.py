"""The losses in sentence-transformers are our objectives over the distinct texts of a batch, and its trainer runs."""

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers
import torch
from packaging.version import Version
from scipy.sparse import csr_array
from sentence_transformers import SentenceTransformer, SparseEncoder
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MatryoshkaLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding
from sentence_transformers.sparse_encoder.losses import SpladeLoss
from sentence_transformers.sparse_encoder.modules import SpladePooling
from sentence_transformers.util import dot_score, pairwise_cos_sim
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import normalize

from test_docs import ROOT, blocks_of
from tiny import tiny_transformer
from umpteen.errors import BadInput
from umpteen.evaluation.report import evaluate
from umpteen.objectives import Pairs, Targets, reference
from umpteen.parallel.world import World
from umpteen.search.ranking import Ranking
from umpteen.sentence_transformers import (
    DecoupledSoftmaxLoss,
    ManyPositivesLoss,
    MultiLabelCollator,
    MultiLabelEvaluator,
    MultiPositiveSoftmaxLoss,
    QueryBatchSampler,
    SoftTopKLoss,
)
from worlds import run_world

LABELS = ["law", "fish", "tax", "trade", "food", "library", "book", "network", "dog"]
# Query → its labels; "fish" is of three queries, and "the tree of food" has no labels of its own
RELEVANT = {
    "the law of fish": ["law", "fish"],
    "tax and trade": ["tax", "trade", "law"],
    "food in the library": ["food", "library", "book", "fish"],
    "a network dog": ["network"],
}
PAIRS = [(query, label) for query, labels in RELEVANT.items() for label in labels]

LOSSES: dict[str, tuple[Callable[..., ManyPositivesLoss], Callable[..., Tensor]]] = {
    "decoupled": (DecoupledSoftmaxLoss, reference.decoupled_softmax),
    "softmax": (MultiPositiveSoftmaxLoss, reference.softmax),
    "soft top 2": (
        lambda model, **how: SoftTopKLoss(model, 2, **how),
        lambda scores, targets: reference.soft_top_k(scores, targets, k=2, alpha=2.0),
    ),
    "soft top positives": (
        lambda model, **how: SoftTopKLoss(model, "positives", alpha=1.0, **how),
        lambda scores, targets: reference.soft_top_k(scores, targets, k="positives", alpha=1.0),
    ),
}
# Before 6.2 their gradient cache replays in float32, whatever the model is in.
TOLERANCE = 1e-10 if Version(sentence_transformers.__version__) >= Version("6.2") else 1e-5
every_loss = pytest.mark.parametrize("loss", LOSSES)


def transformer(folder: Path) -> SentenceTransformer:
    return loaded(tiny_transformer(folder))


def loaded(folder: str) -> SentenceTransformer:
    start = Transformer(folder)
    return plain(SentenceTransformer(modules=[start, Pooling(start.get_embedding_dimension())], device="cpu"))


def plain(model: Any) -> Any:
    """In training, in float64, without dropout."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.double().train()


def static(folder: Path) -> SentenceTransformer:
    tiny_transformer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=12)], device="cpu").double()


@pytest.fixture
def model(tmp_path: Path) -> SentenceTransformer:
    return transformer(tmp_path)


def columns(model: SentenceTransformer, *texts: list[str]) -> list[dict[str, Any]]:
    return [model.preprocess(column) for column in texts]


def judged(
    model: SentenceTransformer,
    formula: Callable[..., Tensor],
    queries: list[str],
    labels: list[str],
    relevant: dict[str, list[str]] = RELEVANT,
    *,
    scale: float = 20.0,
    cosine: bool = True,
) -> Tensor:
    """The formula over distinct texts, every one encoded once."""
    sides = [model(model.preprocess(texts))["sentence_embedding"] for texts in (queries, labels)]
    x, z = (normalize(side) for side in sides) if cosine else sides
    known = [(row, labels.index(label)) for row, query in enumerate(queries) for label in relevant.get(query, ())]
    pairs = Pairs(*torch.tensor(known).unbind(1))
    return formula(x @ z.T * scale, Targets(pairs, pairs, len(queries)))


def assert_same(model: SentenceTransformer, found: Tensor, expected: Tensor) -> None:
    values, sides = [], []
    for loss in (found, expected):
        model.zero_grad()
        loss.backward()
        values.append(loss.detach())
        sides.append({name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None})
    torch.testing.assert_close(values[0], values[1], rtol=TOLERANCE, atol=TOLERANCE)
    assert sides[0].keys() == sides[1].keys() and sides[0]
    for name, gradient in sides[1].items():
        torch.testing.assert_close(sides[0][name], gradient, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("mini_batch_size", [None, 2])
@every_loss
def test_pairs_are_our_objective_over_their_distinct_texts(
    loss: str, mini_batch_size: int | None, model: SentenceTransformer
) -> None:
    make, formula = LOSSES[loss]
    rows = [PAIRS[at] for at in (3, 0, 7, 5, 1, 2, 0, 4, 6, 8, 9)]  # in no order, one of them twice
    ours = make(model, mini_batch_size=mini_batch_size)
    found = ours(columns(model, *(list(side) for side in zip(*rows, strict=True))))
    queries, labels = ([*dict.fromkeys(side)] for side in zip(*rows, strict=True))
    assert_same(model, found, judged(model, formula, queries, labels))


@pytest.mark.parametrize("mini_batch_size", [None, 3])
@every_loss
def test_lists_of_positives_are_our_objective_and_labels_of_other_queries_count(
    loss: str, mini_batch_size: int | None, model: SentenceTransformer
) -> None:
    make, formula = LOSSES[loss]
    examples = [{"query": query, "labels": labels} for query, labels in RELEVANT.items()]
    batch = MultiLabelCollator(model.preprocess)(examples)
    # "law" and "fish" stand in the batch through two queries each, and are right for both of each
    assert batch["labels_input_ids"].shape[0] == len({label for _, label in PAIRS}) < len(PAIRS) == len(batch["label"])
    features = [
        {name.removeprefix(prefix): part for name, part in batch.items() if name.startswith(prefix)}
        for prefix in ("query_", "labels_")
    ]
    found = make(model, mini_batch_size=mini_batch_size)(features, batch["label"])
    assert_same(model, found, judged(model, formula, list(RELEVANT), [*dict.fromkeys(label for _, label in PAIRS)]))


@every_loss
def test_negative_columns_are_labels_that_are_right_for_nobody_unless_another_row_says_so(
    loss: str, model: SentenceTransformer
) -> None:
    make, formula = LOSSES[loss]
    relevant = {"tax and trade": ["tax", "trade"], "a network dog": ["network"]}
    queries, positives = ["tax and trade", "a network dog", "tax and trade"], ["tax", "network", "trade"]
    first, second = ["dog", "trade", "trade"], ["book", "book", "food"]  # "trade" is no negative of "tax and trade"
    found = make(model)(columns(model, queries, positives, first, second))
    labels = ["tax", "network", "trade", "dog", "book", "food"]
    assert_same(model, found, judged(model, formula, [*relevant], labels, relevant))
    examples = [
        {"query": "tax and trade", "positive": ["tax", "trade"], "negative": ["dog", "trade", "book", "food"]},
        {"query": "a network dog", "positive": "network", "negative": None},
    ]
    batch = MultiLabelCollator(model.preprocess)(examples)
    features = columns(model, [*relevant], ["tax", "trade", "network", "dog", "book", "food"])
    torch.testing.assert_close(batch["positive_input_ids"], features[1]["input_ids"])
    assert_same(model, make(model)(features, batch["label"]), judged(model, formula, [*relevant], labels, relevant))


@pytest.mark.parametrize("mini_batch_size", [None, 4])
@every_loss
def test_with_all_labels_every_positive_competes_with_each_of_them(
    loss: str, mini_batch_size: int | None, model: SentenceTransformer
) -> None:
    make, formula = LOSSES[loss]
    everything = [*LABELS, "the tree", "book"]  # named twice, one label
    ours = make(model, labels=everything, mini_batch_size=mini_batch_size)
    rows = PAIRS[:5]
    relevant = {query: RELEVANT[query] for query in ("the law of fish", "tax and trade")}
    for _ in range(2):  # tokenised once, and used twice
        found = ours(columns(model, *(list(side) for side in zip(*rows, strict=True))))
        assert_same(model, found, judged(model, formula, [*relevant], [*LABELS, "the tree"], relevant))
    with pytest.raises(BadInput, match="a positive of the batch is none of the 10 labels"):
        ours(columns(model, ["tax and trade"], ["a strange one"]))


@every_loss
def test_a_static_embedding_is_trained_as_any_other_model(loss: str, tmp_path: Path) -> None:
    make, formula = LOSSES[loss]
    model = static(tmp_path)
    queries, labels = ([*dict.fromkeys(side)] for side in zip(*PAIRS, strict=True))
    for whole in (None, LABELS):
        found = make(model, labels=whole)(columns(model, *(list(side) for side in zip(*PAIRS, strict=True))))
        assert_same(model, found, judged(model, formula, queries, whole or labels))
    with pytest.raises(BadInput, match="None for a model of StaticEmbedding"):
        make(model, mini_batch_size=2)


def test_inner_products_take_the_place_of_cosines(model: SentenceTransformer) -> None:
    queries, labels = ([*dict.fromkeys(side)] for side in zip(*PAIRS, strict=True))
    ours = DecoupledSoftmaxLoss(model, 0.25, dot_score, reduction="mean")
    found = ours(columns(model, *(list(side) for side in zip(*PAIRS, strict=True))))
    assert_same(model, found, judged(model, reference.decoupled_softmax, queries, labels, scale=0.25, cosine=False))


@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_with_one_positive_a_query_and_no_repetition_it_is_their_own_loss(
    mini_batch_size: int | None, model: SentenceTransformer
) -> None:
    texts = [[*RELEVANT], ["law", "tax", "food", "network"], ["dog", "book", "trade", "fish"]]
    theirs = (
        MultipleNegativesRankingLoss(model)
        if mini_batch_size is None
        else CachedMultipleNegativesRankingLoss(model, mini_batch_size=mini_batch_size)
    )
    for ours in (DecoupledSoftmaxLoss, MultiPositiveSoftmaxLoss):
        found = ours(model, mini_batch_size=mini_batch_size)(columns(model, *texts))
        assert_same(model, found, theirs(columns(model, *texts), None))


@pytest.mark.parametrize("mini_batch_size", [None, 2])
def test_matryoshka_wraps_them(mini_batch_size: int | None, model: SentenceTransformer) -> None:
    batch = [list(side) for side in zip(*PAIRS, strict=True)]
    queries, labels = ([*dict.fromkeys(side)] for side in batch)
    wrapped = MatryoshkaLoss(model, DecoupledSoftmaxLoss(model, mini_batch_size=mini_batch_size), [32, 8])

    def judge(dimensions: int) -> Tensor:
        sides = [model(model.preprocess(texts))["sentence_embedding"][:, :dimensions] for texts in (queries, labels)]
        pairs = Pairs(*torch.tensor([(queries.index(q), labels.index(z)) for q, z in PAIRS]).unbind(1))
        scores = normalize(sides[0]) @ normalize(sides[1]).T * 20
        return reference.decoupled_softmax(scores, Targets(pairs, pairs, len(queries)))

    assert_same(model, wrapped(columns(model, *batch), None), judge(32) + judge(8))


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda model: DecoupledSoftmaxLoss(model, similarity_fct=pairwise_cos_sim), "give cos_sim or dot_score"),
        (lambda model: DecoupledSoftmaxLoss(model, scale=0), "scale 0 is not above 0"),
        (lambda model: DecoupledSoftmaxLoss(model, mini_batch_size=0), "mini_batch_size 0: give 1 or more"),
        (lambda model: DecoupledSoftmaxLoss(model, reduction="none"), "reduction 'none': give mean or sum"),
        (lambda model: DecoupledSoftmaxLoss(model, labels=[]), "labels is empty"),
        (lambda model: SoftTopKLoss(model, 0), "k 0: give a number of labels, 1 or more"),
        (lambda model: MultiLabelEvaluator(["law"], ["law"], [[0]], ks=(3,)), "there are 1 labels; give a k from 1"),
        (lambda model: DecoupledSoftmaxLoss(model)(columns(model, ["law"])), "1 column of texts"),
        (
            lambda model: DecoupledSoftmaxLoss(model)(columns(model, ["law"], ["tax"]), torch.tensor([1.0])),
            r"labels of shape \(1,\) are not pairs of positions; take the label column out",
        ),
        (
            lambda model: DecoupledSoftmaxLoss(model).compute_loss_from_embeddings([torch.ones(1, 2)] * 2),
            "data_collator=MultiLabelCollator",
        ),
        (
            lambda model: MultiLabelCollator(model.preprocess)([{"query": "law", "positive": []}]),
            "none of 1 rows has a text in 'positive'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    make: Callable[[SentenceTransformer], Any], problem: str, model: SentenceTransformer
) -> None:
    with pytest.raises(BadInput, match=problem):
        make(model)


def test_of_a_batch_with_no_more_than_k_labels_it_is_said_that_nothing_is_learnt(model: SentenceTransformer) -> None:
    with pytest.warns(UserWarning, match="a batch has 1 labels, no more than k = 2: nothing is learnt"):
        assert SoftTopKLoss(model, 2)(columns(model, ["law"], ["tax"])) == 0


def test_inside_splade_lists_of_positives_are_our_objective(tmp_path: Path) -> None:
    start = Transformer(tiny_transformer(tmp_path), transformer_task="fill-mask")
    model = plain(SparseEncoder(modules=[start, SpladePooling()], device="cpu"))
    inner = DecoupledSoftmaxLoss(model, 0.5, dot_score)
    batch = MultiLabelCollator(model.preprocess)([{"query": q, "labels": labels} for q, labels in RELEVANT.items()])
    queries, labels = ([*dict.fromkeys(side)] for side in zip(*PAIRS, strict=True))
    wrapped = SpladeLoss(model, inner, document_regularizer_weight=0.01, query_regularizer_weight=0.01)
    found = wrapped(columns(model, queries, labels), batch["label"])
    assert found.keys() == {"base_loss", "document_regularizer_loss", "query_regularizer_loss"}
    expected = judged(model, reference.decoupled_softmax, queries, labels, scale=0.5, cosine=False)
    assert_same(model, found["base_loss"], expected)
    model.float().eval()
    figures = MultiLabelEvaluator(["law"], LABELS, [[0]], ks=(1, 9))(model)
    assert figures["R@9"] == 1 and figures.keys() == {f"{name}@{k}" for name in ("P", "nDCG", "R") for k in (1, 9)}


# Every process has its own part of the batch, as devices have.
SHARES = [PAIRS[:5], PAIRS[5:8], [*PAIRS[8:], ("the tree of food", "food"), ("the tree of food", "law")]]


GATHERED: list[tuple[str, int | None, list[str] | None]] = [
    ("decoupled", None, None),
    ("softmax", 2, None),
    ("decoupled", 2, LABELS),
    ("soft top 2", None, LABELS),
]


def on_this_device(world: World, folder: str) -> list[tuple[Tensor, list[Tensor]]]:
    """The loss and the gradients of each case, the latter averaged as DistributedDataParallel does."""
    warnings.filterwarnings("ignore", ".*all_gather is deprecated", FutureWarning)  # which theirs calls
    model, outcomes = loaded(folder), []
    for loss, mini_batch_size, labels in GATHERED:
        ours = LOSSES[loss][0](model, mini_batch_size=mini_batch_size, gather_across_devices=True, labels=labels)
        found = ours(columns(model, *(list(side) for side in zip(*SHARES[world.rank], strict=True))))
        model.zero_grad()
        found.backward()
        weights = [weight.grad for weight in model.parameters() if weight.grad is not None]
        outcomes.append((found.detach(), [world.sum_(weight.clone()) / world.size for weight in weights]))
    return outcomes


@pytest.mark.parametrize("size", [1, 2, 3])
def test_devices_share_their_labels_and_the_gradient_is_that_of_the_mean_over_devices(
    size: int, tmp_path: Path
) -> None:
    model = transformer(tmp_path)
    outcomes = run_world(size, on_this_device, str(tmp_path))
    for case, (loss, _, labels) in enumerate(GATHERED):
        everywhere = labels or [*dict.fromkeys(label for share in SHARES[:size] for _, label in share)]
        own = []
        for share in SHARES[:size]:
            relevant: dict[str, list[str]] = {}
            for query, label in share:
                relevant.setdefault(query, []).append(label)
            own.append(judged(model, LOSSES[loss][1], [*relevant], everywhere, relevant))
        model.zero_grad()
        torch.stack(own).mean().backward()
        expected = [weight.grad for weight in model.parameters() if weight.grad is not None]
        for outcome, alone in zip(outcomes, own, strict=True):
            value, gradients = outcome[case]
            torch.testing.assert_close(value, alone.detach(), rtol=TOLERANCE, atol=TOLERANCE)
            for ours, theirs in zip(gradients, expected, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=10 * TOLERANCE, atol=TOLERANCE)


class Table:
    """As much of a dataset as a sampler looks at."""

    column_names = ("anchor", "positive")

    def __init__(self, sizes: list[int]) -> None:
        self.anchors = [f"query {number}" for number, size in enumerate(sizes) for _ in range(size)]
        self.anchors = [self.anchors[at] for at in np.random.default_rng(0).permutation(len(self.anchors))]

    def __len__(self) -> int:
        return len(self.anchors)

    def __getitem__(self, name: str) -> list[str]:
        return {"anchor": self.anchors}[name]


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_sampler_keeps_a_querys_pairs_together_in_full_batches(drop_last: bool) -> None:
    table = Table([1, 2, 3, 1, 5, 2, 1, 4, 1, 1, 2, 3, 1, 6])
    sampler = QueryBatchSampler(table, 7, drop_last, generator=torch.Generator(), seed=3)
    epochs = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        epochs.append(list(sampler))
    assert epochs[0] == epochs[2] != epochs[1]
    for batches in epochs:
        assert len(batches) == len(sampler) == (4 if drop_last else 5)
        assert all(len(batch) == 7 for batch in batches[: len(table) // 7])
        rows = sorted(row for batch in batches for row in batch)
        assert len(set(rows)) == len(rows) and (drop_last or rows == list(range(33)))
        divided = [
            anchor
            for anchor in set(table.anchors)
            if sum(any(table.anchors[row] == anchor for row in batch) for batch in batches) > 1
        ]
        assert len(divided) <= 2  # where nothing fits any more


def test_a_query_with_more_pairs_than_a_batch_is_divided() -> None:
    table = Table([5, 1])
    batches = list(QueryBatchSampler(table, 2, False, generator=torch.Generator(), seed=0))
    assert sorted(map(len, batches)) == [2, 2, 2] and sorted(row for batch in batches for row in batch) == list(
        range(6)
    )


def test_the_evaluator_says_what_our_evaluation_says(model: SentenceTransformer) -> None:
    model.float().eval()
    queries, truth = list(RELEVANT), [[LABELS.index(label) for label in labels] for labels in RELEVANT.values()]
    train = [[0, 1], [0], [2, 3], [0, 7, 8], []]
    evaluator = MultiLabelEvaluator(queries, LABELS, truth, train=train, ks=(1, 3, 5, 100), name="dev")
    found = evaluator(model)
    assert evaluator.primary_metric == "dev_nDCG@5" and evaluator.greater_is_better
    x, z = (model.encode(texts, normalize_embeddings=True) for texts in (queries, LABELS))
    scores = x @ z.T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :5].astype(np.int32)
    right = csr_array(np.array([[float(label in labels) for label in range(9)] for labels in truth], np.float32))
    counts = np.array([sum(label in labels for labels in train) for label in range(9)])
    ranking = Ranking(rows, np.take_along_axis(scores, rows, 1), 9)
    expected = evaluate(ranking, right, label_counts=counts, train_queries=5, ks=(1, 3, 5), bootstrap=0).metrics
    assert {"dev_P@1", "dev_PSP@3", "dev_R@5", "dev_nDCG@5"} <= found.keys()
    assert found == pytest.approx({f"dev_{name}": value / 100 for name, value in expected.items()}, abs=1e-12)
    alone = MultiLabelEvaluator(queries, LABELS, csr_array(right), ks=(1, 3, 5))(model)
    assert alone.keys() == {f"{name}@{k}" for name in ("P", "nDCG", "R") for k in (1, 3, 5)}
    assert all(alone[name] == pytest.approx(found[f"dev_{name}"]) for name in alone)


def test_an_evaluator_refuses_a_model_that_compares_otherwise(model: SentenceTransformer) -> None:
    model.similarity_fn_name = "euclidean"
    with pytest.raises(BadInput, match="to cosine or dot"):
        MultiLabelEvaluator(["law"], ["law", "tax"], [[0]], ks=(1,))(model)


# Needs `datasets` and `accelerate`: pip install 'umpteen[sentence-transformers]'.
@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Callable[..., dict[str, float]]]:
    pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    def train(
        model: SentenceTransformer, loss: Any, data: dict[str, Any], collator: Any = None, **arguments: Any
    ) -> dict[str, float]:
        """The evaluator's figures before and after."""
        known = [[LABELS.index(label) for label in labels] for labels in RELEVANT.values()]
        settings = SentenceTransformerTrainingArguments(
            str(tmp_path / "run"),
            max_steps=20,
            per_device_train_batch_size=5,
            learning_rate=3e-3,
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            eval_strategy="steps",
            eval_steps=10,
            **arguments,
        )
        runner = SentenceTransformerTrainer(
            model,
            settings,
            train_dataset=Dataset.from_dict(data),
            loss=loss,
            evaluator=MultiLabelEvaluator(list(RELEVANT), LABELS, known, ks=(1, 3)),
            data_collator=collator,
        )
        before = runner.evaluate()
        runner.train()
        return {"before": before["eval_nDCG@3"], "after": runner.evaluate()["eval_nDCG@3"]}

    yield train


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("form", ["pairs", "grouped pairs", "lists", "all labels"])
def test_their_trainer_learns_with_them(
    form: str, trainer: Callable[..., dict[str, float]], model: SentenceTransformer
) -> None:
    model = model.float()
    pairs = dict(zip(("anchor", "positive"), (list(side) for side in zip(*PAIRS, strict=True)), strict=True))
    lists = {"query": list(RELEVANT), "labels": list(RELEVANT.values())}
    collator = MultiLabelCollator(model.preprocess)
    if form == "lists":
        figures = trainer(model, DecoupledSoftmaxLoss(model), lists, collator)
    elif form == "all labels":
        loss = SoftTopKLoss(model, 2, labels=LABELS, mini_batch_size=4)
        figures = trainer(model, loss, lists, collator)
    else:
        how = {"batch_sampler": QueryBatchSampler} if form == "grouped pairs" else {}
        figures = trainer(model, DecoupledSoftmaxLoss(model), pairs, **how)
    assert figures["after"] > figures["before"] + 0.3


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_the_page_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    small = transformer(tmp_path / "model").float()
    small.save(str(tmp_path / "sentence-transformers" / "all-MiniLM-L6-v2"))
    page, heard = ROOT / "docs" / "how-to" / "sentence-transformers.md", {}
    for block in blocks_of(page):
        if block.language == "python":
            exec(compile(block.text, str(block), "exec"), heard)
    assert heard["evaluator"](heard["model"]).keys() >= {"P@1", "PSP@3", "R@3"}
    weights = dict(small.named_parameters())
    assert any(not torch.equal(weights[name], weight) for name, weight in heard["model"].named_parameters())
