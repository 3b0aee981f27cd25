"""Which methods take part: the peers that can be had on this machine, and our recipes, with a ranker where asked."""

import difflib
from collections.abc import Sequence

from umpteen.assemble import Progress
from umpteen.comparing.baselines import BASELINES
from umpteen.comparing.method import Method, Notice
from umpteen.comparing.ours import Ours
from umpteen.comparing.with_ranker import MARK, OursWithRanker
from umpteen.errors import BadInput
from umpteen.peers.environment import Unavailable
from umpteen.peers.pecos import ENVIRONMENTS
from umpteen.recipes import path_of
from umpteen.training.observer import Observer


def available_peers(names: Sequence[str], notice: Notice) -> tuple[list[Method], list[dict[str, str]]]:
    """The peers by name, and those that cannot be had here with the reason."""
    for name in names:
        if name not in BASELINES:
            nearest = difflib.get_close_matches(name, BASELINES, n=1)
            hint = f"did you mean {nearest[0]}?" if nearest else f"there is {', '.join(BASELINES)}"
            raise BadInput(f"--peers {name}: no such method; {hint}")
    found: list[Method] = []
    skipped = []
    for name in dict.fromkeys(names):
        try:
            if name in ENVIRONMENTS:
                ENVIRONMENTS[name].make(notice)
            found.append(BASELINES[name])
        except Unavailable as reason:
            notice(f"{name} is left out: {reason}")
            skipped.append({"method": name, "reason": str(reason)})
    return found, skipped


def our_methods(
    recipes: Sequence[str],
    *,
    ranker: bool,
    notice: Notice,
    observer: Observer,
    progress: Progress,
    label: str | None = None,
) -> list[Method]:
    """Each recipe, and with a ranker on top where it is marked so or all are; `label` renames a single one."""
    wanted: dict[str, str] = {}  # name in the table → recipe
    for recipe in recipes:
        plain = recipe.removesuffix(MARK)
        name = label or path_of(plain).stem
        marked = recipe.endswith(MARK)
        for row in [f"{name}{MARK}"] if marked else [name, f"{name}{MARK}"] if ranker else [name]:
            if wanted.setdefault(row, plain) != plain:
                raise BadInput(f"two recipes are called {name}: {wanted[row]} and {plain}; rename one of the files")
    methods: list[Method] = []
    for row, recipe in wanted.items():
        ours = Ours(recipe, row.removesuffix(MARK), notice, observer, progress)
        methods.append(OursWithRanker(ours) if row.endswith(MARK) else ours)
    return methods
