"""Networks: the shapes and names of the public implementation's weights, and what they compute."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drqv2.nn.latents import LatentEncoder
from drqv2.nn.networks import ENCODERS, Actor, Critic, Encoder, StateEncoder, centred


def mlp(name: str, in_dim: int, hidden: int, out: int) -> dict[str, tuple[int, ...]]:
    sizes = ((hidden, in_dim), (hidden, hidden), (out, hidden))
    return {
        f"{name}.{2 * i}.{p}": s if p == "weight" else s[:1] for i, s in enumerate(sizes) for p in ("weight", "bias")
    }


TRUNK = {"trunk.0.weight": (50, 39200), "trunk.0.bias": (50,), "trunk.1.weight": (50,), "trunk.1.bias": (50,)}
PUBLIC: dict[str, dict[str, tuple[int, ...]]] = {
    "encoder": {
        f"convnet.{2 * i}.{p}": (32, 9 if i == 0 else 32, 3, 3) if p == "weight" else (32,)
        for i in range(4)
        for p in ("weight", "bias")
    },
    "actor": TRUNK | mlp("policy", 50, 1024, 6),
    "critic": TRUNK | mlp("Q1", 56, 1024, 1) | mlp("Q2", 56, 1024, 1),
}


def make(name: str) -> nn.Module:
    return (
        Encoder((9, 84, 84)) if name == "encoder" else {"actor": Actor, "critic": Critic}[name](39200, (6,), 50, 1024)
    )


def old_weights(name: str) -> dict[str, Tensor]:
    """Weights as an old run left them: a plain dict under the public names."""
    rng = torch.Generator().manual_seed(0)
    return {key: torch.randn(shape, generator=rng) * 0.05 for key, shape in PUBLIC[name].items()}


def linear(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def head(weights: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    x = linear(weights, f"{name}.0", x).clamp(min=0)
    return linear(weights, f"{name}.4", linear(weights, f"{name}.2", x).clamp(min=0))


def trunk(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    x = linear(weights, "trunk.0", x)
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return torch.tanh(x * weights["trunk.1.weight"] + weights["trunk.1.bias"])


@pytest.mark.parametrize("name", PUBLIC)
def test_names_and_shapes(name: str) -> None:
    assert {key: tuple(value.shape) for key, value in make(name).state_dict().items()} == PUBLIC[name]


def test_encoder_with_old_weights() -> None:
    encoder, weights = make("encoder"), old_weights("encoder")
    encoder.load_state_dict(weights)
    obs = torch.randint(0, 256, (2, 9, 84, 84), dtype=torch.uint8)
    h = obs.float() / 255 - 0.5
    for i, stride in enumerate((2, 1, 1, 1)):
        h = F.conv2d(h, weights[f"convnet.{2 * i}.weight"], weights[f"convnet.{2 * i}.bias"], stride=stride).clamp(
            min=0
        )
    torch.testing.assert_close(encoder(obs), h.reshape(2, -1))
    assert h.reshape(2, -1).shape[1] == 39200


def test_actor_and_critic_with_old_weights() -> None:
    actor, critic = make("actor"), make("critic")
    features, action = torch.randn(3, 39200), torch.rand(3, 6) * 2 - 1
    weights = old_weights("actor")
    actor.load_state_dict(weights)
    dist = actor(features, 0.2)
    torch.testing.assert_close(dist.mean, torch.tanh(head(weights, "policy", trunk(weights, features))))
    assert torch.equal(dist.stddev, torch.full((3, 6), 0.2))
    weights = old_weights("critic")
    critic.load_state_dict(weights)
    x = torch.cat([trunk(weights, features), action], dim=1)
    for q, name in zip(critic(features, action), ("Q1", "Q2"), strict=True):
        assert q.shape == (3, 1)
        torch.testing.assert_close(q, head(weights, name, x))


def test_critic_with_normalised_layers() -> None:
    critic, features, action = Critic(7, (2,), 5, 8, layer_norm=True), torch.randn(3, 7), torch.rand(3, 2)
    weights = critic.state_dict()
    h = torch.cat([trunk(weights, features), action], dim=1)
    for i in (0, 3):
        h = F.layer_norm(linear(weights, f"Q1.{i}", h), (8,)).clamp(min=0)
    torch.testing.assert_close(critic(features, action)[0], linear(weights, "Q1.6", h))
    # However far an action is from those of the replay, its value is bounded.
    far = torch.full((3, 2), 1e6)
    assert critic(features, far)[0].abs().max() < 20


@pytest.mark.parametrize("shape", [(9, 84, 84), (9, 64, 64), (3, 48, 48), (12, 84, 84), (1, 21, 40), (9, 15, 15)])
def test_repr_dim_is_what_comes_out(shape: tuple[int, int, int]) -> None:
    for obs_shape in (shape, list(shape), torch.Size(shape)):
        encoder = Encoder(obs_shape)
        out = encoder(torch.zeros(2, *shape, dtype=torch.uint8))
        assert out.shape == (2, encoder.repr_dim)
        assert out.dtype == torch.float32


@pytest.mark.parametrize("name", list(ENCODERS))
def test_features_are_the_same_flat_and_as_maps(name: str) -> None:
    encoder, obs = Encoder((9, 84, 84), ENCODERS[name]), torch.randint(0, 256, (2, 9, 84, 84), dtype=torch.uint8)
    actor, critic = Actor(encoder.repr_dim, (2,), 5, 8), Critic(encoder.repr_dim, (2,), 5, 8)
    flat, maps = encoder(obs), encoder(obs, as_maps=True)
    layers = [(m.kernel_size[0], m.stride[0]) for m in encoder.convnet if isinstance(m, nn.Conv2d)]
    assert layers == list(ENCODERS[name])
    assert torch.equal(maps.flatten(1), flat)
    torch.testing.assert_close(actor(maps, 0.1).mean, actor(flat, 0.1).mean)
    torch.testing.assert_close(critic(maps, torch.zeros(2, 2)), critic(flat, torch.zeros(2, 2)))


def test_state_encoder() -> None:
    encoder, obs = StateEncoder((7,)), torch.randn(4, 7)
    weights = encoder.state_dict()
    expected = linear(weights, "mlp.2", linear(weights, "mlp.0", obs).clamp(min=0)).clamp(min=0)
    torch.testing.assert_close(encoder(obs), expected)
    assert expected.shape == (4, encoder.repr_dim)


def test_vectors_are_not_rounded_in_bf16() -> None:
    obs = torch.tensor([[1000.0, 0.1], [1001.0, 0.1]])  # the same in bf16
    for network in (StateEncoder((2,)), LatentEncoder((2,), 8, "patch", 1).body):
        with torch.autocast("cpu", torch.bfloat16):
            found = network(obs)
        assert torch.equal(found, network(obs))
        assert not torch.equal(found[0], found[1])


def test_encoder_takes_bytes_and_floats() -> None:
    encoder = Encoder((9, 32, 32))
    obs = torch.randint(0, 256, (4, 9, 32, 32), dtype=torch.uint8)
    assert torch.equal(encoder(obs), encoder(obs.float()))
    assert encoder(obs[:0]).shape == (0, encoder.repr_dim)


@pytest.mark.parametrize("bf16", [False, True])
def test_bytes_are_looked_up_as_they_would_be_calculated(bf16: bool) -> None:
    obs = torch.arange(256, dtype=torch.uint8).view(1, 4, 8, 8).repeat(3, 1, 1, 1)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        pixels = centred(obs)
    expected = (obs / 255.0 - 0.5).to(torch.bfloat16 if bf16 else torch.float32)
    assert pixels.dtype == expected.dtype
    assert torch.equal(pixels, expected)
    assert pixels.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("name", PUBLIC)
def test_initialization(name: str) -> None:
    for layer in make(name).modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            assert layer.bias is not None
            assert not layer.bias.any()
            w = layer.weight.detach().flatten(1).double()
            w = w if w.shape[0] <= w.shape[1] else w.T
            scale = 2.0 if isinstance(layer, nn.Conv2d) else 1.0  # the gain of a ReLU, squared
            torch.testing.assert_close(w @ w.T, scale * torch.eye(len(w), dtype=torch.float64), rtol=0.0, atol=1e-4)
