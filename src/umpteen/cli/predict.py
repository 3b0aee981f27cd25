"""`umpteen predict`, `merge` and `serve`: labels for texts here, in files of any length, or over HTTP and on a page."""

import os
import sys
from collections.abc import Callable, Iterable
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from umpteen.cli.main import MODEL, NO_RANKER, PATH, F, Watch, cli, option, say, say_json, tell, verb
from umpteen.errors import BadInput
from umpteen.service.settings import Limits, ServiceSettings, read_token

if TYPE_CHECKING:
    from umpteen.model.batch import State
    from umpteen.model.explain import Explanation

_SHOWN, _SHOWN_TEXTS, _SHOWN_CHARACTERS = 6, 3, 80  # words and n-grams, training texts, and of each of these


def _shard(context: click.Context, parameter: click.Parameter, given: str | None) -> tuple[int, int] | None:
    if given is None:
        return None
    number, _, count = given.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise click.BadParameter(f"{given!r} is not a machine's number and how many there are, for instance 2/5")
    return int(number), int(count)


@verb(cli, MODEL, click.Argument(["texts"], nargs=-1, metavar="[TEXT]..."), last=())
@click.option("--k", type=int, help="Labels per text.  [default: 5, or the most that --rule gives]")
@click.option("--min-probability", type=click.FloatRange(0, 1), help="Only labels that are at least so probable.")
@click.option("--precision", type=click.FloatRange(0, 1), help="Only labels of which this share is right, e.g. 0.9.")
@click.option("--rule", type=click.Choice(["f1", "coverage"]), help="As many labels as was best on held-out texts.")
@click.option("--explain", is_flag=True, help="Tell why: the words, n-grams and training texts behind each label.")
@NO_RANKER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a text.")
@click.option("--input", "source", type=PATH, help="A .jsonl, .csv, .tsv or .txt file, or .gz.")
@click.option("--output", type=PATH, help="With --input: a .jsonl or .csv file.")
@click.option("--field", help="With --input: where a row has its text.  [default: as `fit` finds it]")
@click.option("--id-field", help="With --input: a field to name answers by.  [default: the line's number]")
@click.option("--skip-bad", is_flag=True, help="With --input: list rows without a text in OUTPUT.bad.jsonl and go on.")
@click.option("--shard", callback=_shard, metavar="I/N", help="With --input: part I of N; umpteen merge joins them.")
@click.option("--resume", is_flag=True, help="With --input: go on after a kill; starts where there is nothing.")
@click.option("--overwrite", is_flag=True, help="With --input: replace OUTPUT at the end; discard unfinished work.")
def predict(
    model: Path, texts: tuple[str, ...], source: Path | None, output: Path | None, explain: bool, **asked: Any
) -> None:
    """Print the best labels of each TEXT, or of each line of stdin; or write those of a file's texts to another.

    Probabilities, --min-probability, --precision and --rule need a calibrated model (umpteen calibrate).
    """
    if explain and source is not None:
        raise click.UsageError("--explain goes with TEXT, or lines of stdin")
    if source is not None and output is not None and not texts:
        _answer_file(model, source, output, **asked)
    elif source is not None or output is not None:
        raise click.UsageError("--input and --output go together, and without TEXT")
    elif any(asked[name] for name in ("id_field", "skip_bad", "shard", "resume", "overwrite")):
        raise click.UsageError("--id-field, --skip-bad, --shard, --resume and --overwrite go with --input and --output")
    else:
        _answer(model, _given_texts(texts), explain, **asked)


def _given_texts(texts: tuple[str, ...]) -> list[str]:
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")  # as arguments come; refused by name below
    given = list(texts) or [line.rstrip("\r\n") for line in sys.stdin]
    if not given:
        raise BadInput("no text given; pass texts as arguments, or one per line on stdin")
    for number, text in enumerate(given, 1):
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise BadInput(f"text {number:,} is not UTF-8: {text.encode(errors='replace').decode()[:60]!r}; convert it")
    return given


def _answer(model: Path, texts: list[str], explain: bool, *, no_ranker: bool, as_json: bool, **asked: Any) -> None:
    from umpteen.model.classifier import LIMITS, Classifier, answer

    limits = {name: asked[name] for name in LIMITS}
    classifier = Classifier.load(model, ranker=not no_ranker, light=True)
    for text, found in zip(texts, classifier.predict(texts, **limits), strict=True):
        explainer = classifier.explainer(text) if explain else None
        if as_json:
            told = answer({"text": text}, found)
            if explainer:
                for label in told["labels"]:
                    label["explanation"] = explainer.explain(label["key"]).to_dict()
            say_json(told)
            continue
        say(text, bold=True)
        for label in found:
            sure = "" if label.probability is None else f"{100 * label.probability:5.1f} %  "
            say(f"  {label.score:6.3f}  {sure}{label.text}  [{label.key}]")
            if explainer:
                _say_why(explainer.explain(label.key))
        if not found:
            say("  no label is as probable as that")


