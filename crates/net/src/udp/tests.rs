use rustix::net::RecvFlags;

use super::*;
use crate::sys;
use crate::testing::{address, as_nobody, in_namespace, ip, recv, skip};

const ADDRESSES: [&str; 2] = ["127.0.0.1", "::1"];

fn pair(addr: &str) -> (SendSocket, RecvSocket, SocketAddr) {
    let addr = address(addr);
    let receiver = RecvSocket::open(addr, 0, 0, Reuse::Group).unwrap();
    let dst = receiver.local();
    (SendSocket::open(addr, 0).unwrap(), receiver, dst)
}

#[test]
fn one_datagram_arrives_with_its_metadata() {
    for addr in ADDRESSES {
        let (sender, receiver, dst) = pair(addr);
        assert_eq!(sender.send(dst, b"one datagram", None, 0x68, Some(9)).unwrap(), 12);
        let mut buf = vec![0; BATCH_LEN];
        let meta = recv(&receiver, &mut buf).unwrap();
        let src = SocketAddr::new(sender.address(), sender.port());
        let expected =
            RecvMeta { len: 12, stride: 12, src, dst: dst.ip(), tos: 0x68, ttl: 9, drops: 0 };
        assert_eq!(meta, expected);
        assert_eq!(&buf[..12], b"one datagram");
        assert_eq!(receiver.recv(&mut buf).unwrap(), None);
    }
}

#[test]
fn an_empty_datagram_has_a_stride_that_can_be_cut_by() {
    let (sender, receiver, dst) = pair("127.0.0.1");
    sender.send(dst, &[], None, 0, None).unwrap();
    let meta = recv(&receiver, &mut [0; 64]).unwrap();
    assert_eq!((meta.len, meta.stride), (0, 1));
}

#[test]
fn a_batch_arrives_whole_with_its_stride() {
    for addr in ADDRESSES {
        let (sender, receiver, dst) = pair(addr);
        if sender.max_segments() == 1 {
            return skip("this kernel has no UDP_SEGMENT");
        }
        let data: Vec<u8> = (0..64 * 1000 - 1).map(|i| (i / 1000) as u8).collect();
        sender.send(dst, &data, Some(1000), 0, None).unwrap();
        let mut buf = vec![0; BATCH_LEN];
        let meta = recv(&receiver, &mut buf).unwrap();
        assert_eq!((meta.len, meta.stride), (data.len(), 1000));
        assert_eq!(buf[..meta.len], data);
    }
}

#[test]
fn bad_batches_are_refused_and_send_nothing() {
    let (sender, receiver, dst) = pair("127.0.0.1");
    let kind = |data: &[u8], size| sender.send(dst, data, Some(size), 0, None).unwrap_err().kind();
    assert_eq!(kind(&[0; 10], 0), io::ErrorKind::InvalidInput);
    assert_eq!(kind(&[0; 650], 10), io::ErrorKind::InvalidInput);
    let too_long = sender.send(dst, &[0; 65_508], None, 0, None).unwrap_err();
    assert_eq!(too_long.raw_os_error(), Some(libc::EMSGSIZE));
    assert_eq!(receiver.recv(&mut [0; 64]).unwrap(), None);
}

