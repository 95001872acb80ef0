# shellcheck shell=bash
# Words for people, and the first look at the machine.

say() {
  printf '%(%H:%M:%S)T %s\n' -1 "$*" >&2
}

die() {
  printf '%s\n' "$*" >&2
  exit 1
}

require_tools() {
  [[ $(uname -m) == x86_64 ]] || die "The images are for x86_64; build them on such a machine."
  local tool missing=()
  for tool in mmdebstrap mke2fs qemu-img lz4 zstd xz depmod cpio sha256sum; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || missing+=("$tool")
  done
  ((EUID == 0)) || command -v fakeroot >/dev/null || missing+=(fakeroot)
  ((${#missing[@]} == 0)) || die "Missing: ${missing[*]}. Install the packages that images/packages lists."
  export PATH=$PATH:/usr/sbin:/sbin
}
