"""Corrections in the browser: right, wrong, missing; learnt with the token, seen at once, undone; and the review."""

import json
import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, Request, Route, expect

from browser.serving import TOKEN, Running
from browser.watching import Watched

RESULTS = "#results > li"
FIRST = f"{RESULTS} .text > span:first-child"


def with_token(page: Page) -> None:
    page.evaluate(f"sessionStorage.setItem('umpteen.token', '{TOKEN}')")


def taught(request: Request) -> list[dict[str, Any]]:
    """The examples of a request."""
    message: Any = request.post_data_json
    examples: list[dict[str, Any]] = message["examples"]
    return examples


def values(page: Page) -> dict[str, str]:
    """What is shown of each label."""
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    keys = page.locator(f"{RESULTS} .key").all_inner_texts()
    return dict(zip(keys, page.locator(f"{RESULTS} .value").all_inner_texts(), strict=True))


def test_a_wrong_label_goes_and_a_missing_one_comes_once_it_was_learnt(watched: Watched, service: Running) -> None:
    page = watched(f"{service.url}/#/predict?text=fish+of+the+library")
    expect(page.locator(RESULTS)).to_have_count(5)
    before = values(page)
    assert "L7" not in before
    wrong = page.locator(RESULTS).first
    key = wrong.locator(".key").inner_text()
    wrong.get_by_role("button", name="Wrong").click()
    expect(wrong.get_by_role("button", name="Wrong")).to_have_attribute("aria-pressed", "true")
    page.get_by_label("Search a label that is missing").fill("network")
    page.locator(".offers button").first.click()
    expect(page.locator(".added li")).to_contain_text("network")
    expect(page.locator("#judging .teach")).to_contain_text("1 right, 1 wrong")
    with page.expect_request("**/examples") as sent:
        page.get_by_role("button", name="Learn this").click()
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
    (example,) = taught(sent.value)
    assert example == {"text": "fish of the library", "labels": ["L7"], "wrong": [key]}
    expect(page.locator("#notice")).to_contain_text("Learnt: 1 right label, 1 wrong one")
    expect(page.locator(f"{RESULTS} .key", has_text="L7")).to_be_visible()
    expect(page.locator(f"{RESULTS} .before").first).not_to_be_empty()
    assert key not in values(page) or values(page)[key] != before[key]
    page.locator("#notice").get_by_role("button", name="Undo").click()
    expect(page.locator(f"{RESULTS} .key", has_text="L7")).to_have_count(0)
    assert values(page) == before


