"""What is promised about installing and about who imports whom, held against the files themselves."""

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from drqv2 import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCK = {
    canonicalize_name(requirement.name): requirement
    for line in (ROOT / "requirements.lock").read_text().splitlines()
    if (text := line.split("#")[0].strip())
    for requirement in [Requirement(text)]
}


def locked(name: str) -> Version:
    (specifier,) = LOCK[canonicalize_name(name)].specifier
    assert specifier.operator == "=="
    return Version(specifier.version)


def direct_requirements() -> list[Requirement]:
    extras = [
        lines for name, lines in PROJECT["optional-dependencies"].items() if name != "peers"
    ]  # of a benchmark alone
    lines = [*PROJECT["dependencies"], *(line for extra in extras for line in extra)]
    return [requirement for line in lines if (requirement := Requirement(line)).name != PROJECT["name"]]


@pytest.mark.parametrize("requirement", direct_requirements(), ids=lambda requirement: requirement.name)
def test_each_dependency_is_bounded_and_locked_within_its_bounds(requirement):
    assert {specifier.operator for specifier in requirement.specifier} == {">=", "<"}
    assert locked(requirement.name) in requirement.specifier


def test_mujoco_stays_below_the_major_that_dm_control_breaks_on():
    (mujoco,) = (requirement for requirement in direct_requirements() if requirement.name == "mujoco")
    assert "3.17.0" in mujoco.specifier
    assert "4.0.0" not in mujoco.specifier


def test_lock_serves_cpu_and_gpu_alike():
    theirs = {name for name in LOCK if name.startswith(("nvidia", "cuda", "triton"))}
    assert theirs == {"nvidia-ml-py"}  # plain Python, which asks a driver where there is one
    assert not [name for name in LOCK if locked(name).local]


def test_conda_environment_installs_what_a_user_needs():
    conda = yaml.safe_load((ROOT / "conda_env.yml").read_text())["dependencies"]
    (python,) = (entry.split("=")[1] for entry in conda if isinstance(entry, str) and entry.startswith("python="))
    assert Version(python) in Requirement(f"python{PROJECT['requires-python']}").specifier
    (pip,) = (entry["pip"] for entry in conda if isinstance(entry, dict))
    tested, own = pip
    assert tested == "-c requirements.lock"
    (extras,) = re.findall(r"^-e \.\[([\w,]+)\]$", own)
    assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()
    # What a user needs: neither Ray, nor EnvPool with its 700 MB of meshes, nor the tools of developers.
    packages = {
        Requirement(line).name for extra in extras.split(",") for line in PROJECT["optional-dependencies"][extra]
    }
    assert not packages & {"ray", "envpool", "pytest", PROJECT["name"]}


def test_supported_python_is_the_same_everywhere():
    (oldest,) = re.findall(r">=3\.(\d+)", PROJECT["requires-python"])
    assert f"sys.version_info < (3, {oldest})" in (ROOT / "tools/setup.sh").read_text()
    assert sys.version_info >= (3, int(oldest))


# Who may import whom (docs/architecture.md): each package of drqv2/, or a module of it, and the packages it may use
# beside `errors`, `seeds`, `utils` and `agents/protocol`; no others. `__main__` modules are programs, like the files of
# the root.
MAY_USE: dict[str, set[str]] = {
    "__init__": set(),  # it loads the public names from agents and nn by their text, on first use
    "errors": set(),
    "parts": set(),
    "seeds": set(),
    "utils": set(),
    "programs": set(),
    "__main__": {"config", "launch"},
    "system": set(),
    "config": set(),
    "config/__main__": {"launch"},
    "nn": set(),
    "envs": {"system"},
    "envs/as_gymnasium": {"config"},
    "agents": {"config", "nn"},
    "agents/protocol": {"nn"},
    "replay": {"system", "nn"},
    "datasets": {"system", "config", "envs", "replay"},
    "datasets/__main__": {"config", "launch"},
    "logging": {"system"},
    "launch": {"system", "config"},
    "snapshot": {"system", "config"},
    "snapshot/__main__": {"config", "launch"},
    "snapshot/inspection": {"system", "config", "replay"},
    "run": {"system", "config", "launch", "envs", "agents", "replay", "logging", "snapshot"},
    "rollout": {"system", "nn", "envs"},
    "play": set(),
    "play/__main__": {"config", "launch", "evaluation", "logging"},
    "evaluation": {"system", "config", "envs", "agents", "replay", "logging", "snapshot", "datasets", "run", "play"},
    "regimes": {
        "system",
        "config",
        "envs",
        "agents",
        "replay",
        "logging",
        "datasets",
        "rollout",
        "run",
        "evaluation",
    },
    "report": {"system", "config", "evaluation"},
    "doctor": {"system", "config", "envs", "agents"},
    "doctor/__main__": {"launch"},
}
PROTOCOL = re.compile(r"drqv2\.agents\.protocol\b")
ROOT_MODULES = {path.stem for path in ROOT.glob("*.py")} | {"benchmarks", "tests"}
LIBRARY = [path.relative_to(ROOT / "drqv2") for path in sorted((ROOT / "drqv2").rglob("*.py"))]


