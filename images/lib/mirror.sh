# shellcheck shell=bash
# Where the packages come from: BERTH_DEBIAN_MIRROR, else the mirror that this
# machine's own apt uses for Debian, else Debian's default.

suite=bookworm
default_mirror=http://deb.debian.org/debian
default_security=http://deb.debian.org/debian-security

# The first address apt has on its list for an archive (its label), if any.
host_archive() {
  apt-get indextargets --format '$(LABEL)|$(REPO_URI)' 'Created-By: Packages' 2>/dev/null |
    awk -F'|' -v label="$1" '$1 == label && $2 ~ /^https?:/ { sub(/\/$/, "", $2); print $2; exit }'
}

# A mirror that was named may hold the security archive beside it or not, so
# that one still comes from the host's sources or the default.
package_sources() {
  local keyring=/usr/share/keyrings/debian-archive-keyring.gpg mirror security signed=
  mirror=${BERTH_DEBIAN_MIRROR:-$(host_archive Debian)}
  security=$(host_archive Debian-Security)
  [[ -f $keyring ]] && signed="[signed-by=$keyring] "
  printf 'deb %s%s %s main\n' \
    "$signed" "${mirror:-$default_mirror}" "$suite" \
    "$signed" "${mirror:-$default_mirror}" "$suite-updates" \
    "$signed" "${security:-$default_security}" "$suite-security"
}

public_sources() {
  printf 'deb %s %s main\n' \
    "$default_mirror" "$suite" \
    "$default_mirror" "$suite-updates" \
    "$default_security" "$suite-security"
}

# What the host's apt needs to reach its mirrors: proxies, certificates, and
# leave to read a frozen mirror.
host_apt_options() {
  apt-config dump 2>/dev/null | grep -E '^Acquire::(https?|ftp|Check-[A-Za-z-]+|Retries)[: ].*"[^"]+";$' || true
}
