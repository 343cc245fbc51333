"""The emulator: strategies run on a virtual clock, failure by failure, to see what uptime they really give (§6.1).

It takes what a model prescribes (RR_F, C_T, N_F) but nothing of how the model came to it: it moves positions in the
input, pauses, restores and failures forward in time and adds up when nobody is level with the input. Failures come
from any distribution or from a file, strike during recovery too, and checkpoint sizes come from a real run.
"""

from __future__ import annotations

from .failures import Lifetimes
from .run import Emulation, emulate

__all__ = ["Emulation", "Lifetimes", "emulate"]
