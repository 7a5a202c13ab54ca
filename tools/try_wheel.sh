#!/usr/bin/env bash
# Builds the wheel and uses it as a stranger would: in an environment of its own, from folders without the repository.
#   tools/try_wheel.sh [PYTHON]     default: python3
# The dependencies are those of .venv, where its Python is of the same version; else they come from an index.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
unset PYTHONPATH

say() { printf '\033[1m==> %s\033[0m\n' "$*"; }
torch=$(sed -n 's/^torch==\([^ ;]*\).*/\1/p' "$root/requirements.lock")

say "building the wheel"
"$python" -m venv "$place/env"
pip() { "$place/env/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
mkdir "$place/source"
git -C "$root" archive HEAD | tar -x -C "$place/source" # what is committed, without what an earlier build has left
pip wheel --no-deps --wheel-dir "$place/wheel" "$place/source"
"$python" -m zipfile --list "$place"/wheel/*.whl | awk '{print $1}' | grep -v -e '\.py$' -e '^File'
top=$("$python" -m zipfile --list "$place"/wheel/*.whl | awk 'NR > 1 {print $1}' | cut -d/ -f1 | sort -u | grep -v dist-info)
[ "$top" = drqv2 ] || { echo "error: the wheel has more than the package: $top" >&2; exit 1; }

say "installing it with $("$python" --version)"
if [ "$("$root/.venv/bin/python" --version 2>&1)" = "$("$python" --version)" ]; then
    "$root/.venv/bin/python" "$root/tools/link_packages.py" "$place"/wheel/*.whl "$place"/env/lib/python*/site-packages
    pip install --no-deps "$place"/wheel/*.whl
else
    pip install -c "$root/requirements.lock" "torch==$torch"
    if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 13))'; then # dm-control's labmaze has no wheel there
        pip install --no-deps -r "$root/requirements.lock" "$place"/wheel/*.whl
    else
        pip install -c "$root/requirements.lock" "$place"/wheel/*.whl
    fi
fi
export PATH="$place/env/bin:$PATH"
mkdir "$place/one" "$place/two"

say "training, evaluating and resuming, each from another folder"
cd "$place/one"
drqv2 --version
drqv2 train preset=debug task=cartpole_balance num_train_frames=1000 hydra.run.dir=run console=off
cd "$place/two"
drqv2 eval ../one/run episodes=1
drqv2 train resume=../one/run num_train_frames=1504 console=off
drqv2 snapshot ../one/run
drqv2 report ../one out=report.html
drqv2 config >configuration.md
head -1 configuration.md
python - <<'CHECK'
import drqv2

cfg = drqv2.compose(preset="debug", task="cartpole_balance", num_train_frames=504, console="off")
with drqv2.make_workspace(cfg, "program") as workspace:
    print(workspace.train())
CHECK
for name in train eval report video replay_buffer; do
    ! python -c "import $name" 2>/dev/null || { echo "error: $name is everybody's module" >&2; exit 1; }
done
say "the wheel works"
