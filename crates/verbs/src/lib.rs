//! RDMA verbs in user space: devices, queue pairs, completion queues, memory regions.
