"""Real nodes: the machines of the core, driven by sockets, disks and the machine's own clock.

    node/    a process: one thread owns one machine (`loop.py`), and everything around it (`process.py`)
    net/     how machines hear each other: links, frames, rows, secrets
    disk/    the journal behind `Ready.persist`, and the output logs of edges
    client/  what watches a cluster from outside: probe, measurements, nodes of one run on this machine

Nothing in here decides who does what: the core does.
"""
