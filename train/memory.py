"""Memory of a CPU run: what torch frees is kept by the process instead of being given back and asked for again.

glibc returns every large block to the kernel when it is freed and has it zeroed anew when the next tensor wants it.
A training step on a CPU frees and takes gigabytes, and in a virtual machine these page faults can cost as much time
as the arithmetic. `benchmarks/cpu_memory.py` measures the difference.
"""

import ctypes
import sys
from functools import cache

# <malloc.h>
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


@cache
def keep_freed_memory() -> bool:
    """Tells glibc to keep freed memory for this process; returns whether it did.

    Does nothing on other systems, with other allocators, and where a GPU does the work. The process then holds its
    peak memory until it ends.
    """
    import torch

    if not sys.platform.startswith("linux") or torch.cuda.is_available():
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    # No separate mappings for large blocks, no trimming of the heap's top, and room for a large block at each growth.
    return all(
        mallopt(option, value) == 1
        for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 64 << 20))
    )
