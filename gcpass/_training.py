"""The heads of training memory, and how ZeRO and FSDP divide them.

With T trained parameters, in a data type of d bytes, on N devices:

    weights           of all parameters; 4-bit ones as their packed codes and scales
    gradients         T d, each alive from when it is made to the optimizer's step
    optimizer state   T k, with k by optimizer, below
    activations       and temporaries: the rest of the plan's peak; the inputs, too

    optimizer     k
    adamw         2 d, torch.optim.AdamW's two moments in the weight's own type. With master
                  weights 12: copy and moments are fp32 (Micikevicius et al. 2018; K = 12 in
                  Rajbhandari et al. 2020, section 3)
    adamw8bit     2 moments of 8 bits, each with an fp32 constant for every 2048 of them (Dettmers
                  et al. 2022, section 2); 4 more with master weights
    sgd, none     0, for there is no momentum; 4 with master weights

ZeRO's stages (Rajbhandari et al. 2020, section 5) divide by N: 1 the optimizer state, 2 the
gradients too, 3 the weights too (as FSDP does). What a device is working on cannot be divided. It
is counted for the units of FSDP's usual wrapping, each block of the model and the rest of it:

    stages 2 and 3   gradients of one block and of the rest, until they have been reduced
    stage 3          weights of two blocks (the next is fetched ahead) and of the rest

At stages 0 and 1 gradients are part of the plan's peak. At stages 2 and 3 they are taken out of the
plan (`reduced_as_made`) and counted as above, throughout the step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from gcpass._errors import OptionError, did_you_mean
from gcpass._problem import Phase, Problem

OPTIMIZERS = ("adamw", "adamw8bit", "sgd", "none")
_MASTER_NBYTES = 4
_BLOCK = 2048  # parameters, for which adamw8bit keeps one constant of each moment
RESERVE_NBYTES, RESERVE_PART = 2**30, 0.02


@dataclass(frozen=True)
class Unit:
    """Bytes of a part of a model: weights, and gradients of those that are trained."""

    weights_nbytes: int = 0
    gradients_nbytes: int = 0


@dataclass(frozen=True)
class Sizes:
    """What a model holds, whatever it computes.

    Attributes:
        whole: the model.
        block: the largest of its repeated blocks; empty if it has none.
        rest: what is in no block.
        trained: how many parameters are trained.
        parameters: how many there are, those that are held in 4 bits too; buffers are none.
        inputs_nbytes: of the step's inputs.
    """

    whole: Unit
    block: Unit
    rest: Unit
    trained: int
    parameters: int
    inputs_nbytes: int = 0


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    Attributes:
        optimizer: one of `OPTIMIZERS`.
        master_weights: whether the optimizer keeps fp32 copies of the trained weights.
        zero: ZeRO's stage, 0 to 3.
        world_size: over how many devices it divides.

    Raises:
        OptionError: a value cannot be used.
    """

    optimizer: str = "adamw"
    master_weights: bool = False
    zero: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise OptionError(
                f"--optimizer {self.optimizer} is not known; "
                f"{did_you_mean(self.optimizer, OPTIMIZERS)}"
            )
        if self.zero not in (0, 1, 2, 3):
            raise OptionError(f"--zero {self.zero} is no stage of ZeRO: write 0, 1, 2 or 3")
        if self.world_size < 1:
            raise OptionError(f"--world-size {self.world_size} must be at least 1")
        if self.zero and self.world_size == 1:
            raise OptionError(f"--zero {self.zero} divides over devices: give --world-size, too")

    @property
    def divides_gradients(self) -> bool:
        return self.zero >= 2

    def optimizer_nbytes(self, sizes: Sizes) -> int:
        """Bytes of the optimizer's state on one device, fp32 master weights included."""
        whole = {
            "adamw": 8 * sizes.trained if self.master_weights else 2 * sizes.whole.gradients_nbytes,
            "adamw8bit": 2 * sizes.trained + 2 * 4 * ceil(sizes.trained / _BLOCK),
        }.get(self.optimizer, 0)
        if self.master_weights:
            whole += _MASTER_NBYTES * sizes.trained
        return self._divided(whole, 1)

    def weights_nbytes(self, sizes: Sizes) -> int:
        """Bytes of the weights on one device; at stage 3 with those that are gathered at once."""
        whole = sizes.whole.weights_nbytes
        if self.zero < 3:
            return whole
        gathered = sizes.rest.weights_nbytes + 2 * sizes.block.weights_nbytes
        return min(self._divided(whole, 3) + gathered, whole + self._divided(whole, 3))

    def gradients_nbytes(self, sizes: Sizes) -> int:
        """Bytes of gradients on one device that are no part of the plan: none before stage 2."""
        if not self.divides_gradients:
            return 0
        whole = sizes.whole.gradients_nbytes
        whole_units = sizes.rest.gradients_nbytes + sizes.block.gradients_nbytes
        return self._divided(whole, 2) + min(whole_units, whole)

    def _divided(self, nbytes: int, stage: int) -> int:
        return ceil(nbytes / self.world_size) if self.zero >= stage else nbytes


