"""The stable store as nodes and stages use it: checkpoints of shards, and the log of what stages have handed over."""
