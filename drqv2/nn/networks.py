"""DrQ-v2's networks: encoders, actor, double critic (arXiv 2107.09645, section 3 and appendix)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import torch
from torch import Tensor, nn

from drqv2.errors import UserError
from drqv2.nn.conv_relu import conv_relu
from drqv2.nn.convolutions import check_side
from drqv2.nn.observations import PartsEncoder, Shapes
from drqv2.parts import parts
from drqv2.utils import TruncatedNormal, weight_init

# (kernel size, stride) of each convolution, by the name of the encoder. The strided one multiplies an eighth as often
# for an image of 84x84, and gives 11,552 features instead of 39,200.
ENCODERS = {"drqv2": ((3, 2), (3, 1), (3, 1), (3, 1)), "strided": ((4, 4), (3, 1))}
# Scale of the trunks' initial weights. A trunk's output is normalised, so its change by a step of Adam goes with the
# number of features over this scale, which is chosen such that both encoders' trunks learn at the same pace.
TRUNK_GAINS = {"drqv2": 1.0, "strided": 0.3}


class Encoder(nn.Module):
    """Convolutions of 32 channels; the paper's are four of size 3x3, the first with stride 2.

    Args:
        obs_shape: (C, H, W) of an observation, C all stacked frames' channels.
        layers: (kernel size, stride) of each convolution.

    Attributes:
        repr_dim: features that come out of an image; 39,200 for 84x84 and the paper's strides.
    """

    def __init__(self, obs_shape: Sequence[int], layers: Sequence[tuple[int, int]] = ENCODERS["drqv2"]) -> None:
        super().__init__()
        modules: list[nn.Module] = []
        for i, (size, stride) in enumerate(layers):
            # In place: a convolution's gradient does not need its own output.
            modules += [nn.Conv2d(32 if i else obs_shape[0], 32, size, stride), nn.ReLU(inplace=True)]
        self.convnet = nn.Sequential(*modules)
        self.apply(weight_init)
        with torch.no_grad():
            self.repr_dim = self.convnet(torch.zeros(1, *obs_shape)).numel()

    def forward(self, obs: Tensor, as_maps: bool = False, ready: bool = False) -> Tensor:
        """Return features [B, repr_dim] of images [B, C, H, W], uint8 or float in [0, 255].

        They are float32, and bfloat16 under bf16 autocast. With `as_maps` they stay the convolutions' [B, 32, h, w]
        in channels-last order, which `Actor` and `Critic` take as well: flattening would copy all of them. `ready`
        images are those that `drqv2.nn.pixels` returns.
        """
        if ready:
            h = obs
            layer: Any
            for layer in list(self.convnet)[::2]:
                h = conv_relu(h, layer)
        else:
            h = self.convnet(centred(obs))  # [B, 32, 35, 35] for 84x84
        return h if as_maps else h.flatten(1)


class StateEncoder(nn.Module):
    """Two layers for observations that are a vector, in place of the convolutions.

    Args:
        obs_shape: (N,) of an observation.

    Attributes:
        repr_dim: features that come out of an observation; 256.
    """

    def __init__(self, obs_shape: Sequence[int]) -> None:
        super().__init__()
        self.repr_dim = 256
        self.mlp = Float32Sequential(nn.Linear(obs_shape[0], 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU())
        self.apply(weight_init)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features [B, repr_dim], float32, of observations [B, N]."""
        features: Tensor = self.mlp(obs)
        return features


