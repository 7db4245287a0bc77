"""Models by name: shapes, inputs, adapters, and layers that are traced once."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

import gcpass
from gcpass._depth import alike, extender
from gcpass._errors import OptionError
from gcpass._evaluate import Evaluator
from gcpass._presets import PRESETS
from gcpass._problem import Problem
from gcpass._scale import between
from gcpass._workload import Lora, Workload, parse_dtype, parse_lora
from gcpass.fx._hf import default_dtype, find_architecture
from gcpass.fx._lora import Adapted, Quantized, adapt, dequantize
from gcpass.fx._workload import Tracer, sizes_of
from gcpass.policies import NONE

pytest.importorskip("transformers")

TINY = [name for name in PRESETS if name.startswith("tiny-")]


def tracer(codegen: str = "eager") -> Tracer:
    return Tracer("h100", codegen, lambda target: pytest.fail(target))


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # As published: model cards and papers.
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3-70b", 70_553_706_496),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("gpt2", 124_439_808),
        ("t5-large", 737_668_096),
    ],
)
def test_presets_have_the_published_number_of_parameters(name: str, parameters: int) -> None:
    with gcpass.fake_mode(), default_dtype(torch.bfloat16):
        model = find_architecture(name).build()
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("name", TINY)
def test_every_family_has_a_finite_loss_and_a_plan(name: str) -> None:
    architecture = find_architecture(name)
    torch.manual_seed(0)
    model = architecture.build()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.02)
    with torch.no_grad():
        loss = model(*architecture.inputs(2, 16, torch.float32))
    assert loss.dim() == 0 and loss.isfinite()
    case = tracer()(Workload(f"hf:{name}", batch=2))
    assert case.problem.gradients and case.sizes.trained == sum(
        p.numel()
        for p in model.parameters()
        if p.requires_grad  # not whisper's positions
    )


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-gpt2", "tiny-bert", "tiny-vit"])
def test_attention_is_fused(name: str) -> None:
    ops = tracer()(Workload(f"hf:{name}")).problem.ops
    assert any("flash_attention" in op.target for op in ops)
    assert not any("softmax" in op.target and "log" not in op.target for op in ops)


def test_no_mask_is_built() -> None:
    problem = tracer()(Workload("hf:tiny-llama", seq=1024)).problem
    assert max(s.nbytes for s in problem.storages) < 1024 * 1024


# -- the configuration ---------------------------------------------------------------------------


def test_the_configuration_can_be_changed(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    given = {"model_type": "gpt2", "n_layer": 3, "n_embd": 48, "n_head": 4, "vocab_size": 99}
    file.write_text(json.dumps({**given, "dtype": "float16"}))
    architecture = find_architecture("gpt2", [str(file), "n_head=6"])
    assert architecture.depth == 3
    assert architecture.config.n_head == 6 and architecture.config.n_embd == 48


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("lama-3-8b", "", "did you mean 'llama-3-8b'?"),
        ("nothing-like-it-at-all", "", "presets: "),
        ("tiny-llama", "hidden_size=foo", "'foo' is not a number"),
        ("tiny-llama", "hidden_size=1.5", "whole number"),
        ("tiny-llama", "hiden_size=64", "did you mean 'hidden_size'?"),
        ("tiny-llama", "attention_bias=3", "true or false"),
        ("tiny-llama", "no/such/file.json", "neither key=value nor a file"),
        ("sam", "", "no training loss"),
        ("tiny-gpt2", "n_layer=0", "n_layer=0 must be at least 1"),
        ("tiny-t5", "num_decoder_layers=0", "num_decoder_layers=0 must be at least 1"),
    ],
)
def test_a_wrong_model_is_told(name: str, change: str, said: str) -> None:
    with pytest.raises(OptionError) as error:
        find_architecture(name, [change] if change else [])
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"target": "hf:tiny-vit", "seq": 8}, "takes images"),
        ({"target": "hf:tiny-gpt2", "seq": 65}, "64 positions"),
        ({"target": "hf:tiny-llama", "seq": 10, "sequence_parallel": 4}, "does not divide"),
        ({"target": "hf:tiny-gpt2", "lora": Lora(targets=("c_atn",))}, "'c_attn'"),
        # What transformers says when it builds the model, and torch when it traces it.
        ({"target": "hf:tiny-gpt2", "config": ("n_embd=30",)}, "n_embd=30 cannot be built"),
        ({"target": "hf:tiny-llama", "config": ("hidden_act=gleu",)}, "'gleu'"),
        (
            {"target": "hf:tiny-llama", "config": ("num_key_value_heads=3",)},
            "RuntimeError: Attempting",
        ),
        ({"target": "hf:clip"}, "hf:clip cannot be built"),
        ({"target": "hf:tiny-bert", "config": ("architectures=3",)}, "a list of names"),
        ({"target": "hf:tiny-llama", "lora": Lora(targets=("q_prj",))}, "'q_proj'"),
    ],
)
def test_a_workload_that_cannot_be_is_told(options: dict[str, object], said: str) -> None:
    with pytest.raises(OptionError) as error:
        tracer()(Workload(**options))  # type: ignore[arg-type]
    assert said in str(error.value)


def test_what_dynamo_warns_of_is_not_passed_on() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracer()(Workload("hf:tiny-mixtral", ("num_hidden_layers=1",)))


# -- adapters and 4-bit weights ------------------------------------------------------------------


def adapted(lora: Lora, *, quantized: bool) -> nn.Module:
    model = find_architecture("tiny-llama").build()
    adapt(model, lora, quantized=quantized)
    return model


def test_only_adapters_are_trained() -> None:
    model = adapted(Lora(r=4), quantized=False)
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert trained and all("lora_" in name for name in trained)
    # q, o: 32 x 32; k, v: 16 x 32; gate, up: 64 x 32; down: 32 x 64; two layers.
    shapes = [(32, 32), (32, 32), (16, 32), (16, 32), (64, 32), (64, 32), (32, 64)]
    assert sum(p.numel() for p in trained.values()) == 2 * sum(4 * (a + b) for a, b in shapes)
    only = adapted(Lora(r=4, targets=("q_proj",)), quantized=False)
    assert sum(isinstance(m, Adapted) for m in only.modules()) == 2


def test_the_transposed_layers_of_gpt2_are_linear_layers_too() -> None:
    trained = [p for p in of_gpt2(quantized=False).parameters() if p.requires_grad]
    shapes = [(32, 96), (32, 32), (32, 128), (128, 32)]  # attention, its output, and both of MLP
    assert sum(p.numel() for p in trained) == 2 * sum(4 * (a + b) for a, b in shapes)
    with gcpass.fake_mode():
        layers = [m for m in of_gpt2(quantized=True).modules() if isinstance(m, Quantized)]
        made = [tuple(layer(torch.zeros(3, layer.in_features)).shape) for layer in layers]
    assert made == 2 * [(3, outer) for _, outer in shapes]


def of_gpt2(*, quantized: bool) -> nn.Module:
    model = find_architecture("tiny-gpt2").build()
    adapt(model, Lora(r=4), quantized=quantized)
    return model


def test_the_adapter_is_what_its_paper_says() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 5, bias=False).double()
    layer = Adapted(linear, linear, Lora(r=2, alpha=3.0)).double()
    x = torch.randn(4, 6, dtype=torch.double)
    merged = linear.weight + 1.5 * layer.lora_b.weight @ layer.lora_a.weight
    torch.testing.assert_close(layer(x), x @ merged.T)


def test_dequantisation_against_a_plain_loop() -> None:
    torch.manual_seed(0)
    shape, count = (10, 26), 260  # no whole number of blocks
    codes = torch.randint(16, (count,))
    packed = (codes[0::2] * 16 + codes[1::2]).to(torch.uint8)
    scales = torch.randint(256, (5,), dtype=torch.uint8)
    superscales, codebook = torch.rand(1), torch.randn(16)
    made = dequantize(packed, scales, superscales, codebook, shape, torch.float32)
    expected = [
        codebook[codes[i]] * superscales[i // 64 // 256] * (int(scales[i // 64]) / 255)
        for i in range(count)
    ]
    torch.testing.assert_close(made, torch.stack(expected).reshape(shape))


def test_gradients_pass_through_a_quantised_layer() -> None:
    torch.manual_seed(0)
    layer = Quantized(nn.Linear(8, 6).double())
    layer.packed.random_(256)
    layer.scales.random_(256)
    layer.superscales.uniform_(0.5, 2)
    layer.superscales_backward.copy_(layer.superscales)
    x = torch.randn(3, 8, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))


def test_a_quantised_weight_takes_four_bits_and_an_eighth() -> None:
    with gcpass.fake_mode():
        layer = Quantized(nn.Linear(4096, 4096, bias=False))
    held = layer.packed, layer.scales, layer.superscales
    bits = 8 * sum(t.numel() * t.element_size() for t in held) / 4096**2
    assert bits == pytest.approx(4.127, abs=5e-4)  # Dettmers et al. 2023, section 3
    assert sizes_of([layer], ()).whole.weights_nbytes < 4.13 / 8 * 4096**2


def test_parameters_in_four_bits_are_counted_as_what_they_stand_for() -> None:
    plain = find_architecture("tiny-llama").build()
    both = adapted(Lora(r=4), quantized=True)
    adapters = sum(p.numel() for n, p in both.named_parameters() if "lora_" in n)
    expected = sum(p.numel() for p in plain.parameters())
    assert sizes_of([plain], ()).parameters == expected  # the angles of positions are buffers
    assert sizes_of([both], ()).parameters == expected + adapters


def test_that_experts_are_not_in_four_bits_is_said() -> None:
    one_layer = ("num_hidden_layers=1",)
    notes = tracer()(Workload("hf:tiny-mixtral", one_layer, qlora=True)).notes
    # Four experts, each 32 x 32 three times, in two bytes.
    assert any(note.startswith("24.0 KiB of weights are those of experts") for note in notes)
    assert not tracer()(Workload("hf:tiny-llama", one_layer, qlora=True)).notes


@pytest.mark.parametrize("codegen", ["eager", "inductor"])
def test_nothing_of_a_dequantised_weight_is_kept(codegen: str) -> None:
    def kept_of_weights_alone(*, qlora: bool) -> int:
        workload = Workload("hf:tiny-llama", batch=2, lora=Lora(r=4), qlora=qlora)
        problem = tracer(codegen)(workload).problem
        of_tokens: set[int] = set()
        for index, op in enumerate(problem.ops):
            if "embedding" in op.target or not of_tokens.isdisjoint(op.inputs):
                of_tokens.add(index)
        evaluation = Evaluator(problem).evaluate(NONE.choose(problem))  # type: ignore[misc]
        late = set(evaluation.backward_order)
        kept = [
            op
            for op in NONE.choose(problem)  # type: ignore[misc]
            if op not in of_tokens and any(reader in late for reader in problem.readers[op])
        ]
        return sum(problem.storages[problem.kept_storage[op]].nbytes for op in kept)

    # Angles of positions are kept, and the like; 32 x 32 weights in bf16 take 2 KiB.
    assert kept_of_weights_alone(qlora=True) <= kept_of_weights_alone(qlora=False) + 512


def test_both_dequantisations_are_the_same() -> None:
    torch.manual_seed(0)
    held = torch.randint(256, (130,), dtype=torch.uint8), torch.randint(256, (5,)).to(torch.uint8)
    rest = torch.rand(1), torch.randn(16), (10, 26), torch.float32
    torch.testing.assert_close(dequantize(*held, *rest), dequantize(*held, *rest, again=True))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("r=0", "at least 1"),
        ("r=two", "not a number"),
        ("rank=4", "known"),
        ("16", "key=value"),
        ("dropout=1", "less than 1"),
        ("alpha=0", "more than 0"),
    ],
)
def test_wrong_adapters_are_told(text: str, said: str) -> None:
    with pytest.raises(OptionError) as error:
        parse_lora(text)
    assert said in str(error.value)


def test_adapters_are_read() -> None:
    assert parse_lora(None) is None
    assert parse_lora("r=8,alpha=32,dropout=0.1,targets=q_proj+v_proj") == Lora(
        8, 32.0, 0.1, ("q_proj", "v_proj")
    )
    assert parse_dtype("bf16") == parse_dtype("bfloat16") == "bfloat16"
    with pytest.raises(OptionError, match="bf16"):
        parse_dtype("bf61")


# -- layers that are traced once -----------------------------------------------------------------


@cache
def problem_of(
    name: str, depth: int, batch: int = 2, *, adapters: str = "", seq: int | None = None
) -> Problem:
    key = "n_layer" if "gpt2" in name else "num_hidden_layers"
    workload = Workload(
        f"hf:{name}",
        (f"{key}={depth}",),
        batch=batch,
        seq=seq,
        lora=Lora(r=4) if adapters else None,
        qlora=adapters == "qlora",
    )
    made = tracer()
    made._trace_shallow = lambda *_: None  # type: ignore[method-assign]
    return made(workload).problem


@pytest.mark.parametrize(
    ("name", "adapters", "depth"),
    [
        ("tiny-llama", "", 9),
        ("tiny-llama", "qlora", 7),
        ("tiny-gpt2", "", 8),
    ],
)
def test_a_deepened_problem_is_the_traced_one(name: str, adapters: str, depth: int) -> None:
    small, larger, deep = (problem_of(name, d, adapters=adapters) for d in (5, 6, depth))
    extend = extender(small, larger)
    assert extend is not None
    made = extend(small, depth - 5)
    assert alike(made, deep)
    assert len({op.name for op in made.ops}) == len(made.ops)
    assert [op.module for op in made.ops] == [op.module for op in deep.ops]


def test_what_was_learned_at_one_batch_holds_at_another() -> None:
    extend = extender(problem_of("tiny-llama", 5), problem_of("tiny-llama", 6))
    assert extend is not None
    assert alike(extend(problem_of("tiny-llama", 5, 4), 4), problem_of("tiny-llama", 9, 4))


def test_what_is_not_alike_is_not_repeated() -> None:
    small, larger = problem_of("tiny-llama", 5), problem_of("tiny-llama", 6)
    assert extender(small, problem_of("tiny-gpt2", 6)) is None
    assert extender(small, small) is None
    extend = extender(small, larger)
    assert extend is not None
    with pytest.raises(ValueError):
        extend(larger, 1)


def sized(batch: int) -> tuple[int, Problem]:
    """Of tensors that fill blocks of memory, as real ones do."""
    return batch, problem_of("tiny-llama", 1, batch, seq=512)


def test_a_problem_between_traced_batches_is_the_traced_one() -> None:
    make = between(sized(2), sized(4), sized(5))
    assert make is not None
    for batch, problem in map(sized, (2, 3, 4, 5)):
        made = make(batch)
        pairs = zip(made.ops, problem.ops, strict=True)
        assert max(abs(m.picoseconds - t.picoseconds) for m, t in pairs) <= 4  # all are rounded
        assert alike(without_times(made), without_times(problem))
    with pytest.raises(ValueError, match="6"):
        make(6)


def test_batches_that_differ_in_more_than_size_say_nothing_of_others() -> None:
    two, three, four = map(sized, (2, 3, 4))
    problem = three[1]
    *ops, last = problem.ops
    *storages, final = problem.storages
    for changed in (
        replace(problem, ops=(*ops, replace(last, target="another"))),
        replace(problem, ops=(*ops, replace(last, picoseconds=last.picoseconds + 1000))),
        replace(problem, storages=(*storages, replace(final, nbytes=final.nbytes + 512))),
    ):
        assert between(two, (3, changed), four) is None
    assert between(two, three, four) is not None


def without_times(problem: Problem) -> Problem:
    ops = (replace(op, picoseconds=0, traffic_picoseconds=0) for op in problem.ops)
    return replace(problem, ops=tuple(ops))


def test_the_tracer_repeats_layers_where_it_can() -> None:
    workload = Workload("hf:tiny-llama", ("num_hidden_layers=9",), batch=2)
    assert alike(tracer()(workload).problem, problem_of("tiny-llama", 9))
