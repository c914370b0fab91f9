"""Writes RoCEv2 packets built by scapy, with what is in them, for tests/scapy.rs.

    pip install scapy==2.8.0 && python3 roce.py > roce.txt

BTH, IP, UDP and ICRC are scapy's; scapy lacks the other extension headers, so they are declared
here. Field values come from a fixed seed.
"""
import logging
import random

logging.getLogger("scapy").setLevel(logging.ERROR)
from scapy.all import IP, UDP, BitField, IntField, IPv6, LongField, Packet, Raw, raw  # noqa: E402
from scapy.contrib.roce import AETH, BTH  # noqa: E402


class DETH(Packet):
    fields_desc = [IntField("qkey", 0), BitField("reserved", 0, 8), BitField("qpn", 0, 24)]


class RETH(Packet):
    fields_desc = [LongField("va", 0), IntField("rkey", 0), IntField("len", 0)]


class FETH(Packet):
    fields_desc = [BitField("reserved", 0, 26), BitField("level", 0, 2), BitField("type", 0, 4)]


class AtomicETH(Packet):
    fields_desc = [LongField("va", 0), IntField("rkey", 0), LongField("swap", 0),
                   LongField("compare", 0)]


class AtomicAckETH(Packet):
    fields_desc = [LongField("value", 0)]


class ImmDt(Packet):
    fields_desc = [IntField("imm", 0)]


class IETH(Packet):
    fields_desc = [IntField("rkey", 0)]


# Name, low five bits, extension headers, payload lengths.
ANY = (0, 1, 2, 3, 8)
SEND_WRITE = [
    ("SEND_FIRST", 0x00, "", ANY), ("SEND_MIDDLE", 0x01, "", ANY), ("SEND_LAST", 0x02, "", ANY),
    ("SEND_LAST_IMM", 0x03, "i", ANY), ("SEND_ONLY", 0x04, "", ANY),
    ("SEND_ONLY_IMM", 0x05, "i", ANY), ("WRITE_FIRST", 0x06, "r", ANY),
    ("WRITE_MIDDLE", 0x07, "", ANY), ("WRITE_LAST", 0x08, "", ANY),
    ("WRITE_LAST_IMM", 0x09, "i", ANY), ("WRITE_ONLY", 0x0A, "r", ANY),
    ("WRITE_ONLY_IMM", 0x0B, "ri", ANY)]
RC_ONLY = [
    ("READ_REQUEST", 0x0C, "r", (0,)), ("READ_RESPONSE_FIRST", 0x0D, "a", ANY),
    ("READ_RESPONSE_MIDDLE", 0x0E, "", ANY), ("READ_RESPONSE_LAST", 0x0F, "a", ANY),
    ("READ_RESPONSE_ONLY", 0x10, "a", ANY), ("ACK", 0x11, "a", (0,)),
    ("ATOMIC_ACK", 0x12, "ao", (0,)), ("COMPARE_SWAP", 0x13, "c", (0,)),
    ("FETCH_ADD", 0x14, "c", (0,)), ("SEND_LAST_INV", 0x16, "k", ANY),
    ("SEND_ONLY_INV", 0x17, "k", ANY), ("FLUSH", 0x1C, "fr", (0,)),
    ("ATOMIC_WRITE", 0x1D, "r", (8,))]
SERVICES = [("RC", 0x00, "", SEND_WRITE + RC_ONLY), ("UC", 0x20, "", SEND_WRITE),
            ("UD", 0x60, "d", SEND_WRITE[4:6])]

rng = random.Random(4791)
bits = rng.getrandbits


def extension(kind):
    """The header and what tests/scapy.rs prints for it."""
    if kind == "d":
        h = DETH(qkey=bits(32), qpn=bits(24))
        return h, f"deth={h.qkey:08x}/{h.qpn:06x}"
    if kind == "f":
        h = FETH(level=bits(1), type=bits(2))
        return h, f"feth={h.level}/{h.type}"
    if kind == "r":
        h = RETH(va=bits(64), rkey=bits(32), len=bits(31))
        return h, f"reth={h.va:016x}/{h.rkey:08x}/{h.len:08x}"
    if kind == "c":
        h = AtomicETH(va=bits(64), rkey=bits(32), swap=bits(64), compare=bits(64))
        return h, f"atomic={h.va:016x}/{h.rkey:08x}/{h.swap:016x}/{h.compare:016x}"
    if kind == "a":
        h = AETH(syndrome=bits(8), msn=bits(24))
        return h, f"aeth={h.syndrome:02x}/{h.msn:06x}"
    if kind == "o":
        h = AtomicAckETH(value=bits(64))
        return h, f"original={h.value:016x}"
    if kind == "i":
        h = ImmDt(imm=bits(32))
        return h, f"imm={h.imm:08x}"
    h = IETH(rkey=bits(32))
    return h, f"ieth={h.rkey:08x}"


def network(version):
    if version == 4:
        return IP(src=f"10.{bits(8)}.{bits(8)}.{bits(8)}", dst=f"192.168.{bits(8)}.{bits(8)}",
                  tos=bits(8), ttl=bits(8), id=bits(16), flags="DF" if bits(2) else 0)
    return IPv6(src=f"fd00::{bits(16):x}:{bits(16):x}", dst=f"fd00:{bits(16):x}::{bits(16):x}",
                tc=bits(8), fl=bits(20), hlim=bits(8))


def vector(version, service, opcode, extensions, payload_len):
    pad = -payload_len % 4
    bth = BTH(opcode=opcode, solicited=bits(1), migreq=bits(1), padcount=pad, pkey=bits(16),
              fecn=bits(1), becn=bits(1), dqpn=bits(24), ackreq=bits(1), psn=bits(24))
    text = (f"{service} se={bth.solicited} mig={bth.migreq} pkey={bth.pkey:04x} "
            f"fecn={bth.fecn} becn={bth.becn} qpn={bth.dqpn:06x} ack={bth.ackreq} "
            f"psn={bth.psn:06x}")
    packet = network(version) / UDP(sport=bits(16), dport=4791) / bth
    for kind in extensions:
        header, shown = extension(kind)
        packet /= header
        text += " " + shown
    payload = rng.randbytes(payload_len)
    packet /= Raw(payload + bytes(pad))
    return f"{text} payload={payload.hex()} | {raw(packet).hex()}"


print("# Written by roce.py with scapy 2.8.0: contents | IP packet.")
for name, top, before, opcodes in SERVICES:
    for operation, low, after, lengths in opcodes:
        for length in lengths:
            for version in (4, 6):
                print(vector(version, f"{name} {operation}", top | low, before + after, length))