def make_encoder(obs_shape: Shapes, name: str, key: str = "agent.encoder") -> Any:
    """Return an `Encoder` of images, a `StateEncoder` of vectors; of dicts, one for each image and the joined vectors.

    Args:
        obs_shape: (C, H, W), (N,), or a dict of these.
        name: a key of `ENCODERS`.
        key: of the configuration that has chosen `name`, for messages.

    Raises:
        UserError: there is no such encoder, or an image of a dict is too small.
    """
    if name not in ENCODERS:
        raise UserError(f"{key}={name} must be {' or '.join(ENCODERS)}")
    if not isinstance(obs_shape, Mapping):
        return Encoder(obs_shape, ENCODERS[name]) if len(obs_shape) == 3 else StateEncoder(obs_shape)
    for shape in obs_shape.values():
        if len(shape) == 3:
            check_side(shape, ENCODERS[name], f"{key}={name}")
    return PartsEncoder(obs_shape, lambda shape: Encoder(shape, ENCODERS[name]), lambda size: StateEncoder((size,)))


def check_shapes(agent: str, obs_shape: Shapes, action_shape: Sequence[int]) -> None:
    """Raise a `UserError` unless observations are images, vectors or dicts of them, and actions one vector."""
    if len(action_shape) != 1:
        raise UserError(f"{agent} needs continuous actions: action_shape={tuple(action_shape)} must be one vector")
    for shape in parts(obs_shape):
        if len(shape) not in (1, 3):
            raise UserError(f"{agent} observes images or vectors: obs_shape={tuple(shape)} must be (C, H, W) or (N,)")


def centred(obs: Tensor) -> Tensor:
    """Return pixels as numbers in [-0.5, 0.5], in channels-last order, which is fastest for convolutions."""
    if torch.compiler.is_compiling() or obs.device.type != "cpu" or obs.dtype != torch.uint8 or not len(obs):
        return (obs.contiguous(memory_format=torch.channels_last) / 255.0).sub_(0.5)
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
    b, c, h, w = obs.shape
    rows = obs.permute(0, 2, 3, 1).reshape(b * h, w * c)
    out = torch.empty(rows.shape, dtype=dtype)
    # A lookup of the 256 possible values takes less than half the time of computing. OpenCV has no bf16.
    table = (torch.arange(256, dtype=torch.uint8) / 255.0).sub_(0.5).to(dtype)
    bits = torch.uint16 if dtype.itemsize == 2 else dtype
    cv2.LUT(rows.numpy(), table.view(bits).numpy(), dst=out.view(bits).numpy())
    return out.view(b, h, w, c).permute(0, 3, 1, 2)


class MapsLinear(nn.Linear):
    """A layer on features, or on maps as `Encoder` gives them, for which it permutes its weights."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, out] for features [B, C * h * w], or maps [B, C, h, w] in channels-last order."""
        if x.ndim == 2:
            return super().forward(x)
        weight = self.weight.to(x.dtype).unflatten(1, x.shape[1:]).permute(0, 2, 3, 1).flatten(1)  # [out, h * w * C]
        x = x.permute(0, 2, 3, 1).flatten(1)
        if x.device.type == "cuda":  # with a bias, and sums in fp32, cuBLAS does not split this long sum
            return nn.functional.linear(x, weight) + self.bias
        return nn.functional.linear(x, weight, self.bias)


def gives_maps(encoder: nn.Module) -> bool:
    """Return whether an encoder can leave its features as maps."""
    return type(encoder) is Encoder


def takes_ready(encoder: Any) -> bool:
    """Return whether an `Encoder` takes images that are ready: not if its layers were replaced by others."""
    layers = list(encoder.convnet)
    if len(layers) % 2 or any(type(layer) is not nn.ReLU for layer in layers[1::2]):
        return False
    usual = (0, 0), (1, 1), 1  # padding, dilation, groups
    return all(
        type(layer) is nn.Conv2d and (layer.padding, layer.dilation, layer.groups) == usual and layer.bias is not None
        for layer in layers[::2]
    )


def takes_maps(head: nn.Module) -> bool:
    """Return whether an actor or critic takes maps: not if its trunk was replaced."""
    trunk = getattr(head, "trunk", None)
    return isinstance(trunk, nn.Module) and isinstance(next(trunk.children(), None), MapsLinear)


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