def test_what_was_said_of_a_label_is_taken_back_by_saying_it_again(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/predict?text=fish")
    row = page.locator(RESULTS).first
    right, wrong = (row.get_by_role("button", name=name) for name in ("Right", "Wrong"))
    learn = page.get_by_role("button", name="Learn this")
    expect(learn).to_be_disabled()
    right.click()
    wrong.click()
    expect(right).to_have_attribute("aria-pressed", "false")
    expect(learn).to_be_enabled()
    wrong.click()
    expect(learn).to_be_disabled()
    right.click()
    page.locator("#text").fill("tax law")
    expect(page.locator(FIRST).first).to_have_text("tax law")
    expect(page.locator("#results [aria-pressed=true]")).to_have_count(0)


def test_without_a_token_nothing_is_offered_to_be_learnt(watched: Watched, shared: Running) -> None:
    reader = Running(shared.folder, token=None)
    try:
        page = watched(f"{reader.url}/#/predict?text=fish")
        expect(page.locator(RESULTS)).to_have_count(5)
        assert page.locator(".judged button").count() == 0
        expect(page.locator("#judging")).to_be_hidden()
        page.goto(f"{reader.url}/#/review")
        expect(page.locator("#review-locked")).to_contain_text("umpteen serve MODEL --token-file FILE")
        page.fill("#lines", "fish\ntax law")
        page.get_by_role("button", name="Start").click()
        expect(page.locator(".card")).to_have_count(2)
        assert page.locator(".card button").count() == 0
    finally:
        reader.close()


def card(page: Page, place: int = 0) -> Locator:
    return page.locator(".card").nth(place)


def test_the_least_certain_texts_are_reviewed_first(watched: Watched, service: Running) -> None:
    texts = ["fish", "tax law", "dog and tree in the library", "network", "food trade of the tree", "7 of many", "tree"]
    page = watched(f"{service.url}/#/review")
    with_token(page)
    with page.expect_response("**/predict") as answered:
        page.fill("#lines", "\n".join([*texts, "", "fish"]))
        page.get_by_role("button", name="Start").click()
    found = answered.value.json()["results"]

    def certainty(place: int) -> float:
        probable: list[float] = [label["probability"] for label in found[place]["labels"][:5]]
        return sum(max(one, 1 - one) for one in probable) / len(probable)

    expected = [texts[place] for place in sorted(range(len(texts)), key=certainty)]
    expect(page.locator(".card .reviewed")).to_have_text(expected)
    expect(page.locator("#progress-said")).to_have_text("0 of 7 texts reviewed")
    card(page).get_by_role("button", name="Skip").click()
    expect(page.locator(".card .reviewed")).to_have_text(expected[1:])
    card(page).get_by_role("button", name="Wrong").first.click()
    with page.expect_request("**/examples") as sent:
        card(page).get_by_role("button", name="Learn").click()
    assert taught(sent.value)[0]["text"] == expected[1]
    expect(page.locator("#progress-said")).to_have_text("2 of 7 texts reviewed")
    expect(card(page).locator("button").first).to_be_focused()
    with page.expect_request("**/examples") as sent:
        card(page).get_by_role("button", name="Accept the first").click()
    assert taught(sent.value)[0]["labels"], "what the model gives was right"
    expect(page.locator("#progress-said")).to_have_text("3 of 7 texts reviewed")
    page.locator("#notice").get_by_role("button", name="Undo").click()
    expect(page.locator("#progress-said")).to_have_text("2 of 7 texts reviewed")
    expect(page.locator(".card .reviewed").first).to_have_text(expected[2])
    page.get_by_role("button", name="Ask and order again").click()
    expect(page.locator(".card")).to_have_count(5)


def review(page: Page, *texts: str) -> None:
    expect(page.locator("#knows")).to_contain_text("P@1")  # and with it the rule by which labels are given
    page.fill("#lines", "\n".join(texts))
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#progress-said")).to_contain_text("reviewed")


def card_of(page: Page, text: str) -> Locator:
    return page.locator(".card").filter(has=page.get_by_text(text, exact=True).and_(page.locator(".reviewed")))


def test_accepting_the_first_labels_keeps_those_wrong_that_were_said_to_be(watched: Watched, service: Running) -> None:
    page = watched(f"{service.url}/#/review")
    with_token(page)
    review(page, "food trade of the tree")
    card(page).get_by_role("button", name="Wrong: food trade").click()
    with page.expect_request("**/examples") as sent:
        card(page).get_by_role("button", name="Accept the first 2").click()
    assert taught(sent.value) == [{"text": "food trade of the tree", "labels": ["L5"], "wrong": ["L6"]}]


def test_a_review_shows_and_accepts_all_labels_the_model_would_give(watched: Watched, service: Running) -> None:
    page = watched(f"{service.url}/#/review")
    with_token(page)
    review(page, "7 of many", "fish")
    answer = page.request.post(f"{service.url}/predict", data={"text": "7 of many", "rule": "f1"}).json()
    would = [label["key"] for label in answer["results"][0]["labels"]]
    assert len(would) > 5
    expect(card_of(page, "7 of many").locator(".candidates li:not(.unlikely)")).to_have_count(len(would))
    expect(card_of(page, "fish").locator(".candidates li:not(.unlikely)")).to_have_count(1)
    expect(card_of(page, "fish").locator(".candidates li")).to_have_count(5)
    with page.expect_request("**/examples") as sent:
        card_of(page, "7 of many").get_by_role("button", name=f"Accept the first {len(would)}").click()
    assert taught(sent.value)[0]["labels"] == would


def test_texts_that_were_learnt_are_left_out_of_a_review_and_counted(watched: Watched, service: Running) -> None:
    page = watched(f"{service.url}/#/review")
    content = {"examples": [{"text": text, "labels": ["L1"]} for text in ("fish", " tree ")]}
    page.request.post(f"{service.url}/examples", data=content, headers={"Authorization": f"Bearer {TOKEN}"})
    review(page, "fish", "tax law", "network", "tree")
    expect(page.locator(".card")).to_have_count(4)  # nobody may know them yet
    expect(page.locator("#intake-said")).to_have_text("4 texts from lines")
    card_of(page, "tax law").get_by_role("button", name="Accept the first").click()
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(page.locator(".card .reviewed")).to_have_text(["network"])
    expect(page.locator("#progress-said")).to_have_text("1 of 2 texts reviewed")
    expect(page.locator("#intake-said")).to_have_text("2 texts from lines; 2 left out, learnt before")
    expect(card(page).locator("button").first).to_be_focused()

    page.get_by_role("button", name="Other texts").click()
    expect(page.locator("#intake-said")).to_have_text("")
    review(page, "fish", "tax law", "network", "tree")
    expect(page.locator(".card .reviewed")).to_have_text(["network"])
    expect(page.locator("#intake-said")).to_have_text("1 text from lines; 3 left out, learnt before")
    expect(page.locator("#intake-said")).to_be_visible()
    page.get_by_role("button", name="Other texts").click()
    page.fill("#lines", "fish")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#intake-said")).to_have_text("0 texts from lines; 1 left out, learnt before")
    expect(page.locator("#lines")).to_be_visible()


def test_a_table_is_read_under_its_header_and_the_columns_taken_are_told(
    watched: Watched, shared: Running, tmp_path: Path
) -> None:
    files = {
        "phrases.csv": (
            "id,Phrase,tags\n1,fish,a|b|c|d|e|f|g\n2,tax law,a\n",
            ["fish", "tax law"],
            "the column Phrase",
        ),
        "news.csv": (
            "Body,Title\nin the tree,fish\nlaw, tax \n",
            ["fish in the tree", "tax law"],
            "the columns Title and Body",
        ),
        "text.tsv": ("title\ttext\nno\tfish\nno\ttax law\n", ["fish", "tax law"], "the column text"),
        "titles.csv": ("title\nfish\ntax law\n", ["fish", "tax law"], "the column title"),
        "one.csv": ("fish\ntax law\n", ["fish", "tax law"], "the one column"),
        "news.jsonl": (
            '{"body": "tree", "id": 1, "title": "fish"}\n{"body": "tax law", "id": 2, "title": null}\n',
            ["fish tree", "tax law"],
            "the fields title and body",
        ),
    }
    page = watched(f"{shared.url}/#/review")
    expect(page.locator("#facts")).not_to_be_empty()
    for name, (content, texts, said) in files.items():
        (tmp_path / name).write_text(content)
        page.set_input_files("#file", tmp_path / name)
        expect(page.locator("#intake-said")).to_have_text(f"2 texts from {said}")
        expect(page.locator("#intake-said")).to_be_visible()
        expect(page.locator(".card")).to_have_count(2)
        assert sorted(page.locator(".card .reviewed").all_text_contents()) == texts, name
        page.get_by_role("button", name="Other texts").click()


def test_files_are_reviewed_whatever_form_their_texts_have(watched: Watched, shared: Running, tmp_path: Path) -> None:
    files = {
        "lines.txt": "fish\r\n\r\ntax law\r\n",
        "table.csv": 'id,Text\n1,"fish, ""fresh"""\n2,"tax\nlaw"\n',
        "table.tsv": "id\tphrase\n1\tfish\n2\ttax law\n",
        "lines.jsonl": '{"id": "1", "text": "fish"}\n{"id": "2", "text": "tax law"}\n',
        "list.json": json.dumps(["fish", "tax law"]),
    }
    page = watched(f"{shared.url}/#/review")
    expect(page.locator("#facts")).not_to_be_empty()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        page.set_input_files("#file", tmp_path / name)
        expect(page.locator(".card")).to_have_count(2)
        shown = sorted(page.locator(".card .reviewed").all_text_contents())
        assert shown == (['fish, "fresh"', "tax\nlaw"] if name == "table.csv" else ["fish", "tax law"]), name
        page.get_by_role("button", name="Other texts").click()
    (tmp_path / "broken.jsonl").write_text('{"text": "fish"')
    page.set_input_files("#file", tmp_path / "broken.jsonl")
    expect(page.locator("#review-trouble")).to_contain_text("broken.jsonl cannot be read: ")


def test_a_review_keeps_within_the_limits_and_asks_again_what_was_not_answered(
    watched: Watched, shared: Running
) -> None:
    watched.expected = re.compile("status of (413|429)")
    asked: list[list[str]] = []

    def limited(route: Route) -> None:
        response = route.fetch()
        about = response.json()
        about["limits"] |= {"texts": 2, "characters": 10, "body_bytes": 115, "text_characters": 7}
        route.fulfill(response=response, json=about)

    def answer(route: Route) -> None:
        message: Any = route.request.post_data_json
        asked.append(message["texts"])
        if len(asked) == 1:
            route.fulfill(
                status=429, headers={"Retry-After": "0"}, json={"error": {"code": "too_busy", "reason": "busy"}}
            )
        elif len(asked) == 5:
            route.fulfill(status=413, json={"error": {"code": "body_too_large", "reason": "too large"}})
        else:
            route.continue_()

    page = watched(f"{shared.url}/#/review")
    page.route("**/model", limited)
    page.route("**/predict", answer)
    page.reload()
    expect(page.locator("#facts")).not_to_be_empty()
    batches = [["fish"], ["tax law"], ["tree", "dog"], ["図書館"], ["書"], ["🐟🐟🐟🐟"]]
    page.fill("#lines", "\n".join([*(text for batch in batches for text in batch), "eight ch"]))
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#review-trouble")).to_have_text("Too large.")
    expect(page.locator("#intake-said")).to_contain_text("7 texts from lines; 1 left out")
    page.get_by_role("button", name="Ask and order again").click()
    expect(page.locator(".card")).to_have_count(7)
    expect(page.locator("#review-trouble")).to_be_hidden()
    assert asked == [batches[0], *batches[:4], *batches]


def test_a_double_click_takes_back_one_lesson(watched: Watched, service: Running) -> None:
    page = watched(f"{service.url}/#/predict?text=fish")
    with_token(page)
    for text in ("tree", "network"):
        content = {"examples": [{"text": text, "labels": ["L1"]}]}
        page.request.post(f"{service.url}/examples", data=content, headers={"Authorization": f"Bearer {TOKEN}"})
    page.locator(RESULTS).first.get_by_role("button", name="Right").click()
    page.get_by_role("button", name="Learn this").click()
    page.locator("#notice").get_by_role("button", name="Undo").dblclick()
    expect(page.locator("#notice")).to_contain_text("Undone")
    page.goto(f"{service.url}/#/review")
    page.locator("#learnt > summary").click()
    expect(page.locator("#lessons > li")).to_have_count(2)
    page.locator("#unlearn").dblclick()
    expect(page.locator("#lessons > li")).to_have_count(1)
    assert len([url for url in watched.requests if url.endswith("/examples/undo")]) == 2
