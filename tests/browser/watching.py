"""Pages in a real browser, and a note of what none of them may do: ask another host, or log an error."""

import re
from typing import Literal

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page

PATIENCE = 120_000  # ms; guards against hanging, also on a machine that is slow and busy


class Watched:
    """Opens pages, each with storage of its own."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._contexts: list[BrowserContext] = []
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.expected = re.compile(r"^$")  # messages on the console that the test provokes

    def __call__(
        self, address: str, *, width: int = 1100, height: int = 800, scheme: Literal["light", "dark"] = "light"
    ) -> Page:
        context = self._browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE)
        self._contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: (self.errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.goto(address)
        return page

    def _said(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.errors.append(message.text)

    def close(self) -> None:
        for context in self._contexts:
            context.close()

    def check(self) -> None:
        """Fails if a page did what it may not."""
        assert [url for url in self.requests if not url.startswith("http://127.0.0.1:")] == []
        wrong = [error for error in self.errors if not self.expected.search(error)]
        assert not wrong, wrong
