"""The page of a plan: one HTML file that needs nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gcpass._errors import OptionError
from gcpass._explain import fold
from gcpass._html import (
    Markup,
    Place,
    decision_table,
    element,
    frontier_chart,
    join,
    memory_charts,
    page,
    peak_table,
    tiles,
)
from gcpass._plan import Plan
from gcpass._units import format_bytes, format_seconds


def write_page(plan: Plan, path: Path, where: str) -> None:
    """Write the page of a plan.

    Args:
        plan: with as much detail as it has; what it lacks is said on the page.
        path: of the file.
        where: the option that the path came from, for the error.

    Raises:
        OptionError: the file cannot be written.
    """
    try:
        path.write_text(plan_page(plan), encoding="utf-8")
    except OSError as error:
        raise OptionError(f"{where} cannot be written: {error.strerror}") from error


def plan_page(plan: Plan) -> str:
    """The page of a plan, as the text of a file."""
    return page(
        f"gcpass: {plan.headline()}",
        element("header", element("h1", plan.target or "gcpass plan"), _subtitle(plan)),
        tiles(plan.facts()),
        _notes(plan),
        _memory(plan),
        _frontier(plan),
        _decisions(plan),
        _provenance(plan),
    )


def _subtitle(plan: Plan) -> Markup:
    chosen = "the optimiser's plan" if plan.policy == "optimal" else f"policy {plan.policy}"
    text = f"{chosen}, {plan.codegen} codegen, priced by {plan.hardware}"
    return element("p", text, class_="quiet")


def _notes(plan: Plan) -> Markup:
    return join(element("p", note, class_="warning") for note in plan.notes)


def _memory(plan: Plan) -> Markup:
    heading = element("h2", "Memory over the step")
    if plan.timeline is None:
        return _missing(heading, "the memory over the step")
    curves = plan.curves()
    lead = (
        "Bytes alive beyond what was alive before the call, op after op in the order they run. "
        "Where there are many ops, a point is the fullest of its stretch."
    )
    if len(curves) == 1:
        lead += " The plan has no budget to keep to."
    return element(
        "section",
        heading,
        element("p", lead, class_="quiet"),
        _counted(plan),
        memory_charts(curves, plan.budget_bytes),
        peak_table(curves),
    )


def _counted(plan: Plan) -> Markup:
    """What the curve is, where the peak was read from Inductor's code."""
    if not plan.counted or plan.timeline is None:
        return Markup("")
    modelled = format_bytes(max(plan.timeline.nbytes))
    counted = format_bytes(plan.predicted_peak_bytes)
    text = (
        f"The curve is the planner's model of what Inductor fuses, and has its peak at {modelled}. "
        f"The code that Inductor wrote for this plan reaches {counted}: "
        "that is the peak above, and what was held against the budget."
    )
    return element("p", text)


def _frontier(plan: Plan) -> Markup:
    heading = element("h2", "Other plans of the same step")
    if not plan.frontier or not plan.forward_seconds:
        return _missing(heading, "other plans")
    curve = [
        Place("", other.peak_bytes, other.recompute_seconds / plan.forward_seconds)
        for other in plan.frontier
    ]
    fastest, curve = replace(curve[0], label="fastest", kind="free"), _unbeaten(curve)
    lead = (
        "A few plans that the planner found with little search. Lower is less memory, further left "
        "less recomputation; a plan for a budget is searched for longer, and can be better."
    )
    if replace(fastest, label="", kind="other") not in curve:
        lead += (
            " Keeping a value takes time on this device, too: so the fastest plan is not the one "
            "that recomputes least."
        )
    bound = plan.lower_bound_ratio if plan.lower_bound_seconds else None
    if bound:
        lead += " The small grey dot is the least that is proven to be needed within the budget."
    peak = max(plan.timeline.nbytes) if plan.timeline else plan.predicted_peak_bytes
    marked = [Place("this plan", peak, plan.recompute_ratio, "marked", bound)]
    if plan.unconstrained is not None:
        marked.insert(0, fastest)
    return element(
        "section",
        heading,
        element("p", lead, class_="quiet"),
        frontier_chart(curve, marked, plan.budget_bytes),
    )


def _unbeaten(places: list[Place]) -> list[Place]:
    """Those that no other beats in peak and recomputation."""
    return [
        place
        for place in places
        if not any(
            other.peak_bytes <= place.peak_bytes
            and other.recompute_ratio <= place.recompute_ratio
            and other != place
            for other in places
        )
    ]


def _decisions(plan: Plan) -> Markup:
    heading = element("h2", "Decisions")
    rows = plan.rows()
    if not rows:
        return _missing(heading, "its decisions")
    if all(not row.recompute_seconds and not row.peak_bytes for row in rows):
        old = " The file is of an older gcpass, and does not say what each decision saves."
    else:
        old = ""
    lead = (
        "What happens to each value that the backward wants; values alike in repeated layers are "
        "one row, and their sizes and times are added up. At the peak: bytes that a kept value has "
        "there, and with a minus bytes that a recomputed one would have there if it were kept. To "
        "recompute: what it takes, or for a kept value would take, with all that must be "
        "recomputed for it." + old
    )
    folded = fold(rows)
    return element("section", heading, element("p", lead, class_="quiet"), decision_table(folded))


def _provenance(plan: Plan) -> Markup:
    facts = [
        ("gcpass and torch", ", ".join(f"{name} {version}" for name, version in plan.versions)),
        ("graph", plan.graph),
        ("policy", plan.policy),
        ("solver", plan.solver),
        ("codegen", plan.codegen),
        ("cost model", plan.hardware),
        ("forward", f"{format_seconds(plan.forward_seconds)} by the cost model"),
        ("kept", f"{len(plan.kept):,} values, {format_bytes(plan.saved_bytes)}"),
    ]
    if plan.stops:
        facts.append(("let go and run again", f"at {len(plan.stops)} places"))
    if plan.counted:
        facts.append(("peak", f"Inductor's own count; {plan.counted} plans tried"))
    rows = [join(element("dt", name), element("dd", value)) for name, value in facts if value]
    return element(
        "section", element("h2", "Where it came from"), element("dl", rows, class_="facts")
    )


def _missing(heading: Markup, what: str) -> Markup:
    text = (
        f"This plan's file does not hold {what}: it was written by an older gcpass, or for a run "
        "and not for a report. Plan again with gcpass plan --json, or with the option report."
    )
    return element("section", heading, element("p", text))
