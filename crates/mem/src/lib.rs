//! Registered memory: regions, keys and the grants that let the protocol touch them.
