"""Weights of an encoder of dicts from another encoder: of those networks that fit.

An encoder of dicts has a network for each image and one for the joined vectors, see `PartsEncoder` in
`drqv2.nn.observations`, under the names `of_image.NAME` and `of_vectors`. An encoder of one image is such a network
itself. The network of vectors fits if it takes as many numbers. An agent may have layers of its own around these
networks, the rest, which are taken as a whole or not at all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Networks = dict[str, dict[str, str]]
"""By a network's name, its tensors: the name that an encoder of dicts gives each one, and the name that it has."""

_NETWORK = re.compile(r"(.+?)\.(?:of_image\.[^.]+|of_vectors)(?=\.)")


def take(part: str, own: dict[str, Any], saved: dict[str, Any]) -> list[str]:
    """Copy what fits of a part from a file to an agent, and remove the part from both, if either encodes dicts there.

    Args:
        part: its dotted name.
        own: the agent's tensors by dotted name.
        saved: the file's.

    Returns:
        names of the networks that are left out, each with the reason.

    Raises:
        RuntimeError: nothing fits.
    """
    mine, given = ([name for name in tensors if name.startswith(f"{part}.")] for tensors in (own, saved))
    agents, files = _networks(part, mine, given), _networks(part, given, mine)
    if not any(map(_NETWORK.match, [*mine, *given])):
        return []
    fitting = {name for name in agents if name in files and _fit(agents[name], files[name], own, saved)}
    for network in fitting:
        for name, tensor in agents[network].items():
            own[tensor].copy_(saved[files[network][name]])
    left = [f"{name} ({_why(name, agents, files)})" for name in agents | files if name not in fitting]
    if not fitting:
        raise RuntimeError(f"nothing of {part} fits: {', '.join(left)}")
    for name in mine:
        del own[name]
    for name in given:
        del saved[name]
    return left


def _networks(part: str, names: Sequence[str], others: Sequence[str]) -> Networks:
    """Return the networks among the tensors of a part, by the names of `others` if only these are of dicts."""
    alias = {name: name for name in names}
    if not any(map(_NETWORK.match, names)):
        alias |= _as_an_image(names, others)
    networks: Networks = defaultdict(dict)
    for name in names:
        found = _NETWORK.match(alias[name])
        networks[found[0] if found else f"the rest of {part}"][alias[name]] = name
    return dict(networks)


def _as_an_image(names: Sequence[str], others: Sequence[str]) -> dict[str, str]:
    """Return the names of an image's encoder's tensors as those of `pixels`, or of the only image, in one of dicts."""
    found = {match[0]: match[1] for match in map(_NETWORK.match, others) if match and ".of_image." in match[0]}
    pixels = [network for network in found if network.endswith(".of_image.pixels")] or list(found)
    if len(pixels) != 1:
        return {}
    outer = found[pixels[0]]
    return {name: pixels[0] + name.removeprefix(outer) for name in names if name.startswith(f"{outer}.")}


def _fit(agents: dict[str, str], files: dict[str, str], own: dict[str, Any], saved: dict[str, Any]) -> bool:
    """Return whether a network has the same tensors in an agent and in a file."""
    return agents.keys() == files.keys() and all(
        own[tensor].shape == saved[files[name]].shape for name, tensor in agents.items()
    )


def _why(network: str, agents: Networks, files: Networks) -> str:
    if network in agents and network in files:
        return "does not fit"
    return "not in the file" if network in agents else "not in the agent"
