"""Manual policies: which blocks they find, what they keep, and that this is what the real thing
keeps; users' own rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from _training import BUDGETS, assert_same, compiled, gradients
from torch import nn
from torch.utils.checkpoint import checkpoint

import gcpass
from benchmarks.models import build
from gcpass._evaluate import Evaluator
from gcpass._explain import Row
from gcpass._planning import Request
from gcpass._solvers._segments import solve
from gcpass.fx._capture import capture
from gcpass.fx._partitioner import analyze_graph, plan_graph
from gcpass.fx._prices import find_prices
from gcpass.policies import find_blocks, find_policy


def _problem(fn: Any, args: Any, codegen: str = "eager") -> Any:
    captured = capture(fn, args, None, codegen)
    prices = find_prices("reference", torch.device("cpu"))
    return analyze_graph(captured.joint, captured.num_fwd_outputs, prices, codegen).problem


# -- blocks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "containers", "count"),
    [
        ("mlp", [""], 2),
        ("resnet", ["blocks"], 2),
        ("unet", ["down", "up"], 5),
        ("vit", ["layers"], 2),
        ("gpt2", ["model.transformer.h"], 2),
        ("llama", ["model.model.layers"], 2),
        ("t5", ["model.decoder.block", "model.encoder.block"], 4),
        ("mixtral", ["model.model.layers"], 2),
    ],
)
def test_blocks_of_the_zoo(name: str, containers: list[str], count: int) -> None:
    problem = _problem(*build(name, "tiny"))
    blocks = find_blocks(problem)
    assert sorted({block.container for block in blocks}) == containers
    assert len(blocks) == count
    members = [op for block in blocks for op in block.ops]
    assert len(members) == len(set(members))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def test_blocks_inside_a_sequential_of_unlike_parts() -> None:
    body = nn.Sequential(Block(), Block(), Block())
    model = nn.Sequential(nn.Conv1d(4, 4, 1), nn.Flatten(0, 1), body, nn.Sigmoid())
    blocks = find_blocks(_problem(model, (torch.randn(2, 4, 8),)))
    assert [block.container for block in blocks] == ["2"] * 3


def test_a_sequential_of_single_ops_is_cut_into_its_periods() -> None:
    model = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(8, 8), nn.ReLU())))
    problem = _problem(model, (torch.randn(2, 8),))
    targets = [
        [problem.ops[op].target for op in block.ops if problem.produced[op]]
        for block in find_blocks(problem)
    ]
    assert targets == [["aten.addmm", "aten.relu"]] * 4


def test_blocks_without_module_paths() -> None:
    """A stretch that repeats is cut where least crosses: at the residual stream, not inside."""
    weights = [(torch.randn(8, 64, requires_grad=True), torch.randn(64, 8)) for _ in range(5)]

    def fn(x: torch.Tensor) -> torch.Tensor:
        x = torch.sin(x)
        for up, down in weights:
            x = x + F.gelu(x @ up) @ down
        return x.square().sum()

    problem = _problem(fn, (torch.randn(4, 8, requires_grad=True),))
    blocks = find_blocks(problem)
    assert len(blocks) == 5
    for block in blocks:
        targets = [problem.ops[op].target for op in block.ops if problem.produced[op]]
        assert targets == ["aten.mm", "aten.gelu", "aten.mm", "aten.add"]


def test_nothing_repeats() -> None:
    problem = _problem(lambda w: torch.sin(w).exp().sum(), (torch.randn(3, requires_grad=True),))
    assert find_blocks(problem) == []
    for name in ("per_block", "sqrt"):
        policy = find_policy(name)
        assert policy is not None
        assert policy.choose is not None
        assert isinstance(policy.choose(problem), frozenset)


# -- what they keep -------------------------------------------------------------------------------


def _checkpointed(fn: Any, blocks: Any) -> Any:
    for block in blocks:
        forward = block.forward
        block.forward = lambda *args, _forward=forward, **keywords: checkpoint(
            _forward, *args, use_reentrant=False, **keywords
        )
    return fn


_BLOCKS = {
    "gpt2": lambda fn: fn.model.transformer.h,
    "llama": lambda fn: fn.model.model.layers,
    "vit": lambda fn: fn.layers,
}


@pytest.mark.parametrize(("name", "layers"), [("gpt2", 12), ("llama", 3), ("vit", 24)])
def test_per_block_saves_what_checkpointing_each_block_does(name: str, layers: int) -> None:
    """torch's own partition of the model with ``torch.utils.checkpoint`` around each block."""

    def planned(policy: str, *, checkpointed: bool) -> gcpass.Plan:
        with gcpass.fake_mode():
            fn, args = build(name, "paper", layers=layers)
        if checkpointed:
            fn = _checkpointed(fn, _BLOCKS[name](fn))
        captured = capture(fn, args, None, "inductor")
        prices, request = (
            find_prices("reference", torch.device("cpu")),
            Request(policy=find_policy(policy)),
        )
        graph = captured.joint, captured.num_fwd_outputs
        return plan_graph(*graph, request, prices, "inductor")[2].plan

    mine = planned("per_block", checkpointed=False)
    real = planned("torch", checkpointed=True)
    assert mine.saved_bytes == pytest.approx(real.saved_bytes, rel=0.02)
    assert mine.predicted_peak_bytes == pytest.approx(real.predicted_peak_bytes, rel=0.02)


