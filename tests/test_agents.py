"""Workers and the process that they serve withstand strangers, and refuse orders that must not be obeyed."""

import contextlib
import math
import os
import random
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import AuthenticationError
from types import SimpleNamespace

import pytest

from collbench.launch import workers as accepting
from collbench.launch.agent import Agent, _reach
from collbench.launch.coordinator import gathered
from collbench.launch.job import JobRank
from collbench.launch.ranks import Ranks
from collbench.launch.secret import JobSecret
from collbench.launch.sweep import sweep
from collbench.launch.turns import drive
from collbench.launch.worker import Worker, _Child
from collbench.launch.workers import Workers
from collbench.machine import interrupts
from collbench.model.errors import JobError, LostRankError, MpirunError, StartError
from collbench.model.records import Case, Job, Launch, Plan, Settings, Variables
from collbench.packages.training.synchronisation import StepOptions, Strategy
from collbench.protocol import channel, messages
from collbench.store import encoding
from conftest import SAMPLING

KEY = b"k" * 32
FUZZED = 200


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(accepting, "LEAVE_WAIT_S", 0.2)
    with channel.listen("127.0.0.1", [0]) as listener, Workers([listener], KEY, [1]) as server:
        server.address = listener.getsockname()
        yield server


def connected(workers, key=KEY):
    """Return the connection of a caller; `workers` answers in this thread."""
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(channel.connect, *workers.address, key, 5)
        workers.wait_until(calling.done, 30)
    return calling.result()


def honest(workers, rank=1):
    """Return the connection of a worker that identifies itself."""
    line = connected(workers)
    messages.send(line, {"kind": "handshake", "rank": rank, "hostname": "b"})
    return line


def until(workers, condition, seconds=20):
    workers.wait_until(condition, seconds)
    return condition()


# ── strangers and nonsense ───────────────────────────────────────────────────────────────────────
def test_bytes_of_strangers_do_not_stop_an_honest_worker(workers):
    dice = random.Random(3)
    for _ in range(FUZZED):
        with socket.create_connection(workers.address) as stranger:
            stranger.sendall(dice.randbytes(dice.randrange(200)))
    with honest(workers) as line:
        assert len(gathered(workers, 20)) == 1
        messages.send(line, {"kind": "interrupted"})
        assert until(workers, lambda: workers.interrupted)


def test_a_stranger_who_sends_a_byte_now_and_then_is_not_waited_for(workers, monkeypatch):
    """Each byte comes in time; all of them together would take an hour."""
    monkeypatch.setattr(channel, "PROOF_S", 0.3)
    with socket.create_connection(workers.address) as stranger:
        for _ in range(300):
            with contextlib.suppress(OSError):  # until the other end has had enough
                stranger.sendall(b"x")
            workers.wait_until(lambda: workers.refused, 0.01)
    assert "without a proof" in workers.refused["127.0.0.1"]


def test_a_worker_whose_rank_is_turned_away_at_the_door_comes_again(workers):
    rank = workers._expected[1, 0] = SimpleNamespace(line=None)
    (listener,) = workers.listeners
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(Worker(None, workers.address, KEY, None, "")._rank_line, 1, 0)
        listener.setblocking(True)
        listener.accept()[0].close()
        listener.setblocking(False)
        workers.wait_until(lambda: rank.line, 30)
    with calling.result() as there, rank.line as here:
        messages.send(there, {"kind": "ready"})
        assert messages.receive(here)[0] == {"kind": "ready"}


def test_a_worker_that_stops_in_the_middle_of_a_message_holds_up_nobody(workers):
    workers._numbers = [1, 2]
    with honest(workers, 1) as stuck, honest(workers, 2) as right:
        assert len(gathered(workers, 20)) == 2
        with socket.socket(fileno=os.dup(stuck.fileno())) as raw:
            raw.sendall(b"\0\0\1\0half")
        messages.send(right, {"kind": "interrupted"})
        assert until(workers, lambda: workers.interrupted)
        (waited_for,) = (caller for caller in workers._callers.values() if caller.deadline < math.inf)
        assert not workers.lost() and waited_for.deadline <= time.monotonic() + channel.MESSAGE_S
        waited_for.deadline = 0
        assert until(workers, workers.lost) == {1: "rank 1 on host b is lost"}


def worker_of(line):
    return Worker(line, ("127.0.0.1", 1), KEY, None, "")


def test_two_processes_of_one_number_are_both_told(workers):
    with honest(workers), honest(workers) as second:
        words = "two processes say that they are rank 1 of 2, on host b"
        with pytest.raises(JobError, match=words):
            gathered(workers, 20)
        with pytest.raises(JobError, match=words):
            worker_of(second).serve()


