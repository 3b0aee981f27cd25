"""Models on the Hugging Face hub, for which a stand-in answers on loopback."""

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, constants

from hub_stand_in import LARGE, THEIR_WARNING, TOKEN, Hub, forget_connections, hub_stand_in
from miniature import command, listing, refused
from umpteen.data.labels import LabelCatalogue
from umpteen.errors import BadInput, DamagedModel
from umpteen.model.classifier import Classifier, verify
from umpteen.model.folder import CARD, INDEX, MANIFEST, ModelFolder, checksum_of
from umpteen.search.index import BOUND

pytestmark = pytest.mark.filterwarnings(THEIR_WARNING)
NAME = "user/model"
TEXTS = ["a law of the library", "fish and food", "the tax of a dog"]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with hub_stand_in(tmp_path / "hugging-face") as found:
        yield found


def pushed(model: Path) -> None:
    Classifier.load(model).push_to_hub(NAME)


def test_a_model_answers_alike_after_its_way_over_the_hub(plain_model: Path, hub: Hub) -> None:
    classifier = Classifier.load(plain_model)
    classifier.add_labels({"new": "a tree in the network"})
    classifier.learn(TEXTS[-1:], ["new"])
    sent = classifier.push_to_hub(NAME, commit_message="the first")
    again = Classifier.from_pretrained(NAME)
    assert again.predict(TEXTS) == classifier.predict(TEXTS)
    assert list(again.labels.keys) == list(classifier.labels.keys) and again.recipe == classifier.recipe
    number, (files, message) = list(hub.repositories[NAME].commits.items())[-1]
    assert (sent.oid, message, len(hub.repositories[NAME].commits)) == (number, "the first", 2)  # one is the hub's own
    assert hub.large == {blob for blob in files.values() if len(hub.blobs[blob]) >= LARGE} != set()
    assert not hub.repositories[NAME].private


def test_a_classifier_without_a_folder_is_pushed_and_a_folder_is_pretrained_too(model: Path, hub: Hub) -> None:
    classifier = Classifier.load(model)
    labels = LabelCatalogue(classifier.labels.keys, classifier.labels.texts)
    Classifier.build(classifier.towers, labels).push_to_hub(NAME, private=True)
    assert hub.repositories[NAME].private
    hub.asked.clear()
    assert Classifier.from_pretrained(model, ranker=False).path == model and hub.asked == []


def test_changes_of_a_fetched_model_go_with_it_and_leave_the_cache_alone(model: Path, hub: Hub, tmp_path: Path) -> None:
    pushed(model)
    classifier = Classifier.from_pretrained(NAME)
    before, place = listing(tmp_path / "hugging-face"), classifier.path
    assert place is not None and verify(place) == []
    classifier.add_labels({"new": "a tree in the network"})
    classifier.save(tmp_path / "kept")
    assert "new" not in Classifier.from_pretrained(NAME).labels.keys
    assert "new" in Classifier.load(tmp_path / "kept").labels.keys
    assert listing(tmp_path / "hugging-face") == before
    del classifier
    gc.collect()
    assert not place.exists()


def test_a_push_replaces_the_model_there_in_one_commit_and_leaves_other_files(model: Path, hub: Hub) -> None:
    pushed(model)
    hub.put(NAME, {**hub.files(NAME), "notes.txt": b"of ours", "model.txt": b"not by its name"})
    first = Classifier.from_pretrained(NAME, revision="main")
    pushed(model)
    assert len(hub.repositories[NAME].commits) == 4
    files = set(hub.files(NAME))
    assert {"notes.txt", "model.txt", ".gitattributes", MANIFEST, CARD} < files
    assert len({name.partition("/")[0] for name in files if name.startswith("model-")}) == 2  # a folder, a database
    assert Classifier.from_pretrained(NAME).predict(TEXTS) == first.predict(TEXTS)


def test_branches_tags_and_commits_are_revisions(model: Path, hub: Hub) -> None:
    pushed(model)
    classifier = Classifier.load(model)
    classifier.add_labels({"new": "a tree in the network"})
    sent = classifier.push_to_hub(NAME, revision="tried/out")
    for revision, is_there in (("main", False), ("tried/out", True), (sent.oid, True)):
        assert ("new" in Classifier.from_pretrained(NAME, revision=revision).labels.keys) is is_there
    with pytest.raises(BadInput, match=r"user/model, on the hub: 404 .*Revision Not Found"):
        Classifier.from_pretrained(NAME, revision="gone")


