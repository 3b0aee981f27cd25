"""Models on the Hugging Face hub: sent in one commit, and fetched into a folder of their own.

Both ways go the manifest, the database, the card, and what the first two list; nothing else. The hub's cache is made of
links and serves every program of this user: a model is copied out of it, and never opened or changed in it.
"""

import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from umpteen import __version__
from umpteen.errors import BadFile, BadInput, DamagedModel, UmpteenError
from umpteen.files.storage import atomic_folder, can_hold, write_atomically
from umpteen.model.folder import CARD, MANIFEST, OURS, ModelFolder, at_one_moment, read_plainly, verify
from umpteen.model.live import LiveModel
from umpteen.model.writing import save_model

if TYPE_CHECKING:
    from huggingface_hub import CommitInfo

_TAGS = ["umpteen", "extreme-classification", "sentence-transformers"]
# Of the identifiers that the hub knows licences by, the usual ones; any other licence has a name there.
_LICENCES = re.compile(
    r"apache-2\.0|mit|isc|zlib|unlicense|wtfpl|ncsa|postgresql|artistic-2\.0|bsl-1\.0|ecl-2\.0|mpl-2\.0|ms-pl|afl-3\.0|osl-3\.0|"
    r"bsd|bsd-[23]-clause|bsd-3-clause-clear|agpl-3\.0|gpl|gpl-[23]\.0|lgpl|lgpl-2\.1|lgpl-3\.0|gfdl|epl-[12]\.0|eupl-1\.[12]|"
    r"cc0-1\.0|cc-by-(2\.0|2\.5|3\.0|4\.0)|cc-by-(sa|nc-nd)-[34]\.0|cc-by-nd-4\.0|cc-by-nc(-sa)?-[234]\.0|"
    r"odbl|odc-by|pddl|cdla-permissive-[12]\.0|cdla-sharing-1\.0|etalab-2\.0|ofl-1\.1|openrail|other|unknown"
)
_LOADED = re.compile(r'= Classifier\.(?:load|from_pretrained)\("[^"\n]*"\)')  # in a card's code


def push(
    live: LiveModel,
    name: str,
    private: bool | None,
    token: str | bool | None,
    revision: str | None,
    said: str | None,
    told: Mapping[str, str | None],
) -> "CommitInfo":
    """What `Classifier.push_to_hub` does: a copy of the model as it is now, its card completed, is what is sent."""
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, constants

    if constants.HF_HUB_OFFLINE:
        raise BadInput(f"{name}: HF_HUB_OFFLINE is set, so nothing is sent to the hub; unset it first")
    with TemporaryDirectory(prefix="umpteen-") as place:
        folder, own = Path(place, "model"), None if live.folder is None else live.folder.path / CARD
        card = read_plainly(own).decode(errors="replace") if own is not None and own.is_file() else None
        save_model(live, folder, live.told, card=card)
        _complete(folder / CARD, live, name, own or CARD, told)
        files = at_one_moment(folder, ModelFolder.members)
        with _explained(name):
            api = HfApi(token=token, library_name="umpteen", library_version=__version__)
            asked, name = name, api.create_repo(name, private=private, exist_ok=True).repo_id
            if name != asked:  # whose it is, the hub has told
                _complete(folder / CARD, live, name, own or CARD, told)
            if private and not api.model_info(name).private:
                raise BadInput(f"{name}: is there already, and public; nothing was sent. Make it private there first")
            if revision is not None:
                api.create_branch(name, branch=revision, exist_ok=True)
            head = api.model_info(name, revision=revision).sha
            old = (file for file in api.list_repo_files(name, revision=head) if OURS.fullmatch(file.partition("/")[0]))
            changes: list[CommitOperationAdd | CommitOperationDelete] = []
            changes += [CommitOperationDelete(file) for file in old if file not in files]
            changes += [CommitOperationAdd(file, folder / file) for file in files]
            message = said or f"Upload with umpteen {__version__}"
            # Of two who push at once, the later one is refused: it was not made with what the other has left.
            return api.create_commit(name, changes, commit_message=message, revision=revision, parent_commit=head)


