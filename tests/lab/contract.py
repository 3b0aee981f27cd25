"""What every finished experiment leaves in its folder."""

import json
from pathlib import Path
from typing import Any


def assert_contract(name: str, folder: Path, results: dict[str, Any]) -> None:
    """Of its size tiny, run with one seed."""
    assert json.loads((folder / "results.json").read_text()) == json.loads(json.dumps(results))
    assert results["experiment"] == name and results["size"] == "tiny" and results["seeds"] == 1
    assert results["claim"] == results["claims"][0]["claim"] and results["verdict"] == results["claims"][0]["verdict"]
    assert all(claim["verdict"] == "undecided" for claim in results["claims"])  # a single seed decides nothing
    assert all(claim["paper"] and claim["ours"] for claim in results["claims"])
    assert "paper" in results["summary"] and results["command"].startswith(f"python -m lab run {name} ")
    assert results["settings"] and results["results"] and results["runs"]
    assert (folder / f"{name}.svg").read_text().count("<svg") == 1
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