class KeptRank:
    """A rank of a worker. It measures until it is killed."""

    rank, lost, log, health, progress, position = 1, None, "", {}, 1, None

    def __init__(self, workers):
        self.process, self.exit_code = SimpleNamespace(sentinel=workers.listeners[0].fileno()), None

    def kill(self):
        self.exit_code = -9

    def join(self, _): ...


def test_without_rank_0_a_worker_ends_its_rank_and_leaves(workers):
    with honest(workers) as line:
        assert until(workers, lambda: workers.members)
        with socket.socket(fileno=os.dup(workers.members[1].line.fileno())) as raw:
            raw.shutdown(socket.SHUT_RDWR)
        worker, rank = worker_of(line), KeptRank(workers)
        worker.children[1, 1] = _Child(rank, Ranks([rank], lambda: None), 0.0)
        with pytest.raises(JobError, match="rank 0 is lost: its process has ended or its host no longer answers"):
            worker.serve()
    assert rank.exit_code == -9


def test_an_interrupt_while_a_worker_sends_is_told_before_its_rank_ends(workers):
    """An interrupt between a message and its number made later messages look changed: the worker counted as lost."""
    line, killed = honest(workers), []
    assert until(workers, lambda: workers.members)

    class Raw:
        def send_bytes(self, data):
            line.sent.send_bytes(data)
            if b"progress" in data:
                os.kill(os.getpid(), signal.SIGTERM)

    class Rank(KeptRank):
        def kill(self):
            killed.append(until(workers, lambda: workers.interrupted))
            super().kill()

        def join(self, _):
            messages.send(workers.members[1].line, {"kind": "leave", "code": 7})

    line.sent, line._raw = line._raw, Raw()
    Raw.recv_bytes = staticmethod(line.sent.recv_bytes)
    worker = worker_of(line)
    worker.children[1, 1] = _Child((rank := Rank(workers)), Ranks([rank], lambda: None), 0.0)
    before = signal.getsignal(signal.SIGTERM)
    try:
        interrupts.answer(signal.SIGTERM, once=True)
        assert worker.serve() == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert killed == [True] and not workers.lost()


def test_a_job_may_go_on_without_a_process_that_does_not_come(workers):
    workers._numbers = [1, 2]
    with honest(workers, 2):
        assert until(workers, lambda: 2 in workers.members)
        with pytest.raises(JobError, match="1 of 3 ranks did not join"):
            gathered(workers, 0.2)
        assert [handshake["rank"] for handshake in gathered(workers, 0.2, partial=True)] == [2]
    assert until(workers, workers.lost) and set(workers.lost()) == {2}


# ── what each end says ───────────────────────────────────────────────────────────────────────────
def test_rank_0_says_where_it_listened_and_what_it_saw(workers, monkeypatch):
    """Nobody connected; somebody connected without a proof; somebody proved, and its large packets do not arrive."""
    with pytest.raises(JobError, match=r"rank 0 listens at 127\.0\.0\.1, port \d+; nobody connected"):
        gathered(workers, 0.1)
    with pytest.raises(AuthenticationError):
        connected(workers, b"x" * 32)
    with pytest.raises(JobError, match=r"127\.0\.0\.1 connected without a proof: set the same COLLBENCH_SECRET"):
        gathered(workers, 0.1)
    monkeypatch.setattr(accepting, "HANDSHAKE_S", 0.3)
    with connected(workers) as silent:
        with pytest.raises(JobError, match=r"proved itself, then sent nothing for 0\.3 s: do large packets arrive"):
            gathered(workers, 60)
        assert "do large packets arrive (MTU)?" in messages.receive(silent)[0]["why"]


@pytest.mark.parametrize(
    ("listens", "words"),
    [
        (None, r"never connected to 127\.0\.0\.1 \(connection refused\)"),
        (b"SSH-2.0-x\r\n", r"\d+: another program or version listens there: choose another MASTER_PORT"),
        (channel.GREETING + b"n" * 32, r"\d+: the other end does not know the key: set one COLLBENCH_SECRET"),
    ],
    ids=["nobody", "another program", "another key"],
)
def test_a_rank_says_why_it_did_not_reach_rank_0(tmp_path, listens, words):
    with channel.listen("127.0.0.1", [0]) as listener:
        place = JobRank("srun", 1, 2, 1, "127.0.0.1", (listener.getsockname()[1],), "x", True)
        if listens is None:
            listener.close()
        else:

            def answer():
                with contextlib.suppress(OSError):
                    while True:
                        with listener.accept()[0] as caller:
                            caller.sendall(listens)

            threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(JobError, match=words):
            _reach(place, JobSecret(place, "s" * 16, tmp_path, tmp_path), time.monotonic() + 0.5)
        if listens is not None:
            listener.shutdown(socket.SHUT_RDWR)


