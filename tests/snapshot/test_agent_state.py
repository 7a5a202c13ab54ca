"""What a snapshot keeps of an agent: in, through torch.save and the restricted torch.load, and out again in place."""

from __future__ import annotations

import io
import random
import re
import warnings
from collections import OrderedDict, defaultdict, deque
from functools import partial
from types import SimpleNamespace as Agent
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from drqv2 import utils
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.snapshot import state
from drqv2.snapshot.file import copied


def through_a_file(agent: Any) -> Any:
    file = io.BytesIO()
    torch.save(copied(state.capture(agent)), file)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def pass_on(old: Any, new: Any) -> Any:
    """Return the attribute `x` of a new agent, which had `new` there, after it got the state of one with `old`."""
    agent = Agent(x=new)
    assert state.restore(agent, through_a_file(Agent(x=old))) is agent
    return agent.x


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    elif isinstance(a, np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_array_equal(a, b)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple | deque):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


# --- values ----------------------------------------------------------------------------------------------------


def kind(value: Any) -> str:
    """Return a test's name that is the same in every process, unlike the repr of an object or of a set."""
    return type(value).__name__


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 7, -(2**80), 0.1, float("inf"), "word", torch.tensor(3.5), torch.arange(6).reshape(2, 3)),
        *(np.float64(0.1), np.float32(0.1), np.int64(3), np.bool_(True), np.uint8(255)),
        *(np.zeros(3, np.float64), np.array(2.5, np.float32), np.array([True, False]), np.ones((2, 0), np.int8)),
        *(np.arange(12).reshape(3, 4)[::-1, ::2], np.asfortranarray(np.eye(2)), np.array([1, 2], np.uint32)),
        *([1, "a", None], (1, (2.0, [3])), {1, 2, 3}, {"a", "b"}, deque([1, 2, 3], maxlen=4), [], {}, ()),
        {"a": {"b": [torch.ones(2), np.zeros(2)]}, 3: "c", (1, 2): np.float64(1.0), None: True},
        [deque([np.float32(2.0)], maxlen=2), {"x": (torch.tensor(1), 2)}],
    ],
    ids=kind,
)
@pytest.mark.parametrize("new", [None, "alike"])
def test_round_trip(value: Any, new: Any) -> None:
    got = pass_on(value, value if new == "alike" else None)
    assert_same(got, value)
    if isinstance(value, deque):
        assert got.maxlen == value.maxlen


def test_read_only_arrays_warn_of_nothing() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    assert_same(pass_on(array, None), np.arange(3))


def test_a_dict_stays_of_its_kind() -> None:
    got = pass_on(defaultdict(list, a=[1]), defaultdict(list))
    assert type(got) is defaultdict
    assert got["b"] == []
    got = pass_on(OrderedDict(b=1, a=2), OrderedDict(a=0))
    assert list(got.items()) == [("b", 1), ("a", 2)]


def test_keys_that_went_are_gone_and_others_are_kept() -> None:
    assert pass_on({"a": 1}, {"a": 0, "b": 0}) == {"a": 1}
    agent = Agent(x=0, new_since="kept")
    state.restore(agent, through_a_file(Agent(x=1, gone="comes back")))
    assert vars(agent) == {"x": 1, "new_since": "kept", "gone": "comes back"}


def test_generators_go_on() -> None:
    old, new = torch.Generator().manual_seed(3), torch.Generator()
    torch.rand(5, generator=old)
    got = pass_on(old, new)
    assert got is new
    assert torch.equal(torch.rand(4, generator=old), torch.rand(4, generator=got))


# --- in place --------------------------------------------------------------------------------------------------


