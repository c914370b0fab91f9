#!/usr/bin/env bash
# Runs the tests: ./test.sh [quick|soak]
set -euo pipefail
cd "$(dirname "$0")"
cargo fmt --all --check
cargo clippy --workspace --all-targets -- -D warnings
cargo test --workspace
