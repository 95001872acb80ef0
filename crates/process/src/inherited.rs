//! What a process was left by whoever started the service.

/// Closes every descriptor but the first three: what whoever started the service handed down to everybody. For a process
/// that has just begun, and has opened nothing itself.
#[expect(unsafe_code, reason = "nothing in this process owns a descriptor that it does not know of")]
pub fn close_inherited() {
    let entries = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let numbers: Vec<i32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // The folder itself was one of them while it was read.
    let is_open = |number: &i32| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    for number in numbers.into_iter().filter(|number| *number > 2).filter(is_open) {
        // SAFETY: this process has just begun and has opened nothing itself but the folder above, which is closed: nobody
        // uses one of these numbers.
        unsafe { rustix::io::close(number) };
    }
}
