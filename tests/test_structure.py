"""The rules the package keeps to: who imports whom, who may touch torch, what a file may not do.

Each rule is a function from parsed source to the places that break it, so that it is tried on
small bad samples here as well as on the package.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "gcpass"
PYPROJECT = (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")

# A module imports only from rows above its own (and from itself, where it is a package).
ORDER = (
    ("_version", "_errors"),
    ("_units",),
    ("_budget", "_hardware", "_presets", "_workload"),
    ("_problem",),
    ("_depth", "_fusion", "_repeat", "_training"),
    ("_scale",),
    ("_backward",),
    ("_sweep",),
    ("_unfused",),
    ("_evaluate", "_timeline"),
    ("_lifetimes",),
    ("_explain",),
    ("_html",),
    ("_plan",),
    ("_comparison",),
    ("_frontier",),
    ("_solvers",),
    ("policies",),
    ("_planning",),
    ("_detail", "_estimate", "_shared"),
    ("_advice", "_fit"),
    ("_report",),
    ("fx",),
    ("__init__",),
    ("_cli",),
    ("__main__",),
)
FX_ORDER = (
    ("_correction", "_fusions", "_generated"),
    ("_compat",),
    ("_compat_inductor", "_meta"),
    ("_random", "_sums"),
    ("_call", "_devices", "_graphs", "_capture", "_kernels", "_phases", "_region", "_views"),
    ("_choices", "_constraints", "_failure", "_flops", "_traffic"),
    ("_costs", "_workspaces"),
    ("_timed",),
    ("_calibrate", "_prices"),
    ("_hf", "_lora", "_refusals"),
    ("_options",),
    ("_analyze",),
    ("_ruling",),
    ("_preferences", "_repeat"),
    ("_count", "_lower"),
    ("_verify",),
    ("_calls", "_trace"),
    ("_group",),
    ("_part",),
    ("_partitioner",),
    ("_backend", "_plan_call", "_workload"),
    ("_measure",),
    ("_demo", "_comparison"),
    ("__init__",),
)
COMPAT = tuple(("gcpass", "fx", f"_compat{part}") for part in ("", "_inductor"))
MAX_PUBLIC_NAMES = 12
MAX_LINES = 400


@dataclass(frozen=True)
class Source:
    path: str  # from the checkout's root: "gcpass/fx/_compat.py"
    text: str

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @property
    def parts(self) -> tuple[str, ...]:
        """``("gcpass", "fx", "_compat")``; a package's own file ends in ``__init__``."""
        return Path(self.path).with_suffix("").parts

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {what}"


Check = Callable[[Source], list[str]]


