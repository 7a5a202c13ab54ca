"""Agents that change in training what they are made of: which objects are one, sizes, kinds, what optimizers hold."""

from __future__ import annotations

import copy
import io
import random
import warnings
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from types import SimpleNamespace as Agent
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from drqv2.snapshot import file as snapshot
from drqv2.snapshot import state
from drqv2.snapshot.agent_weights import apply
from drqv2.snapshot.file import copied, not_finite


def through_a_file(agent: Any) -> Any:
    file = io.BytesIO()
    torch.save(copied(state.capture(agent)), file)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def trained(make: Callable[[], Any], train: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return an agent that was trained, and a new one that was resumed from its snapshot."""
    agent, new = make(), make()
    train(agent)
    return agent, state.restore(new, through_a_file(agent))


def two_nets() -> Agent:
    agent = Agent(net=nn.Linear(2, 2), heads=[nn.Linear(2, 2)])
    agent.target = agent.net  # a real one comes later
    agent.weight = agent.heads[0].weight.data
    agent.opt = torch.optim.Adam([*agent.net.parameters(), *agent.heads[0].parameters()], lr=0.1)
    return agent


def step(agent: Any) -> None:
    agent.opt.zero_grad()
    value = torch.ones(3, 2)
    loss = sum((net(value) ** 2).sum() for net in vars(agent).values() if isinstance(net, nn.Module))
    loss = loss + sum((net(value) ** 2).sum() for net in getattr(agent, "heads", ()))
    loss.backward()
    agent.opt.step()


def figures(agent: Any) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for name, network in [(k, v) for k, v in vars(agent).items() if isinstance(v, nn.Module)]:
        found |= {f"{name}.{key}": value.clone() for key, value in network.state_dict().items()}
    for i, network in enumerate(getattr(agent, "heads", ())):
        found |= {f"heads.{i}.{key}": value.clone() for key, value in network.state_dict().items()}
    return found


def part(agent: Agent) -> None:
    step(agent)
    agent.target = copy.deepcopy(agent.net)
    agent.weight = agent.weight.clone()
    step(agent)


def freeze_and_hold_the_head(agent: Agent) -> None:
    step(agent)
    agent.net.requires_grad_(False)
    agent.opt = torch.optim.Adam(agent.heads[0].parameters(), lr=0.1)
    step(agent)


def add_a_group(agent: Agent) -> None:
    agent.opt = torch.optim.Adam(agent.heads[0].parameters(), lr=0.1)
    step(agent)
    agent.opt.add_param_group({"params": list(agent.net.parameters()), "lr": 0.5})
    step(agent)


def replace_a_network(agent: Agent) -> None:
    step(agent)
    agent.heads[0] = nn.Linear(2, 2)
    agent.opt = torch.optim.Adam([*agent.heads[0].parameters(), *agent.net.parameters()], lr=0.1)  # in another order
    step(agent)


def replace_a_layer_that_the_optimizer_keeps(agent: Agent) -> None:
    step(agent)
    agent.heads[0] = nn.Linear(2, 2)  # which nobody trains
    step(agent)


def swap(agent: Agent) -> None:
    step(agent)
    agent.weight = agent.weight.clone()
    agent.target = agent.heads[0]
    agent.heads[0] = agent.net
    agent.opt = torch.optim.Adam(agent.heads[0].parameters(), lr=0.1)
    step(agent)


@pytest.mark.parametrize(
    "train",
    [part, freeze_and_hold_the_head, add_a_group, replace_a_network, swap, replace_a_layer_that_the_optimizer_keeps],
)
def test_what_networks_and_optimizers_share(train: Callable[[Any], None]) -> None:
    agent, new = trained(two_nets, train)
    for _ in range(3):
        assert figures(new).keys() == figures(agent).keys()
        for name, value in figures(agent).items():
            assert torch.equal(figures(new)[name], value), name
        assert torch.equal(new.weight, agent.weight)
        step(agent)
        step(new)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
        self.b.weight = self.a.weight


@pytest.mark.parametrize("tied_first", [True, False])
def test_tied_weights_that_part_or_join(tied_first: bool) -> None:
    def make() -> Agent:
        net = Tied()
        if not tied_first:
            net.b.weight = nn.Parameter(torch.zeros(2, 2))
        return Agent(net=net)

    def train(agent: Agent) -> None:
        agent.net.b.weight = nn.Parameter(torch.full((2, 2), 7.0)) if tied_first else agent.net.a.weight

    agent, new = trained(make, train)
    assert torch.equal(new.net.a.weight, agent.net.a.weight)
    assert torch.equal(new.net.b.weight, agent.net.b.weight)
    assert (new.net.b.weight is new.net.a.weight) is not tied_first


def test_generators_that_have_parted() -> None:
    def make() -> Agent:
        agent = Agent(g=torch.Generator().manual_seed(1), r=random.Random(1))
        agent.h, agent.s = agent.g, agent.r
        return agent

    def train(agent: Agent) -> None:
        agent.h, agent.s = torch.Generator().manual_seed(2), random.Random(2)

    agent, new = trained(make, train)
    for name in "gh":
        a, b = (torch.rand(2, generator=getattr(x, name)) for x in (agent, new))
        assert torch.equal(a, b)
    assert (agent.r.random(), agent.s.random()) == (new.r.random(), new.s.random())


def test_a_view_that_no_longer_learns_freezes_nothing() -> None:
    def make() -> Agent:
        net = nn.Linear(2, 2)
        return Agent(net=net, views=list(net.parameters()))

    def train(agent: Agent) -> None:
        agent.views = [parameter.detach() for parameter in agent.views]

    _, new = trained(make, train)
    assert new.net.weight.requires_grad
    assert not new.views[0].requires_grad
    assert new.views[0].data_ptr() == new.net.weight.data_ptr()


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in ("grown", "made", "gone"):
            for persistent in (True, False):
                value = None if name == "made" else torch.zeros(2)
                self.register_buffer(f"{name}_{persistent}", value, persistent=persistent)

    def change(self) -> None:
        for persistent in (True, False):
            setattr(self, f"grown_{persistent}", torch.arange(5.0))
            setattr(self, f"made_{persistent}", torch.ones(3, dtype=torch.int64))
            setattr(self, f"gone_{persistent}", None)


@pytest.mark.parametrize("root", [True, False])
def test_buffers_that_grow_come_and_go(root: bool) -> None:
    make: Callable[[], Any] = Buffers if root else lambda: Agent(net=Buffers())
    agent, new = trained(make, lambda agent: (agent if root else agent.net).change())
    old, got = (agent, new) if root else (agent.net, new.net)
    for name, value in old._buffers.items():
        there = got._buffers[name]
        assert there is None if value is None else torch.equal(there, value), name


def test_a_scripted_network() -> None:
    with warnings.catch_warnings(action="ignore"):  # torch.jit is on its way out

        def make() -> Agent:
            return Agent(net=torch.jit.script(nn.Linear(2, 2)))

        agent, new = trained(make, lambda agent: agent.net.weight.data.fill_(3))
    assert torch.equal(new.net.weight, agent.net.weight)


def test_a_networks_kind_of_number() -> None:
    _, new = trained(lambda: Agent(net=nn.Linear(2, 2)), lambda agent: agent.net.bfloat16())
    assert new.net.weight.dtype is torch.bfloat16


def test_what_hangs_on_torchs_own_layers() -> None:
    def train(agent: Agent) -> None:
        agent.net[0].usage, agent.net[0].history = torch.ones(3), [1, 2]

    _, new = trained(lambda: Agent(net=nn.Sequential(nn.Linear(2, 3))), train)
    assert torch.equal(new.net[0].usage, torch.ones(3))
    assert new.net[0].history == [1, 2]


def test_another_class_is_named() -> None:
    def train(agent: Agent) -> None:
        agent.net[0] = nn.Tanh()

    with pytest.warns(UserWarning, match=r"agent.net.0 was Tanh and is ReLU"):
        trained(lambda: Agent(net=nn.Sequential(nn.ReLU())), train)


class Settings(dict):
    __getattr__ = dict.__getitem__


def test_kinds_of_dictionaries() -> None:
    def make() -> Agent:
        return Agent(counts=defaultdict(Counter), late=None, ordered=None, settings=Settings(lr=1.0))

    def train(agent: Agent) -> None:
        agent.counts["a"]["x"] += 2
        agent.late, agent.ordered = Counter("aab"), OrderedDict(b=1, a=2)
        agent.settings["lr"] = 0.5

    _, new = trained(make, train)
    assert new.counts == {"a": Counter(x=2)}
    assert type(new.counts["a"]) is type(new.counts["b"]) is type(new.late) is Counter
    assert list(new.ordered) == ["b", "a"]
    assert type(new.ordered) is OrderedDict
    assert new.settings.lr == 0.5


def test_parameters_as_keys() -> None:
    def make() -> Agent:
        net = nn.Linear(2, 2)
        return Agent(net=net, means={p: p.detach().clone() for p in net.parameters()})

    def train(agent: Agent) -> None:
        agent.means[agent.net.weight] += 1

    agent, new = trained(make, train)
    assert torch.equal(new.means[new.net.weight], agent.means[agent.net.weight])


class Phases:
    def __init__(self) -> None:
        self.now: Callable[[], int] = self.one
        self.shape: torch.Size | None = None
        self.kinds: list[Any] = []

    def one(self) -> int:
        return 1

    def two(self) -> int:
        return 2


def test_methods_sizes_and_types() -> None:
    def train(agent: Phases) -> None:
        agent.now, agent.shape, agent.kinds = agent.two, torch.Size([2, 3]), [torch.bfloat16, torch.device("cpu")]

    agent, new = trained(Phases, train)
    assert new.now() == 2
    assert new.now.__self__ is new
    assert (new.shape, new.kinds) == (agent.shape, agent.kinds)
    assert type(new.shape) is torch.Size


def test_another_function_is_named() -> None:
    def train(agent: Agent) -> None:
        agent.f = max

    with pytest.warns(UserWarning, match=r"agent.f was max and is min"):
        trained(lambda: Agent(f=min), train)


def test_the_order_in_memory() -> None:
    def train(agent: Agent) -> None:
        agent.x, agent.y = torch.randn(30, 20).t(), np.asfortranarray(np.random.default_rng(1).normal(size=(20, 30)))
        agent.z = agent.y.reshape(4, 5, 30).transpose(2, 0, 1).copy(order="K")

    agent, new = trained(lambda: Agent(x=torch.zeros(20, 30), y=np.zeros((20, 30)), z=None), train)
    assert new.x.stride() == agent.x.stride()
    assert new.y.strides == agent.y.strides
    np.testing.assert_array_equal(new.y, agent.y)
    np.testing.assert_array_equal(new.z, agent.z)
    assert np.argsort(new.z.strides).tolist() == np.argsort(agent.z.strides).tolist()


@pytest.mark.parametrize("kept", ["list", "dict", "module"])
def test_milestones_hold_networks_wherever_they_are(kept: str) -> None:
    def make() -> Any:
        nets = [nn.Linear(2, 2), nn.Linear(2, 2)]
        if kept == "module":
            agent = nn.Module()
            agent.actor, agent.nets, agent.steps = nn.Linear(2, 2), nets, 0  # type: ignore[assignment]
            return agent
        return Agent(actor=nn.Linear(2, 2), nets=nets if kept == "list" else dict(enumerate(nets)), steps=0)

    agent, new = make(), make()
    agent.steps = 5
    weights = state.weights(through_a_file(agent))
    state.restore(new, weights, weights_only=True)
    for i in range(2):
        assert torch.equal(new.nets[i].weight, agent.nets[i].weight)
    assert torch.equal(new.actor.weight, agent.actor.weight)
    assert new.steps == 0
    assert {"actor.weight", "nets.0.weight", "nets.1.bias"} <= state.parameters(weights).keys()


def test_what_follows_the_machine_are_words_not_figures() -> None:
    agent = Agent(precision=7.5, device="cuda:3")
    apply(agent, {"precision": 1.0, "device": "cpu"}, {})
    assert vars(agent) == {"precision": 7.5, "device": "cpu"}


def test_a_changed_learning_rate_reaches_all_optimizers() -> None:
    def adam() -> torch.optim.Adam:
        return torch.optim.Adam([torch.zeros(1, requires_grad=True)], lr=0.1)

    agent = Agent(opts={"a": adam(), "b": [adam()]}, opt=adam())
    apply(agent, {}, {"agent.lr": 0.5})
    assert {o.param_groups[0]["lr"] for o in (agent.opt, agent.opts["a"], agent.opts["b"][0])} == {0.5}


class Extra(nn.Linear):
    steps = 0

    def get_extra_state(self) -> Any:
        return {"steps": self.steps}

    def set_extra_state(self, extra: Any) -> None:
        self.steps = extra["steps"]


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(2, 2)
        self.opt = torch.optim.Adam(self.net.parameters())

    def state_dict(self, **_: Any) -> dict[str, Any]:  # type: ignore[override]
        return {"net": self.net.state_dict(), "opt": self.opt.state_dict()}

    def load_state_dict(self, saved: dict[str, Any], **_: Any) -> None:  # type: ignore[override]
        self.net.load_state_dict(saved["net"])
        self.opt.load_state_dict(saved["opt"])


def test_states_of_their_own() -> None:
    def train(agent: Agent) -> None:
        agent.extra.steps = 3
        nn.init.ones_(agent.own.net.weight)

    _, new = trained(lambda: Agent(extra=Extra(2, 2), own=Own()), train)
    assert new.extra.steps == 3
    assert torch.equal(new.own.net.weight, torch.ones(2, 2))
    _, root = trained(Own, lambda agent: agent.net.weight.data.fill_(1))
    assert torch.equal(root.net.weight, torch.ones(2, 2))


class Mine(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1 << 3000, "a huge int"),
        (torch.empty(2, device="meta"), "a tensor without values"),
        (random.SystemRandom(), "a SystemRandom"),
        (np.ma.masked_array([1.0], [True]), "a MaskedArray"),
        (np.zeros(2, ">f4"), "numpy's >f4"),
        ({torch.zeros(1), len}, "a set of what cannot be saved"),
        (nn.LazyLinear(2), None),
        (torch.eye(3).to_sparse(), None),
        (torch.zeros(2).as_subclass(Mine), None),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_odd_values_cost_no_snapshot(value: Any, said: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saved = through_a_file(Agent(x=value, after=3))
    assert not said or f"agent.x is not saved in the snapshot: {said}" in str(caught[0].message)
    assert not_finite(saved, "agent") is None
    new = state.restore(Agent(x=nn.LazyLinear(2) if isinstance(value, nn.Module) else None, after=0), saved)
    assert new.after == 3


@pytest.mark.parametrize("there", [False, 0, []])
def test_a_placeholder_is_no_optimizer(there: Any) -> None:
    agent = Agent(net=nn.Linear(2, 2), opt=None)
    agent.opt = torch.optim.Adam(agent.net.parameters())
    with pytest.warns(UserWarning, match="agent.opt is not restored"):
        state.restore(Agent(net=nn.Linear(2, 2), opt=there), through_a_file(agent))


def test_an_optimizer_of_another_kind_is_refused() -> None:
    agent = Agent(net=nn.Linear(2, 2))
    agent.opt = torch.optim.SGD(agent.net.parameters(), lr=1.0)
    new = Agent(net=nn.Linear(2, 2))
    new.opt = torch.optim.Adam(new.net.parameters())
    with pytest.raises(RuntimeError, match=r"agent.opt is Adam, in the snapshot SGD"):
        state.restore(new, through_a_file(agent))


def test_masks_may_be_infinite_and_nothing_learnt_may() -> None:
    masked = nn.Linear(2, 2)
    masked.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    masked.register_buffer("large", torch.tensor([1e39], dtype=torch.float64))
    assert not_finite(state.capture(Agent(net=masked)), "agent") is None
    masked.mask[0, 0] = torch.nan  # type: ignore[operator]
    assert not_finite(state.capture(Agent(net=masked)), "agent") == "agent.net.mask"
    agent = nn.Module()
    agent.nets = [nn.Linear(2, 2)]  # type: ignore[assignment]
    agent.nets[0].bias.data[1] = torch.inf  # type: ignore[index,union-attr]
    assert snapshot.not_finite(state.capture(agent), "agent") == "agent.nets[0].bias"
