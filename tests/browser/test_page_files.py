"""The page's files: nothing from elsewhere, no markup from data, and commands that exist. No browser is needed."""

import re
import shlex
from pathlib import Path

import click
import pytest

from umpteen.cli.main import cli

PAGE = Path(__file__).parents[2] / "src" / "umpteen" / "service" / "page"
FILES = sorted(PAGE.iterdir())
SCRIPTS = [file for file in FILES if file.suffix == ".js"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_file_names_another_host(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}|@import|url\(", text) == []


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda file: file.name)
def test_no_script_parses_markup_or_code(file: Path) -> None:
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML"
    code = r"\beval\(|new Function|import\("
    assert re.findall(f"{markup}|{code}", file.read_text(encoding="utf-8")) == []


def imported(script: str) -> set[str]:
    """The modules that a module needs, and those that these need."""
    needed = set(re.findall(r'from "\./([^"]+)"', (PAGE / script).read_text(encoding="utf-8")))
    return needed.union(*map(imported, needed))


@pytest.mark.parametrize(("page", "module"), [("index.html", "main.js"), ("docs.html", "docs.js")])
def test_a_page_has_no_inline_code_and_loads_its_modules_at_once(page: str, module: str) -> None:
    text = (PAGE / page).read_text(encoding="utf-8")
    assert re.findall(r"<style|\sstyle=|\son[a-z]+=|<script>|javascript:", text) == []
    assert set(re.findall(r'rel="modulepreload" href="page/([^"]+)"', text)) == imported(module)


def test_every_file_is_used() -> None:
    pages = [file for file in FILES if file.suffix == ".html"]
    named = {name for page in pages for name in re.findall(r'(?:src|href)="page/([^"]+)"', page.read_text("utf-8"))}
    assert named == {file.name for file in FILES} - {page.name for page in pages}


def test_every_command_the_page_shows_exists() -> None:
    text = "".join(script.read_text(encoding="utf-8") for script in SCRIPTS)
    shown = set(re.findall(r"[\"`](umpteen [a-z][^\"`]*)[\"`]", text))
    assert len(shown) >= 4
    for command in shown:
        words = shlex.split(re.sub(r"\$\{.*?\}", "faiss-hnsw", command))[1:]
        found: click.Command = cli
        while isinstance(found, click.Group):
            assert words[0] in found.commands, command
            found, words = found.commands[words[0]], words[1:]
        found.make_context("umpteen", words)
