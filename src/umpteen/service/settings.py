"""How a service is run: its limits, its token, its clocks. Every limit has an answer of its own when it is met."""

from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from umpteen.errors import BadConfig, BadFile


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The most that one request may ask; together they cap the memory it can take."""

    connections: int = 1_000  # of a worker, or three quarters of the files it may open
    head_bytes: int = 2**16  # of the first line and the headers
    body_bytes: int = 2 * 2**20
    texts: int = 256
    text_characters: int = 100_000
    characters: int = 1_000_000  # of all texts together
    k: int = 100
    answers: int = 10_000  # texts × k
    labels: int = 1_000  # in one change
    waiting_texts: int = 2_048  # in the queue of a worker
    waiting_characters: int = 20_000_000  # of these texts
    waiting_changes: int = 16
    waiting_searches: int = 32  # of labels or their history; and as many explanations

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise BadConfig(f"the limit {name} is {value}; it must be 1 or more")


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Everything of a service but its model."""

    host: str = "127.0.0.1"
    port: int = 8000  # 0: a free one
    limits: Limits = field(default_factory=Limits)
    token: str | None = field(default=None, repr=False)  # None: labels can't be changed
    cors: tuple[str, ...] = ()  # origins that browsers may call from
    allowed_hosts: tuple[str, ...] = ()  # names and addresses that requests may be for; (): any
    timeout: float = 10.0  # seconds from a whole request to its answer
    body_timeout: float = 10.0  # seconds for a request's head to arrive, and again for its body
    change_timeout: float = 60.0  # seconds for a change of labels
    lock_timeout: float = 5.0  # of these, for another process that changes the same folder
    shutdown_timeout: float = 10.0  # seconds for requests taken before the end
    batch_texts: int = 64  # texts of several requests in one call of the encoder
    gather: float = 0.002  # seconds a batch may wait for more texts while requests keep coming, or a tenth of the last
    refresh: float = 0.3  # seconds between looks for changes other processes made
    threads: int | None = None  # of a worker; None: one for work that is short, else the cores shared out
    workers: int = 1  # processes that share the machine
    ranker: bool = True  # False: the dual encoder alone
    access_log: bool = False  # JSON lines on stdout
    log_texts: bool = False

    def __post_init__(self) -> None:
        clocks = ("timeout", "body_timeout", "change_timeout", "lock_timeout", "shutdown_timeout", "refresh")
        for name in (*clocks, "batch_texts", "workers"):
            if not getattr(self, name) > 0:
                raise BadConfig(f"{name} is {getattr(self, name)}; it must be more than 0")
        if self.gather < 0 or (self.threads is not None and self.threads < 1):
            raise BadConfig(f"gather is {self.gather} and threads {self.threads}; give at least 0 and 1")
        if self.token is not None and (not self.token or any(map(str.isspace, self.token))):
            raise BadConfig("the token is empty or holds blanks; `openssl rand -hex 16` prints a good one")

    @classmethod
    def of(cls, **asked: Any) -> "ServiceSettings":
        """Settings and limits by their names, each where it belongs."""
        limits = {found.name: asked.pop(found.name) for found in fields(Limits) if found.name in asked}
        return cls(limits=Limits(**limits), **asked)

    @property
    def editable(self) -> bool:
        return self.token is not None


def read_token(file: Path) -> str:
    """The token a file holds, without the line's end."""
    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise BadFile(file, f"the token cannot be read: {problem}") from problem
    if not token or any(map(str.isspace, token)):
        raise BadFile(file, "holds no token; write one line without blanks, such as `openssl rand -hex 16` prints")
    return token