def test_a_learnable_tensor_stays_the_optimizers() -> None:
    def make(value: float) -> Agent:
        log_alpha = torch.tensor(value, requires_grad=True)
        return Agent(log_alpha=log_alpha, several=[torch.full((2,), value, requires_grad=True)], opt=None)

    def learn(agent: Agent) -> None:
        agent.opt = agent.opt or torch.optim.Adam([agent.log_alpha, *agent.several], lr=0.1)
        agent.opt.zero_grad()
        (agent.log_alpha**2 + sum((t**2).sum() for t in agent.several)).backward()
        agent.opt.step()

    old, new = make(1.0), make(5.0)
    for agent in (old, old, new):
        learn(agent)
    log_alpha, several = new.log_alpha, new.several[0]
    state.restore(new, through_a_file(old))
    assert new.log_alpha is log_alpha
    assert new.several[0] is several
    assert new.log_alpha.requires_grad
    for agent in (old, new):
        learn(agent)
    assert_same([new.log_alpha.detach(), new.several[0].detach()], [old.log_alpha.detach(), old.several[0].detach()])


def drqv2_agent(seed: int | None = 1, **overrides: Any) -> DrQV2Agent:
    torch.manual_seed(0 if seed is None else seed)
    kwargs = {
        **{"obs_shape": (3, 24, 24), "action_shape": (2,), "device": "cpu", "lr": 1e-3, "feature_dim": 5},
        **{"hidden_dim": 8, "critic_target_tau": 0.1, "num_expl_steps": 0, "update_every_steps": 1},
        **{"stddev_schedule": "linear(1.0,0.1,10)", "stddev_clip": 0.3, "use_tb": True, "seed": seed},
    }
    return DrQV2Agent(**{**kwargs, **overrides})


def batches(seed: int) -> Any:
    rng = torch.Generator().manual_seed(seed)
    while True:
        obs, next_obs = torch.randint(0, 256, (2, 4, 3, 24, 24), dtype=torch.uint8, generator=rng)
        action, reward = torch.rand(4, 2, generator=rng) * 2 - 1, torch.rand(4, 1, generator=rng)
        yield obs, action, reward, torch.full((4, 1), 0.97), next_obs


def test_drqv2_goes_on_to_the_same_bits() -> None:
    old, new = drqv2_agent(), drqv2_agent(seed=2)
    data = batches(0)
    for step in range(3):
        old.update(data, step)
    parameters = list(new.encoder.parameters())
    state.restore(new, through_a_file(old))
    assert all(a is b for a, b in zip(parameters, new.encoder.parameters(), strict=True))
    assert all(a is b for a, b in zip(parameters, new.encoder_opt.param_groups[0]["params"], strict=True))
    obs = next(data)[0][0].numpy()
    results = []
    for agent in (old, new):
        data = batches(7)
        metrics = [agent.update(data, step) for step in range(3, 6)]
        results.append([metrics, agent.act(obs, 6, eval_mode=False), agent.act(obs, 6, eval_mode=True)])
    assert_same(results[0], results[1])
    assert_same(dict(old.critic_target.state_dict()), dict(new.critic_target.state_dict()))


