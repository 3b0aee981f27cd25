"""The two encoders of a dual encoder: one for queries and one for labels, or the same one for both."""

import copy
from pathlib import Path
from typing import Any

from torch import nn

from umpteen.encoders import folder as layout
from umpteen.encoders.encoder import Encoder
from umpteen.encoders.static import StaticEncoder
from umpteen.encoders.table import TEXT_FOLDER, FusedEncoder, LabelTable, row_tables
from umpteen.errors import BadConfig, BadInput, DamagedModel

QUERY_FOLDER, LABEL_FOLDER = "query", "label"


class Towers(nn.Module):
    """`query` and `label`, the same object when shared; parameters and state hold a shared tower once."""

    query: Encoder

    def __init__(self, query: Encoder, label: Encoder | None = None) -> None:
        super().__init__()
        if label is not None and label.dimension != query.dimension:
            raise BadConfig(
                f"the towers cannot be compared: query vectors have {query.dimension} numbers ({query.describe()}), "
                f"label vectors {label.dimension} ({label.describe()}); "
                f"give the transformer tower projection = {min(query.dimension, label.dimension)}, or the static one "
                "the other's dimension"
            )
        self.query = query
        self.label_tower = None if label is query else label

    @classmethod
    def separate(cls, encoder: Encoder) -> "Towers":
        """Two towers that start alike and are trained apart."""
        return cls(encoder, copy.deepcopy(encoder))

    @property
    def label(self) -> Encoder:
        return self.query if self.label_tower is None else self.label_tower

    @property
    def shared(self) -> bool:
        return self.label_tower is None

    @property
    def dimension(self) -> int:
        return self.query.dimension

    def describe(self) -> str:
        """One line for people."""
        if self.shared:
            return f"one tower ({self.query.describe()})"
        return f"queries ({self.query.describe()}), labels ({self.label.describe()})"

    def parameter_counts(self) -> dict[str, int]:
        """Learned numbers of each tower and in all; those of a label table over all processes."""
        query, label = _parameter_count(self.query), _parameter_count(self.label)
        return {"query": query, "label": label, "total": query if self.shared else query + label}

    def save(self, folder: Path) -> None:
        """Writes a folder that sentence-transformers loads; for all-or-nothing, call it in storage.atomic_folder.

        Where labels are more than their texts, what loads there is the query tower.
        """
        folder = Path(folder)
        if self.shared:
            self.query.save(folder)
            return
        self.query.save(folder / QUERY_FOLDER)
        self.label.save(folder / LABEL_FOLDER)
        if isinstance(self.label, LabelTable | FusedEncoder):
            layout.write_reference(folder, QUERY_FOLDER)
        else:
            layout.write_router(folder, QUERY_FOLDER, LABEL_FOLDER)
        layout.write_settings(folder, {"kind": "towers"})

    @classmethod
    def load(cls, folder: Path | str) -> "Towers":
        """The towers that `save` wrote, ready to encode (dropout off)."""
        folder = Path(folder)
        layout.refuse_ways_out(folder)
        settings = layout.read_settings(folder)
        if settings.get("kind") != "towers":
            return cls(_read(folder, settings)).eval()
        query, label = (
            _read(tower, layout.read_settings(tower)) for tower in (folder / QUERY_FOLDER, folder / LABEL_FOLDER)
        )
        return cls(query, label).eval()


def _parameter_count(tower: Encoder) -> int:
    tables = row_tables(tower)
    counts = {name: weight.numel() for name, weight in tower.named_parameters()}
    return sum((counts | {name: table.count * table.dimension for name, table in tables.items()}).values())


def _read(folder: Path, settings: dict[str, Any]) -> Encoder:
    try:
        match settings["kind"]:
            case "static":
                return StaticEncoder.read(folder, settings)
            case "transformer":
                from umpteen.encoders.transformer import TransformerEncoder

                return TransformerEncoder.read(folder, settings)
            case "table":
                return LabelTable.read(folder, settings)
            case "fused":
                text = folder / TEXT_FOLDER
                return FusedEncoder.read(folder, settings, _read(text, layout.read_settings(text)))
            case kind:
                raise DamagedModel(f"{folder / layout.SETTINGS_FILE}: no encoder of kind {kind!r} is known")
    except KeyError as missing:
        raise DamagedModel(f"{folder}: {missing} is missing; copy or save the model again") from missing
    except BadConfig:  # the folder is whole, but this machine cannot do what it asks for
        raise
    except BadInput as problem:
        raise DamagedModel(f"{problem}; copy or save the model again") from problem
    except (AttributeError, IndexError, OverflowError, RuntimeError, TypeError, ValueError) as problem:
        raise DamagedModel(f"{folder}: cannot be read ({problem}); copy or save the model again") from problem