#[test]
fn a_socket_without_checksums_cannot_send_batches() {
    let (sender, _receiver, dst) = pair("127.0.0.1");
    sys::set_option(&sender, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    let error = sender.send(dst, &[0; 20], Some(10), 0, None).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
}

#[test]
fn datagrams_longer_than_the_buffer_are_dropped() {
    let (sender, receiver, dst) = pair("127.0.0.1");
    sender.send(dst, &[1; 100], None, 0, None).unwrap();
    sender.send(dst, &[2; 10], None, 0, None).unwrap();
    let mut buf = [0; 64];
    assert_eq!(recv(&receiver, &mut buf).unwrap().len, 10);
    assert_eq!(buf[0], 2);
}

#[test]
fn a_full_receiver_counts_what_it_lost() {
    let (sender, receiver, dst) = pair("127.0.0.1");
    let mut buf = vec![0; BATCH_LEN];
    sockopt::set_socket_recv_buffer_size(&receiver, 4096).unwrap();
    for _ in 0..100 {
        sender.send(dst, &[0; 1000], None, 0, None).unwrap();
    }
    let mut taken = 0;
    while receiver.recv(&mut buf).unwrap().is_some() {
        taken += 1;
    }
    sender.send(dst, &[0; 1000], None, 0, None).unwrap();
    assert_eq!(recv(&receiver, &mut buf).unwrap().drops, 100 - taken);
}

#[test]
fn refused_addresses_name_object_and_remedy() {
    let open = |addr: &str| RecvSocket::open(address(addr), 4791, 0, Reuse::Group);
    assert_eq!(open("0.0.0.0").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    let error = open("192.0.2.1").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrNotAvailable);
    assert!(error.to_string().contains("192.0.2.1:4791"), "{error}");

    let exclusive = super::open(address("127.0.0.1")).unwrap();
    rustix::net::bind(&exclusive, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    let taken = SocketAddr::try_from(rustix::net::getsockname(&exclusive).unwrap()).unwrap();
    let error = RecvSocket::open(taken.ip(), taken.port(), 0, Reuse::Group).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    assert!(error.to_string().contains("rdma_rxe"), "{error}");
}

#[test]
fn the_granted_buffer_is_the_kernels_own_figure() {
    let (_, receiver, _) = pair("127.0.0.1");
    assert_eq!(receiver.rcvbuf(), sockopt::socket_recv_buffer_size(&receiver).unwrap());
    assert!(receiver.rcvbuf() >= 100_000, "{}", receiver.rcvbuf());
}

#[test]
fn every_missing_feature_names_its_fallback() {
    let none = Features {
        gso: false,
        gro: false,
        fixed_ids: false,
        steering: false,
        multicast_filter: false,
    };
    assert_eq!(none.fallbacks().len(), 5);
    let probed = Features::probe().unwrap();
    let sender = SendSocket::open(address("127.0.0.1"), 0).unwrap();
    assert_eq!(probed.gso, sender.max_segments() == MAX_SEGMENTS);
}

#[test]
fn a_datagram_without_checksum_arrives() {
    for (addr, level, name) in [
        ("127.0.0.1", libc::SOL_SOCKET, libc::SO_NO_CHECK),
        ("::1", libc::SOL_UDP, libc::UDP_NO_CHECK6_TX),
    ] {
        let (sender, receiver, dst) = pair(addr);
        sys::set_option(&sender, level, name, 1).unwrap();
        sender.send(dst, b"bare", None, 0, None).unwrap();
        assert_eq!(recv(&receiver, &mut [0; 64]).unwrap().len, 4);
    }
}

/// Identification and flags of the IPv4 packets that arrive on a packet socket.
fn ids_and_flags(socket: &impl std::os::fd::AsFd, count: usize) -> Vec<(u16, u8)> {
    let mut packet = [0; 256];
    let header = |_| {
        let len = rustix::net::recv(socket, &mut packet, RecvFlags::empty()).unwrap().0;
        assert_eq!((len, packet[0], packet[9]), (128, 0x45, 17), "an IPv4 packet with UDP");
        (u16::from_be_bytes([packet[4], packet[5]]), packet[6])
    };
    (0..count).map(header).collect()
}

#[test]
fn identifications_count_from_zero_within_a_call() {
    const DONT_FRAGMENT: u8 = 0x40;
    const ETH_P_IP: u16 = 0x0800;
    in_namespace(|| {
        ip("link add v0 mtu 1500 type veth peer name v1");
        ip("addr add 10.9.0.1/24 dev v0");
        ip("link set v1 up");
        ip("link set v0 up");
        ip("neigh add 10.9.0.9 lladdr 02:00:00:00:00:09 dev v0");
        // The kernel, not the other end, is to cut batches.
        ip("link set v0 gso_max_segs 1");
        let ethertype =
            rustix::net::Protocol::from_raw(u32::from(ETH_P_IP.to_be()).try_into().unwrap());
        let socket =
            rustix::net::socket(AddressFamily::PACKET, SocketType::DGRAM, Some(ethertype)).unwrap();
        let sender = SendSocket::open(address("10.9.0.1"), 0).unwrap();
        let dst: SocketAddr = "10.9.0.9:4791".parse().unwrap();
        for _ in 0..2 {
            sender.send(dst, &[0; 100], None, 0, None).unwrap();
            assert_eq!(ids_and_flags(&socket, 1), [(0, DONT_FRAGMENT)]);
            sender.send(dst, &[0; 500], Some(100), 0, None).unwrap();
            let expected = [0, 1, 2, 3, 4].map(|id| (id, DONT_FRAGMENT));
            assert_eq!(ids_and_flags(&socket, 5), expected);
        }
    });
}

#[test]
fn an_unprivileged_user_can_send_receive_and_look_around() {
    as_nobody(|| {
        let (sender, receiver, dst) = pair("127.0.0.1");
        sender.send(dst, &[0; 500], Some(100), 0x20, Some(3)).unwrap();
        assert_eq!(recv(&receiver, &mut vec![0; BATCH_LEN]).unwrap().stride, 100);
        crate::mcast::Membership::join(address("239.77.9.9"), 1).unwrap();
        assert!(!crate::netdev::list().unwrap().is_empty());
        assert_eq!(crate::netdev::Watch::open().unwrap().next_change().unwrap(), None);
    });
}
