"""The index that a classifier searches with: told of changed labels, and exchanged when the folder has another one."""

from umpteen.catalogue.live_catalogue import LiveCatalogue
from umpteen.indexing import open_index
from umpteen.retrieval.exact_index import ExactIndex
from umpteen.retrieval.index import LabelIndex, try_out


class IndexInUse:
    """Exact search at first; `open` turns to the index of the model folder, if it has one."""

    index: LabelIndex
    _version: int  # of the labels that the index knows

    def __init__(self, catalogue: LiveCatalogue) -> None:
        self._catalogue = catalogue
        self.search_exactly()

    def search_exactly(self) -> None:
        """Needs no files but the labels' vectors."""
        start = self._catalogue.start
        self.index, self._version = ExactIndex(self._catalogue.vectors.first, start.active), start.version
        self.tell()

    def tell(self) -> None:
        """The index hears of the labels that have changed since it last did."""
        self._version = self._told(self.index, self._version)

    def open(self) -> None:
        """Searches with the folder's index, if it has one; nothing is changed if that cannot be opened."""
        opened = self._opened()
        if opened is not None:
            self.index, self._version = opened

    def open_again(self) -> None:
        """The folder's index has come, gone or been made again: it takes over once it has answered a query."""
        old, opened = self.index, self._opened()
        if opened is None:
            self.search_exactly()
        else:
            try:
                try_out(opened[0], self._catalogue.vectors.first.shape[1])
            except BaseException:  # another process may have it to itself
                opened[0].close()
                raise
            self.index, self._version = opened
        old.close()

    def close(self) -> None:
        self.index.close()

    def _opened(self) -> tuple[LabelIndex, int] | None:
        journal, base = self._catalogue.journal, self._catalogue.vectors.first
        assert journal is not None
        opened = open_index(journal.model, journal.belongs_to, base, lambda: self._catalogue.labels)
        return None if opened is None else (opened[0], self._told(*opened))

    def _told(self, index: LabelIndex, version: int) -> int:
        """An index of this version hears what came later; returns the version that it knows then."""
        put, gone = self._catalogue.since(version)
        if len(put):
            index.add(put, self._catalogue.vectors.of(put).numpy())
        if len(gone):
            index.remove(gone)
        return self._catalogue.labels.version
