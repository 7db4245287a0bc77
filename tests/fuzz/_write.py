"""A fault as a case of `tests/cases`, ready to be given a name."""

from __future__ import annotations

from textwrap import indent

from fuzz._judge import Fault
from fuzz._program import Program, source

_MODULE = '''"""Found by the fuzz: to be moved to its kind, with what is right and why."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ._case import Run, case
from ._trained import train


@case(like_eager=False)
def {name}(run: Run) -> None:
    """{why}

    Found under {setting}.
    """

{fn}
    train(run, fn)
'''


def case_source(program: Program, fault: Fault, name: str) -> str:
    """The text of a module of `tests/cases` with one case.

    Args:
        program: the program.
        fault: what is wrong with it.
        name: of the case.
    """
    why = fault.why.split("; ")[0].replace("\\", "/").replace('"', "'")
    fn = indent(source(program), "    ")
    return _MODULE.format(name=name, why=why, setting=fault.setting, fn=fn)
