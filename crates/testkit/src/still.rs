//! Guests that stand still: QEMU runs a kernel whose first instruction stops the processor. Such a machine costs a fifth of
//! the time of one that boots.

use std::path::Path;

use berth_qemu::image::{BootKind, MANIFEST, Manifest};

/// Where the kernel lies in the guest's memory.
const PLACE: u64 = 1 << 20;
/// Where in its file its first instruction is.
const ENTRY: u16 = 0x100;
/// QEMU looks for other kinds of kernels in so many bytes.
const BYTES: u16 = 8192;
/// Of the file's header, of what describes a segment, and of the note.
const HEADER: u16 = 64;
const SEGMENT: u16 = 56;
const NOTE: u16 = 24;
/// The note with the place at which QEMU begins, in 32 bits: `XEN_ELFNOTE_PHYS32_ENTRY`.
const PHYS32_ENTRY: u32 = 18;
/// cli; hlt; and again.
const CODE: [u8; 4] = [0xfa, 0xf4, 0xeb, 0xfd];

/// Has an image's machines stand still.
pub fn put_into(image: &Path) {
    let mut manifest = Manifest::load(image).expect("an image");
    let BootKind::Kernel { kernel, .. } = manifest.boot.clone() else {
        panic!("the image has a boot loader of its own")
    };
    manifest.sha256.remove(&kernel);
    let told = serde_json::to_vec(&manifest).expect("JSON");
    for (file, bytes) in [(kernel.as_str(), kernel_bytes()), (MANIFEST, told)] {
        // Other tests have links to what was there.
        std::fs::remove_file(image.join(file)).and_then(|()| std::fs::write(image.join(file), bytes)).expect("a file");
    }
}

/// An ELF file of 64 bits that begins where its note says.
fn kernel_bytes() -> Vec<u8> {
    let entry = PLACE + u64::from(ENTRY);
    let notes = u64::from(HEADER + 2 * SEGMENT);
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    // An executable file of x86_64.
    file.extend([2_u16, 62].map(u16::to_le_bytes).concat());
    file.extend(1_u32.to_le_bytes());
    file.extend([entry, u64::from(HEADER), 0].map(u64::to_le_bytes).concat());
    file.extend(0_u32.to_le_bytes());
    file.extend([HEADER, SEGMENT, 2, 64, 0, 0].map(u16::to_le_bytes).concat());
    // What is loaded and executed, and what is read: the note.
    for (kind, rights, offset, bytes, align) in
        [(1_u32, 5, 0, u64::from(BYTES), 4096), (4, 4, notes, u64::from(NOTE), 4)]
    {
        file.extend([kind, rights].map(u32::to_le_bytes).concat());
        file.extend([offset, PLACE + offset, PLACE + offset, bytes, bytes, align].map(u64::to_le_bytes).concat());
    }
    file.extend([4, 8, PHYS32_ENTRY].map(u32::to_le_bytes).concat());
    file.extend(b"Xen\0");
    file.extend(entry.to_le_bytes());
    file.resize(usize::from(ENTRY), 0);
    file.extend(CODE);
    file.resize(usize::from(BYTES), 0);
    file
}
