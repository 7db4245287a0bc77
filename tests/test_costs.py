"""Prices of ops, against figures worked out by hand."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode

from gcpass._evaluate import Evaluator
from gcpass._hardware import Hardware
from gcpass._solvers._corners import unconstrained
from gcpass._units import PICOSECONDS
from gcpass.fx._analyze import Analysis, analyze
from gcpass.fx._call import call_of
from gcpass.fx._capture import capture
from gcpass.fx._costs import UNKNOWN_FACTOR, Prices, Reference, Roofline
from gcpass.fx._flops import flops
from gcpass.fx._traffic import loop_traffic

aten = torch.ops.aten
# Round figures: 1e12 FLOP/s, 1e9 B/s, 1e6 elements/s, 1 us.
DEVICE = Hardware(
    name="round",
    device="cpu",
    source="made up",
    flops_per_second={"float32": 1e12, "bfloat16": 4e12},
    bytes_per_second=2e9,
    attained={"matmul": 1.0, "convolution": 0.5, "attention": 0.25, "bytes": 0.5},
    elements_per_second={"transcendental": 1e6, "random": 1e5},
    launch_seconds=1e-6,
)
ROUND = Roofline(DEVICE)


def analysis(
    fn: Callable[..., Any], *args: torch.Tensor, codegen: str = "eager", prices: Prices = ROUND
) -> Analysis:
    captured = capture(fn, args, None, codegen)
    return analyze(captured.joint, captured.num_fwd_outputs, prices, codegen)


def nodes(found: Analysis, packet: str) -> Iterator[fx.Node]:
    return (n for n in found.nodes if str(getattr(n.target, "_overloadpacket", "")) == packet)


def seconds(found: Analysis, packet: str) -> float:
    """Price of the first op of a kind."""
    op = next(op for op in found.problem.ops if op.target == packet)
    return op.picoseconds / PICOSECONDS


def leaf(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size).to(dtype).requires_grad_()


def test_a_matrix_product_takes_its_flops_or_its_bytes() -> None:
    found = analysis(lambda x, w: (x @ w).square().sum(), leaf(64, 4096), leaf(4096, 64))
    bytes_moved = 4 * (2 * 64 * 4096 + 64 * 64)
    assert seconds(found, "aten.mm") == pytest.approx(bytes_moved / 1e9 + 1e-6)
    fast = Roofline(Hardware(**{**vars(DEVICE), "bytes_per_second": 2e15}))
    found = analysis(
        lambda x, w: (x @ w).square().sum(), leaf(64, 4096), leaf(4096, 64), prices=fast
    )
    assert seconds(found, "aten.mm") == pytest.approx(2 * 64 * 64 * 4096 / 1e12 + 1e-6, rel=1e-3)


@pytest.mark.parametrize(
    ("dtype", "rate"), [(torch.float32, 1e12), (torch.bfloat16, 4e12), (torch.float16, 4e12)]
)
def test_the_rate_is_that_of_the_data_type(dtype: torch.dtype, rate: float) -> None:
    fast = Roofline(Hardware(**{**vars(DEVICE), "bytes_per_second": 2e18}))
    x, w = leaf(128, 128, dtype=dtype), leaf(128, 128, dtype=dtype)
    found = analysis(lambda x, w: (x @ w).float().square().sum(), x, w, prices=fast)
    assert seconds(found, "aten.mm") == pytest.approx(2 * 128**3 / rate + 1e-6, rel=1e-3)


def test_convolutions_and_attention_have_rates_of_their_own() -> None:
    fast = Roofline(Hardware(**{**vars(DEVICE), "bytes_per_second": 2e18}))
    image, weight = leaf(1, 8, 16, 16), leaf(8, 8, 3, 3)
    found = analysis(
        lambda x, w: F.conv2d(x, w, padding=1).square().sum(), image, weight, prices=fast
    )
    count = 2 * 8 * 16 * 16 * 8 * 9
    assert seconds(found, "aten.convolution") == pytest.approx(count / 0.5e12 + 1e-6, rel=1e-3)
    query = leaf(2, 4, 32, 16)
    found = analysis(
        lambda q: F.scaled_dot_product_attention(q, q, q).square().sum(), query, prices=fast
    )
    count = 2 * 2 * 4 * 32 * 32 * (16 + 16)
    name = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert seconds(found, name) == pytest.approx(count / 0.25e12 + 1e-6, rel=1e-3)
    assert seconds(found, name + "_backward") == pytest.approx(2.5 * count / 0.25e12 + 1e-6, 1e-3)


@pytest.mark.parametrize("slow", [False, True])
def test_booleans_that_a_loop_writes_have_a_price_of_their_own(slow: bool) -> None:
    """Where it is high, the fastest plan keeps dropout's mask as numbers, or draws them again;
    drawing has the price of loops that Inductor writes, not of ATen's generator."""
    rates = {**DEVICE.elements_per_second, "random": 1e3, "fused_random": 1e6}
    rates["mask"] = 1e5 if slow else 1e9
    prices = Roofline(replace(DEVICE, elements_per_second=rates))
    x, w = leaf(64, 64), leaf(64, 64)
    found = analysis(
        lambda x, w: (F.dropout(x @ w, 0.1) @ w).square().sum(),
        *(x, w),
        codegen="inductor",
        prices=prices,
    )
    assert seconds(found, "prims.inductor_random") == pytest.approx(64 * 64 / 1e6)
    problem = found.problem
    masks = [i for i, op in enumerate(problem.ops) if op.target in ("aten.gt", "aten.lt")]
    assert [problem.keep_picoseconds(i) for i in masks] == [
        pytest.approx(PICOSECONDS * 64 * 64 / rates["mask"])
    ]
    kept, _ = unconstrained(Evaluator(problem))
    assert (masks[0] in kept) is not slow


