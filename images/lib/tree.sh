# shellcheck shell=bash
# Trees of files that belong to root, also when the builder is not root: then
# they stay inside tar archives and are handled under fakeroot.

as_root() {
  if ((EUID == 0)); then "$@"; else fakeroot -- "$@"; fi
}

# What a command mounts is gone when it ends, however it ends. Else a killed
# build left the host's /dev/shm in its folder, and whoever removed that
# folder emptied it.
with_own_mounts() {
  if ((EUID == 0)) && unshare --mount true 2>/dev/null; then unshare --mount "$@"; else "$@"; fi
}

# bootstrap VARIANT TARGET PACKAGES [mmdebstrap options]: TARGET is a folder,
# or an archive when its name ends in .tar. The mode is mmdebstrap's choice:
# root where it may mount, else a user namespace.
bootstrap() {
  local variant=$1 target=$2 packages=$3 options
  shift 3
  options=$(dirname "$target")/apt-options
  host_apt_options >"$options"
  package_sources |
    TMPDIR=$(dirname "$target") with_own_mounts \
      mmdebstrap --mode=auto --quiet --variant="$variant" --architectures=amd64 --include="$packages" \
      --aptopt="$options" "$@" "$suite" "$target" - >&2
}

# The program loader of parts. The name in lib64 is an absolute link and would
# lead to the host's.
loader_of() {
  echo "$1/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
}

# The libraries of parts that a program needs, each on a line; never the host's.
libraries_of() {
  local parts=$1 program=$2 library
  "$(loader_of "$parts")" --library-path "$parts/lib/x86_64-linux-gnu:$parts/usr/lib/x86_64-linux-gnu" \
    --list "$program" | sed -nE 's,.* (/[^ ]+) \(0x.*,\1,p' | while read -r library; do
    case $library in
      */ld-linux-x86-64.so.2) ;;
      "$parts"/*) echo "$library" ;;
      *) die "$program needs $library, which the packages of the image do not hold." ;;
    esac
  done
}

remove_tree() {
  # Parts of a user namespace's tree may belong to its users.
  rm -rf --one-file-system "$1" 2>/dev/null ||
    unshare --map-auto --map-root-user rm -rf --one-file-system "$1"
}
