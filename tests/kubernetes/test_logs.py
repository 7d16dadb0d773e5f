"""The logs of pods are stored while the pods run: each line once, in the log of its writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.backends.kubernetes.client import KubernetesClient
from orchestrator.backends.kubernetes.logs import Followed, LogKeeper
from orchestrator.backends.kubernetes.printed import Held, Printed, parse_stamp
from orchestrator.jobfolder.folder import JobFolder
from orchestrator.logs.log_files import find_worker_logs
from tests.descriptors import count_descriptors
from tests.elastic.harness import wait_for
from tests.kubernetes.fake_api import FakeApi
from trainer.contract import layout
from trainer.contract.printed import Writer, parse_printed, render_printed, render_printed_sample

Opened = Callable[[], LogKeeper]


def at(seconds: float) -> str:
    return f"2026-11-22T12:00:{seconds:012.9f}Z"


def line(seconds: float, text: str) -> bytes:
    return f"{at(seconds)} {text}".encode()


def kept(folder: Path, name: str = layout.AGENT_LOG) -> list[str]:
    path = folder / name
    return path.read_text().splitlines() if path.exists() else []


# On the disk


def below(folder: Path) -> tuple[JobFolder, Path]:
    """Return the folder of a replica, which is the job's folder here."""
    return JobFolder(folder.parent, folder.name), Path()


def test_a_stream_that_restarts_at_an_earlier_second_adds_only_new_lines(tmp_path: Path) -> None:
    before = [line(1.5, "one"), line(2.1, "two"), line(2.1, "at the same moment")]
    with Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        assert printed.since is None
        printed.keep(before)
        assert printed.since == "2026-11-22T12:00:02Z"
        printed.begin_again()
        printed.keep([*before[1:], line(2.1, "and a third"), line(2.2, "later")])
    assert kept(tmp_path) == ["one", "two", "at the same moment", "and a third", "later"]


def test_lines_are_written_to_the_logs_of_their_workers(tmp_path: Path) -> None:
    folder = layout.replica_dir(tmp_path, 1, 3)
    with Printed(*below(folder), limit_bytes=1 << 20) as printed:
        marked = [render_printed(Writer(1, 2, each), b"loss %d" % each).decode() for each in (0, 1)]
        printed.keep([line(1, "elasticrun: up"), line(2, marked[0]), line(3, marked[1]), line(4, marked[0])])
    job, _ = below(tmp_path)
    (first, second) = find_worker_logs(job, 1)
    assert (first.replica, first.generation, first.local_rank, second.local_rank) == (3, 2, 0, 1)
    assert (tmp_path / first.path).read_text() == "loss 0\nloss 0\n"
    assert kept(folder) == ["elasticrun: up"]


def test_samples_are_written_where_an_agent_would_write_them(tmp_path: Path) -> None:
    with Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        printed.keep([line(each, render_printed_sample(2, b'{"at": %d}' % each).decode()) for each in (1, 2)])
        printed.keep([line(3, "[i2 resources] not a sample")])
    assert kept(tmp_path, "2/resources.jsonl") == ['{"at": 1}', '{"at": 2}']
    assert kept(tmp_path) == ["[i2 resources] not a sample"]


def test_lines_after_the_last_recorded_position_are_cut_off_after_a_crash(tmp_path: Path) -> None:
    marked = render_printed(Writer(1, 1, 0), b"loss").decode()
    with Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        printed.keep([line(1, "one"), line(2, marked)])
    for name in (
        layout.AGENT_LOG,
        "1/g1/local-0/log",
    ):  # the service died after writing the line and before recording its position
        with (tmp_path / name).open("a") as file:
            file.write("two\n")
    with Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        printed.keep([line(1, "one"), line(2, marked), line(3, "two"), line(4, marked)])
    assert kept(tmp_path) == ["one", "two"]
    assert kept(tmp_path, "1/g1/local-0/log") == ["loss", "loss"]


def test_a_crash_before_the_first_position_is_recorded_loses_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: Printed, name: str, content: bytes) -> None:
        self._folder.write(Path(name), content)
        raise OSError("the service is killed here")

    monkeypatch.setattr(Printed, "_append", die)
    with pytest.raises(OSError, match="killed"), Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        printed.keep([line(1, "one")])
    monkeypatch.undo()
    with Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        assert printed.since is None
        printed.keep([line(1, "one")])
    assert kept(tmp_path) == ["one"]