def test_only_what_the_model_lists_goes_either_way(model: Path, hub: Hub, tmp_path: Path) -> None:
    """No lock, workspace, token or stray file, and no index that is bound to its machine."""
    with ModelFolder(model).adding(INDEX) as part:
        part.about = {"kind": "exact", BOUND: True}
        (part.folder / "engine.lock").touch()
    for stray in ("token", ".umpteen.lock", "model.training/umpteen-workspace.json"):
        (model / stray).parent.mkdir(exist_ok=True)
        (model / stray).write_text(TOKEN)
    (ModelFolder(model).trained / "stray.txt").write_text(TOKEN)
    command("upload", model, NAME)
    sent = hub.files(NAME)
    trained = {name for name in sent if name.startswith("model-") and not name.endswith(".db")}
    assert not any(TOKEN.encode() in content or "stray" in name or "index" in name for name, content in sent.items())
    hub.put(NAME, {**sent, "pickle.bin": b"no", f"{sorted(trained)[0].partition('/')[0]}/extra.py": b"no"})
    assert command("download", NAME, "--output", tmp_path / "out").code == 0
    assert listing(tmp_path / "out") == {name: sent[name] for name in sent if name != ".gitattributes"}


def test_what_is_sent_is_of_one_moment_whatever_others_change(model: Path, hub: Hub) -> None:
    def meanwhile() -> None:
        other = Classifier.load(model)
        other.add_labels({"later": "a tree in the network"})
        other.save(model)  # under another name

    hub.before_commit = meanwhile
    pushed(model)
    again = Classifier.from_pretrained(NAME)
    assert again.path is not None and verify(again.path) == [] and "later" not in again.labels.keys
    assert "later" in Classifier.load(model).labels.keys


def test_of_two_who_push_at_once_one_is_refused(model: Path, hub: Hub) -> None:
    pushed(model)
    hub.before_commit = lambda: pushed(model)
    with pytest.raises(BadInput, match=r"user/model, on the hub: .*A commit has happened since"):
        pushed(model)
    assert len(hub.repositories[NAME].commits) == 3 and Classifier.from_pretrained(NAME).labels.count() == 5


def test_what_is_to_be_private_is_not_sent_to_a_public_place(model: Path, hub: Hub) -> None:
    pushed(model)
    with pytest.raises(BadInput, match="is there already, and public; nothing was sent"):
        Classifier.load(model).push_to_hub(NAME, private=True)
    assert len(hub.repositories[NAME].commits) == 2


