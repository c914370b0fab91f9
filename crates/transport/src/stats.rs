//! Counters, with the kernel driver's names and order (seed rows 66 and 67).

use std::net::IpAddr;

use crate::error::DropReason;

macro_rules! counters {
    ($($field:ident $name:literal,)*) => {
        /// Monotonic counters of one endpoint; fields that sockets cannot see stay 0.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            $(#[doc = concat!("`", $name, "`.")] pub $field: u64,)*
            /// Inline sends that took their queue pair's page.
            pub pushed: u64,
            /// Dropped packets by [`DropReason`].
            pub drops: [u64; DropReason::COUNT],
        }

        impl Stats {
            /// The driver's names, in the driver's order.
            pub const NAMES: &'static [&'static str] = &[$($name,)*];

            /// The values, in the order of [`Stats::NAMES`].
            pub fn values(&self) -> Vec<u64> {
                vec![$(self.$field,)*]
            }
        }
    };
}

counters! {
    ip4_in_discards "ip4InDiscards",
    ip4_in_truncated_pkts "ip4InTruncatedPkts",
    ip4_out_no_routes "ip4OutNoRoutes",
    ip6_in_discards "ip6InDiscards",
    ip6_in_truncated_pkts "ip6InTruncatedPkts",
    ip6_out_no_routes "ip6OutNoRoutes",
    retrans_segs "RetransSegs",
    in_opt_errors "InOptErrors",
    in_proto_errors "InProtoErrors",
    rx_vlan_errors "rxVlanErrors",
    ip4_in_octets "ip4InOctets",
    ip4_in_pkts "ip4InPkts",
    ip4_in_reasm_rqd "ip4InReasmRqd",
    ip4_in_mcast_pkts "ip4InMcastPkts",
    ip4_out_octets "ip4OutOctets",
    ip4_out_pkts "ip4OutPkts",
    ip4_out_seg_rqd "ip4OutSegRqd",
    ip4_out_mcast_pkts "ip4OutMcastPkts",
    ip6_in_octets "ip6InOctets",
    ip6_in_pkts "ip6InPkts",
    ip6_in_reasm_rqd "ip6InReasmRqd",
    ip6_in_mcast_pkts "ip6InMcastPkts",
    ip6_out_octets "ip6OutOctets",
    ip6_out_pkts "ip6OutPkts",
    ip6_out_seg_rqd "ip6OutSegRqd",
    ip6_out_mcast_pkts "ip6OutMcastPkts",
    in_segs "InSegs",
    out_segs "OutSegs",
    in_rdma_reads "InRdmaReads",
    in_rdma_sends "InRdmaSends",
    in_rdma_writes "InRdmaWrites",
    out_rdma_reads "OutRdmaReads",
    out_rdma_sends "OutRdmaSends",
    out_rdma_writes "OutRdmaWrites",
    rdma_bnd "RdmaBnd",
    rdma_inv "RdmaInv",
    ip4_in_mcast_octets "ip4InMcastOctets",
    ip4_out_mcast_octets "ip4OutMcastOctets",
    ip6_in_mcast_octets "ip6InMcastOctets",
    ip6_out_mcast_octets "ip6OutMcastOctets",
    rx_udp "RxUDP",
    tx_udp "TxUDP",
    rx_ecn_mrkd "RxECNMrkd",
    cnp_handled "cnpHandled",
    cnp_ignored "cnpIgnored",
    cnp_sent "cnpSent",
    rnr_sent "RNR sent",
    rnr_received "RNR received",
    ord_limit_count "ord limit count",
    ird_limit_count "ird limit count",
    rx_atomics "Rx atomics",
    tx_atomics "Tx atomics",
    nak_sequence_error "Nak Sequence Error",
    nak_sequence_error_implied "Nak Sequence Error Implied",
    rto "RTO",
    rcvd_out_of_order_packets "Rcvd Out of order packets",
    crc_errors "CRC errors",
}

impl Stats {
    /// Counts one dropped packet.
    pub(crate) fn drop_packet(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
        if reason == DropReason::Icrc {
            self.crc_errors += 1;
        }
        if reason == DropReason::Malformed {
            self.in_proto_errors += 1;
        }
    }

    /// A datagram to `dst` with `bytes` of UDP payload arrived.
    pub(crate) fn count_in(&mut self, dst: IpAddr, bytes: usize) {
        let bytes = bytes as u64;
        self.rx_udp += 1;
        let multicast = u64::from(dst.is_multicast());
        if dst.is_ipv4() {
            self.ip4_in_pkts += 1;
            self.ip4_in_octets += bytes + 28;
            self.ip4_in_mcast_pkts += multicast;
            self.ip4_in_mcast_octets += multicast * (bytes + 28);
        } else {
            self.ip6_in_pkts += 1;
            self.ip6_in_octets += bytes + 48;
            self.ip6_in_mcast_pkts += multicast;
            self.ip6_in_mcast_octets += multicast * (bytes + 48);
        }
    }

    /// `segments` datagrams to `dst` leave, with `bytes` of UDP payload together.
    pub(crate) fn count_out(&mut self, dst: IpAddr, bytes: usize, segments: usize) {
        let (segments, bytes) = (segments as u64, bytes as u64);
        self.tx_udp += segments;
        let multicast = u64::from(dst.is_multicast());
        if dst.is_ipv4() {
            self.ip4_out_pkts += segments;
            self.ip4_out_octets += bytes + 28 * segments;
            self.ip4_out_mcast_pkts += multicast * segments;
            self.ip4_out_mcast_octets += multicast * (bytes + 28 * segments);
        } else {
            self.ip6_out_pkts += segments;
            self.ip6_out_octets += bytes + 48 * segments;
            self.ip6_out_mcast_pkts += multicast * segments;
            self.ip6_out_mcast_octets += multicast * (bytes + 48 * segments);
        }
    }
}
