"""Sizes, budgets and stored plans: what is read is what was meant, and round trips are exact."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gcpass import OptionError, Plan
from gcpass._budget import Budget, parse_budget
from gcpass._explain import Row
from gcpass._plan import Peak, Tradeoff
from gcpass._timeline import Timeline
from gcpass._units import format_bytes, format_seconds, parse_bytes

UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "K": 2**10,
    "M": 2**20,
    "G": 2**30,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
sizes = st.integers(1, 2**50)
spaces = st.sampled_from(["", " ", "  "])


@given(st.integers(1, 2**20), st.sampled_from(sorted(UNITS)), spaces, st.booleans())
def test_whole_sizes_are_exact(number: int, unit: str, space: str, lower: bool) -> None:
    text = f"{space}{number}{space}{unit.lower() if lower else unit}{space}"
    assert parse_bytes(text, where="here") == number * UNITS[unit]


@given(st.integers(1, 2**80))
def test_bytes_of_any_length_are_exact(number: int) -> None:
    assert parse_bytes(str(number), where="here") == number


@given(st.integers(1, 10**6), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_fractions_of_a_unit(thousandths: int, unit: str) -> None:
    got = parse_bytes(f"{thousandths / 1000}{unit}", where="here")
    assert abs(got - thousandths * UNITS[unit] / 1000) <= 1


@given(sizes)
def test_what_is_printed_is_read_back(nbytes: int) -> None:
    """Up to the digits that are printed."""
    assert parse_bytes(format_bytes(nbytes), where="here") == pytest.approx(nbytes, rel=0.06)


@given(sizes, sizes)
def test_printing_keeps_the_order(a: int, b: int) -> None:
    small, large = (parse_bytes(format_bytes(n), where="here") for n in sorted((a, b)))
    assert small <= large


@given(st.text(max_size=8))
def test_any_text_is_a_size_or_an_option_error(text: str) -> None:
    try:
        assert parse_bytes(text, where="here") > 0
    except OptionError as error:
        assert f"here={text!r}" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (300 * 2**20, "300.0 MiB"),
        (5 * 2**28, "1.25 GiB"),
        (2**41, "2048.00 GiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_printed_sizes(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text


@pytest.mark.parametrize("nbytes", [1024**2 - 1, 1024**3 - 1])
def test_rounding_does_not_reach_the_next_unit(nbytes: int) -> None:
    assert "1024.0" not in format_bytes(nbytes)


def test_printed_seconds() -> None:
    assert [format_seconds(s) for s in (1.2, 3.4e-3, 1.2e-5)] == ["1.20 s", "3.4 ms", "12.0 us"]


@pytest.mark.parametrize(
    ("value", "budget"),
    [
        (None, Budget()),
        ("none", Budget()),
        ("auto", Budget(auto=True)),
        (" AUTO ", Budget(auto=True)),
        ("6GiB", Budget(nbytes=6 * 2**30)),
        ("300 MB", Budget(nbytes=300 * 10**6)),
        ("4096", Budget(nbytes=4096)),
        (1, Budget(nbytes=1)),
        (1.0, Budget(fraction=1.0)),
        (0.25, Budget(fraction=0.25)),
        ("0.25", Budget(fraction=0.25)),
        ("1.0", Budget(fraction=1.0)),
        (Budget(nbytes=7), Budget(nbytes=7)),
    ],
)
def test_budgets(value: object, budget: Budget) -> None:
    assert parse_budget(value) == budget


@given(st.one_of(st.floats(), st.integers(), st.text(max_size=6), st.booleans(), st.binary()))
def test_any_budget_is_positive_or_an_option_error(value: object) -> None:
    try:
        budget = parse_budget(value, where="here")
    except OptionError as error:
        assert f"here={value!r}" in str(error)  # noqa: PT017
    else:
        assert budget.nbytes is None or budget.nbytes > 0
        assert budget.fraction is None or 0 < budget.fraction <= 1


# -- stored plans -------------------------------------------------------------------------------

names = st.text(max_size=6)
nbytes = st.integers(0, 2**45)
times = st.floats(1e-12, 1e6) | st.just(0.0)
rows = st.builds(
    Row,
    **{
        f.name: {"int": nbytes, "float": times, "bool": st.booleans()}.get(str(f.type), names)
        for f in dataclasses.fields(Row)
    },
)
peaks = st.builds(
    Peak,
    **{
        f.name: {"int": nbytes, "bool": st.booleans()}.get(str(f.type), names)
        for f in dataclasses.fields(Peak)
    },
)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    starts = [0, *sorted(draw(st.sets(st.integers(1, 99), max_size=3)))]
    columns = [tuple(draw(nbytes) for _ in starts) for _ in range(5)]
    ops = tuple(draw(names) for _ in starts)
    return Timeline(100, draw(st.integers(0, len(starts))), tuple(starts), ops, *columns)


plans = st.builds(
    Plan,
    **{
        f.name: {"int": nbytes, "float": times}.get(str(f.type), names)
        for f in dataclasses.fields(Plan)
    }
    | {
        "budget_bytes": st.none() | nbytes,
        "peak": peaks,
        "kept": st.lists(names, max_size=3).map(tuple),
        "notes": st.lists(names, max_size=3).map(tuple),
        "stops": st.lists(st.tuples(names, st.integers(1, 9)), max_size=2).map(tuple),
        "frontier": st.lists(st.builds(Tradeoff, nbytes, times), max_size=2).map(tuple),
        "timeline": st.none() | timelines(),
        "unconstrained": st.none() | timelines(),
        "rules": st.lists(st.tuples(names, names), max_size=2).map(tuple),
        "versions": st.lists(st.tuples(names, names), max_size=2).map(tuple),
        "_rows": st.lists(rows, max_size=3).map(tuple),
    },
)


@given(plans)
def test_a_plan_survives_json(plan: Plan) -> None:
    again = Plan.from_json(plan.to_json())
    assert again == plan and again.rows() == plan.rows() and again.summary() == plan.summary()


@given(plans)
def test_derived_numbers(plan: Plan) -> None:
    if plan.forward_seconds:
        assert plan.recompute_ratio * plan.forward_seconds == pytest.approx(plan.recompute_seconds)
    else:
        assert plan.recompute_ratio == plan.gap == 0


@given(plans)
def test_a_newer_format_is_refused(plan: Plan) -> None:
    data = json.loads(plan.to_json())
    data["format"] += 1
    with pytest.raises(OptionError, match=f"format {data['format']}"):
        Plan.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", "null", "not json", '{"format": 1}'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(OptionError, match="not a gcpass plan"):
        Plan.from_json(text)