def test_modules_keep_their_own_attributes() -> None:
    class Norm(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("mean", torch.full((2,), value))
            self.count = int(value)
            self.history = [value, np.float64(value)]
            self.plain = torch.full((2,), value)
            self.opt = torch.optim.SGD(self.layer.parameters(), lr=value, momentum=0.9)

    old = Norm(3.0)
    for wrap in (nn.Sequential, lambda norm: norm):  # modules in modules, and an agent that is a module itself
        new = Norm(4.0)
        state.restore(wrap(new), through_a_file(wrap(old)))
        assert (new.count, new.history) == (3, [3.0, 3.0])
        assert torch.equal(new.plain, old.plain)
        assert torch.equal(new.get_buffer("mean"), old.get_buffer("mean"))
        assert torch.equal(new.layer.weight, old.layer.weight)
        assert new.opt.param_groups[0]["lr"] == 3.0
        assert new.opt.param_groups[0]["params"][0] is new.layer.weight


def test_a_compiled_network_is_saved_without_a_word() -> None:
    nets: list[Any] = [torch.compile(nn.Linear(2, 2), backend="eager") for _ in range(2)]
    assert pass_on(nets[0], nets[1]) is nets[1]
    assert_same(dict(nets[0].state_dict()), dict(nets[1].state_dict()))


def test_one_tensor_in_several_places_may_have_parted() -> None:
    got = pass_on([torch.zeros(2), torch.ones(2), torch.full((2,), 2.0)], [torch.zeros(2)] * 3)
    assert [t[0].item() for t in got] == [0.0, 1.0, 2.0]


def test_a_tensor_may_have_grown() -> None:
    assert_same(pass_on(torch.ones(3), torch.zeros(2)), torch.ones(3))


def test_a_tensor_may_be_of_another_kind() -> None:
    assert_same(pass_on(torch.tensor(0.7), torch.tensor(0)), torch.tensor(0.7))
    assert_same(pass_on(np.array([0.7]), np.array([0])), np.array([0.7]))
    with pytest.raises(RuntimeError, match=r"agent.x is torch.float32, the snapshot's torch.float64"):
        pass_on(torch.tensor(1.0, dtype=torch.float64), torch.tensor(0.0, requires_grad=True))


@pytest.mark.parametrize("new", [torch.tensor(2.0).expand(3), torch.zeros(3), None], ids=["expanded", "dense", "none"])
def test_an_expanded_tensor(new: Any) -> None:
    assert_same(pass_on(torch.tensor(-1.0).expand(3), new), torch.full((3,), -1.0))
    assert_same(pass_on(torch.arange(3.0), torch.tensor(2.0).expand(3)), torch.arange(3.0))


# --- sharing ---------------------------------------------------------------------------------------------------


def resumed(old: Any, new: Any) -> Any:
    state.restore(new, through_a_file(old))
    return new


def test_views_may_have_parted() -> None:
    def make() -> Agent:
        x, a = torch.zeros(3), np.zeros(3)
        return Agent(x=x, y=x.detach(), row=x[1:], net=nn.Linear(2, 2), a=a, b=a[:2])

    old, new = make(), make()
    new.weight = new.net.weight.detach()
    old.x, old.y, old.row, old.weight = torch.ones(3), torch.full((3,), 2.0), torch.full((2,), 3.0), torch.zeros(2, 2)
    old.a, old.b = np.ones(3), np.full(2, 2.0)
    resumed(old, new)
    assert (new.x.tolist(), new.y.tolist(), new.row.tolist()) == ([1.0] * 3, [2.0] * 3, [3.0] * 2)
    assert (new.a.tolist(), new.b.tolist()) == ([1.0] * 3, [2.0] * 2)
    assert torch.equal(new.net.weight, old.net.weight)
    assert not new.weight.any()


@pytest.mark.parametrize("there", [True, False])
def test_an_object_in_several_places_stays_one(there: bool) -> None:
    def make(several: bool = True) -> Agent:
        agent = Agent(seen=None, log_alpha=torch.tensor(np.random.rand(), requires_grad=True), net=nn.Linear(2, 2))
        agent.opt = torch.optim.Adam([agent.log_alpha, *agent.net.parameters()], lr=0.1)
        agent.all = agent.params = agent.table = agent.alias = agent.arrays = None
        if several:
            agent.seen = [agent.log_alpha]
            agent.all = [*agent.net.parameters(), agent.log_alpha]
            agent.params = list(agent.net.parameters())
            agent.table = {"a": [1]}
            agent.alias = (agent.table, [agent.table["a"], deque([1])])
            agent.arrays = [np.zeros(2)] * 2
        return agent

    def learn(agent: Agent) -> None:
        agent.opt.zero_grad()
        (agent.net(torch.ones(1, 2)).sum() * 5 + agent.log_alpha**2).backward()
        nn.utils.clip_grad_norm_(agent.all, 0.5)
        agent.opt.step()

    old, new = make(), make(there)
    log_alpha, weight = new.log_alpha, new.net.weight
    learn(old)
    resumed(old, new)
    assert new.log_alpha is log_alpha is new.seen[0] is new.all[-1] is new.opt.param_groups[0]["params"][0]
    assert new.net.weight is weight is new.all[0] is new.params[0]
    assert new.table is new.alias[0]
    assert new.table["a"] is new.alias[1][0]
    assert new.arrays[0] is new.arrays[1]
    for agent in (old, new):
        learn(agent)
    assert_same([p.detach() for p in old.all], [p.detach() for p in new.all])


def test_memory_that_is_shared_stays_so() -> None:
    def make() -> Agent:
        x, a, net = torch.rand(2, 3), np.random.rand(4), nn.Linear(2, 2)
        views = {"y": x.detach(), "row": x[1, 1:], "t": x.t(), "view": torch.from_numpy(a), "part": a[1:]}
        return Agent(row_before=x[0], x=x, a=a, net=net, weight=net.weight.detach()[0], **views)

    old, new = make(), make()
    before = dict(vars(new))
    resumed(old, new)
    assert all(value is before[name] for name, value in vars(new).items())
    for agent in (old, new):
        agent.x += torch.arange(6.0).reshape(2, 3)
        agent.a += 1
        with torch.no_grad():
            agent.net.weight += 1
    for name in vars(new).keys() - {"net"}:
        assert_same(getattr(new, name), getattr(old, name))


def test_a_view_that_has_moved_is_named_and_fills_nothing_else() -> None:
    def make(at: int) -> Agent:
        x, square = torch.rand(5), torch.rand(2, 2)
        return Agent(x=x, part=x[at : at + 2], square=square, turned=square.t() if at else square.detach())

    old, new = make(1), make(0)
    with pytest.warns(UserWarning, match=r"agent.(part|turned) no longer shares memory") as caught:
        resumed(old, new)
    assert len(caught) == 2
    for name in vars(old):
        assert_same(getattr(new, name), getattr(old, name))


def test_the_same_state_of_two_agents_is_saved_alike() -> None:
    def make() -> Any:
        xs = [torch.ones(n) for n in (1000, 10, 100)]
        return Agent(xs=xs, views=[x[1:] for x in xs], again=xs[::-1], net=nn.Linear(2, 2))

    kept = []
    for _ in range(3):
        kept.append([{**s, "value": None} for s in through_a_file(make())["value"]["views"]["value"]])
    assert kept[0] == kept[1] == kept[2]


def test_an_optimizers_tensor_stays_in_place_though_a_view_has_parted() -> None:
    log_alpha = torch.tensor(1.0, requires_grad=True)
    new = Agent(alpha=log_alpha.detach(), log_alpha=log_alpha)
    resumed(Agent(alpha=torch.tensor(2.0), log_alpha=torch.tensor(3.0, requires_grad=True)), new)
    assert new.log_alpha is log_alpha
    assert (new.alpha.item(), log_alpha.item()) == (2.0, 3.0)


def test_arrays_stay_in_place() -> None:
    array = np.zeros(3)
    view = torch.from_numpy(array)
    assert pass_on(np.ones(3), array) is array
    assert view.tolist() == [1.0] * 3
    array.flags.writeable = False
    assert pass_on(np.zeros(3), array) is not array
    assert_same(pass_on(np.arange(3.0), np.zeros(3)[::-1]), np.arange(3.0))


def test_whether_a_tensor_learns() -> None:
    leaf = torch.ones(2, requires_grad=True)
    old = Agent(made_since=leaf, frozen=torch.ones(2), thawed=leaf.detach().clone().requires_grad_(), loss=leaf.sum())
    new = Agent(made_since=None, frozen=torch.ones(2, requires_grad=True), thawed=torch.ones(2), loss=None)
    resumed(old, new)
    got = [value.requires_grad for value in vars(new).values()]
    assert got == [True, False, True, False]


def test_modules_keep_what_is_frozen_their_modes_and_settings() -> None:
    def make() -> Any:
        return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(0.1), nn.BatchNorm1d(2)))

    old, new = make(), make()
    old[0].bias.requires_grad_(False)
    new[0].weight.requires_grad_(False)
    old[1][1].eval()
    new[0].eval()
    old[1][0].p, old[1][1].momentum = 0.4, None
    assert pass_on(old, new) is new
    assert [p.requires_grad for p in new.parameters()] == [p.requires_grad for p in old.parameters()]
    assert [m.training for m in new.modules()] == [m.training for m in old.modules()]
    assert (new[1][0].p, new[1][1].momentum) == (0.4, None)