def _say_why(why: "Explanation") -> None:
    """What the score is made of, and the largest of what is behind it."""

    def line(name: str, found: Iterable[tuple[str, float]]) -> None:
        shown = ", ".join(f"{text} {score:+.3f}" for text, score in found)
        if shown:
            say(f"{'':10}{name}: {shown}", dim=True)

    line("score", ((term.name, term.score) for term in why.terms))
    words = sorted(why.words, key=lambda word: -abs(word.score))
    line(f"words ({why.method})", ((word.text, word.score) for word in words[:_SHOWN]))
    line("n-grams", ((repr(ngram.text), ngram.score) for ngram in why.ngrams[:_SHOWN]))
    for near in why.neighbours[:_SHOWN_TEXTS]:
        text = "(a text that is not kept)" if near.text is None else f'"{near.text[:_SHOWN_CHARACTERS]}"'
        line("like", [(f"{text}, similarity {near.similarity:.3f},", near.score)])


def _answer_file(model: Path, source: Path, output: Path, *, no_ranker: bool, as_json: bool, **asked: Any) -> None:
    from umpteen.model.batch import Wanted, predict_file, shard_of
    from umpteen.model.classifier import Classifier

    how = {name: asked.pop(name) for name in ("shard", "resume", "overwrite")}
    output = shard_of(output, how["shard"]) if how["shard"] else output
    with Watch(quiet=as_json) as watch:
        classifier = Classifier.load(model, ranker=not no_ranker)
        progress = partial(watch, "predicting (bytes)")
        done = predict_file(classifier, source, output, Wanted(**asked), **how, progress=progress)
    _tell_done(output, done, as_json)


def _tell_done(output: Path, done: "State | None", as_json: bool) -> None:
    from umpteen.model.batch import bad_rows_of

    answer = {"output": str(output), "complete": True}
    if done is None:
        tell(as_json, answer, f"{output} is complete; nothing is left to predict")
    else:
        skipped = f"; {done.bad:,} bad rows are listed in {bad_rows_of(output)}" if done.bad else ""
        answer |= {"texts": done.texts, "labels": done.labels, "bad_rows": done.bad}
        tell(as_json, answer, f"{output}: {done.labels:,} labels for {done.texts:,} texts{skipped}")


@verb(cli, click.Argument(["output"], type=PATH))
@click.option("--overwrite", is_flag=True, help="Replace OUTPUT if it is there.")
def merge(output: Path, overwrite: bool, as_json: bool) -> None:
    """Put together what `umpteen predict --output OUTPUT --shard I/N` wrote, from 1/N to N/N.

    OUTPUT is then what one machine would have written. A shard that is missing, damaged, or of another model, other
    settings or another input is named, and nothing is written.
    """
    from umpteen.model.batch import merge_shards

    _tell_done(output, merge_shards(output, overwrite=overwrite), as_json)


TOKEN = "UMPTEEN_TOKEN"
NEEDED = f"File with the token that changing labels needs; or set {TOKEN}. Without one, labels cannot be changed."


def _option(flag: str, name: str, about: str, **more: Any) -> Callable[[F], F]:
    """A setting or a limit by its name, which has its default there."""
    default = getattr(Limits if hasattr(Limits, name) else ServiceSettings, name)
    return option(flag, name, default=default, help=about, **more)


# Every parameter but four is a setting or a limit, by its name there.
@verb(cli, MODEL, last=())
@_option("--host", "host", "Address to listen on; 0.0.0.0 for all.")
@_option("--port", "port", "0 takes a free one.", type=click.IntRange(0, 65535))
@_option("--workers", "workers", "Processes.", type=click.IntRange(1))
@click.option("--token-file", type=PATH, help=NEEDED)
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Let browsers call from this origin; repeat.")
@click.option("--allowed-host", "allowed_hosts", multiple=True, metavar="NAME", help="Only for this Host; repeat.")
@_option("--timeout", "timeout", "Seconds until an answer.")
@_option("--shutdown-timeout", "shutdown_timeout", "Seconds for requests taken before the end.")
@_option("--max-connections", "connections", "Open connections of a worker.")
@_option("--max-body", "body_bytes", "Bytes of a request.")
@_option("--max-texts", "texts", "Texts of a request.")
@_option("--max-text", "text_characters", "Characters of a text.")
@_option("--max-k", "k", "Labels of a text.")
@_option("--max-waiting", "waiting_texts", "Texts that may wait in a worker.")
@_option("--batch-texts", "batch_texts", "Texts of several requests encoded together.")
@click.option("--threads", type=click.IntRange(1), help="Threads of a worker.  [default: by the model]")
@click.option("--ranker/--no-ranker", default=True, help="Without it the dual encoder answers alone.")
@option("--log/--no-log", "access_log", default=True, help="One JSON line a request on stdout.")
@click.option("--log-texts", is_flag=True, help="Texts too, in these lines.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
def serve(model: Path, token_file: Path | None, open_page: bool, **asked: Any) -> None:
    """Answer texts with the labels of MODEL over HTTP, on a page and for programs.

    Labels can be changed while it runs, by whoever has the token. GET /docs lists what there is.
    """
    try:
        from umpteen.service.run import serve as run
    except ModuleNotFoundError as absent:
        raise BadInput(f"the service needs {absent.name}, which is not here: pip install 'umpteen[serve]'") from absent

    token = read_token(token_file) if token_file is not None else os.environ.get(TOKEN) or None
    settings = ServiceSettings.of(token=token, **asked)

    def announce(address: str) -> None:
        editing = "labels can be changed" if settings.editable else "labels cannot be changed without a token"
        say(f"{model} is served at {address} ({editing}); Ctrl-C ends it", err=True)
        if open_page:
            import webbrowser
            from threading import Thread

            # A browser of the terminal would hold us.
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    run(model, settings, announce)
