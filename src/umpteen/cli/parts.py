"""`umpteen calibrate`, `rerank`, `index`, `export`: what is added to a trained model; `upload`, `download`: the hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli.main import MODEL, PATH, Watch, cli, option, say, say_json, settings, tell, verb
from umpteen.search import KINDS

if TYPE_CHECKING:
    from umpteen.model.index import Sample

TRAINED_ON = "The dataset folder or bundled name the model was trained on."
DATA_OF_MODEL = click.Option(["--data", "source"], required=True, help=TRAINED_ON)
SHARE = click.FloatRange(0, 1, min_open=True, max_open=True)


@verb(cli, MODEL, DATA_OF_MODEL)
@click.option("--folds", type=click.IntRange(2), help="Train anew so often, each time without a fold; calibrate on it.")
@click.option("--unseen", is_flag=True, help="The model has seen none of DATA's training texts: calibrate on them.")
@click.option("--coverage", type=SHARE, help="Share of right labels its rule gives.  [default: 0.9, or what can be]")
@option("--confidence", type=SHARE, default=0.9, help="That a threshold for a wanted precision keeps it on new texts.")
def calibrate(model: Path, source: str, as_json: bool, **asked: Any) -> None:
    """Learn probabilities, thresholds and rules on texts MODEL was not fitted on, and put them into its folder.

    The texts are those that training held out for validation; with --folds, training texts, each scored by a model that
    was trained without it. A killed run with folds goes on when it is started again. Test data is never used.
    """
    from umpteen.calibration.calibration import PRECISIONS
    from umpteen.model.calibrate import calibrate as fit

    with Watch(quiet=as_json) as watch:
        dataset = watch.open_dataset(source)
        found = fit(model, dataset, **asked, observer=watch)
    precision = [{"wanted": wanted, **step._asdict()} for wanted, step in found.usual_steps().items()]
    rules = {name: rule._asdict() for name, rule in found.rules.items()}
    if as_json:
        about = {"model": str(model), "data": dataset.name, "held_out": found.origin, "figures": found.figures}
        say_json({**about, "confidence": found.confidence, "precision": precision, "rules": rules})
        return
    say(f"calibrated on {found.origin['said']}")
    if found.origin.get("also_chosen_on_them"):
        say(f"  on the same texts were chosen: {', '.join(found.origin['also_chosen_on_them'])}")
    say(f"over {found.figures['over']}, each text's probabilities from curves fitted on other texts:")
    by_depth = found.figures["by_depth"]
    sides = by_depth["5"] if "5" in by_depth else list(by_depth.values())[-1]
    told = {side: {name: sides[side][name] for name in ("ece", "brier", "log_loss")} for side in ("raw", "calibrated")}
    told |= {f"precision {one['wanted']:g}": one for one in precision}
    tell(False, told | {f"rule {name}": rule for name, rule in rules.items()})
    say(f"precisions are promised to new texts of this kind with {100 * found.confidence:g} % confidence each")
    if missing := PRECISIONS[len(precision) :]:
        few = f"cannot be promised after {found.origin['texts']:,} texts"
        say(f"  {', '.join(f'{one:g}' for one in missing)} {few}: calibrate on more of them, or with less --confidence")
    least = f"--precision {precision[-1]['wanted']:g}" if precision else "--rule f1"
    say(f"try: umpteen predict {model} 'your text' {least}")


GONE = "its probabilities were those of other scores, and are gone: umpteen calibrate {model} --data {data}"


@cli.group()
def rerank() -> None:
    """Look again at a text's first labels: by n-grams and by training texts that vote (docs/how-to/ranker.md)."""


