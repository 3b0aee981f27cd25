"""The on-disk formats of datasets, one reader each; all of them stream into the same Builder."""

from umpteen.data.formats import dexml, native, xc_repository
from umpteen.data.prepared import Format

FORMATS: tuple[Format, ...] = (native, dexml, xc_repository)

LOOKED_FOR = """\
  umpteen's own:                     labels.jsonl, train.jsonl (also .csv, .tsv, each also .gz)
  dexml:                             raw/Y.txt, raw/trn_X.txt, Y.trn.npz
  Extreme Classification Repository: lbl.json.gz, trn.json.gz, or trn_X_Y.txt with trn_X.txt and Y.txt or *.raw.txt"""
