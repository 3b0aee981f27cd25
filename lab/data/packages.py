"""Packages of Debian and npm: fetched once by the registry's own client, kept in the cache, and read from there.

What is in the cache is not asked for again, so a dataset can be made without a network by whoever puts the files there.
"""

import io
import json
import os
import subprocess
import tarfile
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from umpteen.data.prepared import cache_folder
from umpteen.errors import BadFile, BadInput
from umpteen.files.progress import Notice
from umpteen.files.storage import sha256_of


@dataclass(frozen=True)
class Registry:
    name: str
    fetch: tuple[str, ...]  # downloads the package whose name follows into the current folder
    between: str  # a package's name and its version, in the name of its file
    suffix: str
    advice: str


DEBIAN = Registry("Debian", ("apt-get", "download"), "_", ".deb", "refresh the lists by `apt-get update` as root")
NPM = Registry("npm", ("npm", "pack"), "-", ".tgz", "see that npm reaches its registry")


@dataclass(frozen=True)
class Package:
    registry: Registry
    name: str
    version: str
    path: Path

    @property
    def sha256(self) -> str:
        return sha256_of(self.path)

    def read(self, *names: str) -> list[bytes]:
        """The contents of these files of the package."""
        found = dict[str, bytes]()
        try:
            with self._open() as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if name in names and (file := archive.extractfile(member)):
                        found[name] = file.read()
        except (OSError, EOFError, zlib.error, tarfile.TarError) as problem:
            raise BadFile(self.path, f"cannot be unpacked ({problem}); remove it, and it is fetched again") from None
        for name in names:
            if name not in found:
                raise BadFile(self.path, f"holds no {name}; it is another package, or a version that is not known here")
        return [found[name] for name in names]

    def licence_of(self, known: str) -> str:
        """The licence as the package states it in a field for it, else as it is known."""
        if self.registry is NPM:
            (about,) = self.read("package/package.json")
            return str(json.loads(about).get("license", known))
        return known

    def notice(self) -> bytes | None:
        """The licence's text, where the package brings it along."""
        return self.read(f"usr/share/doc/{self.name}/copyright")[0] if self.registry is DEBIAN else None

    def _open(self) -> tarfile.TarFile:
        if self.registry is not DEBIAN:
            return tarfile.open(self.path)
        done = subprocess.run(["dpkg-deb", "--fsys-tarfile", self.path], capture_output=True, check=False)
        if done.returncode:
            raise OSError(_reason(done.stderr.decode(errors="replace")))
        return tarfile.open(fileobj=io.BytesIO(done.stdout))


def package(registry: Registry, name: str, notice: Notice = lambda message: None) -> Package:
    """The package of this name: the version in the cache, or else the registry's current one."""
    folder = cache_folder() / "packages"
    folder.mkdir(parents=True, exist_ok=True)
    kept = _kept(registry, name, folder)
    if not kept:
        notice(f"fetching {name} from {registry.name}, once …")
        with tempfile.TemporaryDirectory(dir=folder) as fresh:
            _fetch(registry, name, folder, Path(fresh))
            for path in _kept(registry, name, Path(fresh)):
                path.replace(folder / path.name)
        kept = _kept(registry, name, folder)
    if len(kept) != 1:
        names = ", ".join(path.name for path in kept) or "none"
        raise BadInput(f"{folder} should hold one version of {name}, but there is {names}; leave the one to use")
    version = kept[0].name.removeprefix(name + registry.between).removesuffix(registry.suffix)
    return Package(registry, name, unquote(version.partition("_")[0]), kept[0])


def _kept(registry: Registry, name: str, folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{name}{registry.between}[0-9]*{registry.suffix}"))


def _fetch(registry: Registry, name: str, cache: Path, folder: Path) -> None:
    command = [*registry.fetch, name]
    try:
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        problem = _reason(done.stderr) if done.returncode else ""
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise BadInput(
            f"`{' '.join(command)}` failed: {problem}; {registry.advice}, or put the file "
            f"{name}{registry.between}VERSION{registry.suffix} into {cache}"
        )


def _reason(output: str) -> str:
    """The first line that is an error's, else the last one."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("E:", "npm ERR!", "npm error"))]
    return (errors or lines[-1:] or ["it gave no reason"])[0][:200]