class Float32LayerNorm(nn.LayerNorm):
    """Layer normalisation in fp32, under bf16 autocast too."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised, float32 (float64 stays)."""
        return super().forward(_at_least_float32(x))


class Float32Sequential(nn.Sequential):
    """Layers in fp32, under bf16 autocast too, for vectors: in bf16, large numbers would be all the same."""

    def forward(self, x: Tensor) -> Tensor:
        """Return what the layers make of x [B, N], float32 (float64 stays)."""
        with torch.autocast(x.device.type, enabled=False):
            out: Tensor = super().forward(_at_least_float32(x))
        return out


class Float32Linear(nn.Linear):
    """A layer in fp32, under bf16 autocast too: bf16 is exact for integers only up to 256, too coarse for a value."""

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, out], float32 (float64 stays)."""
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(_at_least_float32(x))


def _trunk(repr_dim: int, feature_dim: int) -> nn.Sequential:
    return nn.Sequential(MapsLinear(repr_dim, feature_dim), Float32LayerNorm(feature_dim), nn.Tanh())


def scale_trunk(trunk: nn.Module, gain: float) -> None:
    """Multiply the weights of a trunk's first layer."""
    with torch.no_grad():
        next(trunk.parameters()).mul_(gain)


def mlp(in_dim: int, hidden_dim: int, out_dim: int, layer_norm: bool = False) -> nn.Sequential:
    """Return two hidden layers with ReLU, normalised before it if asked for, and an output."""
    layers: list[nn.Module] = []
    for width in (in_dim, hidden_dim):
        norm = [Float32LayerNorm(hidden_dim)] if layer_norm else []
        layers += [nn.Linear(width, hidden_dim), *norm, nn.ReLU()]
    return nn.Sequential(*layers, Float32Linear(hidden_dim, out_dim))


class Actor(nn.Module):
    """Policy: features to a truncated normal over actions in (-1, 1).

    Args:
        repr_dim: the encoder's features.
        action_shape: (A,).
        feature_dim: width of the trunk's output.
        hidden_dim: width of the two hidden layers.
        trunk_gain: scale of the trunk's initial weights.
    """

    def __init__(
        self,
        repr_dim: int,
        action_shape: Sequence[int],
        feature_dim: int,
        hidden_dim: int,
        trunk_gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.trunk = _trunk(repr_dim, feature_dim)
        self.policy = mlp(feature_dim, hidden_dim, action_shape[0])
        self.apply(weight_init)
        scale_trunk(self.trunk, trunk_gain)

    def forward(self, obs: Tensor, std: float | Tensor) -> TruncatedNormal:
        """Return the distribution over actions [B, A] for features [B, repr_dim] or maps, and a standard deviation."""
        mu = torch.tanh(self.policy(self.trunk(obs)))
        return TruncatedNormal(mu, torch.ones_like(mu) * std)


class Critic(nn.Module):
    """Two action values on a shared trunk; its arguments are those of `Actor`.

    With `layer_norm` the hidden layers are normalised before their ReLU, so that values of actions far from those in
    replay stay bounded (Ball et al., RLPD, arXiv 2302.02948). The paper has no such layers.
    """

    def __init__(
        self,
        repr_dim: int,
        action_shape: Sequence[int],
        feature_dim: int,
        hidden_dim: int,
        trunk_gain: float = 1.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.trunk = _trunk(repr_dim, feature_dim)
        self.Q1 = mlp(feature_dim + action_shape[0], hidden_dim, 1, layer_norm)
        self.Q2 = mlp(feature_dim + action_shape[0], hidden_dim, 1, layer_norm)
        self.apply(weight_init)
        scale_trunk(self.trunk, trunk_gain)

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return Q1 and Q2, float32 [B, 1] each, for features [B, repr_dim] or maps, and actions [B, A]."""
        h_action = torch.cat([self.trunk(obs), action], dim=-1)  # [B, feature_dim + A]
        return self.Q1(h_action), self.Q2(h_action)
