#!/usr/bin/env bash
# ./test.sh         everything, interoperability included: about 25 minutes on two cores
# ./test.sh quick   what needs nothing but Rust
# ./test.sh soak    interoperability again and again, at first with more sizes and seeds; goes on
#                   where its time was over in the same commit, and begins anew after a failure
#
# Environment:
#   IRDMA_SHARED         golden packets and the peer (../shared)
#   IRDMA_SOAK_ROUNDS    rounds of ./test.sh soak (20)
#   IRDMA_SOAK_MINUTES   no further round is begun after this long (240)
#   SIM_SEEDS            seeds of the simulated links
#   CI=true              a test that cannot run for want of set-up fails
# Logs are in target/test-logs. The last line is "N passed, N failed, N skipped".
set -uo pipefail
cd "$(dirname "$0")"
mode=${1:-full}
case $mode in full | quick | soak) ;; *) sed -n '2,14p' "$0"; exit 2 ;; esac

export IRDMA_SHARED=${IRDMA_SHARED:-$(cd .. && pwd)/shared}
# What a failed test says is worth more lines than where in the runner it says so.
export CARGO_TERM_COLOR=never RUST_BACKTRACE=0
logs=target/test-logs
skips=$PWD/$logs/skips
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
peer_cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/irdma-tests
rm -rf "$logs"
mkdir -p "$logs" "$peer_cache"
: >"$skips"
export IRDMA_SKIPS=$skips
passed=0 failed=0 ignored=0 steps=0

say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }

# Debian packages by a program or file that shows each is there.
packages() {
    cat <<'LIST'
/usr/bin/gcc gcc
/usr/bin/python3 python3
/usr/bin/ibv_devinfo ibverbs-utils
/usr/lib/x86_64-linux-gnu/libibverbs libibverbs1 ibverbs-providers
/usr/include/infiniband/verbs.h libibverbs-dev
/usr/include/rdma/rdma_cma.h librdmacm-dev
/usr/bin/rping rdmacm-utils
/usr/share/doc/rdma-core rdma-core
/usr/lib/python3/dist-packages/pyverbs python3-pyverbs
/usr/bin/ib_write_bw perftest
/usr/bin/qperf qperf
/usr/bin/tshark tshark
/usr/bin/tcpdump tcpdump
/usr/bin/iperf3 iperf3
/usr/sbin/ethtool ethtool
/usr/sbin/nft nftables
/usr/sbin/ip iproute2
/usr/bin/setpriv util-linux
/usr/bin/qemu-system-x86_64 qemu-system-x86
/usr/bin/cpio cpio
/usr/bin/busybox busybox-static
/usr/bin/socat socat
/usr/sbin/modprobe kmod
/usr/bin/xz xz-utils
/usr/lib/python3/dist-packages/scapy python3-scapy
LIST
}

missing_packages() {
    packages | while read -r file names; do
        [ -e "$file" ] || [ -e "/${file#/usr/}" ] || echo "$names"
    done | tr '\n' ' '
}

install_packages() {
    local missing log=$logs/install.log
    missing=$(missing_packages)
    [ -z "$missing" ] && return
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        say "not installed: $missing(root and apt-get could; tests that need them are skipped)"
        return
    fi
    say "installing $missing"
    # The words of $missing are package names.
    # shellcheck disable=SC2086
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $missing; } </dev/null >"$log" 2>&1 ||
        say "apt-get failed: see $log"
}

# Adds what the "test result:" lines of a log say to the sums.
count_tests() {
    local p f i
    read -r p f i < <(awk '/^test result:/ { p += $4; f += $6; i += $8 } END { print p, f, i }' "$1")
    passed=$((passed + p)) failed=$((failed + f)) ignored=$((ignored + i))
}

