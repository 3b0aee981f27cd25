import subprocess
import sys

import pytest

from lab import EXPERIMENTS, named
from umpteen.errors import BadInput


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_listed_experiment_can_be_run(name: str) -> None:
    assert callable(named(name))


def test_an_unknown_experiment_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(BadInput, match="no experiment tokenstar; did you mean token-star"):
        named("tokenstar")
    with pytest.raises(BadInput, match="python -m lab list"):
        named("zzz")


def test_listing_experiments_loads_none_of_them() -> None:
    code = "import sys, lab; sys.exit('torch' in sys.modules or 'matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
