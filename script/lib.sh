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

# Builds the agent of sandboxes: static, because it runs where there are no libraries.
build_agent() {
  local triple=x86_64-unknown-linux-gnu
  RUSTFLAGS="-C target-feature=+crt-static" cargo build -p berth-agent --profile agent --target "$triple" --locked --quiet
  export BERTH_AGENT=${CARGO_TARGET_DIR:-$root/target}/$triple/agent/berth-agent
}

# Builds what sandboxes boot and start from, where it is not there as their recipes say.
build_sandbox_images() {
  build_agent
  images/build guest "$BERTH_DATA_DIR/sandbox/guest"
  images/build base "$BERTH_DATA_DIR/sandbox/templates/base"
}

# Builds the images that are not there as their recipes say.
build_images() {
  local name
  for name in "$@"; do
    images/build "$name" "$BERTH_DATA_DIR/images/$name"
  done
}
