//! Filters of system calls (seccomp(2)): what a process that runs a stranger's work may ask of the kernel.
//!
//! A filter holds for the thread that takes it and for all that it begins or executes from then on. None can be taken back;
//! several hold together. Whoever takes one must have given up the way to more rights before (`no_new_privs`).

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// The rules of calls; one without a rule is meant whatever its arguments are.
pub type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// A namespace for what is begun: within one of users it would have every right.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Refuses calls that match rules with an error, and lets all others pass.
///
/// # Errors
/// The kernel takes no filter.
pub fn refuse(rules: Rules, error: i32) -> io::Result<()> {
    apply(rules, SeccompAction::Allow, SeccompAction::Errno(error.unsigned_abs()))
}

/// Refuses every call but these, as a kernel does that does not know it (`ENOSYS`): libraries then do without.
///
/// # Errors
/// The kernel takes no filter.
pub fn allow_only(calls: &[i64]) -> io::Result<()> {
    let rules = calls.iter().map(|call| (*call, Vec::new())).collect();
    apply(rules, SeccompAction::Errno(libc::ENOSYS.unsigned_abs()), SeccompAction::Allow)
}

/// Refuses new namespaces, and the second set of numbers that calls have, which a filter by numbers does not see.
///
/// # Errors
/// The kernel takes no filter.
pub fn refuse_ways_around() -> io::Result<()> {
    let rule = |flag: i32| {
        let flag = u64::from(flag.unsigned_abs());
        SeccompRule::new(vec![SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?])
    };
    let rules = NAMESPACES.into_iter().map(rule).collect::<Result<_, _>>().map_err(io::Error::other)?;
    refuse(BTreeMap::from([(libc::SYS_clone, rules)]), libc::EPERM)?;
    // What this call is asked for lies in memory, where a filter cannot look; without it a library begins threads by the one
    // above.
    refuse(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)?;
    // A 64-bit processor of Intel's kind has a second set of numbers for the same calls.
    #[cfg(target_arch = "x86_64")]
    seccompiler::apply_filter(&x32()).map_err(io::Error::other)?;
    Ok(())
}

fn apply(rules: Rules, others: SeccompAction, these: SeccompAction) -> io::Result<()> {
    let architecture = std::env::consts::ARCH.try_into().map_err(io::Error::other)?;
    let filter = SeccompFilter::new(rules, others, these, architecture).map_err(io::Error::other)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter).map_err(io::Error::other)?).map_err(io::Error::other)
}

/// Refuses the calls of x32 (Linux, `arch/x86/include/uapi/asm/unistd.h`, `__X32_SYSCALL_BIT`), whatever they are.
#[cfg(target_arch = "x86_64")]
fn x32() -> BpfProgram {
    const X32: u32 = 0x4000_0000;
    let op =
        |code: u32, jt, jf, k| seccompiler::sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k };
    let result = libc::BPF_RET | libc::BPF_K;
    vec![
        op(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        op(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, X32),
        op(result, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM.unsigned_abs()),
        op(result, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel says to a call whose arguments it would refuse anyway.
    #[expect(unsafe_code, reason = "no library makes these calls, so that a filter of them can only be tried by hand")]
    fn error(number: i64, first: i64, second: i64) -> Option<i32> {
        // SAFETY: the kernel refuses these arguments before it does anything.
        let outcome = unsafe { libc::syscall(number, first, second, 0, 0, 0) };
        (outcome == -1).then(|| io::Error::last_os_error().raw_os_error()).flatten()
    }

    /// What a thread says that takes filters. A filter is of the thread that takes it.
    fn after<T: Send + 'static>(take: impl FnOnce() -> io::Result<()> + Send + 'static, say: fn() -> T) -> T {
        let thread = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            take().unwrap();
            say()
        });
        thread.join().unwrap()
    }

    #[test]
    fn ways_around_are_refused() {
        let users = i64::from(libc::CLONE_NEWUSER | libc::CLONE_FS);
        assert_eq!(error(libc::SYS_clone, users, 0), Some(libc::EINVAL));
        let said = after(refuse_ways_around, || {
            let users = i64::from(libc::CLONE_NEWUSER | libc::CLONE_FS);
            let refused = [error(libc::SYS_clone, users, 0), error(libc::SYS_clone3, 0, 0)];
            // Threads are begun as ever.
            (refused, error(0x4000_0000 | libc::SYS_getpid, 0, 0), std::thread::spawn(|| 7).join().unwrap())
        });
        assert_eq!((said.0, said.2), ([Some(libc::EPERM), Some(libc::ENOSYS)], 7));
        if cfg!(target_arch = "x86_64") {
            assert_eq!(said.1, Some(libc::EPERM));
        }
    }

    #[test]
    fn what_is_not_named_is_not_there() {
        // Every call but two.
        let take = || {
            let calls = (0..450).filter(|call| ![libc::SYS_getppid, libc::SYS_keyctl].contains(call));
            allow_only(&calls.collect::<Vec<i64>>())
        };
        let said = after(take, || {
            [error(libc::SYS_keyctl, -1, 0), error(libc::SYS_getppid, 0, 0), error(libc::SYS_getpid, 0, 0)]
        });
        assert_eq!(said, [Some(libc::ENOSYS), Some(libc::ENOSYS), None]);
    }
}
