"""The ledger of one stage on one node: which driver may write, and the last commit. The truth about what counts.

It lives on the disks of two nodes (of three while one joins): a *page*, the fence and the last commit.

**Opening** goes through the primary and raises the fence: an older driver is refused from then on by the only thing it
could commit with. The primary sends the page on before its own disk has it, and answers the driver with the last commit
when every disk that the placement names has the page, its own (`kept`), too. A disk that is ahead says so, and the
primary takes over what it has (`later`).

**A commit** goes from the driver to every disk at once. Each disk takes it for itself if (1) the version `since` of the
ledger's place is the one that the driver writes under, (2) the fence of its page is exactly the driver's epoch, (3) it
is the commit after its last one, or that one again, and (4) the primary is not about to move. It answers when its disk
has it. The commit counts when every disk that the record names has answered under one `since`; nobody is told before.

Why no commit is lost. Whoever is primary or backup under any later version of the place has it: a primary was primary
or backup under the version before; a backup was one of those, or joined. What joins starts from nothing and is reported
by a primary that knows its version of the place, so that it had answered every commit of earlier versions before; and a
commit under that version needs the answer of the joining disk itself.

Why there are never two commits of one batch. A driver writes batch n + 1 only if it was told n by every disk, at its
opening or as its own commit. Suppose that an older driver got its commit onto some disk and no further.

* *The driver dies.* The next one opens; every disk answers with its page, and the latest commit of all is taken over
  before the new driver is answered. It counts, and the new driver seals it: every holder held it before it was written.
* *It is alive, and fenced at one disk only.* A disk that has the new fence refuses it; one that has not may take the
  commit, but only before it answers the copy with the new fence, and that answer brings the commit along.
* *That disk is gone for good*, or is dropped from the place. Nobody was told. If it comes back it joins, from nothing.
* *The place changes between the two writes.* Answers under two versions do not add up: the driver writes again under
  the new one, the same commit, and a disk that has it only answers. One that knows a newer version refuses; one that
  knows an older version takes nothing under the newer.
* *The backup is promoted.* If it has the commit, it is found there and counts; if not, the old primary alone had it,
  and comes back, if it does, from nothing. An opening that only the old primary had seen was not answered: the older
  driver goes on.
* *A drain.* No disk that knows that the primary moves takes a commit; one that does not know it yet may, and says so in
  its answer to the primary's copy, for which the primary waits before it yields.

The whole content is one small page, so a copy is always whole, and pages are ordered (fence, last batch): an old one
that arrives late is nothing.
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
    LedgerWritten,
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
    There is only one of each batch."""
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

    def _confirm(self, ready: Ready) -> None:
        """Let this node's disk answer as every other does: a message that leaves when all is written comes back. (Of
        commits nobody waits for it here: the driver asks each disk.)"""
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
            self.on_tick(ready)
            self._answer(ready)
        else:
            self.asker = None

    def on_tick(self, ready: Ready) -> None:
        self._confirm(ready)
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
        if not self.is_primary or (self.place and self.place.moving):
            self._refuse(source, message.epoch, -1, HandOverReason.NOT_THE_LEDGER, ready)
            return
        if message.epoch < self.page.fence:
            self._refuse(source, message.epoch, -1, HandOverReason.EPOCH_OVER, ready)
            return
        if self.page.query and self.page.query != message.query:
            self._refuse(source, message.epoch, -1, HandOverReason.FOREIGN, ready, repr(message.query))
            return
        self.page = LedgerPage(message.query, message.epoch, self.page.commit)
        self._keep(ready)
        self._confirm(ready)
        self.asker = (source, message.epoch)
        self._tell(ready.early)  # the other disks need not wait for ours
        self._answer(ready)

    def on_ledger_write(self, source: Address, message: LedgerWrite, now_ns: int, ready: Ready) -> None:
        """From a driver, under the same place as ours: keep this commit, and say so when the disk has it."""
        reason = self._why_not(message)
        if reason is not None:
            self._refuse(source, message.epoch, message.commit.batch, reason, ready)
            return
        if message.commit != self.page.commit:
            self.page = LedgerPage(self.page.query, self.page.fence, message.commit)
            self._keep(ready)
            ready.notes.append(notes.CommitTaken(self.stage, message.epoch, message.commit.batch, self.seat))
        answer = LedgerWritten(stage=self.stage, epoch=message.epoch, since=message.since, commit=message.commit)
        ready.send.append((source, answer))

    def _why_not(self, message: LedgerWrite) -> HandOverReason | None:
        """Why this disk does not take a commit; None: it does."""
        page, place = self.page, self.place
        if place is None or place.moving or self.seat not in place.holders:
            return HandOverReason.NOT_THE_LEDGER
        if message.epoch < page.fence:
            return HandOverReason.EPOCH_OVER
        follows = message.commit.batch == (page.commit.batch + 1 if page.commit else 0)
        if message.epoch > page.fence or not (follows or message.commit == page.commit):
            return HandOverReason.NOT_OPENED  # or it joins, and the page has not come yet
        return None

    def refuse_ledger_write(self, source: Address, message: LedgerWrite, ready: Ready) -> None:
        """It was written under another version of the place than ours."""
        self._refuse(source, message.epoch, message.commit.batch, HandOverReason.PLACE_CHANGED, ready)

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
            self._confirm(ready)
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
