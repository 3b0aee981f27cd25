"""`umpteen` for shell scripts in tests: one process loads everything once, and forks for each call.

The calls behave like the real command (arguments, folder, streams, exit code, signals) without seconds of imports each.
"""

import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

CALLER = """#!{python} -SE
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({address!r})
    asked = json.dumps([sys.argv[1:], os.getcwd()]).encode()
    socket.send_fds(line, [len(asked).to_bytes(4, "big") + asked], [0, 1, 2])
    answers = line.makefile()
    process = int(answers.readline())
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: os.kill(process, number))
    sys.exit(int(answers.readline() or 70))
"""


@contextlib.contextmanager
def quick_umpteen(folder: Path) -> Iterator[Path]:
    """A folder for PATH that holds an `umpteen`, as long as this lasts."""
    address = str(folder / "calls")
    command = folder / "umpteen"
    command.write_text(CALLER.format(python=sys.executable, address=address))
    command.chmod(0o755)
    with socket.socket(socket.AF_UNIX) as calls:
        calls.bind(address)
        calls.listen()
        process = os.fork()
        if not process:
            _answer_all(calls)
        try:
            yield folder
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def _answer_all(calls: socket.socket) -> None:
    try:
        import umpteen.encoders.transformer
        import umpteen.model.classifier
        import umpteen.model.train
        import umpteen.service.app  # noqa: F401

        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            line, _ = calls.accept()
            if not os.fork():
                _answer(line)
            line.close()
    finally:
        os._exit(1)


def _answer(line: socket.socket) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        data, streams, _, _ = socket.recv_fds(line, 1 << 16, 3)
        while len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += line.recv(1 << 16)
        arguments, place = json.loads(data[4:])
        line.sendall(f"{os.getpid()}\n".encode())
        os.chdir(place)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115
            for number, mode in ((0, "r"), (1, "w"), (2, "w"))
        )
        sys.argv = ["umpteen", *arguments]
        from umpteen.cli.main import main

        main()
        code = 0
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
            line.sendall(f"{code}\n".encode())
        os._exit(code)
