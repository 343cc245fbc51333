"""The virtual world: the same core as on real nodes, on a virtual clock, with modelled costs, network, disks and Spark.

One seed decides everything. After every event the checkers look at what was decided; a violation stops the run and
names the seed that replays it.
"""
