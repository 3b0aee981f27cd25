"""The on-disk formats of datasets, one reader each; all of them stream into the same Builder."""

from umpteen.data.formats import hugging_face, native, xc_repository
from umpteen.data.prepared import Format

FORMATS: tuple[Format, ...] = (native, xc_repository, hugging_face)

LOOKED_FOR = """\
  umpteen's own:                     labels.jsonl, train.jsonl (also .csv, .tsv, .parquet, and .gz)
  one file of texts and labels:      name the file itself (.jsonl, .csv, .tsv, .parquet), not its folder
  the paper's code:                  raw/Y.txt, raw/trn_X.txt, Y.trn.npz
  Extreme Classification Repository: lbl.json.gz, trn.json.gz, or trn_X_Y.txt with trn_X.txt and Y.txt or *.raw.txt
  datasets.save_to_disk:             dataset_dict.json, or state.json and *.arrow"""
