"""What a ranker is fitted with; each name is a key of `umpteen ranker fit --set`."""

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from umpteen.errors import BadConfig

NGrams = tuple[int, int]  # the shortest and the longest


@dataclass(frozen=True)
class RankerSettings:
    """Frozen and checked; the defaults are those that did best on validation (docs/ranker.md)."""

    candidates: int = 100  # labels of a query that are looked at again
    words: NGrams = (1, 2)  # n-grams of words
    characters: NGrams | None = None  # n-grams of characters within words
    min_texts: int = 1  # an n-gram must occur in so many training texts
    max_features: int = 1_000_000  # the most frequent n-grams of each kind
    dense: float = 0.0  # the dual encoder's vector of a text as further features, of this length; 0 for none
    cost: float = 1.0  # of a training error, against short weights (liblinear's C)
    threshold: float = 0.05  # weights nearer to 0 are dropped
    tolerance: float = 0.01  # at which liblinear stops
    iterations: int = 100  # after which it stops anyway

    def __post_init__(self) -> None:
        for name in ("candidates", "min_texts", "max_features", "iterations"):
            self._require(name, 1 <= getattr(self, name) < 2**31, f"must be at least 1 and below {2**31:,}")
        for name in ("cost", "tolerance"):
            self._require(name, getattr(self, name) > 0, "must be above 0")
        for name in ("dense", "threshold"):
            self._require(name, getattr(self, name) >= 0, "must be 0 or above")
        for name in ("words", "characters"):
            pair = getattr(self, name)
            fits = pair is None or (len(pair) == 2 and 1 <= pair[0] <= pair[1] < 2**31)
            self._require(name, fits, "must be two lengths, the shorter first, for instance [1, 2]")

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise BadConfig(f"{name} = {getattr(self, name)!r}: {rule}")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "RankerSettings":
        """Settings as they come from JSON or from the command line: lists for pairs, every name and type checked."""
        defaults = {field.name: field.default for field in fields(cls)}
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in defaults:
                nearest = difflib.get_close_matches(name, defaults, n=1, cutoff=0.5)
                hint = f"did you mean {nearest[0]}?" if nearest else f"there is {', '.join(defaults)}"
                raise BadConfig(f"a ranker has no setting {name}; {hint}")
            values[name] = _of_kind(name, value, defaults[name])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def _of_kind(name: str, value: Any, default: Any) -> Any:
    if name in ("words", "characters"):
        if value is None and name == "characters":
            return None
        if isinstance(value, list | tuple) and all(isinstance(length, int) for length in value):
            return tuple(value)
        raise BadConfig(f"{name} = {value!r}: must be two lengths, for instance [1, 2]")
    wanted = int if isinstance(default, int) else int | float
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise BadConfig(f"{name} = {value!r}: must be a{' whole' if wanted is int else ''} number")
    return type(default)(value)
