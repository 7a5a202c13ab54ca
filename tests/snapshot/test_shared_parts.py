"""init_parts=[encoder] between agents whose observations differ: one image, dicts; one task, several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from drqv2.agents.drqv2 import DrQV2Agent
from drqv2.agents.multitask import MultiTaskAgent
from drqv2.agents.spq import SPQAgent
from drqv2.errors import UserError
from drqv2.snapshot import agent_state
from drqv2.snapshot import file as snapshot
from drqv2.snapshot.agent_weights import init_weights

IMAGE, STATE = (3, 32, 32), (4,)
DICT = {"pixels": IMAGE, "wrist": IMAGE, "state": STATE}
ENDS = "everything else starts from scratch\n"


def make(shapes: Any, kind: Any = DrQV2Agent, seed: int = 0, **more: Any) -> Any:
    torch.manual_seed(seed)
    more |= {"frame_stack": 1} if kind is SPQAgent else {}
    return kind(shapes, (2,), "cpu", feature_dim=4, hidden_dim=8, **more)


def started(old: Any, new: Any, folder: Path, *parts: str) -> dict[str, str]:
    """Start an agent from the weights of another; return whose tensors those of its encoder are, by their names."""
    path = folder / "weights_0.pt"
    snapshot.save(path, {"frame": 0, "config": {}, "agent": agent_state.capture(old)})
    before = {name: x.clone() for name, x in new.encoder.state_dict().items()}
    others = {name: x.clone() for name, x in new.actor.state_dict().items()}
    init_weights(new, path, parts or ["encoder"])
    for name, x in new.actor.state_dict().items():
        assert torch.equal(x, others[name])
    theirs = old.encoder.state_dict()
    found = {}
    for name, x in new.encoder.state_dict().items():
        if x.ndim > 1 and not torch.equal(x, before[name]):
            (found[name],) = (other for other, y in theirs.items() if y.shape == x.shape and torch.equal(x, y))
    return found


def weights(*networks: str, of: str) -> dict[str, str]:
    """The weights of each network, as of another."""
    sizes = {network: 2 if network.endswith("mlp") else 4 for network in networks}
    numbers = [(network, 2 * i) for network in networks for i in range(sizes[network])]
    return {f"{network}.{i}.weight": f"{of or network}.{i}.weight" for network, i in numbers}


def said(capsys: pytest.CaptureFixture[str], folder: Path) -> str:
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert out.endswith(ENDS)
    return out.removesuffix(f"; {ENDS}").partition(f"{folder / 'weights_0.pt'}")[2]


def test_between_one_task_and_several(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, several = make(IMAGE), make(IMAGE, MultiTaskAgent, 1, num_tasks=3)
    assert started(one, several, tmp_path) == weights("convnet", of="")
    assert said(capsys, tmp_path) == ""
    assert started(make(IMAGE, MultiTaskAgent, 1, num_tasks=3), make(IMAGE), tmp_path) == weights("convnet", of="")


def test_from_one_image_to_a_dict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert started(make(IMAGE), make(DICT, seed=1), tmp_path) == weights("of_image.pixels.convnet", of="convnet")
    told = ", but not encoder.of_image.wrist (not in the file), encoder.of_vectors (not in the file)"
    assert said(capsys, tmp_path) == told
    only = {"camera.0": IMAGE, "state": STATE}
    found = started(make(IMAGE), make(only, MultiTaskAgent, 1, num_tasks=2), tmp_path)
    assert found == weights("of_image.camera_0.convnet", of="convnet")


def test_from_a_dict_to_one_image(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert started(make(DICT), make(IMAGE, seed=1), tmp_path) == weights("convnet", of="of_image.pixels.convnet")
    told = ", but not encoder.of_image.wrist (not in the agent), encoder.of_vectors (not in the agent)"
    assert said(capsys, tmp_path) == told


def test_from_some_parts_to_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    others = {"pixels": (6, 32, 32), "wrist": (3, 20, 40), "goal": (2,), "state": (2,)}
    found = started(make(DICT), make(others, seed=1), tmp_path)
    assert found == weights(
        "of_image.wrist.convnet", "of_vectors.mlp", of=""
    )  # of other sizes, but of four numbers, too
    assert said(capsys, tmp_path) == ", but not encoder.of_image.pixels (does not fit)"


def test_one_network_of_a_dict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = started(make(DICT), make(DICT, seed=1), tmp_path, "encoder.of_image.wrist")
    assert found == weights("of_image.wrist.convnet", of="")
    assert said(capsys, tmp_path) == ""


def test_layers_around_the_networks_are_taken_as_a_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = started(make(IMAGE, SPQAgent), make(DICT, SPQAgent, 1), tmp_path)
    assert found == weights("body.of_image.pixels", of="body")
    assert said(capsys, tmp_path).startswith(", but not the rest of encoder (does not fit), ")
    found = started(make(DICT, SPQAgent), make(DICT, SPQAgent, 1), tmp_path)
    assert {"linear.weight", "body.of_vectors.0.weight", "body.of_image.wrist.6.weight"} <= found.keys()
    assert said(capsys, tmp_path) == ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (IMAGE, {"pixels_0": IMAGE, "pixels_1": IMAGE}),  # which one?
        (IMAGE, {"pixels": (6, 32, 32), "state": STATE}),
        ({"goal": (2,)}, DICT),
        (STATE, DICT),
    ],
)
def test_nothing_that_fits_is_an_error(old: Any, new: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"do not fit the agent: nothing of encoder fits: encoder\.of_") as refused:
        started(make(old), make(new), tmp_path)
    assert len(str(refused.value).splitlines()) == 2


def test_all_parts_at_once_must_fit(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="actor"):
        started(make(IMAGE), make(DICT), tmp_path, "encoder", "actor")
