"""Checkpoint methods behind one interface: whole and delta here; sweeping, paged and eventual will use the same."""

from holdfast.core.checkpoint.method import Method
from holdfast.core.checkpoint.methods import Delta, Whole, method_of
from holdfast.core.checkpoint.rounds import Rounds

__all__ = ["Delta", "Method", "Rounds", "Whole", "method_of"]
