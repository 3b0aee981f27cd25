"""What the service says about its labels, its model, its report and itself."""

import asyncio
import json
from pathlib import Path

import pytest
from service_cases import AUTHORISED, EDITABLE, LABELS, Running, error_of, in_service
from starlette.testclient import TestClient

from miniature import part_of
from umpteen.model.folder import ModelFolder
from umpteen.service.settings import Limits, ServiceSettings


def test_labels_are_listed_searched_and_paged(model: Path) -> None:
    async def ask(service: Running) -> None:
        whole = (await service.client.get("/labels")).json()
        assert [label["key"] for label in whole["labels"]] == list(LABELS)
        assert (whole["version"], whole["total"]) == (0, 5)
        assert whole["labels"][0] == {"key": "L1", "text": "fish", "origin": "trained", "retired": False}
        found = (await service.client.get("/labels", params={"search": "LaW"})).json()
        assert [label["key"] for label in found["labels"]] == ["L2"] and found["total"] == 1
        paged = (await service.client.get("/labels", params={"start": 3, "count": 1})).json()
        assert [label["key"] for label in paged["labels"]] == ["ключ"] and paged["total"] == 5
        await service.client.delete("/labels/L1", headers=AUTHORISED)
        assert (await service.client.get("/labels")).json()["total"] == 4
        retired = (await service.client.get("/labels", params={"retired": True, "search": "fish"})).json()
        assert [label["retired"] for label in retired["labels"]] == [True] and retired["total"] == 1

    in_service(model, ask, EDITABLE)


@pytest.mark.parametrize(
    "query", ["start=-1", "count=0", "count=501", "start=a", "retired=maybe", "search=" + "a" * 1001]
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


def test_the_report_shows_what_the_parts_in_use_hold_and_nothing_else(model: Path) -> None:
    with_part(model, "index", certificate__json='{"kind": "exact", "recall": 0.99}', curve__svg="<svg/>")
    (model / "figures").mkdir()
    (model / "figures" / "curve.png").write_text("not of any part")
    (part_of(model, "index") / "late.svg").write_text("<svg>nobody listed it</svg>")

    async def ask(service: Running) -> None:
        report = (await service.client.get("/report")).json()
        assert report["report"] is None and report["calibration"] is None
        certificate = {"kind": "exact", "recall": 0.99}
        assert report["certificate"] == certificate
        assert (await service.client.get("/model")).json()["index"]["certificate"] == certificate
        (figure,) = report["figures"]
        picture = await service.client.get(figure["url"])
        assert picture.headers["Content-Type"] == "image/svg+xml" and picture.text == "<svg/>"
        assert "default-src 'none'" in picture.headers["Content-Security-Policy"]
        for name in ("curve.png", "late.svg"):
            assert error_of(await service.client.get(f"/report/figures/{name}")) == (404, "unknown_figure")

    in_service(model, ask)


def test_a_figure_that_is_a_link_by_now_is_not_followed(model: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the label token")
    folder = with_part(model, "index", certificate__json="{}", curve__svg="<svg/>")

    async def ask(service: Running) -> None:
        (folder / "curve.svg").unlink()
        (folder / "curve.svg").symlink_to(secret)
        answer = await service.client.get("/report/figures/curve.svg")
        assert error_of(answer) == (404, "unknown_figure") and "token" not in answer.text
        (folder / "certificate.json").unlink()
        assert (await service.client.get("/report")).json()["certificate"] is None

    in_service(model, ask, ServiceSettings(refresh=60))


@pytest.mark.parametrize(
    "name", ["manifest.json", "..%2Fmanifest.json", "%2e%2e%2f%2e%2e%2fetc%2fpasswd", "calibration.json", "nothing.svg"]
)
def test_nothing_but_figures_is_served_as_a_figure(client: TestClient, name: str) -> None:
    answer = client.get(f"/report/figures/{name}")
    assert answer.status_code == 404 and error_of(answer)[0] == 404


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
        reference = (await service.client.get("/docs")).text
        assert "/predict" in reference and "<script" not in reference and "https://" not in reference
        for name in ("nothing.js", "..%2Fapp.py", "%2e%2e/app.py", ""):
            assert error_of(await service.client.get(f"/page/{name}"))[0] == 404

    in_service(shared_model, ask)