def test_flops_are_those_that_torch_counts() -> None:
    """Over a whole step; torch's own counter watches eager run the same ops."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, groups=1), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 49, 5)
    )
    data = torch.randn(4, 3, 16, 16)
    with FlopCounterMode(display=False) as counter:
        model(data).square().sum().backward()
    model.zero_grad()
    found = analysis(lambda x: model(x).square().sum(), data)
    calls = [call_of(n) for n in found.nodes if n.op == "call_function"]
    assert sum(flops(c) or 0 for c in calls) == counter.get_total_flops()


def test_a_grouped_product_is_the_sum_of_its_groups() -> None:
    graph = fx.Graph()
    rows, experts, offsets = (graph.placeholder(n) for n in ("rows", "experts", "offsets"))
    node = graph.call_function(
        torch.ops.aten._grouped_mm.default, (rows, experts), {"offs": offsets}
    )
    values = {
        rows: torch.empty(48, 16, device="meta"),
        experts: torch.empty(3, 16, 32, device="meta"),
        offsets: torch.empty(3, dtype=torch.int32, device="meta"),
        node: torch.empty(48, 32, device="meta"),
    }
    for n, value in values.items():
        n.meta["val"] = value
    assert flops(call_of(node)) == 2 * 48 * 16 * 32
    values[rows] = rows.meta["val"] = torch.empty(3, 10, 16, device="meta")
    assert flops(call_of(node)) == 3 * 2 * 10 * 16 * 32


def test_a_scaled_product_counts_as_a_product() -> None:
    graph = fx.Graph()
    names = ("a", "b", "scale_a", "scale_b")
    a, b, scale_a, scale_b = (graph.placeholder(n) for n in names)
    node = graph.call_function(torch.ops.aten._scaled_mm.default, (a, b, scale_a, scale_b))
    a.meta["val"] = torch.empty(64, 32, dtype=torch.float8_e4m3fn, device="meta")
    b.meta["val"] = torch.empty(32, 16, dtype=torch.float8_e4m3fn, device="meta")
    for scale in (scale_a, scale_b):
        scale.meta["val"] = torch.empty((), device="meta")
    node.meta["val"] = torch.empty(64, 16, dtype=torch.bfloat16, device="meta")
    assert flops(call_of(node)) == 2 * 64 * 32 * 16
    eights = Hardware(
        **{
            **vars(DEVICE),
            "flops_per_second": {"float32": 1e3, "float8": 1e9},
            "bytes_per_second": 1e18,
        }
    )
    expected = 2 * 64 * 32 * 16 / 1e9 + 1e-6
    assert Roofline(eights).seconds(call_of(node), None) == pytest.approx(expected)


def test_arithmetic_bounds_what_is_not_a_product() -> None:
    found = analysis(lambda x: (x.exp() + x).sum(), leaf(1000))
    assert seconds(found, "aten.exp") == pytest.approx(1000 / 1e6 + 1e-6)
    assert seconds(found, "aten.add") == pytest.approx(3 * 4000 / 1e9 + 1e-6)


@pytest.mark.parametrize(
    ("exponent", "is_slow"), [(2, False), (3.0, False), (0.5, False), (0.3, True)]
)
def test_a_power_is_products_and_roots_where_it_can_be(exponent: float, is_slow: bool) -> None:
    found = analysis(lambda x: x.abs().pow(exponent).sum(), leaf(1000))
    assert (seconds(found, "aten.pow") > 1e-3) == is_slow


def test_an_op_that_nobody_knows_is_dear() -> None:
    @torch.library.custom_op("gcpass_test::opaque", mutates_args=())
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    opaque.register_fake(torch.empty_like)
    opaque.register_autograd(lambda ctx, grad: grad)
    for prices, rate, launch in ((ROUND, 1e9, 1e-6), (Reference(), 3.35e12 * 0.8, 0.0)):
        found = analysis(lambda x: opaque(x).square().sum(), leaf(1000), prices=prices)
        expected = UNKNOWN_FACTOR * 8000 / rate + launch
        assert seconds(found, "gcpass_test.opaque") == pytest.approx(expected, rel=1e-3)


def test_a_triton_kernel_of_the_users_is_dear_and_its_results_are_values() -> None:
    """It returns a dict of what it wrote. (Built by hand: a trace needs Triton, and that a GPU.)"""
    from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional

    graph = fx.Graph()
    x, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    out = graph.call_function(torch.ops.aten.empty_like.default, (x,))
    index = graph.call_function(torch.ops.aten.empty_like.default, (x,))
    kernel = graph.call_function(
        triton_kernel_wrapper_functional,
        kwargs={"kernel_idx": 0, "constant_args_idx": 0, "grid": [(1, 1, 1)],
                "tma_descriptor_metadata": {}, "tensors_to_clone": ["out", "index"],
                "kwargs": {"x": x, "out": out, "index": index}},
    )  # fmt: skip
    wide = graph.call_function(operator.getitem, (kernel, "index"))
    written = graph.call_function(operator.getitem, (kernel, "out"))
    sine, cosine = (
        graph.call_function(op, (written,)) for op in (aten.sin.default, aten.cos.default)
    )
    scaled = graph.call_function(aten.mul.Tensor, (cosine, wide))
    grad = graph.call_function(aten.mul.Tensor, (tangent, scaled))
    graph.output(([sine, grad],))
    for node in graph.nodes:
        node.meta["val"] = torch.empty(1000, device="meta")
    wide.meta["val"] = torch.empty(1000, dtype=torch.float64, device="meta")
    kernel.meta["val"] = {"out": written.meta["val"], "index": wide.meta["val"]}
    del graph.find_nodes(op="output")[0].meta["val"]

    moved = 3 * 4000 + 4000 + 8000
    for prices, rate, launch in ((ROUND, 1e9, 1e-6), (Reference(), 3.35e12 * 0.8, 0.0)):
        found = analyze(fx.GraphModule({}, graph), 1, prices, "eager")
        ops = {op.name: op for op in found.problem.ops}
        called = ops[kernel.name].picoseconds / PICOSECONDS
        assert called == pytest.approx(UNKNOWN_FACTOR * moved / rate + launch, rel=1e-3)
        assert ops[kernel.name].constraint is None  # it may run again: it writes what is its own
        held = {n.name: found.problem.storages[ops[n.name].storages[0]] for n in (written, wide)}
        assert [s.nbytes for s in held.values()] == [4000, 8000]
        assert [found.problem.ops[s.holder or 0].name for s in held.values()] == list(held)


# -- loops that fuse ------------------------------------------------------------------------------


def traffic(fn: Callable[..., Any], *args: torch.Tensor) -> dict[str, int]:
    """Bytes that each loop adds, by the node's name, of the forward."""
    found = analysis(fn, *args, codegen="inductor")
    bytes_by_node = loop_traffic(found.nodes)
    return {node.name: nbytes for node, nbytes in bytes_by_node.items()}


