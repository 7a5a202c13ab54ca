"""Policies of observations that are dicts, against formulas and against policies of one array."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from dm_env import specs
from torch import Tensor

from drqv2.errors import UserError
from drqv2.nn.deterministic import most_probable_action
from drqv2.nn.policies import Policy
from drqv2.parts import each

Shapes = Mapping[str, tuple[int, ...]]

DISCRETE = specs.DiscreteArray(4, np.int64, "action")
VECTOR = specs.BoundedArray((3,), np.float32, -1.0, 1.0, "action")
SHAPES: Shapes = {"pixels": (4, 40, 40), "pixels_wrist": (3, 36, 36), "goal": (2,), "state": (5,)}


def observed(*rows: int, shapes: Shapes = SHAPES) -> dict[str, Tensor]:
    """Return random observations: images of bytes, vectors that are not normalised."""
    noise = torch.Generator().manual_seed(1)
    return {
        name: torch.randint(0, 256, (*rows, *shape), dtype=torch.uint8, generator=noise)
        if len(shape) == 3
        else 3 + 2 * torch.randn(*rows, *shape, generator=noise)
        for name, shape in shapes.items()
    }


def seeded(*arguments: Any, **others: Any) -> Any:
    torch.manual_seed(0)
    return Policy(*arguments, **others)


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("spec", [DISCRETE, VECTOR])
@pytest.mark.parametrize("encoder", ["auto", "small", "nature", "impala"])
def test_shapes(encoder: str, spec: Any, lstm: bool) -> None:
    policy = seeded(SHAPES, spec, encoder, 8, lstm)
    dist, values, state = policy(observed(2, 3), policy.initial_state(2), torch.zeros(2, 3, dtype=torch.bool))
    assert dist.sample().shape == (2, 3, spec.shape[0] if spec.shape else 1)
    assert values.shape == (2, 3)
    assert (state is not None) == lstm
    values.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in policy.encoder.parameters())  # every part counts


@pytest.mark.parametrize("encoder", ["small", "nature", "impala"])
def test_features_are_those_of_each_part_joined(encoder: str) -> None:
    policy, obs = seeded(SHAPES, DISCRETE, encoder, 8, normalize=True), observed(6)
    policy.see(obs)
    parts, last, _ = policy.encoder
    seen = []
    for image, network in zip(parts.images, parts.of_image.values(), strict=True):
        alone = seeded(SHAPES[image], DISCRETE, encoder, 8)
        alone.encoder[0].load_state_dict(network.state_dict())  # it has the network of an image alone
        seen.append(alone.encoder[0](obs[image].float()))
    vectors = [obs[name] for name in parts.vectors]
    scaled = torch.cat([(x - x.mean(0)) / x.std(0, correction=0) for x in vectors], 1)
    first, _, second, _ = parts.of_vectors
    felt = torch.tanh(second(torch.tanh(first(scaled))))
    features = torch.relu(last(torch.cat([*seen, parts.gain * felt], 1)))
    torch.testing.assert_close(policy.features(obs), features, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_vectors_alone_are_the_joined_vector(normalize: bool, lstm: bool) -> None:
    shapes = {"goal": (2,), "state": (5,)}
    split, joined = (seeded(shape, VECTOR, "mlp", 8, lstm, normalize) for shape in (shapes, (7,)))
    for ours, theirs in zip(split.parameters(), joined.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    obs, state, first = observed(4, 6, shapes=shapes), split.initial_state(4), torch.rand(4, 6) < 0.2
    flat = torch.cat([*obs.values()], -1)
    split.see(obs)
    joined.see(flat)
    assert split.knows_observations()
    for ours, theirs in zip(split(obs, state, first)[:2], joined(flat, state, first)[:2], strict=True):
        mine, others = (x if isinstance(x, Tensor) else x.mean for x in (ours, theirs))
        torch.testing.assert_close(mine, others)


def test_statistics_are_those_of_each_vector() -> None:
    policy, obs = seeded(SHAPES, DISCRETE, "nature", 8, normalize=True), observed(50)
    assert not policy.knows_observations()
    for rows in (slice(20), slice(20, 50)):
        policy.see({name: part[rows] for name, part in obs.items()})
    assert policy.knows_observations()
    normalized = policy.normalized(obs)
    assert list(normalized) == list(SHAPES)
    for name in ("state", "goal"):
        wanted = (obs[name] - obs[name].mean(0)) / obs[name].std(0, correction=0)
        torch.testing.assert_close(normalized[name], wanted, atol=1e-4, rtol=1e-4)
    assert normalized["pixels"] is obs["pixels"]
    images = {"pixels": (4, 40, 40), "pixels_wrist": (3, 36, 36)}
    assert seeded(images, DISCRETE, "nature", 8, normalize=True).knows_observations()
    plain = seeded(SHAPES, DISCRETE, "nature", 8, normalize=False)
    assert plain.normalized(obs) is obs


def test_bf16_is_for_images_alone_and_near_fp32() -> None:
    exact, fast = (seeded(SHAPES, DISCRETE, "nature", 32, precision=precision) for precision in ("fp32", "bf16"))
    obs = observed(16, 1)
    (_, wanted, _), (dist, values, _) = exact(obs), fast(obs)
    values.sum().backward()
    assert fast.bf16
    assert values.dtype == dist.entropy().dtype == torch.float32
    assert all(p.grad is None or p.grad.dtype == torch.float32 for p in fast.parameters())
    error = (values - wanted).detach().abs().max()
    assert 0 < error < 0.05 * wanted.detach().abs().max()
    vectors = torch.randn(5, 7)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fast.encoder[0].of_vectors(vectors), exact.encoder[0].of_vectors(vectors))


@pytest.mark.parametrize("lstm", [False, True])
@pytest.mark.parametrize("spec", [DISCRETE, VECTOR])
def test_episodes_are_acted_in_as_the_exported_policy_acts(spec: Any, lstm: bool) -> None:
    policy = seeded(SHAPES, spec, "small", 8, lstm, True)
    policy.see(observed(50))
    exported: Any = most_probable_action(policy)
    assert exported.inputs == (*SHAPES, *(("h", "c") if lstm else ()))
    obs = observed(5, 3)
    states: list[Any] = [None] * 3
    memory: Any = policy.initial_state(3) or ()
    for t in range(5):
        step = each(lambda part, t=t: part[t], obs)
        with torch.no_grad():
            wanted = exported(*step.values(), *memory)
        chosen, *memory = wanted if lstm else (wanted,)
        found, states = policy.act_from(states, each(Tensor.numpy, step), None)
        np.testing.assert_allclose(found.clip(-1, 1) if spec is VECTOR else found, chosen.numpy(), atol=1e-5)
        assert found.shape == (3, *spec.shape)


def test_encoders_for_other_parts_are_refused() -> None:
    with pytest.raises(
        UserError, match=r"agent\.encoder=mlp applies only to vectors; .*'state': \(5,\).*: use small, n"
    ):
        Policy(SHAPES, DISCRETE, "mlp")
    with pytest.raises(UserError, match=r"agent\.encoder=nature applies only to images; .*\{'goal': \(2,\)\}: use mlp"):
        Policy({"goal": (2,)}, DISCRETE, "nature")
    tiny = {"image": (3, 7, 7), "direction": (4,)}
    with pytest.raises(UserError, match=r"7x7 are too small; set image_size to 36 or more, or agent\.encoder=impala"):
        Policy(tiny, DISCRETE, "auto")
    Policy(tiny, DISCRETE, "impala")
