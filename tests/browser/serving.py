"""A tiny model, and its service on a port of this machine that can be stopped and started again."""

import socket
import threading
import time
from pathlib import Path

import numpy as np
import uvicorn
from scipy.sparse import csr_array

from tiny import tiny_tokenizer
from umpteen.calibration.calibration import fit_calibration
from umpteen.calibration.curves import HeldOut
from umpteen.data.labels import LabelCatalogue
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.towers import Towers
from umpteen.evaluation.report import evaluate
from umpteen.model.classifier import Classifier
from umpteen.model.folder import CALIBRATION, ModelFolder
from umpteen.service.app import create_app
from umpteen.service.settings import ServiceSettings

TOKEN = "a-token-for-tests"
SCRIPT = "<script>alert('fish')</script><img src=x onerror=alert(1)> in the library"
LABELS = {
    "L1": "fish",
    "L2": "tax law",
    "L3": "library book",
    "ключ": "図書館",
    "L5": "dog and tree",
    "L6": "food trade",
    "L7": "network",
    "evil": SCRIPT,
    **{f"n{number:03}": f"{number} of many" for number in range(120)},
}


def write_model(folder: Path) -> None:
    """A model of random vectors in which a text is nearest to the label with the same words; calibrated, judged."""
    encoder = StaticEncoder.random(tiny_tokenizer(folder.parent / "tokenizer"), 48, seed=0)
    classifier = Classifier.build(Towers(encoder).eval(), LabelCatalogue(LABELS.keys(), LABELS.values()))
    texts = [f"{text} {other}" for text in list(LABELS.values())[:7] for other in ("", "of", "and the", "in", "tree")]
    ranking = classifier.rank(texts, 10)
    truth = csr_array(np.kron(np.eye(7, len(LABELS)), np.ones((5, 1))))
    counts = np.maximum(1, 200 - 3 * np.arange(len(LABELS)))
    report = evaluate(ranking, truth, label_counts=counts, train_queries=500, ks=(1, 5, 10), bootstrap=20)
    classifier.save(folder, report=report, recipe="seed = 1\n", data={"name": "tiny"})
    # As if scores told how often a label is right, but for chance: probabilities of all sizes.
    right = np.random.default_rng(0).random(ranking.scores.shape) < np.clip(ranking.scores, 0, 1)
    held_out = HeldOut(ranking.scores, right, right.sum(axis=1))
    calibration = fit_calibration(held_out, {"said": f"{len(texts)} texts made for this test"})
    with ModelFolder(folder).adding(CALIBRATION) as part:
        calibration.save(part.folder)


class Running:
    """`umpteen serve` in a thread of the test, on a port that stays the same over restarts."""

    def __init__(self, folder: Path, token: str | None = TOKEN) -> None:
        self.folder = folder
        # No test wants to see the service give up: a slow machine may take its time.
        self.settings = ServiceSettings(token=token, timeout=120, body_timeout=120, change_timeout=300)
        self._kept = _bound(0)  # never listens: the port is nobody else's while the service is stopped
        self._port: int = self._kept.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"
        self.start()

    def start(self) -> None:
        app = create_app(Classifier.load(self.folder), self.settings)
        config = uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([_bound(self._port)],))
        self._thread.start()
        while not self._server.started:
            assert self._thread.is_alive(), "the service did not start"
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    def close(self) -> None:
        self.stop()
        self._kept.close()


def _bound(port: int) -> socket.socket:
    """A socket at a port of this machine that others of this process may share; 0 is one that the system chooses."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    bound.bind(("127.0.0.1", port))
    return bound
