"""Finding the best labels for many queries; the kinds of index that do."""

# Each kind of index by its class, which is loaded when it is asked for: the command line names the kinds without it.
KINDS = {
    "exact": "umpteen.search.index.ExactIndex",
    **dict.fromkeys(("faiss-flat", "faiss-hnsw", "faiss-ivfpq", "faiss-sq"), "umpteen.search.faiss.FaissIndex"),
    "milvus": "umpteen.search.milvus.MilvusIndex",
}
