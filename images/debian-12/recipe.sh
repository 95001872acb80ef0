# shellcheck shell=bash disable=SC2034
# debian-12: Debian's packages with its own cloud-init, in an order that lets
# SSH answer before cloud-init has begun. See images/README.md.

title="Debian 12 (bookworm)"
os=linux
login_user=debian
min_memory_mb=256
# One that waits for its owner does so when all that every machine has is there.
cmdline="console=ttyS0 root=/dev/vda rw quiet panic=10 cryptomgr.notests berth.wait=late"

packages=(
  # The system.
  systemd systemd-sysv systemd-resolved systemd-timesyncd udev dbus libpam-systemd kmod
  # The way in.
  openssh-server sudo
  # Answers the platform: keys, the clock, file systems that stand still for a moment.
  qemu-guest-agent
  # What the seed asks for.
  cloud-init python3 e2fsprogs parted gdisk
  # What a person expects to find.
  iproute2 iputils-ping netbase ca-certificates curl less vim-tiny procps bash-completion locales
)

make_rootfs() {
  local work=$1 release=$2
  pack_extras "$work" "$release"
  bootstrap minbase "$work/rootfs.tar" "$(IFS=,; echo "${packages[*]}")" \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --customize-hook="tar-in '$work/extras.tar' /" \
    --customize-hook="'$here/debian-12/customize' \"\$1\" '$here/debian-12/rootfs'"
}

# An archive, because its owners are root's in a user namespace too.
pack_extras() {
  local work=$1 release=$2
  public_sources >"$work/sources.list"
  tar --owner=0 --group=0 --mode=u+rw,go-w,a+rX --transform='s,^sources.list,etc/apt/&,;s,^modules/,usr/lib/&,' \
    -cf "$work/extras.tar" -C "$work" sources.list -C "$work/parts/lib" "modules/$release"
}
