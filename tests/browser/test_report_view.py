"""The report in the browser: what is measured, and the command for what is not."""

import re
from pathlib import Path

from playwright.sync_api import Route, expect

from browser.serving import LABELS, Running
from browser.watching import Watched
from umpteen.data.labels import LabelCatalogue
from umpteen.model.classifier import Classifier


def test_the_report_shows_metrics_deciles_and_calibration(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/report")
    expect(page.locator("#report-facts")).to_have_text("judged on 35 texts")
    expect(page.locator(".metrics thead th")).to_have_text(["k", "P", "nDCG", "R", "PSP", "PSnDCG"])
    expect(page.locator(".metrics tbody tr")).to_have_count(3)
    expect(page.locator(".metrics tbody td").first).to_have_text(re.compile(r"^100\.00100\.0–100\.0$"))
    expect(page.locator(".deciles tbody tr")).to_have_count(10)
    expect(page.locator("#report-body")).to_contain_text("35 texts made for this test")
    expect(page.locator("#report-body")).to_contain_text("expected calibration error")
    expect(page.locator("#report-body")).to_contain_text("Exact search: every label is compared, none is missed.")
    expect(page.locator("#report-body")).to_contain_text("static: 149 word pieces")
    expect(page.locator("#report-body figure circle")).to_have_count(15)


def test_what_is_missing_is_named_with_the_command_that_makes_it(watched: Watched, shared: Running) -> None:
    page = watched("about:blank")

    def bare(route: Route) -> None:
        route.fulfill(json={"report": None, "calibration": None, "certificate": None, "figures": []})

    page.route("**/report", bare)
    page.goto(f"{shared.url}/#/report")
    expect(page.locator("#report-body .note code")).to_have_text(
        [
            "umpteen evaluate MODEL DATA",
            "umpteen calibrate MODEL --data DATA",
            "umpteen index build MODEL --kind faiss-hnsw --recall 0.99",
        ]
    )


def test_without_a_report_both_views_show_what_fit_found_on_validation(
    watched: Watched, shared: Running, tmp_path: Path
) -> None:
    fitted = Classifier.build(Classifier.load(shared.folder).towers, LabelCatalogue(LABELS.keys(), LABELS.values()))
    fitted.save(tmp_path / "fitted", training={"held_out": {"P@1": 81.25, "P@5": 40.5, "nDCG@5": 77.0}, "epochs": 3})
    running = Running(tmp_path / "fitted")
    try:
        page = watched(running.url)
        expect(page.locator("#knows")).to_contain_text("On validation, before it was trained on that too")
        expect(page.locator("#knows li")).to_have_text(
            [
                "81.3 %: the first label is right (P@1)",
                "40.5 %: of the first five labels are right (P@5)",
                "77.0 %: the same, where early places count more (nDCG@5)",
            ]
        )
        page.goto(f"{running.url}/#/report")
        expect(page.locator("#report-facts")).to_have_text("judged on validation, before the last fit")
        expect(page.locator(".metrics thead th")).to_have_text(["k", "P", "nDCG"])
        expect(page.locator(".metrics tbody td")).to_have_text(["81.25", "–", "40.50", "77.00"])
        body = page.locator("#report-body")
        expect(body).to_contain_text("on validation: what the same settings reached when they were trained without it")
        expect(body).not_to_contain_text("saved without a report")
        expect(page.locator("#report-body .note code").first).to_have_text("umpteen evaluate MODEL DATA")
    finally:
        watched.close()
        running.close()


CERTIFICATE = {
    "kind": "faiss-hnsw",
    "k": 10,
    "target": 0.99,
    "recall": 0.9931,
    "recall_interval": [0.9911, 0.9948],
    "queries": 500,
    "sample": "the labels' own texts",
    "labels": 128,
    "catalogue_version": 0,
    "queries_per_second": {"index": 812.0, "exact": 203.0},
    "bytes": {"index": 48_123_456, "exact": 61_000_000},
    "build_seconds": 3.2,
}


def test_bins_are_drawn_and_a_certificate_reads_as_sentences(watched: Watched, shared: Running) -> None:
    page = watched("about:blank")

    def more(route: Route) -> None:
        answer = route.fetch()
        content = answer.json()
        by_depth = content["calibration"]["figures"]["by_depth"]
        by_depth["5"]["calibrated"]["bins"] = [[10, 0.1, 0.12], [4, 0.5, 0.45], [2, 0.9, 0.95]]
        by_depth["5"]["raw"]["bins"] = [[8, 0.2, 0.05], [8, 0.7, 0.4]]
        content["certificate"] = CERTIFICATE
        route.fulfill(response=answer, json=content)

    page.route("**/report", more)
    page.goto(f"{shared.url}/#/report")
    expect(page.locator(".diagram circle")).to_have_count(3)
    expect(page.locator(".diagram polyline")).to_have_count(2)
    assert "50 % given, 45 % right" in str(page.locator(".diagram svg").get_attribute("aria-label"))
    certificate = page.locator(".certificate")
    expect(certificate).to_contain_text("99.3 % of the 10 best labels are found")
    expect(certificate).to_contain_text("It was asked for 99.0 %, and reached it.")
    expect(certificate).to_contain_text("4.0 times as fast as exact search: 812 against 203 texts a second")
    expect(certificate).to_contain_text("48.1 MB; the vectors themselves take 61.0 MB.")
    page.get_by_text("All its figures").click()
    expect(certificate).to_contain_text("0.9931")
