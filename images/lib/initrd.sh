# shellcheck shell=bash
# The initrd: busybox, the boot modules and three scripts. It is not compressed:
# unpacking would cost an emulated processor more than reading.

make_initrd() {
  local parts=$1 release=$2 tree=$3 out=$4
  mkdir -p "$tree"/{bin,dev,proc,sys,run,root,lib/modules/late}
  cp "$parts/bin/busybox" "$tree/bin/busybox"
  install -m 0755 "$here/lib/initrd/init" "$tree/init"
  install -m 0755 "$here/lib/initrd/seed" "$tree/seed.sh"
  install -m 0755 "$here/lib/initrd/wait" "$tree/wait.sh"
  make_reseed "$tree/bin/reseed"
  copy_modules "$parts" "$release" "$tree/lib/modules" "${boot_modules[@]}"
  copy_modules "$parts" "$release" "$tree/lib/modules/late" "${late_modules[@]}"
  pack_initrd "$tree" "$out"
}

# Modules, numbered, so that their order is that of the names: copy_modules PARTS RELEASE TO NAME... Those that lie in the
# folder above already are loaded by then.
copy_modules() {
  local parts=$1 release=$2 to=$3 files file index=10
  shift 3
  files=$(module_files "$parts" "$release" "$@")
  while read -r file; do
    [[ -z $(compgen -G "${to%/*}/*-${file##*/}") ]] || continue
    cp "$file" "$to/$index-${file##*/}"
    index=$((index + 1))
  done <<<"$files"
}

pack_initrd() {
  local tree=$1 out=$2
  find "$tree" -exec touch -h -d @0 {} +
  (cd "$tree" && find . | LC_ALL=C sort | cpio --quiet --reproducible -o -H newc -R 0:0) >"$out"
}
