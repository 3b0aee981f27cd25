"""The catalogue in the browser: searched, paged, changed with the token, and the effect seen at once."""

import re

from playwright.sync_api import Locator, Page, Route, expect

from browser.serving import TOKEN, Running
from browser.watching import Watched
from umpteen.model.writing import compact
from umpteen.service.settings import ServiceSettings


def row(page: Page, text: str) -> Locator:
    return page.locator("#rows li", has=page.get_by_text(text, exact=True))


def give_token(page: Page, token: str = TOKEN) -> None:
    expect(page.locator("#token")).to_be_focused()
    page.locator("#token").fill(token)
    page.keyboard.press("Enter")


def predicted(page: Page, text: str) -> list[str]:
    """The labels of a text, in the other view and without a reload."""
    page.get_by_role("link", name="Predict").click()
    page.locator("#text").fill(text)
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    return page.locator("#results .text > span:first-child").all_inner_texts()


def test_a_label_is_added_renamed_retired_and_brought_back(watched: Watched, service: Running) -> None:
    page = watched(f"{service.url}/#/labels")
    page.fill("#new-text", "dog food network")
    expect(page.locator("#new-key")).to_have_value("dog-food-network")
    page.get_by_role("button", name="Add label").click()
    give_token(page)
    expect(page.locator("#notice")).to_contain_text("Added dog food network")
    expect(page.locator("#labels-facts")).to_have_text("129 labels · version 1")
    assert predicted(page, "dog food network")[0] == "dog food network"

    page.goto(f"{service.url}/#/labels?search=dog-food")
    expect(row(page, "dog food network").locator(".origin")).to_have_text("added")
    row(page, "dog food network").get_by_role("button", name="Rename").click()
    page.keyboard.type("trade in the library")
    page.keyboard.press("Enter")
    expect(row(page, "trade in the library").locator(".key")).to_have_text("dog-food-network")
    expect(row(page, "trade in the library").get_by_role("button", name="Rename")).to_be_focused()
    assert predicted(page, "trade in the library")[0] == "trade in the library"
    assert "dog food network" not in predicted(page, "dog food network")

    page.get_by_role("link", name="Labels").click()
    row(page, "trade in the library").get_by_role("button", name="Retire").click()
    expect(page.locator("#none")).to_have_text("No label has “dog-food” in its text or key.")
    assert "trade in the library" not in predicted(page, "trade in the library")

    page.get_by_role("link", name="Labels").click()
    page.check("#retired")
    expect(row(page, "trade in the library").locator(".origin")).to_have_text("retired")
    row(page, "trade in the library").get_by_role("button", name="Bring back").click()
    expect(row(page, "trade in the library").locator(".origin")).to_have_text("added")
    assert predicted(page, "trade in the library")[0] == "trade in the library"


def test_a_retired_label_goes_from_a_prediction_that_is_on_the_screen(watched: Watched, service: Running) -> None:
    page = watched(f"{service.url}/#/predict?text=fish")
    expect(page.locator("#results .text > span:first-child").first).to_have_text("fish")
    other = watched(f"{service.url}/#/labels?search=L1")
    row(other, "fish").get_by_role("button", name="Retire").click()
    give_token(other)
    expect(other.locator("#notice")).to_contain_text("Retired fish")
    page.locator("#text").press("End")
    page.keyboard.type(" ")
    expect(page.locator("#results .text > span:first-child").first).not_to_have_text("fish")
    expect(page.locator("#facts")).to_contain_text("127 labels · version 1")


def test_changes_are_undone_step_by_step_and_by_version(watched: Watched, service: Running) -> None:
    page = watched(f"{service.url}/#/labels?search=network")
    expect(page.locator("#undo")).to_be_hidden()
    row(page, "network").get_by_role("button", name="Rename").click()
    page.keyboard.type("network of dogs")
    page.keyboard.press("Enter")
    give_token(page)
    expect(row(page, "network of dogs").locator(".origin")).to_have_text("renamed")
    page.locator("#notice").get_by_role("button", name="Undo").click()
    expect(row(page, "network").locator(".origin")).to_have_text("trained")
    page.locator("#undo").click()  # undoes the undoing
    expect(row(page, "network of dogs")).to_be_visible()
    page.locator("#history summary").click()
    page.get_by_role("button", name="Back to version 0").click()
    expect(row(page, "network")).to_be_visible()
    expect(page.locator("#history li").first).to_contain_text("Version 4")


