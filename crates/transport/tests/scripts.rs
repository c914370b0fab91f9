//! Packet scripts: this arrives, exactly that is sent and completed. One rule a test.

mod cm_connect;
mod cm_disconnect;
mod cm_hostile;
mod cm_reject;
mod cm_repeat;
mod cm_sidr;
mod cm_steer;
mod hostile;
mod mcast_group;
mod rate;
mod rc_duplicate;
mod rc_enhanced;
mod rc_memory;
mod rc_nak;
mod rc_request;
mod rc_respond;
mod rc_retry;
mod rc_state;
mod uc_message;
mod ud_datagram;
mod xrc;