def imported_names(path: Path) -> set[str]:
    """Return the dotted names that a file imports, `from a import b` as 'a.b'."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def imported_modules(module: Path) -> set[Path]:
    """Return the modules of the library that one of them imports."""
    found = set()
    for name in imported_names(ROOT / "drqv2" / module):
        parts = name.split(".")[1:] if name.startswith("drqv2.") else []
        for length in range(len(parts), 0, -1):
            path = Path(*parts[:length])
            if hits := {path.with_suffix(".py"), path / "__init__.py"} & set(LIBRARY):
                found |= hits
                break
    return found - {module}


def used_packages(module: Path) -> tuple[str, set[str]]:
    """Return the row of MAY_USE that a module falls under, and the other packages that it imports."""
    package = module.parts[0].removesuffix(".py")
    own = str(module.with_suffix(""))
    names = imported_names(ROOT / "drqv2" / module)
    outside = {package, "errors", "parts", "seeds", "utils", "programs", "EXPORTS"}
    used = {name.split(".")[1] for name in names if name.startswith("drqv2.") and not PROTOCOL.match(name)} - outside
    return own if own in MAY_USE else package, used


@pytest.mark.parametrize("module", LIBRARY, ids=str)
def test_a_module_imports_only_what_is_listed(module):
    names = imported_names(ROOT / "drqv2" / module)
    assert not {name.split(".")[0] for name in names} & ROOT_MODULES, "the library imports nothing from the root"
    row, used = used_packages(module)
    assert used <= MAY_USE[row]
    if row in ("errors", "parts", "seeds", "utils", "programs"):
        used_modules = {name.rpartition(".")[0] for name in names if name.startswith("drqv2.")}
        assert used_modules <= ({"drqv2.errors", "drqv2.seeds"} if row in ("utils", "programs") else set())


def test_every_listed_import_is_used():
    used: dict[str, set[str]] = {row: set() for row in MAY_USE}
    for module in LIBRARY:
        row, packages = used_packages(module)
        used[row] |= packages
    assert used == MAY_USE


def test_the_documentation_has_the_same_table():
    page = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| .* \|(.*)\|$", page, re.MULTILINE)
    found = {name: set(re.findall(r"`(\w+)`", imports.partition(";")[0])) for name, imports in rows}
    packages = {name for name in MAY_USE if (ROOT / "drqv2" / name).is_dir()}
    assert found == {name: MAY_USE[name] for name in packages}


def test_imports_make_no_circle():
    graph = {module: imported_modules(module) for module in LIBRARY}
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle


def test_few_modules_stand_outside_the_packages():
    assert len([module for module in LIBRARY if len(module.parts) == 1]) <= 7


def test_links_in_the_documentation_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("results/**/*.md"), *ROOT.glob("policies/*.md")]
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)} links to {target}"


def test_files_of_github_and_of_citations_are_right() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    assert len(forms) >= 3
    for form in forms:
        for part in yaml.safe_load(form.read_text()).get("body", []):
            assert part.keys() <= {"type", "id", "attributes", "validations"}
            assert part["attributes"].keys() <= {"label", "description", "placeholder", "render", "value", "options"}


@pytest.mark.slow
def test_a_run_imports_its_own_regime_alone() -> None:
    code = "import sys, train; print([name for name in sys.modules if name.startswith('drqv2.regimes.')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
