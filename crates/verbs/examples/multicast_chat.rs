//! Datagrams to a group: everyone attached hears every line.
//!
//!     cargo run --example multicast_chat                          three members in this process
//!     cargo run --example multicast_chat 10.0.0.5 239.1.1.1 ann   own address, group, name

mod common;

use std::io::BufRead;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;

use common::Outcome;
use irdma::{
    Ah, AhAttr, AttrMask, Buffer, Context, Cq, Gid, Mr, PORT, Psn, Qp, QpAttr, QpState, QpType,
    Qpn, RecvWr, SendData, SendFlags, SendOp, SendWr, Sge, UdDest, Wc, WcOpcode,
};

const QKEY: u32 = 0x1234;
/// Every datagram comes with a GRH in front (IBTA 11.4.1.2).
const GRH: usize = 40;
const LINE: usize = 512;
const PLACES: usize = 16;

fn main() -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match &args[..] {
        [] => three_members(),
        [own, group, name] => chat(own.parse()?, group.parse()?, name),
        _ => Err("arguments: OWN-ADDRESS GROUP NAME, or none".into()),
    }
}

struct Member {
    qp: Qp,
    cq: Cq,
    group: Ah,
    mr: Mr,
    buffer: Arc<Buffer>,
    gid: Gid,
    _context: Context,
}

impl Member {
    fn join(own: IpAddr, group: IpAddr) -> Outcome<Member> {
        let (device, gid_index) = common::device_of(own)?;
        let context = device.open()?;
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(64, None, 0)?;
        let len = (PLACES + 1) * LINE;
        let buffer = Arc::new(Buffer::zeroed(len));
        let mr = pd.reg_buffer(&buffer, 0..len, common::ALL)?;
        let qp = common::create_qp(&pd, &cq, None, QpType::Ud)?;
        ready(&qp)?;
        let attr = AhAttr {
            dgid: group.into(),
            sgid_index: gid_index,
            flow_label: 0,
            hop_limit: 1,
            traffic_class: 0,
            sl: 0,
            port: PORT,
        };
        let group_ah = pd.create_ah(&attr)?;
        let gid = Gid::from(group);
        let member = Member { qp, cq, group: group_ah, mr, buffer, gid, _context: context };
        (0..PLACES).try_for_each(|place| member.offer(place))?;
        member.qp.attach_mcast(&gid, 0)?;
        Ok(member)
    }

    fn part(&self, place: usize, len: usize) -> Sge {
        let addr = self.buffer.addr() + (place * LINE) as u64;
        Sge { addr, length: len as u32, lkey: self.mr.lkey() }
    }

    fn offer(&self, place: usize) -> Outcome {
        let sges = [self.part(place, LINE)];
        Ok(self.qp.post_recv(&RecvWr { wr_id: place as u64, sges: &sges })?)
    }

    fn say(&self, line: &str) -> Outcome {
        let text = &line.as_bytes()[..line.len().min(LINE - GRH)];
        self.buffer.write(PLACES * LINE, text);
        let sges = [self.part(PLACES, text.len())];
        let ah = Arc::clone(self.group.transport());
        Ok(self.qp.post_send(&SendWr {
            wr_id: PLACES as u64,
            op: SendOp::Send { imm: None },
            flags: SendFlags::SIGNALED,
            data: SendData::Sges(&sges),
            ud: Some(UdDest { ah, qpn: Qpn::MULTICAST, qkey: QKEY }),
        })?)
    }

    /// A line that arrived, if one has.
    fn hear(&self) -> Outcome<Option<String>> {
        let mut wc = [Wc::default()];
        if self.cq.poll_cq(&mut wc)? == 0 || wc[0].opcode != WcOpcode::Recv {
            return Ok(None);
        }
        let place = wc[0].wr_id as usize;
        let mut text = vec![0; wc[0].byte_len as usize - GRH];
        self.buffer.read(place * LINE + GRH, &mut text);
        self.offer(place)?;
        Ok(Some(String::from_utf8_lossy(&text).into_owned()))
    }

    fn leave(self) -> Outcome {
        Ok(self.qp.detach_mcast(&self.gid, 0)?)
    }
}

fn ready(qp: &Qp) -> Outcome {
    use AttrMask as M;
    let attr =
        |state| QpAttr { state, port: PORT, qkey: QKEY, sq_psn: Psn::new(0), ..QpAttr::default() };
    qp.modify_qp(&attr(QpState::Init), M::STATE | M::PKEY_INDEX | M::PORT | M::QKEY)?;
    qp.modify_qp(&attr(QpState::Rtr), M::STATE)?;
    Ok(qp.modify_qp(&attr(QpState::Rts), M::STATE | M::SQ_PSN)?)
}

fn three_members() -> Outcome {
    let (own, group) = ([127, 0, 0, 1].into(), [239, 7, 7, 7].into());
    let members = [
        ("ann", Member::join(own, group)?),
        ("ben", Member::join(own, group)?),
        ("cat", Member::join(own, group)?),
    ];
    for (name, speaker) in &members {
        let line = format!("{name}: hello");
        speaker.say(&line)?;
        // The speaker hears itself, too.
        for (listener, member) in &members {
            let heard = loop {
                if let Some(heard) = member.hear()? {
                    break heard;
                }
            };
            if heard != line {
                return Err(format!("{listener} heard {heard:?}, not {line:?}").into());
            }
            println!("{listener} hears {heard:?}");
        }
    }
    members.into_iter().try_for_each(|(_, member)| member.leave())
}

fn chat(own: IpAddr, group: IpAddr, name: &str) -> Outcome {
    let member = Arc::new(Member::join(own, group)?);
    let ear = Arc::clone(&member);
    thread::spawn(move || -> Outcome {
        loop {
            match ear.hear()? {
                Some(line) => println!("{line}"),
                None => thread::sleep(std::time::Duration::from_millis(1)),
            }
        }
    });
    for line in std::io::stdin().lock().lines() {
        member.say(&format!("{name}: {}", line?))?;
    }
    Ok(())
}
