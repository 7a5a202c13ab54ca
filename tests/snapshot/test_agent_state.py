"""What a snapshot keeps of an agent: out, through torch.save and the restricted torch.load, and in again in place."""

from __future__ import annotations

import enum
import functools
import io
import random
import re
import warnings
from collections import Counter, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from drqv2 import utils
from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.snapshot import agent_state, rng
from drqv2.snapshot.agent_weights import not_finite, restore_weights, weights
from drqv2.snapshot.file import copied
from tests.toy_agent import ToyAgent as Agent


def through_a_file(agent: Any) -> Any:
    file = io.BytesIO()
    torch.save(copied(agent_state.capture(agent)), file)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def unsaved(agent: Any) -> list[str]:
    walk = agent_state._Capture()
    walk.walk(agent, "agent")
    return walk.unsaved


def resumed(old: Any, new: Any) -> Any:
    agent_state.restore(new, through_a_file(old))
    return new


def trained(make: Callable[[], Any], train: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return an agent that was trained, and a new one that was resumed from its snapshot."""
    agent = make()
    train(agent)
    return agent, resumed(agent, make())


def pass_on(old: Any, new: Any) -> Any:
    """Return the attribute `x` of a new agent, which had `new` there, after it got the state of one with `old`."""
    return resumed(Agent(x=old), Agent(x=new)).x


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor | np.ndarray):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert bool((a == b).all())
    elif isinstance(a, dict):
        assert_same(list(a), list(b))
        assert_same(list(a.values()), list(b.values()))
    elif isinstance(a, list | tuple | deque):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, RMS):
        assert_same(vars(a), vars(b))
    else:
        assert a == b


# --- plain values and containers -------------------------------------------------------------------------------

Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 7, -(2**80), 0.1, float("inf"), 1j, "word", b"raw", torch.tensor(3.5), torch.ones(2, 3)),
        *(np.float64(0.1), np.float32(0.1), np.int64(3), np.bool_(True), torch.Size([2]), torch.bfloat16),
        *(np.zeros(3, np.float64), np.array(2.5, np.float32), np.ones((2, 0), np.int8), np.array([1], np.uint32)),
        *(np.arange(12).reshape(3, 4)[::-1, ::2], np.asfortranarray(np.eye(2)), torch.arange(6).reshape(2, 3).t()),
        *([1, "a", None], (1, (2.0, [3])), {1, 2, 3}, {"a", "b"}, deque([1, 2, 3], maxlen=4), [], {}, ()),
        {"a": {"b": [torch.ones(2), np.zeros(2)]}, 3: "c", (1, 2): np.float64(1.0), None: True},
        [deque([np.float32(2.0)], maxlen=2), {"x": (torch.tensor(1), 2)}],
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("new", ["nothing", "alike"])
def test_round_trip(value: Any, new: str) -> None:
    got = pass_on(value, value if new == "alike" else None)
    assert_same(got, value)
    if isinstance(value, deque):
        assert got.maxlen == value.maxlen
    if isinstance(value, np.ndarray) and value.flags.f_contiguous:
        assert got.flags.f_contiguous


KEYS = st.one_of(st.integers(), st.text(max_size=3), st.booleans(), st.tuples(st.integers(), st.text(max_size=2)))
LEAVES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5)),
    st.lists(st.integers(-5, 5), max_size=3).map(torch.tensor),
    st.lists(st.floats(-1, 1), max_size=3).map(np.array),
    st.frozensets(KEYS, max_size=3).map(set),
)
NESTS = st.recursive(
    LEAVES,
    lambda inside: st.one_of(
        *(st.lists(inside, max_size=3).map(kind) for kind in (list, tuple, deque)),
        st.dictionaries(KEYS, inside, max_size=3),
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(old=NESTS, new=NESTS)
def test_round_trip_of_nests_into_other_nests(old: Any, new: Any) -> None:
    assert_same(pass_on(old, new), old)
    assert unsaved(Agent(x=old)) == []


def test_containers_of_their_own_kinds() -> None:
    got = pass_on(defaultdict(Counter, a=Counter("xx")), defaultdict(Counter))
    assert got == {"a": Counter("xx")}
    assert type(got["a"]) is type(got["b"]) is Counter
    point = pass_on(Point(1, torch.ones(2)), Point(0, None))
    assert type(point) is Point
    assert_same(point.y, torch.ones(2))


def test_attributes_that_came_and_went() -> None:
    agent = resumed(Agent(x={"a": 1}, gone=None), Agent(x={"a": 0, "b": 0}, new_since="kept"))
    assert vars(agent) == {"x": {"a": 1}, "new_since": "kept", "gone": None}


# --- plain objects ---------------------------------------------------------------------------------------------


class RMS:
    """The usual helper of an agent: running statistics, here with helpers of its own."""

    def __init__(self, depth: int = 2) -> None:
        self.mean, self.var, self.count = np.zeros(2), torch.ones(2), 1e-4
        self.parts: list[Any] = [RMS(depth - 1), {"a": (RMS(depth - 1),)}] if depth else []

    def learn(self) -> None:
        self.mean, self.var, self.count = self.mean + 1.5, self.var * 2, self.count + 1
        for part in [self.parts[0], self.parts[1]["a"][0]] if self.parts else []:
            part.learn()
            part.learn()


def test_helpers_at_any_depth_resume_in_place() -> None:
    old, new = Agent(rms=RMS()), Agent(rms=RMS())
    rms, part = new.rms, new.rms.parts[1]["a"][0]
    old.rms.learn()
    resumed(old, new)
    assert new.rms is rms
    assert rms.parts[1]["a"][0] is part
    assert_same(new.rms, old.rms)
    assert part.parts[0].count > 4


def test_one_object_in_two_places_is_one_again() -> None:
    def make(shared: bool) -> Agent:
        rms, table = RMS(0), {"a": [1]}
        agent = Agent(rms=rms, again=[rms] if shared else [], table=table, alias=None, me=None)
        if shared:
            agent.alias, agent.me = (table, [table["a"]]), agent
        return agent

    for shared in (True, False):
        new = resumed(make(True), make(shared))
        assert new.again[0] is new.rms
        assert new.table is new.alias[0]
        assert new.table["a"] is new.alias[1][0]
        assert new.me is new if shared else new.me is not None


def test_a_helper_that_the_new_agent_lacks_is_named() -> None:
    nets = [nn.Linear(2, 2)]
    old = Agent(rms=RMS(), nets=nets, opt=torch.optim.Adam(nets[0].parameters()), modes=[Mode.A, 1], x=2)
    with pytest.warns(
        UserWarning, match=r"no counterpart: agent\.rms, agent\.nets\.0, agent\.opt, agent\.modes\.0$"
    ) as caught:
        new = resumed(old, Agent(rms=None, nets=[], opt=False, modes=[], x=1))
    assert len(caught) == 1
    assert new.x == 2
    assert new.opt is False


# --- constants, and the warning --------------------------------------------------------------------------------


class Mode(enum.Enum):
    A = 1


@dataclass(frozen=True)
class Settings:
    width: int
    mode: Mode = Mode.A


def test_constants_of_the_code_are_cause_no_warning() -> None:
    @functools.lru_cache
    def cached(x: int) -> int:
        return x

    constants = [Mode.A, RMS, cached, functools.partial(max, 1), np, np.exp, str.upper, "a".upper, torch.relu]
    constants += [re.compile("a"), Path("x"), slice(1), range(3), np.dtype("i4"), torch.compile(lambda x: x)]
    constants.append(nn.Linear(1, 1).register_forward_hook(print))

    def make() -> Agent:
        agent = Agent(settings=Settings(3), modes=[Mode.A, 1], table={Mode.A: len}, functions={len, max})
        vars(agent).update({f"x{i}": value for i, value in enumerate(constants)})
        return agent

    agent = make()
    before = {**vars(agent), "modes": list(agent.modes)}
    with warnings.catch_warnings(action="error"):
        agent_state.capture(agent, warn=True)
        resumed(make(), agent)
    assert vars(agent) == before


def test_graphs_are_recorded_again_with_their_tensors() -> None:
    kind = torch.cuda.CUDAGraph  # without a GPU none can be made
    graph = kind.__new__(kind) if torch.version.cuda else object.__new__(kind)
    with warnings.catch_warnings(action="error"):
        new = resumed(Agent(graphs={8: (torch.ones(1), graph)}), Agent(graphs={}))
    assert new.graphs == {}


def test_one_warning_names_what_is_not_saved() -> None:
    class Slots:
        __slots__ = ("x",)

    x = torch.zeros(4)
    agent = Agent(file=open("/dev/null"), helper=RMS(0), x=x, view=x[1:])  # noqa: SIM115
    agent.helper.slots, agent.keyed, agent.text, agent.net = Slots(), {Mode.A: 1}, np.array(["a"]), nn.Linear(2, 2)
    agent.weight = agent.net.weight.detach()
    with pytest.warns(UserWarning, match="snapshots leave out") as caught:
        agent_state.capture(agent, warn=True)
    agent.file.close()
    assert [str(w.message) for w in caught] == [
        "snapshots leave out agent.view (shares memory with another tensor), agent.weight (shares memory with another "
        "tensor), agent.file (a TextIOWrapper), agent.helper.slots (a Slots), "
        "agent.keyed (a dict whose keys are not plain values), agent.text (a ndarray); "
        "to save them, give the agent state_dict and load_state_dict"
    ]
    with warnings.catch_warnings(action="error"):
        assert not_finite(through_a_file(agent)) is None


class Mine(torch.Tensor):
    pass


class Steps(list[int]):
    pass


@pytest.mark.parametrize(
    "value",
    [
        *(torch.empty(2, device="meta"), torch.eye(2).to_sparse(), torch.zeros(2).as_subclass(Mine), nn.LazyLinear(2)),
        *(np.ma.masked_array([1.0], [True]), np.datetime64("2021-07-20"), iter([1]), Steps([1])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_odd_values_are_named_and_cost_no_snapshot(value: Any) -> None:
    agent = Agent(x=value, after=3)
    (name,) = unsaved(agent)
    assert name.startswith("agent.x (")
    assert resumed(agent, Agent(x=value, after=0)).after == 3


# --- modules and optimizers ------------------------------------------------------------------------------------


def drqv2_agent(seed: int, **overrides: Any) -> DrQV2Agent:
    torch.manual_seed(seed)
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


def test_drqv2_resumes_to_the_same_bits() -> None:
    old, new = drqv2_agent(1), drqv2_agent(2)
    data = batches(0)
    for step in range(3):
        old.update(data, step)
    parameters = list(new.encoder.parameters())
    assert unsaved(old) == []
    resumed(old, new)
    assert all(a is b for a, b in zip(parameters, new.encoder.parameters(), strict=True))
    obs = next(data)[0][0].numpy()
    results = []
    for agent in (old, new):
        data = batches(7)
        metrics = [agent.update(data, step) for step in range(3, 6)]
        results.append([metrics, agent.act(obs, 6, eval_mode=False), agent.act(obs, 6, eval_mode=True)])
    assert_same(results[0], results[1])
    assert_same(through_a_file(old), through_a_file(new))


class Net(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.body: Any = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.BatchNorm1d(2))
        self.tied = nn.Linear(2, 2)
        self.tied.weight = self.body.get_parameter("0.weight")
        self.running: torch.Tensor
        self.register_buffer("running", torch.full((2,), value), persistent=False)
        self.count, self.history = int(value), [np.float64(value)]
        self.plain, self.rms = torch.full((2,), value), RMS(0)
        self.body[0].helper = RMS(0)  # type: ignore[assignment]
        self.opt = torch.optim.SGD(self.parameters(), lr=value, momentum=0.9)


@pytest.mark.parametrize("place", ["attribute", "root", "compiled"])
def test_modules_keep_all_that_is_theirs(place: str) -> None:
    def net_of(agent: Any) -> Any:
        return agent if place == "root" else agent.net if place == "attribute" else agent.net._orig_mod

    old, new = Net(3.0), Net(4.0)
    layer, dropout, norm = old.body
    old.rms.learn()
    layer.helper.learn()
    layer.bias.requires_grad_(False)
    new.tied.bias.requires_grad_(False)
    dropout.eval()
    dropout.p, norm.momentum, layer.usage = 0.4, None, torch.ones(3)
    norm.running_mean += 1
    agents: list[Any] = [old, new]
    if place != "root":
        wrap: Any = functools.partial(torch.compile, backend="eager") if place == "compiled" else lambda net: net
        agents = [Agent(net=wrap(net)) for net in agents]
    running = new.running
    assert unsaved(agents[0]) == []
    assert net_of(resumed(*agents)) is new
    assert_same(dict(new.state_dict()), dict(old.state_dict()))
    assert new.running is running
    for name in ("running", "count", "history", "plain", "rms"):
        assert_same(getattr(new, name), getattr(old, name))
    assert [p.requires_grad for p in new.parameters()] == [p.requires_grad for p in old.parameters()]
    assert [m.training for m in new.modules()] == [m.training for m in old.modules()]
    assert (new.body[1].p, new.body[2].momentum) == (0.4, None)
    assert_same(new.body[0].usage, torch.ones(3))
    assert_same(new.body[0].helper, layer.helper)
    assert new.tied.weight is new.body[0].weight is new.opt.param_groups[0]["params"][0]
    assert new.opt.param_groups[0]["lr"] == 3.0


def test_a_module_kept_out_of_another_stays_out() -> None:
    def make() -> Agent:
        net = Net(1.0)
        net.__dict__["teacher"] = nn.Linear(2, 2)
        return Agent(net=net)

    old = make()
    new = resumed(old, make())
    assert new.net.state_dict().keys() == Net(1.0).state_dict().keys()
    assert_same(new.net.teacher.weight, old.net.teacher.weight)


def test_tensors_and_modules_in_several_places() -> None:
    def make(several: bool = True) -> Agent:
        agent = Agent(all=None, alpha=torch.tensor(np.random.rand(), requires_grad=True), net=nn.Linear(2, 2))
        agent.policy = nn.Sequential(agent.net, nn.Tanh())
        agent.opts = {"a": [torch.optim.Adam([agent.alpha, *agent.net.parameters()], lr=0.1, fused=several)]}
        if several:
            agent.all = [*agent.net.parameters(), agent.alpha]
        return agent

    def learn(agent: Agent) -> None:
        (opt,) = agent.opts["a"]
        opt.zero_grad()
        (agent.policy(torch.ones(1, 2)).sum() * 5 + agent.alpha**2).backward()
        nn.utils.clip_grad_norm_(agent.all, 0.5)
        opt.step()

    old, new = make(), make(several=False)
    alpha, weight = new.alpha, new.net.weight
    learn(old)
    resumed(old, new)
    (group,) = new.opts["a"][0].param_groups
    assert new.alpha is alpha is new.all[-1] is group["params"][0]
    assert new.net.weight is weight is new.all[0] is new.policy[0].weight
    assert group["fused"] is False  # as the new optimizer was made for its device
    for agent in (old, new):
        learn(agent)
    torch.testing.assert_close(old.all, new.all)


def test_tensors_stay_in_place_where_they_fit() -> None:
    def make() -> Agent:
        x = torch.zeros(3)
        one = torch.ones(2)
        return Agent(x=x, array=np.zeros(3), grown=torch.zeros(2), expanded=torch.tensor(0.0).expand(3), a=one, b=one)

    def train(agent: Agent) -> None:
        agent.x += 1
        agent.array += 1
        agent.grown, agent.expanded, agent.b = torch.ones(5), torch.arange(3.0).requires_grad_(), torch.zeros(2)

    new = make()
    x = new.x
    old, _ = trained(make, train)
    resumed(old, new)
    assert new.x is x
    assert_same(vars(new), vars(old))
    assert new.expanded.requires_grad


def test_what_a_network_gave_may_have_another_shape() -> None:
    """Agents keep their last features, which follow the batch; a new agent may have tried its networks on one image."""
    net = nn.Linear(3, 2)
    several = net(torch.ones(8, 3))
    got = pass_on(several, net(torch.ones(1, 3)))
    assert not got.requires_grad
    assert_same(got, several.detach())


def test_what_has_a_state_dict_is_asked_for_it() -> None:
    class Helper(Agent):
        def __init__(self, count: int) -> None:
            self.count, self.unsaved, self.x = count, iter([1]), torch.full((3,), float(count))

        def state_dict(self) -> dict[str, Any]:
            return {"count": np.float64(self.count), "views": [self.x, self.x[1:], (1, 2)]}

        def load_state_dict(self, loaded: dict[str, Any]) -> None:
            assert_same(loaded["views"], [torch.full((3,), loaded["count"]), torch.full((2,), loaded["count"]), (1, 2)])
            self.count = int(loaded["count"])

    assert unsaved(Agent(x=Helper(3))) == []
    assert pass_on(Helper(3), Helper(0)).count == 3
    assert resumed(Helper(4), Helper(0)).count == 4  # an agent, too
    agent = Helper(0)
    restore_weights(agent, weights(through_a_file(Helper(5))))
    assert agent.count == 5


class Extra(nn.Linear):
    steps = 0

    def get_extra_state(self) -> Any:
        return {"steps": self.steps}

    def set_extra_state(self, extra: Any) -> None:
        self.steps = extra["steps"]


def test_modules_whose_state_is_more_than_tensors() -> None:
    def make() -> Agent:
        with warnings.catch_warnings(action="ignore"):  # torch.jit is on its way out
            return Agent(extra=Extra(2, 2), scripted=torch.jit.script(nn.Linear(2, 2)))

    def train(agent: Agent) -> None:
        agent.extra.steps = 3
        agent.scripted.weight.data.fill_(3)

    old, new = trained(make, train)
    assert new.extra.steps == 3
    assert torch.equal(new.scripted.weight, old.scripted.weight)


# --- what does not fit -----------------------------------------------------------------------------------------


def parted() -> tuple[Agent, Agent]:
    net, target = nn.Linear(2, 2), nn.Linear(2, 2)
    return Agent(net=net, target=target), Agent(net=net, target=net)


def tied() -> tuple[Agent, Agent]:
    nets = Net(1.0), Net(1.0)
    nets[0].tied.weight = nn.Parameter(torch.zeros(2, 2))
    return Agent(net=nets[0]), Agent(net=nets[1])


def adam(number: int = 1, kind: Any = torch.optim.Adam) -> Any:
    return kind([torch.zeros(2, requires_grad=True) for _ in range(number)])


@pytest.mark.parametrize(
    ("agents", "said"),
    [
        ((Agent(x=nn.Linear(2, 3)), Agent(x=nn.Linear(2, 2))), "size mismatch"),
        (
            (Agent(x=torch.zeros(2)), Agent(x=torch.zeros(3).requires_grad_())),
            r"x has shape \[3\], in the snapshot \[2\]",
        ),
        ((Agent(x=adam()), Agent(x=adam(2))), "loaded state dict contains a parameter group"),
        ((Agent(x=adam(kind=torch.optim.SGD)), Agent(x=adam())), "x is Adam, in the snapshot SGD"),
        (parted(), "target and another attribute are one object now, two in the snapshot; give the agent state_dict"),
        (tied(), "net ties its weights in only one"),
    ],
    ids=["network", "tensor", "groups", "kind", "parted", "tied"],
)
def test_what_does_not_fit_is_refused(agents: tuple[Agent, Agent], said: str) -> None:
    with pytest.raises((RuntimeError, ValueError), match=said):
        resumed(*agents)


# --- generators ------------------------------------------------------------------------------------------------


def draws(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return torch.randn(5, generator=generator).tolist()
    gauss = generator.gauss if isinstance(generator, random.Random) else generator.normal
    return [gauss(0, 1) for _ in range(5)]


@pytest.mark.parametrize(
    "make",
    [
        *(
            np.random.default_rng,
            np.random.RandomState,
            random.Random,
            lambda seed: torch.Generator().manual_seed(seed),
        ),
        *(lambda seed, kind=kind: np.random.Generator(kind(seed)) for kind in (np.random.MT19937, np.random.Philox)),
    ],
)
def test_generators_resume(make: Any) -> None:
    old, new = make(1), make(2)
    draws(old)
    assert draws(pass_on(old, new)) == draws(old)


def test_a_generator_of_another_device_starts_anew() -> None:
    state = through_a_file(Agent(x=torch.Generator()))
    state["children"]["x"]["of"] = "cuda"
    agent = Agent(x=torch.Generator().manual_seed(5), device="cpu")
    with pytest.warns(UserWarning, match="no counterpart: agent.x .a generator of cuda"):
        agent_state.restore(agent, state)
    assert draws(agent.x) == draws(torch.Generator().manual_seed(5))


def test_a_generator_of_another_gpu_continues() -> None:
    old = Agent(x=torch.Generator().manual_seed(5))
    draws(old.x)
    state = through_a_file(old)
    state["children"]["x"]["of"] = "cpu:1"  # as cuda:1 of cuda
    agent = Agent(x=torch.Generator().manual_seed(6))
    agent_state.restore(agent, state)
    assert draws(agent.x) == draws(old.x)


@pytest.mark.parametrize(("now", "count", "continued"), [(1, 2, [0, 1]), (0, 2, [0]), (0, 1, [0])])
def test_the_global_generator_of_the_runs_gpu_continues_on_another(
    now: int, count: int, continued: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stand-ins for GPUs: a run on the second of two continues on `now` of `count`."""
    told: dict[int, str] = {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["first", "second"])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    state = rng.rng_state()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: now)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", lambda states: told.update(enumerate(states)))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda own: told.update({now: own}))
    rng.set_rng_state(state)
    assert sorted(told) == continued
    assert told[now] == "second"


def test_global_generators() -> None:
    def draw() -> list[Any]:
        return [torch.rand(3), np.random.rand(), np.random.randn(), random.random(), random.gauss(0, 1)]

    utils.set_seed_everywhere(5)
    draw()  # an odd number of normal draws leaves one half of a pair behind
    file = io.BytesIO()
    torch.save(copied(rng.rng_state()), file)
    expected = [draw(), draw()]
    file.seek(0)
    rng.set_rng_state(torch.load(file, weights_only=True))
    assert_same([draw(), draw()], expected)
