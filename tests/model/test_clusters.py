"""The examples of docs/how-to/predict-on-a-cluster.md, in the local mode of Ray Data and Spark.

Packages that are missing skip their tests, or fail them if UMPTEEN_CLUSTER_TESTS is "required".
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from miniature import trained
from test_docs import ROOT, blocks_of
from umpteen.model.classifier import Classifier

TEXTS = {f"n-{number}": f"the {word} of {number}" for number, word in enumerate(["law", "fish", "tax", "book", "dog"])}


def of_ray(folder: Path) -> list[dict[str, Any]]:
    from pyarrow.parquet import read_table

    return [row for path in (folder / "answers-of-ray").glob("*.parquet") for row in read_table(path).to_pylist()]


def of_spark(folder: Path) -> list[dict[str, Any]]:
    written = (path.read_text(encoding="utf-8") for path in (folder / "answers-of-spark").glob("part-*.json"))
    return [json.loads(line) for lines in written for line in lines.splitlines()]


@pytest.mark.parametrize(("package", "read"), [("ray", of_ray), ("pyspark", of_spark)])
def test_the_example_gives_each_text_what_predict_gives(
    package: str, read: Callable[[Path], list[dict[str, Any]]], tmp_path: Path
) -> None:
    if find_spec(package) is None or (package == "pyspark" and shutil.which("java") is None):
        needed = f"needs {package}, and Spark also Java: make cluster-test"
        if os.environ.get("UMPTEEN_CLUSTER_TESTS") == "required":
            pytest.fail(needed)
        pytest.skip(needed)
    (tmp_path / "runs").mkdir()
    trained(tmp_path, "training.epochs=1").rename(tmp_path / "runs" / "demo")
    lines = [json.dumps({"id": name, "text": text}) + "\n" for name, text in TEXTS.items()]
    (tmp_path / "texts.jsonl").write_text("".join(lines), encoding="utf-8")
    page = blocks_of(ROOT / "docs" / "how-to" / "predict-on-a-cluster.md")
    (example,) = [block.text for block in page if re.search(rf"^(import|from) {package}\b", block.text, re.M)]
    ours = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "RAY_USAGE_STATS_ENABLED": "0"}
    done = subprocess.run(
        [sys.executable, "-c", example],
        cwd=tmp_path,
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    expected = Classifier.load(tmp_path / "runs" / "demo").predict(list(TEXTS.values()), k=5)
    keys = [[one.key for one in found] for found in expected]
    assert {row["id"]: list(row["labels"]) for row in read(tmp_path)} == dict(zip(TEXTS, keys, strict=True))
