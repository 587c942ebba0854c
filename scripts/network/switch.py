"""A switch between TAP devices: each port sends and receives at a limited rate, and a frame takes some time to cross.

    switch.py RATE_MBIT DELAY_MS TAP...

Prints `ready` when frames cross. Frames are those of the kernel before they are cut to what a wire carries (with the
header of virtio, as virtual machines send them), and count as long as their pieces would be on an Ethernet. Queues have
no end, so that no frame is lost. MAC addresses have to end with the number of their port, from 1.
"""

import fcntl
import heapq
import os
import select
import struct
import sys
import time

TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
OFFLOADS = 0x01 | 0x02 | 0x04  # checksums, and segments of TCP over IPv4 and IPv6
HEADER = 10  # bytes of virtio's
# Ethernet, IP and TCP with time stamps; and around each frame its preamble, checksum and gap.
HEADERS, AROUND = 14 + 20 + 32, 24


def open_tap(name):
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    fcntl.ioctl(tap, TUNSETVNETHDRSZ, struct.pack("i", HEADER))
    fcntl.ioctl(tap, TUNSETOFFLOAD, OFFLOADS)
    return tap


def wire_bytes(frame):
    """The bytes of a frame's pieces on the wire."""
    segment = struct.unpack_from("<BBHH", frame)[3]
    length = len(frame) - HEADER
    n = max(1, -(-(length - HEADERS) // segment)) if segment else 1
    return length + (n - 1) * HEADERS + n * AROUND


def main():
    rate = float(sys.argv[1]) * 1e6 / 8
    delay = float(sys.argv[2]) / 1e3
    taps = [open_tap(name) for name in sys.argv[3:]]
    port_of = {tap: port for port, tap in enumerate(taps)}
    sent, received = [0.0] * len(taps), [0.0] * len(taps)  # when each port is done with what it has
    # Frames on their way to a port, which receives them in the order in which they come; and those it has received.
    under_way, arrived, n_frames = [], [], 0
    poll = select.epoll()
    for tap in taps:
        poll.register(tap, select.EPOLLIN)
    print("ready", flush=True)
    while True:
        next_ones = [queue[0][0] for queue in (under_way, arrived) if queue]
        wait = max(0.0, min(next_ones) - time.monotonic()) if next_ones else -1
        # The clock of a poll has milliseconds: the last one is spent looking.
        for tap, _ in poll.poll(wait if wait < 0 else max(0.0, wait - 0.001)):
            source = port_of[tap]
            for _ in range(64):
                try:
                    frame = os.read(tap, 1 << 17)
                except BlockingIOError:
                    break
                now, takes = time.monotonic(), wire_bytes(frame) / rate
                sent[source] = max(now, sent[source]) + takes
                to = frame[HEADER + 5] - 1
                is_for_one = not frame[HEADER] & 1 and to < len(taps)
                for port in [to] if is_for_one else [p for p in range(len(taps)) if p != source]:
                    n_frames += 1
                    heapq.heappush(under_way, (sent[source] + delay, n_frames, port, takes, frame))
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            last_bit, n, port, takes, frame = heapq.heappop(under_way)
            # Its first bits were received before its last one was sent, unless another frame was.
            received[port] = max(last_bit, received[port] + takes)
            heapq.heappush(arrived, (received[port], n, port, frame))
        while arrived and arrived[0][0] <= now:
            _, _, port, frame = heapq.heappop(arrived)
            try:
                os.write(taps[port], frame)
            except OSError:
                pass  # the device is not up yet, or not any more


main()
