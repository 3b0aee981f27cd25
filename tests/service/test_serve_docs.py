"""docs/how-to/serve.md: its commands are run as they stand, against the service that they are about."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from benchmarks.child_service import umpteen_serve
from service_cases import tiny_model

from umpteen.service.settings import Limits, ServiceSettings

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"
TOKEN = "0123456789abcdef"


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_every_request_of_the_page_is_answered(tmp_path: Path) -> None:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
    requests = [
        command
        for block in blocks
        for command in block.replace("\\\n", " ").splitlines()
        if command.startswith("curl ")
    ]
    assert len(requests) == 8
    (tmp_path / "token").write_text(TOKEN + "\n")
    with umpteen_serve(tiny_model(tmp_path), token=TOKEN) as service:
        for request in requests:
            command = request.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}")
            said = subprocess.run(["bash", "-euc", command], cwd=tmp_path, capture_output=True, text=True, check=True)
            answer = json.loads(said.stdout)
            assert "error" not in answer and "version" in answer, (command, answer)
    assert answer["version"] == 4  # added, renamed, retired, undone


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
