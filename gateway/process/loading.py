"""How a command's modules are imported: without the garbage collector.

What modules consist of stays. The collector would look through all of it again and again while more comes, which takes a fifth of
the time of a gateway's imports, and once more whenever it collects later.
"""

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """For a block that imports: it is not interrupted, and what is there at its end is left out of garbage collection."""
    works = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if works:
            gc.enable()
