"""The page for everybody: on a phone, by keyboard, in light and dark, read aloud, without motion."""

from typing import Literal

import pytest
from playwright.sync_api import Page, expect

from browser.serving import TOKEN, Running
from browser.watching import Watched

VIEWS = ("predict", "review", "labels", "report")
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const painted = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (colour) => painted(colour).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, value, place) => sum + value * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (colour !== "rgba(0, 0, 0, 0)") return colour;
    }
    return "white";
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest(".unseen, .skip, :disabled, noscript")) continue;
    const style = getComputedStyle(element);
    const colours = [light(element.namespaceURI.endsWith("svg") ? style.fill : style.color), light(behind(element))];
    const ratio = (Math.max(...colours) + 0.05) / (Math.min(...colours) + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName} ${element.textContent.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""
NAMELESS = """() => [...document.querySelectorAll("a, button, input, textarea, [role=img], img, dialog, nav")]
  .filter((one) => one.checkVisibility() && !(one.getAttribute("aria-label") || one.getAttribute("alt")
    || one.getAttribute("aria-labelledby") || one.labels?.length || one.textContent.trim()))
  .map((one) => one.outerHTML)"""


def show(page: Page, view: str) -> None:
    page.evaluate(f"location.hash = '#/{view}'")
    expect(page.locator(f"#{view}")).to_be_visible()
    full = {"predict": "#results li", "review": "#cards li", "labels": "#rows li", "report": "#report-body section"}
    if view == "review":
        page.fill("#lines", "fish in the library\ntax law")
        page.get_by_role("button", name="Start").click()
    expect(page.locator(full[view]).first).to_be_visible()


@pytest.mark.parametrize("width", [320, 760])
def test_nothing_sticks_out_on_a_phone(watched: Watched, shared: Running, width: int) -> None:
    page = watched(f"{shared.url}/#/predict?text=fish+in+the+library", width=width, height=640)
    for view in VIEWS:
        show(page, view)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        wide = page.evaluate(
            """() => [...document.querySelectorAll("main *")].filter((one) => one.checkVisibility()
              && !one.closest(".scroll, .unseen") && one.getBoundingClientRect().right > innerWidth + 1)
              .map((one) => one.outerHTML.slice(0, 80))"""
        )
        assert wide == [], view


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_and_everything_has_a_name(watched: Watched, shared: Running, scheme: str) -> None:
    page = watched(f"{shared.url}/#/predict?text=fish+in+the+library", scheme=scheme)
    for view in VIEWS:
        show(page, view)
        assert page.evaluate(CONTRASTS) == [], view
        assert page.evaluate(NAMELESS) == [], view


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_routes_can_be_read_on_a_phone_too(
    watched: Watched, shared: Running, scheme: Literal["light", "dark"]
) -> None:
    page = watched(f"{shared.url}/docs", width=320, height=640, scheme=scheme)
    for summary in page.locator(".route > summary").all()[1:]:
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    assert page.evaluate(CONTRASTS) == [] and page.evaluate(NAMELESS) == []


def test_dark_is_the_systems_choice_until_the_toggle_says_otherwise(watched: Watched, shared: Running) -> None:
    page = watched(shared.url, scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    toggle = page.get_by_role("button", name="Dark theme")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    toggle.click()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (brightness(dark), brightness(light)) == (pytest.approx(23, abs=20), pytest.approx(249, abs=8))
    page.reload()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light
    toggle.click()
    assert page.evaluate("localStorage.length") == 0, "the system's choice need not be kept"


def brightness(colour: str) -> float:
    return sum(map(float, colour.removeprefix("rgb(").removesuffix(")").split(","))) / 3


def test_everything_can_be_done_by_keyboard(watched: Watched, service: Running) -> None:
    page = watched(service.url)
    expect(page.locator("#text")).to_be_focused()
    press = page.keyboard.press

    def reach(locator: str) -> None:
        for _ in range(40):
            if page.locator(locator).first.evaluate("one => one === document.activeElement"):
                return
            press("Tab")
        raise AssertionError(f"Tab never reaches {locator}")

    page.keyboard.type("food network")
    expect(page.locator("#results li")).to_have_count(5)
    reach("#k")
    press("ArrowRight")
    expect(page.locator("#results li")).to_have_count(6)
    reach("#threshold")
    press("End")
    expect(page.locator("#results li")).to_have_count(0)
    press("Home")

    reach(".skip")  # around the end of the page
    reach('nav [data-view="labels"]')
    press("Enter")
    expect(page.locator("#labels-title")).to_be_focused()
    reach("#new-text")
    page.keyboard.type("food network")
    press("Enter")
    expect(page.locator("#token")).to_be_focused()
    page.keyboard.type(TOKEN)
    press("Enter")
    expect(page.locator("#notice")).to_contain_text("Added food network")
    expect(page.locator("#new-text")).to_be_focused()
    press("Shift+Tab")
    press("/")
    expect(page.locator("#search")).to_be_focused()
    page.keyboard.type("food network")
    expect(page.locator("#rows li")).to_have_count(1)
    reach('#rows [aria-label="Rename food network"]')
    press("Enter")
    page.keyboard.type("food and the net")
    press("Escape")
    expect(page.locator("#rows .text")).to_have_text("food network")
    reach('#rows [aria-label="Retire food network"]')
    press("Enter")
    expect(page.locator("#rows li")).to_have_count(0)
    expect(page.locator("#search")).to_be_focused()


def test_a_link_carries_its_text(watched: Watched, shared: Running) -> None:
    page = watched(shared.url)
    page.locator("#text").fill("fish & chips? 100 % <b>")
    address = page.get_by_role("link", name="Link to this text").evaluate("link => link.href")
    other = watched(address)
    expect(other.locator("#text")).to_have_value("fish & chips? 100 % <b>")
    expect(other.locator("#results li")).to_have_count(5)
    assert all("chips" not in url.partition("#")[0] for url in watched.requests), "the text goes into no address"


def test_bars_do_not_move_for_who_wants_no_motion(watched: Watched, shared: Running) -> None:
    page = watched(f"{shared.url}/#/predict?text=fish")
    expect(page.locator("#results li")).to_have_count(5)
    moving = "getComputedStyle(document.querySelector('.bar > span')).transitionDuration"
    assert page.evaluate(moving) != "0s"
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == "0s"
