"""The frontier: every useful plan from unconstrained to the smallest peak."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gcpass._errors import OptionError
from gcpass._html import Place, fragment, frontier_chart
from gcpass._plan import Plan
from gcpass._units import format_bytes

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Frontier:
    """Plans of one training step, and others to compare them with.

    Attributes:
        points: the optimiser's plans, from the fastest to the one with the smallest peak; each has
            a smaller peak and recomputes more than the one before, but where the user's
            checkpointing preferences are let go of.
        others: plans of other policies, in the order they were asked for.
    """

    points: tuple[Plan, ...]
    others: tuple[Plan, ...] = ()

    def to_json(self) -> str:
        """The frontier as JSON text, read back by `from_json`."""
        plans = {
            name: [json.loads(plan.to_json()) for plan in getattr(self, name)]
            for name in ("points", "others")
        }
        return json.dumps({"format": FORMAT_VERSION, **plans})

    @classmethod
    def from_json(cls, text: str) -> Frontier:
        """Read what `to_json` wrote.

        Raises:
            OptionError: the text is not a frontier, or of a newer format.
        """
        try:
            data = json.loads(text)
            version = data["format"]
            if version != FORMAT_VERSION:
                raise OptionError(
                    f"the frontier has format {version!r}; this gcpass reads {FORMAT_VERSION}"
                )
            return cls(
                *(
                    tuple(Plan.from_json(json.dumps(plan)) for plan in data[name])
                    for name in ("points", "others")
                )
            )
        except OptionError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise OptionError(f"not a gcpass frontier: {error}") from error

    def _repr_html_(self) -> str:
        """What a notebook shows: peak against recomputation, and the numbers."""
        points = [_place("", "other", plan) for plan in self.points]
        return fragment(
            frontier_chart(points, [_place(p.policy, "marked", p) for p in self.others])
        )

    def summary(self) -> str:
        """A table: peak, recomputation, and the least that is proven to be needed at that peak."""
        lines = [f"{'policy':<12} {'peak':>12} {'recompute':>10} {'at least':>9}"]
        for plan in (*self.points, *self.others):
            proven = f"{plan.lower_bound_ratio:>9.1%}" if plan.policy == "optimal" else ""
            if plan.stops:
                proven = "     none; some more than once"
            lines.append(
                f"{plan.policy:<12} {format_bytes(plan.predicted_peak_bytes):>12} "
                f"{plan.recompute_ratio:>10.1%} {proven}".rstrip()
            )
        return "\n".join(lines)


def _place(label: str, kind: str, plan: Plan) -> Place:
    bound = plan.lower_bound_ratio if plan.lower_bound_seconds else None
    return Place(label, plan.predicted_peak_bytes, plan.recompute_ratio, kind, bound)
