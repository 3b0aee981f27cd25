"""`umpteen serve`: a model behind HTTP, with a page to try it and to manage its labels."""

import os
from pathlib import Path

import click

from umpteen.cli.console import say

TOKEN = "UMPTEEN_TOKEN"


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on; 0.0.0.0 for all.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Processes.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    help=f"File with the token that changing labels needs; or set {TOKEN}. Without one, labels cannot be changed.",
)
@click.option("--cors", multiple=True, metavar="ORIGIN", help="Let browsers call from this origin; repeat.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="Answer to this Host only; repeat.  [default: any]")
@click.option("--timeout", default=10.0, show_default=True, help="Seconds until an answer.")
@click.option("--shutdown-timeout", default=10.0, show_default=True, help="Seconds for requests taken before the end.")
@click.option("--max-connections", default=1000, show_default=True, help="Open connections of a worker.")
@click.option("--max-body", default=2 * 2**20, show_default=True, help="Bytes of a request.")
@click.option("--max-texts", default=256, show_default=True, help="Texts of a request.")
@click.option("--max-text", default=100_000, show_default=True, help="Characters of a text.")
@click.option("--max-k", default=100, show_default=True, help="Labels of a text.")
@click.option("--max-waiting", default=2048, show_default=True, help="Texts that may wait in a worker.")
@click.option("--batch-texts", default=64, show_default=True, help="Texts of several requests encoded together.")
@click.option("--threads", type=click.IntRange(1), help="Threads of a worker.  [default: by the model]")
@click.option("--no-ranker", is_flag=True, help="The dual encoder alone, if the model has a ranker.")
@click.option("--log/--no-log", default=True, show_default=True, help="One JSON line a request on stdout.")
@click.option("--log-texts", is_flag=True, help="Texts too, in these lines.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in a browser.")
def serve(
    model: Path,
    host: str,
    port: int,
    workers: int,
    token_file: Path | None,
    cors: tuple[str, ...],
    allowed_host: tuple[str, ...],
    timeout: float,
    shutdown_timeout: float,
    max_connections: int,
    max_body: int,
    max_texts: int,
    max_text: int,
    max_k: int,
    max_waiting: int,
    batch_texts: int,
    threads: int | None,
    no_ranker: bool,
    log: bool,
    log_texts: bool,
    open_page: bool,
) -> None:
    """Answer texts with the labels of MODEL over HTTP, on a page and for programs.

    Labels can be changed while it runs, by whoever has the token. GET /docs lists what there is.
    """
    from umpteen.cli.console import keep_freed_memory
    from umpteen.service.run import Serving
    from umpteen.service.run import serve as run
    from umpteen.service.settings import Limits, ServiceSettings, read_token

    limits = Limits(
        connections=max_connections,
        body_bytes=max_body,
        texts=max_texts,
        text_characters=max_text,
        k=max_k,
        waiting_texts=max_waiting,
    )
    settings = ServiceSettings(
        limits=limits,
        token=read_token(token_file) if token_file is not None else os.environ.get(TOKEN) or None,
        cors=cors,
        allowed_hosts=allowed_host,
        timeout=timeout,
        shutdown_timeout=shutdown_timeout,
        batch_texts=batch_texts,
        threads=threads,
        workers=workers,
        access_log=log,
        log_texts=log_texts,
    )

    def announce(address: str) -> None:
        editing = "labels can be changed" if settings.editable else "labels cannot be changed without a token"
        say(f"{model} is served at {address} ({editing}); Ctrl-C ends it", err=True)
        if open_page:
            import webbrowser

            webbrowser.open(address)

    run(Serving(model, settings, host, port, ranker=not no_ranker, at_start=keep_freed_memory), announce)
