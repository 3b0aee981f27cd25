"""Other people's systems, each run in an environment of its own, so that its requirements never meet ours."""

from functools import partial

from lab.peers import pecos
from umpteen.compare.methods import Baseline

PEERS = {
    "xr-linear": Baseline(
        "xr-linear",
        ("threshold=0.1,0.01,0.03,0.3", "ngrams=2,1"),
        partial(pecos.fit, "xr-linear"),
        install=pecos.ENVIRONMENTS["xr-linear"].make,
        release=pecos.RELEASE,
    ),
    "xr-transformer": Baseline(
        "xr-transformer",
        ("learning_rate=0.0001,0.00005,0.0002", "epochs=5,3,8"),
        partial(pecos.fit, "xr-transformer"),
        install=pecos.ENVIRONMENTS["xr-transformer"].make,
        release=pecos.RELEASE,
    ),
}