def test_a_failure_while_the_output_is_opened_leaves_nothing_open(tmp_path: Path) -> None:
    with Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        printed.keep([line(1, "one")])
    (state,) = (path for path in tmp_path.iterdir() if path.suffix == ".json")
    stored, before = state.read_text(), count_descriptors()
    state.write_text(json.dumps({**json.loads(stored), "sizes": {"..": 1}}))
    with pytest.raises(OSError, match="not a name"):
        Printed(*below(tmp_path), limit_bytes=1 << 20)
    assert count_descriptors() == before
    state.write_text(stored)
    with Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        assert printed.since == at(1).partition(".")[0] + "Z"


def test_a_long_log_keeps_its_newest_part(tmp_path: Path) -> None:
    with Printed(*below(tmp_path), limit_bytes=200) as printed:
        for number in range(100):
            printed.keep([line(number / 10, f"line {number:03}")])
    both = kept(tmp_path, f"{layout.AGENT_LOG}.1") + kept(tmp_path)
    assert both == [f"line {number:03}" for number in range(100 - len(both), 100)]
    assert 100 <= sum(len(each) + 1 for each in both) <= 220


def test_the_number_of_worker_logs_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.backends.kubernetes.printed._MOST_FILES", 3)
    with Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        for number in range(9):
            printed.keep([line(number, render_printed(Writer(1, number, 0), b"x").decode())])
    assert len(list(tmp_path.glob("1/g*/local-0/log"))) == 3
    assert len(kept(tmp_path)) == 6


def test_two_services_cannot_keep_the_log_of_one_pod(tmp_path: Path) -> None:
    with Printed(*below(tmp_path), limit_bytes=1 << 20), pytest.raises(Held):
        Printed(*below(tmp_path), limit_bytes=1 << 20)
    with Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        assert printed.since is None