def test_labels_without_a_history_offer_no_undo(watched: Watched, service: Running) -> None:
    watched.expected = re.compile("status of (404|409)")
    page = watched(f"{service.url}/#/labels?search=L1")
    row(page, "fish").get_by_role("button", name="Retire").click()
    give_token(page)
    expect(page.locator("#undo")).to_be_visible()
    compact(service.folder)
    page.locator("#undo").click()  # this page does not know yet
    expect(page.locator("#notice")).to_contain_text("nothing to undo")
    expect(page.locator("#undo")).to_be_hidden()
    other = watched(f"{service.url}/#/labels?search=L2")
    expect(row(other, "tax law")).to_be_visible()
    expect(other.locator("#labels-facts")).to_have_text("127 labels · version 1")
    other.wait_for_load_state("networkidle")
    expect(other.locator("#undo")).to_be_hidden()
    row(other, "tax law").get_by_role("button", name="Retire").click()
    give_token(other)
    expect(other.locator("#undo")).to_be_visible()
    compact(service.folder)
    other.locator("#history summary").click()
    other.get_by_role("button", name="Back to version 1").click()
    expect(other.locator("#notice")).to_contain_text("no version 1")
    expect(other.locator("#undo")).to_be_hidden()


WATCH_TIMEOUTS = """
const whole = AbortSignal.timeout;
window.waits = [];
AbortSignal.timeout = (ms) => (window.waits.push(ms), whole.call(AbortSignal, ms));
"""


def test_a_change_is_waited_for_as_long_as_the_service_may_take_and_its_reason_is_told(
    watched: Watched, shared: Running
) -> None:
    watched.expected = re.compile("status of 503")
    page = watched("about:blank")
    page.add_init_script(WATCH_TIMEOUTS)
    reason = "another process has been changing the labels for 5 s; nothing was changed, try again in a moment"
    page.route(
        "**/labels/L1",
        lambda route: route.fulfill(
            status=503, json={"error": {"code": "locked", "reason": reason}}, headers={"Retry-After": "5"}
        ),
    )
    page.goto(f"{shared.url}/#/labels?search=L1")
    row(page, "fish").get_by_role("button", name="Retire").click()
    give_token(page)
    expect(row(page, "fish").locator(".trouble")).to_have_text(f"A{reason[1:]}.")
    waits = page.evaluate("window.waits")
    assert waits[-1] > 1000 * shared.settings.change_timeout
    assert 1000 * ServiceSettings().timeout < min(waits) < waits[-1]  # the usual one until the service tells its own


def test_a_wrong_token_is_told_and_asked_for_again(watched: Watched, service: Running) -> None:
    watched.expected = re.compile("status of 401")
    page = watched(f"{service.url}/#/labels")
    page.fill("#new-text", "tea")
    page.keyboard.press("Enter")
    give_token(page, "not-the-token")
    expect(page.locator("#token-reason")).to_have_text("That token was not accepted. Was it copied whole?")
    assert page.evaluate("sessionStorage.length") == 0
    give_token(page)
    expect(page.locator("#notice")).to_contain_text("Added tea")
    page.fill("#new-text", "coffee")
    page.keyboard.press("Enter")
    expect(page.locator("#notice")).to_contain_text("Added coffee")  # it is asked once
    kept = page.evaluate("[JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie]")
    assert kept == [f'{{"umpteen.token":"{TOKEN}"}}', "{}", ""]


