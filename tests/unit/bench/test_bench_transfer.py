"""A state on its way to a new image takes little memory beside itself, on either side."""

from __future__ import annotations

import pytest

from bench.state.transfer import SPARE_BYTES, measure


@pytest.mark.slow
def test_a_transfer_that_starts_over_half_way_takes_at_most_the_state_and_64_mib():
    """300 MB: a second copy of it on either side, or two images beside each other at the receiver, would show."""
    found = measure(300_000_000)
    assert found["equal"]
    assert found["state MB"] > 250
    assert found["sent MB"] > 1.4 * found["state MB"] * 0.8, "the walk did not start over"
    for side in ("sender", "receiver"):
        assert found[f"{side} beside its state MiB"] <= SPARE_BYTES / 2**20, side
