"""How hard an index looks: how widely it searches, and how many of what it finds are scored exactly."""

import math
from dataclasses import dataclass
from typing import Any

_SPARE = 6  # candidates beyond k, at least


@dataclass(frozen=True)
class Effort:
    """Chosen for the best `k`; who asks for more gets as much more."""

    k: int
    breadth: int  # efSearch of a graph, nprobe of lists, 0 where everything is looked at anyway
    rescored: int  # candidates that get exact scores

    def for_k(self, k: int) -> "Effort":
        """The effort for another number of labels."""
        if k <= self.k:
            return self
        more = k / self.k
        return Effort(k, math.ceil(self.breadth * more), max(k, math.ceil(self.rescored * more)))

    def to_dict(self) -> dict[str, int]:
        return {"k": self.k, "breadth": self.breadth, "rescored": self.rescored}

    @classmethod
    def from_dict(cls, content: dict[str, Any]) -> "Effort":
        return cls(int(content["k"]), int(content["breadth"]), int(content["rescored"]))


def with_spare(k: int) -> int:
    """Candidates for k labels: coarse scores may put one that belongs to the k best a little behind them."""
    return k + max(_SPARE, k // 2)


def doubling(first: int, last: int, *, steps: int = 1) -> list[int]:
    """From first to last, each 2^(1/steps) times the one before, about."""
    last = max(last, 1)
    count = math.ceil(steps * math.log2(max(last / first, 1)))
    between = {round(first * 2 ** (number / steps)) for number in range(count)}
    return [*sorted(value for value in between if value < last), last]
