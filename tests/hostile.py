#!/usr/bin/env python3
"""hostile.py VERIFY.PY SOURCE TARGET QPN-RC QPN-UC QPN-UD PSN ADDRESS LENGTH RKEY

Sends TARGET what no decent peer sends: every BTH opcode at every queue pair,
cut off after every byte, with a right and a wrong ICRC, and requests whose
range lies partly or wholly outside the granted one. Prints how many datagrams
it sent. VERIFY.PY lends its independent ICRC."""
import importlib.util
import random
import socket
import struct
import sys

PORT = 4791


def load(path):
    spec = importlib.util.spec_from_file_location("verify", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Sender:
    """One unconnected UDP socket whose datagrams have IP id 0 and DF."""

    def __init__(self, verify, source, target):
        self.verify = verify
        self.ends = socket.inet_aton(source) + socket.inet_aton(target)
        self.target = target
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.IPPROTO_IP, 10, 3)  # IP_MTU_DISCOVER, IP_PMTUDISC_PROBE
        self.socket.bind((source, 0))
        self.sent = 0

    def raw(self, payload):
        self.socket.sendto(payload, (self.target, PORT))
        self.sent += 1

    def signed(self, body):
        """body is everything from the BTH up to the ICRC."""
        length = 8 + len(body) + 4
        ip = struct.pack('>BBHHHBBH', 0x45, 0, 20 + length, 0, 0x4000, 64, 17, 0) + self.ends
        udp = struct.pack('>HHHH', self.socket.getsockname()[1], PORT, length, 0)
        icrc = self.verify.icrc(ip, udp + body + bytes(4))
        self.raw(body + struct.pack('<I', icrc))


def bth(opcode, qpn, psn, pad=0):
    return struct.pack('>BBHII', opcode, 0x40 | pad << 4, 0xffff, qpn, 0x80000000 | psn & 0xffffff)


def truncations(send, rng, qpns, psn):
    """Every opcode, every length: most are shorter than the headers their opcode promises."""
    for opcode in range(256):
        qpn = qpns[opcode >> 5] if opcode >> 5 in qpns else qpns[0]
        body = bth(opcode, qpn, psn) + rng.randbytes(52)
        for length in range(len(body) + 1):
            if length >= 12:
                send.signed(body[:length])
            send.raw(body[:length])


def pads(send, qpns, psn):
    """Pad counts larger than the payload that there is."""
    for opcode in (0x04, 0x0a, 0x24, 0x2a, 0x64):
        for pad in (1, 2, 3):
            for length in range(12, 40):
                send.signed((bth(opcode, qpns[opcode >> 5], psn, pad) + bytes(40))[:length])


def ranges(send, qpns, psn, address, length, rkey):
    """WRITE, READ and atomics around the edges of the region, and around the address space."""
    starts = [0, 1, address - 1, address - 8, address + length - 1, address + length,
              2**63, 2**64 - 1, 2**64 - 8]
    sizes = [1, 8, 256, length + 1, 2**31, 2**32 - 1]
    for start in starts:
        for size in sizes:
            reth = struct.pack('>QII', start, rkey, size)
            payload = bytes(min(size, 256) + 3 & ~3)
            for qpn, base in ((qpns[0], 0x00), (qpns[1], 0x20)):
                send.signed(bth(base | 0x0a, qpn, psn, -size & 3) + reth + payload)
                send.signed(bth(base | 0x06, qpn, psn) + reth + bytes(1024))
            send.signed(bth(0x0c, qpns[0], psn) + reth)
        atomic = struct.pack('>QIQQ', start, rkey, 1, 1)
        send.signed(bth(0x13, qpns[0], psn) + atomic)
        send.signed(bth(0x14, qpns[0], psn) + atomic)


def main():
    verify, source, target = load(sys.argv[1]), sys.argv[2], sys.argv[3]
    rc, uc, ud, psn, address, length, rkey = map(int, sys.argv[4:])
    rng = random.Random(4791)
    qpns = {0: rc, 1: uc, 3: ud}
    send = Sender(verify, source, target)
    # The expected PSN comes last: it may put the queue pair in error, as it should.
    for offset in (1000, -1, 0):
        truncations(send, rng, qpns, psn + offset)
        pads(send, qpns, psn + offset)
        ranges(send, qpns, psn + offset, address, length, rkey)
    print('sent', send.sent)


if __name__ == '__main__':
    main()
