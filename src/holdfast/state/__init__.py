"""State on pages: a pool with copy-on-write snapshots, and the data structures that live in it.

    pages.py       the pool, page sets, snapshots          sguard §4.1, §4.4 (kernels: pagetable.py)
    checkpoint.py  snapshots as bytes, and back
    heap.py        variable-length values
    slots.py       fixed-size records with stable numbers
    hashmap.py     unordered map (index.py, keys.py)       ordered.py   ordered map
    deque.py       list, queue and deque

Read `pages.py` first, then `slots.py` and `hashmap.py`.
"""

from holdfast.kernelcache import versioned

with versioned():
    from holdfast.state.checkpoint import Checkpoint, restore, stream, write
    from holdfast.state.deque import Deque
    from holdfast.state.hashmap import HashMap, MapLayout
    from holdfast.state.keys import Keys, make_keys
    from holdfast.state.ordered import OrderedMap
    from holdfast.state.pages import PagePool, PageSet, PoolStats, Snapshot
    from holdfast.state.slots import SlotStore

__all__ = [
    "Checkpoint",
    "Deque",
    "HashMap",
    "Keys",
    "MapLayout",
    "OrderedMap",
    "PagePool",
    "PageSet",
    "PoolStats",
    "SlotStore",
    "Snapshot",
    "make_keys",
    "restore",
    "stream",
    "write",
]
