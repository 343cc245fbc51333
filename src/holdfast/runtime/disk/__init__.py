"""What a node keeps on its own disk: the journal, and spilled output."""
