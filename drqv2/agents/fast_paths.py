"""Which fast paths an agent's update may take: those whose modules nobody has replaced or hooked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from drqv2.nn import pixels
from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.nn.networks import Encoder, StateEncoder, gives_maps, takes_maps, takes_ready
from drqv2.nn.observations import PartsEncoder


def are_published(agent: Any, heads: Sequence[type[nn.Module]]) -> bool:
    """Return whether encoder, augmentation and heads are this project's, without hooks.

    Args:
        agent: a `DrQV2Agent`.
        heads: classes of its actor, critic and target critic.
    """
    modules = (agent.encoder, agent.aug, agent.actor, agent.critic, agent.critic_target)
    kinds = [type(module) for module in modules]
    pairs = [Encoder, RandomShiftsAug], [StateEncoder, nn.Identity], [PartsEncoder, RandomShiftsAug]
    known = kinds in [[*pair, *heads] for pair in pairs] and _own_parts(agent.encoder)
    return known and not any(map(is_hooked, modules))


def are_own(agent: Any) -> bool:
    """Return whether augmentation and encoder of images are this project's, without hooks: both take bytes."""
    own = type(agent.aug) is RandomShiftsAug and type(agent.encoder) in (Encoder, PartsEncoder)
    return own and _own_parts(agent.encoder) and not is_hooked(agent.aug) and not is_hooked(agent.encoder)


def _own_parts(encoder: nn.Module) -> bool:
    """Return whether the networks of an encoder of dicts are this project's; of another encoder, True."""
    if type(encoder) is not PartsEncoder:
        return True
    of_vectors = type(encoder.of_vectors) in (StateEncoder, type(None))
    return of_vectors and all(type(network) is Encoder for network in encoder.of_image.values())


def keep_maps(agent: Any) -> bool:
    """Return whether an encoder's maps need no flattening, since all heads take them as they are."""
    heads = (agent.actor, agent.critic, agent.critic_target)
    return gives_maps(agent.encoder) and all(map(takes_maps, heads))


def have_pixel_kernel(agent: Any) -> bool:
    """Return whether one kernel can shift, centre and round the agent's images."""
    takes = type(agent.aug) is RandomShiftsAug and takes_ready(agent.encoder)
    return takes and pixels.has_kernel(str(agent.device))


def is_hooked(module: nn.Module | None) -> bool:
    """Return whether a module or a part of it has hooks."""
    if module is None:
        return False
    hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    return bool(hooks) or any(map(is_hooked, module._modules.values()))  # modules() takes several times as long
