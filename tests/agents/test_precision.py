"""bf16, compiled and graphed updates against the plain fp32 one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dm_env import specs
from omegaconf import OmegaConf

from drqv2 import envs
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.offline import DrQV2BCAgent
from drqv2.errors import UserError
from drqv2.nn import pixels
from drqv2.nn.augmentation import RandomShiftsAug
from drqv2.nn.networks import Encoder, centred
from drqv2.run import factory
from drqv2.snapshot import agent_state
from drqv2.system import machine
from drqv2.system.machine import processor
from replay_buffer import ReplayBufferStorage, make_replay_loader
from tests import short_env
from tests.agents import test_golden
from tests.compare import assert_equal

needs_compiler = pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")


class Unshifted(torch.nn.Identity):
    """Stands in for the random shift, which the golden numbers leave out."""

    generator = None


def golden_agent(monkeypatch: pytest.MonkeyPatch, device: str = "cpu", **how: Any) -> tuple[DrQV2Agent, Any]:
    """Return an agent after the golden updates, and its metrics."""
    config = test_golden.CONFIG
    monkeypatch.setattr(DrQV2Agent, "_as_published", property(lambda self: True))  # though its shift is replaced
    agent = DrQV2Agent(
        (9, 84, 84),
        (config["A"],),
        device,
        config["lr"],
        config["feature_dim"],
        config["hidden_dim"],
        config["tau"],
        num_expl_steps=0,
        update_every_steps=1,
        stddev_schedule="0.0",
        stddev_clip=0.3,
        use_tb=True,
        **how,
    )
    agent.aug = Unshifted()
    for name, offset in test_golden.PHASES.items():
        test_golden.fill(getattr(agent, name), config["phase"] + offset)
    batches = iter(test_golden.batch(config["phase"] + s) for s in range(config["steps"]))
    return agent, [agent.update(batches, step) for step in range(config["steps"])]


def worst(agent: DrQV2Agent) -> float:
    """Return the greatest distance of a parameter figure from the golden one, as a share of its absolute sum."""
    distances = []
    for name, want in test_golden.GOLDEN["params"].items():
        module, key = name.split(".", 1)
        value = getattr(agent, module).state_dict()[key].double().cpu().flatten()
        weights = torch.sin(torch.arange(value.numel(), dtype=torch.float64))
        got = (value.sum(), value.abs().sum(), (value * weights).sum())
        distances += [abs(float(have) - expected) / want[1] for have, expected in zip(got, want, strict=True)]
    return max(distances)


def test_maps_in_place_of_flat_features_give_the_golden_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, metrics = golden_agent(monkeypatch)
    assert worst(agent) < 1e-5
    for got, expected in zip(metrics, test_golden.GOLDEN["steps"], strict=True):
        assert {name: float(got[name]) for name in expected} == pytest.approx(expected, rel=1e-4)


def test_bf16_stays_near_the_golden_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    agent, _ = golden_agent(monkeypatch, precision="bf16")
    assert 1e-5 < worst(agent) < 2e-2  # it is bf16, and near
    assert all(p.dtype == torch.float32 for p in agent.critic.parameters())


@needs_compiler
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile's own, of an intermediate result
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_compiled_stays_near_the_golden_numbers(monkeypatch: pytest.MonkeyPatch, precision: str, bound: float) -> None:
    agent, _ = golden_agent(monkeypatch, precision=precision, compile=True)
    assert worst(agent) < bound
    assert set(agent.encoder.state_dict()) == {f"convnet.{i}.{n}" for i in (0, 2, 4, 6) for n in ("weight", "bias")}


def small_agent(device: str = "cpu", kind: type[DrQV2Agent] = DrQV2Agent, **how: Any) -> DrQV2Agent:
    torch.manual_seed(3)
    return kind((9, 84, 84), (1,), device, 1e-4, 50, 64, 0.01, 0, 1, "linear(1.0,0.1,100)", 0.3, True, seed=5, **how)


def test_it_learns_from_states() -> None:
    """One step is an episode; the best action is half the first number of the state."""
    torch.manual_seed(3)
    agent = DrQV2Agent((3,), (1,), "cpu", 1e-3, 50, 64, 0.01, 0, 1, 0.3, 0.3, True, seed=5)
    assert agent._as_published

    def batches() -> Any:
        while True:
            obs, action = torch.rand(64, 3) * 2 - 1, torch.rand(64, 1) * 2 - 1
            yield obs, action, -((action - obs[:, :1] / 2) ** 2), torch.zeros(64, 1), obs

    for step in range(400):
        metrics = agent.update(batches(), step)
    assert {"critic_loss", "actor_loss", "actor_ent"} <= metrics.keys()
    states = np.linspace(-1, 1, 63, dtype=np.float32).reshape(21, 3)
    chosen = agent.act_batch(states, 400, eval_mode=True)
    assert np.abs(chosen - states[:, :1] / 2).mean() < 0.1
    np.testing.assert_allclose(agent.act(states[5], 400, eval_mode=True), chosen[5], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("obs", "action"), [((9, 84, 84), ()), ((9, 84, 84), (2, 2)), ((84, 84), (1,))])
def test_what_it_cannot_learn_from_is_refused(obs: tuple[int, ...], action: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"action_shape=\(.*must be one vector|obs_shape=\(84, 84\) must be"):
        DrQV2Agent(obs, action, "cpu", 1e-4, 50, 64, 0.01, 0, 1, 0.3, 0.3, True)


class Overriding(DrQV2Agent):
    def update_actor(self, obs: torch.Tensor, step: int) -> dict[str, torch.Tensor]:
        assert obs.dtype == torch.float32
        return super().update_actor(obs, step)


def batches(count: int, size: int = 8) -> list[tuple[torch.Tensor, ...]]:
    draw = torch.Generator().manual_seed(1)
    images = partial(torch.randint, 0, 256, (size, 9, 84, 84), dtype=torch.uint8, generator=draw)
    numbers = partial(torch.rand, (size, 1), generator=draw)
    return [(images(), numbers(), numbers(), numbers(), images()) for _ in range(count)]


def test_an_overridden_update_gets_fp32() -> None:
    data = batches(1)
    fp32, bf16 = (small_agent(kind=Overriding, precision=precision) for precision in ("fp32", "bf16"))
    assert_equal(fp32.update(iter(data), 0), bf16.update(iter(data), 0))


class OwnLoss(DrQV2Agent):
    def critic_loss(self, *args: Any) -> torch.Tensor:
        return 2 * super().critic_loss(*args)


def test_code_of_your_own_is_in_no_graph() -> None:
    for kind, graphed in ((DrQV2Agent, True), (DrQV2BCAgent, True), (OwnLoss, False), (Overriding, False)):
        agent = small_agent(kind=kind, compile=True)
        agent.device = "cuda"
        assert agent._update_in_graph == graphed
        assert agent._graphs == (kind is not Overriding)  # of actions, too


class OwnEncoder(Encoder):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        h: torch.Tensor = super().forward(obs)
        assert h.shape[1:] == (self.repr_dim,)
        return h


def test_a_replaced_network_gets_fp32_and_flat_features() -> None:
    data = batches(1)
    fp32, bf16 = (small_agent(precision=precision) for precision in ("fp32", "bf16"))
    for agent in (fp32, bf16):
        own = OwnEncoder((9, 84, 84))
        own.load_state_dict(agent.encoder.state_dict())
        agent.encoder = own
    assert_equal(fp32.update(iter(data), 0), bf16.update(iter(data), 0))


def test_a_replaced_augmentation_gets_fp32() -> None:
    data = batches(1)
    agents = [small_agent(precision=precision) for precision in ("fp32", "bf16")]
    for agent in agents:
        agent.aug = torch.nn.Identity()
    assert_equal(agents[0].update(iter(data), 0), agents[1].update(iter(data), 0))


@pytest.mark.slow
def test_compiled_networks_get_the_noise_as_a_tensor_whatever_was_replaced() -> None:
    agent = small_agent(compile=True)
    agent.aug = torch.nn.Identity()
    assert isinstance(agent._stddev(3), torch.Tensor)  # a number would be compiled into the actor


def test_bf16_forgets_no_gradient_and_no_step() -> None:
    # Autocast keeps a parameter's first bf16 copy for as long as a context lasts: the critic of the actor's loss must
    # be the one that has just taken its step.
    data = batches(1)
    agents = [small_agent(precision=precision) for precision in ("fp32", "bf16")]
    for agent in agents:
        agent.critic_opt.param_groups[0]["lr"] = 0.05  # a step that shows
    losses = [agent.update(iter(data), 0)["actor_loss"] for agent in agents]
    untouched = small_agent(precision="bf16")
    untouched.critic_opt.param_groups[0]["lr"] = 0.0
    without = untouched.update(iter(data), 0)["actor_loss"]
    assert abs(losses[1] - losses[0]) < 0.2 * abs(without - losses[0])
    for agent in agents:
        for module in (agent.encoder, agent.actor, agent.critic):
            assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in module.parameters())


@pytest.fixture(scope="module")
def replay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real episodes under random actions."""
    folder = tmp_path_factory.mktemp("replay")
    env = envs.make("short", 3, 2, seed=1, image_size=84, factory=short_env.make)
    scalars = [specs.Array((1,), np.float32, name) for name in ("reward", "discount")]
    storage = ReplayBufferStorage((env.observation_spec(), env.action_spec(), *scalars), folder)
    rng = np.random.default_rng(0)
    for _ in range(8):
        time_step = env.reset()
        storage.add(time_step)
        while not time_step.last():
            time_step = env.step(rng.uniform(-1, 1, 1))
            storage.add(time_step)
    env.close()
    return folder


