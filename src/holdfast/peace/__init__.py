"""Peace: who may write to the store when, and through which servers, so that writers do not slow each other down.

sguard §5. `model.py` is the network as an administrator describes it, `tree.py` the same for the scheduler, `chain.py`
places one chunk (algorithm 1), `machine.py` is the coordinator's side, `desk.py` what it answers, `forecast.py` plays a
set of requests through it. Nothing here reads a file, a clock or a socket.
"""

from holdfast.peace.desk import WriteAnswer, WriteDesk, WriteQuestion
from holdfast.peace.forecast import Forecast, ForecastRow, forecast
from holdfast.peace.machine import (
    Answers,
    Denial,
    Denied,
    Granted,
    GrantedChunk,
    Peace,
    PeaceSettings,
    Postponed,
)
from holdfast.peace.model import NetworkModel, Where, read_model

__all__ = [
    "Answers",
    "Denial",
    "Denied",
    "Forecast",
    "ForecastRow",
    "Granted",
    "GrantedChunk",
    "NetworkModel",
    "Peace",
    "PeaceSettings",
    "Postponed",
    "Where",
    "WriteAnswer",
    "WriteDesk",
    "WriteQuestion",
    "forecast",
    "read_model",
]
