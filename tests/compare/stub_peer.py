"""A stand-in for PECOS's interpreter: ranks labels by their frequency, and writes down what it was asked."""

import json
from pathlib import Path
from typing import Any

from lab.peers.apart import ENVIRONMENTS

SCRIPT = """#!{python}
import json, sys
from pathlib import Path
import numpy as np
import scipy.sparse as sparse
folder = Path(sys.argv[-1])
job = json.loads((folder / "job.json").read_text())
queries = [json.loads(line) for line in (folder / "queries.jsonl").open()]
texts = [json.loads(line) for line in (folder / "train.jsonl").open()]
with open({log!r}, "a") as log:
    log.write(json.dumps({{"settings": job["settings"], "queries": queries, "texts": texts}}) + "\\n")
{body}
counts = np.asarray(sparse.load_npz(folder / "relevance.npz").sum(0)).ravel() + 1
scores = sparse.csr_matrix(np.tile(counts / 2 + job["settings"]["threshold"], (len(queries), 1)), dtype=np.float32)
sparse.save_npz(folder / "ranking.npz", scores)
print("some chatter")
print(json.dumps({{"train_seconds": 1.5, "predict_seconds": 0.5, "parameters": 7}}))
"""


def make_stub(log: Path, python: str, body: str = "", method: str = "xr-linear") -> None:
    """Puts the stand-in where the environment of a method would be."""
    environment = ENVIRONMENTS[method]
    environment.interpreter.parent.mkdir(parents=True)
    environment.interpreter.write_text(SCRIPT.format(python=python, log=str(log), body=body))
    environment.interpreter.chmod(0o755)
    (environment.folder / "ready.json").write_text("{}")


def calls(log: Path) -> list[dict[str, Any]]:
    """What the stand-in was asked, in order."""
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
