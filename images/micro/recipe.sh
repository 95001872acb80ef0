# shellcheck shell=bash disable=SC2034
# micro: busybox, dropbear and dhcpcd on Debian's cloud kernel.

title="Micro (busybox)"
os=linux
login_user=root
min_memory_mb=96
cmdline="console=ttyS0 root=/dev/vda rw quiet panic=10 cryptomgr.notests"

programs=(
  usr/sbin/dropbear usr/bin/dropbearkey usr/bin/dbclient
  sbin/resize2fs sbin/mke2fs sbin/e2fsck
  usr/sbin/dhcpcd
)

# busybox knows DHCP of IPv4 alone.
parts_packages() {
  echo linux-image-cloud-amd64,busybox-static,e2fsprogs,dropbear-bin,dhcpcd-base
}

make_rootfs() {
  local work=$1 release=$2
  mkdir -m 0755 "$work/rootfs"
  fill_folders "$work/rootfs"
  fill_programs "$work/parts" "$work/rootfs"
  cp -r "$here/micro/rootfs/." "$work/rootfs/"
  find "$work/rootfs" -type d -exec chmod 0755 {} +
  chmod 0755 "$work"/rootfs/usr/lib/berth/{boot,console,halt,name-disks,new-instance,user-data} \
    "$work/rootfs/etc/udhcpc/default.script" "$work/rootfs/etc/acpi/PWRF/00000080"
  chmod 0600 "$work/rootfs/etc/shadow"
  chmod 0700 "$work/rootfs/root"
  chmod 1777 "$work/rootfs/tmp"
}

fill_folders() {
  local tree=$1
  mkdir -p "$tree"/{bin,sbin,dev,etc/dropbear,lib,lib64,mnt,proc,root,run,sys,tmp,usr/bin,usr/sbin,usr/lib,var/lib/dhcpcd,var/log}
  ln -s /run "$tree/var/run"
  ln -s /run/resolv.conf "$tree/etc/resolv.conf"
  ln -s /proc/mounts "$tree/etc/mtab"
}

fill_programs() {
  local parts=$1 tree=$2 program libraries library applet
  while read -r applet; do
    mkdir -p "$tree/$(dirname "$applet")"
    ln -sf /bin/busybox "$tree/$applet"
  done < <("$parts/bin/busybox" --list-full)
  cp --remove-destination "$parts/bin/busybox" "$tree/bin/busybox"
  mkdir -p "$tree/lib/x86_64-linux-gnu"
  cp "$(loader_of "$parts")" "$tree/lib64/"
  for program in "${programs[@]}"; do
    install -m 0755 -D "$parts/$program" "$tree/$program"
    libraries=$(libraries_of "$parts" "$parts/$program")
    while read -r library; do
      cp -Lu "$library" "$tree/lib/x86_64-linux-gnu/"
    done <<<"$libraries"
  done
  ln -s mke2fs "$tree/sbin/mkfs.ext4"
  ln -s e2fsck "$tree/sbin/fsck.ext4"
  ln -s dbclient "$tree/usr/bin/ssh"
}
