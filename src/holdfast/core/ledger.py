"""The ledger of one stage on one node: which driver may write, and the last commit. The truth about what counts.

It lives on two nodes, and on their disks, which write at the same time: the primary sends the page on before its own
disk has it, and answers a driver when every disk says so, its own (`kept`) and that of every holder that the placement
names. So whoever is promoted knows every commit that anybody was told of. A holder may then be ahead of a primary that
died while it wrote: it says so, and the primary takes over what it has (`later`), as if it had finished its write.

Opening it raises the fence: an older driver is refused from then on by the only thing it could commit with. The whole
content is one small page, so a copy is always whole, and pages are ordered (fence, last batch): an old one that arrives
late is nothing.
"""

from __future__ import annotations

from holdfast.core.ready import Ready
from holdfast.model import notes
from holdfast.model.found import KeptPage, ledger_entry
from holdfast.model.ids import Address, Asset, Name, Seat, disk_seat, name_of, stage_of
from holdfast.model.messages import (
    LedgerCopied,
    LedgerCopy,
    LedgerOpen,
    LedgerState,
    LedgerWrite,
    Message,
    Refused,
    Yielded,
)
from holdfast.model.parts import LedgerPage
from holdfast.model.reasons import HandOverReason
from holdfast.model.record import Place

EMPTY = LedgerPage("", 0, None)


def later(one: LedgerPage, other: LedgerPage) -> LedgerPage:
    """The higher fence and the later commit of both: a commit that a disk has is not dropped, whoever opens meanwhile.
    There is only one of each batch, since a driver writes only when every disk has what it was told at its opening."""
    high, low = (one, other) if one.rank >= other.rank else (other, one)
    if low.commit is not None and (high.commit is None or low.commit.batch > high.commit.batch):
        return LedgerPage(high.query, high.fence, low.commit)
    return high


