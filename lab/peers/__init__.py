"""What else one could run: systems of other people, each in an environment of its own, and what one builds oneself."""

from functools import partial
from typing import Any

from lab.peers import apart, here
from umpteen.compare.methods import Baseline


def _apart(name: str, choices: tuple[str, ...], release: str, **more: Any) -> Baseline:
    """A peer whose requirements never meet ours."""
    install = apart.ENVIRONMENTS[name].make
    particulars = {"release": release}
    return Baseline(name, choices, partial(apart.fit, name), install=install, particulars=particulars, **more)


_RATES = "learning_rate=0.00005,0.0001,0.0002"
PEERS = {
    peer.name: peer
    for peer in (
        _apart("xr-linear", ("threshold=0.1,0.01,0.03,0.3", "ngrams=2,1"), apart.PECOS, seeded=True),
        _apart("xr-transformer", ("steps=600,300,1200", _RATES), apart.PECOS, seeded=True),
        _apart("bonsai", ("threshold=0.1,0.01,0.03,0.3", "ngrams=2,1"), apart.OMIKUJI),
        _apart(
            "mnrl",
            ("learning_rate=0.00005,0.00002,0.0001", "epochs=1,2"),
            apart.SENTENCE_TRANSFORMERS,
            reads_labels=True,
        ),
        Baseline("linear-svm", ("cost=1.0,0.3,3.0", "ngrams=2,1"), here.linear_svm),
        Baseline("minilm-knn", ("neighbours=20,10,50", "temperature=0.05,0.02,0.1"), here.minilm_neighbours),
        Baseline("minilm-probe", ("learning_rate=0.01,0.003,0.03", "epochs=20,10,40"), here.linear_probe),
    )
}
