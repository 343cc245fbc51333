"""Everything that decides, without I/O: an event goes in, messages and effects come out.

Two drivers run it: the simulator (`holdfast.sim`) and the runtime. Neither is visible from here: no clock, no thread,
no randomness of its own, no socket. `now_ns` is the process's own clock, handed in with every event.
"""