def test_offline_nothing_is_sent_and_the_cache_is_read(
    model: Path, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pushed(model)
    Classifier.from_pretrained(NAME)
    hub.asked.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    forget_connections()
    with pytest.raises(BadInput, match="user/new: HF_HUB_OFFLINE is set, so nothing is sent to the hub"):
        Classifier.load(model).push_to_hub("user/new")
    assert Classifier.from_pretrained(NAME).predict(TEXTS) == Classifier.load(model).predict(TEXTS)
    with pytest.raises(BadInput, match=r"user/new, on the hub: .*outgoing traffic has been disabled"):
        Classifier.from_pretrained("user/new")
    assert command("download", NAME, "--output", tmp_path / "out").code == 0 and verify(tmp_path / "out") == []
    assert hub.asked == []


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("user/gone", "user/gone, on the hub: 40[14] .*Repository Not Found"),
        ("other/secret", "other/secret, on the hub: 40[14] .*Repository Not Found"),
        ("user/bert", r"user/bert: has no manifest\.json at revision main; it is no model of umpteen's"),
        ("runs/mine/model", "runs/mine/model, on the hub: Repo id must be in the form"),
        ("user/cut", r"user/cut: manifest\.json: is damaged"),
    ],
)
def test_what_cannot_be_had_is_told(
    name: str, told: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.put("user/bert", {"config.json": b"{}"})
    hub.put("user/cut", {MANIFEST: b"{"})
    hub.put("other/secret", {MANIFEST: b"{}"})
    hub.repositories["other/secret"].private = True
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises((BadInput, DamagedModel), match=told):
        Classifier.from_pretrained(name)
    refused(command("download", name, "--output", tmp_path / "out"), name)
    assert not (tmp_path / "out").exists()


def test_who_may_not_write_is_told_before_anything_is_there(
    model: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, token, told in (
        ("other/model", None, "403 "),
        (NAME, "hf_wrong", "401 "),
        ("a b", None, "Repo id must"),
    ):
        with pytest.raises(BadInput, match=f"{name}, on the hub: .*{told}"):
            Classifier.load(model).push_to_hub(name, token=token)
    assert hub.repositories == {}


def test_a_model_of_a_stranger_stays_in_its_folder(model: Path, hub: Hub, tmp_path: Path) -> None:
    pushed(model)
    good = hub.files(NAME)
    manifest = json.loads(good[MANIFEST])
    manifest["files"]["../../../outside.txt"] = {"bytes": 2, "sha256": "no"}
    manifest["checksum"] = checksum_of(manifest)
    hub.put(NAME, {**good, MANIFEST: json.dumps(manifest).encode(), "outside.txt": b"no"})
    with pytest.raises(DamagedModel, match=r"lists '\.\./\.\./\.\./outside\.txt', which is no file of the model"):
        Classifier.from_pretrained(NAME)
    (tmp_path / "a").mkdir()
    refused(command("download", NAME, "--output", tmp_path / "a" / "out"), "which is no file of the model")
    assert list((tmp_path / "a").iterdir()) == []


def test_a_model_that_was_altered_on_the_hub_is_refused(model: Path, hub: Hub, tmp_path: Path) -> None:
    pushed(model)
    good = hub.files(NAME)
    vectors = next(name for name in good if name.endswith("vectors.safetensors"))
    hub.put(NAME, {**good, vectors: good[vectors][:-1] + b"!"})
    with pytest.raises(DamagedModel, match=f"^{NAME}: {vectors}: was altered, its SHA-256 does not match"):
        Classifier.from_pretrained(NAME)
    refused(command("download", NAME, "--output", tmp_path / "out"), f"{NAME}: {vectors}: was altered")
    hub.put(NAME, {name: content for name, content in good.items() if name != vectors})
    refused(command("download", NAME, "--output", tmp_path / "out"), f"{NAME}: {vectors}: is missing")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "diary.txt").touch()
    refused(command("download", NAME, "--output", tmp_path / "out"), "exists and is not empty")


def test_the_card_has_what_the_hub_reads_and_its_own_checks_pass(plain_model: Path, hub: Hub) -> None:
    classifier = Classifier.load(plain_model)
    assert classifier.report is not None
    pushed(plain_model)
    card = ModelCard(hub.files(NAME)[CARD].decode())
    data = card.data.to_dict()
    assert (data["library_name"], data["pipeline_tag"]) == ("umpteen", "text-classification")
    assert "umpteen" in data["tags"] and not {"license", "language", "datasets"} & data.keys()  # nobody has said them
    assert data["metrics"] == list(classifier.report.metrics) and card.data.model_name == "model"
    assert {result.metric_type: result.metric_value for result in card.data.eval_results} == {
        metric: round(value, 2) for metric, value in classifier.report.metrics.items()
    }
    assert {result.dataset_split for result in card.data.eval_results} == {"validation"}
    assert 'classifier = Classifier.from_pretrained("user/model")' in card.text
    assert f"{ModelFolder(plain_model).model}" not in card.text  # but the name that it has there
    assert "POST /api/validate-yaml" in hub.asked


def test_what_its_owner_wrote_into_the_card_stays_and_what_is_known_is_added(
    plain_model: Path, hub: Hub, tmp_path: Path
) -> None:
    data = {"name": "user/data", "licence": "WordNet 3.0 licence", "language": "en"}
    Classifier.load(plain_model).save(tmp_path / "own", data=data)
    card = tmp_path / "own" / CARD
    card.write_text(card.read_text().replace("tags: [umpteen", "language: de\ntags: [mine") + "\n## Mine\n")
    pushed(tmp_path / "own")
    found = ModelCard(hub.files(NAME)[CARD].decode())
    assert found.data.language == "de" and found.data.tags[0] == "mine" and "## Mine" in found.text
    assert found.data.datasets == ["user/data"]
    assert (found.data.license, found.data.license_name) == ("other", "wordnet-3.0-licence")
    for wrong, told in (("tags: [mine", "README.md: its front matter"), ("license: gold\ntags: []", "must be one of")):
        card.write_text(card.read_text().replace(card.read_text().split("---")[1], f"\n{wrong}\n"))
        with pytest.raises(BadInput, match=told):
            pushed(tmp_path / "own")
    assert len(hub.repositories[NAME].commits) == 2


@pytest.mark.parametrize(
    ("told", "licence", "named"),
    [("MIT", "mit", None), ("CC BY-SA 4.0", "cc-by-sa-4.0", None), ("proprietary", "other", "proprietary")],
)
def test_a_licence_told_now_is_said_as_the_hub_has_it_whatever_was_told_before(
    told: str, licence: str, named: str | None, plain_model: Path, hub: Hub, tmp_path: Path
) -> None:
    Classifier.load(plain_model).save(tmp_path / "own", data={"name": "tickets", "licence": "of our own"})
    card = tmp_path / "own" / CARD
    card.write_text(card.read_text().replace("tags:", "license: other\nlicense_name: ours\nlanguage: de\ntags:", 1))
    Classifier.load(tmp_path / "own").push_to_hub(NAME, licence=told, language="fi")
    found = ModelCard(hub.files(NAME)[CARD].decode()).data.to_dict()
    assert (found["license"], found.get("license_name"), found["language"]) == (licence, named, "fi")


def test_a_folder_has_no_revision_and_other_options_are_refused_before_anything_is_fetched(
    plain_model: Path, hub: Hub
) -> None:
    with pytest.raises(BadInput, match="is a folder here, which has no revision tried"):
        Classifier.from_pretrained(plain_model, revision="tried")
    hub.asked.clear()
    with pytest.raises(TypeError, match="cache_dir"):
        Classifier.from_pretrained(NAME, cache_dir="elsewhere")  # type: ignore[call-arg]
    assert not hub.asked


def test_figures_of_a_final_fit_are_said_to_be_of_before(plain_model: Path, hub: Hub, tmp_path: Path) -> None:
    classifier = Classifier.load(plain_model)
    labels = LabelCatalogue(classifier.labels.keys, classifier.labels.texts)
    final = Classifier(classifier.towers, labels, classifier.vectors)
    final.save(tmp_path / "final", training={"held_out": {"P@1": 61.234}}, data={"name": "tickets", "licence": "mit"})
    pushed(tmp_path / "final")
    metadata = yaml.safe_load(hub.files(NAME)[CARD].decode().split("---")[1])
    (result,) = metadata["model-index"][0]["results"]
    assert result["dataset"]["name"] == "tickets, before the final fit on all of train"
    assert result["metrics"] == [{"type": "P@1", "value": 61.23, "name": "P@1 (%)"}]
    assert metadata["license"] == "mit"


def test_the_commands_speak_json_and_are_told_where_the_hub_is(model: Path, hub: Hub, tmp_path: Path) -> None:
    asked = ("upload", model, NAME, "--private", "--revision", "tried", "--message", "by a command", "--json")
    program = [sys.executable, "-m", "umpteen", *map(str, asked)]  # reads HF_ENDPOINT and HF_TOKEN, as people set them
    sent = subprocess.run(program, capture_output=True, text=True, check=False)
    assert sent.returncode == 0, sent.stderr
    number = hub.repositories[NAME].branches["tried"]
    about = {"model": str(model), "name": NAME, "commit": number, "url": f"{hub.endpoint}/{NAME}/commit/{number}"}
    assert json.loads(sent.stdout) == about
    assert hub.repositories[NAME].private and hub.repositories[NAME].commits[number][1] == "by a command"
    out = tmp_path / "out"
    fetched = command("download", NAME, "--revision", "tried", "--output", out, "--json")
    assert json.loads(fetched.out) == {"model": str(out), "name": NAME, "commit": number} and verify(out) == []
