"""Labels while typing: how many, from which probability on, errors where one looks, and recovery by itself."""

import json
import re
import shlex
import subprocess
import sys

from playwright.sync_api import Page, Route, expect

from browser.serving import SCRIPT, Running
from browser.watching import Watched

RESULTS = "#results li"
BARS_AS_SAID = """() => [...document.querySelectorAll("#results li")].every((row) => {
  const bar = row.querySelector(".bar");
  const share = bar.firstChild.getBoundingClientRect().width / bar.clientWidth;
  const said = row.querySelector(".value").textContent.replace(" %", "");
  return /[<>]/.test(said) || Math.abs(100 * share - Number(said)) < 1.5;
})"""
WATCH_WAITS = """
const whole = window.setTimeout;
window.waits = [];
window.setTimeout = (work, ms, ...rest) => (window.waits.push(ms ?? 0), whole(work, ms, ...rest));
"""


def opened(watched: Watched, shared: Running) -> Page:
    """The page once it knows the model, after which it asks only what it is asked."""
    page = watched(shared.url)
    expect(page.locator("#facts")).not_to_be_empty()
    return page


def test_labels_appear_while_typing(watched: Watched, shared: Running) -> None:
    page = watched(shared.url)
    expect(page.locator("#text")).to_be_focused()
    expect(page.locator("#empty")).to_be_visible()
    page.keyboard.type("fish")
    expect(page.locator(RESULTS)).to_have_count(5)
    expect(page.locator(f"{RESULTS} .text > span").first).to_have_text("fish")  # after those of what was typed so far
    expect(page.locator(f"{RESULTS} .value").first).to_have_text(re.compile(r"^(> )?\d+ %$"))
    page.locator("#text").fill("tax law")
    expect(page.locator(f"{RESULTS} .text > span").first).to_have_text("tax law")
    expect(page.locator("#latency")).to_have_text(re.compile(r"^\d+ ms$"))
    expect(page.locator("#spoken")).to_have_text(re.compile("5 labels: tax law, "))
    page.click("#clear")
    expect(page.locator(RESULTS)).to_have_count(0)
    expect(page.locator("#text")).to_be_focused()


def test_an_empty_page_tells_what_the_model_knows_and_offers_texts(watched: Watched, shared: Running) -> None:
    page = watched(shared.url)
    expect(page.locator("#knows")).to_contain_text("128, as trained")
    expect(page.locator("#knows")).to_contain_text("100.0 %: the first label is right (P@1)")
    example = page.locator(".example").first
    text = example.inner_text()
    example.click()
    expect(page.locator("#text")).to_have_value(text)
    expect(page.locator(f"{RESULTS} .text > span").first).to_have_text(text)
    expect(page.locator("#empty")).to_be_hidden()


