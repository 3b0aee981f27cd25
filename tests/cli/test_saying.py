"""What commands print cannot steer a terminal, whoever wrote the data; and their arguments are UTF-8."""

import ast
import json
from pathlib import Path

import pytest

import umpteen.cli
from miniature import command, refused, write_miniature, write_recipe
from umpteen.cli.main import cli, visible

ODD = "a\x1b[2Jb\u202ec\td\u2028e\x9bf"
SHOWN = r"a\x1b[2Jb\u202ec\td\u2028e\x9bf"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a dataset whose name, labels and texts hold what a terminal would obey."""
    home = tmp_path_factory.mktemp("odd")
    data = write_miniature(home / "data")
    labels = [json.loads(line) for line in (data / "labels.jsonl").read_text().splitlines()]
    labels[0]["text"] += ODD
    (data / "labels.jsonl").write_text("".join(json.dumps(label) + "\n" for label in labels))
    (data / "dataset.toml").write_text(f"name = {json.dumps(ODD)}\n")
    outcome = command("train", write_recipe(home, "training.steps=2"), "--output", home / "model", "--quiet")
    assert outcome.code == 0, outcome.err
    return home / "model"


def test_text_stays_as_it_is_but_for_what_is_unseen() -> None:
    assert visible(ODD) == SHOWN
    assert visible("図書館 — Straße, עברית 😀") == "図書館 — Straße, עברית 😀"
    assert visible("\udce9\u061c\u200f\u2066\r\n") == r"\udce9\u061c\u200f\u2066\r\n"


def test_no_command_prints_characters_that_steer_a_terminal(model: Path) -> None:
    data = model.parent / "data"
    assert command("labels", "add", model, "new", "tab\there", "--note", ODD).code == 0
    assert command("labels", "rename", model, "new", "\u202eright to left").code == 0
    calls = [
        ("predict", model, f"{ODD} law of fish", "--k", "10"),
        ("labels", "list", model),
        ("labels", "history", model),
        ("labels", "diff", model),
        ("evaluate", model, data),
        ("data", "describe", data),
        ("predict", model / ODD, "text"),
        ("labels", "retire", model, ODD),
        ("train", ODD),
        (ODD,),
        ("predict", model, f"--{ODD}"),
        ("recipe", "show", "wordnet-nouns", "--set", f"name={ODD}"),
    ]
    told = 0
    for call in calls:
        outcome = command(*call)
        printed = outcome.out + outcome.err
        assert all(visible(line) == line for line in printed.split("\n")), (call, printed)
        told += r"\x1b[2Jb" in printed or r"\u202e" in printed
    assert told >= len(calls) - 2


def test_machines_get_the_data_as_it_is(model: Path) -> None:
    answer = json.loads(command("predict", model, ODD, "--k", "10", "--json").out)
    assert answer["text"] == ODD
    assert any(label["text"].endswith(ODD) for label in answer["labels"])


def test_commands_print_for_people_through_one_function() -> None:
    for file in Path(umpteen.cli.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("click.echo", "click.secho", "print"):
                what = ast.unparse(node.args[0])
                assert what.startswith(("json.dumps(", "visible(", "kind(cli")), (
                    f"{file.name}:{node.lineno} prints {what}"
                )


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_an_argument_that_is_not_utf8_is_refused_by_every_command(name: str) -> None:
    refused(command(name, "caf\udce9"), r"the argument 'caf\udce9' is not UTF-8")
