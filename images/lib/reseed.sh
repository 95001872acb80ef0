# shellcheck shell=bash
# reseed: a program of some 250 bytes that mixes the first 512 bytes of its
# input into the kernel's random pool and has the pool taken up at once. No
# program of busybox can ask for that (random(4): RNDADDENTROPY, RNDRESEEDCRNG),
# and whoever builds an image needs no compiler. Its status is 0, or not.

make_reseed() {
  {
    elf_header
    reseed_code
    printf '/dev/urandom\0'
  } >"$1"
  chmod 0755 "$1"
}

# elf(5): a static x86-64 program that is loaded whole at 0x400000 and begins at 0x400078, behind both headers.
elf_header() {
  printf '\177ELF\002\001\001\000\000\000\000\000\000\000\000\000\002\000\076\000\001\000\000\000'
  printf '\170\000\100\000\000\000\000\000\100\000\000\000\000\000\000\000\000\000\000\000\000\000\000\000'
  printf '\000\000\000\000\100\000\070\000\001\000\000\000\000\000\000\000'
  printf '\001\000\000\000\005\000\000\000\000\000\000\000\000\000\000\000\000\000\100\000\000\000\000\000'
  printf '\000\000\100\000\000\000\000\000\000\001\000\000\000\000\000\000\000\001\000\000\000\000\000\000'
  printf '\000\020\000\000\000\000\000\000'
}

# Each line is what stands behind it, as `as` and `objdump -d -M intel` show it.
reseed_code() {
  code 48 81 ec 08 02 00 00    # sub rsp, 520: struct rand_pool_info, with 512 bytes
  code 31 ff                   # xor edi, edi
  code 48 8d 74 24 08          # lea rsi, [rsp+8]
  code ba 00 02 00 00          # mov edx, 512
  code 31 c0                   # xor eax, eax
  code 0f 05                   # syscall: read(0, buf, 512)
  code 3d 00 02 00 00          # cmp eax, 512
  code 75 47                   # jne fail
  code c7 04 24 00 01 00 00    # mov dword ptr [rsp], 256: bits that are counted
  code c7 44 24 04 00 02 00 00 # mov dword ptr [rsp+4], 512
  code 48 8d 3d 3a 00 00 00    # lea rdi, [rip+path]
  code be 01 00 00 00          # mov esi, 1
  code b8 02 00 00 00          # mov eax, 2
  code 0f 05                   # syscall: open("/dev/urandom", O_WRONLY)
  code 85 c0                   # test eax, eax
  code 78 21                   # js fail
  code 89 c7                   # mov edi, eax
  code 48 89 e2                # mov rdx, rsp
  code be 03 52 08 40          # mov esi, RNDADDENTROPY
  code b8 10 00 00 00          # mov eax, 16
  code 0f 05                   # syscall: ioctl
  code 85 c0                   # test eax, eax
  code 75 0c                   # jne fail
  code be 07 52 00 00          # mov esi, RNDRESEEDCRNG
  code b8 10 00 00 00          # mov eax, 16
  code 0f 05                   # syscall: ioctl
  code 89 c7                   # fail: mov edi, eax
  code b8 3c 00 00 00          # mov eax, 60
  code 0f 05                   # syscall: exit(eax)
}

# Bytes, in hexadecimal.
code() {
  local byte
  for byte; do
    # shellcheck disable=SC2059 # the byte is the format
    printf "\\x$byte"
  done
}
