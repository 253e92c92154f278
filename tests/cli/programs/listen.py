"""Rank 0 serves on MASTER_PORT beside whoever holds it, as torch's store does; the other ranks talk to it.

usage: listen.py FOLDER

Each rank makes FOLDER/RANK.ready once it has talked, with the port in it, and ends when FOLDER/go is there.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path


def serve(address: tuple[str, int], count: int) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen()
        for _ in range(count):
            server.accept()[0].close()


def talk(address: tuple[str, int]) -> None:
    while True:
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            time.sleep(0.005)
        else:
            return


def main() -> None:
    folder = Path(sys.argv[1])
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["RANK"] == "0":
        serve(address, int(os.environ["WORLD_SIZE"]) - 1)
    else:
        talk(address)
    unnamed = folder / f"{os.environ['RANK']}.unnamed"
    unnamed.write_text(os.environ["MASTER_PORT"])
    unnamed.rename(folder / f"{os.environ['RANK']}.ready")
    while not (folder / "go").exists():
        time.sleep(0.005)


main()
