"""Weights of an encoder of dicts from another encoder: of those networks that fit.

An encoder of dicts has a network for each image and one for the joined vectors, see `PartsEncoder` in
`drqv2.nn.observations`, under the names `of_image.NAME` and `of_vectors`. An encoder of one image or vector is such a
network itself. That of vectors fits if it takes as many numbers. An agent may have layers of its own around the
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
    if not any(map(_NETWORK.match, names)) and any(map(_NETWORK.match, others)):
        return _as_in(_networks(part, others, ()), part, names)
    networks: Networks = defaultdict(dict)
    for name in names:
        found = _NETWORK.match(name)
        networks[found[0] if found else f"the rest of {part}"][name] = name
    return dict(networks)


def _as_in(others: Networks, part: str, names: Sequence[str]) -> Networks:
    """Return an encoder of one image or vector as the network of others that has the same layers.

    An image's is that of the image `pixels`, or of the only one.
    """
    images = [name for name in others if ".of_image." in name]
    pixels = [name for name in images if name.endswith(".pixels")] or images
    networks: Networks = {}
    inner: set[str] = set()
    for network, tensors in others.items():
        found = _NETWORK.match(f"{network}.")
        if found is None:
            continue
        own = {network + name.removeprefix(found[1]): name for name in names if name.startswith(f"{found[1]}.")}
        inner.update(own.values())
        if own.keys() == tensors.keys() and (network not in images or pixels == [network]):
            networks[network] = own
    rest = {name: name for name in names if name not in inner}
    return networks | ({f"the rest of {part}": rest} if rest else {})


def _fit(agents: dict[str, str], files: dict[str, str], own: dict[str, Any], saved: dict[str, Any]) -> bool:
    """Return whether a network has the same tensors in an agent and in a file."""
    return agents.keys() == files.keys() and all(
        own[tensor].shape == saved[files[name]].shape for name, tensor in agents.items()
    )


def _why(network: str, agents: Networks, files: Networks) -> str:
    if network in agents and network in files:
        return "has another shape in the file"
    return "not in the file" if network in agents else "not in the agent"
