"""The routes at /docs: values one can read, and a try-out that asks this service."""

import re

from playwright.sync_api import Locator, Page, expect

from browser.serving import TOKEN, Running
from browser.watching import Watched


def route(page: Page, method: str, path: str) -> Locator:
    found = page.locator(".route").filter(has=page.get_by_text(path, exact=True)).filter(has_text=method)
    if found.get_attribute("open") is None:
        found.locator("summary").first.click()
    return found


def test_routes_are_shown_with_values_and_can_be_tried(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/docs")
    predict = route(page, "POST", "/predict")
    expect(predict.locator("pre").last).to_contain_text('"probability": 0.81')
    expect(predict.locator("pre").last).to_contain_text('"key": "L1"')
    predict.locator(".body").fill('{"text": "tax law", "k": 1}')
    predict.get_by_role("button", name="Try it").click()
    expect(predict.locator(".status")).to_have_text(re.compile(r"^200 · \d+ ms$"))
    expect(predict.locator(".outcome")).to_contain_text('"L2"')
    watched.expected = re.compile("status of 422")
    predict.locator(".body").fill('{"text": ""}')
    predict.get_by_role("button", name="Try it").click()
    expect(predict.locator(".status")).to_contain_text("422")
    labels = route(page, "GET", "/labels")
    labels.get_by_label("search").fill("library")
    labels.get_by_role("button", name="Try it").click()
    expect(labels.locator(".outcome")).to_contain_text('"library book"')


def test_a_route_that_changes_the_model_asks_for_the_token(watched: Watched, service: Running) -> None:
    page = watched(f"{service.url}/docs")
    rename = route(page, "PATCH", "/labels/{key}")
    rename.locator(".body").fill('{"text": "fishes"}')
    rename.get_by_role("button", name="Try it").click()
    page.locator("#token").fill(TOKEN)
    page.keyboard.press("Enter")
    expect(rename.locator(".outcome")).to_contain_text('"version": 1')
    assert page.evaluate("fetch('labels?search=L1').then((one) => one.json())")["labels"][0]["text"] == "fishes"
