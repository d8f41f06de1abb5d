"""Two processes of one run on the CPU."""

from __future__ import annotations

import os
import socket

import torch


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def be_process(rank, port):
    """Let Accelerate find this process to be one of two, as after a launcher."""
    torch.set_num_threads(1)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(address, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2")
    os.environ["ACCELERATE_USE_CPU"] = "true"
