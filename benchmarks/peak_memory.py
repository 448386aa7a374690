"""Peak memory of a training step, in a process of its own: python benchmarks/peak_memory.py ours base

Prints {"peak_mb": ...}: the most that the process held during a step, weights and Adam's moments included, beyond
what it held after its imports.
"""

import ctypes
import json
import sys
from pathlib import Path

from threadpoolctl import threadpool_limits

from steps import SIZES, OurStep


def resident(field):
    """VmRSS (now) or VmHWM (the most since the last reset) of this process in MB, on Linux."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"no {field} in /proc/self/status")


def reset_peak():
    Path("/proc/self/clear_refs").write_text("5")


def give_back():
    """Hand freed memory to the system, so that what construction used and freed does not count as a step's."""
    ctypes.CDLL(None).malloc_trim(0)


def main(side, name):
    if side == "torch":
        import torch
        from torch_steps import TorchStep
        torch.set_num_threads(1)
    before = resident("VmRSS")
    with threadpool_limits(limits=1):
        step = OurStep(SIZES[name])
        if side == "torch":
            step = TorchStep(step)                     # from here on nothing holds our model
        give_back()
        step()                                         # gradients and moments come into being
        reset_peak()
        step()
        step()
    print(json.dumps({"peak_mb": resident("VmHWM") - before}))


if __name__ == "__main__":
    main(*sys.argv[1:])
