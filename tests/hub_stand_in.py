"""A stand-in for the Hugging Face hub on loopback: what its client asks of it, for models only, all in memory.

Names, tokens, errors and headers are as the client reads them: commits on branches, large files apart (git LFS, basic
transfer), links with an ETag and the commit. Xet, by which the client sends large files where it can, is not here.
"""

import base64
import hashlib
import json
import re
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import unquote, urlsplit

import pytest
import yaml

THEIR_WARNING = "ignore:Use 'content=:DeprecationWarning"  # of the client to itself, by its way of sending large files
TOKEN, USER = "hf_of_user", "user"
LARGE = 20_000  # bytes, from which on a file is large
LICENCES = {"apache-2.0", "mit", "cc-by-4.0", "cc-by-sa-4.0", "other"}  # some of those that the hub knows
Files = dict[str, str]  # the SHA-256 of a file's bytes by its path


@dataclass
class Repository:
    private: bool
    commits: dict[str, tuple[Files, str]] = field(default_factory=dict)  # files and message, oldest first
    branches: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: Files, message: str) -> str:
        number = hashlib.sha1(json.dumps([len(self.commits), branch, files, message]).encode()).hexdigest()
        self.commits[number] = files, message
        self.branches[branch] = number
        return number


@dataclass
class Hub:
    """What the hub has, and what it was asked."""

    endpoint: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)  # by SHA-256
    large: set[str] = field(default_factory=set)  # of these, those that were sent as large files
    asked: list[str] = field(default_factory=list)  # method and path of each request
    before_commit: Any = None  # called, once, when a commit is about to be made

    def store(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return digest

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        repository = self.repositories[name]
        return {path: self.blobs[blob] for path, blob in repository.commits[repository.branches[branch]][0].items()}

    def put(self, name: str, files: dict[str, bytes], branch: str = "main") -> str:
        """A commit by somebody else, with these files and no others."""
        repository = self.repositories.setdefault(name, Repository(private=False))
        return repository.commit(branch, {path: self.store(content) for path, content in files.items()}, "by hand")


class Refusal(Exception):
    def __init__(self, status: int, error: str, code: str = "") -> None:
        self.status, self.error, self.code = status, error, code


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        self.body = self.rfile.read(size) if size else self._chunks()
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        try:
            for method, pattern, answer in ROUTES:
                if method == self.command.replace("HEAD", "GET") and (found := re.fullmatch(pattern, path)):
                    status, content, headers = answer(self, **found.groupdict())
                    break
            else:
                raise Refusal(404, f"the stand-in knows no {self.command} {path}")
        except Refusal as refusal:
            status, content = refusal.status, {"error": refusal.error}
            headers = {"X-Error-Message": refusal.error, **({"X-Error-Code": refusal.code} if refusal.code else {})}
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = do

    def _chunks(self) -> bytes:
        found = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                found += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return found

    def user(self) -> str | None:
        return USER if self.headers.get("Authorization") == f"Bearer {TOKEN}" else None

    def require_user(self, namespace: str | None = None) -> None:
        if self.user() is None:
            raise Refusal(401, "Invalid username or password.")
        if namespace not in (None, USER):
            raise Refusal(403, f"You don't have the rights to write to {namespace}")

    def repository(self, name: str) -> Repository:
        found = self.hub.repositories.get(name)
        if found is None or (found.private and self.user() is None):
            raise Refusal(401 if self.user() is None else 404, "Repository not found", "RepoNotFound")
        return found

    def at(self, name: str, revision: str) -> tuple[str, Files]:
        repository = self.repository(name)
        number = repository.branches.get(revision, revision)
        if number not in repository.commits:
            raise Refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return number, repository.commits[number][0]

    def whoami(self) -> Any:
        self.require_user()
        return 200, {"type": "user", "name": USER, "orgs": []}, {}

    def create(self) -> Any:
        asked = json.loads(self.body)
        self.require_user(asked.get("organization"))
        name = f"{asked.get('organization') or USER}/{asked['name']}"
        about = {"url": f"{self.hub.endpoint}/{name}", "name": name}
        if name in self.hub.repositories:
            return 409, {**about, "error": "You already created this model repo"}, {}
        made = Repository(private=asked.get("private") is True or asked.get("visibility") == "private")
        made.commit("main", {".gitattributes": self.hub.store(b"*.safetensors filter=lfs\n")}, "initial commit")
        self.hub.repositories[name] = made
        return 200, about, {}

    def validate(self) -> Any:
        card = json.loads(self.body)["content"]
        found = re.match(r"---\n(.*?)\n---\n", card, flags=re.S)
        metadata = yaml.safe_load(found[1]) if found else {}
        if metadata.get("license", "mit") not in LICENCES:
            return 400, {"errors": [{"message": '"license" must be one of the known ones'}], "warnings": []}, {}
        return 200, {"errors": [], "warnings": []}, {}

    def info(self, name: str, revision: str = "main") -> Any:
        number, files = self.at(name, revision)
        siblings = [{"rfilename": path} for path in files]
        private = self.repository(name).private
        return 200, {"id": name, "modelId": name, "sha": number, "private": private, "siblings": siblings}, {}

    def tree(self, name: str, revision: str) -> Any:
        listing = []
        for path, blob in self.at(name, revision)[1].items():
            size = len(self.hub.blobs[blob])
            about = {"type": "file", "path": path, "size": size, "oid": hashlib.sha1(blob.encode()).hexdigest()}
            if blob in self.hub.large:
                about["lfs"] = {"oid": blob, "size": size, "pointerSize": 134}
            listing.append(about)
        return 200, listing, {}

    def branch(self, name: str, branch: str) -> Any:
        self.require_user(name.partition("/")[0])
        repository = self.repository(name)
        if branch in repository.branches:
            raise Refusal(409, f"Reference already exists: {branch}")
        repository.branches[branch] = repository.branches["main"]
        return 201, {}, {}

    def preupload(self, name: str, revision: str) -> Any:
        self.require_user(name.partition("/")[0])
        self.at(name, revision)
        asked = json.loads(self.body)["files"]
        modes = [{**one, "uploadMode": "lfs" if one["size"] >= LARGE else "regular"} for one in asked]
        return 200, {"files": [{**one, "shouldIgnore": False} for one in modes]}, {}

    def batch(self, name: str) -> Any:
        self.require_user(name.partition("/")[0])
        objects = json.loads(self.body)["objects"]
        for one in objects:
            if one["oid"] not in self.hub.blobs:
                href = f"{self.hub.endpoint}/lfs/{one['oid']}"
                one["actions"] = {"upload": {"href": href}, "verify": {"href": f"{href}/verify"}}
        return 200, {"transfer": "basic", "objects": objects}, {}

    def put(self, blob: str) -> Any:
        if self.hub.store(self.body) != blob:
            raise Refusal(400, "these are other bytes than were announced")
        self.hub.large.add(blob)
        return 200, {}, {}

    def verify(self, blob: str) -> Any:
        self.require_user()
        if len(self.hub.blobs.get(blob, b"")) != json.loads(self.body)["size"]:
            raise Refusal(404, "no such object")
        return 200, {}, {}

    def large_file(self, blob: str) -> Any:
        return 200, self.hub.blobs[blob], {}

    def commit(self, name: str, revision: str) -> Any:
        self.require_user(name.partition("/")[0])
        if self.hub.before_commit is not None:
            meanwhile, self.hub.before_commit = self.hub.before_commit, None
            meanwhile()
        number, files = self.at(name, revision)
        files, about = dict(files), {}
        for line in self.body.decode().splitlines():
            key, value = json.loads(line).values()
            if key == "header":
                about = value
                if about.get("parentCommit", number) != number:
                    raise Refusal(412, "A commit has happened since. Please refresh and try again.")
            elif key == "file":
                files[value["path"]] = self.hub.store(base64.b64decode(value["content"]))
            elif key == "lfsFile" and value["oid"] in self.hub.blobs:
                files[value["path"]] = value["oid"]
            elif key == "deletedFile" and value["path"] in files:
                del files[value["path"]]
            else:
                raise Refusal(400, f"cannot do {key} with {value}")
        made = self.repository(name).commit(revision, files, about["summary"])
        return 200, {"commitUrl": f"{self.hub.endpoint}/{name}/commit/{made}", "commitOid": made, "success": True}, {}

    def resolve(self, name: str, revision: str, path: str) -> Any:
        number, files = self.at(name, revision)
        if path not in files:
            raise Refusal(404, "Entry not found", "EntryNotFound")
        blob, headers = files[path], {"X-Repo-Commit": number}
        content = self.hub.blobs[blob]
        if blob in self.hub.large:
            linked = {"X-Linked-Etag": f'"{blob}"', "X-Linked-Size": str(len(content))}
            elsewhere = self.hub.endpoint.replace("127.0.0.1", "localhost")  # another host, as the hub has it
            return 302, b"", {**headers, **linked, "Location": f"{elsewhere}/lfs/{blob}"}
        return 200, content, {**headers, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}


NAME, REVISION = r"(?P<name>[^/]+/[^/]+)", r"(?P<revision>.+)"
ROUTES = [
    ("GET", "/api/whoami-v2", Handler.whoami),
    ("POST", "/api/repos/create", Handler.create),
    ("POST", "/api/validate-yaml", Handler.validate),
    ("GET", rf"/api/models/{NAME}/tree/{REVISION}", Handler.tree),
    ("GET", rf"/api/models/{NAME}/revision/{REVISION}", Handler.info),
    ("GET", rf"/api/models/{NAME}", Handler.info),
    ("POST", rf"/api/models/{NAME}/branch/(?P<branch>.+)", Handler.branch),
    ("POST", rf"/api/models/{NAME}/preupload/{REVISION}", Handler.preupload),
    ("POST", rf"/api/models/{NAME}/commit/{REVISION}", Handler.commit),
    ("POST", rf"/{NAME}\.git/info/lfs/objects/batch", Handler.batch),
    ("PUT", r"/lfs/(?P<blob>\w+)", Handler.put),
    ("POST", r"/lfs/(?P<blob>\w+)/verify", Handler.verify),
    ("GET", r"/lfs/(?P<blob>\w+)", Handler.large_file),
    ("GET", rf"/{NAME}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", Handler.resolve),
]


@contextmanager
def hub_stand_in(home: Path) -> Iterator[Hub]:
    """A hub that the client of this process and of those it starts talks to, logged in, with a cache of its own."""
    from huggingface_hub import constants, file_download

    hub = Hub()
    handler = type("Bound", (Handler,), {"hub": hub})
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        pytest.MonkeyPatch.context() as patch,
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", *THEIR_WARNING.split(":")[1:2], DeprecationWarning)
        hub.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        told = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home), "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
        told |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
        for name, value in told.items():  # for processes that start anew
            patch.setenv(name, value)
        # The client read its environment when it was imported.
        there = {"ENDPOINT": hub.endpoint, "HF_HUB_CACHE": str(home / "hub"), "HF_TOKEN_PATH": str(home / "token")}
        for module in (constants, file_download):  # the second until 1.0
            address = hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
            patch.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", address, raising=False)
        with mock.patch.multiple(constants, HF_HUB_OFFLINE=False, HF_HUB_DISABLE_XET=True, **there):
            forget_connections()
            try:
                yield hub
            finally:
                server.shutdown()
                thread.join()
                forget_connections()


def forget_connections() -> None:
    """Until 1.0, whether they may be made at all was asked when they were."""
    from huggingface_hub import utils

    for name in ("close_session", "reset_sessions"):  # as it was called then
        getattr(utils, name, lambda: None)()
