"""What a set of requests would get: they come at once, every write takes one timestep, nobody fails.

`holdfast peace plan` shows it. The same machine decides as at work; only the writers are played.
"""

from __future__ import annotations

from random import Random

import msgspec

from holdfast.errors import check
from holdfast.peace.machine import Answers, Denied, Peace, PeaceSettings
from holdfast.peace.model import NetworkModel


class ForecastRow(msgspec.Struct, frozen=True):
    """One chunk: in which timestep, and through which servers."""

    timestep: int
    writer: str
    request: int
    chunk: int
    chain: tuple[str, ...]


class Forecast(msgspec.Struct, frozen=True):
    rows: tuple[ForecastRow, ...]
    denied: tuple[Denied, ...]
    timesteps: int


def forecast(model: NetworkModel, requests: list[tuple[str, int]], seed: int) -> Forecast:
    """Grants for (writer, chunks), in their order, until everything is written."""
    # a timestep is over when all of it is: its writes take equally long here
    peace = Peace(model, PeaceSettings(end_share=1.0), Random(seed))
    rows: list[ForecastRow] = []
    denied: list[Denied] = []

    timestep = 1

    def note(answers: Answers) -> None:
        denied.extend(answers.denied)
        for granted in answers.granted:
            for one in granted.chunks:
                rows.append(ForecastRow(timestep, granted.writer, granted.request, one.chunk, one.chain))

    for number, (writer, chunks) in enumerate(requests):
        note(peace.on_write_wanted(writer, number, chunks, 0))
    while peace.underway:
        before = len(rows)
        timestep += 1
        for writer, number, chunk in [*peace.underway]:
            note(peace.on_write_over(writer, number, chunk, 0))
        check(len(rows) > before or not peace.waiting, "requests wait, and nothing is granted")
    return Forecast(tuple(rows), tuple(denied), rows[-1].timestep if rows else 0)
