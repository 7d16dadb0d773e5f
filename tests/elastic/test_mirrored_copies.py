"""Copies that another node mirrors: what is in a mirror was sealed once, and the newest state stays whole."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from tests.elastic.harness import wait_for
from tests.trainer.harness import make_manifest
from trainer.contract.config import parse_config
from trainer.contract.copy_record import RECORD_BYTES, CopyFile, CopyRecord
from trainer.contract.env import parse_place
from trainer.contract.fence import Term
from trainer.contract.manifest import SnapshotName
from trainer.contract.memory import copies_bytes
from trainer.contract.shapes import SHAPES
from trainer.contract.workload import BYTES_VOCABULARY, build_workload
from trainer.elastic.copies import copy_client, copy_server
from trainer.elastic.copies.buddies import Buddies
from trainer.elastic.copies.copy_client import CopyClient
from trainer.elastic.copies.mirror import Mirror, MirroredNode
from trainer.elastic.health import oom
from trainer.elastic.memory_files import MemoryFiles
from trainer.elastic.rendezvous.round_document import Member, Round, Stage
from trainer.errors import DamagedSnapshot
from trainer.model.decoder import Decoder
from trainer.snapshot.memory_copy import CopyWriter, open_copy
from trainer.snapshot.memory_reading import (
    OpenFiles,
    find_intact,
    find_parts,
    find_whole,
    forget_outdated,
    open_memory,
)

SIZE = 200_000
NAME = SnapshotName(3, Term(1, 4))


@dataclass
class Node:
    """What an agent has, and its worker's writers."""

    memory: MemoryFiles
    buddies: Buddies
    writers: list[CopyWriter] = field(default_factory=list)

    @property
    def mirrors(self) -> list[str]:
        return [path for own in parse_place(self.memory.environment).mirrors for path in own]

    def mirrored(self) -> set[str]:
        """The names of the copies that this node mirrors."""
        return {str(copy.header.name) for path in self.mirrors if (copy := open_copy(path)) is not None}


@pytest.fixture
def nodes() -> Iterator[list[Node]]:
    """Three nodes with one rank each. Node 1 mirrors node 0, node 2 node 1, and node 0 node 2."""
    started = []
    for _ in range(3):
        memory = MemoryFiles(1)
        node = Node(memory, Buddies(memory, "127.0.0.1"))
        node.writers = [CopyWriter(path) for path in parse_place({**memory.environment, "LOCAL_RANK": "0"}).own_copies]
        for writer in node.writers:
            writer.reserve(values_of(0))
        started.append(node)
    yield started
    for node in started:
        node.buddies.close()
        node.memory.close()


def begin(nodes: list[Node], generation: int, workers: int = 1) -> None:
    urls = [node.buddies.url for node in nodes]
    members = tuple(
        Member(node=str(rank), node_rank=rank, address="127.0.0.1", workers=workers, copies_url=url)
        for rank, url in enumerate(urls)
    )
    group = Round(stage=Stage.FORMED, generation=generation, members=members)
    for rank, node in enumerate(nodes):
        node.buddies.begin(group, rank)


def name_of(step: int, generation: int) -> SnapshotName:
    return SnapshotName(step, Term(1, generation))


