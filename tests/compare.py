"""Comparison of nested states, to the bit."""

from __future__ import annotations

from typing import Any

import torch


def assert_equal(a: Any, b: Any, where: str = "") -> None:
    """Assert that two nests of dicts, lists, tensors and plain values are the same; `where` names the place."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            assert_equal(a[key], b[key], f"{where}.{key}")
    elif isinstance(a, list):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_equal(x, y, f"{where}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    else:
        assert a == b, where
