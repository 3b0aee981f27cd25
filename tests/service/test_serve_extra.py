"""The service's libraries are an extra: nothing else needs them, and `umpteen serve` without them tells what to do."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "umpteen"
LIBRARIES = ["fastapi", "starlette", "uvicorn", "httptools", "prometheus_client", "orjson"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_that_is_not_there_is_told_in_one_line(library: str) -> None:
    program = f"""
import sys
from umpteen.cli.main import main
sys.modules[{library!r}] = None
sys.argv = ["umpteen", "serve", "nowhere"]
main()
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    (told,) = ended.stderr.splitlines()
    assert ended.returncode == 2 and ended.stdout == ""
    assert told.startswith("error: ") and library in told and told.endswith("pip install 'umpteen[serve]'")


def test_nothing_but_the_service_imports_them() -> None:
    users = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] in LIBRARIES for name in names):
                users.add(path.relative_to(PACKAGE).parts[0])
    assert users == {"service"}


def test_the_command_line_loads_none_of_them() -> None:
    program = f"import sys, umpteen.cli.main; print(*sorted(set({LIBRARIES}) & set(sys.modules)))"
    seen = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert seen.stdout.split() == []
