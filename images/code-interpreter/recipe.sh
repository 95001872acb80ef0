# shellcheck shell=bash disable=SC2034
# code-interpreter: the disk of base with Python's packages for data, Node.js, and
# a server that runs code (server.py), which its sandboxes find running.

# shellcheck source=images/base/recipe.sh
source "$here/base/recipe.sh"

title="Code interpreter (Debian 12: Python for data, Node.js; runs code at port 49999)"
memory_mb=512
server=/usr/lib/berth/code-interpreter/server.py
commands="
  \"start_command\": \"cd; while :; do python3 -E $server; sleep 1; done\",
  \"ready_command\": \"curl -sf http://127.0.0.1:49999/rehearsal\","

packages+=(
  python3-ipython python3-matplotlib python3-matplotlib-inline python3-numpy python3-pandas python3-scipy
  python3-sklearn python3-seaborn python3-openpyxl python3-requests python3-bs4
  nodejs node-acorn node-typescript
)

# What packages carry for browsers, tables of characters that nobody reads, and other ways to run a compiler.
without=(
  '/usr/share/javascript/*' '/usr/share/unicode/*' '/usr/share/nodejs/typescript/lib/tsserver*'
  '/usr/share/nodejs/typescript/lib/typescriptServices*' '/usr/share/nodejs/typescript/lib/tsc.js'
  '/usr/share/nodejs/typescript/lib/typingsInstaller.js' '/usr/share/nodejs/typescript/lib/*/diagnosticMessages*'
)

make_rootfs() {
  local work=$1
  make_stub "$work"
  options=(
    "${without[@]/#/--dpkgopt=path-exclude=}"
    --essential-hook="upload '$work/stub.deb' /var/tmp/stub.deb"
    --essential-hook="chroot \"\$1\" dpkg --install /var/tmp/stub.deb && rm \"\$1/var/tmp/stub.deb\""
    --customize-hook="sync-in '$here/code-interpreter/rootfs' /"
    --customize-hook="'$here/code-interpreter/customize' \"\$1\""
  )
  fill_rootfs "$work"
}

# python3-scipy asks for the compiler of its sources, which asks for g++ and Boost: 500 MB that nothing runs. An upgrade that
# is to bring them may.
make_stub() {
  local work=$1
  mkdir -p "$work/stub/DEBIAN"
  chmod 0755 "$work/stub" "$work/stub/DEBIAN"
  printf '%s\n' 'Package: python3-pythran' 'Version: 0~berth' 'Architecture: all' 'Maintainer: Berth <berth@localhost>' \
    'Description: nothing, in the place of what only compiling SciPy needs' >"$work/stub/DEBIAN/control"
  dpkg-deb --root-owner-group --build "$work/stub" "$work/stub.deb" >&2
}

# It is made of what base is made of, too.
recipe_inputs() {
  (cd "$here" && sha256sum base/*)
}
