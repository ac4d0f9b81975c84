"""A primary, its standby, clients and an operator, on a network and machines that fail; auditors watch all of them.

Leases, epochs and the clients' memory are the product's own code. Disks, messages and processes are simulated: messages
are delayed, lost and doubled, the network is divided, processes are paused and killed, clocks run at different rates,
and the system's clock jumps. A pause ends at any event, so what was queued before it leaves after it, unless it is
checked at that moment.

What failure studies of replicated logs and brokers have found around failover, and where it is in here:

- Split brain after a partition heals: a promotion while the old primary runs; `Auditor.emits` allows one server a time.
- A deposed primary that keeps acknowledging, as its clients still reach it; the same, and `promoted` for `confirm`.
- Acknowledged writes lost by an unclean election: the operator may promote at any moment; `Auditor.promoted`.
- A stale leader serving reads: rows that a client requests are effects like others; `Auditor.emits`.
- A client that switches back to the old primary: clients try both servers in turn; `Auditor.accepts`.
- A paused process that wakes after its lease has expired and emits what it had queued: `Server.pause`.
- Clocks that jump: `jump` sets the system's clock, which no lease depends on.
- A rejoining primary whose surplus records come back: old primaries follow with their directory; `joined`.

Its first run found one more: an old primary that follows with its directory, and is promoted before it has found the
new one, starts a second epoch with the same number. A standby is promotable once its records were compared.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, NamedTuple

from millrace.protocol.epochs import EpochMemory, epoch_number
from millrace.standby.epoch import Epoch, Fence
from millrace.standby.lease import PrimaryLease, StandbyLease

SERVER_ID = b"0123456789abcdef"
SECOND = 1_000_000
LEASE_US = 5 * SECOND
PING_US = SECOND
RETRY_US = 2 * SECOND
# The most that a clock's rate differs from time.
DRIFT = 0.01


class Record(NamedTuple):
    """A step: the epoch in which it was recorded, and the tuple that it takes."""

    epoch: int
    client: int
    sequence: int


@dataclass
class Disk:
    """What survives of a server: its records, those that are synced, and small files."""

    records: list[Record] = field(default_factory=list)
    synced: int = 0
    epoch: int = 1
    # At which record each epoch began.
    began: dict[int, int] = field(default_factory=lambda: {1: 0})
    follows: bool = False
    lease_us: int = 0
    superseded: bool = False
    # Whether a standby's records are known to be those of its primary: else it must not be promoted.
    matched: bool = True
    # Whether a primary may have one: a new or promoted one has none.
    has_standby: bool = False


class ViolationError(AssertionError):
    """Something that must never happen."""


class Auditor:
    """Sees every effect, and knows what was promised."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.highest = 1
        self.acknowledged: dict[int, int] = {}  # by client, the tuples of which an acknowledgement has left
        self.deposed: set[tuple[str, int]] = set()  # servers in an epoch that were shown a higher one
        self.emitted = 0

    def emits(self, server: Server) -> None:
        """Something leaves a server."""
        self.emitted += 1
        if (server.name, server.disk.epoch) in self.deposed or server.state != "primary":
            raise ViolationError(f"{server.name} emits although it is {server.state} or deposed")
        if self.world.lease_us is not None and server.disk.epoch < self.highest:
            raise ViolationError(f"{server.name} of epoch {server.disk.epoch} emits in epoch {self.highest}")

    def acknowledges(self, client: int, sequence: int) -> None:
        """An acknowledgement leaves: in a greeting, too."""
        self.acknowledged[client] = max(self.acknowledged.get(client, 0), sequence)

    def shown(self, server: Server, proof: str) -> None:
        """A server is shown an epoch."""
        if (epoch_number(proof) or 0) > server.disk.epoch:
            self.deposed.add((server.name, server.disk.epoch))

    def promoted(self, server: Server) -> None:
        self.highest = max(self.highest, server.disk.epoch)
        if self.world.confirm:
            self.has_all(server)

    def has_all(self, server: Server) -> None:
        for client, sequence in self.acknowledged.items():
            if server.taken.get(client, 0) < sequence:
                raise ViolationError(
                    f"{server.name} lacks tuples of client {client} that were acknowledged: {sequence - 1}"
                )

    def accepts(self, client: Client, epoch: int, seen: int) -> None:
        """A client uses a message of a server of this epoch."""
        if epoch < seen:
            raise ViolationError(f"client {client.number} has seen epoch {seen} and accepts epoch {epoch}")

    def joined(self, primary: Server, standby: Server) -> None:
        """A standby's records are synced."""
        if primary.disk.epoch >= standby.disk.epoch:
            common = min(len(primary.disk.records), len(standby.disk.records))
            if primary.disk.records[:common] != standby.disk.records[:common]:
                raise ViolationError(f"{standby.name} has records that {primary.name} does not have")

    def at_end(self) -> None:
        """The newest primary and every client agree."""
        world = self.world
        primaries = [one for one in world.servers if not one.disk.follows and not one.disk.superseded]
        newest = max(primaries, key=lambda one: one.disk.epoch)
        if world.confirm:
            newest.count()
            self.has_all(newest)
        for client in world.clients:
            if client.memory.number == newest.disk.epoch:
                for at, record in client.rows.items():
                    if newest.disk.records[at : at + 1] != [record]:
                        raise ViolationError(
                            f"row {at} of client {client.number} is {record}, not that of {newest.name}"
                        )


