"""The memory of one step as a curve of a few hundred points, by what it is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from gcpass._sweep import Moment

MOST = 300  # points of a curve, about

PARTS = (
    ("kept_bytes", "kept for the backward"),
    ("recomputed_bytes", "recomputed"),
    ("gradients_bytes", "gradients"),
    ("outputs_bytes", "outputs"),
    ("temporaries_bytes", "temporaries"),
)


@dataclass(frozen=True)
class Timeline:
    """What is alive, op after op.

    Neighbouring moments that hold the same are one point. Where there are still many, a stretch of
    them is one point too: the fullest of the stretch, so the peak is always among the points.

    Attributes:
        count: how many moments the step has.
        backward: the first point of the backward.
        starts: for each point, the first moment it stands for; it ends where the next one starts.
        ops: what runs at each point.
        kept_bytes: values kept for the backward.
        recomputed_bytes: values recomputed and still alive.
        gradients_bytes: finished gradients.
        outputs_bytes: what the forward returns to the caller.
        temporaries_bytes: everything else.
    """

    count: int
    backward: int
    starts: tuple[int, ...]
    ops: tuple[str, ...]
    kept_bytes: tuple[int, ...]
    recomputed_bytes: tuple[int, ...]
    gradients_bytes: tuple[int, ...]
    outputs_bytes: tuple[int, ...]
    temporaries_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        columns = (self.ops, *self.parts.values())
        if not self.starts or any(len(column) != len(self.starts) for column in columns):
            raise ValueError("a timeline needs as many values as points in every column")

    @property
    def parts(self) -> dict[str, tuple[int, ...]]:
        """The bytes of each part, by its name in words."""
        return {words: getattr(self, name) for name, words in PARTS}

    @cached_property
    def nbytes(self) -> tuple[int, ...]:
        """All bytes alive at each point."""
        return tuple(map(sum, zip(*self.parts.values(), strict=True)))

    @property
    def peak(self) -> int:
        """The fullest point, the first of several."""
        return self.nbytes.index(max(self.nbytes))

    @property
    def stops(self) -> tuple[int, ...]:
        """For each point, one past the last moment it stands for."""
        return (*self.starts[1:], self.count)


def timeline(moments: Sequence[Moment], most: int = MOST) -> Timeline:
    """The curve of a step's moments.

    Args:
        moments: in the order they come; at least one.
        most: how many points, about.
    """
    points = list(_points(moments, most))
    fullest = [moment for _, moment in points]
    return Timeline(
        count=len(moments),
        backward=sum(not moment.in_backward for moment in fullest),
        starts=tuple(start for start, _ in points),
        ops=tuple(moment.op for moment in fullest),
        kept_bytes=tuple(moment.kept for moment in fullest),
        recomputed_bytes=tuple(moment.recomputed for moment in fullest),
        gradients_bytes=tuple(moment.gradients for moment in fullest),
        outputs_bytes=tuple(moment.outputs for moment in fullest),
        temporaries_bytes=tuple(moment.temporaries for moment in fullest),
    )


def _points(moments: Sequence[Moment], most: int) -> Iterator[tuple[int, Moment]]:
    """The first moment of each point, and its fullest."""
    changes = [
        place
        for place, moment in enumerate(moments)
        if place == 0 or _holds(moment) != _holds(moments[place - 1])
    ]
    size = -(-len(changes) // most)
    for late in (False, True):
        pass_ = [place for place in changes if moments[place].in_backward is late]
        for stretch in (pass_[i : i + size] for i in range(0, len(pass_), size)):
            yield stretch[0], max((moments[p] for p in stretch), key=lambda m: m.nbytes)


def _holds(moment: Moment) -> tuple[bool, int, int, int, int, int]:
    return (
        moment.in_backward,
        moment.kept,
        moment.recomputed,
        moment.gradients,
        moment.outputs,
        moment.temporaries,
    )
