"""The metrics once more, in plain loops over sets and lists: the judge of umpteen.evaluation."""

from math import log, log2

Rankings = list[list[int]]
Positives = list[set[int]]


def inverse_propensity(count: int, queries: int, a: float, b: float) -> float:
    return 1 + (log(queries) - 1) * (b + 1) ** a * (count + b) ** (-a)


def naive_metrics(
    rankings: Rankings,
    positives: Positives,
    filtered: Positives,
    weights: list[float],
    ks: list[int],
    as_published: bool,
) -> dict[str, float]:
    """Metrics from 0 to 1. `weights` are the labels' inverse propensities."""
    cases = []
    for ranked, right, ignored in zip(rankings, positives, filtered, strict=True):
        right = right if as_published else right - ignored
        if right or as_published:
            cases.append(([label for label in ranked if label not in ignored and label >= 0], right))
    metrics = {}
    for k in ks:
        precision = ndcg = recall = ps_precision = ps_precision_best = ps_ndcg = ps_ndcg_best = 0.0
        for ranked, right in cases:
            ideal = 0.0
            for place in range(min(k, len(right))):
                ideal += 1 / log2(place + 2)
            for place, label in enumerate(ranked[:k]):
                if label in right:
                    precision += 1 / k
                    recall += 1 / len(right)
                    ndcg += 1 / log2(place + 2) / ideal
                    ps_precision += weights[label] / k
                    ps_ndcg += weights[label] / log2(place + 2) / ideal
            rarest_first = sorted((weights[label] for label in right), reverse=True)
            for place, weight in enumerate(rarest_first[:k]):
                ps_precision_best += weight / k
                ps_ndcg_best += weight / log2(place + 2) / ideal
        metrics[f"P@{k}"] = precision / len(cases)
        metrics[f"nDCG@{k}"] = ndcg / len(cases)
        metrics[f"R@{k}"] = recall / len(cases)
        metrics[f"PSP@{k}"] = ps_precision / ps_precision_best
        metrics[f"PSnDCG@{k}"] = ps_ndcg / ps_ndcg_best
    return metrics