class Server:
    """One machine: its disk, its clocks, and the process on it."""

    def __init__(self, world: World, name: str, disk: Disk) -> None:
        self.world, self.name, self.disk = world, name, disk
        self.rate = 1 + world.random.uniform(-DRIFT, DRIFT) * world.random.choice((0.1, 1, 1))
        if world.random.random() < 0.5:
            self.rate = 1 + world.random.choice((-DRIFT, DRIFT))
        self.offset = world.random.randrange(10**9)
        self.wall_offset = 0
        self.state = "down"
        self.process = 0
        self.paused_until = 0
        self.fence = Fence(SERVER_ID, Epoch(1))
        self.lease = world.primary_lease()
        self.standby = StandbyLease(0, 0)
        self.settled = self.passed = 0
        self.connections: dict[int, int] = {}
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.held: list[Callable[[], None]] = []
        self.taken: dict[int, int] = {}  # by client, the number of its next tuple

    # -- the machine -------------------------------------------------------------------------------

    @property
    def peer(self) -> Server:
        return self.world.servers[1 - self.world.servers.index(self)]

    def steady_us(self) -> int:
        """The clock of leases."""
        return self.offset + int(self.world.now_us * self.rate) + self.world.jumps(self)

    def count(self) -> None:
        """As a server does that replays its records."""
        self.taken = {record.client: record.sequence + 1 for record in self.disk.records}

    def soon(self, delay_us: int, work: Callable[[], object]) -> None:
        """Something happens in this process, unless it ends before; a pause delays it."""
        process = self.process

        def happen() -> None:
            if self.process != process or self.state == "down":
                return
            if self.world.now_us < self.paused_until:
                self.world.at(self.paused_until, happen)
                return
            work()

        self.world.at(self.world.now_us + delay_us, happen)

    def kill(self) -> None:
        self.process += 1
        self.state = "down"
        disk = self.disk
        keeps = self.world.random.randint(disk.synced, len(disk.records))
        del disk.records[keeps:]
        disk.synced = len(disk.records)
        self.connections.clear()
        self.waiting.clear()
        self.held.clear()

    def pause(self, duration_us: int) -> None:
        self.paused_until = max(self.paused_until, self.world.now_us + duration_us)

    def start(self) -> None:
        if self.disk.superseded:
            return  # it refuses, with exit code 1
        self.process += 1
        self.fence = Fence(SERVER_ID, Epoch(self.disk.epoch))
        self.settled = self.passed = len(self.disk.records)
        self.count()
        if self.disk.follows:
            self.state = "standby"
            self.standby = StandbyLease(self.world.stored_lease(self), self.steady_us())
        else:
            self.state = "primary"
            self.lease = self.world.primary_lease(self.settled)
            self.lease.alone = not self.disk.has_standby
            self.soon(0, self.ping)

    # -- the primary -------------------------------------------------------------------------------

    def ping(self) -> None:
        if self.state != "primary":
            return
        self.world.note_standby(self)
        number = self.lease.ping(self.steady_us())
        known = self.lease.confirmed
        before = self.disk.records[known - 1] if 0 < known <= len(self.disk.records) else None
        end = self.world.streamed(self)
        records = self.disk.records[known:end]
        peer, proof, began = self.peer, self.fence.proof, dict(self.disk.began)
        self.world.send(
            self, peer, lambda: peer.pinged(number, self.world.lease_us, proof, began, known, before, records)
        )
        self.soon(self.world.random.randrange(PING_US // 4, PING_US), self.ping)

    def answered(self, number: int, lsn: int, proof: str) -> None:
        """The standby answers a ping: nobody else may, since an answer extends the lease."""
        if self.learn(proof) or self.state != "primary":
            return
        if lsn > len(self.disk.records):
            return  # of another process of this server: refused
        self.lease.heard(number, lsn, self.steady_us())
        self.release()

    def learn(self, proof: str | None) -> bool:
        """Whether the server has stopped, as another one has a higher epoch."""
        if proof is None or self.state != "primary":
            return False
        self.world.auditor.shown(self, proof)
        if self.world.shows(self, proof):
            self.disk.superseded = True
            self.kill()
        return self.disk.superseded

    def release(self) -> None:
        """Let effects leave that may leave now."""
        self.passed = max(self.passed, self.world.passes(self, self.settled))
        while self.waiting and self.waiting[0][0] <= self.passed:
            self.waiting.pop(0)[1]()
        if self.held and not self.world.silences(self):
            held, self.held = self.held, []
            for write in held:
                write()

    def write(
        self, client: Client, connection: int, message: Callable[[], None], acknowledges: int | None = None
    ) -> None:
        """The last moment before something leaves."""

        def leave() -> None:
            if self.connections.get(client.number) != connection:
                return
            self.world.auditor.emits(self)
            if acknowledges is not None:
                self.world.auditor.acknowledges(client.number, acknowledges)
            self.world.send(self, client, message)

        if self.held or self.world.silences(self):
            self.held.append(leave)
        else:
            leave()

    # -- clients -----------------------------------------------------------------------------------

    def hello(self, client: Client, connection: int, proof: str | None) -> None:
        if self.learn(proof):
            return
        if self.state != "primary":
            self.world.send(self, client, lambda: client.turned_away(connection))
            return
        self.connections[client.number] = connection
        own, taken, began = self.fence.proof, self.taken.get(client.number, 0), dict(self.disk.began)
        self.when_passed(
            lambda: self.write(client, connection, lambda: client.welcome(connection, own, taken, began), taken)
        )

    def when_passed(self, call: Callable[[], None]) -> None:
        """Call once everything recorded so far may have effects."""
        if self.passed >= len(self.disk.records):
            call()
        else:
            self.waiting.append((len(self.disk.records), call))

    def tuple(self, client: Client, connection: int, sequence: int) -> None:
        if self.state != "primary" or self.connections.get(client.number) != connection:
            return
        taken = self.taken.get(client.number, 0)
        if sequence > taken:
            return
        records, own = self.disk.records, self.fence.proof
        if sequence == taken:
            record = Record(self.disk.epoch, client.number, sequence)
            records.append(record)
            self.taken[client.number] = sequence + 1
            self.soon(self.world.random.randrange(1_000, self.world.sync_us), self.sync)
            at = len(records) - 1
            self.when_passed(lambda: self.write(client, connection, lambda: client.row(connection, own, at, record)))
        following = sequence + 1
        self.when_passed(
            lambda: self.write(
                client, connection, lambda: client.acknowledged_up_to(connection, own, following), following
            )
        )

    def rows(self, client: Client, connection: int, first: int) -> None:
        """A client requests a row that it lacks."""
        if self.state != "primary" or self.connections.get(client.number) != connection or first >= self.passed:
            return
        record, proof = self.disk.records[first], self.fence.proof
        self.write(client, connection, lambda: client.row(connection, proof, first, record))

    def sync(self) -> None:
        """What was written is on the disk."""
        self.disk.synced = len(self.disk.records)
        if self.state == "primary":
            self.settled = self.disk.synced
            self.release()

    # -- the standby -------------------------------------------------------------------------------

    def pinged(
        self, number: int, lease_us: int | None, proof: str, began: dict[int, int], known: int, before: Record | None,
        records: list[Record],
    ) -> None:  # fmt: skip
        disk, peer = self.disk, self.peer
        if self.learn(proof) or self.state == "down":
            return
        epoch = epoch_number(proof) or 0
        if self.state == "primary" or epoch < disk.epoch:  # it is no answer, but the old primary must stop
            own = Epoch(disk.epoch).proof(SERVER_ID)
            self.world.send(self, peer, lambda: peer.learn(own))
            return
        if known > len(disk.records):
            return  # a late ping
        if self.world.diverged(disk.records, known, before, records):
            self.kill()  # it has records that the primary does not have, and ends with one line
            return
        answer = self.standby.answer(number, lease_us, self.steady_us())
        if answer is None:
            return
        disk.lease_us = self.standby.lease_us  # stored before the answer leaves
        disk.records += records[len(disk.records) - known :]
        disk.epoch, disk.began = max(disk.epoch, epoch), began
        own = Epoch(disk.epoch).proof(SERVER_ID)

        def durable() -> None:
            disk.synced, disk.matched = len(disk.records), True
            self.world.auditor.joined(peer, self)
            self.world.send(self, peer, lambda: peer.answered(answer, known + len(records), own))

        self.world.when_durable(self, durable)

    def promote(self) -> None:
        """The operator wants this standby to take over."""
        if self.state != "standby" or not self.world.promotes(self):
            return
        self.state = "promoting"
        self.standby.promote()
        self.soon(0, self.take_over)

    def take_over(self) -> None:
        ahead_us = self.world.promotable_at(self) - self.steady_us()
        if ahead_us > 0:
            self.soon(int(ahead_us / self.rate) + 1, self.take_over)
            return
        disk = self.disk
        disk.synced = len(disk.records)
        disk.epoch = Epoch(disk.epoch).next.number
        disk.began = {**disk.began, disk.epoch: len(disk.records)}
        disk.follows, disk.lease_us, disk.has_standby = False, 0, False
        disk.records.append(Record(disk.epoch, -1, 0))  # the start, which differs from all that the old one recorded
        disk.synced = len(disk.records)
        self.state = "down"
        self.count()
        self.world.auditor.promoted(self)
        self.start()


class Client:
    """Sends tuples with numbers, reads all rows, and tries the servers in turn."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.number = world, number
        self.memory: EpochMemory = world.memory()
        self.connection = 0
        self.server: Server | None = None
        self.at = number
        self.next_sequence = self.acknowledged = 0
        self.rows: dict[int, Record] = {}
        self.next_row = self.lost_rows = self.lost_tuples = 0
        self.heard_us = -RETRY_US
        self.open = False
        world.at(1, self.act)

    def act(self) -> None:
        """Send something, or look for a server that answers."""
        world = self.world
        if world.now_us < world.end_us:
            world.at(world.now_us + world.random.randrange(SECOND // 5, SECOND), self.act)
        if world.now_us - self.heard_us > RETRY_US or world.random.random() < 0.02:
            self.connect()
        if not self.open:
            return
        server, connection = self.server, self.connection
        assert server is not None
        if self.next_sequence < self.acknowledged + 3:
            self.next_sequence += 1
        for sequence in range(self.acknowledged, self.next_sequence):
            world.send(self, server, partial(server.tuple, self, connection, sequence))
        missing = self.first_missing()
        world.send(self, server, lambda: server.rows(self, connection, missing))

    def first_missing(self) -> int:
        while self.next_row in self.rows:
            self.next_row += 1
        return self.next_row

    def connect(self) -> None:
        self.at += 1
        self.open = False
        self.heard_us = self.world.now_us
        self.connection = connection = self.world.number()
        self.server = server = self.world.servers[self.at % len(self.world.servers)]
        proof = self.memory.text
        self.world.send(self, server, lambda: server.hello(self, connection, proof))

    def turned_away(self, connection: int) -> None:
        if connection == self.connection:
            self.heard_us = self.world.now_us - RETRY_US

    def welcome(self, connection: int, proof: str, taken: int, began: dict[int, int]) -> None:
        if connection != self.connection:
            return
        before, seen = self.memory.number, self.world.seen(self, proof)
        if not self.memory.accepts(proof):
            self.turned_away(connection)
            return
        number = epoch_number(proof) or 0
        self.world.auditor.accepts(self, number, seen)
        self.open, self.heard_us = True, self.world.now_us
        if 0 < before < number:
            # The first epoch that it has not seen began at the lowest row, and the server says at which.
            for at in [at for at in self.rows if at >= began[before + 1]]:
                del self.rows[at]
                self.lost_rows += 1
            self.next_row = 0
        self.lost_tuples += max(self.acknowledged - taken, 0)
        self.acknowledged = taken
        self.next_sequence = max(self.next_sequence, taken)

    def uses(self, connection: int, proof: str) -> bool:
        if connection != self.connection or not self.open:
            return False
        self.world.auditor.accepts(self, epoch_number(proof) or 0, self.world.seen(self, proof))
        self.heard_us = self.world.now_us
        return True

    def acknowledged_up_to(self, connection: int, proof: str, sequence: int) -> None:
        if self.uses(connection, proof):
            self.acknowledged = max(self.acknowledged, sequence)

    def row(self, connection: int, proof: str, at: int, record: Record) -> None:
        if self.uses(connection, proof) and self.rows.setdefault(at, record) != record:
            raise ViolationError(f"client {self.number} gets another row {at}: {self.rows[at]} was {record}")


class World:
    """Two servers, some clients, and what happens to them. Subclasses break one rule each: the auditors must notice."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.now_us = 0
        self.end_us = self.random.randrange(30, 120) * SECOND
        self.lease_us = LEASE_US if self.random.random() < 0.7 else None
        self.confirm = self.random.random() < 0.6
        self._events: list[tuple[int, int, Callable[[], object]]] = []
        self._count = 0
        self._seen: dict[int, int] = {}
        self.divided: set[frozenset[str]] = set()
        self.auditor = Auditor(self)
        self.servers: list[Server] = []
        self.servers += [Server(self, "a", Disk()), Server(self, "b", Disk(follows=True, lease_us=self.lease_us or 0))]
        self.clients = [Client(self, number) for number in range(self.random.randrange(1, 4))]
        self.promotions = 0
        self.harsh = self.random.choice((0.5, 1, 2))

    # What happens to servers, the most that a disk takes for a sync, and the share of messages that travel for seconds.
    # Subclasses that break a rule have more of what shows it.
    faults: tuple[str, ...] = (
        "pause", "pause", "kill", "divide", "divide", "heal", "promote", "promote", "operate", "jump"
    )  # fmt: skip
    sync_us = 50_000
    late = 0.05

    # -- what subclasses break ---------------------------------------------------------------------

    lease: type[PrimaryLease] = PrimaryLease

    def primary_lease(self, recovered: int = 0) -> PrimaryLease:
        return self.lease(self.lease_us, confirm=self.confirm, recovered=recovered, first=self.first_ping())

    def note_standby(self, server: Server) -> None:
        """Before the first ping, the primary writes down that it has a standby."""
        server.disk.has_standby = True

    def first_ping(self) -> int:
        return self.random.randrange(2**40)

    def memory(self) -> EpochMemory:
        return EpochMemory()

    def passes(self, server: Server, settled: int) -> int:
        return server.lease.passes(settled, server.steady_us())

    def silences(self, server: Server) -> bool:
        return server.lease.silences(server.steady_us())

    def promotable_at(self, server: Server) -> int:
        return server.standby.promotable_at_us

    def jumps(self, server: Server) -> int:
        """How far the clock of leases was set."""
        return 0

    def streamed(self, server: Server) -> int:
        """The newest record that the standby gets."""
        return server.disk.synced

    def diverged(self, own: list[Record], known: int, before: Record | None, records: list[Record]) -> bool:
        """Whether a standby has another record than the primary where both have one."""
        return own[known - 1 : known] != ([] if before is None else [before]) or any(
            one != other for one, other in zip(own[known:], records, strict=False)
        )

    def promotes(self, standby: Server) -> bool:
        """Whether a standby may be promoted."""
        return standby.disk.matched

    def stored_lease(self, standby: Server) -> int:
        """The lease that a standby starts with."""
        return standby.disk.lease_us

    def when_durable(self, standby: Server, call: Callable[[], None]) -> None:
        """Call when the standby's records are on its disk."""
        standby.soon(self.random.randrange(1_000, 50_000), call)

    def shows(self, server: Server, proof: str) -> bool:
        """Whether a server that is shown an epoch has to stop."""
        return server.fence.show(proof)

    # -- the machinery -----------------------------------------------------------------------------

    def at(self, at_us: int, work: Callable[[], object]) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_us, self._count, work))

    def number(self) -> int:
        self._count += 1
        return self._count

    def seen(self, client: Client, proof: str) -> int:
        """The highest epoch that a client has seen before this message."""
        before = self._seen.get(client.number, 0)
        self._seen[client.number] = max(before, epoch_number(proof) or 0)
        return before

    def send(self, sender: Any, receiver: Any, deliver: Callable[[], object]) -> None:
        """A message: late, twice, or never."""
        random = self.random
        names = frozenset(one.name if isinstance(one, Server) else f"client {one.number}" for one in (sender, receiver))
        if names in self.divided or random.random() < 0.03:
            return
        for _ in range(2 if random.random() < 0.03 else 1):
            delay = random.randrange(7 * SECOND) if random.random() < self.late else random.randrange(100, 50_000)
            arrive = partial(receiver.soon, 0, deliver) if isinstance(receiver, Server) else deliver
            self.at(self.now_us + delay, arrive)

    def trouble(self) -> None:
        """Something fails, or the operator acts."""
        random, now_us = self.random, self.now_us
        if now_us >= self.end_us:
            return
        self.at(now_us + int(random.randrange(SECOND, 8 * SECOND) / self.harsh), self.trouble)
        server = random.choice(self.servers)
        match random.choice(self.faults):
            case "pause":
                server.pause(random.randrange(10_000, 12 * SECOND))
            case "kill":
                server.kill()
                delay = random.randrange(random.choice((SECOND // 5, SECOND, 10 * SECOND)))
                self.at(now_us + delay, lambda: self.restart(server))
            case "divide":
                other: Any = random.choice([server.peer, server.peer, *self.clients])
                name = other.name if isinstance(other, Server) else f"client {other.number}"
                pair = frozenset((server.name, name))
                self.divided.add(pair)
                self.at(now_us + random.randrange(SECOND, 20 * SECOND), lambda: self.divided.discard(pair))
            case "heal":
                self.divided.clear()
            case "promote":
                standby = next((one for one in self.servers if one.state == "standby"), None)
                if standby is not None and self.promotions < 4:
                    self.promotions += 1
                    standby.promote()
            case "operate":
                self.operate()
            case "jump":
                server.wall_offset += random.randrange(-20 * SECOND, 20 * SECOND)

    def restart(self, server: Server) -> None:
        if server.state == "down":
            server.start()

    def operate(self) -> None:
        """The operator makes a deposed server the standby: with an empty directory, or, in error, with its own."""
        for server in self.servers:
            old, source = server.disk, server.peer.disk
            if server.state != "down" or not (old.superseded or old.follows) or server.peer.state != "primary":
                continue
            if old.superseded and self.random.random() < 0.5:
                server.disk = replace(old, follows=True, superseded=False, lease_us=0, matched=False)
            else:  # a lease that the standby has granted is kept: its directory changes, not its word
                records = source.records[: source.synced]
                server.disk = Disk(records, len(records), source.epoch, dict(source.began), True, old.lease_us)
            server.start()

    def run(self) -> None:
        for server in self.servers:
            server.start()
        self.at(SECOND, self.trouble)
        while self._events and self.now_us < self.end_us + 60 * SECOND:
            self.now_us, _, work = heapq.heappop(self._events)
            if self.now_us > self.end_us and self.divided:
                self.divided.clear()
            work()
        self.auditor.at_end()


def play(seed: int, kind: type[World] = World) -> World:
    """Play one world."""
    world = kind(seed)
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed} fails; again: python -m tests.standby --from {seed} --seeds 1")
        raise
    return world
