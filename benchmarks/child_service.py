"""A service as a child process, from its announcement to its end: for benchmarks that load it from outside."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.request import Request, urlopen

from umpteen.errors import BadInput

_PATIENCE = 300.0  # seconds until it is ready


class ChildService(NamedTuple):
    """A service that answers."""

    port: int
    process: "subprocess.Popen[str]"

    def post(self, path: str, content: object, *, token: str = "") -> Any:
        """One answer, in peace."""
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        request = Request(f"http://127.0.0.1:{self.port}{path}", json.dumps(content).encode(), headers)
        with urlopen(request, timeout=_PATIENCE) as response:
            return json.load(response)


@contextmanager
def umpteen_serve(model: Path, *options: str, token: str = "", log: Path | None = None) -> Iterator[ChildService]:
    """`umpteen serve MODEL` on a free port; its log goes into a file, if one is given."""
    command = [sys.executable, "-m", "umpteen", "serve", str(model), "--port", "0", *options]
    with child_service(command, environment={"UMPTEEN_TOKEN": token}, log=log) as service:
        yield service


@contextmanager
def child_service(
    command: Sequence[str],
    *,
    stdin: str = "",
    environment: dict[str, str] | None = None,
    log: Path | None = None,
) -> Iterator[ChildService]:
    """A process that says its address on stderr; it ends with the block, by SIGTERM."""
    with (log or Path(os.devnull)).open("w") as stdout:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
    try:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(stdin)
        process.stdin.close()
        port = _announced(process.stderr)
        _wait_until_ready(port)
        yield ChildService(port, process)
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _announced(stderr: IO[str]) -> int:
    said = []
    for line in stderr:
        said.append(line)
        found = re.search(r"http://[^/]+:(\d+)/", line)
        if found is not None:
            return int(found[1])
    raise BadInput(f"the service did not start: {''.join(said).strip() or 'it said nothing'}")


def _wait_until_ready(port: int) -> None:
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/ready", timeout=5) as response:
                if response.status == 200:
                    return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
