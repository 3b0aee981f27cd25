from pathlib import Path

import numpy as np
import pytest
import torch
from lab.generation_model import IGNORED, Example, Room, Shape, Writer, start_small
from lab.generation_tuning import Budget, batches, fine_tune, validation_loss

from lab import generation_tuning
from miniature import checkpoint_of
from umpteen.errors import BadInput, Stopped

ROOM = Room(prompt=10, target=8)
PROMPTS = [f"Tags: {'warm' if n % 2 else 'cold'}. Noun: n{n}. Definition:" for n in range(24)]
TARGETS = ["a warm thing" if n % 2 else "a cold one" for n in range(24)]
BUDGET = Budget(epochs=3, learning_rate=1e-2, batch_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "start"
    start_small(folder, [*PROMPTS, *TARGETS], Shape(vocabulary=320, width=16, layers=1, heads=2), ROOM, seed=3)
    return folder


def tuned(folder: Path, workspace: Path, budget: Budget = BUDGET) -> tuple[Writer, list[float]]:
    writer = Writer(folder, torch.device("cpu"))
    examples = writer.examples(PROMPTS, TARGETS, ROOM)
    state = fine_tune(writer, examples[:16], examples[16:], budget, seed=1, workspace=workspace, recipe={"a": 1})
    return writer, [evaluation["loss"] for evaluation in state.evaluations]


def test_a_small_model_follows_from_its_seed(folder: Path, tmp_path: Path) -> None:
    for name, seed in (("again", 3), ("other", 4)):
        shape = Shape(vocabulary=320, width=16, layers=1, heads=2)
        start_small(tmp_path / name, [*PROMPTS, *TARGETS], shape, ROOM, seed=seed)
    first, again, other = ((path / "model.safetensors").read_bytes() for path in (folder, *sorted(tmp_path.iterdir())))
    assert first == again != other
    assert (folder / "tokenizer.json").read_bytes() == (tmp_path / "again" / "tokenizer.json").read_bytes()


def test_prompts_keep_their_end_targets_their_beginning_and_an_end_token(folder: Path) -> None:
    writer = Writer(folder, torch.device("cpu"))
    whole = writer.tokenizer(PROMPTS[0], add_special_tokens=False)["input_ids"]
    short, long = writer.examples([PROMPTS[0]] * 2, ["a cold one", "one " * 50], ROOM)
    assert short.prompt == whole[-10:] and len(whole) > 10
    assert short.target[-1] == writer.end
    assert len(long.target) == 8 and long.target[-1] != writer.end


def test_a_model_that_knows_a_beginning_gets_it_before_every_prompt(folder: Path) -> None:
    writer = Writer(folder, torch.device("cpu"))
    assert writer.begin == []
    writer.begin = [7]
    for prompt, _ in writer.examples([PROMPTS[0], "x"], TARGETS[:2], ROOM):
        assert prompt[0] == 7 and len(prompt) <= ROOM.prompt


def test_the_loss_is_of_target_tokens_alone(folder: Path) -> None:
    writer = Writer(folder, torch.device("cpu"))
    writer.model.eval()
    batch = [Example([5, 6, 7], [8, 9]), Example([5], [6, 7, 8, 9, 10])]
    with torch.no_grad():
        total, tokens = writer.loss(batch)
        expected = 0.0
        for prompt, target in batch:
            scores = writer.model(input_ids=torch.tensor([prompt + target])).logits[0].log_softmax(-1)
            expected -= sum(float(scores[len(prompt) + at - 1, token]) for at, token in enumerate(target))
    assert tokens == 7
    assert float(total) == pytest.approx(expected, rel=1e-4)
    assert IGNORED < 0


def test_fine_tuning_learns_and_generation_is_greedy_and_the_same_in_any_batch(folder: Path, tmp_path: Path) -> None:
    writer, losses = tuned(folder, tmp_path / "a", Budget(epochs=40, learning_rate=3e-2, batch_size=8))
    assert losses[-1] < losses[0] / 2
    texts = writer.generate(PROMPTS, ROOM, batch_size=24)
    assert texts == TARGETS
    assert writer.generate(PROMPTS, ROOM, batch_size=5) == texts


def test_the_best_weights_are_kept_and_saved(folder: Path, tmp_path: Path) -> None:
    writer, losses = tuned(folder, tmp_path / "a")
    examples = writer.examples(PROMPTS[16:], TARGETS[16:], ROOM)
    assert validation_loss(writer, examples, 8) == pytest.approx(min(losses), abs=1e-3)
    writer.save(tmp_path / "saved")
    assert Writer(tmp_path / "saved", torch.device("cpu")).generate(PROMPTS, ROOM) == writer.generate(PROMPTS, ROOM)


def test_a_stopped_fine_tuning_goes_on_exactly(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, losses = tuned(folder, tmp_path / "whole")
    steps = iter(range(100))
    step = generation_tuning._step

    def killed(*given: object) -> None:
        if next(steps) == 3:
            raise KeyboardInterrupt
        step(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(generation_tuning, "_step", killed)
    with pytest.raises(KeyboardInterrupt):
        tuned(folder, tmp_path / "killed")
    resumed, again = tuned(folder, tmp_path / "killed")
    assert again == losses
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_signal_saves_first(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    step = generation_tuning._step

    def interrupted(*given: object) -> None:
        step(*given)  # type: ignore[arg-type]
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(generation_tuning, "_step", interrupted)
    with pytest.raises(Stopped, match="saved after step 1"):
        tuned(folder, tmp_path / "work")
    assert checkpoint_of(tmp_path / "work").is_dir()


def test_batches_hold_every_example_once_and_are_of_like_length() -> None:
    examples = [Example([0] * (1 + n % 7), [1]) for n in range(23)]
    drawn = batches(examples, 5, seed=1, epoch=0)
    assert sorted(np.concatenate(drawn).tolist()) == list(range(23))
    assert max(len({len(examples[row].prompt) for row in part}) for part in drawn) <= 3
    assert [part.tolist() for part in batches(examples, 5, 1, 0)] == [part.tolist() for part in drawn]
    assert [part.tolist() for part in batches(examples, 5, 1, 1)] != [part.tolist() for part in drawn]


def test_a_folder_without_a_language_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot load a causal language model"):
        Writer(tmp_path, torch.device("cpu"))
