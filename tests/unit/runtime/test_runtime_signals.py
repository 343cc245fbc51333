"""Signals end a process once, in good order, however many come and whatever the main thread is at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from support.nodes import PATHS

#: Takes the lock that the end needs again and again; says "ready", and how often it was told to end.
BUSY = """
import sys, threading, time
from holdfast.runtime.signals import on_end
lock, ended, ends = threading.Lock(), threading.Event(), []
def end():
    with lock:
        ends.append(1)
        ended.set()
on_end(end)
print("ready", flush=True)
until = time.monotonic() + 20
while not ended.is_set() and time.monotonic() < until:
    with lock:
        sum(range(1000))
time.sleep(0.2)
print(len(ends), flush=True)
"""


def test_many_signals_at_once_end_a_process_once_while_its_main_thread_holds_locks():
    """A handler that took a lock hung for good (test_node_signals, once in many runs)."""
    environment = {**os.environ, "PYTHONPATH": PATHS}
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(200):
            for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
                process.send_signal(sign)
        assert process.communicate(timeout=30)[0] == "1\n"
        assert process.returncode == 0
    finally:
        process.kill()


#: Its main thread waits for a lock, and another thread is the one that the kernel gives signals to.
ELSEWHERE = """
import ctypes, signal, threading, time
from holdfast.runtime.signals import on_end
ended = threading.Event()
on_end(ended.set)
libc = ctypes.CDLL(None)
def other():
    time.sleep(0.2)
    libc.pthread_kill(ctypes.c_ulong(threading.get_ident()), signal.SIGTERM)
    time.sleep(20)
threading.Thread(target=other, daemon=True).start()
print(ended.wait(10), flush=True)
"""


def test_a_signal_that_another_thread_gets_ends_a_process_whose_main_thread_waits():
    """The kernel chooses the thread. A Python handler would run when the main thread wakes up, which may be never."""
    environment = {**os.environ, "PYTHONPATH": PATHS}
    command = [sys.executable, "-c", ELSEWHERE]
    told = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert told.stdout == "True\n", told.stderr
