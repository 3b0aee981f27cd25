"""The direction of dependence: who may import whom, read from the source."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
BESIDE = ("lab", "benchmarks")  # beside the package: they may import all of it, and nothing of it imports them

# From the ground up, as the architecture page publishes it. A room imports rooms of lower levels, never of its own.
LEVELS = [
    {"errors"},
    {"config", "files", "parallel"},
    {"data"},
    {"encoders", "objectives"},
    {"search", "functional"},
    {"rerank"},
    {"evaluation"},
    {"training", "calibration"},
    {"model"},
    {"service", "compare", "plan", "doctor", "sklearn", "sentence_transformers"},
    {"cli"},
    {"__init__", "__main__"},
]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imports_of(module: str) -> set[str]:
    """Full names of everything a module imports, at its top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{module} has a relative import; write it in full"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in MODULES else node.module)
    return found


IMPORTS = {module: imports_of(module) for module in MODULES}


def part_of(module: str) -> str:
    """The part of the picture a module belongs to: umpteen.data.formats.native is data."""
    _, _, rest = module.partition(".")
    return rest.partition(".")[0] or "__init__"


def level_of(module: str) -> int:
    return next(level for level, parts in enumerate(LEVELS) if part_of(module) in parts)


def own_imports(module: str) -> set[str]:
    return {name for name in IMPORTS[module] if name.partition(".")[0] == "umpteen"}


def test_every_module_has_its_place_in_the_picture() -> None:
    known = set().union(*LEVELS)
    assert {module for module in MODULES if part_of(module) not in known} == set()


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_stands_below_its_room(module: str) -> None:
    wrong = {
        name
        for name in own_imports(module) - {"umpteen"}
        if part_of(name) != part_of(module) and level_of(name) >= level_of(module)
    }
    assert wrong == set()


def test_the_published_direction_is_the_one_that_is_held() -> None:
    page = (SOURCE.parent / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
    block = page.partition("<!-- levels -->\n```\n")[2].partition("\n```")[0]
    assert [set(line.split(" · ")) for line in block.splitlines()] == LEVELS[-2::-1]


@pytest.mark.parametrize("module", MODULES)
def test_the_package_needs_nothing_that_stands_beside_it(module: str) -> None:
    assert {name for name in IMPORTS[module] if name.partition(".")[0] in BESIDE} == set()


def test_no_modules_import_each_other_in_a_circle() -> None:
    # `umpteen` itself only promises names for type checkers and loads them when they are asked for.
    graph = {module: own_imports(module) & MODULES.keys() - {module} for module in MODULES if module != "umpteen"}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as circle:
        pytest.fail(" → ".join(circle.args[1]))


@pytest.mark.parametrize(
    ("library", "allowed"),
    [
        ("rich", {"cli", "model"}),
        ("click", {"cli"}),
        ("pydantic", {"config", "service"}),
        ("transformers", {"encoders"}),
    ],
)
def test_a_library_stays_in_its_place(library: str, allowed: set[str]) -> None:
    users = {part_of(m) for m in MODULES if any(name.partition(".")[0] == library for name in IMPORTS[m])}
    assert users <= allowed


def test_who_watches_the_workers_loads_no_torch() -> None:
    program = "import sys, umpteen.service.run; print('torch' in sys.modules)"
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert seen.stdout.split() == ["False"]


def test_at_most_one_module_knows_of_other_processes() -> None:
    users = {module for module in MODULES if any(name.startswith("torch.distributed") for name in IMPORTS[module])}
    assert len(users) <= 1


@pytest.mark.parametrize("module", ["umpteen", "umpteen.cli.main"])
def test_the_front_door_opens_without_heavy_libraries(module: str) -> None:
    heavy = {"torch", "transformers", "numpy", "scipy", "sklearn", "pydantic", "rich"}
    program = f"import sys, {module}; print(*sorted({heavy} & set(sys.modules)))"
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert seen.stdout.split() == []
