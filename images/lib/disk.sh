# shellcheck shell=bash
# The root disk: ext4 straight on the disk, 20 GiB, written only where there
# are files.

disk_bytes=$((20 << 30))

# From $work/rootfs or $work/rootfs.tar to $work/image/disk.qcow2.
make_disk() {
  local work=$1
  truncate -s "$disk_bytes" "$work/disk.raw"
  # As text: fakeroot's shell would lose an exported function.
  as_root bash -euo pipefail -c "$(declare -f fill_disk); fill_disk \"\$1\"" - "$work"
  qemu-img convert -c -f raw -O qcow2 -o compression_type=zstd,lazy_refcounts=off \
    "$work/disk.raw" "$work/image/disk.qcow2"
  rm "$work/disk.raw"
}

# The storage is known to be zero: no inode table and no journal is written,
# now or later. The feature set is that of Debian 12 wherever this runs.
fill_disk() {
  local work=$1
  if [[ -f $work/rootfs.tar ]]; then
    mkdir "$work/rootfs"
    tar -C "$work/rootfs" --numeric-owner -xpf "$work/rootfs.tar"
  fi
  mke2fs -q -t ext4 -F -L berth-root -m 1 -J size=64 -O ^orphan_file,^metadata_csum_seed \
    -E assume_storage_prezeroed=1,lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0,discard \
    -d "$work/rootfs" "$work/disk.raw"
}
