#!/usr/bin/env bash
# Creates .venv: system libraries (Debian, Ubuntu), the locked packages, this project in editable mode, and a check that
# off-screen rendering works. Called by make; safe to run again.
#   PYTHON       interpreter for .venv (default: python3)
#   TORCH_INDEX  package index for torch, such as https://download.pytorch.org/whl/cu130 (default: automatic)
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=.venv
lock=requirements.lock

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 2; }
locked() { sed -n "s/^$1==\([^ ;]*\).*/\1/p" "$lock"; }

system_packages() { # prints the missing Debian packages, one per line
    loads() { "$python" -c "import ctypes; ctypes.CDLL('$1')" 2>/dev/null; }
    "$python" -c 'import ensurepip, venv' 2>/dev/null || echo "${python##*/}-venv"
    loads libEGL.so.1 || echo libegl1
    loads libGL.so.1 || echo libgl1
    loads libgthread-2.0.so.0 || echo libglib2.0-0 # for OpenCV
    # Mesa's drivers are loaded by name at run time, so ask the package manager; NVIDIA's EGL does not need them.
    if command -v dpkg-query >/dev/null && [ ! -e /usr/share/glvnd/egl_vendor.d/10_nvidia.json ]; then
        dpkg-query -W -f '${db:Status-Status}' libgl1-mesa-dri 2>/dev/null | grep -qx installed || echo libgl1-mesa-dri
    fi
}

install_torch() {
    local version; version=$(locked torch)
    if "$venv/bin/python" -c "import torch; assert torch.__version__.split('+')[0] == '$version'" 2>/dev/null; then
        return
    elif [ -n "${TORCH_INDEX:-}" ]; then
        add --extra-index-url "$TORCH_INDEX" -c "$lock" "torch==$version"
    elif nvidia-smi -L >/dev/null 2>&1; then
        add -c "$lock" "torch==$version"
    else # the CPU build is a tenth of the size; try pip's default index first, then PyTorch's
        local cpu="torch==$version+cpu"
        add --no-deps "$cpu" 2>/dev/null ||
            add --no-deps --retries 1 --timeout 20 --index-url https://download.pytorch.org/whl/cpu "$cpu" ||
            { say "no CPU build of torch available; installing the default build"; add -c "$lock" "torch==$version"; }
    fi
}

command -v "$python" >/dev/null || die "$python not found: install Python 3.11 or newer, or choose one with PYTHON=..."
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "$("$python" --version) is too old: Python 3.11 or newer is required; choose one with PYTHON=python3.12"

missing=$(system_packages | tr '\n' ' '); missing=${missing% }
if [ -n "$missing" ]; then
    command -v apt-get >/dev/null ||
        die "system libraries are missing (Debian names: $missing). Install them with your package manager, then run make again"
    [ "$(id -u)" = 0 ] ||
        die "system packages are missing: $missing. Run this, then make again:
  sudo apt-get update && sudo apt-get install -y --no-install-recommends $missing"
    say "installing system packages: $missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086  # one word per package
    apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi

"$venv/bin/python" -m pip --version >/dev/null 2>&1 || { say "creating $venv"; "$python" -m venv --clear "$venv"; }
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
add() { pip install --no-compile "$@"; } # all cores compile, at the end

say "installing the locked packages (the first time: some minutes, and 2 GB on disk, 6 GB with a GPU)"
add "pip==$(locked pip)"
install_torch
add --no-deps -r "$lock"
add --no-deps --no-build-isolation -e .
"$venv/bin/python" -m compileall -qq -j 0 "$venv/lib" || true # a few packages have templates that are not valid Python

say "checking off-screen rendering"
"$venv/bin/python" - <<'CHECK'
import sys
from drqv2.envs import render
from drqv2.errors import UserError

try:
    backend, renderer = render.require_backend(), render.gl_renderer()
except UserError as error:
    sys.exit(f"error: {error}")
from dm_control import suite

frame = suite.load("cartpole", "balance").physics.render(64, 64, camera_id=0)
if frame.max() == frame.min():
    sys.exit(f"error: {backend} on {renderer} renders blank images; try another with MUJOCO_GL=egl|osmesa|glfw")
print(f"{backend}: {renderer}")
CHECK
touch "$venv/.ready"
