"""Each node mirrors the copies of the node before it in the group: losing one node loses no copy."""

from __future__ import annotations

from trainer.contract import env
from trainer.elastic.copies.copy_server import CopyServer
from trainer.elastic.copies.mirror import Mirror, MirroredNode
from trainer.elastic.memory_files import MemoryFiles
from trainer.elastic.rendezvous.round_document import Round


class Buddies:
    """This node's place in the ring. `begin` and `close` are for the agent's thread. `url` is for the other nodes."""

    def __init__(self, memory: MemoryFiles, host: str) -> None:
        self._memory = memory
        self._server = CopyServer(lambda: memory.copies, memory.served)
        self._mirror = Mirror(lambda: memory.mirrors)
        self.url = self._server.url(host)

    @property
    def environment(self) -> dict[str, str]:
        return {env.COPY_SERVER: self.url}

    def begin(self, group: Round, group_rank: int) -> None:
        """Mirror the node before this one, from this generation on."""
        source = group.members[group_rank - 1]
        if len(group.members) == 1 or not source.copies_url:
            self._mirror.follow(None)
            return
        self._memory.add_mirrors(source.workers)
        self._mirror.follow(MirroredNode(url=source.copies_url, generation=group.generation))

    def close(self) -> None:
        self._server.close()
        if not self._mirror.close():
            self._memory.mirrors = []  # they stay open: a descriptor that is used again must not be written to
