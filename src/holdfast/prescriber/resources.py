"""What a plan reserves beside the network: CPU, storage, memory; and what that costs at your prices.

The paper models the network and leaves the other resources to its technical report (§2.4, §3.1). We count them from
the same mechanisms: CPU like the compute nodes' share of the bandwidth (what may run at RR_F must be able to compute
at RR_F), storage as journal and checkpoints times K_F, memory as the state times the copies that hold it. Whichever
resource moves a checkpoint slowest sets S_T: `slowest` gives the scenario for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import ConfigError

from .models import StrategyPlan
from .scenario import Scenario
from .units import positive

MB, GB = 1e6, 1e9


@dataclass(frozen=True)
class Prices:
    """Per month: a MB/s of NIC bandwidth, one copy's CPU at input rate, a GB stored, a GB of memory."""

    network: float = 0.0
    cpu: float = 0.0
    storage: float = 0.0
    memory: float = 0.0

    def __post_init__(self) -> None:
        for name in ("network", "cpu", "storage", "memory"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0.0 <= value < float("inf")):
                raise ConfigError(f"price of {name} must be a number of at least 0, not {value}")


@dataclass(frozen=True)
class Resources:
    """Reserved on average: bytes/s over all NICs, CPU in copies at input rate, bytes stored, bytes in memory."""

    network: float
    cpu: float
    storage: float
    memory: float

    def money(self, prices: Prices) -> float:
        """Per month."""
        return (
            self.network / MB * prices.network
            + self.cpu * prices.cpu
            + self.storage / GB * prices.storage
            + self.memory / GB * prices.memory
        )


def resources(name: str, scenario: Scenario, plan: StrategyPlan, rr: float, cost: float) -> Resources:
    """What strategy `name` reserves under `plan`."""
    rate, state = scenario.input_rate, scenario.checkpoint_size or 0.0
    window = (scenario.window or 0.0) * rate
    since_checkpoint = plan.interval * scenario.mtbf * rate
    cpu = {
        "periodic": rr, "aa_replay": plan.copies, "aa_periodic": plan.copies, "on_demand": plan.copies * rr,
        "hybrid": 2.0 * rr, "cooperative": rr,
    }.get(name, 1.0)  # fmt: skip
    if name in ("periodic", "aa_periodic"):
        stored = 2.0 * state + since_checkpoint  # the last checkpoint, the one being written, the input since
    elif name == "on_demand":
        stored = 0.0
    else:
        stored = window
    copies = {"hybrid": 2, "cooperative": 2}.get(name, plan.copies)
    memory = copies * state + (min(window, since_checkpoint) if name in ("hybrid", "cooperative") else 0.0)
    return Resources(
        network=cost * (scenario.replicas + 3.0) * rate,
        cpu=cpu,
        storage=stored * scenario.replicas,
        memory=memory,
    )


def slowest(scenario: Scenario, *, serialise_rate: float | None = None, store_rate: float | None = None) -> Scenario:
    """The scenario whose S_T is that of the slowest resource.

    `serialise_rate`: bytes of checkpoint per second that the CPU share which handles the live input can encode;
    `store_rate`: bytes per second that the storage share reserved for the live input can take. RR_F then scales that
    resource too.
    """
    if scenario.checkpoint_size is None:
        return scenario
    times = [scenario.checkpoint_size / scenario.input_rate]
    for rate, what in ((serialise_rate, "serialise_rate"), (store_rate, "store_rate")):
        if rate is not None:
            times.append(scenario.checkpoint_size / positive(rate, what))
    return scenario.but(checkpoint_size=max(times) * scenario.input_rate)
