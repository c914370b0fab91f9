//! Linux behind safe calls: UDP batches, steering, slots, interfaces.