def test_how_many_labels_can_be_left_to_the_model(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/predict?text=fish+food")
    expect(page.locator(RESULTS)).to_have_count(5)
    for mode, asked in (("f1", {"rule": "f1"}), ("coverage", {"rule": "coverage"}), ("precision", {"precision": 0.6})):
        with page.expect_request("**/predict") as sent:
            page.select_option("#mode", mode)
        if mode == "precision":
            with page.expect_request("**/predict") as sent:
                page.locator("#precision").fill("60")
        assert sent.value.post_data_json == {"text": "fish food", **asked}
        expect(page.locator("#k")).to_be_hidden()
        expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    assert int(str(page.locator("#precision").get_attribute("max"))) < 100, "no more than was reached can be asked for"
    expect(page.locator("#predict-trouble")).to_be_hidden()


def test_a_question_is_copied_as_a_program_asks_it(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/predict?text=fish+%27n%27+%22food%22")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_text("Use this in code").click()
    keys = page.locator(f"{RESULTS} .key").all_inner_texts()
    found = {}
    for kind in ("curl", "Python", "JSON answer"):
        page.get_by_role("button", name=kind).click()
        page.get_by_role("button", name="Copy").click()
        expect(page.locator("#notice")).to_contain_text(f"Copied: {kind}")
        found[kind] = page.evaluate("navigator.clipboard.readText()")
    assert [label["key"] for label in json.loads(found["JSON answer"])["labels"]] == keys
    printed = subprocess.run([sys.executable, "-c", found["Python"]], capture_output=True, text=True, check=True)
    assert [line.split()[0] for line in printed.stdout.splitlines()] == keys
    asked = shlex.split(found["curl"])
    assert asked[2] == f"{shared.url}/predict" and json.loads(asked[-1]) == {"text": "fish 'n' \"food\"", "k": 5}


def test_on_a_phone_the_answer_stands_above_the_controls(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/predict?text=fish", width=390, height=844)
    expect(page.locator(RESULTS)).to_have_count(5)
    tops = page.evaluate(
        "['#text', '#results', '#mode'].map((one) => document.querySelector(one).getBoundingClientRect().top)"
    )
    assert tops == sorted(tops)


def test_bars_are_as_long_as_labels_are_probable(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/predict?text=fish+food")
    expect(page.locator(RESULTS)).to_have_count(5)
    page.wait_for_function(BARS_AS_SAID)  # they move
    said = page.locator(f"{RESULTS} .value").all_inner_texts()
    assert any(value[0].isdigit() for value in said), said


def test_k_and_threshold_choose_how_many(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/predict?text=fish+food")
    expect(page.locator(RESULTS)).to_have_count(5)
    page.locator("#k").fill("9")
    expect(page.locator(RESULTS)).to_have_count(9)
    expect(page.locator("#k-said")).to_have_text("9")
    asked = len(watched.requests)
    page.locator("#threshold").fill("30")
    expect(page.locator("#below")).to_have_text(re.compile(r"^\d more labels below 30 %\.$"))
    values = [int(re.sub(r"\D", "", value)) for value in page.locator(f"{RESULTS} .value").all_inner_texts()]
    assert 0 < len(values) < 9 and min(values) >= 30
    assert len(watched.requests) == asked, "what is there is only shown or hidden"
    page.locator("#threshold").fill("100")
    expect(page.locator(RESULTS)).to_have_count(0)
    expect(page.locator("#below")).to_have_text("9 labels below 100 %.")


def test_an_older_question_is_aborted_and_its_answer_dropped(watched: Watched, shared: Running) -> None:
    page = opened(watched, shared)
    watched.expected = re.compile("ERR_ABORTED|ERR_FAILED")
    aborted = []
    page.on("requestfailed", lambda request: aborted.append(request.post_data_json["text"]))

    def hold_fish(route: Route) -> None:
        if route.request.post_data_json["text"] != "fish":
            route.continue_()  # fish stays unanswered

    page.route("**/predict", hold_fish)
    with page.expect_request("**/predict"):
        page.locator("#text").fill("fish")
    with page.expect_event("requestfailed"):
        page.locator("#text").fill("network")
    expect(page.locator(f"{RESULTS} .text > span").first).to_have_text("network")
    assert aborted == ["fish"]


def test_markup_in_a_label_is_text(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/predict?text=script+alert+fish+img+src+library")
    expect(page.locator(f"{RESULTS} .text > span", has_text="<script>")).to_have_text(SCRIPT)
    page.goto(f"{shared.url}/#/labels?search=%3Cscript%3E")
    expect(page.locator("#rows .text")).to_have_text([SCRIPT])
    page.locator("#search").fill("<img src=x onerror=alert(2)> not there")
    expect(page.locator("#none")).to_contain_text("“<img src=x onerror=alert(2)> not there”")
    assert page.locator("main script, main img").count() == 0


def test_a_model_without_calibration_shows_scores_and_says_so(watched: Watched, shared: Running) -> None:
    page = watched("about:blank")
    uncalibrated(page)
    page.goto(f"{shared.url}/#/predict?text=fish")
    expect(page.locator("#scale")).to_contain_text("scores, not probabilities")
    expect(page.locator("#threshold")).to_be_hidden()
    expect(page.locator(f"{RESULTS} .value").first).to_have_text("1.000")


def uncalibrated(page: Page) -> None:
    """What the service says of a model that was never calibrated."""

    def changed(route: Route) -> None:
        answer = route.fetch()
        content = answer.json()
        if "calibrated" in content:
            content["calibrated"] = False
        for label in content.get("results", [{"labels": []}])[0]["labels"]:
            label["probability"] = None
        route.fulfill(response=answer, json=content)

    page.route("**/model", changed)
    page.route("**/predict", changed)


def refuse(page: Page, status: int, reason: str, headers: dict[str, str] | None = None) -> None:
    body = json.dumps({"error": {"code": "refused", "reason": reason}})
    page.route(
        "**/predict",
        lambda route: route.fulfill(status=status, body=body, content_type="application/json", headers=headers or {}),
        times=1,
    )


def test_refusals_are_told_where_one_looks_and_the_next_text_is_asked(watched: Watched, shared: Running) -> None:
    watched.expected = re.compile("status of (413|422)")
    page = opened(watched, shared)
    trouble = page.locator("#predict-trouble")
    for status, reason in ((413, "the body is too large"), (422, "text: <b>no</b> words")):
        refuse(page, status, reason)
        page.locator("#text").fill(f"fish {status}")
        expect(trouble).to_have_text(f"{reason[0].upper()}{reason[1:]}.")
        expect(page.locator(RESULTS)).to_have_count(0)
        page.locator("#text").fill("fish")
        expect(page.locator(RESULTS)).to_have_count(5)
        expect(trouble).to_be_hidden()


def test_a_text_that_is_too_long_is_not_even_sent(watched: Watched, shared: Running) -> None:
    page = opened(watched, shared)
    page.locator("#text").fill("🐟" * 100_001)
    expect(page.locator("#predict-trouble")).to_have_text(
        "This text has 100,001 characters; the service takes at most 100,000."
    )
    expect(page.locator("#length")).to_have_text("100,001 of 100,000 characters")
    page.locator("#text").fill("fish")
    expect(page.locator(RESULTS)).to_have_count(5)
    assert [url for url in watched.requests if url.endswith("/predict")] == [f"{shared.url}/predict"]


def test_a_busy_service_is_asked_again_by_itself(watched: Watched, shared: Running) -> None:
    watched.expected = re.compile("status of 429")
    page = opened(watched, shared)
    again: list[Route] = []
    page.route("**/predict", lambda route: again.append(route))
    refuse(page, 429, "2,048 texts are waiting", {"Retry-After": "1"})  # the first; the routes set last come first
    page.locator("#text").fill("fish")
    expect(page.locator("#predict-trouble")).to_have_text("2,048 texts are waiting. Asking again in a moment.")
    while not again:
        page.wait_for_timeout(20)
    again[0].continue_()  # not before the message was seen
    expect(page.locator(RESULTS)).to_have_count(5)
    expect(page.locator("#predict-trouble")).to_be_hidden()


def test_a_stopped_service_is_told_and_its_return_noticed(watched: Watched, service: Running) -> None:
    watched.expected = re.compile("ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE")
    page = watched("about:blank")
    page.add_init_script(WATCH_WAITS)
    page.goto(f"{service.url}/#/predict?text=fish")
    expect(page.locator(RESULTS)).to_have_count(5)
    service.stop()
    page.locator("#text").fill("fish trade")
    expect(page.locator("#predict-trouble")).to_contain_text("The service does not answer. Asking again")
    expect(page.locator("#results")).to_have_class(re.compile("old"))
    service.start()
    expect(page.locator("#predict-trouble")).to_be_hidden()
    expect(page.locator("#results")).not_to_have_class(re.compile("old"))
    assert 1000 <= max(page.evaluate("window.waits")) <= 8000  # ms between two questions
