"""How fast processors multiply bf16, judging by /proc/cpuinfo."""

from __future__ import annotations

from pathlib import Path

import pytest

from drqv2.system import machine

CPUINFO = """processor : 0
vendor_id : {vendor}
model name : A processor
flags : fpu sse avx2 {flags}
"""
AMX = ("GenuineIntel", "avx512f avx512_bf16 amx_bf16 amx_tile")
INTEL = ("GenuineIntel", "avx512f avx512_bf16")  # without AMX, or it is hidden by a virtual machine
AMD = ("AuthenticAMD", "avx512f avx512_bf16")
OLD = ("GenuineIntel", "avx512f")
ARM = "processor : 0\nBogoMIPS : 243\nFeatures : fp asimd {flags}\n"


@pytest.mark.parametrize(
    ("made", "limit", "kind"),
    [
        (AMX, None, "fast"),
        (AMX, "ALL", "fast"),
        (AMX, "default", "fast"),
        (AMX, "AVX512_CORE_AMX", "fast"),
        (AMX, "AVX10_1_512_AMX", "fast"),
        (AMX, "AVX10_1_512", "slow"),
        (AMX, "AVX512_CORE_FP16", "slow"),
        (AMX, "AVX512_CORE_BF16", "slow"),
        (AMX, "AVX512_CORE", "emulated"),
        (INTEL, None, "slow"),
        (INTEL, "AVX2", "emulated"),
        (AMD, None, "fast"),
        (AMD, "AVX512_CORE_BF16", "fast"),
        (AMD, "AVX2", "emulated"),
        (OLD, None, "emulated"),
        ("bf16 i8mm", None, "fast"),
        ("i8mm", None, "emulated"),
    ],
)
def test_bf16_of_processors(
    made: tuple[str, str] | str, limit: str | None, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = isinstance(made, str)
    text = ARM.format(flags=made) if arm else CPUINFO.format(vendor=made[0], flags=made[1])
    monkeypatch.setattr(Path, "read_text", lambda self: text)
    if limit is None:
        monkeypatch.delenv("ONEDNN_MAX_CPU_ISA", raising=False)
    else:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert machine.processor() == ("CPU" if arm else "A processor", kind)
    assert machine.resolve_precision("auto", "cpu") == ("bf16" if kind == "fast" else "fp32")
