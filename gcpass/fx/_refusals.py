"""What transformers and torch say against a model that gcpass builds by its name."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from gcpass._errors import GcpassError, OptionError
from gcpass._workload import Workload
from gcpass.fx import _compat

log = logging.getLogger("gcpass")


@contextmanager
def refusals(workload: Workload) -> Iterator[None]:
    """Errors while the workload's model is built and traced become one that names it, in a line.

    What Dynamo warns of is transformers' own affair, and nothing is run.

    Raises:
        OptionError: they raised something.
    """
    try:
        with _compat.without_dynamo_warnings():
            yield
    except GcpassError:
        raise
    except Exception as error:
        log.debug("%s", workload.target, exc_info=True)
        changed = "".join(f" --config {change}" for change in workload.config)
        reason = _compat.met_by_dynamo(error)
        said = f"{type(reason).__name__}: {str(reason).strip().partition(chr(10))[0]}"
        raise OptionError(
            f"{workload.target}{changed} cannot be built and traced: {said}"
        ) from error
