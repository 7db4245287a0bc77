"""The private names of Dynamo, and of autograd's saved tensors: thin doors, no decisions."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from torch import fx
from torch._dynamo.eval_frame import OptimizedModule, reset_code
from torch._guards import TracingContext


def current_code() -> CodeType | None:
    """The code of the function that Dynamo is compiling; None outside Dynamo."""
    context = TracingContext.try_get()
    return context.traced_code[0] if context is not None and context.traced_code else None


def is_whole_model(gm: fx.GraphModule) -> bool:
    """Whether nothing says that a graph is part of a model: no graph break, no module around it."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    code = current_code()
    resumes = code is not None and code.co_name.startswith("torch_dynamo_resume_in_")
    return not (resumes or (reason is not None and reason.graph_break) or _is_inside_a_module())


def _is_inside_a_module() -> bool:
    """Whether a module is being called by another one's forward."""
    called: set[int] = set()
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code is torch.nn.Module._call_impl.__code__:
            module = frame.f_locals["self"]
            if not isinstance(module, OptimizedModule):  # what `torch.compile` puts around it
                called.add(id(module))
        frame = frame.f_back
    return len(called) > 1


def forget(code: CodeType) -> None:
    """Let Dynamo compile a function again when it is next called."""
    reset_code(code)


def saves_elsewhere() -> bool:
    """Whether saved-tensor hooks are on: what is saved is recomputed later, or moved elsewhere."""
    autograd: Any = torch._C
    return autograd._autograd._top_saved_tensors_default_hooks(False) is not None


def when_autograd_is_done(call: Callable[[], None]) -> None:
    """Have something called at the end of the backward that is running."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def gradient_nbytes(node: Any, place: int) -> int:
    """Bytes of a gradient that an autograd node takes."""
    if hasattr(node, "variable"):
        return node.variable.nbytes
    meta = node._input_metadata[place]
    return math.prod(meta.shape) * meta.dtype.itemsize