class Ledger:
    __slots__ = ("asker", "copied", "id", "kept", "kept_since", "page", "place", "seat", "stage")

    def __init__(self, ledger: Asset, name: Name, kept: KeptPage | None = None) -> None:
        self.id = ledger
        self.stage = stage_of(ledger)
        self.seat = disk_seat(name)
        self.page = kept.page if kept else EMPTY
        #: Rank of the page that this node's own disk is known to have.
        self.kept = self.page.rank
        #: Version of the place under which the page was put on disk.
        self.kept_since = kept.since if kept else 0
        self.place: Place | None = None
        #: Rank of the page that each target has on disk, under the present place.
        self.copied: dict[Seat, tuple[int, int]] = {}
        #: The driver that waits for an answer, and its epoch.
        self.asker: tuple[Address, int] | None = None

    @property
    def is_primary(self) -> bool:
        return self.place is not None and self.place.primary == self.seat

    def _keep(self, ready: Ready) -> None:
        self.kept_since = self.place.since if self.place else 0
        ready.persist.append(ledger_entry(self.id, self.kept_since, self.page))
        self._confirm(ready)

    def _confirm(self, ready: Ready) -> None:
        """Let this node's disk answer as every other does: a message that leaves when all is written comes back."""
        if self.is_primary and self.place is not None and self.kept != self.page.rank:
            ready.send.append((self.seat, LedgerCopied(ledger=self.id, since=self.place.since, rank=self.page.rank)))

    def on_place(self, place: Place, ready: Ready) -> None:
        """A new version of the place: the primary tells all targets anew.

        Whoever joins starts from nothing, since what an earlier time left on its disk may never have counted; but not
        if it only restarted in the middle of joining, since the primary may have reported it already.
        """
        if place.joining == self.seat and self.kept_since != place.since:
            self.page = EMPTY
        self.place = place
        self.copied = {}
        if self.is_primary:
            self._confirm(ready)
            self.on_tick(ready)
            self._answer(ready)
        else:
            self.asker = None

    def on_tick(self, ready: Ready) -> None:
        self._tell(ready.send)

    def _tell(self, messages: list[tuple[Address, Message]]) -> None:
        """Tell targets that have not confirmed the present page."""
        if not self.is_primary or self.place is None:
            return
        for target in self.place.targets:
            if self.copied.get(target) != self.page.rank:
                messages.append((target, LedgerCopy(ledger=self.id, since=self.place.since, page=self.page)))

    def in_step(self) -> bool:
        """Every disk has the page."""
        rank, place = self.page.rank, self.place
        return place is not None and self.kept == rank and all(self.copied.get(t) == rank for t in place.targets)

    def _answer(self, ready: Ready) -> None:
        if self.asker and self.in_step():
            address, epoch = self.asker
            self.asker = None
            if epoch < self.page.fence:  # a later driver had opened it: that was found on the backup's disk
                self._refuse(address, epoch, -1, HandOverReason.EPOCH_OVER, ready)
                return
            ready.notes.append(notes.Ledgered(self.stage, epoch, self.page.rank))
            ready.send.append((address, LedgerState(stage=self.stage, epoch=epoch, commit=self.page.commit)))

    def _refuse(
        self, source: Address, epoch: int, batch: int, reason: HandOverReason, ready: Ready, detail: str = ""
    ) -> None:
        version = self.place.since if self.place else 0
        refused = Refused(stage=self.stage, epoch=epoch, batch=batch, reason=reason, version=version, detail=detail)
        ready.send.append((source, refused))

    def on_ledger_open(self, source: Address, message: LedgerOpen, now_ns: int, ready: Ready) -> None:
        if not self._may_serve(source, message.epoch, -1, ready):
            return
        if self.page.query and self.page.query != message.query:
            self._refuse(source, message.epoch, -1, HandOverReason.FOREIGN, ready, repr(message.query))
            return
        self.page = LedgerPage(message.query, message.epoch, self.page.commit)
        self._keep(ready)
        self._serve(source, message.epoch, ready)

    def _serve(self, source: Address, epoch: int, ready: Ready) -> None:
        """Answer this driver when every disk has the page. The other disks need not wait for ours."""
        self.asker = (source, epoch)
        self._tell(ready.early)
        self._answer(ready)

    def _may_serve(self, source: Address, epoch: int, batch: int, ready: Ready) -> bool:
        if not self.is_primary or (self.place and self.place.moving):
            self._refuse(source, epoch, batch, HandOverReason.NOT_THE_LEDGER, ready)
            return False
        if epoch < self.page.fence:
            self._refuse(source, epoch, batch, HandOverReason.EPOCH_OVER, ready)
            return False
        return True

    def on_ledger_write(self, source: Address, message: LedgerWrite, now_ns: int, ready: Ready) -> None:
        commit = message.commit
        if not self._may_serve(source, message.epoch, commit.batch, ready):
            return
        last = self.page.commit.batch if self.page.commit else -1
        if message.epoch > self.page.fence or commit.batch > last + 1:
            self._refuse(source, message.epoch, commit.batch, HandOverReason.NOT_OPENED, ready)
            return
        if commit.batch == last + 1:
            self.page = LedgerPage(self.page.query, self.page.fence, commit)
            self._keep(ready)
        self._serve(source, message.epoch, ready)

    def on_ledger_copy(self, source: Address, message: LedgerCopy, now_ns: int, ready: Ready) -> None:
        """From the primary, under the same place as ours: keep this page. If ours is ahead, say so."""
        if self.place is None or self.seat not in self.place.targets:
            return
        page = later(self.page, message.page)
        if page != self.page or page == EMPTY:
            self.page = page
            self._keep(ready)
        ahead = page if page != message.page else None
        ready.send.append((source, LedgerCopied(ledger=self.id, since=message.since, rank=page.rank, ahead=ahead)))

    def on_ledger_copied(self, source: Address, message: LedgerCopied, now_ns: int, ready: Ready) -> None:
        seat, rank = disk_seat(name_of(source)), (message.rank[0], message.rank[1])
        if seat == self.seat:
            self.kept = rank
            self._answer(ready)
            return
        if not self.is_primary:
            return
        page = later(self.page, message.ahead or self.page)
        if page != self.page:
            self.page = page
            self._keep(ready)
            self._tell(ready.early)
        if rank == self.page.rank and self.copied.get(seat) != rank:
            self.copied[seat] = rank
            self._answer(ready)

    def report(self) -> Seat | None:
        """The joining holder, once it has everything."""
        place = self.place
        if not self.is_primary or place is None or place.joining is None:
            return None
        return place.joining if self.copied.get(place.joining) == self.page.rank else None

    def yielded(self) -> Yielded | None:
        """Once this primary shall move and its backup has everything: nothing is in flight any more."""
        place = self.place
        if place is None or not self.is_primary or not place.moving or not self.in_step():
            return None
        return Yielded(asset=self.id, since=place.since)
