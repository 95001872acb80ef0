# shellcheck shell=bash
# The initrd: busybox, the boot modules and two scripts. It is not compressed:
# unpacking would cost an emulated processor more than reading.

make_initrd() {
  local parts=$1 release=$2 tree=$3 out=$4 files file index=10
  mkdir -p "$tree"/{bin,dev,proc,sys,run,root,seed,lib/modules}
  cp "$parts/bin/busybox" "$tree/bin/busybox"
  install -m 0755 "$here/lib/initrd/init" "$tree/init"
  install -m 0755 "$here/lib/initrd/seed" "$tree/seed.sh"
  files=$(module_files "$parts" "$release")
  # Numbered, so that their order is that of the names.
  while read -r file; do
    cp "$file" "$tree/lib/modules/$index-$(basename "$file")"
    index=$((index + 1))
  done <<<"$files"
  find "$tree" -exec touch -h -d @0 {} +
  (cd "$tree" && find . | LC_ALL=C sort | cpio --quiet --reproducible -o -H newc -R 0:0) >"$out"
}
