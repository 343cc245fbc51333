"""The vote of a store in a cluster of two: `run/witness/<deployment>`, a small object that is compared and set.

What it says is decided in `core/witness.py`; here is only how its state is read and replaced. Asking twice is as good
as asking once, so a change of which nobody knows whether it was done is simply asked for again.
"""

from __future__ import annotations

from urllib.parse import quote

import msgspec

from holdfast.checkpoint import head as heads
from holdfast.core.ready import AskWitness, WitnessAnswer, WitnessState
from holdfast.core.witness import answer
from holdfast.errors import StoreUnreachableError, SwapConflictError
from holdfast.store.plan import LookAt, Steps, SwapSmall

_MAGIC, _FORMAT = b"HFWT", 1
#: There are two who ask, and each of them waits for its answer.
_TRIES = 20


def ask_witness(deployment: str, asked: AskWitness) -> Steps[WitnessAnswer]:
    key = f"run/witness/{quote(deployment, safe='')}"
    for _ in range(_TRIES):
        found = yield LookAt(key)
        state, version = (_decoded(found[0], key), found[1]) if found else (WitnessState(), None)
        after, said = answer(state, asked)
        if after == state:
            return said
        try:
            yield SwapSmall(key, heads.pack(msgspec.msgpack.encode(after), _MAGIC, _FORMAT), version)
        except SwapConflictError:
            continue
        return said
    raise StoreUnreachableError("the store's vote could not be had", detail=f"{key} was changed {_TRIES} times.")


def _decoded(raw: bytes, what: str) -> WitnessState:
    try:
        return msgspec.msgpack.decode(heads.unpack(raw, _MAGIC, _FORMAT, what), type=WitnessState)
    except msgspec.DecodeError as error:
        raise heads.damaged(what, str(error)) from None
