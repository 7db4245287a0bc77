"""What every picture needs: matplotlib without a screen, and a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gcpass._errors import OptionError


def pyplot(what: str) -> Any:
    """``matplotlib.pyplot``, drawing into files.

    Args:
        what: what is to be drawn, for the error.

    Raises:
        OptionError: matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise OptionError(f"drawing {what} needs matplotlib: pip install 'gcpass[plot]'") from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save(figure: Any, path: Path) -> None:
    """Write a figure into a file, whose name says the format, and close it.

    Raises:
        OptionError: the file cannot be written.
    """
    import matplotlib.pyplot as plt

    figure.tight_layout()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise OptionError(f"--plot {path} cannot be written: {error}") from error
    finally:
        plt.close(figure)
