"""Names of environments of other libraries."""

from __future__ import annotations

import pytest

from drqv2.envs.ids import gymnasium_factory, split
from drqv2.errors import UserError


def test_library_and_name() -> None:
    assert split("envpool:MetaWorld/Reach-v3") == ("envpool", "MetaWorld/Reach-v3")
    for wrong in ("CartPole-v1", "gym:CartPole-v1"):
        with pytest.raises(UserError, match=r"must be gymnasium:NAME or envpool:NAME"):
            split(wrong)


def test_gymnasium_environments_by_name() -> None:
    env = gymnasium_factory("CartPole-v1")()
    assert env.observation_space.shape == (4,)
    env.close()
    with pytest.raises(UserError, match=r"no such environment; nearest: .*CartPole-v1"):
        gymnasium_factory("CartPol-v1")