def test_wider_segments_keep_less_and_recompute_more() -> None:
    fn, args = build("mlp", "tiny", layers=16, batch=1024)
    plans = {
        name: gcpass.plan(fn, args, policy=name, codegen="eager", hardware="reference")
        for name in ("per_block", "every_k:2", "every_k:4", "every_k:16", "sqrt", "full")
    }
    saved = {name: plan.saved_bytes for name, plan in plans.items()}
    assert saved["per_block"] > saved["every_k:2"] > saved["every_k:4"] > saved["every_k:16"]
    assert saved["sqrt"] == saved["every_k:4"]
    assert plans["per_block"].recompute_seconds < plans["sqrt"].recompute_seconds
    assert plans["sqrt"].predicted_peak_bytes < plans["full"].predicted_peak_bytes


def test_selective_attention_lets_the_weights_go_and_keeps_the_rest() -> None:
    fn, args = build("vit", "tiny", dropout=0.0)
    plan = gcpass.plan(fn, args, policy="selective_attention", codegen="eager")
    again = {row.target for row in plan.rows() if row.decision == "recomputed"}
    assert {"aten.bmm", "aten._softmax"} <= again
    assert not again & {"aten.addmm", "aten.mm"}
    none = gcpass.plan(fn, args, policy="none", codegen="eager")
    assert plan.saved_bytes < none.saved_bytes


@pytest.mark.parametrize("every", [1, 2, 3])
def test_sac_keeps_one_matmul_in_so_many(every: int) -> None:
    fn, args = build("mlp", "tiny", layers=6)
    plan = gcpass.plan(fn, args, policy=f"sac_matmul:{every}", codegen="eager")
    assert [row.target for row in plan.rows() if row.decision == "kept"] == ["aten.addmm"] * (
        -(-6 // every)
    )


def _trained(name: str, options: dict[str, Any]) -> Any:
    """One step in float64, dropout drawing the same numbers whatever the options."""
    fn, args = build(name, "tiny", dtype=torch.float64)
    step = compiled(fn, options)
    torch.manual_seed(0)
    return gradients(step, args, fn)


@pytest.mark.parametrize("policy", ["per_block", "sqrt", "selective_attention", "sac_matmul"])
def test_dropout_under_manual_policies(policy: str) -> None:
    """The backward uses the masks that the forward drew."""
    assert_same(_trained("vit", {"policy": policy}), _trained("vit", {"policy": "none"}))


# -- a user's own rule ----------------------------------------------------------------------------


def _mlp_plan(policy: Any, **options: Any) -> gcpass.Plan:
    fn, args = build("mlp", "tiny", layers=6, batch=1024)
    return gcpass.plan(fn, args, policy=policy, codegen="eager", hardware="reference", **options)


def test_a_rule_is_followed_and_the_rest_is_the_optimisers() -> None:
    def first_two_again(row: Row) -> str | None:
        return "recompute" if row.module in ("linears.0", "linears.1") else None

    free = _mlp_plan(None)
    ruled = _mlp_plan(first_two_again)
    assert ruled.policy == "first_two_again"
    again = {row.module for row in ruled.rows() if row.decision == "recomputed"}
    assert {"linears.0", "linears.1"} <= again
    assert not {"linears.0", "linears.1"} & {
        row.module for row in free.rows() if row.decision == "recomputed"
    }
    budget = int(0.7 * free.predicted_peak_bytes)
    assert _mlp_plan(first_two_again, memory_budget=budget).predicted_peak_bytes <= budget


def test_a_rule_that_saves() -> None:
    everything = _mlp_plan(lambda row: "save")
    assert all(row.decision == "kept" for row in everything.rows())


@pytest.mark.parametrize("policy", ["per_block", "sqrt", "sac_matmul", "full"])
def test_what_runs_once_inside_a_block_is_kept(policy: str) -> None:
    """Mixtral's routing is a choice of two results (`topk`), and its experts a custom op."""
    problem = _problem(*build("mixtral", "tiny"), codegen="inductor")
    kept = find_policy(policy).choose(problem)
    assert Evaluator(problem).violations(kept) == []


def test_a_rule_that_cannot_be_followed_is_said() -> None:
    w = torch.randn(4, 4, requires_grad=True)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return (F.dropout(x @ w, 0.5) * 2).square().sum()

    plan = gcpass.plan(fn, (torch.randn(3, 4),), policy=lambda row: "recompute", codegen="eager")
    assert any("was not followed" in note and "random" in note for note in plan.notes)


@pytest.mark.parametrize("answer", ["keep", 3, True, ["save"]])
def test_a_rule_that_answers_something_else(answer: Any) -> None:
    with pytest.raises(gcpass.OptionError, match=r"must return 'save', 'recompute' or None"):
        _mlp_plan(lambda row: answer)


def test_gradients_under_a_users_rule() -> None:
    def rule(row: Row) -> str | None:
        return {"aten.addmm": "save", "aten.gelu": "recompute"}.get(row.target)

    expected = _trained("vit", {"policy": "none"})
    for budget in ("0.6", "floor"):
        assert_same(_trained("vit", {"policy": rule, **BUDGETS[budget]}), expected)


@pytest.mark.parametrize("name", ["every_k:0", "every_k:x", "every_k:", "sac_matmul:0", "sqr"])
def test_bad_names(name: str) -> None:
    with pytest.raises(gcpass.OptionError, match=name):
        find_policy(name)


def test_no_manual_policy_reaches_a_smaller_peak_than_the_optimiser() -> None:
    """What the embedding's backward wants of its ids is wanted last, and belongs to the start."""
    problem = _problem(*build("narrow", "tiny", layers=12, seq=256), codegen="inductor")
    evaluator = Evaluator(problem)
    smallest = solve(evaluator, 1).evaluation.peak_nbytes
    for policy in ("full", "per_block", "every_k:2", "sqrt", "sac_matmul:2"):
        choose = find_policy(policy).choose
        assert smallest <= evaluator.evaluate(choose(problem)).peak_nbytes, policy