@verb(rerank, MODEL, DATA_OF_MODEL)
@click.option("--weight", type=click.FloatRange(0, 1), help="Of the ranker's score.  [default: chosen on validation]")
@click.option("--votes", type=click.FloatRange(0, 1), help="The memory's share of it.  [default: chosen on validation]")
@click.option("--rare", type=click.FloatRange(0), help="Head start of rare labels.  [default: chosen on validation]")
@settings("A setting, e.g. cost=3, words=[1,3] or candidates=50, the labels of a text to put in order.")
@click.option("--jobs", type=click.IntRange(1), help="Processes that fit labels.  [default: one for each core]")
def fit(model: Path, source: str, overrides: tuple[str, ...], as_json: bool, **asked: Any) -> None:
    """Fit a ranker on what MODEL was trained on and put it into the model folder; a killed fit goes on."""
    from umpteen.config.recipes import with_overrides
    from umpteen.model.folder import CALIBRATION, has_part
    from umpteen.model.rerank import fit_ranker
    from umpteen.parallel.world import cores
    from umpteen.rerank.features import RankerSettings

    chosen = RankerSettings.of(with_overrides({}, overrides))
    asked["jobs"] = asked["jobs"] or cores()
    had_calibration = has_part(model, CALIBRATION)
    with Watch(quiet=as_json) as watch:
        dataset = watch.open_dataset(source)
        fitted, trials = fit_ranker(model, dataset, chosen, **asked, progress=watch)
    if as_json:
        course = [trial._asdict() for trial in trials]
        dropped = {"dropped_calibration": had_calibration}
        say_json({"model": str(model), "data": dataset.name, **fitted.describe(), "trials": course, **dropped})
        return
    for trial in [trials[0], max(trials, key=lambda trial: trial.mean)] if trials else []:
        figures = "  ".join(f"{name} {value:.2f}" for name, value in trial.metrics.items())
        say(f"validation, weight {trial.weight:g}, votes {trial.votes:g}, rare {trial.rare:g}: {figures}")
    texts = 0 if fitted.memory is None else len(fitted.memory.vectors)
    say(f"{model} has a ranker of {fitted.weights.nnz:,} weights and {texts:,} texts; it counts {fitted.weight:g}")
    if had_calibration:
        say(GONE.format(model=model, data=source))


@verb(rerank, MODEL, last=(), name="remove")
def remove_ranker(model: Path) -> None:
    """Take the ranker out of MODEL."""
    from umpteen.model.folder import CALIBRATION, has_part
    from umpteen.model.rerank import remove_ranker as remove

    had_calibration = has_part(model, CALIBRATION)
    remove(model)
    say(f"{model} ranks with its dual encoder alone")
    if had_calibration:
        say(GONE.format(model=model, data="DATA"))


QUERIES = click.option("--queries", type=PATH, help="A .txt, .jsonl, .csv or .tsv file of typical texts.")
TYPICAL = click.option("--data", "source", help="A dataset folder or bundled name whose training texts are typical.")
URI = "Milvus: a cluster's address, or a folder ending in .db; set UMPTEEN_MILVUS_URI, too.  [default: in MODEL]"
SAMPLE = option("--sample", default=1000, type=click.IntRange(2), help="Texts to take: half tune, half certify.")


@cli.group()
def index() -> None:
    """Build, show or remove the index that MODEL finds its labels with (docs/how-to/choose-an-index.md)."""


@verb(index, MODEL)
@click.option("--kind", type=click.Choice(list(KINDS)), required=True)
@option("--recall", type=click.FloatRange(0, 1, True), default=0.99, help="Of the k best labels, the share to find.")
@click.option("--k", type=click.IntRange(1), help="Of how many labels.  [default: 10, or the ranker's candidates]")
@QUERIES
@TYPICAL
@SAMPLE
@click.option("--uri", help=URI)
def build(model: Path, kind: str, recall: float, k: int | None, uri: str | None, as_json: bool, **typical: Any) -> None:
    """Build an index, tune it until its recall holds, and put it into MODEL with its certificate.

    Without --queries or --data, the labels' own texts are the queries. If the recall cannot be reached, nothing changes
    and the exit code is 2. A cluster's token is read from UMPTEEN_MILVUS_TOKEN.
    """
    from umpteen.model.index import build_index

    with Watch(quiet=as_json) as watch:
        texts = _sample(watch, "train", **typical)
        certificate = build_index(model, kind, recall=recall, k=k, uri=uri, sample=texts, progress=watch)
    _tell_certificate(model, vars(certificate), as_json)


@verb(index, MODEL)
def show(model: Path, as_json: bool) -> None:
    """Print the certificate of MODEL's index."""
    from umpteen.model.index import certificate_of

    certificate = certificate_of(model)
    if certificate is not None:
        _tell_certificate(model, vars(certificate), as_json)
    else:
        tell(as_json, {"model": str(model), "kind": "exact"}, f"{model} has no index: it searches exactly")


@verb(index, MODEL)
@QUERIES
@TYPICAL
@SAMPLE
def sync(model: Path, as_json: bool, **typical: Any) -> None:
    """Take labels that have changed since the index was built into it.

    Until then they are searched exactly beside it. Milvus is told of them; other kinds are built again.
    """
    from umpteen.model.index import sync_index

    with Watch(quiet=as_json) as watch:
        rows = sync_index(model, sample=_sample(watch, "train", **typical), progress=watch)
    done = f"{rows:,} labels had changed; the index of {model} holds them now" if rows else "nothing to do"
    tell(as_json, {"model": str(model), "rows": rows}, done)


