"""A simulated GPU: a host whose clock advances by rule, and a stream that runs behind it.

Every action costs host time, and enqueued work also costs stream time: it begins when it is enqueued and the stream is
free. The first record of an event makes the event, which takes long, as on CUDA. Other streams (`aside`) only wait
for calls and hold events. While calls are captured, every action that would wait for the device, or ask whether work is
done, raises, as on CUDA. `log` has all actions, in order.
"""

import contextlib

import torch

US = 1_000
ENQUEUE_NS, MAKE_EVENT_NS, CLOCK_NS = 5 * US, 30 * US, 20


class SimulatedDevice:
    """A device with simulated time; tensors really are on its `handle`."""

    enqueues = True

    def __init__(self):
        self.handle = torch.device("cpu")
        self.host_ns = 1_000_000
        self.free_at_ns = 0
        self.log = []
        self.capturing = None
        # When each other stream is free, by lane; the lane of the current stream (None: the stream that runs calls).
        self.lanes, self.lane = {}, None

    # ── the members of `collbench.rank.device.Device` ────────────────────────────────────────────────
    def clock_ns(self):
        self.host_ns += CLOCK_NS
        return self.host_ns

    def synchronize(self):
        self._not_captured("synchronize")
        self.log.append("synchronize")
        self.host_ns = max(self.host_ns, self.free_at_ns, *self.lanes.values())

    def event(self):
        made = _Event(self)
        made.record()
        return made

    def occupy(self, nanoseconds):
        self.log.append("occupy")
        self.enqueue(nanoseconds)

    def captured(self, calls, connected=False):
        if not connected:
            calls()
        self.synchronize()
        self.capturing = []
        calls()
        graph = _Graph(self, self.capturing)
        self.capturing = None
        return graph

    @contextlib.contextmanager
    def aside(self, lane):
        self.lane = lane
        self.lanes.setdefault(lane, 0)
        yield
        self.lane = None

    # ── work on the device ───────────────────────────────────────────────────────────────────────
    def enqueue(self, runs_ns, dispatch_ns=ENQUEUE_NS, not_before_ns=0):
        """Enqueue work of `runs_ns`, which takes the host `dispatch_ns`. Other ranks are there at `not_before_ns`."""
        if self.capturing is not None:
            self.capturing.append(runs_ns)
            return
        self.host_ns += dispatch_ns
        self.free_at_ns = max(self.free_at_ns, self.host_ns, not_before_ns) + runs_ns

    def wait_until(self, instant_ns):
        """Make the current stream wait, and not the host, as `wait` of a collective does."""
        if self.lane is None:
            self.free_at_ns = max(self.free_at_ns, instant_ns)
        else:
            self.lanes[self.lane] = max(self.lanes[self.lane], instant_ns)

    def call(self, runs_ns, dispatch_ns=ENQUEUE_NS, name="call"):
        """Return a function that enqueues a collective."""

        def enqueue():
            self.log.append(name)
            self.enqueue(runs_ns, dispatch_ns)

        return enqueue

    def aligned_at(self, skew_ns):
        """Return a call for which all ranks wait; the last rank enqueues it `skew_ns` later than this rank."""

        def align():
            self.log.append("align")
            self.enqueue(3 * US, not_before_ns=self.host_ns + skew_ns)

        return align

    def waits(self, nanoseconds):
        """Let the host do something else for this long."""
        self.host_ns += nanoseconds

    def _not_captured(self, action):
        if self.capturing is not None:
            raise RuntimeError(f"{action} while calls are captured")


class _Event:
    def __init__(self, device):
        self._device, self._at_ns = device, None

    def record(self):
        device = self._device
        device._not_captured("a timing event")
        device.log.append("make event" if self._at_ns is None else "record")
        device.host_ns += MAKE_EVENT_NS if self._at_ns is None else US
        if device.lane is None:
            device.free_at_ns = self._at_ns = max(device.free_at_ns, device.host_ns)
        else:
            device.lanes[device.lane] = self._at_ns = max(device.lanes[device.lane], device.host_ns)

    def passed(self):
        self._device._not_captured("asking an event")
        return self._at_ns <= self._device.host_ns

    def ns_since(self, earlier):
        assert max(self._at_ns, earlier._at_ns) <= self._device.host_ns, "the stream has not passed it yet"
        return self._at_ns - earlier._at_ns


class _Graph:
    def __init__(self, device, works):
        self._device, self._works = device, works

    def replay(self):
        assert self._works is not None, "it was reset"
        self._device.log.append("replay")
        self._device.enqueue(sum(self._works))

    def reset(self):
        self._device.log.append("reset")
        self._works = None
