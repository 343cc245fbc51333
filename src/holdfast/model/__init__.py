"""Frozen data that crosses every border: ids, blocks, the placement record, messages, settings.

Nothing in here decides anything. A message is one frozen struct, so that the simulator can hand the same object to
ten receivers without copying it, and the runtime can encode it with msgspec without a second definition.
"""
