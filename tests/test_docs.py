"""What README.md and docs/ say is true of the code: commands, settings, links, names, examples, the list of files."""

import ast
import fnmatch
import importlib
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click
import pytest
import yaml
from benchmarks.__main__ import benchmarks
from click.testing import CliRunner
from lab.__main__ import lab

from tiny import tiny_default_model
from umpteen.cli.main import cli
from umpteen.config.recipes import checked, names, to_toml, with_overrides
from umpteen.config.recipes import resolve as resolve_recipe
from umpteen.config.settings import KINDS, PARTS, RunConfig

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "umpteen"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *DOCS]
SHELL = {"sh", "console"}
# What ends a command within its line.
AFTER_A_COMMAND = {"|", "||", "&&", "&", ";", ">", ">>", "<"}


class Block(NamedTuple):
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> Iterator[Block]:
    language, start, lines = None, 0, []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.lstrip().startswith("```"):
            lines.append(line)
        elif language is None:
            language, start, lines = line.strip("` "), number, []
        else:
            yield Block(name_of(page), start, language, "\n".join(lines) + "\n")
            language = None
    assert language is None, f"{page}: the block of line {start} never ends"


def prose_of(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


PROGRAMS: dict[str, click.Command] = {"umpteen": cli, "lab": lab, "benchmarks": benchmarks}
BLOCKS = [block for page in PAGES for block in blocks_of(page)]


def commands_of(block: Block) -> list[list[str]]:
    """The words of each line that runs one of our programs; comments, pipes and redirections are cut off."""
    found = []
    for line in block.text.replace("\\\n", " ").splitlines():
        line = line.strip().removeprefix("$ ")
        line = line.removeprefix("python -m ")
        if line.partition(" ")[0] in PROGRAMS:
            words = shlex.split(line, comments=True)
            end = next((at for at, word in enumerate(words) if word in AFTER_A_COMMAND), len(words))
            found.append(words[:end])
    return found


COMMANDS = [
    pytest.param(command, id=f"{block}: {' '.join(command)[:60]}")
    for block in BLOCKS
    if block.language in SHELL
    for command in commands_of(block)
]


def resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words lead to, the program first, and its arguments."""
    command, words = PROGRAMS[words[0]], words[1:]
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.commands.get(words[0])
        assert inner is not None, f"there is no {words[0]!r}; there is {', '.join(command.commands)}"
        command, words = inner, words[1:]
    return command, words


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_shown_is_understood(words: list[str]) -> None:
    command, arguments = resolve(words)
    assert not isinstance(command, click.Group) or arguments, "a verb is missing"
    try:
        command.make_context("umpteen", list(arguments))  # parses, checks types and what is required; runs nothing
    except click.exceptions.Exit:
        pass  # --help and --version
    except click.UsageError as misuse:
        pytest.fail(misuse.format_message())


@pytest.mark.parametrize("words", COMMANDS)
def test_every_setting_shown_on_a_command_line_exists(words: list[str]) -> None:
    of_a_ranker = words[1:2] == ["rerank"]
    together = () if of_a_ranker else tuple(after for word, after in pairwise(words) if word == "--set")
    recipe = next((word for word in words[2:3] if word in names()), None)

    def check(overrides: tuple[str, ...]) -> None:
        _ = resolve_recipe(recipe, overrides) if recipe else checked(with_overrides({}, overrides), origin=str(words))

    check(together)
    for setting in (after for word, after in pairwise(words) if word == "--try"):
        key, _, values = setting.partition("=")
        for value in values.split(","):
            check((*together, f"{key}={value}"))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_named_in_passing_exists(page: Path) -> None:
    for span in re.findall(r"`(?:python -m )?((?:umpteen|lab|benchmarks) [^`]+)`", prose_of(page)):
        resolve(span.split())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name_of(page)} links to {link}, which is not there"
        assert not anchor or anchor in anchors_of(target), f"{name_of(page)} links to {link}, which is no heading there"


def anchors_of(page: Path) -> set[str]:
    """The headings of a page as their links spell them."""
    headings = re.findall(r"^#+ (.+)$", prose_of(page), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"], ids=str)
def test_every_python_example_compiles_and_imports_what_exists(block: Block) -> None:
    tree = ast.parse(block.text, filename=str(block))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "umpteen":
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, alias.name) for alias in node.names), ast.unparse(node)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "umpteen":
            assert hasattr(importlib.import_module("umpteen"), node.attr), ast.unparse(node)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "toml"], ids=str)
def test_every_toml_example_is_a_recipe_or_the_settings_of_a_dataset(block: Block) -> None:
    settings = tomllib.loads(block.text)
    settings.pop("extends", None)
    if settings.keys() != {"name"}:
        checked(settings, origin=str(block))


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "json"], ids=str)
def test_every_json_example_is_one_object_a_line(block: Block) -> None:
    assert all(isinstance(json.loads(line), dict) for line in block.text.splitlines())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_of_code_named_in_passing_is_there(page: Path) -> None:
    for name in re.findall(r"`(\w+/[\w/]+\.(?:py|sh))`", prose_of(page)):
        assert (ROOT / name).exists() or (PACKAGE / name).exists(), f"{name_of(page)} names {name}, which is not there"


def test_every_page_named_in_the_code_is_there() -> None:
    for folder in ("src", "lab", "benchmarks", "tests", "scripts"):
        for file in [*(ROOT / folder).rglob("*.py"), *(ROOT / folder).rglob("*.toml")]:
            for page in re.findall(r"docs/[\w/-]+\.md", file.read_text(encoding="utf-8")):
                assert (ROOT / page).exists(), f"{name_of(file)} names {page}, which is not there"


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(leaves_of(menu)) == [page.relative_to(ROOT / "docs").as_posix() for page in DOCS]


def leaves_of(menu: object) -> Iterator[str]:
    """The pages of a menu, whose entries are pages, or titles with a page or a menu of their own."""
    if isinstance(menu, str):
        yield menu
    else:
        for entry in menu.values() if isinstance(menu, dict) else menu:
            yield from leaves_of(entry)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_name_in_the_reference_exists(page: Path) -> None:
    for name in re.findall(r"^::: (umpteen\S+)$", page.read_text(encoding="utf-8"), flags=re.M):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            module, _, member = name.rpartition(".")
            assert hasattr(importlib.import_module(module), member), f"{name_of(page)} is about {name}"


def test_the_reference_of_recipes_has_every_key_and_every_word() -> None:
    page = ROOT / "docs" / "reference" / "recipe.md"
    usual, *others = [block.text for block in blocks_of(page) if block.language == "toml"]
    assert usual == to_toml(RunConfig()), "write what umpteen.config.recipes.to_toml(RunConfig()) gives"
    shown = {line for block in (usual, *others) for line in block.splitlines()}
    there = set()
    for path, (key, kinds) in KINDS.items():
        for kind in kinds.keys() - ({"table"} if path == "encoder.query" else {"concat"}):
            of_path = {"encoder.query": PARTS[:3], "encoder.label": ("static", "table")}
            parts = of_path[path] if kind in ("sum", "concat") else ()
            given = (f"{path}.{key}={kind}", *(f"{path}.{part}.weight=1.0" for part in parts))
            there |= set(to_toml(checked(with_overrides({}, given), origin=kind)).splitlines())
    assert shown == there
    rows = re.findall(r"^\| `([\w.]+)` \| (.+) \|$", page.read_text(encoding="utf-8"), flags=re.M)
    for key, words in rows:
        for word in re.findall(r"`([^`]+)`", words):
            checked(with_overrides({}, (f"{key}={word}",)), origin=key)
    assert len(rows) == 7


def section(page: str, heading: str) -> list[Block]:
    """The blocks under a heading of the second level."""
    path = ROOT / page
    lines = path.read_text(encoding="utf-8").splitlines()
    first = lines.index(f"## {heading}") + 1
    last = next((at for at in range(first, len(lines)) if lines[at].startswith("## ")), len(lines))
    return [block for block in blocks_of(path) if first <= block.line <= last]


def test_the_quickstart_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with tiny_default_model(tmp_path / "default"):
        follow_the_quickstart()


def follow_the_quickstart() -> None:
    files, steps, from_stdin, *_ = section("docs/tutorials/quickstart.md", "Your own data in three minutes")
    subprocess.run(["bash", "-euc", files.text], check=True)
    said = {}
    for _, *words in commands_of(steps):
        fewer_steps = ["--set", "training.steps=3", "--quiet"] if words[0] == "train" else []
        outcome = CliRunner().invoke(cli, [*words, *fewer_steps], catch_exceptions=False)
        said[" ".join(words[:2])] = outcome.stdout
        assert outcome.exit_code == 0, outcome.output
    assert "8" in said["data describe"] and "suspicious  nothing" in said["data describe"]
    assert "P@1" in said["evaluate runs/tickets"]
    answer = json.loads(said["predict runs/tickets"])  # of the last call
    assert answer["text"] == "the site is slow" and len(answer["labels"]) == 2
    ((_, *words),) = commands_of(from_stdin)
    piped = CliRunner().invoke(cli, words, input="a broken cup\na lost password\n", catch_exceptions=False)
    assert [json.loads(line)["text"] for line in piped.stdout.splitlines()] == ["a broken cup", "a lost password"]
    first, _ = section("docs/tutorials/quickstart.md", "In Python")
    exec(compile(first.text, str(first), "exec"), {})


def test_the_list_of_files_is_the_files() -> None:
    block, *_ = section("docs/explanation/architecture.md", "The tree")
    listed = list(paths_of_tree(block.text))
    there = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    unlisted = {file for file in there if not any(fnmatch.fnmatchcase(file, pattern) for pattern in listed)}
    gone = {pattern for pattern in listed if not fnmatch.filter(there, pattern)}
    assert (unlisted, gone) == (set(), set()), (
        "docs/explanation/architecture.md has no line for the first, and none is there of the second"
    )


def paths_of_tree(tree: str) -> Iterator[str]:
    """The files of an indented tree: folders end in /, everything else has a word to say about itself."""
    root, *lines = [line for line in tree.splitlines() if line.strip()]
    assert root == "src/umpteen/"
    folders: list[str] = []
    for line in lines:
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        name, _, about = line.strip().partition(" ")
        del folders[depth:]
        if name.endswith("/"):
            folders.append(name)
        else:
            assert about.strip(), f"docs/explanation/architecture.md: {name} has no description"
            yield "".join(folders) + name