@pytest.mark.slow
@pytest.mark.skipif(processor()[1] == "emulated", reason="this CPU emulates bf16, which takes minutes")
def test_losses_of_bf16_follow_those_of_fp32(replay: Path) -> None:
    """Over 60 updates on real transitions, smoothed over 20, the critic's loss stays within 15 %, Q within 5 %."""
    curves = {}
    for precision in ("fp32", "bf16"):
        loader = make_replay_loader(replay, None, 16, 0, False, 3, 0.99)
        agent = small_agent(precision=precision)
        metrics = [agent.update(loader, step) for step in range(60)]
        loader.close()
        curves[precision] = {
            name: np.array([float(m[name]) for m in metrics]).reshape(-1, 20).mean(1)
            for name in ("critic_loss", "critic_q1", "critic_target_q", "actor_loss")
        }
    for name, bound in (("critic_loss", 0.15), ("critic_q1", 0.05), ("critic_target_q", 0.05), ("actor_loss", 0.05)):
        fp32, bf16 = (curves[precision][name] for precision in ("fp32", "bf16"))
        distance = np.abs(bf16 - fp32) / np.abs(fp32).max()
        assert distance.max() < bound, f"{name}: {distance.max():.3f}"


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "bound"), [("fp32", 1e-5), ("bf16", 2e-2)])
def test_graphed_stays_near_the_golden_numbers(monkeypatch: pytest.MonkeyPatch, precision: str, bound: float) -> None:
    agent, _ = golden_agent(monkeypatch, "cuda", precision=precision, compile=True)
    assert worst(agent) < bound


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "bounds"), [("fp32", (1e-4, 1e-5)), ("bf16", (3e-2, 1e-3))])
def test_a_graph_does_what_single_kernels_do(precision: str, bounds: tuple[float, float]) -> None:
    data = batches(6)
    eager, graphed = (small_agent("cuda", precision=precision, compile=how) for how in (False, True))
    assert graphed._pixels_ready == (precision == "bf16")
    for step, batch in enumerate(data):
        one, other = (agent.update(iter([batch]), step) for agent in (eager, graphed))
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=bounds[0], atol=bounds[1])
    # The generators have gone on alike, so that a snapshot holds their state.
    ours, theirs = (agent_state.capture(agent)["children"] for agent in (eager, graphed))
    for name in ("update_generator", "aug"):
        assert_equal(ours[name], theirs[name])


