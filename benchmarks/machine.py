"""The machine that figures were measured on, in words."""

import os
import platform
from pathlib import Path


def machine():
    """The number of cores that may be used, and the processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {names[0] if names else platform.processor()}"
