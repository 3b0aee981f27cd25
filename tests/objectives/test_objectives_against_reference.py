"""Every objective equals its naive formula, in value and gradient, whatever the tile and however odd the batch."""

import pytest
import torch
from problems import ALPHA, OBJECTIVES, TILES, assert_agreement, differentiated, pairs, posed, random_problem

import reference
from reference import Problem
from umpteen.errors import BadInput
from umpteen.objectives import Scores, Targets, soft_top_k

every_objective = pytest.mark.parametrize("objective", OBJECTIVES)
every_tile = pytest.mark.parametrize("tile", TILES)


@every_tile
@every_objective
def test_every_objective_equals_its_formula(objective: str, tile: int | None) -> None:
    assert_agreement(random_problem(), objective, tile)


@every_tile
@every_objective
def test_a_pair_pulled_twice_counts_twice_and_leaves_the_bar_once(objective: str, tile: int | None) -> None:
    problem = random_problem()
    problem.pulled += [problem.pulled[0], problem.pulled[0], problem.pulled[4]]
    problem.unpulled = [problem.pulled[1], problem.pulled[1]]
    assert_agreement(problem, objective, tile)


@every_tile
@every_objective
def test_two_labels_with_the_same_vector_are_two_labels(objective: str, tile: int | None) -> None:
    problem = random_problem()
    problem.labels[5] = problem.labels[11]
    problem.labels[6] = problem.labels[11]
    assert_agreement(problem, objective, tile)


@every_tile
@every_objective
def test_relevant_pairs_that_are_not_pulled_are_treated_as_the_formula_says(objective: str, tile: int | None) -> None:
    problem = random_problem()
    problem.unpulled = [(0, 1), (0, 2), (3, 22), (5, 0)]
    assert_agreement(problem, objective, tile)


@every_tile
@every_objective
def test_filtered_pairs_leave_every_reduction_even_when_relevant_or_pulled(objective: str, tile: int | None) -> None:
    problem = random_problem()
    problem.unpulled = [(1, 3), (2, 4)]
    own_pairs = [pair for pair in problem.pulled if pair[0] == 4]
    problem.filtered = [(0, 7), (0, 8), (0, 8), (1, 3), problem.pulled[0], problem.pulled[-1], *own_pairs]
    assert_agreement(problem, objective, tile)


@every_tile
@every_objective
def test_queries_without_positives_do_not_disturb_the_rest(objective: str, tile: int | None) -> None:
    problem = random_problem()
    problem.pulled = [pair for pair in problem.pulled if pair[0] not in (0, 3)]
    assert_agreement(problem, objective, tile)


@every_tile
@every_objective
def test_a_query_to_which_every_label_is_relevant_has_finite_terms(objective: str, tile: int | None) -> None:
    problem = random_problem()
    problem.unpulled = [(2, label) for label in range(23)] + [(4, label) for label in range(22)]
    assert_agreement(problem, objective, tile)


@every_tile
@pytest.mark.parametrize("size", [30.0, 300.0])
@every_objective
def test_scores_far_beyond_a_hundred_stay_exact(objective: str, size: float, tile: int | None) -> None:
    problem = random_problem(size=size)
    assert problem.scores().min() < -100
    assert size < 300 or problem.scores().abs().max() > 1000
    assert_agreement(problem, objective, tile, tolerance=1e-9)


@every_objective
def test_scores_that_all_lie_below_minus_a_hundred_stay_exact(objective: str) -> None:
    problem = random_problem()
    problem.queries[:, 0], problem.labels[:, 0] = 20, -30
    assert problem.scores().max() < -100
    assert_agreement(problem, objective, tolerance=1e-9)


@every_tile
@every_objective
def test_a_batch_without_a_single_pair_has_no_pull(objective: str, tile: int | None) -> None:
    problem = random_problem()
    problem.pulled = []
    assert_agreement(problem, objective, tile)


@every_tile
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@every_objective
def test_graded_weights_multiply_and_weight_0_means_not_pulled(
    objective: str, reduction: str, tile: int | None
) -> None:
    problem = random_problem()
    problem.reduction = reduction
    problem.weights = [0.25 * (number % 5) for number in range(len(problem.pulled))]
    problem.weights[:3] = [0.0, 0.0, 0.0]  # query 0 has positives, none of them pulled
    problem.filtered = [problem.pulled[4]]
    assert_agreement(problem, objective, tile)


@every_objective
def test_a_sum_over_sampled_positives_is_scaled(objective: str) -> None:
    problem = random_problem()
    problem.reduction, problem.scale = "sum", [1.0, 2.5, 3.0, 0.5, 1.0, 7.0]
    assert_agreement(problem, objective)


@every_objective
def test_a_temperature_divides_every_score(objective: str) -> None:
    problem = random_problem()
    problem.temperature = 0.05
    assert_agreement(problem, objective, tolerance=1e-9)


@every_tile
def test_k_can_differ_from_query_to_query(tile: int | None) -> None:
    problem = random_problem(labels=90)
    problem.filtered = [(5, label) for label in range(88) if (5, label) not in problem.pulled]
    k = [1, 2, 0, 40, 90, 5]  # 0 and as many as there are labels: no threshold; so has query 5, after filtering
    found = differentiated(problem, lambda: soft_top_k(*posed(problem, tile), torch.tensor(k), ALPHA))
    expected = differentiated(problem, lambda: reference.soft_top_k(problem, k, ALPHA))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@every_tile
def test_a_query_that_filtering_leaves_no_more_than_a_fixed_k_of_labels_contributes_nothing(tile: int | None) -> None:
    problem = random_problem()
    problem.filtered = [(1, label) for label in range(23) if (1, label) not in problem.pulled]
    found = differentiated(problem, lambda: soft_top_k(*posed(problem, tile), 3, ALPHA))
    expected = differentiated(problem, lambda: reference.soft_top_k(problem, 3, ALPHA))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    assert not found[1][1].any() and found[1][0].any()


def test_a_k_per_query_must_be_whole_numbers_one_for_each() -> None:
    for k in (torch.ones(5, dtype=torch.int64), torch.ones(6), torch.full((6,), -1)):
        with pytest.raises(BadInput, match="whole numbers"):
            soft_top_k(*posed(random_problem(), None), k)


def test_a_name_for_k_other_than_positives_is_refused() -> None:
    with pytest.raises(BadInput, match="positives"):
        soft_top_k(*posed(random_problem(), None), "relevant")  # type: ignore[arg-type]


@every_objective
def test_an_empty_batch_costs_nothing(objective: str) -> None:
    scores = Scores(torch.zeros(0, 4), torch.zeros(9, 4))
    loss = OBJECTIVES[objective][0](scores, Targets(pairs([]), pairs([]), queries=0))
    assert loss == 0


@every_objective
def test_a_vector_that_is_not_a_number_shows_in_the_loss(objective: str) -> None:
    problem: Problem = random_problem(labels=300)
    problem.labels[250] = torch.nan
    assert OBJECTIVES[objective][0](*posed(problem, 7)).isnan()
