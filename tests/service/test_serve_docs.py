"""docs/how-to/serve.md says the limits that there are; its commands run in tests/test_docs_run.py."""

import re
from pathlib import Path

from umpteen.service.settings import Limits, ServiceSettings

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"


def test_the_limits_of_the_page_are_the_limits() -> None:
    shown = dict(re.findall(r"^\| `(--[a-z-]+)` \| (\d+) ", PAGE.read_text(encoding="utf-8"), flags=re.M))
    limits, settings = Limits(), ServiceSettings()
    assert shown == {
        "--max-connections": str(limits.connections),
        "--max-body": str(limits.body_bytes),
        "--max-texts": str(limits.texts),
        "--max-text": str(limits.text_characters),
        "--max-k": str(limits.k),
        "--max-waiting": str(limits.waiting_texts),
        "--timeout": f"{settings.timeout:.0f}",
    }
    text = PAGE.read_text(encoding="utf-8")
    for number in (limits.head_bytes, limits.characters, limits.answers, limits.labels):
        assert f"{number:,} " in text
    words = " ".join(text.split())
    assert f"{limits.waiting_searches} of them and {limits.waiting_changes} changes may wait" in words
    assert f"waits up to {settings.lock_timeout:g} seconds" in words
    assert f"They have {settings.body_timeout:g} seconds to arrive" in words
    assert f"a change may take {settings.change_timeout:g} seconds" in words
