//! Grows the root file system to the size of its disk, where a template has a larger disk than its base.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// `EXT4_IOC_RESIZE_FS` (Linux, fs/ext4/ext4.h): the new number of blocks.
const RESIZE: Opcode = opcode::write::<u64>(b'f', 16);

/// Grows the ext4 file system mounted at a path to the size of its device. Leaves one of that size as it is.
pub fn grow(device: &Path, mounted: &Path) -> io::Result<()> {
    let bytes = File::open(device)?.seek(SeekFrom::End(0))?;
    let blocks = bytes / rustix::fs::statvfs(mounted)?.f_bsize.max(1);
    let root = rustix::fs::open(mounted, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    #[expect(unsafe_code, reason = "no library offers this call")]
    // SAFETY: the call reads one number, which the setter holds; it acts on the file system of an open directory.
    unsafe {
        ioctl(&root, Setter::<RESIZE, u64>::new(blocks))?;
    }
    Ok(())
}
