//! Address handles, and the address vectors that they and queue pairs are made from.

use std::mem::ManuallyDrop;
use std::net::IpAddr;

use irdma::{AddressVector, AhAttr, Device, Gid, PORT};

use crate::boundary::{End, Ends, Errno, In, Object, Out, Shape, refuse};
use crate::context::Context;
use crate::handle;
use crate::pd::Pd;
use crate::types::{IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_gid, ibv_global_route, ibv_wc};

/// An address handle.
pub struct Ah {
    pub handle: ManuallyDrop<irdma::Ah>,
}

// SAFETY: the program's pointers point to all of it.
unsafe impl Shape for Ah {
    type C = ibv_ah;
    type Seen = ibv_ah;
}

impl Ends for Ah {
    type Handle = irdma::Ah;
    const END: End<irdma::Ah> = |ah| {
        ah.destroy_ah();
        Ok(())
    };

    fn handle(&self) -> &ManuallyDrop<irdma::Ah> {
        &self.handle
    }
}

/// `ibv_create_ah(3)`.
pub fn create(pd: &Object<Pd>, In(attr): In<ibv_ah_attr>) -> Result<Box<Object<Ah>>, Errno> {
    let handle = pd.handle.create_user_ah(&vector(&pd.device, &attr)?)?;
    let c = ibv_ah { context: pd.seen().context, pd: pd.as_seen(), handle: handle::next() };
    Ok(Object::new(c, Ah { handle: ManuallyDrop::new(handle) }))
}

/// The address vector of `attr`, on port 1 where the caller does not name one itself.
pub fn vector(device: &Device, attr: &ibv_ah_attr) -> Result<AhAttr, Errno> {
    if attr.is_global == 0 {
        let dgid = device.gid_of_lid(attr.dlid)?;
        return Ok(AhAttr { dgid, sl: attr.sl, port: attr.port_num, ..AhAttr::default() });
    }
    Ok(AhAttr {
        dgid: Gid(gid_bytes(attr.grh.dgid)),
        sgid_index: attr.grh.sgid_index,
        flow_label: attr.grh.flow_label,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        sl: attr.sl,
        port: attr.port_num,
    })
}

/// `attr` of an address vector that is in use.
pub fn attr_of(av: &AddressVector) -> ibv_ah_attr {
    attr_of_handle(&AhAttr {
        dgid: av.dgid,
        sgid_index: av.sgid_index,
        flow_label: av.flow_label,
        hop_limit: av.hop_limit,
        traffic_class: av.traffic_class,
        sl: av.sl,
        port: PORT,
    })
}

/// `attr` of what an address handle can be made from.
pub fn attr_of_handle(attr: &AhAttr) -> ibv_ah_attr {
    let mut c = ibv_ah_attr::zeroed();
    c.grh.dgid = ibv_gid { raw: attr.dgid.0 };
    c.grh.flow_label = attr.flow_label;
    c.grh.sgid_index = attr.sgid_index;
    c.grh.hop_limit = attr.hop_limit;
    c.grh.traffic_class = attr.traffic_class;
    c.sl = attr.sl;
    c.is_global = u8::from(attr.dgid != Gid::default());
    c.port_num = attr.port;
    c
}

/// The bytes of a GID, in network order.
pub fn gid_bytes(gid: ibv_gid) -> [u8; 16] {
    // SAFETY: every member of the union is 16 bytes without padding.
    unsafe { gid.raw }
}

/// The 40 bytes in front of a received datagram.
pub type Grh = [u8; 40];

/// `ibv_init_ah_from_wc(3)`: the way back to the sender of a datagram.
pub fn init_from_wc(
    context: &Object<Context>,
    port: u8,
    In(wc): In<ibv_wc>,
    grh: Option<In<Grh>>,
    attr: Out<'_, ibv_ah_attr>,
) -> Result<(), Errno> {
    attr.write(way_back(context.handle.device(), port, &wc, grh)?);
    Ok(())
}

/// `ibv_create_ah_from_wc(3)`.
pub fn create_from_wc(
    pd: &Object<Pd>,
    In(wc): In<ibv_wc>,
    grh: Option<In<Grh>>,
    port: u8,
) -> Result<Box<Object<Ah>>, Errno> {
    create(pd, In(way_back(&pd.device, port, &wc, grh)?))
}

