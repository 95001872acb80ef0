# shellcheck shell=bash
# Shared by the scripts of this folder: where things lie, and words for people.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

export BERTH_DATA_DIR=${BERTH_DATA_DIR:-$root/.berth}
export BERTH_LISTEN=${BERTH_LISTEN:-127.0.0.1:8080}
# rustup puts cargo here before a shell knows of it.
PATH=$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin

say() {
  printf '%(%H:%M:%S)T %s\n' -1 "$*"
}

die() {
  printf '%s\n' "$*" >&2
  exit 1
}

# The service that script/quickstart started, if it runs: its process id.
service_pid() {
  local pid file=$BERTH_DATA_DIR/service.pid
  [[ -f $file ]] || return 1
  pid=$(<"$file")
  [[ $pid =~ ^[0-9]+$ && $(readlink "/proc/$pid/exe" 2>/dev/null) == */berth* ]] || return 1
  echo "$pid"
}

# How programs are optimised: quick, or release, which takes longer and is optimised across crates.
profile=${BERTH_PROFILE:-quick}
# What cargo builds into, and the program that a script built last.
target=${CARGO_TARGET_DIR:-$root/target}
berth=$target/berth

# Debian and Ubuntu have the allocator, SQLite and zstd compiled. What is packaged brings its own, because it runs where
# these are not.
use_compiled_libraries() {
  local allocator=/usr/lib/x86_64-linux-gnu/libjemalloc_pic.a
  [[ ! -f $allocator ]] || export JEMALLOC_OVERRIDE=$allocator
  ! pkg-config --atleast-version 3.40 sqlite3 2>/dev/null || export LIBSQLITE3_SYS_USE_PKG_CONFIG=1
  ! pkg-config --atleast-version 1.5 libzstd 2>/dev/null || export ZSTD_SYS_USE_PKG_CONFIG=1
}

# Builds the program, what lies beside it, and the agent of sandboxes: static, because it runs where there are no libraries.
build_programs() {
  RUSTC_WORKSPACE_WRAPPER=$root/script/rustc cargo build -p berth -p berth-agent --profile "$profile" --locked "$@"
  ln -sfn "$profile/berth" "$berth"
}

# build_guest AGENT FOLDER: builds what sandboxes boot, with an agent, where it is not there as its recipe says. What a
# service boots is not to change below it, so that tests and benchmarks have folders of their own.
build_guest() {
  BERTH_AGENT=$1 images/build guest "$2"
}

# build_template NAME: builds a template of the platform, where it is not there as its recipe says.
build_template() {
  images/build "$1" "$BERTH_DATA_DIR/sandbox/templates/$1"
}

# Builds what sandboxes start from.
build_base() {
  build_template base
}

# Builds the images that are not there as their recipes say.
build_images() {
  local name
  for name in "$@"; do
    images/build "$name" "$BERTH_DATA_DIR/images/$name"
  done
}

# The lints are clippy's, asked for as cargo-clippy asks for them, but while the tests are compiled: a pass of their own
# would have every dependency checked before it is compiled.
linted() {
  RUSTC_WORKSPACE_WRAPPER=$root/script/rustc-linted CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__ \
    CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER=$root/script/test-runner \
    cargo "$1" --workspace --features berth/faults,berth/traces --locked --quiet "${@:2}"
}
