"""Why this label: its words marked in the text, and what else spoke for it; by pointer, keyboard and tap."""

import re
from typing import Any

from playwright.sync_api import Page, Route, expect

from browser.serving import Running
from browser.watching import Watched

TEXT = "🐟 fish and the library"


def explained(route: Route) -> None:
    """An explanation of every kind of thing there is."""
    asked: Any = route.request.post_data_json
    words = [
        {"text": found[0], "start": found.start(), "end": found.end(), "score": 0.3 if found[0] == "fish" else -0.02}
        for found in re.finditer(r"\w+", asked["text"])
    ]
    answer = {
        "key": asked["key"],
        "label": "fish: it swims",
        "score": 0.62,
        "probability": 0.8,
        "is_candidate": True,
        "terms": [{"name": "dual encoder", "score": 0.4}, {"name": "n-grams", "score": 0.22}],
        "words": words,
        "method": "exact",
        "ngrams": [{"text": "fish", "score": 0.2}, {"text": "the <b>library</b>", "score": -0.04}],
        "neighbours": [
            {"text": "trout: a fish", "similarity": 0.81, "score": 0.05},
            {"text": None, "similarity": 0.5, "score": 0.01},
        ],
    }
    route.fulfill(json=answer)


def opened(watched: Watched, shared: Running, width: int = 1100, height: int = 800) -> Page:
    page = watched("about:blank", width=width, height=height)
    page.route("**/explain", explained)
    page.goto(f"{shared.url}/#/predict?text={TEXT.replace(' ', '+')}")
    expect(page.locator("#results > li")).to_have_count(5)
    return page


def test_a_label_under_the_pointer_marks_its_words_and_shows_its_shares(watched: Watched, shared: Running) -> None:
    page = opened(watched, shared)
    page.locator("#results .text").nth(1).hover()
    why = page.locator("#why")
    expect(why).to_contain_text("Why fish")
    expect(page.locator("#marks mark")).to_have_text(["fish", "and", "the", "library"])
    expect(page.locator("#marks mark.against")).to_have_count(3)
    expect(why).to_contain_text("Score 0.620, a probability of 80 %.")
    expect(why.locator("section").first.locator("li")).to_have_text(["dual encoder+0.400", "n-grams+0.220"])
    expect(why).to_contain_text("the <b>library</b>−0.040")
    expect(why.locator(".neighbours li")).to_have_text(
        ["trout: a fish81 % alike, +0.050", "(its text was not kept)50 % alike, +0.010"]
    )
    expect(page.locator("#results .text").nth(1)).to_have_attribute("aria-expanded", "true")
    asked = len(watched.requests)
    page.locator("#results .text").nth(0).hover()
    expect(page.locator("#results .text").nth(0)).to_have_attribute("aria-expanded", "true")
    while len(watched.requests) == asked:
        page.wait_for_timeout(20)
    page.locator("#results .text").nth(1).hover()
    expect(page.locator("#results .text").nth(1)).to_have_attribute("aria-expanded", "true")
    assert len(watched.requests) == asked + 1, "what is known is not asked again"
    page.locator("#text").fill("library")
    expect(why).to_be_hidden()
    expect(page.locator("#marks mark")).to_have_count(0)


def test_marks_lie_where_the_words_are(watched: Watched, shared: Running) -> None:
    page = opened(watched, shared)
    page.locator("#results .text").first.hover()
    expect(page.locator("#marks mark").first).to_be_visible()
    letters = "['#text', '#marks'].map((one) => getComputedStyle(document.querySelector(one)))"
    same = "(name) => " + letters + ".map((style) => style[name])"
    for name in ("fontSize", "fontFamily", "lineHeight", "letterSpacing", "paddingLeft", "paddingTop", "whiteSpace"):
        text, marks = page.evaluate(same, name)
        assert text == marks, name
    places = """() => { const [text, marks] = ['#text', '#marks'].map((one) => document.querySelector(one));
        const [a, b] = [text, marks].map((one) => one.getBoundingClientRect());
        const [x, y] = [b.left - a.left - text.clientLeft, b.top - a.top - text.clientTop];
        return [x, y, marks.clientWidth - text.clientWidth] }"""
    assert page.evaluate(places) == [0, 0, 0]


def test_a_label_is_explained_by_keyboard_and_escape_ends_it(watched: Watched, shared: Running) -> None:
    page = opened(watched, shared)
    page.locator("#threshold").focus()
    page.keyboard.press("Tab")
    expect(page.locator("#results .text").first).to_be_focused()
    expect(page.locator("#why")).to_contain_text("Why fish")
    page.keyboard.press("Escape")
    expect(page.locator("#why")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#why")).to_be_visible()


def test_on_a_phone_a_tap_explains_below_the_label_and_another_closes_it(watched: Watched, shared: Running) -> None:
    page = opened(watched, shared, width=390, height=844)
    second = page.locator("#results > li").nth(1)
    second.locator(".text").click()
    expect(second.locator("#why")).to_contain_text("trout: a fish")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    second.locator(".text").click()
    expect(page.locator("#why")).to_be_hidden()
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#results > li")).to_have_count(0)
    page.locator("#text").fill("fish")
    page.locator("#results .text").first.click()
    expect(page.locator("#results > li").first.locator("#why")).to_be_visible()
