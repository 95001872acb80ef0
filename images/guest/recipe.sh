# shellcheck shell=bash disable=SC2034
# guest: what every sandbox boots, whatever its disk holds: Debian's cloud
# kernel, and an initrd whose first process is Berth's agent.

# The agent's binary, static: made by script/lib.sh's build_programs.
agent=${BERTH_AGENT-}
cmdline="console=ttyS0 quiet panic=-1 cryptomgr.notests nowatchdog"

# The random source is seeded by the agent; the power button is not pressed.
boot_modules=(virtio_pci virtio_console virtio_blk virtio_net)

recipe_inputs() {
  [[ -x $agent ]] || die "BERTH_AGENT names no program. script/quickstart and script/test build it and name it."
  sha256sum <"$agent"
}

assemble() {
  local name=$1 work=$2 release
  add_kernel "$name" "$work"
  release=$(kernel_release "$work/parts")
  say "$name: packing the agent for Linux $release"
  make_initrd "$work/parts" "$release" "$work/initrd.d" "$work/image/initrd"
}

make_initrd() {
  local parts=$1 release=$2 tree=$3 out=$4
  mkdir -p "$tree"/{dev,proc,sys,run,tmp,root,lib/modules}
  install -m 0755 "$agent" "$tree/init"
  copy_modules "$parts" "$release" "$tree/lib/modules" "${boot_modules[@]}"
  pack_initrd "$tree" "$out"
}

write_manifest() {
  local name=$1 version=$2 image=$3
  cat >"$image/guest.json" <<END
{
  "id": "$name",
  "version": "$version",
  "boot": {"kind": "kernel", "kernel": "vmlinux", "initrd": "initrd", "cmdline": "$cmdline"},
  "sha256": {
    "vmlinux": "$(sum_of "$image/vmlinux")",
    "initrd": "$(sum_of "$image/initrd")"
  }
}
END
}