@dataclass(frozen=True)
class Device:
    """What a step has to fit into.

    Attributes:
        memory_nbytes: of the device.
        reserve_nbytes: left for the CUDA context, and for fragments of the allocator.
    """

    memory_nbytes: int
    reserve_nbytes: int

    @property
    def usable_nbytes(self) -> int:
        return self.memory_nbytes - self.reserve_nbytes


def default_reserve(memory_nbytes: int) -> int:
    """1 GiB for the CUDA context and library handles, and 2% for fragments: assumed."""
    return RESERVE_NBYTES + int(RESERVE_PART * memory_nbytes)


@dataclass(frozen=True)
class Heads:
    """What training memory is made of at its peak, on one device, in bytes.

    Attributes:
        weights_nbytes: the weights.
        gradients_nbytes: the gradients alive then.
        optimizer_nbytes: the optimizer's state.
        activations_nbytes: kept and recomputed activations, temporaries, inputs and outputs.
    """

    weights_nbytes: int
    gradients_nbytes: int
    optimizer_nbytes: int
    activations_nbytes: int

    @property
    def total_nbytes(self) -> int:
        return (
            self.weights_nbytes
            + self.gradients_nbytes
            + self.optimizer_nbytes
            + self.activations_nbytes
        )


def state_heads(training: Training, sizes: Sizes) -> Heads:
    """The heads that no plan changes; the inputs stand for the activations."""
    return Heads(
        weights_nbytes=training.weights_nbytes(sizes),
        gradients_nbytes=training.gradients_nbytes(sizes),
        optimizer_nbytes=training.optimizer_nbytes(sizes),
        activations_nbytes=sizes.inputs_nbytes,
    )


def heads(training: Training, sizes: Sizes, peak_nbytes: int, gradients_nbytes: int) -> Heads:
    """The heads under a plan.

    Args:
        training: how it is trained.
        sizes: of the model.
        peak_nbytes: the plan's, of which
        gradients_nbytes: are gradients.
    """
    state = state_heads(training, sizes)
    return replace(
        state,
        gradients_nbytes=state.gradients_nbytes + gradients_nbytes,
        activations_nbytes=state.activations_nbytes + peak_nbytes - gradients_nbytes,
    )


def reduced_as_made(problem: Problem) -> Problem:
    """The problem in which gradients take no memory: they are counted apart (see above)."""
    made = {
        s
        for op in problem.gradients
        for s in problem.ops[op].storages
        if problem.ops[problem.storages[s].producer].phase is Phase.BACKWARD
    }
    storages = tuple(
        replace(storage, nbytes=0) if s in made else storage
        for s, storage in enumerate(problem.storages)
    )
    return replace(problem, storages=storages)