def test_values_inside_a_kernel_cost_no_traffic() -> None:
    """x is read once, by the first; the sum is a number; what is in between stays in registers."""
    found = traffic(lambda x: (x.sin() + 1).cos().sum(), leaf(1000))
    assert found["sin"] == 4000
    assert found["add"] == 0
    assert found["cos"] == 0 or found["cos"] == 4000  # the backward may read it
    assert found["sum_1"] == 4


def test_an_input_is_read_once_by_each_kernel() -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.sin() + x.cos()  # one kernel reads x, and writes y for the product
        return ((y @ w) * x).sum()  # another reads it again

    found = analysis(fn, leaf(10, 10), leaf(10, 10), codegen="inductor")
    by_node = {n.name: b for n, b in loop_traffic(found.nodes).items()}
    assert by_node["sin"] == 400
    assert by_node["cos"] in (0, 400)  # written if the backward reads it, but x is not read again
    assert by_node["add"] == 400  # written for the product
    assert by_node["mul"] == 800  # x, and the product


def test_a_lookup_reads_the_rows_it_returns_and_not_the_table() -> None:
    ids = torch.zeros(4, dtype=torch.long)
    found = traffic(lambda ids, table: F.embedding(ids, table).sin().sum(), ids, leaf(1000, 8))
    assert found["embedding"] <= 2 * 4 * 8 * 4 + 4 * 8


def test_an_expanded_input_is_as_large_as_its_block() -> None:
    found = traffic(lambda x, y: (x.expand(100, 10) * y).sum(), leaf(10), leaf(100, 10))
    assert found["mul"] == 10 * 4 + 100 * 10 * 4


def test_a_fused_loop_takes_the_time_of_the_bytes_it_adds() -> None:
    found = analysis(lambda x: (x + 1).square().sum(), leaf(1000), codegen="inductor")
    (add,) = nodes(found, "aten.add")
    op = found.problem.ops[found.index_of()[add.name]]
    assert op.picoseconds / PICOSECONDS in (4000 / 1e9, 8000 / 1e9)
