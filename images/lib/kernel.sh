# shellcheck shell=bash disable=SC2034
# The kernel: Debian's cloud kernel as the plain ELF that PVH boots.

# What must be there before the root file system, in order of insertion, and
# what nothing would load by itself later (the power button, its events, the
# random source).
boot_modules=(isofs virtio_pci virtio_blk button evdev)
# Those of them that belong to one machine alone: a machine that waits for its owner does without. Their devices begin with
# their driver, so that the card has the address that its machine was given.
late_modules=(virtio_net virtio-rng)

kernel_release() {
  local kernels=("$1"/boot/vmlinuz-*)
  echo "${kernels[0]#*/boot/vmlinuz-}"
}

index_modules() {
  local parts=$1 release=$2
  depmod -b "$parts" "$release"
}

little_endian() {
  od -An -t "u$2" -j "$3" -N "$2" "$1" | tr -d ' '
}

# The boot protocol's header tells where the packed ELF lies (Linux,
# Documentation/x86/boot.rst: setup_sects, payload_offset, payload_length).
unpack_kernel() {
  local image=$1 out=$2 start length magic
  start=$((($(little_endian "$image" 1 $((0x1f1))) + 1) * 512 + $(little_endian "$image" 4 $((0x248)))))
  length=$(little_endian "$image" 4 $((0x24c)))
  magic=$(od -An -t x4 -j "$start" -N 4 "$image" | tr -d ' ')
  # The last four bytes are the unpacked size, not part of the stream.
  head -c "$((start + length - 4))" "$image" | tail -c +"$((start + 1))" | unpack_stream "$magic" >"$out"
  [[ $(od -An -c -j 1 -N 3 "$out" | tr -d ' ') == ELF ]] || die "$image: no ELF kernel inside."
}

unpack_stream() {
  case $1 in
    184c2102) lz4 -d -q -c ;;
    fd2fb528) zstd -d -q -c ;;
    587a37fd) xz -d -q -c ;;
    *) die "The kernel is packed in a way (magic $1) that images/lib/kernel.sh does not know." ;;
  esac
}

# The files of modules and of all they need, dependencies first.
module_files() {
  local parts=$1 release=$2 name
  shift 2
  for name; do
    modprobe -d "$parts" -S "$release" --show-depends "$name" | sed -n 's/^insmod \([^ ]*\).*/\1/p' ||
      die "Linux $release has no module $name."
  done | awk '!seen[$0]++'
}
