"""The TCP connections of a group: their options, and how they are broken."""

import os
import platform
import resource
import socket
from pathlib import Path

from tests.trainer.harness import start_group
from trainer.worker.connections import break_connections, find_connections, limit_backoff

THIN_LINEAR_TIMEOUTS, RTO_MAX_MS = 16, 44  # linux/tcp.h
IS_OLD = tuple(map(int, platform.release().split(".")[:2])) < (6, 15)
ENTRY = """
import socket
import torch.distributed as dist
from trainer.worker.torch_compat import keep_process_groups
keep_process_groups()
dist.init_process_group("gloo")
found = []
for number in range(3, 200):
    try:
        connection = socket.socket(fileno=number)
    except OSError:
        continue
    try:
        connection.getpeername()
        found.append(connection.getsockopt(socket.IPPROTO_TCP, 16))
    except OSError:
        pass
    connection.detach()
print("with the option:", "all" if found and all(found) else found, flush=True)
dist.destroy_process_group()
"""


def test_open_connections_get_the_options_and_stay_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        accepted, _ = server.accept()
        with accepted:
            limit_backoff(find_connections())
            assert connection.getsockopt(socket.IPPROTO_TCP, THIN_LINEAR_TIMEOUTS) == 1
            if not IS_OLD:
                assert accepted.getsockopt(socket.IPPROTO_TCP, RTO_MAX_MS) == 1000
            connection.sendall(b"x")
            assert accepted.recv(1) == b"x"


def test_a_process_that_cannot_open_another_file_is_no_error() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        limit_backoff(find_connections())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_other_descriptors_are_left_alone() -> None:
    """Pipes, and sockets of other kinds."""
    pair, pipe = socket.socketpair(), os.pipe()
    with pair[0], pair[1], socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
        limit_backoff(find_connections())
        pair[0].sendall(b"x")
        assert pair[1].recv(1) == b"x"
        assert datagrams.fileno() > 0
    os.write(pipe[1], b"x")
    assert os.read(pipe[0], 1) == b"x"
    for end in pipe:
        os.close(end)


def test_a_listening_socket_is_not_broken() -> None:
    before = find_connections()
    with socket.create_server(("127.0.0.1", 0)) as server:
        break_connections(find_connections() - before)
        with socket.create_connection(server.getsockname()):
            accepted, _ = server.accept()
            accepted.close()


def test_broken_connections_are_closed_for_both_sides_and_no_later_one_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        before = find_connections()
        with socket.create_connection(server.getsockname()) as connection:
            accepted, _ = server.accept()
            with accepted:
                found = {each for each in find_connections() - before if each.descriptor == connection.fileno()}
                assert len(found) == 1
                break_connections(found)
                assert connection.recv(1) == accepted.recv(1) == b""
        with socket.create_connection(server.getsockname()) as later:
            os.dup2(later.fileno(), next(iter(found)).descriptor)
            break_connections(found)
            accepted, _ = server.accept()
            with accepted:
                later.sendall(b"x")
                assert accepted.recv(1) == b"x"


def test_a_group_has_the_options(tmp_path: Path) -> None:
    entry = tmp_path / "entry.py"
    entry.write_text(ENTRY)
    with start_group(tmp_path, 2, entry=(str(entry),)) as group:
        assert group.wait() == [0, 0], group.outputs()
        printed = [process.communicate(timeout=300)[0].splitlines()[-1] for process in group.processes]
    assert printed == ["with the option: all", "with the option: all"]