fn way_back(
    device: &Device,
    port: u8,
    wc: &ibv_wc,
    grh: Option<In<Grh>>,
) -> Result<ibv_ah_attr, Errno> {
    let mut attr = ibv_ah_attr::zeroed();
    attr.dlid = wc.slid;
    attr.sl = wc.sl;
    attr.src_path_bits = wc.dlid_path_bits;
    attr.port_num = port;
    if wc.wc_flags & IBV_WC_GRH != 0 {
        let In(grh) = grh.ok_or_else(|| refuse(FROM_WC, libc::EINVAL, "grh is NULL"))?;
        attr.grh = route_back(device, port, &Heard::parse(&grh))?;
        attr.is_global = 1;
    }
    Ok(attr)
}

const FROM_WC: &str = "ibv_init_ah_from_wc";

fn route_back(device: &Device, port: u8, heard: &Heard) -> Result<ibv_global_route, Errno> {
    let len = device.query_port(port)?.gid_tbl_len;
    let found = (0..len).find(|i| device.query_gid(port, *i) == Ok(heard.dgid));
    let index = found.and_then(|index| u8::try_from(index).ok()).ok_or_else(|| {
        let cause = format!("the datagram went to {}, which is no GID of the port", heard.dgid);
        refuse(FROM_WC, libc::EINVAL, &cause)
    })?;
    Ok(ibv_global_route {
        dgid: ibv_gid { raw: heard.sgid.0 },
        flow_label: heard.flow_label,
        sgid_index: index,
        hop_limit: heard.hop_limit,
        traffic_class: heard.traffic_class,
    })
}

/// `ibv_resolve_eth_l2_from_gid`: the Ethernet address towards `attr`, and no VLAN, since the
/// kernel's IP stack adds both.
pub fn resolve_eth_l2(
    context: &Object<Context>,
    In(attr): In<ibv_ah_attr>,
    mac: Out<'_, [u8; 6]>,
    vid: Out<'_, u16>,
) -> Result<(), Errno> {
    const NO_VLAN: u16 = 0xffff;
    let dgid = Gid(gid_bytes(attr.grh.dgid));
    let Some(found) = context.handle.device().link_address(dgid)? else {
        let cause = format!("{dgid} is no known neighbour; send it an IP packet first");
        return Err(refuse("ibv_resolve_eth_l2_from_gid", libc::EHOSTUNREACH, &cause));
    };
    mac.write(found);
    vid.write(NO_VLAN);
    Ok(())
}

/// What the header in front of a datagram says.
#[derive(Debug, PartialEq, Eq)]
struct Heard {
    sgid: Gid,
    dgid: Gid,
    flow_label: u32,
    traffic_class: u8,
    hop_limit: u8,
}

impl Heard {
    /// An IPv6 header, or 20 bytes and an IPv4 header (IBTA annex A17).
    fn parse(grh: &Grh) -> Heard {
        match grh[0] >> 4 {
            6 => Heard {
                sgid: Gid(bytes(grh, 8)),
                dgid: Gid(bytes(grh, 24)),
                flow_label: u32::from_be_bytes(bytes(grh, 0)) & 0xf_ffff,
                traffic_class: grh[0] << 4 | grh[1] >> 4,
                hop_limit: grh[7],
            },
            _ => Heard {
                sgid: IpAddr::from(bytes::<4>(grh, 32)).into(),
                dgid: IpAddr::from(bytes::<4>(grh, 36)).into(),
                flow_label: 0,
                traffic_class: grh[21],
                hop_limit: grh[28],
            },
        }
    }
}

fn bytes<const N: usize>(grh: &Grh, at: usize) -> [u8; N] {
    std::array::from_fn(|i| grh[at + i])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        text.parse::<IpAddr>().expect("an address").into()
    }

    #[test]
    fn a_header_of_ipv4_stands_in_the_last_twenty_bytes() {
        let mut grh = [0; 40];
        grh[20..22].copy_from_slice(&[0x45, 0x1a]);
        grh[28] = 63;
        grh[32..].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        let heard = Heard::parse(&grh);
        assert_eq!((heard.sgid, heard.dgid), (gid("10.0.0.1"), gid("10.0.0.2")));
        assert_eq!((heard.flow_label, heard.traffic_class, heard.hop_limit), (0, 0x1a, 63));
    }

    #[test]
    fn a_header_of_ipv6_fills_them() {
        let mut grh = [0; 40];
        grh[..8].copy_from_slice(&[0x61, 0xa1, 0x23, 0x45, 0, 8, 17, 64]);
        grh[8..24].copy_from_slice(&gid("fd77::1").0);
        grh[24..].copy_from_slice(&gid("fd77::2").0);
        let heard = Heard::parse(&grh);
        assert_eq!((heard.sgid, heard.dgid), (gid("fd77::1"), gid("fd77::2")));
        assert_eq!((heard.flow_label, heard.traffic_class, heard.hop_limit), (0x1_2345, 0x1a, 64));
    }
}
