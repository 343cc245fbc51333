"""What a capture or a paste costs, learned while it runs: the linear models of cooperative-ha §7.

    aggregate   cost = c_0 + C_n · c_f + C_u · c_p        new windows in full, updated ones as summaries
    join        cost = c_0 + n_1 · c_1 + n_2 · c_2        new tuples of either stream

The paper fits c_f and c_p by regression over past captures. So does this, with weights that fade, because a process
warms up and a machine gets busy. c_0 is what a capture of nothing costs (walking the bitmaps); the paper has no such
term, and without it small captures would be estimated far too cheap.
"""

from __future__ import annotations

import numpy as np


class LinearCost:
    """cost = coefficients · features, fitted on line by least squares with fading memory."""

    #: Weight of the past at each observation: about the last 100 count.
    FADE = 0.99
    #: Captures of fewer units than this count alike: their cost is mostly the base.
    SMALL = 100.0

    def __init__(self, *features: str) -> None:
        self.features = ("base", *features)
        n = len(self.features)
        self._a = np.zeros((n, n))
        self._b = np.zeros(n)
        self.observations = 0
        #: The fit, once it was asked for and until something is observed: schedulers ask all the time.
        self._fitted: dict[str, float] | None = None

    def observe(self, seconds: float, *amounts: float) -> None:
        x = np.array([1.0, *amounts])
        # about relative errors: otherwise one huge capture outweighs a hundred usual ones. The weight goes by what was
        # captured and not by how long it took, or lucky timings would count most and the fit come out too low
        weight = 1.0 / (self.SMALL + sum(amounts)) ** 2
        self._a = self.FADE * self._a + weight * np.outer(x, x)
        self._b = self.FADE * self._b + weight * x * seconds
        self.observations += 1
        self._fitted = None

    @property
    def coefficients(self) -> dict[str, float]:
        """Seconds per unit of each feature; never negative. All zero before anything was observed."""
        if self._fitted is None:
            self._fitted = self._fit()
        return self._fitted

    def _fit(self) -> dict[str, float]:
        active = [i for i in range(len(self.features)) if self._a[i, i] > 0]
        c = np.zeros(len(self.features))
        while active:
            sub = self._a[np.ix_(active, active)]
            scale = np.sqrt(np.diag(sub))
            solved = np.linalg.lstsq(sub / np.outer(scale, scale), self._b[active] / scale, rcond=1e-10)[0] / scale
            if (solved >= 0).all():
                c[active] = solved
                break
            active.pop(int(np.argmin(solved)))  # a negative cost is noise: leave that feature out
        return dict(zip(self.features, c.tolist(), strict=True))

    def estimate(self, *amounts: float) -> float:
        """Seconds that a capture or paste of this size will take."""
        return sum(c * x for c, x in zip(self.coefficients.values(), (1.0, *amounts), strict=True))
