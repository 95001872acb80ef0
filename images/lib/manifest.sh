# shellcheck shell=bash
# image.json, and the hash that names a state of a recipe.

# Over the names, modes and bytes of everything that goes into the image.
recipe_hash() {
  local name=$1
  {
    uname -m
    cd "$here" && find build lib "$name" ! -type d -printf '%m %p %l\n' | LC_ALL=C sort -k 2 |
      while read -r mode file target; do
        # Of the mode only what a checkout keeps.
        printf '%s %s %s\n' "$((0$mode >> 6 & 1))" "$file" "${target:-$(sha256sum <"$file")}"
      done
    recipe_inputs
  } | sha256sum | cut -c 1-16
}

# What else an image is made from; a recipe that has such a thing prints its hash.
recipe_inputs() {
  :
}

is_current() {
  local out=$1 version=$2
  grep -qs "\"version\": *\"$version\"" "$out"/{image,guest,template}.json
}

sum_of() {
  sha256sum "$1" | cut -d ' ' -f 1
}

# The recipe says title, os, login_user, min_memory_mb and cmdline.
write_manifest() {
  local name=$1 version=$2 image=$3
  # shellcheck disable=SC2154 # set by the recipe
  cat >"$image/image.json" <<END
{
  "id": "$name",
  "name": "$title",
  "os": "$os",
  "version": "$version",
  "login_user": "$login_user",
  "boot": {"kind": "kernel", "kernel": "vmlinux", "initrd": "initrd", "cmdline": "$cmdline"},
  "disk": "disk.qcow2",
  "virtual_size_bytes": $disk_bytes,
  "min_memory_mb": $min_memory_mb,
  "waits": true,
  "sha256": {
    "disk.qcow2": "$(sum_of "$image/disk.qcow2")",
    "vmlinux": "$(sum_of "$image/vmlinux")",
    "initrd": "$(sum_of "$image/initrd")"
  }
}
END
}
