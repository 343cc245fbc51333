"""The mechanisms themselves, one compiled loop each: what happens to positions, pauses and copies, in order of time.

All times are in units of the mean time between failures; input arrives at rate 1 and `rr` is the speed of everything
that recovers. A kernel consumes a pool of node lifetimes, a new one whenever a node is started, and returns
(time, time down, losses of the state). It never looks at a formula of `..models`: if the two agree, both are right
about the mechanism. Nothing here draws random numbers, so that one seed gives one result.
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def replay(lives, window, rr, copies, keep_output):
    """N independent copies; each starts one window before its last output (or so that it ends at the present)."""
    fails = lives[:copies].copy()
    began = np.zeros(copies)  # when the current recovery began
    lag_at_start = np.zeros(copies)
    level_at = np.zeros(copies)
    now = 0.0
    down = 0.0
    warm = window / rr
    for i in range(copies, len(lives)):
        k = np.argmin(fails)
        t = fails[k]
        down += max(0.0, min(t, np.min(level_at)) - now)
        lag = 0.0
        if t < level_at[k]:
            lag = lag_at_start[k] + (t - began[k]) if t < began[k] + warm else (level_at[k] - t) * (rr - 1.0)
        if keep_output:
            level_at[k] = t + warm + (lag + warm) / (rr - 1.0)
        else:
            level_at[k] = t + warm
        began[k] = t
        lag_at_start[k] = lag
        fails[k] = t + lives[i]
        now = t
    return now, down, 0


@njit(cache=True)
def periodic(lives, sizes, interval, rr):
    """One node that stops to write a checkpoint whenever its position reaches a multiple of the interval."""
    now = 0.0
    up = 0.0
    point = 0  # the last complete checkpoint: its position is point·interval
    start = 0.0  # the node runs from that position since then
    fail = lives[0]
    for i in range(1, len(lives)):
        while True:
            lag = start - point * interval
            level = start + lag / (rr - 1.0)
            due = (point + 1) * interval
            reach = max(due, start + interval / rr)
            finish = reach + sizes[(point + 1) % len(sizes)] / rr
            if level < due:
                up += max(0.0, min(fail, due) - level)
            if fail < finish:
                break
            point += 1
            start = finish
        now = fail
        start = now + sizes[point % len(sizes)] / rr
        fail = now + lives[i]
    return now, now - up, 0


@njit(cache=True)
def aa_periodic(lives, sizes, interval, rr, rate, copies):
    """Copy 0 writes checkpoints and gives no output; the others restore the last complete one when they fail."""
    fast = max(rr, rate)
    fails = lives[:copies].copy()
    level_at = np.zeros(copies - 1)
    now = 0.0
    down = 0.0
    point = 0
    start = 0.0
    speed = rate
    used = copies
    while used < len(lives):
        due = (point + 1) * interval
        ready = start + interval / speed
        lagging = speed == fast and ready > due and fast > rate
        size = sizes[(point + 1) % len(sizes)]
        finish = max(ready, due) + size / (fast if lagging else rate)
        k = np.argmin(fails)
        t = fails[k]
        if finish <= t:
            point += 1
            start = finish
            speed = fast if lagging else rate
            continue
        down += max(0.0, min(t, np.min(level_at)) - now)
        restored = t + sizes[point % len(sizes)] / (fast if k == 0 else rr)
        if k == 0:
            start = restored
            speed = fast
        else:
            level_at[k - 1] = restored + (restored - point * interval) / (rr - 1.0)
        fails[k] = t + lives[used]
        used += 1
        now = t
    return now, down, 0


LEVEL, WAITS, DONOR, RECEIVER, CATCHES = range(5)


@njit(cache=True)
def on_demand(lives, sizes, rr, copies):
    """Rounds: a level donor stops and feeds all that have failed; those that fail meanwhile wait for the next."""
    role = np.zeros(copies, np.int64)
    count = np.zeros(5, np.int64)  # how many copies have each role
    count[LEVEL] = copies
    fails = lives[:copies].copy()
    used = copies
    now = 0.0
    down = 0.0
    losses = 0
    rounds = 0
    step_at = np.inf  # when the running round changes by itself: transfer complete, then all level
    lag = 0.0
    while used < len(lives):
        k = np.argmin(fails)
        t = min(fails[k], step_at)
        if count[LEVEL] == 0:
            down += t - now
        now = t
        if step_at <= fails[k]:
            if count[DONOR] == 1:  # the transfer is complete
                _recast(role, count, DONOR, CATCHES)
                _recast(role, count, RECEIVER, CATCHES)
                step_at = now + lag / (rr - 1.0)
            else:
                _recast(role, count, CATCHES, LEVEL)
                step_at = np.inf
        else:
            was = role[k]
            count[was] -= 1
            count[WAITS] += 1
            role[k] = WAITS
            fails[k] = now + lives[used]
            used += 1
            if was == DONOR:
                _recast(role, count, RECEIVER, WAITS)
                step_at = np.inf
            elif was == CATCHES and count[CATCHES] == 0:
                step_at = np.inf
        if step_at == np.inf and count[WAITS] > 0:
            if count[LEVEL] == 0:
                losses += 1
                _recast(role, count, WAITS, LEVEL)
            else:
                _recast(role, count, WAITS, RECEIVER)
                for i in range(copies):
                    if role[i] == LEVEL:
                        role[i] = DONOR
                        break
                count[LEVEL] -= 1
                count[DONOR] = 1
                lag = sizes[rounds % len(sizes)] / rr
                rounds += 1
                step_at = now + lag
    return now, down, losses


@njit(cache=True)
def _recast(role, count, old, new):
    """Give every copy with the old role the new one."""
    if count[old] == 0:
        return
    for i in range(len(role)):
        if role[i] == old:
            role[i] = new
    count[new] += count[old]
    count[old] = 0


@njit(cache=True)
def hybrid(lives, sizes, window, interval, delta, rr):
    """A primary and a suspended standby with an image; without one the primary falls back on the journal."""
    primary = lives[0]
    standby = lives[1]
    image_at = 0.0  # when the image is ready
    began = 0.0
    redo = 0.0  # how long the recovery that began then redoes input, output standing still
    lag_at_start = 0.0
    level_at = 0.0
    now = 0.0
    down = 0.0
    for i in range(2, len(lives)):
        t = min(primary, standby)
        down += max(0.0, min(t, level_at) - now)
        build = sizes[i % len(sizes)] / rr
        if standby < primary:
            image_at = t + build
            standby = t + lives[i]
            now = t
            continue
        lag = 0.0
        if t < level_at:
            lag = lag_at_start + (t - began) if t < began + redo else (level_at - t) * (rr - 1.0)
        if image_at <= t:
            late = delta / rr
            redo = ((t - lag - late) % interval + late) / rr
            image_at = t + build
        else:
            redo = window / rr
            image_at = t + redo
        began = t
        lag_at_start = lag
        level_at = t + redo + (lag + redo) / (rr - 1.0)
        primary = t + lives[i]
        now = t
    return now, down, 0


@njit(cache=True)
def cooperative(lives, sizes, window, interval, delta, rr, nodes):
    """One pipeline's units, at home on node 0, unit j with its image on peer j; down while any unit lags."""
    peers = nodes - 1
    speed = (rr - 1.0) * peers
    fails = lives[:nodes].copy()
    home_at = 0.0  # when the units are back on their own node
    image_at = np.zeros(peers)
    began = np.zeros(peers)
    redo = np.zeros(peers)
    lag_at_start = np.zeros(peers)
    level_at = np.zeros(peers)
    now = 0.0
    down = 0.0
    for i in range(nodes, len(lives)):
        k = np.argmin(fails)
        t = fails[k]
        down += max(0.0, min(t, np.max(level_at)) - now)
        size = sizes[i % len(sizes)]
        away = t < home_at
        for j in range(peers):
            strikes = (k == 0 and not away) or (k == j + 1 and away)
            if not strikes:
                continue
            lag = 0.0
            if t < level_at[j]:
                in_redo = t < began[j] + redo[j]
                lag = lag_at_start[j] + (t - began[j]) if in_redo else (level_at[j] - t) * (speed - 1.0)
            if k == 0 and image_at[j] <= t:
                late = delta / rr
                redo[j] = ((t - lag - late) % interval + late) / speed
            else:
                redo[j] = window / speed
            began[j] = t
            lag_at_start[j] = lag
            level_at[j] = t + redo[j] + (lag + redo[j]) / (speed - 1.0)
        if k == 0:
            home_at = t + size / rr
            image_at[:] = home_at
        elif not away:
            image_at[k - 1] = t + size / rr / peers
        fails[k] = t + lives[i]
        now = t
    return now, down, 0
