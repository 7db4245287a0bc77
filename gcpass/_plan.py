"""A plan: what is kept, what that costs, and where the plan came from."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

from gcpass._errors import OptionError
from gcpass._explain import Row, fold
from gcpass._html import decision_table, element, fragment, memory_charts, tiles
from gcpass._timeline import PARTS, Timeline
from gcpass._units import format_bytes, format_seconds

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Peak:
    """What the predicted peak is made of, by the planner's own count.

    The parts add up to the plan's predicted peak, unless that was read from Inductor's code.

    Attributes:
        op: the op that runs at the peak.
        in_backward: whether it runs in the backward.
        kept_bytes: values kept for the backward.
        recomputed_bytes: values recomputed and still alive.
        gradients_bytes: finished gradients.
        outputs_bytes: what the forward returned to the caller.
        temporaries_bytes: everything else.
    """

    op: str
    in_backward: bool
    kept_bytes: int
    recomputed_bytes: int
    gradients_bytes: int
    outputs_bytes: int
    temporaries_bytes: int

    @property
    def parts(self) -> dict[str, int]:
        """The bytes of each part, by its name in words."""
        return {words: getattr(self, name) for name, words in PARTS}


@dataclass(frozen=True)
class Tradeoff:
    """What another plan of the same step comes to.

    Attributes:
        peak_bytes: its predicted peak, by the planner's own count.
        recompute_seconds: what it recomputes.
    """

    peak_bytes: int
    recompute_seconds: float


@dataclass(frozen=True)
class Plan:
    """What is kept for the backward and what is recomputed.

    Attributes:
        budget_bytes: the bound on the peak, or None.
        predicted_peak_bytes: most bytes alive beyond what was alive before the call.
        saved_bytes: bytes of the kept values.
        recompute_seconds: time of what runs twice, under the cost model of ``hardware``.
        forward_seconds: time of the forward, likewise.
        step_seconds: time of forward, backward and recomputation, and of keeping what is kept,
            likewise.
        lower_bound_seconds: no plan within the budget recomputes less than this, proven
            (`gcpass._solvers._bound`); 0 where nothing is.
        peak: what the peak is made of.
        policy: the policy asked for; ``"optimal"`` is gcpass's own choice.
        rules: what was asked for of modules: a pattern of paths, and ``"save"`` or ``"recompute"``.
        solver: who chose; ``"policy"`` if the policy left nothing open.
        hardware: the cost model.
        codegen: whose memory is predicted: ``"inductor"`` or ``"eager"``.
        kept: names of the kept ops in the joint graph.
        stops: names of the ops before which recomputed values are let go, to be recomputed again,
            each with its depth (`gcpass._repeat`); none if each is recomputed once at most.
        graph: fingerprint of the joint graph the plan was made for.
        counted: how many plans Inductor counted the peak of before this one was chosen; 0 if the
            peak is the planner's own prediction.
        notes: what the user should know, in sentences.
        versions: of gcpass and torch.
        target: what was planned, in the words of whoever asked; empty if nobody said.
        timeline: the memory over the step, by the planner's own count; None if nobody asked.
        unconstrained: the same without a budget; None too where that is this plan.
        frontier: a few other plans of the step, from the fastest to the smallest peak.
    """

    budget_bytes: int | None
    predicted_peak_bytes: int
    saved_bytes: int
    recompute_seconds: float
    forward_seconds: float
    lower_bound_seconds: float
    peak: Peak
    policy: str
    solver: str
    hardware: str
    codegen: str
    kept: tuple[str, ...]
    graph: str
    stops: tuple[tuple[str, int], ...] = ()
    rules: tuple[tuple[str, str], ...] = ()
    step_seconds: float = 0.0
    counted: int = 0
    notes: tuple[str, ...] = ()
    versions: tuple[tuple[str, str], ...] = ()
    target: str = ""
    timeline: Timeline | None = None
    unconstrained: Timeline | None = None
    frontier: tuple[Tradeoff, ...] = ()
    _rows: tuple[Row, ...] = dataclasses.field(default=(), repr=False)

    @property
    def recompute_ratio(self) -> float:
        """Recomputation as a fraction of the forward's time."""
        return self.recompute_seconds / self.forward_seconds if self.forward_seconds else 0.0

    @property
    def lower_bound_ratio(self) -> float:
        """The lower bound as a fraction of the forward's time."""
        return self.lower_bound_seconds / self.forward_seconds if self.forward_seconds else 0.0

    @property
    def gap(self) -> float:
        """How far the plan may be from the best one: (recompute - bound) / forward."""
        return self.recompute_ratio - self.lower_bound_ratio

    def rows(self) -> list[Row]:
        """One row for each value that the backward wants, in forward order."""
        return list(self._rows)

    def to_json(self) -> str:
        """The plan as JSON text, read back by `from_json`."""
        data = {"format": FORMAT_VERSION, **dataclasses.asdict(self)}
        data["rows"] = data.pop("_rows")
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read what `to_json` wrote.

        Raises:
            OptionError: the text is not a plan, or of a newer format.
        """
        try:
            data: dict[str, Any] = json.loads(text)
            version = data.pop("format")
            if version != FORMAT_VERSION:
                raise OptionError(
                    f"the plan has format {version!r}; this gcpass reads {FORMAT_VERSION}"
                )
            data["_rows"] = tuple(Row(**row) for row in data.pop("rows"))
            data["peak"] = Peak(**data["peak"])
            for name in ("kept", "notes"):
                data[name] = tuple(data[name])
            for name in ("versions", "rules"):
                data[name] = tuple((a, b) for a, b in data.get(name, ()))
            data["stops"] = tuple((name, depth) for name, depth in data.get("stops", ()))
            data["frontier"] = tuple(Tradeoff(**point) for point in data.get("frontier", ()))
            for name in ("timeline", "unconstrained"):
                data[name] = _read_timeline(data.get(name))
            return cls(**data)
        except OptionError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OptionError(f"not a gcpass plan: {error}") from error

    def summary(self) -> str:
        """The plan in words: budget, peak and its parts, recomputation, values folded by layer."""
        return "\n".join(_summary_lines(self))

    def headline(self) -> str:
        """What, budget, peak, recomputation and gap in one line."""
        target = f"{self.target}: " if self.target else ""
        gap = f", gap {self.gap:.1%}" if self.is_bounded else ""
        return (
            f"{target}{_budget(self)}, peak {format_bytes(self.predicted_peak_bytes)}, "
            f"recompute {self.recompute_ratio:.1%}{gap}"
        )

    def facts(self) -> list[tuple[str, str, str]]:
        """The numbers that matter most: the name of each, its value, and what that means."""
        peak, budget = self.predicted_peak_bytes, self.budget_bytes
        part = f"{peak / budget:.0%} of the budget" if budget else "beyond what was alive before"
        time, forward = format_seconds(self.recompute_seconds), format_seconds(self.forward_seconds)
        facts = [
            ("budget", format_bytes(budget) if budget else "none", "the bound on the peak"),
            ("predicted peak", format_bytes(peak), part),
            ("recomputation", f"{self.recompute_ratio:.1%}", f"{time}; the forward: {forward}"),
        ]
        if self.is_bounded:
            least = f"{self.lower_bound_ratio:.1%} is proven to be needed"
            facts.append(("gap to the best", f"{self.gap:.1%}", least))
        if self.unconstrained is not None:
            free = format_bytes(max(self.unconstrained.nbytes))
            facts.append(("without a budget", free, "the peak, by the planner's count"))
        if self.step_seconds:
            facts.append(("step", format_seconds(self.step_seconds), "by the cost model"))
        return facts

    @property
    def is_bounded(self) -> bool:
        """Whether it is known what a plan must recompute at least."""
        return self.lower_bound_seconds > 0 or self.recompute_seconds == 0

    def curves(self) -> list[tuple[str, Timeline]]:
        """The memory over the step by name: without a budget if that differs, and as planned."""
        named = (("without a budget", self.unconstrained), ("with this plan", self.timeline))
        return [(name, curve) for name, curve in named if curve is not None]

    def _repr_html_(self) -> str:
        """What a notebook shows: the numbers that matter most, memory, decisions."""
        parts = [element("p", element("b", f"gcpass: {self.headline()}")), tiles(self.facts())]
        if curves := self.curves():
            parts.append(memory_charts(curves, self.budget_bytes))
        if self._rows:
            parts.append(decision_table(fold(self._rows)))
        return fragment(*parts)


def _budget(plan: Plan) -> str:
    return "no budget" if plan.budget_bytes is None else f"budget {format_bytes(plan.budget_bytes)}"


def _read_timeline(data: dict[str, Any] | None) -> Timeline | None:
    if data is None:
        return None
    columns: dict[str, Any] = {k: tuple(v) for k, v in data.items() if isinstance(v, list)}
    return Timeline(**{**data, **columns})


def _summary_lines(plan: Plan) -> list[str]:
    peak, where = plan.peak, "backward" if plan.peak.in_backward else "forward"
    total = plan.predicted_peak_bytes
    lines = [
        f"gcpass plan: {_budget(plan)}, policy {plan.policy}, {plan.codegen} codegen, "
        f"{plan.hardware} cost model",
        f"predicted peak   {format_bytes(total)}, in the {where} at {peak.op}"
        + (f" (Inductor's own count, {plan.counted} plans tried)" if plan.counted else ""),
    ]
    lines += [
        f"  {label:<22} {format_bytes(nbytes):>12} {nbytes / max(total, 1):>6.1%}"
        for label, nbytes in peak.parts.items()
        if nbytes
    ]
    lines.append(
        f"recomputation    {plan.recompute_ratio:.1%} of the forward "
        f"({format_seconds(plan.recompute_seconds)} of {format_seconds(plan.forward_seconds)})"
    )
    if plan.step_seconds:
        lines.append(f"step time        {format_seconds(plan.step_seconds)} by the cost model")
    if plan.stops:
        places = len(plan.stops)
        lines.append(f"                 some more than once: values are let go at {places} places")
    if plan.lower_bound_seconds:
        least = f"{plan.lower_bound_ratio:.1%}"
        lines.append(f"                 no plan within the budget recomputes less than {least}")
    if plan.rules:
        said = ", ".join(f"{pattern}: {said}" for pattern, said in plan.rules)
        lines.append(f"rules            {said}")
    for decision in ("kept", "recomputed"):
        rows = [r for r in fold(plan.rows()) if r.decision == decision]
        if rows:
            nbytes = sum(r.nbytes for r in rows)
            count = sum(r.count for r in rows)
            lines += ["", f"{decision}: {count} values, {format_bytes(nbytes)}"]
            lines += _row_lines(rows)
    if plan.notes:
        lines += ["", *(f"note: {note}" for note in plan.notes)]
    return lines


_LISTED = 12


def _row_lines(rows: list[Row]) -> list[str]:
    """The largest rows, aligned; the rest as one line."""
    rows = sorted(rows, key=lambda r: -r.nbytes)
    lines = [
        f"  {r.count:>4} x {format_bytes(r.nbytes / r.count):>10}  {r.target:<28} "
        f"{r.module or r.source or '-':<28} {r.because}"
        for r in rows[:_LISTED]
    ]
    if len(rows) > _LISTED:
        rest = rows[_LISTED:]
        nbytes = format_bytes(sum(r.nbytes for r in rest))
        lines.append(f"  and {sum(r.count for r in rest)} smaller values, {nbytes} together")
    return lines
