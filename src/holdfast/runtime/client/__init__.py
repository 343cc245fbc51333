"""Outside of a node: start nodes on this machine, follow a stream, measure a run, apply an SLA."""