def test_an_invalid_position_starts_again_and_invalid_lines_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "printed.json").write_text('{"at_ns": "x"}')
    with Printed(*below(tmp_path), limit_bytes=1 << 20) as printed:
        printed.keep([b"", b"unable to retrieve container logs", line(1, "one"), line(2, "")])
    assert kept(tmp_path) == ["one", ""]


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1970-01-01T00:00:01.000000002Z", 1_000_000_002),
        ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01T02:00:01+02:00", 1_000_000_000),
        ("1970-01-01T00:00:01.1234567891Z", None),
        ("1970-01-01T00:00:01", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_times_are_parsed_to_the_nanosecond(text: str, nanoseconds: int | None) -> None:
    assert parse_stamp(text) == nanoseconds


def test_a_worker_s_prefix_is_parsed_and_the_agent_s_lines_have_none() -> None:
    writer = Writer(2, 11, 7)
    assert parse_printed(render_printed(writer, b"[i1 g1 local-0] x")) == (writer, b"[i1 g1 local-0] x")
    assert parse_printed(render_printed(writer, b"")) == (writer, b"")
    assert parse_printed(b"elasticrun: [i1 g1 local-0] x") is None
    assert parse_printed(b"[i1 g1 local-12345] x") is None


# From the API server


@pytest.fixture
def opened(client: KubernetesClient) -> Iterator[Opened]:
    keepers: list[LogKeeper] = []

    def build(**given: int) -> LogKeeper:
        keepers.append(LogKeeper(client, **given))
        return keepers[-1]

    yield build  # type: ignore[misc]
    for each in keepers:
        each.close()


def pod(api: FakeApi, folder: Path, name: str = "train-0", *, ended: bool = False) -> Followed:
    if api.store.get("pods", name) is None:
        meta = {"name": name, "uid": f"uid-{name}", "labels": {}, "ownerReferences": [{"uid": "u"}]}
        api.store.put("pods", {"metadata": meta, "status": {"phase": "Running"}}, "ADDED")
        with api.store.changed:
            api.store.printing.add(name)
    return Followed(f"uid-{name}", name, *below(folder / name), ended=ended)


def prints(api: FakeApi, seconds: float, text: str, name: str = "train-0") -> None:
    with api.store.changed:
        api.store.logs.setdefault(name, []).append((at(seconds), text.encode()))
        api.store.changed.notify_all()


def end(api: FakeApi, name: str = "train-0") -> None:
    with api.store.changed:
        api.store.printing.discard(name)
        api.store.changed.notify_all()


def test_a_running_pod_s_lines_arrive_over_one_stream(api: FakeApi, opened: Opened, tmp_path: Path) -> None:
    keeper = opened()
    for number in range(5):
        prints(api, number, f"line {number}")
        keeper.want(pod(api, tmp_path))
        wait_for(lambda number=number: kept(tmp_path / "train-0")[-1:] == [f"line {number}"], "stored lines")  # type: ignore[misc]
    assert api.store.log_streams == [("train-0", None)]


def test_the_next_service_continues_where_the_last_one_stopped(api: FakeApi, opened: Opened, tmp_path: Path) -> None:
    first = opened()
    first.want(pod(api, tmp_path))
    prints(api, 1.2, "one")
    prints(api, 2.7, "two")
    wait_for(lambda: kept(tmp_path / "train-0") == ["one", "two"], "stored lines")
    first.close()
    prints(api, 2.8, "while nobody listened")
    second = opened()
    end(api)
    wait_for(
        lambda: second.want(pod(api, tmp_path, ended=True)) or len(kept(tmp_path / "train-0")) == 3, "stored lines"
    )
    assert kept(tmp_path / "train-0") == ["one", "two", "while nobody listened"]
    assert api.store.log_streams[-1] == ("train-0", "2026-11-22T12:00:02Z")


def test_a_stream_that_breaks_repeatedly_gives_each_line_once(
    api: FakeApi, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.backends.kubernetes.logs._PAUSE_S", 0.01)
    api.store.cut_logs_after = 3
    for number in range(12):
        prints(api, number * 0.6, f"line {number}")
    followed = pod(api, tmp_path)
    end(api)
    keeper = opened()
    wait_for(lambda: keeper.want(followed) or len(kept(tmp_path / "train-0")) == 12, "stored lines")
    assert kept(tmp_path / "train-0") == [f"line {number}" for number in range(12)]


def test_the_log_of_an_ended_pod_is_read_once_to_its_end(api: FakeApi, opened: Opened, tmp_path: Path) -> None:
    prints(api, 1, "last words")
    followed = pod(api, tmp_path)
    end(api)
    keeper = opened()
    keeper.want(Followed(followed.uid, followed.pod, followed.job, followed.place, ended=True))
    wait_for(lambda: kept(tmp_path / "train-0") == ["last words"], "stored lines")
    wait_for(lambda: "uid-train-0" in keeper._done, "end of the stream")
    for _ in range(20):
        keeper.want(Followed(followed.uid, followed.pod, followed.job, followed.place, ended=True))
    assert len(api.store.log_streams) == 1


def test_pods_beyond_the_limit_of_streams_are_read_later(
    api: FakeApi, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.backends.kubernetes.logs._PAUSE_S", 0.01)
    keeper, names = opened(most_streams=1), ["train-0", "train-1", "train-2"]
    for name in names:
        prints(api, 1, name, name)
        pod(api, tmp_path, name)
        end(api, name)

    def all_there() -> bool:
        for name in names:
            keeper.want(pod(api, tmp_path, name, ended=True))
        assert len(keeper._streams) <= 1
        return all(kept(tmp_path / name) == [name] for name in names)

    wait_for(all_there, "stored lines")


def test_a_pod_that_the_cluster_does_not_know_is_given_up(
    api: FakeApi, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.backends.kubernetes.logs._PAUSE_S", 0.01)
    keeper = opened()
    keeper.want(Followed("uid-gone", "gone", *below(tmp_path / "gone"), ended=True))
    wait_for(lambda: "uid-gone" in keeper._done, "end of the stream")
    assert kept(tmp_path / "gone") == []


def test_a_pod_that_is_no_longer_wanted_is_not_followed(
    api: FakeApi, client: KubernetesClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another service has the lease then, and it could not write to a log that this one holds."""
    monkeypatch.setattr("orchestrator.backends.kubernetes.logs._PAUSE_S", 0.01)
    clock = [0.0]
    keeper = LogKeeper(client, monotonic=lambda: clock[0])
    keeper.want(pod(api, tmp_path))
    prints(api, 1, "one")
    wait_for(lambda: kept(tmp_path / "train-0") == ["one"], "stored lines")
    clock[0] += 61
    wait_for(lambda: not keeper._streams, "end of the stream")
    with Printed(*below(tmp_path / "train-0"), limit_bytes=1 << 20) as printed:
        assert printed.since is not None
    keeper.close()


def test_closing_ends_the_threads_of_open_streams(
    api: FakeApi, client: KubernetesClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.backends.kubernetes.logs._PAUSE_S", 0.01)
    for number in range(10):
        keeper, name = LogKeeper(client), f"train-{number}"
        keeper.want(pod(api, tmp_path, name))
        prints(api, 1, "one", name)
        wait_for(lambda name=name: kept(tmp_path / name) == ["one"], "stored lines")  # type: ignore[misc]
        streams = list(keeper._streams.values())
        keeper.close()
        if number == 9:
            client.close()
        for each in streams:
            each.join(300)
            assert not each.is_alive()