@verb(index, MODEL, last=(), name="remove")
def remove_index(model: Path) -> None:
    """Go back to exact search."""
    from umpteen.model.index import remove_index as remove

    left_behind = remove(model)
    if left_behind is not None:
        say(left_behind, err=True)
    say(f"{model} searches exactly")


@verb(cli, MODEL)
@click.option("--to", "kind", type=click.Choice(["onnx", "torch"]), required=True, help="What encodes texts then.")
@option("--agreement", type=click.FloatRange(0, 1, True), default=0.99, help="Of texts with the same 5 best labels.")
@QUERIES
@click.option("--data", "source", help="A dataset folder or bundled name whose test texts are typical.")
@option("--sample", default=1000, type=click.IntRange(1), help="Texts to compare on.")
def export(model: Path, kind: str, agreement: float, as_json: bool, **typical: Any) -> None:
    """Let onnxruntime compute the transformers that MODEL reads texts with, if it agrees with torch; or torch again.

    Without --queries or --data, the labels' own texts are compared. If fewer agree than asked for, nothing changes and
    the exit code is 2. Where onnxruntime is not installed, MODEL answers by torch as before.
    """
    from umpteen.model.export import export_model, remove_runtime

    if kind == "torch":
        remove_runtime(model)
        tell(as_json, {"model": str(model), "kind": kind}, f"{model} encodes texts by torch")
        return
    with Watch(quiet=as_json) as watch:
        found = export_model(model, agreement=agreement, sample=_sample(watch, "test", **typical))
    tell(as_json, {"model": str(model), **found})


def _sample(watch: Watch, split: str, *, queries: Path | None, source: str | None, sample: int) -> "Sample | int":
    """The texts that were asked for, or how many of the labels' own."""
    from umpteen.errors import BadInput
    from umpteen.model.index import of_file, sample_of

    if queries is not None and source is not None:
        raise BadInput("--queries and --data both name the texts to tune on; give one of them")
    if queries is not None:
        return of_file(queries, sample)
    if source is None:
        return sample
    dataset = watch.open_dataset(source)
    name = split if split in dataset.splits() else "train"
    kind = "training" if name == "train" else name
    return sample_of(dataset.splits()[name].texts, f"{kind} texts of {dataset.name}", sample)


def _tell_certificate(model: Path, certificate: dict[str, Any], as_json: bool) -> None:
    tell(as_json, {"model": str(model), **certificate})
    speed = certificate["queries_per_second"]
    if speed["index"] < speed["exact"] and not as_json:
        say(f"it is slower than exact search here; `umpteen index remove {model}` goes back to that", fg="yellow")


NAME = click.Argument(["name"], metavar="USER/MODEL")


@verb(cli, MODEL, NAME)
@click.option("--private/--public", default=None, help="Of a new repository.  [default: as the hub has it]")
@click.option("--revision", help="A branch, made if it is not there.  [default: main]")
@click.option("--message", "commit_message", help="Of the commit.  [default: which umpteen sent it]")
@click.option("--licence", help="For the card, e.g. mit or cc-by-4.0; others by their name.  [default: as it is told]")
@click.option("--language", help="For the card, e.g. en.  [default: as it is told]")
def upload(model: Path, name: str, as_json: bool, **asked: Any) -> None:
    """Send MODEL as it is now to the Hugging Face hub, in one commit, with a card that the hub understands.

    The token is HF_TOKEN, or that of `hf auth login`. Texts that people corrected go along, and training texts that
    the ranker keeps (docs/how-to/hub.md).
    """
    from umpteen.model.classifier import Classifier

    done = Classifier.load(model, index=False).push_to_hub(name, **asked)
    about = {"model": str(model), "name": name, "commit": done.oid, "url": done.commit_url}
    tell(as_json, about, f"sent {model}: {done.commit_url}")


@verb(cli, NAME)
@click.option("--output", type=PATH, required=True, help="Model folder to make.")
@click.option("--revision", help="A branch, a tag or a commit.  [default: main]")
def download(name: str, output: Path, revision: str | None, as_json: bool) -> None:
    """Write a model of the Hugging Face hub into a folder, every byte checked, or nothing at all.

    Without the hub, or with HF_HUB_OFFLINE=1, it is taken from the hub's cache, if that has it.
    """
    from umpteen.model.hub import download as fetch

    commit = fetch(name, output, revision=revision)
    said = f"{output} is {name} at {commit}; try: umpteen predict {output} 'your text'"
    tell(as_json, {"model": str(output), "name": name, "commit": commit}, said)
