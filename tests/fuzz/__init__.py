"""Random training programs, judged as cases are.

A program is data (`Program`): a frozen list of steps, which is printed as Python source, run from
that source, and made smaller by leaving steps out. `benchmarks/fuzz.py` runs any number of them.
"""

from fuzz._grammar import draw
from fuzz._judge import Fault, Setting, find_fault, settings
from fuzz._program import Program, Step, source
from fuzz._shrink import shrunk
from fuzz._write import case_source

__all__ = [
    "Fault",
    "Program",
    "Setting",
    "Step",
    "case_source",
    "draw",
    "find_fault",
    "settings",
    "shrunk",
    "source",
]
