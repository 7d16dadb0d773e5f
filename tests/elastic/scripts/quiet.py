"""A plain script of two ranks that reports and prints nothing for some time, while rank 0 works.

Rank 1 waits in a barrier. The arguments say what rank 0 does and for how many seconds.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

import torch
import torch.distributed as dist

END = time.monotonic() + float(sys.argv[2])


def trickle(server):
    """A slow server: 40 kB per second."""
    connection, _ = server.accept()
    while time.monotonic() < END:
        connection.sendall(b"x" * 2000)
        time.sleep(0.05)
    connection.close()


def download():
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = (
            "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\nwhile s.recv(100): pass"
        )
        reader = subprocess.Popen([sys.executable, "-c", code, str(server.getsockname()[1])])
        trickle(server)  # the other process downloads
        reader.wait()


def read():
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=trickle, args=(server,), daemon=True).start()
        with socket.create_connection(server.getsockname()) as connection:
            while connection.recv(100):
                pass


def read_in_thread():
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()


def compute_in_daemon():
    """The daemon is not a child of this process while it computes."""
    if os.fork() == 0:
        if os.fork() == 0:
            compute()
        os._exit(0)
    os.wait()
    time.sleep(float(sys.argv[2]))


def compute():
    while time.monotonic() < END:
        torch.ones(200, 200).mm(torch.ones(200, 200))


def compute_in_thread():
    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()


def compute_below():
    code = "import sys, time\nend = time.monotonic() + float(sys.argv[1])\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-c", code, sys.argv[2]], check=True)


def save():
    with tempfile.TemporaryFile() as file:
        while time.monotonic() < END:
            file.seek(0)
            file.write(os.urandom(1 << 20))
            file.flush()
            os.fsync(file.fileno())


def wait_in_shell():
    subprocess.run(["sh", "-c", f"for i in $(seq {int(float(sys.argv[2])) * 2}); do sleep 0.5; done"], check=True)


dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 0:
    globals()[sys.argv[1]]()
dist.barrier()
dist.destroy_process_group()
