"""What the service says about its labels, its model, its report and itself."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from service_cases import AUTHORISED, EDITABLE, LABELS, Running, error_of, in_service
from starlette.testclient import TestClient

from miniature import part_of
from umpteen.model.classifier import Classifier
from umpteen.model.folder import ModelFolder
from umpteen.rerank.memory import Memory
from umpteen.rerank.ranker import LATER
from umpteen.service.settings import Limits, ServiceSettings


def test_labels_are_listed_searched_and_paged(model: Path) -> None:
    async def ask(service: Running) -> None:
        whole = (await service.client.get("/labels")).json()
        assert [label["key"] for label in whole["labels"]] == list(LABELS)
        assert (whole["version"], whole["total"]) == (0, 5)
        assert whole["labels"][0] == {"key": "L1", "text": "fish", "origin": "trained", "retired": False, "texts": None}
        found = (await service.client.get("/labels", params={"search": "LaW"})).json()
        assert [label["key"] for label in found["labels"]] == ["L2"] and found["total"] == 1
        paged = (await service.client.get("/labels", params={"start": 3, "count": 1})).json()
        assert [label["key"] for label in paged["labels"]] == ["ключ"] and paged["total"] == 5
        await service.client.delete("/labels/L1", headers=AUTHORISED)
        assert (await service.client.get("/labels")).json()["total"] == 4
        retired = (await service.client.get("/labels", params={"retired": True, "search": "fish"})).json()
        assert [label["retired"] for label in retired["labels"]] == [True] and retired["total"] == 1

    in_service(model, ask, EDITABLE)


def test_labels_are_ordered_by_age_and_by_their_training_texts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(service: Running) -> None:
        async def listed(**query: str | int) -> list[tuple[str, int | None]]:
            answer = (await service.client.get("/labels", params=query)).json()
            return [(label["key"], label["texts"]) for label in answer["labels"]]

        assert [key for key, _ in await listed(sort="newest", count=2)] == ["L5", "ключ"]
        assert await listed(sort="rare", count=1) == [("L1", None)]  # nobody counted: in their own order
        counted = SimpleNamespace(texts=np.array([3, 0, 9, LATER, 9]))
        monkeypatch.setattr(Classifier, "listed", (service.service.classifier.labels, counted))
        expected = [("L3", 9), ("L5", 9), ("L1", 3), ("L2", 0), ("ключ", None)]
        assert await listed(sort="frequent") == expected
        assert await listed(sort="frequent", start=1, count=2) == expected[1:3]
        memory = Memory(torch.zeros(4, 2), csr_array(np.eye(4, 5)[[0, 2, 0, 3]]), texts=None)
        monkeypatch.setattr(counted, "memory", memory, raising=False)
        assert (await service.client.get("/labels/texts", params={"key": "L1"})).json() == {"texts": []}
        kept = replace(memory, texts=["a trout", "a book", "a cod", "a library"])
        monkeypatch.setattr(counted, "memory", kept)
        assert (await service.client.get("/labels/texts?key=L1&count=9")).json() == {"texts": ["a trout", "a cod"]}
        assert (await service.client.get("/labels/texts?key=ключ")).json() == {"texts": []}  # it was renamed since
        assert error_of(await service.client.get("/labels/texts?key=nobody")) == (404, "unknown_key")
        assert await listed(sort="rare", search="l") == [("L2", 0), ("L1", 3), ("L3", 9), ("L5", 9)]
        counted.texts = np.array([3])  # of a ranker that has yet to hear of the labels that came
        assert await listed() == [("L1", 3), *((key, None) for key in list(LABELS)[1:])]
        assert await listed(sort="frequent") == await listed()

    in_service(model, ask, ServiceSettings(refresh=60))


@pytest.mark.parametrize(
    "query", ["sort=best", "start=-1", "count=0", "count=501", "start=a", "retired=maybe", "search=" + "a" * 1001]
)
def test_lists_that_make_no_sense_are_refused(client: TestClient, query: str) -> None:
    answer = client.get(f"/labels?{query}")
    assert error_of(answer) == (422, "wrong_message") and answer.json()["error"]["field"] == query.partition("=")[0]


def test_the_model_says_what_it_is_and_what_it_allows(shared_model: Path) -> None:
    settings = ServiceSettings(limits=Limits(k=7), token="secret")
    about = in_service(shared_model, lambda service: service.client.get("/model"), settings).json()
    assert about["name"] == "model" and about["labels"] == 5 and about["dimension"] == 16
    assert about["encoder"].startswith("static") or "static" in about["encoder"]
    assert (about["version"], about["calibrated"], about["editable"]) == (0, False, True)
    assert about["index"] == {"kind": "exact", "certificate": None, "away": None}
    assert about["limits"]["k"] == 7 and about["limits"]["text_characters"] > 0
    assert about["timeouts"] == {"answer": settings.timeout, "change": settings.change_timeout}
    assert "secret" not in json.dumps(about)


def with_part(model: Path, name: str, **files: str) -> Path:
    """Gives the model a part with these files, which nobody is going to open."""
    with ModelFolder(model).adding(name) as part:
        for stem, content in files.items():
            (part.folder / stem.replace("__", ".")).write_text(content)
        part.about = {"kind": "exact"}
    return part_of(model, name)


def test_the_report_shows_the_certificate_of_the_index_in_use_as_long_as_it_is_a_file(model: Path) -> None:
    certificate = {"kind": "exact", "recall": 0.99}
    folder = with_part(model, "index", certificate__json=json.dumps(certificate))

    async def ask(service: Running) -> None:
        report = (await service.client.get("/report")).json()
        assert report["report"] is None and report["calibration"] is None
        assert report["certificate"] == certificate
        assert (await service.client.get("/model")).json()["index"]["certificate"] == certificate
        (folder / "certificate.json").rename(folder / "elsewhere.json")
        (folder / "certificate.json").symlink_to(folder / "elsewhere.json")
        assert (await service.client.get("/report")).json()["certificate"] is None

    in_service(model, ask, ServiceSettings(refresh=60))


def test_a_service_is_alive_before_it_is_ready(shared_model: Path) -> None:
    async def ask(service: Running) -> None:
        assert (await service.client.get("/health")).json() == {"status": "ok"}
        assert (await service.client.get("/ready")).status_code == 200
        await service.service.stop()
        assert (await service.client.get("/health")).status_code == 200
        assert error_of(await service.client.get("/ready")) == (503, "not_ready")

    in_service(shared_model, ask)


def test_metrics_count_requests_batches_and_labels(model: Path) -> None:
    async def ask(service: Running) -> str:
        await asyncio.gather(*(service.ask(text) for text in LABELS.values()))
        await service.ask("")
        await service.client.delete("/labels/L1", headers=AUTHORISED)
        await service.client.get("/nowhere")
        await service.client.request("INVENTED", "/predict")
        return (await service.client.get("/metrics")).text

    shown = in_service(model, ask, EDITABLE)
    for line in (
        'umpteen_requests_total{method="POST",route="/predict",status="200"} 5.0',
        'umpteen_requests_total{method="POST",route="/predict",status="422"} 1.0',
        'umpteen_requests_total{method="GET",route="(none)",status="404"} 1.0',
        'umpteen_requests_total{method="other",route="/predict",status="405"} 1.0',
        'umpteen_request_seconds_count{route="/predict"} 7.0',
        "umpteen_batch_texts_sum 5.0",
        "umpteen_waiting_texts 0.0",
        "umpteen_label_version 1.0",
        "umpteen_labels 4.0",
    ):
        assert line in shown.splitlines(), shown


def test_an_index_that_is_away_is_told(shared_model: Path) -> None:
    reason = "Milvus at there: connection refused"

    async def ask(service: Running) -> None:
        service.service.classifier.index.away = reason  # type: ignore[misc]
        assert (await service.client.get("/model")).json()["index"]["away"] == reason
        assert "umpteen_index_away 1.0" in (await service.client.get("/metrics")).text.splitlines()
        assert (await service.ask("fish")).status_code == 200

    in_service(shared_model, ask)


def test_unknown_addresses_and_methods_are_refused_in_the_same_form(shared_model: Path) -> None:
    async def ask(service: Running) -> None:
        assert error_of(await service.client.get("/nowhere")) == (404, "not_found")
        refused = await service.client.put("/predict")
        assert error_of(refused) == (405, "method_not_allowed") and refused.headers["Allow"] == "POST"
        assert (await service.client.put("/labels")).headers["Allow"] == "GET, POST"
        assert (await service.client.put("/labels/L1")).headers["Allow"] == "DELETE, PATCH"

    in_service(shared_model, ask, EDITABLE)


def test_other_origins_are_let_in_only_when_asked_for(shared_model: Path) -> None:
    async def ask(service: Running) -> dict[str, str]:
        asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
        before = await service.client.options("/predict", headers=asked)
        after = await service.client.post("/predict", json={"text": "fish"}, headers=asked)
        return {**before.headers, **after.headers}

    assert not [name for name in in_service(shared_model, ask) if name.startswith("access-control")]
    let_in = in_service(shared_model, ask, ServiceSettings(cors=("https://page.example",)))
    assert let_in["access-control-allow-origin"] == "https://page.example"
    stranger = in_service(shared_model, ask, ServiceSettings(cors=("https://other.example",)))
    assert "access-control-allow-origin" not in stranger


def test_the_page_and_the_reference_come_without_anything_from_elsewhere(shared_model: Path) -> None:
    async def ask(service: Running) -> None:
        page = await service.client.get("/")
        assert page.status_code == 200 and page.headers["Content-Type"].startswith("text/html")
        assert "default-src 'self'" in page.headers["Content-Security-Policy"]
        again = await service.client.get("/", headers={"If-None-Match": page.headers["ETag"]})
        assert again.status_code == 304 and again.content == b""
        reference = await service.client.get("/docs")
        assert reference.headers["Content-Security-Policy"] == page.headers["Content-Security-Policy"]
        assert "openapi.json" in reference.text and "https://" not in reference.text
        for name in ("nothing.js", "..%2Fapp.py", "%2e%2e/app.py", ""):
            assert error_of(await service.client.get(f"/page/{name}"))[0] == 404

    in_service(shared_model, ask)