def test_giving_up_on_the_token_changes_nothing(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/labels?search=L1")
    retire = row(page, "fish").get_by_role("button", name="Retire")
    retire.click()
    expect(page.locator("#token")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#token-dialog")).to_be_hidden()
    expect(retire).to_be_focused()
    expect(page.locator("#labels-facts")).to_have_text("128 labels · as trained")


def test_refused_changes_say_why_beside_the_field(watched: Watched, service: Running) -> None:
    watched.expected = re.compile("status of (409|422)")
    page = watched(f"{service.url}/#/labels")
    page.evaluate(f"sessionStorage.setItem('umpteen.token', '{TOKEN}')")
    page.fill("#new-text", "fish")
    page.fill("#new-key", "L1")
    page.keyboard.press("Enter")
    expect(page.locator(".add .trouble")).to_contain_text("L1")
    expect(page.locator("#new-key")).to_be_focused()
    expect(page.locator("#new-text")).to_have_value("fish")
    page.fill("#new-key", "a/b")
    page.keyboard.press("Enter")
    expect(page.locator(".add .trouble")).to_contain_text("a/b")


def test_labels_are_searched_and_paged(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/labels")
    expect(page.locator("#rows li")).to_have_count(50)
    expect(page.locator("#place")).to_have_text("1–50 of 128")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#place")).to_have_text("51–100 of 128")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#rows li")).to_have_count(28)
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.locator("#search").press_sequentially("library")
    expect(page.locator("#rows .key")).to_have_text(["L3", "evil"])
    expect(page.locator("#place")).to_have_text("1–2 of 2")


def test_a_label_that_was_just_added_is_in_view(watched: Watched, service: Running) -> None:
    page = watched(f"{service.url}/#/labels?search=many")
    expect(page.locator("#place")).to_have_text("1–50 of 120")
    page.evaluate(f"sessionStorage.setItem('umpteen.token', '{TOKEN}')")
    page.fill("#new-text", "dog food network")
    page.keyboard.press("Enter")
    expect(page.locator("#rows li").first).to_have_class(re.compile("fresh"))
    expect(page.locator("#rows .text").first).to_have_text("dog food network")
    expect(page.locator("#sort")).to_have_value("newest")


def test_labels_are_ordered_by_their_training_texts(watched: Watched, shared: Running) -> None:
    page = watched("about:blank")
    asked: list[str] = []

    def counted(route: Route) -> None:
        asked.append(route.request.url)
        answer = route.fetch()
        content = answer.json()
        for place, label in enumerate(content.get("labels", [])):
            label["texts"] = [1204, 1, None][place % 3]
        route.fulfill(response=answer, json=content)

    page.route("**/labels?*", counted)
    page.route("**/labels/texts?key=L1", lambda route: route.fulfill(json={"texts": ["a <b>fish</b>", "trout"]}))
    page.goto(f"{shared.url}/#/labels")
    expect(page.locator("#rows .about").nth(0)).to_contain_text("1,204 training texts")
    expect(page.locator("#rows .about").nth(1)).to_contain_text("1 training text")
    expect(page.locator("#rows .about").nth(2)).not_to_contain_text("training text")
    page.get_by_role("button", name="1,204 training texts").first.click()
    expect(page.locator("#rows .texts li")).to_have_text(["a <b>fish</b>", "trout"])
    page.get_by_role("button", name="1,204 training texts").first.click()
    expect(page.locator("#rows .texts")).to_have_count(0)
    page.select_option("#sort", "newest")
    expect(page.locator("#rows .key").first).to_have_text("n119")
    assert asked[-1].endswith("sort=newest")


def test_without_a_token_nothing_can_be_changed_and_the_page_says_how(watched: Watched, shared: Running) -> None:
    reader = Running(shared.folder, token=None)
    try:
        page = watched(f"{reader.url}/#/labels")
        expect(page.locator("#rows li")).to_have_count(50)
        expect(page.locator("#editing")).to_contain_text("umpteen serve MODEL --token-file")
        assert page.locator("#labels form").count() == 0
        assert page.locator("#labels button:visible").all_inner_texts() == ["Previous", "Next"]
    finally:
        reader.close()
