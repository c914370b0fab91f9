#!/usr/bin/env bash
# Measures bandwidth and latency as docs/performance.md reports them: everything in one run,
# the candidates in turn, the median of ROUNDS, five by default. Root; needs iperf3 and perftest.
#
#   tests/measure.sh            two namespaces joined by a veth pair: irdma against TCP
#   tests/measure.sh peer       in the peer's guest: irdma over veth against its own rdma_rxe
set -euo pipefail
cd "$(dirname "$0")/.."
irdma=${IRDMA_BIN:-$PWD/target/release/irdma}
rounds=${ROUNDS:-5}
a=irdma-m-$$-a b=irdma-m-$$-b
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

hosts() {
    ip netns add "$a"; ip netns add "$b"
    trap 'ip netns del "$a"; ip netns del "$b"' EXIT
    ip link add v0 netns "$a" type veth peer name v1 netns "$b"
    ip -n "$a" addr add 10.98.0.1/24 dev v0; ip -n "$b" addr add 10.98.0.2/24 dev v1
    for end in "$a v0" "$b v1"; do
        set -- $end
        ip -n "$1" link set lo up; ip -n "$1" link set "$2" up
    done
}

# The column of a perftest result line: bandwidth in MiB/s (average) or latency in us (typical).
result() { awk -v c="$1" '/^ *[0-9]+ +[0-9]+ / { v = $c } END { print v }'; }

# pair COLUMN PROGRAM ARGS...
pair() {
    local column=$1; shift
    ip netns exec "$a" timeout 60 "$irdma" run -- "$@" >/dev/null 2>&1 &
    sleep "${start:-0.7}"
    ip netns exec "$b" timeout 60 "$irdma" run -- "$@" 10.98.0.1 2>/dev/null | result "$column"
    wait
}

tcp() {
    ip netns exec "$a" iperf3 -s -1 >/dev/null &
    sleep 0.5
    ip netns exec "$b" iperf3 -c 10.98.0.1 -t 2 -f M | awk '/receiver/ { print $7 }'
    wait
}

veth() {
    hosts
    local sizes="65536 1048576" round size op
    declare -A got
    for ((round = 1; round <= rounds; round++)); do
        got[tcp]+="$(tcp) "
        for size in $sizes; do
            for op in write read send; do
                got[$op-$size]+="$(pair 4 "ib_${op}_bw" -x 0 -F -n $((size > 100000 ? 1000 : 8000)) -s "$size") "
            done
        done
        for op in write_lat send_lat "send_lat -e" read_lat; do
            got[$op]+="$(pair 5 ib_$op -x 0 -F -n 20000) "
        done
    done
    local base
    base=$(tr ' ' '\n' <<<"${got[tcp]% }" | median)
    echo "iperf3 TCP: $base MiB/s"
    for size in $sizes; do
        for op in write read send; do
            tr ' ' '\n' <<<"${got[$op-$size]% }" | median |
                awk -v t="$base" -v n="$op $size" '{ printf "%s: %s MiB/s, %.2f of TCP\n", n, $1, $1 / t }'
        done
    done
    for op in write_lat send_lat "send_lat -e" read_lat; do
        echo "$op: $(tr ' ' '\n' <<<"${got[$op]% }" | median) us"
    done
}

# In the guest: rdma_rxe to itself, which needs no network at all, against irdma over veth.
rxe() {
    local op=$1 size=$2 n=$3
    timeout 100 "ib_${op}_bw" -d rxe0 -x 1 -F -n "$n" -s "$size" >/dev/null 2>&1 &
    sleep "$start"
    timeout 100 "ib_${op}_bw" -d rxe0 -x 1 -F -n "$n" -s "$size" 10.77.0.2 2>/dev/null | result 4
    wait
}

active_mtu() { awk '$1 == "active_mtu:" { print $2; exit }'; }

# Both devices get interfaces of one MTU, so that they use one path MTU.
set_mtu() {
    ip link set eth0 mtu "$1"
    ip -n "$a" link set v0 mtu "$1"; ip -n "$b" link set v1 mtu "$1"
    local ours theirs
    ours=$(ip netns exec "$a" "$irdma" run -- ibv_devinfo -d roce_v0 2>/dev/null | active_mtu)
    theirs=$(ibv_devinfo -d rxe0 | active_mtu)
    [ "$ours" = "$theirs" ] || { echo "path MTU $ours against $theirs: no comparison"; exit 1; }
    echo "path MTU $ours (interfaces: $1)"
}

guest() {
    local start=3 mtu size op n round ours theirs
    hosts
    trap 'ip link set eth0 mtu 1500; ip netns del "$a"; ip netns del "$b"' EXIT
    for mtu in 1500 4500; do
        set_mtu "$mtu"
        for size in 4096 65536; do
            n=$((size > 10000 ? 1000 : 8000))
            for op in write read send; do
                ours="" theirs=""
                for ((round = 1; round <= rounds; round++)); do
                    theirs+="$(rxe "$op" "$size" "$n") "
                    ours+="$(pair 4 "ib_${op}_bw" -x 0 -F -n "$n" -s "$size") "
                done
                compare "$op $size" "$ours" "$theirs"
            done
        done
    done
}

# compare NAME OURS THEIRS: a run that failed has left its place empty.
compare() {
    local ours theirs
    ours=$(tr -s ' ' '\n' <<<"$2" | grep . | median) theirs=$(tr -s ' ' '\n' <<<"$3" | grep . | median)
    echo "$1: irdma ${ours:-?} MiB/s ($(wc -w <<<"$2") runs), rdma_rxe ${theirs:-?} MiB/s ($(wc -w <<<"$3") runs)," \
        "ratio $(awk -v o="$ours" -v t="$theirs" 'BEGIN { printf "%.2f", (t > 0 ? o / t : 0) }')"
}

case ${1:-veth} in
veth) veth ;;
peer) exec env PEER_NS="${PEER_NS:-irdma-peer}" \
    PEER_CACHE="${PEER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/irdma-tests}" \
    "${IRDMA_SHARED:-../shared}/peer-vm/peer-vm" sh "cd $PWD && IRDMA_BIN=$irdma ROUNDS=$rounds $0 guest" ;;
guest) guest ;;
*) sed -n '2,7p' "$0"; exit 2 ;;
esac