def _sources() -> list[Source]:
    return [
        Source(path.relative_to(PACKAGE.parent).as_posix(), path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    ]


def _dotted(node: ast.AST) -> str | None:
    """``a.b.c`` for such a chain of attributes, None for anything else."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(names)])


def _base(source: Source, node: ast.ImportFrom) -> str:
    """The module that a ``from`` statement names, with leading dots resolved."""
    above = source.parts[: len(source.parts) - node.level] if node.level else ()
    return ".".join([*above, *([node.module] if node.module else [])])


def _imports(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every imported thing by its full dotted name, wherever in the file it is imported."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node, f"{_base(source, node)}.{alias.name}"
        elif isinstance(node, ast.Call) and node.args:
            called, first = _dotted(node.func), node.args[0]
            if called in ("importlib.import_module", "import_module", "__import__") and (
                isinstance(first, ast.Constant) and isinstance(first.value, str)
            ):
                yield node, first.value


def torch_outside_fx(source: Source) -> list[str]:
    if source.parts[:2] == ("gcpass", "fx"):
        return []
    return [
        source.at(node, f"imports {name} outside gcpass/fx")
        for node, name in _imports(source)
        if name.split(".")[0] in ("torch", "functorch")
    ]


def undeclared(source: Source) -> list[str]:
    """What comes along with a dependency in one version need not in another."""
    declared = re.findall(r'"([a-z]+)>=', PYPROJECT.partition("\ntest = [")[0])
    ours = ("gcpass", "benchmarks")  # the zoo, where there is a checkout
    known = {*declared, *ours, "functorch", *sys.stdlib_module_names}
    return [
        source.at(node, f"imports {name}, which pyproject.toml does not ask for")
        for node, name in _imports(source)
        if name.split(".")[0] not in known
    ]


def _private(name: str) -> bool:
    """Whether a name within torch is private; an operator's own name (torch.ops.*) is not."""
    parts = name.split(".")
    if parts[0] != "torch" or parts[:2] == ["torch", "ops"]:
        return False
    return any(p.startswith("_") and not (p.startswith("__") and p.endswith("__")) for p in parts)


def _torch_names(source: Source) -> dict[str, str]:
    """What the file's names for parts of torch stand for: ``{"F": "torch.nn.functional"}``."""
    names: dict[str, str] = {}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    names[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom):
            base = _base(source, node)
            if base.split(".")[0] == "torch":
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{base}.{alias.name}"
    return names


def private_torch(source: Source) -> list[str]:
    if source.parts in COMPAT:
        return []
    found = [
        source.at(node, f"imports private {name} outside gcpass/fx/_compat*.py")
        for node, name in _imports(source)
        if _private(name)
    ]
    known = _torch_names(source)
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Attribute):
            continue
        first, _, rest = (_dotted(node) or "").partition(".")
        name = f"{known.get(first, first)}.{rest}"
        # Only where the chain turns private, so that each is told once.
        if _private(name) and not _private(name.rpartition(".")[0]):
            found.append(source.at(node, f"names private {name} outside gcpass/fx/_compat*.py"))
    return found


def _row(order: tuple[tuple[str, ...], ...], name: str) -> int | None:
    return next((index for index, row in enumerate(order) if name in row), None)


def import_direction(source: Source) -> list[str]:
    own = source.parts[1:]
    found: list[str] = []

    def compare(order: tuple[tuple[str, ...], ...], importer: str, depth: int) -> None:
        row = _row(order, importer)
        if row is None:
            found.append(f"{source.path}:1: {importer} has no place in the order: give it one")
            return
        for node, name in _imports(source):
            target = name.split(".")
            if tuple(target[:depth]) != source.parts[:depth]:
                continue
            # A name that is no module is one of the package's own: `from gcpass import plan`.
            imported = target[depth] if len(target) > depth else "__init__"
            if _row(order, imported) is None:
                imported = "__init__"
            imported_row = _row(order, imported)
            assert imported_row is not None
            if imported != importer and imported_row >= row:
                found.append(source.at(node, f"{importer} imports from {imported} ({name})"))

    compare(ORDER, own[0], 1)
    if own[0] == "fx" and len(own) > 1:
        compare(FX_ORDER, own[1], 2)
    return found


def prints(source: Source) -> list[str]:
    if source.parts[1] in ("_cli", "_report"):
        return []
    return [
        source.at(node, "calls print")
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and _dotted(node.func) in ("print", "builtins.print")
    ]


def swallowed_errors(source: Source) -> list[str]:
    def catches_all(node: ast.AST | None) -> bool:
        kinds = node.elts if isinstance(node, ast.Tuple) else [node]
        return any(
            kind is not None and _dotted(kind) in ("Exception", "BaseException") for kind in kinds
        )

    def does_nothing(node: ast.stmt) -> bool:
        return isinstance(node, ast.Pass) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        )

    found: list[str] = []
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                found.append(source.at(node, "bare except"))
            elif catches_all(node.type) and all(map(does_nothing, node.body)):
                found.append(source.at(node, "swallows every exception"))
        elif (
            isinstance(node, ast.Call)
            and _dotted(node.func) in ("suppress", "contextlib.suppress")
            and any(map(catches_all, node.args))
        ):
            found.append(source.at(node, "suppresses every exception"))
    return found


