"""What would help where a training step does not fit, in order, each priced by the planner.

From what changes the training least to what changes it most: a smaller micro-batch, an optimizer
with a smaller state, adapters instead of weights, 4-bit weights under them, more devices, shorter
sequences. What cannot help is left out: activations are not in the way where the state alone is too
large.

Of each, plans that need no search are tried, so what is said of it holds: that it fits, and that it
costs at most so much.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from gcpass._errors import OptionError
from gcpass._estimate import Case, Estimate, estimate
from gcpass._training import Training, state_heads
from gcpass._workload import Lora, Workload

Trace = Callable[[Workload], Case]

_RANK = 16
_LARGEST_WORLD = 1024
_SHORTEST = 128  # tokens


@dataclass(frozen=True)
class Advice:
    """One change, and what it comes to.

    Attributes:
        change: in words, with the option to write.
        estimate: of the step with it.
    """

    change: str
    estimate: Estimate


def advise(failed: Estimate, trace: Trace) -> list[Advice]:
    """Changes that help a step that does not fit, each planned.

    Args:
        failed: the estimate.
        trace: traces another workload.

    Returns:
        The changes in order; those that need still more than the device has say how much.
    """
    workload = failed.case.workload
    made = [*_smaller_batch(failed, trace)]
    if failed.training.optimizer == "adamw":
        training = replace(failed.training, optimizer="adamw8bit")
        made.append(_priced("--optimizer adamw8bit", failed, failed.case, training))
    if workload.is_built:
        with contextlib.suppress(OptionError):  # a model without linear layers has no adapters
            made += _adapters(failed, trace)
    made += _more_devices(failed)
    made += _shorter(failed, trace)
    return made


def _priced(change: str, failed: Estimate, case: Case, training: Training | None = None) -> Advice:
    return Advice(
        change, estimate(case, training or failed.training, failed.device, (), searched=False)
    )


def _adapters(failed: Estimate, trace: Trace) -> Iterator[Advice]:
    """Adapters instead of weights, and 4-bit weights under them, where they are not used yet."""
    workload = failed.case.workload
    lora = workload.lora or Lora(r=_RANK)
    weights_fit = failed.state.weights_nbytes < failed.device.usable_nbytes
    if workload.lora is None and not workload.qlora and weights_fit:
        yield _priced(f"--lora r={_RANK}", failed, trace(replace(workload, lora=lora)))
    if not workload.qlora:
        option = "--qlora" if workload.lora else f"--qlora --lora r={_RANK}"
        yield _priced(option, failed, trace(replace(workload, lora=lora, qlora=True)))


def _smaller_batch(failed: Estimate, trace: Trace) -> Iterator[Advice]:
    """The largest part of the micro-batch, halved again and again, that fits."""
    case = failed.case
    if not case.workload.is_built or case.batch == 1 or failed.budget_nbytes <= 0:
        return
    batch = _halved(failed, case.batch, 1)
    while True:
        smaller = trace(case.workload.at(batch, case.seq))
        made = _priced(f"--batch {batch}", failed, smaller)
        if made.estimate.fits or batch == 1:
            yield made
            return
        batch //= 2


def _shorter(failed: Estimate, trace: Trace) -> Iterator[Advice]:
    """Half the sequence, or as many times as it takes; then sequences spread over devices."""
    case = failed.case
    if not case.workload.is_built or case.seq is None or failed.budget_nbytes <= 0:
        return
    seq = _halved(failed, case.seq, _SHORTEST)
    parts = case.seq // seq
    if seq * parts == case.seq and seq >= _SHORTEST and parts > 1:
        made = _priced(f"--seq {seq}", failed, trace(case.workload.at(case.batch, seq)))
        yield made
        spread = parts * case.workload.sequence_parallel
        changed = replace(case.workload, seq=case.seq, sequence_parallel=spread)
        yield _priced(f"--sequence-parallel {spread}", failed, trace(changed))


def _halved(failed: Estimate, size: int, least: int) -> int:
    """``size`` halved until activations in proportion to it would fit."""
    assert failed.best.plan is not None
    peak = failed.best.plan.predicted_peak_bytes
    # Gradients are as large at any size; what fits them fits the rest if it is small enough.
    fixed = 0 if failed.training.divides_gradients else failed.case.sizes.whole.gradients_nbytes
    part, size = max(failed.budget_nbytes - fixed, 0) / max(peak - fixed, 1), size // 2
    original = 2 * size
    while size // 2 >= least and size > part * original:
        size //= 2
    return max(size, least)


def _more_devices(failed: Estimate) -> Iterator[Advice]:
    """The fewest devices, doubled again and again, on which ZeRO's third stage fits."""
    training = failed.training
    world = max(training.world_size, 1) * (2 if training.zero == 3 else 1)
    world = max(world, 2)
    planner = failed.case.planner(replace(training, zero=3, world_size=world))
    while world <= _LARGEST_WORLD:
        divided = replace(training, zero=3, world_size=world)
        state = state_heads(divided, failed.case.sizes).total_nbytes
        if state + planner.simplest(0).predicted_peak_bytes <= failed.device.usable_nbytes:
            change = f"--zero 3 --world-size {world}"
            yield _priced(change, failed, failed.case, divided)
            return
        world *= 2
