"""The processes of a run: who is there, what they say to each other, and which rows are whose."""

from umpteen.parallel.world import Shard, World, join_world

__all__ = ["Shard", "World", "join_world"]
