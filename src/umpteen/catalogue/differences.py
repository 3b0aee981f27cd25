"""What has to happen to labels to become those of another version."""

from collections.abc import Iterable

from umpteen.catalogue.changes import Step
from umpteen.catalogue.live import LiveLabels


def steps_between(now: LiveLabels, then: LiveLabels, keys: Iterable[str]) -> tuple[Step, ...]:
    """What turns `now` into `then`, two versions of the same labels that differ in these keys at most."""
    steps = []
    for key in keys:
        before, after = now.text_of(key), then.text_of(key)
        if after is None:
            if before is not None:
                steps.append(Step("retire", key, None))
        elif before is None:
            steps.append(Step("add" if now.find(key) is None else "revive", key, after))
        elif before != after:
            steps.append(Step("rename", key, after))
    return tuple(steps)
