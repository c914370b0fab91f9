#!/bin/sh
# peer-idle.sh PEER-VM [now]: takes the peer down once nobody has used it for a
# minute, or at once when it is free. PEER_NS and PEER_CACHE say which one.
# Users hold a shared lock on users.lock, who boots or ends it one on boot.lock.
set -u
cd "$PEER_CACHE" || exit 1

down_if_free() { flock -n boot.lock flock -n users.lock "$1" down; }

if [ "${2:-}" = now ]; then
    down_if_free "$1"
    exit 0
fi
idle=0
while [ -f pid ]; do
    sleep 30
    if flock -n boot.lock flock -n users.lock true; then idle=$((idle + 1)); else idle=0; fi
    [ $idle -ge 2 ] && down_if_free "$1" && exit 0
done