@pytest.mark.gpu
def test_a_graph_acts_as_single_kernels_do() -> None:
    eager, graphed = (small_agent("cuda", compile=how) for how in (False, True))
    for step, batch in enumerate(batches(2)):
        for number in (1, 3, 1):
            obs = batch[0][:number].numpy()
            for eval_mode in (True, False):
                one, other = (agent.act_batch(obs, 50, eval_mode) for agent in (eager, graphed))
                np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        for agent in (eager, graphed):
            agent.update(iter([batch]), step)  # the graph sees what it has learnt


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_graph_continues_after_a_restore(precision: str) -> None:
    data = batches(6)
    whole, parts = (small_agent("cuda", precision=precision, compile=True) for _ in range(2))
    for step, batch in enumerate(data):
        whole.update(iter([batch]), step)
        if step == 3:
            fresh = small_agent("cuda", precision=precision, compile=True)
            agent_state.restore(fresh, agent_state.capture(parts))
            parts = fresh
        parts.update(iter([batch]), step)
    for a, b in zip(whole.critic.parameters(), parts.critic.parameters(), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.gpu
def test_the_kernel_for_pixels_changes_an_update_little(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pixels.has_kernel("cuda")
    ready = small_agent("cuda", precision="bf16")
    assert ready._pixels_ready
    plain = small_agent("cuda", precision="bf16")
    for step, batch in enumerate(batches(3)):
        one = ready.update(iter([batch]), step)
        with monkeypatch.context() as patched:
            patched.setattr(pixels, "has_kernel", lambda device: False)
            other = plain.update(iter([batch]), step)
        for name in ("critic_loss", "critic_q1", "actor_loss"):
            torch.testing.assert_close(one[name], other[name], rtol=3e-2, atol=1e-3)
    assert_equal(agent_state.capture(ready)["children"]["aug"], agent_state.capture(plain)["children"]["aug"])


REPLACED: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda agent: None,
    "precision": lambda agent: setattr(agent, "precision", "fp32"),
    "trunk": lambda agent: setattr(agent.actor, "trunk", torch.nn.Sequential(torch.nn.Linear(39200, 50))),
    "convolutions": lambda agent: agent.encoder.convnet.insert(0, torch.nn.Identity()),
    "bias": lambda agent: setattr(agent.encoder.convnet[6], "bias", None),
    "augmentation": lambda agent: setattr(agent, "aug", torch.nn.Identity()),
    "hook": lambda agent: agent.encoder.register_forward_hook(lambda *_: None),
}


@pytest.mark.parametrize("what", REPLACED)
def test_images_are_ready_for_the_published_networks_alone(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Here on a CPU, with plain code in place of the kernel."""
    drawn = []

    def shifted_and_centred(images: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        drawn.append(shift)
        ready = centred(RandomShiftsAug(4)(images, shift)).float()
        return torch.nn.functional.pad(ready, (0, 0, 0, 0, 0, 7)).bfloat16()

    monkeypatch.setattr(pixels, "has_kernel", lambda device: True)
    monkeypatch.setattr(pixels, "shifted_and_centred", shifted_and_centred)
    agents = []
    for _ in range(2):
        agents.append(small_agent(precision="bf16"))
        REPLACED[what](agents[-1])
    agent, same = agents
    (batch,) = batches(1)
    metrics = agent.update(iter([batch]), 0)
    assert len(drawn) == (2 if what == "nothing" else 0)
    monkeypatch.setattr(pixels, "has_kernel", lambda device: False)
    for name, value in same.update(iter([batch]), 0).items():
        torch.testing.assert_close(metrics[name], value, rtol=1e-2, atol=1e-3)


def test_slow_bf16_is_not_chosen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, warning in (("emulated", "emulates bf16"), ("slow", "bf16 more slowly than fp32"), ("fast", "")):
        monkeypatch.setattr(machine, "processor", lambda kind=kind: ("CPU", kind))
        how = {"regime": "drqv2", "device": "cpu", "precision": "bf16", "compile": False}
        factory.prepare_machine(OmegaConf.create(how))
        printed = capsys.readouterr().out
        assert warning in printed if warning else not printed
        how["precision"] = "auto"
        cfg = OmegaConf.create(how)
        factory.prepare_machine(cfg)
        assert cfg.precision == ("bf16" if kind == "fast" else "fp32")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("heads", [["critic", "critic_target"], ["actor"]])
def test_a_replaced_trunk_gets_flat_features(precision: str, heads: list[str]) -> None:
    agent = small_agent(precision=precision)
    for name in heads:
        head = getattr(agent, name)
        head.trunk = torch.nn.Sequential(torch.nn.Linear(39200, 50), torch.nn.LayerNorm(50), torch.nn.Tanh())
    metrics = agent.update(iter(batches(1)), 0)
    assert all(torch.isfinite(value) for value in metrics.values())


def test_a_trunk_may_be_empty_and_the_augmentation_a_function() -> None:
    agent = small_agent()
    agent.aug = lambda obs: obs
    for head in (agent.critic, agent.critic_target, agent.actor):
        head.trunk = torch.nn.Sequential()
    agent.actor.policy[0] = torch.nn.Linear(39200, 64)
    for critic in (agent.critic, agent.critic_target):
        for q in (critic.Q1, critic.Q2):
            q[0] = torch.nn.Linear(39200 + 1, 64)
    assert all(torch.isfinite(value) for value in agent.update(iter(batches(1)), 0).values())


@pytest.mark.parametrize("place", ["encoder.convnet.0", "critic.trunk", "actor.policy"])
def test_a_hook_anywhere_in_the_networks_is_seen(place: str) -> None:
    agent, seen = small_agent(precision="bf16"), list[torch.Tensor]()
    network, _, path = place.partition(".")
    module = getattr(agent, network).get_submodule(path)
    module.register_forward_hook(lambda _, inputs, output: seen.extend((*inputs, output)))
    agent.update(iter(batches(1)), 0)
    assert {x.dtype for x in seen} == {torch.float32}
    assert network == "encoder" or {x.ndim for x in seen} == {2}


def test_a_hook_on_the_encoder_sees_flat_features() -> None:
    agent, plain = small_agent(), small_agent()
    inputs, seen = list[torch.Tensor](), list[torch.Tensor]()
    agent.encoder.register_forward_hook(lambda _, __, features: seen.append(features.detach()))
    agent.encoder.register_forward_pre_hook(lambda _, given: inputs.extend(given))
    batch = batches(1)
    metrics, expected = (each.update(iter(batch), 0) for each in (agent, plain))
    assert [features.shape for features in seen] == [(8, 39200)] * 2
    assert [images.dtype for images in inputs] == [torch.float32] * 2
    torch.testing.assert_close(metrics, expected, rtol=1e-3, atol=1e-4)
