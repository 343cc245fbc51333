"""Real nodes: the machines of the core, driven by sockets, disks and the machine's own clock.

Read it in this order: `driver.py` (one thread owns one machine), `transport.py` (how machines hear each other),
`units.py` (operators as the core wants them), `node.py` (a process). Nothing in here decides who does what.
"""
