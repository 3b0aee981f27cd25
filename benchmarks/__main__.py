"""`python -m benchmarks`: speed and memory, both sides of each comparison in one run."""

import json
from pathlib import Path
from typing import Any

import click

from umpteen.cli.main import main, say


@click.group()
def benchmarks() -> None:
    """Measure speed and memory as ratios."""


@benchmarks.command()
@click.option("--labels", default=131_072, show_default=True)
@click.option("--dimension", default=384, show_default=True)
@click.option("--repeats", default=5, show_default=True, help="Alternating runs; the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def losses(labels: int, dimension: int, repeats: int, as_json: bool) -> None:
    """Streaming objectives against the dense autograd formulas of the paper: time, memory, error."""
    from benchmarks.losses import run

    _print(run(labels=labels, dimension=dimension, repeats=repeats), as_json)


@benchmarks.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data")
@click.option("--batch", default=1024, show_default=True, help="Training queries of DATA that are drawn.")
@click.option("--temperature", type=float, help="Scores are divided by it.  [default: as the model was trained]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def negligible(model: Path, data: str, batch: int, temperature: float | None, as_json: bool) -> None:
    """What of a trained MODEL's loss has no gradient worth a float32 bit; what halved label vectors do to it."""
    from benchmarks.negligible import run

    _print(run(model, data, batch=batch, temperature=temperature), as_json)


@benchmarks.command()
@click.option("--documents", default=500_000, show_default=True)
@click.option("--words", default=200, show_default=True, help="Words in a document.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def prepare(documents: int, words: int, as_json: bool) -> None:
    """Reading and tokenising generated documents: peak memory, and one kill with resume."""
    from benchmarks.prepare import run
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(documents=documents, words=words, progress=watch)
    _print(outcome, as_json)


@benchmarks.command()
@click.option("--repeats", default=5, show_default=True, help="Runs in turns; the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def start(repeats: int, as_json: bool) -> None:
    """How long `umpteen --help` takes, beside an empty Python; and `umpteen predict`, beside one that loads torch."""
    from benchmarks.start import run

    _print(run(repeats), as_json)


@benchmarks.command()
@click.option("--texts", default=300, show_default=True, help="That a calibration is fitted on.")
@click.option("--times", default=200, show_default=True, help="Calibrations fitted in each world.")
@click.option("--confidence", default=0.9, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def promises(texts: int, times: int, confidence: float, as_json: bool) -> None:
    """How many thresholds for a wanted precision miss it on new texts: promised ones, and by point estimates."""
    from benchmarks.promises import run
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(texts=texts, times=times, confidence=confidence, progress=watch)
    _print(outcome, as_json)


@benchmarks.command()
@click.option("--texts", default=1_000_000, show_default=True, help="That are remembered.")
@click.option("--dimension", default=512, show_default=True)
@click.option("--repeats", default=3, show_default=True, help="Alternating turns; the least counts.")
@click.option("--index", is_flag=True, help="The index of a large memory beside them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def memory(texts: int, dimension: int, repeats: int, index: bool, as_json: bool) -> None:
    """Neighbours among many remembered texts, by halves mapped from the folder and by a copy in float32."""
    from benchmarks.memory import run

    _print(run(texts=texts, dimension=dimension, repeats=repeats, index=index), as_json)


@benchmarks.command()
@click.option("--labels", default=600, show_default=True)
@click.option("--weights", default=6_000, show_default=True, help="Of each label.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def ranker(labels: int, weights: int, as_json: bool) -> None:
    """A ranker's look at 100 candidates of one text, through its own features and through rows of labels."""
    from benchmarks.ranker import run

    _print(run(labels=labels, weights=weights), as_json)


@benchmarks.command()
@click.option(
    "--labels", multiple=True, type=int, help="A number of labels; once for each. Default: three, up to a million."
)
@click.option(
    "--half-labels", is_flag=True, help="Each size with training.half_labels, too, in place of other batches."
)
@click.option("--steps", default=3, show_default=True, help="Timed steps of each size; the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def million(labels: tuple[int, ...], half_labels: bool, steps: int, as_json: bool) -> None:
    """Steps against all of up to 1,305,265 labels: time beside the bare matrix products, memory, evaluation."""
    from benchmarks.million import SIZES, run
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(labels or SIZES, half_labels=half_labels, steps=steps, progress=watch)
    _print(outcome, as_json)


@benchmarks.command()
@click.option("--labels", default=500_000, show_default=True)
@click.option("--batch", default=512, show_default=True, help="Queries in a step.")
@click.option("--steps", default=3, show_default=True, help="Timed steps; the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def table(labels: int, batch: int, steps: int, as_json: bool) -> None:
    """A learned vector per label, all labels in play: peak memory of a whole run, seconds per step."""
    from benchmarks.table import run
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(labels, batch=batch, steps=steps, progress=watch)
    _print(outcome, as_json)


@benchmarks.command()
@click.option("--texts", default=20_000, show_default=True, help="Texts to tokenise and encode.")
@click.option("--labels", type=int, help="Only the first labels of wordnet-nouns in the steps. Default: all.")
@click.option("--batch", default=256, show_default=True, help="Queries in a step.")
@click.option("--repeats", default=3, show_default=True, help="Alternating runs; the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def pipeline(texts: int, labels: int | None, batch: int, repeats: int, as_json: bool) -> None:
    """Everything around the loss: tokenising, encoding, whole steps, batching, evaluation."""
    from benchmarks.pipeline import run
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(texts, labels, batch=batch, repeats=repeats, progress=watch)
    _print(outcome, as_json)


@benchmarks.command("gradient-cache")
@click.option("--labels", default=2000, show_default=True)
@click.option(
    "--batch", "batches", multiple=True, type=int, help="A batch size; once for each.  [default: 64 256 1024]"
)
@click.option(
    "--token-budget",
    "budgets",
    multiple=True,
    type=int,
    help="Tokens of a micro-batch; once for each.  [default: 512 2048 8192 32768]",
)
@click.option("--steps", default=3, show_default=True, help="Alternating steps; the median counts.")
@click.option("--model", default="all-MiniLM-L6-v2", show_default=True, help="A transformer's name or folder.")
@click.option("--quick", is_flag=True, help="A tenth of the labels, two batches, two budgets, one step.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def gradient_cache(
    labels: int,
    batches: tuple[int, ...],
    budgets: tuple[int, ...],
    steps: int,
    model: str,
    quick: bool,
    as_json: bool,
) -> None:
    """The paper's table of batch × micro-batch: memory and time of a step, beside no gradient cache."""
    from benchmarks.gradient_cache import BATCHES, TOKEN_BUDGETS, run
    from umpteen.cli.main import Watch

    if quick:
        labels, steps, batches, budgets = labels // 10, 1, batches or (16, 64), budgets or (512, 2048)
    with Watch(quiet=as_json) as watch:
        outcome = run(
            labels=labels,
            batches=batches or BATCHES,
            token_budgets=budgets or TOKEN_BUDGETS,
            steps=steps,
            model=model,
            progress=watch,
        )
    _print(outcome, as_json)


@benchmarks.command()
@click.option("--model", type=click.Path(path_type=Path), help="A static model.  [default: one made in the run]")
@click.option("--seconds", default=5.0, show_default=True, help="Of load in a turn.")
@click.option("--repeats", default=5, show_default=True, help="Alternating turns; the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def serve(model: Path | None, seconds: float, repeats: int, as_json: bool) -> None:
    """Requests a second beside an empty route's, latency at half that load, what batching brings MiniLM."""
    from benchmarks.serve import run
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(model, seconds=seconds, repeats=repeats, progress=watch)
    _print(outcome, as_json)


@benchmarks.command()
@click.option("--minutes", default=10.0, show_default=True)
@click.option("--model", type=click.Path(path_type=Path), help="Changed by it.  [default: one made in the run]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def soak(minutes: float, model: Path | None, as_json: bool) -> None:
    """A service under load with a label change every second: failures, wrong answers, memory."""
    from benchmarks.soak import run
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(minutes, model, progress=watch)
    _print(outcome, as_json)


@benchmarks.command()
@click.option("--times", default=50, show_default=True, help="Kills.")
@click.option("--writers", default=1, show_default=True, help="Processes that change labels at once, and undo.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def crash(times: int, writers: int, as_json: bool) -> None:
    """kill -9 during label changes: what was acknowledged and lost, what is half done."""
    from benchmarks.crash import run
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(times, progress=watch, writers=writers)
    _print(outcome, as_json)


@benchmarks.command()
@click.option("--labels", default=500_000, show_default=True)
@click.option("--recall", default=0.99, show_default=True, help="Of the 10 best labels.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def index(labels: int, recall: float, as_json: bool) -> None:
    """HNSW against exact search, one query at a time on one thread: recall, speed, adding 1,000 labels."""
    from benchmarks.index import run
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(labels=labels, recall=recall, progress=watch)
    _print(outcome, as_json)


@benchmarks.command()
@click.option("--model", default="all-MiniLM-L6-v2", show_default=True, help="A transformer's name or folder.")
@click.option("--texts", default=64, show_default=True, help="Encoded in a turn.")
@click.option("--repeats", default=7, show_default=True, help="Alternating turns; the median counts.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def encoders(model: str, texts: int, repeats: int, as_json: bool) -> None:
    """Texts a second by onnxruntime beside torch: 1 and 32 at a time, one and two threads."""
    from benchmarks.encoders import run
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        outcome = run(model, texts=texts, repeats=repeats, progress=watch)
    _print(outcome, as_json)


def _print(outcome: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(outcome))
        return
    for key, value in outcome.items():
        if not isinstance(value, list):
            say(f"{key}: {value}")
    for result in outcome.get("results", []):
        say(
            "  ".join(
                f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in result.items()
            )
        )


if __name__ == "__main__":
    main(benchmarks, "python -m benchmarks")
