"""`umpteen serve`: a model behind HTTP, with a page to try it and to manage its labels."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from umpteen.cli.main import MODEL, PATH, F, cli, option, say
from umpteen.errors import BadInput
from umpteen.service.settings import Limits, ServiceSettings, read_token

TOKEN = "UMPTEEN_TOKEN"


def _option(flag: str, name: str, about: str, **more: Any) -> Callable[[F], F]:
    """A setting or a limit by its name, which has its default there."""
    default = getattr(Limits if hasattr(Limits, name) else ServiceSettings, name)
    return option(flag, name, default=default, help=about, **more)


# Every parameter but four is a setting or a limit, by its name there.
@cli.command()
@MODEL
@_option("--host", "host", "Address to listen on; 0.0.0.0 for all.")
@_option("--port", "port", "0 takes a free one.", type=click.IntRange(0, 65535))
@_option("--workers", "workers", "Processes.", type=click.IntRange(1))
@click.option(
    "--token-file",
    type=PATH,
    help=f"File with the token that changing labels needs; or set {TOKEN}. Without one, labels cannot be changed.",
)
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
    except ModuleNotFoundError as missing:
        raise BadInput(
            f"the service needs {missing.name}, which is not here: pip install 'umpteen[serve]'"
        ) from missing

    token = read_token(token_file) if token_file is not None else os.environ.get(TOKEN) or None
    settings = ServiceSettings.of({"token": token, **asked})

    def announce(address: str) -> None:
        editing = "labels can be changed" if settings.editable else "labels cannot be changed without a token"
        say(f"{model} is served at {address} ({editing}); Ctrl-C ends it", err=True)
        if open_page:
            import webbrowser
            from threading import Thread

            # A browser of the terminal would hold us.
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    run(model, settings, announce)