def download(name: str, output: Path, *, revision: str | None = None) -> str:
    """Writes a model of the hub into a new folder, or nothing at all; returns its commit."""
    if not can_hold(output):
        raise BadInput(f"{output} exists and is not empty; give another folder")
    with atomic_folder(output) as folder:
        return fetch(name, folder, revision)


def fetch(name: str, folder: Path, revision: str | None = None, token: str | bool | None = None) -> str:
    """Copies a model of the hub into a folder, by way of the hub's cache, and checks every byte; returns its commit."""
    from huggingface_hub import snapshot_download

    def take(revision: str | None, *files: str) -> str:
        with _explained(name):
            wanted = [escape(file) for file in files]
            cached = Path(snapshot_download(name, revision=revision, token=token, allow_patterns=wanted))
        for file in files:
            if (cached / file).is_file():
                (folder / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(cached / file, folder / file)
        return cached.name

    commit = take(revision, MANIFEST)
    if not (folder / MANIFEST).is_file():
        raise BadInput(f"{name}: has no {MANIFEST} at revision {revision or 'main'}; it is no model of umpteen's")
    try:
        take(commit, ModelFolder(folder).database.name)
        take(commit, *at_one_moment(folder, ModelFolder.members))
        for problem in verify(folder):
            raise DamagedModel(problem)
    except DamagedModel as damage:
        raise DamagedModel(f"{name}: {str(damage).replace(f'{folder}/', '')}") from damage
    return commit


def _complete(card: Path, live: LiveModel, name: str, written: Path | str, told: Mapping[str, str | None]) -> None:
    """The card says how to load it, in front matter what the hub can read; all but figures and what is `told` stays."""
    from huggingface_hub import EvalResult, ModelCard

    given = {key: value for key, value in told.items() if value}
    data, report = live.told.data | given, live.report
    figures = live.told.training.get("held_out", {}) if report is None else report.metrics
    on, licence = str(data.get("name") or "unnamed"), _identifier(str(data.get("licence") or ""), "")
    known: dict[str, Any] = {"library_name": "umpteen", "pipeline_tag": "text-classification", "tags": _TAGS}
    known |= {"language": data.get("language"), "datasets": [on] if re.fullmatch(r"[\w.-]+/[\w.-]+", on) else None}
    if licence:
        is_known = _LICENCES.fullmatch(licence)
        known |= {"license": licence if is_known else "other", "license_name": None if is_known else licence}
    try:
        loaded = f'= Classifier.from_pretrained("{name}")'
        made = ModelCard(_LOADED.sub(lambda _: loaded, card.read_text(encoding="utf-8"), count=1))
        anew = ({"license", "license_name"} if "licence" in given else set()) | given.keys()
        for key, value in known.items():
            made.data[key] = value if key in anew else made.data.get(key) or value
        if figures:
            made.data["model_name"], made.data["metrics"] = name.rpartition("/")[2], list(figures)
            of: dict[str, Any] = {"task_type": "text-classification", "dataset_type": _identifier(on)}
            of["dataset_split"] = "validation"
            of["dataset_name"] = on if report is not None else f"{on}, before the final fit on all of train"
            made.data["eval_results"] = [
                EvalResult(**of, metric_type=metric, metric_name=f"{metric} (%)", metric_value=round(value, 2))
                for metric, value in figures.items()
            ]
        write_atomically(card, str(ModelCard(str(made))))
    except Exception as problem:  # of YAML, or of the hub's own checks
        raise BadFile(written, f"its front matter is nothing the hub can read ({_line(problem)}); mend it") from problem


def _identifier(text: str, otherwise: str = "unnamed") -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.") or otherwise


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """What the hub's client raises (HTTP, socket, validation and cache errors alike) says in one line what to do."""
    try:
        yield
    except UmpteenError:
        raise
    except Exception as refusal:
        cause = refusal.__cause__ if type(refusal) is RuntimeError else None  # of a thread that sends a file
        raise BadInput(f"{name}, on the hub: {_line(cause or refusal)}") from refusal


def _line(problem: BaseException) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__
