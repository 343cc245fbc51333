"""Stable storage behind one small interface (`port.py`), and a service that runs plans on it (`service.py`)."""

from holdfast.store.local import LocalStore
from holdfast.store.memory import MemoryStore, Trouble
from holdfast.store.plan import (
    All,
    DeleteKeys,
    GetWhole,
    ListKeys,
    LookAt,
    PutNew,
    ReadRanges,
    Steps,
    SwapSmall,
    run_alone,
)
from holdfast.store.port import Store, StoredObject
from holdfast.store.service import IoService
from holdfast.store.url import check_url, open_store

__all__ = [
    "All",
    "DeleteKeys",
    "GetWhole",
    "IoService",
    "ListKeys",
    "LocalStore",
    "LookAt",
    "MemoryStore",
    "PutNew",
    "ReadRanges",
    "Steps",
    "Store",
    "StoredObject",
    "SwapSmall",
    "Trouble",
    "check_url",
    "open_store",
    "run_alone",
]
