"""Does a message speak of things that this pipeline has? The core may then rely on every name in it.

A message that can be read may still come from a node of another pipeline, or from a reader with an old plan.
"""

from __future__ import annotations

from holdfast.core.node import Node
from holdfast.model import messages as m


def is_known(message: m.Message, node: Node) -> bool:
    topology = node.topology
    if isinstance(message, m.Subscribe | m.Data):
        return message.edge in topology.consumers
    if isinstance(message, m.Capture | m.Pasted):
        return message.shard in topology.shard
    if isinstance(message, m.Deliver):
        return message.stage in topology.stage and all(edge in topology.producer for edge in message.parts)
    if isinstance(message, m.Prepare | m.Seal):
        return message.stage in topology.stage and all(shard in topology.shard for shard in message.shards)
    if isinstance(message, m.LedgerOpen | m.LedgerWrite):
        return message.stage in topology.stage and bool(topology.stage[message.stage].shards)
    if isinstance(message, m.LedgerCopy | m.LedgerCopied):
        return message.ledger in node.ledgers
    if isinstance(message, m.Push | m.Append):
        return all(shard in message.record.places for shard in topology.shard)
    return type(message) in node.handlers
