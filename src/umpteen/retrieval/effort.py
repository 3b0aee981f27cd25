"""How hard an index looks: how widely it searches, and how many of what it finds are scored exactly."""

import math
from dataclasses import dataclass
from typing import Any


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


def doubling(first: int, last: int, *, halves: bool = False) -> list[int]:
    """first, 2 · first, 4 · first … last; with steps of about √2 between if asked for."""
    found = []
    while first < last:
        found.append(first)
        if halves and first + first // 2 < last:
            found.append(first + first // 2)
        first *= 2
    return [*found, max(last, 1)]
