"""Two processes train as one, under each library that starts them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightning")
pytest.importorskip("transformers")

import pair

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes hold in the end."""
    out = tmp_path_factory.mktemp("pair")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [
        subprocess.Popen(
            [sys.executable, str(HERE / "pair.py"), str(out)],
            env={
                **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1",
                "TORCHELASTIC_RUN_ID": "pair", "ACCELERATE_USE_CPU": "true",
            },
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=300)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(said)
    return out


def test_two_processes_are_one(found):
    """One test, so that workers side by side do not each start two processes. Samples that fill up a last batch count once."""
    for library, method, case in pair.runs():
        expected = pair.tensors(*pair.plain(method, pair.as_one(library, case)))
        visits = expected["record.visits"]
        assert visits.max() == pair.EPOCHS
        assert case.drop_last or visits.min() == pair.EPOCHS
        for rank in range(2):
            held = torch.load(found / pair.stored(library, method, case, rank))
            assert held.keys() == expected.keys()
            for name, value in expected.items():
                where = f"{library} {method} {case} {rank} {name}"
                torch.testing.assert_close(held[name], value, rtol=1e-4, atol=1e-5, msg=lambda m, w=where: f"{w}: {m}")
