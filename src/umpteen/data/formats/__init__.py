"""The on-disk formats of datasets, one reader each; all of them stream into the same Builder."""

from pathlib import Path

from umpteen.data.formats import dexml, native, xc_repository
from umpteen.data.prepared import Format
from umpteen.errors import BadInput

FORMATS: tuple[Format, ...] = (native, dexml, xc_repository)

LOOKED_FOR = """\
  umpteen's own:                     labels.jsonl, train.jsonl (also .csv, .tsv, each also .gz)
  dexml:                             raw/Y.txt, raw/trn_X.txt, Y.trn.npz
  Extreme Classification Repository: lbl.json.gz, trn.json.gz, or trn_X_Y.txt with trn_X.txt and Y.txt or *.raw.txt"""


def of(folder: Path) -> Format:
    """The format a folder is in, told by its file names."""
    for form in FORMATS:
        if form.recognises(folder):
            return form
    names = sorted(path.name for path in folder.iterdir())
    found = ", ".join(names[:8]) + (", …" if len(names) > 8 else "") if names else "nothing"
    raise BadInput(f"{folder} is in no known dataset format. It holds: {found}. Looked for:\n{LOOKED_FOR}")
