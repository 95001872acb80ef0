//! What the guests boot: the first files of the `micro` image, and a first process that does as it is told.

use std::fs;
use std::path::Path;

use anyhow::Result;

/// The first process: it has the outside tell it what to run, by a shell on a connection. Its port, and who it
/// is, come from the kernel's command line.
const INIT: &str = "#!/bin/busybox sh
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs devtmpfs /dev
for file in /lib/modules/*.ko /lib/modules/late/*.ko; do $bb insmod $file; done
$bb ifconfig lo up
$bb ifconfig eth0 $OWN netmask 255.255.255.0 up
$bb route add default gw $GATEWAY
while :; do
  $bb nc -w 3 $OUTSIDE $TELLS -e $bb sh
  $bb usleep 100000
done
";
/// Its path in the guest, for the kernel's command line.
pub const PATH: &str = "/benchmark";

/// Writes the initial file system; the kernel unpacks one archive behind the other.
pub fn write(micro: &Path, to: &Path) -> Result<()> {
    let mut archive = fs::read(micro)?;
    entry(&mut archive, &PATH[1..], 0o100_755, INIT.as_bytes());
    entry(&mut archive, "TRAILER!!!", 0, b"");
    Ok(fs::write(to, archive)?)
}

/// A file of an archive in cpio's form `newc`: 13 numbers of 8 digits, then the name, then what is in it, each filled up
/// to 4 bytes.
fn entry(archive: &mut Vec<u8>, name: &str, mode: u32, data: &[u8]) {
    archive.resize(archive.len().next_multiple_of(4), 0);
    let size = u32::try_from(data.len()).unwrap_or_default();
    let name_size = u32::try_from(name.len() + 1).unwrap_or_default();
    let numbers = [0, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, name_size, 0];
    archive.extend_from_slice(b"070701");
    for number in numbers {
        archive.extend_from_slice(format!("{number:08X}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend_from_slice(data);
    archive.resize(archive.len().next_multiple_of(4), 0);
}
