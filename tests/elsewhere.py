"""A GPU that is not there: tensors that say they are on it, and whose numbers are on the CPU.

torch's fake tensors have no numbers to count, sort or look up, and autograd refuses those of a GPU on a machine
without one. These it takes, because only Python is told where they are. Every operation is held to what a GPU holds it
to: all its tensors are in one place, except for single numbers and copies.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map_only

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
LIKE_ANOTHER = {torch.ops.aten.new_zeros.default, torch.ops.aten.zeros_like.default}  # autograd passes its own device


class WrongDevice(Exception):
    """A machine with a GPU would have refused this."""


class Placed(Tensor):
    """A tensor and the device it says it is on."""

    numbers: Tensor
    place: torch.device

    @staticmethod
    def __new__(cls, numbers: Tensor, place: torch.device) -> "Placed":
        how = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset(), "dtype": numbers.dtype}
        made: Placed = Tensor._make_wrapper_subclass(cls, numbers.shape, **how)  # type: ignore[attr-defined]
        made.numbers, made.place = numbers, GPU if place.type == "cuda" else place
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.place

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        return super().to(*args, **kwargs)

    def tolist(self) -> Any:
        return self.numbers.tolist()

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, args, kwargs or {})


class Elsewhere(FakeTensorMode):
    """Inside, what is made on "cuda" is said to be there, and nobody looks for a driver."""

    def dispatch(
        self, func: Any, types: Sequence[type], args: Sequence[object] = (), kwargs: Mapping[str, object] | None = None
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(operation: Any, args: Any, kwargs: Any) -> Any:
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    places = {each.device for each in given if each.dim()} or {each.device for each in given}
    if len(places) > 1 and operation not in COPIES:
        raise WrongDevice(f"{operation} of tensors on {' and '.join(sorted(map(str, places)))}")
    wish = None if operation in LIKE_ANOTHER else kwargs.get("device")
    place = torch.device(wish or (given[0].device if operation in COPIES else next(iter(places), CPU)))
    placed = {id(each.numbers): each for each in given if isinstance(each, Placed)}
    real_args, real_kwargs = tree_map_only(Placed, lambda each: each.numbers, (args, dict(kwargs)))
    if real_kwargs.get("device"):
        real_kwargs["device"] = CPU
    found = operation(*real_args, **real_kwargs)
    return tree_map_only(Tensor, lambda each: placed[id(each)] if id(each) in placed else Placed(each, place), found)