# step NAME LIMIT-SECONDS COMMAND...: one result, or those of its tests.
step() {
    local name=$1 limit=$2 log status failures
    shift 2
    steps=$((steps + 1))
    log=$logs/$(printf '%03d-%s' "$steps" "${name//[^a-zA-Z0-9]/-}").log
    say "$name"
    # Whoever starts the peer from here must not inherit the lock on it.
    timeout -k 5 "$limit" "$@" </dev/null >"$log" 2>&1 9>&-
    status=$?
    failures=$failed
    if grep -q '^test result:' "$log"; then
        count_tests "$log"
        # Failures that no test owns up to: a build that broke, a limit that passed.
        [ $status -ne 0 ] && [ "$failed" -eq "$failures" ] && failed=$((failed + 1))
    elif [ $status -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
    fi
    [ $status -eq 0 ] && return
    [ $status -eq 124 ] && echo "        the limit of $limit s passed"
    echo "        FAILED: see $log"
    { grep -E '^test .* FAILED$|^error' "$log" | sort -u | head -20
      grep -A 15 "^thread '.* panicked at" "$log" | head -80
      tail -10 "$log"; } | sed 's/^/        | /'
}

checks() {
    step "formatting" 60 cargo fmt --all --check
    step "clippy" 900 cargo clippy --workspace --all-targets -- -D warnings
    step "documentation" 900 env RUSTDOCFLAGS="-D warnings" \
        cargo doc --workspace --no-deps --document-private-items
    step "tests of the crates" 1500 cargo test --workspace --exclude irdma-tests --no-fail-fast
    step "the bench's own tests" 300 cargo test -p irdma-tests --lib --test floors --test tidy \
        --test verbs_table
}

demo() {
    step "build" 900 cargo build --release
    step "demo" 300 cargo run --release -- demo
    export IRDMA_BIN=$target/release/irdma
}

# Every file of tests/tests but those that checks() ran, and those named behind the limit. One test
# at a time: perftest writes to its standard error when it cannot measure the processor undisturbed.
interoperability() {
    local file name threads
    for file in tests/tests/*.rs; do
        name=$(basename "$file" .rs)
        case " floors tidy verbs_table ${*:2} " in *" $name "*) continue ;; esac
        threads=1
        # Its programs talk for some seconds, and wait most of that.
        [ "$name" = processes ] && threads=3
        step "interoperability: $name" "$1" \
            cargo test -p irdma-tests --test "$name" --no-fail-fast -- --test-threads=$threads
    done
}

soak() {
    local round rounds=${IRDMA_SOAK_ROUNDS:-20} minutes=${IRDMA_SOAK_MINUTES:-240}
    local commit record seen
    commit=$(soaked_commit)
    record=$target/soak-${commit:-none}
    seen=$(cat "$record" 2>/dev/null || echo 0)
    [ "$seen" -gt 0 ] && say "$seen rounds of this commit were green"
    export SIM_SEEDS=${SIM_SEEDS:-$((minutes * 100))}
    demo
    if [ "$seen" -eq 0 ]; then
        step "simulated links, $SIM_SEEDS seeds" $((600 + minutes * 30)) \
            cargo test --release -p irdma-sim --no-fail-fast
    fi
    for ((round = seen + 1; round <= rounds && failed == 0; round++)); do
        if [ "$SECONDS" -gt $((minutes * 60)) ]; then
            say "$minutes minutes are over after $((round - 1)) rounds"
            return
        fi
        say "round $round of $rounds"
        if [ "$round" -eq 1 ]; then
            IRDMA_SOAK=1 interoperability 3600
        else
            # The bench tries itself on the kernel's devices; once is enough of that.
            interoperability 1200 bench
        fi
        if [ -n "$commit" ] && [ "$failed" -eq 0 ] && [ "$commit" = "$(soaked_commit)" ]; then
            echo "$round" >"$record"
        fi
    done
    # It is over, well or not: the next one begins anew.
    rm -f "$record"
}

# Rounds of other sources do not count: nothing where the sources are no commit's.
soaked_commit() {
    if [ -z "$(git status --porcelain 2>&1)" ]; then
        git rev-parse --short HEAD
    fi
}

# While this holds the lock, the peer stays up from one test program to the next.
hold_peer() {
    exec 9>>"$peer_cache/users.lock"
    flock -s 9
}

release_peer() {
    exec 9>&-
    PEER_NS=irdma-peer PEER_CACHE=$peer_cache \
        tests/peer-idle.sh "$IRDMA_SHARED/peer-vm/peer-vm" now >/dev/null 2>&1
}

finish() {
    local skipped
    skipped=$(sort -u "$skips" | grep -c .)
    if [ "$skipped" -gt 0 ]; then
        echo "Skipped:"
        sort -u "$skips" | sed 's/^/  /'
    fi
    [ "$ignored" -gt 0 ] && echo "Ignored by their own mark: $ignored"
    # A test that skips itself counts as passed for cargo, once a round.
    echo "$((passed - $(grep -c . "$skips"))) passed, $failed failed, $((skipped + ignored)) skipped"
    [ "$failed" -eq 0 ]
}

case $mode in
quick) checks ;;
full)
    install_packages
    hold_peer
    trap release_peer EXIT
    checks
    demo
    interoperability 1200
    ;;
soak)
    install_packages
    hold_peer
    trap release_peer EXIT
    soak
    ;;
esac
finish