def public_names(source: Source) -> list[str]:
    """Looks only at ``gcpass/__init__.py``, whose ``__all__`` has to be a plain list."""
    if source.parts != ("gcpass", "__init__"):
        return []
    for node in source.tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if not any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            continue
        assert isinstance(node, ast.Assign | ast.AnnAssign)
        if not isinstance(node.value, ast.List | ast.Tuple):
            return [source.at(node, "__all__ is not written out")]
        names = [e.value if isinstance(e, ast.Constant) else e for e in node.value.elts]
        if not all(isinstance(name, str) for name in names):
            return [source.at(node, "__all__ is not written out")]
        public = [name for name in names if not str(name).startswith("_")]
        if len(public) > MAX_PUBLIC_NAMES:
            return [source.at(node, f"{len(public)} public names, at most {MAX_PUBLIC_NAMES}")]
        return []
    return [f"{source.path}:1: has no __all__"]


def long_files(source: Source) -> list[str]:
    lines = len(source.text.splitlines())
    return [f"{source.path}: {lines} lines, at most {MAX_LINES}"] if lines > MAX_LINES else []


CHECKS: tuple[Check, ...] = (
    torch_outside_fx,
    undeclared,
    private_torch,
    import_direction,
    prints,
    swallowed_errors,
    public_names,
    long_files,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_package_keeps_the_rule(check: Check) -> None:
    violations = [violation for source in _sources() for violation in check(source)]
    assert not violations, "\n".join(["", *violations])


def test_the_rules_see_the_whole_package() -> None:
    paths = {source.path for source in _sources()}
    assert {"gcpass/__init__.py", "gcpass/_errors.py", "gcpass/fx/_compat.py"} <= paths


BAD: tuple[tuple[Check, str, str], ...] = (
    (torch_outside_fx, "_plan.py", "import torch"),
    (torch_outside_fx, "_plan.py", "import torch.fx as fx"),
    (torch_outside_fx, "_cli/_demo.py", "def f():\n    from torch import fx"),
    (torch_outside_fx, "__init__.py", "from functorch.compile import ts_compile"),
    (torch_outside_fx, "_plan.py", "import importlib\nimportlib.import_module('torch.fx')"),
    (undeclared, "_cli/_plan.py", "from click.core import ParameterSource"),
    (undeclared, "fx/_lower.py", "def f():\n    import sympy"),
    (private_torch, "fx/_lower.py", "import torch._dynamo"),
    (private_torch, "fx/_lower.py", "from torch._subclasses import FakeTensorMode"),
    (private_torch, "fx/_lower.py", "from torch.utils import _pytree"),
    (private_torch, "fx/_lower.py", "def f():\n    import torch.utils._pytree as p"),
    (private_torch, "fx/_lower.py", "import torch\ntorch._C._x.y()"),
    (private_torch, "fx/_lower.py", "import torch\ntorch.nn.Module._apply = 1"),
    (private_torch, "fx/_lower.py", "import torch as t\nt.utils._pytree.tree_leaves(x)"),
    (private_torch, "fx/_lower.py", "from torch import nn\nnn.Module._apply"),
    (import_direction, "_errors.py", "from gcpass._units import format_bytes"),
    (import_direction, "_errors.py", "from gcpass import _units"),
    (import_direction, "_errors.py", "from ._units import format_bytes"),
    (import_direction, "_plan.py", "def f():\n    import gcpass._planning"),
    (import_direction, "_report/_html.py", "from gcpass.fx import _compat"),
    (import_direction, "_report/_html.py", "from ..fx import _compat"),
    (import_direction, "_planning.py", "from gcpass import plan"),
    (import_direction, "_planning.py", "import gcpass"),
    (import_direction, "__init__.py", "from gcpass._cli import main"),
    (import_direction, "policies.py", "from gcpass._planning import make_plan"),
    (import_direction, "fx/_compat.py", "from gcpass.fx._costs import Hardware"),
    (import_direction, "fx/_meta.py", "from gcpass.fx import _capture"),
    (import_direction, "fx/_lower.py", "from gcpass.fx import gcpass"),
    (import_direction, "fx/_lower.py", "from gcpass._cli import main"),
    (import_direction, "_nowhere.py", ""),
    (import_direction, "fx/_nowhere.py", ""),
    (prints, "_plan.py", "def f():\n    print('x')"),
    (prints, "_plan.py", "import builtins\nbuiltins.print('x')"),
    (swallowed_errors, "_plan.py", "try:\n    f()\nexcept:\n    raise"),
    (swallowed_errors, "_plan.py", "try:\n    f()\nexcept Exception:\n    pass"),
    (swallowed_errors, "_plan.py", "try:\n    f()\nexcept (OSError, Exception):\n    ..."),
    (swallowed_errors, "_plan.py", "with suppress(BaseException):\n    f()"),
    (public_names, "__init__.py", f"__all__ = {[f'n{i}' for i in range(13)]}"),
    (public_names, "__init__.py", "__all__ = list(names)"),
    (public_names, "__init__.py", "__all__: list[str] = [*names]"),
    (public_names, "__init__.py", ""),
    (long_files, "_plan.py", "\n" * 401),
)

GOOD: tuple[tuple[Check, str, str], ...] = (
    (torch_outside_fx, "fx/_lower.py", "import torch"),
    (torch_outside_fx, "_plan.py", "import torchlike\nname = 'torch'"),
    (undeclared, "_plan.py", "import json, numpy, rich.table\nfrom scipy import optimize"),
    (private_torch, "fx/_compat.py", "import torch\nfrom torch._C import x\ntorch._C"),
    (private_torch, "fx/_lower.py", "import torch\ntorch.__version__\nself._C\nx.torch._C"),
    (private_torch, "fx/_lower.py", "import torch\ntorch.ops.aten._unsafe_view.default"),
    (private_torch, "fx/_lower.py", "from gcpass.fx import _compat\n_compat._x"),
    (import_direction, "_units.py", "from gcpass._errors import OptionError\nimport os"),
    (import_direction, "_cli/_demo.py", "from gcpass import plan\nfrom gcpass._cli import _x"),
    (import_direction, "__init__.py", "from gcpass.fx._backend import gcpass"),
    (import_direction, "fx/_lower.py", "from . import _compat\nfrom .._errors import E"),
    (prints, "_cli/_demo.py", "print('x')"),
    (prints, "_plan.py", "console.print('x')"),
    (swallowed_errors, "_plan.py", "try:\n    f()\nexcept OSError:\n    pass"),
    (swallowed_errors, "_plan.py", "try:\n    f()\nexcept Exception as e:\n    raise E from e"),
    (public_names, "__init__.py", f"__all__ = {['__version__', *(f'n{i}' for i in range(12))]}"),
    (public_names, "_plan.py", f"__all__ = {[f'n{i}' for i in range(13)]}"),
    (long_files, "_plan.py", "\n" * 400),
)


@pytest.mark.parametrize(("check", "path", "text"), BAD)
def test_a_rule_finds_what_breaks_it(check: Check, path: str, text: str) -> None:
    violations = check(Source(f"gcpass/{path}", text))
    assert len(violations) == 1, violations
    assert violations[0].startswith(f"gcpass/{path}:")


@pytest.mark.parametrize(("check", "path", "text"), GOOD)
def test_a_rule_lets_the_rest_be(check: Check, path: str, text: str) -> None:
    assert check(Source(f"gcpass/{path}", text)) == []


def test_every_rule_has_samples() -> None:
    assert {row[0] for row in BAD} == {row[0] for row in GOOD} == set(CHECKS)
