"""What is kept on disk comes back as it was: the cache folder, a token table, a checkpoint."""

import copy
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from umpteen.config.settings import RunConfig
from umpteen.data.prepared import cache_folder
from umpteen.data.texts import Texts
from umpteen.data.tokens import TokenTable, tokenise
from umpteen.doctor.checks import Failed, Skipped
from umpteen.doctor.sample import Sample
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.rows import row_tables
from umpteen.encoders.table import FusedEncoder, LabelTable
from umpteen.encoders.towers import Towers
from umpteen.training.build import build_optimizer
from umpteen.training.checkpoint import TrainState, load_checkpoint, save_checkpoint, weights_of


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder in the cache that is gone afterwards."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix="doctor-", dir=folder) as inside:
            yield Path(inside)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise Failed(
            f"{folder} cannot be written ({reason}); free space or set UMPTEEN_CACHE to another folder"
        ) from None


def cache() -> str:
    """The cache folder takes a file and gives it back."""
    content = bytes(range(256)) * 4096  # a megabyte
    with scratch() as folder:
        (folder / "file").write_bytes(content)
        if (folder / "file").read_bytes() != content:
            raise Failed(f"{folder} gives back other bytes than were written; is the disk in order?")
        free = shutil.disk_usage(folder).free
    return f"{cache_folder()} can be written, {free / 1e9:.1f} GB free"


def token_table(sample: Sample, encoder: Encoder) -> str:
    """A table is written once, found again, and holds what tokenising in memory gives."""
    if isinstance(encoder, LabelTable):
        raise Skipped("labels have a vector each, and no texts")
    expected = sample.data.labels.without_firsts() if isinstance(encoder, FusedEncoder) else sample.data.labels
    texts = Texts.of(sample.label_texts)
    worked: list[int] = []  # grows whenever the tokenizer has work
    with scratch() as folder:

        def stored() -> TokenTable:
            return tokenise(
                texts, encoder.tokenizer, cache=folder, progress=lambda done, total: worked.append(done), small=0
            )

        first, work = stored(), len(worked)
        again = stored()
        if len(worked) > work:
            raise Failed(f"the table in {folder} was written but not found again; is the disk in order?")
        if not (_equal(first, expected) and _equal(again, expected)):
            raise Failed(f"the table in {folder} holds other tokens than the tokenizer gives; is the disk in order?")
    return f"{len(texts):,} label texts tokenised once, then found in the cache"


def _equal(one: TokenTable, other: TokenTable) -> bool:
    rows = np.arange(len(other))
    return len(one) == len(other) and all(map(torch.equal, one.batch(rows), other.batch(rows)))


def checkpoint(config: RunConfig, towers: Towers) -> str:
    """Weights and optimizer state, saved and loaded into a blank model, are the same to the bit."""
    optimizer = build_optimizer(config, towers)
    random = torch.Generator().manual_seed(config.seed)
    tables = row_tables(towers)
    for name, weight in towers.named_parameters():
        gradient = torch.rand(weight.shape, generator=random)
        if name in tables:
            tables[name](torch.arange(len(weight))).backward(gradient)
        else:
            weight.grad = gradient
    optimizer.step()
    fresh = copy.deepcopy(towers)
    with torch.no_grad():
        for weight in fresh.parameters():
            weight.zero_()
    fresh_optimizer = build_optimizer(config, fresh)
    recipe, data = config.model_dump(mode="json"), "doctor"
    state = TrainState(step=1, seconds=0.5)
    with scratch() as folder:
        save_checkpoint(folder, state, towers, optimizer, recipe=recipe, data=data)
        loaded = load_checkpoint(folder, fresh, fresh_optimizer, recipe=recipe, data=data)
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    towers.zero_grad(set_to_none=True)
    if loaded != state:
        raise Failed(f"the state came back as {loaded}, saved was {state}")
    saved, found = weights_of(towers), weights_of(fresh)
    different = [name for name in saved if not torch.equal(saved[name], found[name])]
    for (name, weight), own in zip(towers.named_parameters(), fresh.parameters(), strict=True):
        before, after = optimizer.state[weight], fresh_optimizer.state[own]
        if before.keys() != after.keys() or not all(torch.equal(before[key], after[key]) for key in before):
            different.append(f"the optimizer's state of {name}")
    if different:
        raise Failed(f"came back altered from a checkpoint: {', '.join(different[:3])}; is the disk in order?")
    return f"{size / 1e6:.0f} MB of weights and optimizer state came back as they were"
