"""Planted bugs in who is a member: nodes that no file of the others names, and nodes that leave for good."""

from __future__ import annotations

from mutants import Patch, mutant

from holdfast.core import placement
from holdfast.core.election import Election, Standing
from holdfast.core.membership import Membership
from holdfast.model.messages import Append


@mutant
def a_node_counts_before_the_record_has_it_as_a_member() -> list[Patch]:
    """Whoever is in the roster gets records, and its answers make a majority."""
    voters, peers = Election._voters, Election._peers

    def _voters(self, record):
        late = [name for name in record.roster if name not in record.members and not record.has_left(name)]
        return voters(self, record) + late

    def _have_majority(self, names):
        found = self._voters(self.accepted)
        return sum(1 for name in names if name in found) >= len(self.accepted.members) // 2 + 1

    def _peers(self):
        return sorted({*peers(self), *self._voters(self.accepted)} - {self.name})

    def on_pull(self, source, ready):
        if self.standing is Standing.COORDINATOR and source in self._voters(self.accepted):
            append = Append(term=self.term, record=self.accepted, commit=self.commit)
            ready.send.append((source, append))

    return [
        (Election, "_voters", _voters),
        (Election, "_have_majority", _have_majority),
        (Election, "_peers", _peers),
        (Election, "on_pull", on_pull),
    ]


@mutant
def two_members_come_with_one_record() -> list[Patch]:
    right = placement._change_members

    def change(made, reports):
        found = right(made, reports)
        while right(made, reports):
            pass
        return found

    return [(placement, "_change_members", change)]


@mutant
def a_member_more_before_the_last_one_is_decided() -> list[Patch]:
    def may_propose(self):
        return self.standing is Standing.COORDINATOR

    return [(Election, "may_propose", may_propose)]


@mutant
def a_node_is_a_member_before_its_address_is_known() -> list[Patch]:
    right = Membership.on_let_in

    def on_let_in(self, source, message, now_ns, ready):
        right(self, source, message, now_ns, ready)
        self._reports().hellos[message.name] = 1

    def judge(self, reports, now_ns):
        pass

    return [(Membership, "on_let_in", on_let_in), (Membership, "judge", judge)]


@mutant
def who_has_left_is_let_in_again() -> list[Patch]:
    def on_hello(self, source, message, now_ns, ready):
        hellos = self._reports().hellos
        hellos[message.name] = max(message.life, hellos.get(message.name, 0))

    return [(Membership, "on_hello", on_hello), (Membership, "_may_come", lambda self, name, now_ns: True)]
