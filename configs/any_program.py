"""A program for trainctl's `command:` that needs only the standard library: every rank sends its number to rank 0, which
listens where MASTER_ADDR and MASTER_PORT say, and prints the sum."""
import os, socket, time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def connect():
    for _ in range(600):
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:  # rank 0 does not listen yet
            time.sleep(0.1)
    raise SystemExit(f"rank {rank}: rank 0 does not listen at {address}")


if rank == 0:
    total = 0
    with socket.create_server(address) as server:
        for _ in range(world - 1):
            peer, _ = server.accept()
            with peer:
                total += int(peer.makefile().readline())
    print(f"the numbers of {world} ranks add up to {total}")
else:
    with connect() as peer:
        peer.sendall(f"{rank}\n".encode())
    print(f"rank {rank} has sent its number")