def test_launches_lead_over_the_address_that_workers_on_other_hosts_reached(workers, monkeypatch):
    monkeypatch.setattr(workers, "members", {
        rank: SimpleNamespace(ends=ends)
        for rank, ends in enumerate([("a", "a"), ("a", "a"), ("a", "a"), ("b", "x"), ("b", "y"), ("c", "z")])
    })  # fmt: skip
    assert workers.reached() == "b"
    monkeypatch.setattr(workers, "members", {1: SimpleNamespace(ends=("a", "a"))})
    assert workers.reached() == "a"
    monkeypatch.undo()
    assert workers.reached() is None


# ── launches that never begin ────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("error", "kind", "started"),
    [
        (StartError("blocked", 1), "start", [2, 3]),
        (MpirunError("status 7: no slots"), "start", [2, 3]),
        (LostRankError("gone", 1), "lost", [2, 2, 2, 3, 3, 3]),
    ],
)
def test_ranks_that_could_not_join_are_not_started_again_by_later_launches(tmp_path, error, kind, started):
    """A lost process is another matter: each launch starts others, or knows at once that it cannot."""
    asked = []

    class Refusing:
        def start(self, world_size, *_):
            asked.append(world_size)
            raise error

    cases = [Case("all_reduce", "gloo", size, "float32", 4096) for size in (2, 3)]
    order = tuple(Launch("gloo", case.world_size, number, (case,)) for case in cases for number in (1, 2, 3))
    lines = []
    plan = Plan("p", order, (), 3, Settings(SAMPLING, 1, 10.0, 0))
    drive(sweep(plan, [], Refusing(), lines.append, tmp_path / "log", lambda _: None))
    failures = [line.samples.failure for line in lines]
    assert asked == started and len(failures) == 6 and {failure.kind for failure in failures} == {kind}
    assert all(str(error) in failure.text for failure in failures)
    assert not any(line.samples.final for line in lines)  # a resume measures them


# ── orders ───────────────────────────────────────────────────────────────────────────────────────
def job(settings="", case=None):
    name, _, value = settings.partition("=")
    variables = Variables(((name, value),) if name else ())
    case = case or Case("all_reduce", "gloo", 2, "float32", 4096, settings=variables)
    return Job(Launch("gloo", 2, 1, (case,)), Settings(SAMPLING, 1, 10.0, 0))


def importing(model):
    own = StepOptions(strategy=Strategy("import", imported="users:sync"), model=model)
    return job(case=Case("training_step", "gloo", 2, "float32", 0, own=own))


PORT = "does not reach port 1 of 127.0.0.1 (connection refused): hosts must reach each other on any port"


@pytest.mark.parametrize(
    ("order", "variables", "words"),
    [
        # The rules for YAML apply to an order, independent of its sender.
        (job("LD_PRELOAD=x"), {}, "LD_PRELOAD"),
        (job("NCCL_NET_PLUGIN=x"), {}, "NCCL_NET_PLUGIN"),
        (job("NCCL_DEBUG_FILE=x"), {}, "NCCL_DEBUG_FILE"),
        (job("GLOO_LOG_LEVEL=/tmp/x"), {}, "GLOO_LOG_LEVEL"),
        (job(), {"LD_PRELOAD": "x"}, "LD_PRELOAD"),
        (job(), {"GLOO_LOG_LEVEL": "/tmp/x"}, "GLOO_LOG_LEVEL"),
        (job(), {"NCCL_ALGO": 7}, ""),
        (job(), 7, ""),
        (importing("os:system"), {}, "os:system is not in the configuration"),
        (b"{}", {}, ""),
        (b"null", {}, ""),
        (b"", {}, ""),
        (b'{"launch": 1}', {}, ""),
        (job(), {}, PORT),
    ],
)  # fmt: skip
def test_an_agent_starts_no_rank_for_an_order_that_its_own_configuration_forbids_or_that_it_cannot_join(
    tmp_path, order, variables, words
):
    class Launchers:
        def folder(self):
            made = tmp_path / "launch"
            made.mkdir()
            return made

        def fork(self, *_, **__):
            raise AssertionError("a rank was started")

    received = []
    line = type("Line", (), {"send_bytes": staticmethod(received.append)})()
    begin = Agent(Launchers(), KEY, lambda: b"", trusted=False).begin
    worker = Worker(line, ("127.0.0.1", 1), KEY, begin, "rank 1 could not be started", StartError)
    where = {"launch": 1, "ranks": [1], "world_size": 2, "rendezvous": "tcp:127.0.0.1:1", "device": 0}
    encoded = order if isinstance(order, bytes) else encoding.encoded(order)
    worker._start({"kind": "start", **where, "variables": variables}, encoded)
    (answer,) = received
    assert b'"failed"' in answer and b'"StartError"' in answer and b"rank 1 could not be started: " in answer
    assert words in answer.decode()