def values_of(step: int) -> dict[MetadataIndex, torch.Tensor]:
    return {MetadataIndex(name): torch.full((SIZE // 8,), step, dtype=torch.float32) for name in "ab"}


def seal(
    writer: CopyWriter,
    step: int,
    generation: int,
    rank: int = 0,
    values: dict[MetadataIndex, torch.Tensor] | None = None,
) -> None:
    writer.erase()
    staged: dict[MetadataIndex, torch.Tensor | BytesIO] = {**(values_of(step) if values is None else values)}
    manifest = make_manifest(name_of(step, generation), {})
    writer.seal(staged, manifest, part=rank, parts=3, metadata=Metadata({}) if rank == 0 else None)


def await_mirrors(writers: list[CopyWriter]) -> None:
    wait_for(lambda: all(writer.is_mirrored for writer in writers), "mirrors", 30)


def test_a_copy_is_mirrored_and_its_writer_learns_of_it(nodes: list[Node]) -> None:
    begin(nodes, 2)
    for step in range(1, 6):
        for rank, node in enumerate(nodes):
            writer = node.writers[step % 2]
            assert writer.is_mirrored
            seal(writer, step, 2, rank)
        await_mirrors([node.writers[step % 2] for node in nodes])
        for node in nodes:
            assert str(name_of(step, 2)) in node.mirrored()
            assert step == 1 or str(name_of(step - 1, 2)) in node.mirrored(), "the older copy remains"


def shares_of(state: dict[str, torch.Tensor], strategy: str, ranks: int) -> list[dict[MetadataIndex, torch.Tensor]]:
    """What each rank copies: under ddp its part of DCP's plan, otherwise its shard of each tensor, as FSDP cuts it."""
    if strategy == "fsdp":
        pieces = {name: tensor.chunk(ranks) for name, tensor in state.items()}
        return [
            {MetadataIndex(name): own[rank] for name, own in pieces.items() if rank < len(own)} for rank in range(ranks)
        ]
    planners = [DefaultSavePlanner() for _ in range(ranks)]
    for rank, planner in enumerate(planners):
        planner.set_up_planner(dict(state), is_coordinator=rank == 0)
    plans, _ = planners[0].create_global_plan([planner.create_local_plan() for planner in planners])
    return [{item.index: state[item.index.fqn] for item in plan.items} for plan in plans]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_nodes_hold_as_much_memory_as_planned(nodes: list[Node], strategy: str) -> None:
    """With two ranks on each node."""
    config = parse_config({"preset": "nano", "strategy": strategy})
    load = build_workload(config, world_size=4, ranks_per_node=2, vocab=BYTES_VOCABULARY)
    model = Decoder(SHAPES["nano"], vocab_size=BYTES_VOCABULARY, dropout=0.0)
    state = {
        f"{kind}.{name}": value.detach() for kind in ("model", "m", "v") for name, value in model.named_parameters()
    }
    shares, pair = shares_of(state, strategy, 4), list[Node]()
    for first in (0, 2):
        memory = MemoryFiles(2)
        pair.append(Node(memory, Buddies(memory, "127.0.0.1")))
        own = [parse_place({**memory.environment, "LOCAL_RANK": str(rank)}).own_copies for rank in range(2)]
        for rank in range(2):
            pair[-1].writers += [CopyWriter(path) for path in own[rank]]
            for writer in pair[-1].writers[-2:]:
                writer.reserve(shares[first + rank])
    begin(pair, 1, workers=2)
    for step in (0, 1):
        writers = [writer for node in pair for writer in node.writers[step::2]]
        for rank, writer in enumerate(writers):
            seal(writer, step + 1, 1, rank, shares[rank])
        await_mirrors(writers)
    held = [sum(os.fstat(file).st_blocks * 512 for file in node.memory.served()) for node in pair]
    for node in pair:
        node.buddies.close()
        node.memory.close()
    assert held == [pytest.approx(copies_bytes(load, 2), rel=0.05)] * 2


def test_copies_that_were_restored_remain_until_the_new_generation_has_two(nodes: list[Node]) -> None:
    """Node 1 mirrors node 0. Then node 0 is lost, and node 2 is the one before it."""
    begin(nodes, 1)
    for step, file in ((10, 0), (11, 1)):
        seal(nodes[0].writers[file], step, 1)
        await_mirrors([nodes[0].writers[file]])
    seal(nodes[2].writers[0], 11, 1, 1)
    begin([nodes[2], nodes[1]], 2)
    seal(nodes[2].writers[1], 12, 2)
    await_mirrors([nodes[2].writers[1]])
    assert nodes[1].mirrored() == {"step-00000011-a1-g1", "step-00000012-a1-g2"}
    seal(nodes[2].writers[0], 13, 2)
    await_mirrors([nodes[2].writers[0]])
    assert nodes[1].mirrored() == {"step-00000012-a1-g2", "step-00000013-a1-g2"}


def test_the_copy_that_was_restored_remains_if_a_newer_one_was_not_whole(nodes: list[Node]) -> None:
    """Node 0 is lost when step 11 is mirrored for it, but not for the others: they go on from step 10."""
    begin(nodes, 1)
    for step, file in ((10, 0), (11, 1)):
        seal(nodes[0].writers[file], step, 1)
        await_mirrors([nodes[0].writers[file]])
    begin([nodes[2], nodes[1]], 2)
    forget_outdated(nodes[1].mirrors, Term(1, 2), 10)
    seal(nodes[2].writers[0], 11, 2)
    await_mirrors([nodes[2].writers[0]])
    assert nodes[1].mirrored() == {"step-00000010-a1-g1", "step-00000011-a1-g2"}


class Breaking(socketserver.BaseRequestHandler):
    """A node that is lost while its copy is read: `ends` says how."""

    ends = "reset"
    served = threading.Event()

    def handle(self) -> None:
        copies = json.dumps([[(7, CopyRecord(name=NAME, header_at=9000, header_bytes=9, checksum=1).render().hex())]])
        while (request := self.request.recv(4096)) and b"Range: bytes=0-" not in request:
            if b"/copies" in request:
                head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(copies)}\r\n\r\n{copies}"
            else:
                head = "HTTP/1.1 206 Partial Content\r\nContent-Length: 4913\r\n\r\nonly a part"
            self.request.sendall(head.encode())
            if "only" in head:
                break
        if b"Range: bytes=0-" in request:
            content = bytes.fromhex(json.loads(copies)[0][0][1])
            self.request.sendall(f"HTTP/1.1 206 x\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
            request = self.request.recv(4096)
            self.request.sendall(b"HTTP/1.1 206 x\r\nContent-Length: 4913\r\n\r\nonly a part")
        self.served.set()
        if self.ends == "reset":
            self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif self.ends == "silent":
            time.sleep(0.5)


@pytest.mark.parametrize("ends", ["reset", "closed", "silent"])
def test_after_the_loss_of_its_source_a_mirror_follows_the_next_one(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    monkeypatch.setattr(Breaking, "ends", ends)
    monkeypatch.setattr(Breaking, "served", threading.Event())
    monkeypatch.setattr(copy_client, "_TIMEOUT_S", 0.2)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Breaking) as lost:
        thread = threading.Thread(target=lost.serve_forever, args=(0.05,))
        thread.start()
        mirror = Mirror(lambda: nodes[0].memory.copies)
        try:
            mirror.follow(
                MirroredNode(url=f"http://x@127.0.0.1:{lost.server_address[1]}", generation=NAME.term.generation)
            )
            assert Breaking.served.wait(20)
            time.sleep(0.1)
            seal(nodes[1].writers[0], 12, 2)
            mirror.follow(MirroredNode(url=nodes[1].buddies.url, generation=2))
            await_mirrors([nodes[1].writers[0]])
        finally:
            assert mirror.close()
            lost.shutdown()
            thread.join()


def test_a_client_connects_again_if_the_server_has_closed_an_idle_connection(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copy_server, "_SILENCE_S", 0.1)
    monkeypatch.setattr(copy_server._Handler, "timeout", 0.1)
    client, number = CopyClient(nodes[0].buddies.url), nodes[0].memory.copies[0][0]
    for _ in range(3):
        assert len(client.read(number, 0, 10)) == 10
        time.sleep(0.3)
    client.close()


def test_strangers_cannot_use_up_the_agents_descriptors(nodes: list[Node]) -> None:
    url, number = urlsplit(nodes[0].buddies.url), nodes[0].memory.copies[0][0]
    idle = [socket.create_connection(("127.0.0.1", url.port or 0), timeout=10) for _ in range(300)]
    wait_for(lambda: sum(map(is_closed, idle)) >= 300 - 256, "refused connections", 30)
    for each in idle:
        each.close()
    client = CopyClient(nodes[0].buddies.url)

    def is_served() -> bool:
        try:
            return len(client.read(number, 0, 10)) == 10
        except OSError:
            return False

    wait_for(is_served, "a free connection", 30)
    client.close()


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_what_a_mirror_has_was_sealed_at_any_moment(nodes: list[Node]) -> None:
    """The source does not wait for its mirror, and is overwritten while it is read."""
    begin(nodes, 1)
    rng, seen, ends = random.Random(7), set[int](), time.monotonic() + 4
    stop = threading.Event()

    def overwrite() -> None:
        step = 0
        while not stop.is_set():
            step += 1
            seal(nodes[0].writers[step % 2], step, 1)
            time.sleep(rng.choice((0, 0, 0.001, 0.05)))

    writer = threading.Thread(target=overwrite)
    writer.start()
    try:
        while time.monotonic() < ends:
            for path in nodes[1].mirrors:
                copy = open_copy(path)
                if copy is None:
                    continue
                content = {float(copy.tensor(index)[-1]) for index in copy.header.contents.tensors}
                try:
                    copy.verify()
                except DamagedSnapshot:
                    with pytest.raises(DamagedSnapshot):
                        copy.refuse_replaced()  # it was overwritten meanwhile, which a reader sees
                    continue
                assert content == {float(copy.header.name.step)}
                seen.add(copy.header.name.step)
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 5


def test_a_state_is_read_from_the_nodes_that_have_its_parts(nodes: list[Node]) -> None:
    """Node 0 is lost, and its part is read from its mirror, through the agents."""
    begin(nodes, 1)
    for rank, node in enumerate(nodes):
        seal(node.writers[0], 5, 1, rank)
    await_mirrors([node.writers[0] for node in nodes])
    damaged: list[DamagedSnapshot] = []
    found = []
    for node in nodes[1:]:
        place = parse_place(node.memory.environment)
        url = node.buddies.url
        files = [CopyFile(path=path, server=url) for own in place.memory for path in own]
        files += [CopyFile(path=path, server=url, is_mirror=True) for own in place.mirrors for path in own]
        found += find_intact(find_parts(files), damaged.append)
    states = find_whole(found)
    (state,) = states.values()
    assert damaged == []
    assert state.source == "buddy"
    assert [file.is_mirror for file in state.files] == [True, False, False]
    reader = open_memory(state.files, name_of(5, 1))
    assert reader.read_metadata() == Metadata({})
    seen = state.seen_from(nodes[1].buddies.url, found)
    assert [bool(file.server) for file in seen] == [False, False, True], "its own files need no server"
    opened = OpenFiles()
    for file in (state.files[0], seen[0]):
        assert torch.equal(opened.open(file).tensor(MetadataIndex("b")), values_of(5)[MetadataIndex("b")])
    nodes[1].buddies.close()
    with pytest.raises(DamagedSnapshot, match="cannot be read"):
        open_memory(state.files, name_of(5, 1))


def test_a_bit_that_flips_in_a_mirror_is_found(nodes: list[Node]) -> None:
    begin(nodes, 1)
    seal(nodes[0].writers[0], 5, 1)
    await_mirrors([nodes[0].writers[0]])
    path = next(path for path in nodes[1].mirrors if open_copy(path) is not None)
    remote = OpenFiles().open(CopyFile(path=path, server=nodes[1].buddies.url))
    place = remote.header.contents.tensors[MetadataIndex("a")]
    with Path(path).open("r+b") as file:
        file.seek(place.offset + 17)
        file.write(b"\xff")
    with pytest.raises(DamagedSnapshot, match="checksum of a differs"):
        remote.tensor(MetadataIndex("a"))
    damaged: list[DamagedSnapshot] = []
    assert find_intact(find_parts([CopyFile(path=path)]), damaged.append) == []
    assert len(damaged) == 1


def test_without_room_nothing_is_mirrored(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(oom, "read_free_memory", lambda: asked.append(1) or SIZE)
    begin(nodes, 1)
    seal(nodes[0].writers[0], 5, 1)
    wait_for(lambda: asked, "mirror")
    assert nodes[1].mirrored() == set()
    assert not nodes[0].writers[0].is_mirrored


def test_a_server_serves_its_files_to_those_who_have_the_token(nodes: list[Node]) -> None:
    url, number = urlsplit(nodes[0].buddies.url), nodes[0].memory.copies[0][0]
    seal(nodes[0].writers[0], 5, 1)
    asked = http.client.HTTPConnection(url.hostname or "", url.port, timeout=10)
    own = {"Authorization": f"Bearer {url.username}"}

    def status(method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> int:
        asked.request(method, path, body, headers)
        answer = asked.getresponse()
        answer.read()
        return answer.status

    whole = {"Range": "bytes=0-9"}
    assert status("GET", f"/files/{number}", own | whole) == 206
    for headers in ({}, {"Authorization": "Bearer "}, {"Authorization": f"Bearer {url.username}x"}):
        assert status("GET", f"/files/{number}", headers | whole) == 403
        assert status("GET", "/copies", headers) == 403
        assert status("PUT", f"/mirrored/{number}", headers, bytes(RECORD_BYTES)) == 403
    for path in ("/files/0", "/files/-1", "/files/x", "/files/999999999999999999999", "/", "/../etc/passwd"):
        assert status("GET", path, own | whole) == 404, path
    for text in ("", "bytes=5-4", "bytes=0-99999999999999", "bytes=-5", "bytes=0-", "bytes=0-1,3-4", "pages=1-2"):
        assert status("GET", f"/files/{number}", own | {"Range": text}) == 416, text
    assert status("PUT", f"/mirrored/{number}", own, b"too short") == 403
    assert status("PUT", f"/mirrored/{number}", own, b"too long" * RECORD_BYTES) == 403
    assert status("PUT", "/mirrored/0", own, bytes(RECORD_BYTES)) == 403
    asked.close()
    with pytest.raises(OSError, match="403"):
        CopyClient(f"http://other@127.0.0.1:{url.port}").await_copies()
