"""The weights' gradients of all processes, added up."""

from collections.abc import Sequence

import torch
from torch import Tensor

from umpteen.parallel.world import World

TOGETHER = 1 << 22  # numbers; smaller gradients travel in one message


def sum_gradients_(parameters: Sequence[Tensor], world: World) -> None:
    """Every parameter's gradient becomes its sum over processes; it stays None where no process has one.

    A weight no text reaches must not get a gradient of zeros: the optimizer would let it decay.
    """
    if world.size == 1:
        return
    has = torch.tensor([float(parameter.grad is not None) for parameter in parameters], device=world.device)
    reached = [parameter for parameter, some in zip(parameters, world.max_(has).tolist(), strict=True) if some]
    for parameter in reached:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    message: list[Tensor] = []
    for parameter in reached:
        assert parameter.grad is not None
        if parameter.numel() >= TOGETHER:
            world.sum_(parameter.grad)
            continue
        if message and (message[0].dtype != parameter.dtype or sum(map(torch.numel, message)) >= TOGETHER):
            _sum_together_(message, world)
            message = []
        message.append(parameter.grad)
    if message:
        _sum_together_(message, world)


def _sum_together_(gradients: list[Tensor], world: World) -> None:
    flat = world.sum_(torch.cat([gradient.flatten() for gradient in gradients]))
    sizes = [gradient.numel() for gradient in gradients]
    for gradient, summed in zip(gradients, torch.split(flat, sizes), strict=True):
        gradient.copy_(summed.view_as(gradient))
