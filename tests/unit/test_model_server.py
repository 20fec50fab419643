"""The simulator itself: a test that trusts it must not be fooled by it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import orjson
import pytest

from tests.simulators.model_answers import vectors
from tests.simulators.model_server import ROOT, ModelServer


def test_equal_texts_get_equal_vectors_and_shared_words_bring_them_near() -> None:
    made = vectors(
        ["the gate was repaired", "The GATE was repaired", "the gate was closed", "quantum field theory", "水闸的维修", "水闸维修", "天气", ""], 256
    )
    near = made @ made.T
    assert np.allclose(np.linalg.norm(made, axis=1), 1.0, atol=1e-5)
    assert np.array_equal(made[0], made[1])
    assert near[0, 2] > near[0, 3] + 0.3
    assert near[4, 5] > near[4, 6] + 0.3


def test_a_text_keeps_its_vector_in_every_batch() -> None:
    texts = ["", "one", "水闸", "two words", "a" * 50]
    together = vectors(texts, 64)
    for text, row in zip(texts, together, strict=True):
        assert np.array_equal(vectors([text], 64)[0], row)


def test_it_counts_what_it_was_asked_and_forgets_on_reset() -> None:
    with ModelServer(dim=8) as server:
        for batch in (["a", "b"], ["c"]):
            body = orjson.dumps({"model": "m", "input": batch})
            urllib.request.urlopen(urllib.request.Request(f"{server.url}/embeddings", data=body), timeout=5).read()
        stats = server.stats()
        assert (stats["requests"], stats["inputs"], stats["batch_sizes"]) == (2, 3, {"1": 1, "2": 1})
        assert stats["most_in_flight"] == 1 and stats["in_flight"] == 0
        server.reset()
        assert server.stats()["requests"] == 0
        assert server.config()["dim"] == 8


def test_an_unknown_setting_is_refused() -> None:
    with ModelServer() as server, pytest.raises(urllib.error.HTTPError):
        server.config(latency=5)


def test_it_ends_with_its_parent_however_that_dies() -> None:
    script = (
        "import time; from tests.simulators.model_server import ModelServer\n"
        "server = ModelServer().start(); print(server.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert running(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait(10)
    until = time.monotonic() + 10
    while running(child):
        assert time.monotonic() < until, "the server outlived its parent"


def running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        # no /proc on this system: signal 0 has to do
        return not os.path.isdir("/proc/self")
