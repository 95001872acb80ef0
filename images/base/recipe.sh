# shellcheck shell=bash disable=SC2034
# base: the disk that sandboxes start from unless they ask for another. Its
# kernel and its first process come from the image guest.

title="Base (Debian 12: bash, python3, git, curl)"

packages=(
  bash coreutils findutils grep sed gawk tar gzip xz-utils bzip2 unzip zip
  python3 python3-pip python3-venv git curl wget ca-certificates openssh-client
  sudo procps psmisc iproute2 iputils-ping netbase less nano file jq locales
)

# What a recipe that adds to this one says otherwise: options of mmdebstrap, the size of its sandboxes, and more lines of
# its manifest.
options=()
vcpu=1
memory_mb=256
commands=

assemble() {
  add_disk "$1" "$2"
}

make_rootfs() {
  fill_rootfs "$1"
}

fill_rootfs() {
  local work=$1
  public_sources >"$work/sources.list"
  bootstrap minbase "$work/rootfs.tar" "$(IFS=,; echo "${packages[*]}")" \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --customize-hook="upload '$work/sources.list' /etc/apt/sources.list" \
    --customize-hook="'$here/base/customize' \"\$1\"" "${options[@]}"
}

write_manifest() {
  local name=$1 version=$2 image=$3
  cat >"$image/template.json" <<END
{
  "name": "$name",
  "title": "$title",
  "version": "$version",
  "disk": "disk.qcow2",
  "virtual_size_bytes": $disk_bytes,
  "user": "user",
  "vcpu": $vcpu,
  "memory_mb": $memory_mb,$commands
  "sha256": {
    "disk.qcow2": "$(sum_of "$image/disk.qcow2")"
  }
}
END
}
