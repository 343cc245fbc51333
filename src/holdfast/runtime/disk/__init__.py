"""What a node keeps on its own disk: the journal, and the output logs of edges."""
