"""Writes the tree of the architecture page from the modules' own first lines: `python scripts/write_tree.py`."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
PACKAGE = ROOT / "src" / "umpteen"
NOT_PYTHON = {
    "py.typed": "the package is typed",
    "compare/page.html.jinja": "the template of the page of a comparison",
    "config/shipped/*.toml": "the recipes that ship",
    "data/bundled/wordnet-nouns/*": "the bundled dataset: labels, train, test, where it comes from, WordNet's licence",
    "model/card.md": "the template of a model's README.md",
    "service/page/*": "the page: HTML, styles, modules of script, no build step",
}
START, END = "## The tree\n", "\n```\n"


def lines_of(folder: Path, depth: int) -> list[str]:
    """One line a file, modules before folders."""
    lines = []
    for path in sorted(folder.glob("*.py")):
        about = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split("\n")[0].rstrip(".")
        lines.append(f"{'  ' * depth}{path.name:<{26 - 2 * depth}} {about}")
    for pattern, about in NOT_PYTHON.items():
        if str(folder.relative_to(PACKAGE)) == str(Path(pattern).parts[0] if "/" in pattern else "."):
            lines.append(f"{'  ' * depth}{'/'.join(Path(pattern).parts[('/' in pattern) :]):<{26 - 2 * depth}} {about}")
    for path in sorted(path for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))):
        lines += [f"{'  ' * depth}{path.name}/", *lines_of(path, depth + 1)]
    return lines


def main() -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    introduction, _, rest = rest.partition("```text\n")
    _, _, after = rest.partition(END)
    tree = "\n".join(["src/umpteen/", *lines_of(PACKAGE, 1)])
    PAGE.write_text(f"{before}{START}{introduction}```text\n{tree}{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