def test_what_has_a_state_dict_is_asked_for_it() -> None:
    class Counter:
        def __init__(self, count: int) -> None:
            self.count, self.unsaved = count, object()

        def state_dict(self) -> dict[str, Any]:
            return {"count": np.float64(self.count), "more": [torch.ones(2), (1, 2)]}

        def load_state_dict(self, loaded: dict[str, Any]) -> None:
            assert_same(loaded, self.state_dict() | {"count": loaded["count"]})
            self.count = int(loaded["count"])

    assert pass_on(Counter(3), Counter(0)).count == 3
    agent = Counter(0)  # an agent, too
    state.restore(agent, through_a_file(Counter(4)))
    assert agent.count == 4
    state.restore(agent, through_a_file(Counter(5)), weights_only=True)
    assert agent.count == 5


# --- what is not saved, and what does not fit ------------------------------------------------------------------


class Other:
    pass


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (Other(), "agent.x is not saved in the snapshot: a Other"),
        (partial(utils.schedule, "0.1"), "agent.x is not saved in the snapshot: a partial"),
        (np.array([object()]), "agent.x is not saved in the snapshot: numpy's object"),
        (np.array(["text"]), "agent.x is not saved in the snapshot: numpy's <U4"),
        (np.datetime64("2021-07-20"), "agent.x is not saved in the snapshot: numpy's datetime64"),
        ([1, Other()], "agent.x[1] is not saved"),
        ({"a": [Other()]}, "agent.x['a'][0] is not saved"),
        ({Other(): 1}, "agent.x is not saved in the snapshot: its keys"),
        ({1, frozenset([2])}, "is not saved in the snapshot: a frozenset"),
        (nn.ModuleDict({"a": nn.ModuleList([nn.Identity()])}), None),
    ],
    ids=kind,
)
def test_what_is_left_out_is_named_and_stays_as_it_is(value: Any, name: str | None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        saved = through_a_file(Agent(x=value, after=3))
    assert any(name in str(w.message) for w in caught) if name else not caught
    agent = Agent(x=value, after=0)
    state.restore(agent, saved)
    assert agent.after == 3
    assert str(agent.x) == str(value)


def test_configuration_and_code_are_left_out_in_silence() -> None:
    values = [torch.device("cpu"), torch.float32, torch.Size([2]), nn.Linear, np, len, through_a_file, str.upper]
    agent = Agent(**{f"x{i}": value for i, value in enumerate(values[:-1])}, functions={"f": len}, method="a".upper)
    before = dict(vars(agent))
    state.restore(agent, through_a_file(agent))
    assert vars(agent) == before


def test_circles_are_left_out() -> None:
    agent = Agent(x=[1])
    agent.x.append(agent.x)
    agent.me = agent
    with pytest.warns(UserWarning, match="refers back") as caught:
        saved = through_a_file(agent)
    assert sorted(re.findall(r"agent\S*", " ".join(str(w.message) for w in caught))) == ["agent.me", "agent.x[1]"]
    state.restore(agent, saved)
    assert agent.x[0] == 1
    assert agent.me is agent


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (nn.Linear(2, 3), nn.Linear(2, 2), "size mismatch"),
        (torch.zeros(2), torch.zeros(3, requires_grad=True), r"agent.x has shape \[3\], the snapshot's \[2\]"),
        (
            torch.optim.Adam([torch.zeros(2, requires_grad=True)]),
            torch.optim.Adam([torch.zeros(2, requires_grad=True) for _ in range(2)]),
            "agent.x: not all of the 1 tensors",
        ),
    ],
    ids=["network", "tensor", "optimizer"],
)
def test_what_does_not_fit_is_refused(old: Any, new: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        pass_on(old, new)


def test_what_the_new_agent_has_not_made_is_named() -> None:
    for old in (nn.Linear(2, 2), torch.optim.Adam([torch.zeros(2, requires_grad=True)])):
        with pytest.warns(UserWarning, match="agent.x is not restored"):
            assert pass_on(old, None) is None


# --- weights alone ---------------------------------------------------------------------------------------------


def test_weights_alone() -> None:
    old, new = drqv2_agent(), drqv2_agent(seed=2, num_expl_steps=9)
    data = batches(0)
    for agent in (old, old, new):
        agent.update(data, 0)
    old.critic_target_tau = 0.5
    kept = through_a_file(new)["value"]
    state.restore(new, through_a_file(old), weights_only=True)
    got, given = through_a_file(new)["value"], through_a_file(old)["value"]
    for name in ("encoder", "actor", "critic", "critic_target"):
        assert_same(got[name]["value"], given[name]["value"])
    for name in kept.keys() - {"encoder", "actor", "critic", "critic_target"}:
        assert_same(got[name], kept[name])


def test_weights_alone_in_containers_and_modules() -> None:
    def make() -> Agent:
        return Agent(nets=[nn.Linear(2, 2), {"a": nn.Linear(1, 1)}], log_alpha=torch.rand(1), n=np.random.rand())

    old, new = make(), make()
    nets, n, log_alpha = new.nets, new.n, new.log_alpha.clone()
    state.restore(new, through_a_file(old), weights_only=True)
    assert new.nets is nets
    assert torch.equal(nets[1]["a"].weight, old.nets[1]["a"].weight)
    assert new.n == n
    assert torch.equal(new.log_alpha, log_alpha)


def test_weights_alone_of_another_agent() -> None:
    agent = Agent(net=None, encoder=nn.Linear(2, 2))
    saved = through_a_file(Agent(net=nn.Linear(2, 2), encoder=nn.Linear(2, 2)))
    with pytest.warns(UserWarning, match=r"agent.net is not restored"):
        state.restore(agent, saved, weights_only=True)
    with pytest.raises(RuntimeError, match="no network of the snapshot"):
        state.restore(Agent(other=nn.Linear(2, 2)), saved, weights_only=True)


# --- the global generators -------------------------------------------------------------------------------------


def draw() -> list[Any]:
    return [torch.rand(3), np.random.rand(), np.random.randn(), random.random(), random.gauss(0, 1)]


def test_global_generators() -> None:
    utils.set_seed_everywhere(5)
    draw()  # an odd number of normal draws leaves one half of a pair behind
    file = io.BytesIO()
    torch.save(state.rng_state(), file)
    expected = [draw(), draw()]
    file.seek(0)
    state.set_rng_state(torch.load(file, weights_only=True))
    assert_same([draw(), draw()], expected)


@pytest.mark.parametrize(
    "make", [np.random.default_rng, lambda seed: np.random.Generator(np.random.MT19937(seed)), np.random.RandomState]
)
@pytest.mark.parametrize("there", [True, False])
def test_generators_of_numpy_go_on(make: Any, there: bool) -> None:
    if make is np.random.RandomState and not there:
        pytest.skip("a new agent has one of its own")
    old = make(1)
    old.normal(size=3)
    restored = pass_on(old, make(2) if there else None)
    assert restored.normal(size=5).tolist() == old.normal(size=5).tolist()


def test_a_generator_of_python_goes_on() -> None:
    old = random.Random(1)
    old.gauss(0, 1)
    assert pass_on(old, random.Random(2)).gauss(0, 1) == old.gauss(0, 1)


def test_buffers_that_a_state_dict_leaves_out() -> None:
    def net(value: float) -> nn.Module:
        module = nn.Sequential(nn.Linear(1, 1))
        module[0].register_buffer("running", torch.tensor(value), persistent=False)
        return module

    assert pass_on(net(5.0), net(0.0))[0].running == 5.0
