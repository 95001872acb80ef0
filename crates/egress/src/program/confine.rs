//! What the program gives up before it hears of any guest.
//!
//! It has a session of its own, no way to more rights, few files and little memory. As root it becomes a user and a group
//! that nobody else has. Landlock leaves it the folders that say who the resolvers are, no port of TCP to listen on, and
//! no signal to others; a filter of system calls keeps it from starting programs, looking into others, and sockets of
//! other families. A kernel without Landlock confines it by the rest.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope, path_beneath_rules};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
#[cfg(target_arch = "x86_64")]
use seccompiler::sock_filter;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// Files it may have: half of them are sockets of the guest's, the others ports, what it reads and waits by, and those of a
/// link that is just being replaced.
pub(super) const FILES: u64 = 4096;
/// Bytes of memory it may allocate: twice what the buffers of connections may take.
const MEMORY: u64 = 192 << 20;
/// Bytes of its log.
const LOG: u64 = 1 << 20;
/// Threads of it, where its user is its own.
const THREADS: u64 = 8;
/// Who the resolvers are. It is replaced as a whole, or leads to what is, so the folders are what may be read.
const RESOLVERS: &str = "/etc/resolv.conf";

/// Gives up everything that is not needed. With a user, it becomes that user and group, which only root may.
pub(super) fn confine(user: Option<u32>) -> io::Result<()> {
    // A process that leads a group already is in a session of its own, or of whoever tries it by hand.
    let _ = rustix::process::setsid();
    limit(Resource::Nofile, FILES)?;
    limit(Resource::Data, MEMORY)?;
    limit(Resource::Fsize, LOG)?;
    limit(Resource::Core, 0)?;
    if let Some(user) = user {
        limit(Resource::Nproc, THREADS)?;
        setgroups(&[])?;
        setresgid(Gid::from_raw(user), Gid::from_raw(user), Gid::from_raw(user))?;
        setresuid(Uid::from_raw(user), Uid::from_raw(user), Uid::from_raw(user))?;
    }
    rustix::thread::set_no_new_privs(true)?;
    fence().map_err(io::Error::other)?;
    filter().map_err(io::Error::other)
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let before = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let most = Some(most.min(before));
    Ok(setrlimit(resource, Rlimit { current: most, maximum: most })?)
}

/// Landlock, as much of it as the kernel has.
fn fence() -> Result<(), landlock::RulesetError> {
    let abi = ABI::V6;
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(abi))?.handle_access(AccessNet::BindTcp)?;
    let ruleset = ruleset.scope(Scope::from_all(abi))?.create()?;
    let folder = |path: &Path| path.parent().map(Path::to_path_buf);
    let folders = [folder(Path::new(RESOLVERS)), std::fs::canonicalize(RESOLVERS).ok().and_then(|path| folder(&path))];
    let rules = path_beneath_rules(folders.into_iter().flatten(), AccessFs::ReadFile);
    ruleset.add_rules(rules)?.restrict_self().map(drop)
}

/// System calls that it never needs and that would help whoever takes it over.
const REFUSED: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_open_by_handle_at,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_personality,
];

/// A namespace for a thread that is begun: within one of users it would have every right.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Families of sockets it makes: those of the internet, and that over which the kernel tells the host's addresses.
const FAMILIES: [i32; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

fn filter() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let others = FAMILIES.into_iter().map(|family| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, u64::from(family.unsigned_abs()))
    });
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(others.collect::<Result<_, _>>()?)?]);
    let namespaces = NAMESPACES.map(|flag| {
        let flag = u64::from(flag.unsigned_abs());
        let has = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
        SeccompRule::new(vec![has])
    });
    rules.insert(libc::SYS_clone, namespaces.into_iter().collect::<Result<_, _>>()?);
    apply(rules, libc::EPERM)?;
    // What this call is asked for lies in memory, where a filter cannot look; without it a library begins threads by the one
    // above.
    apply(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)?;
    // A 64-bit processor of Intel's kind has a second set of numbers for the same calls.
    #[cfg(target_arch = "x86_64")]
    seccompiler::apply_filter(&x32())?;
    Ok(())
}

/// Refuses calls with an error.
fn apply(rules: BTreeMap<i64, Vec<SeccompRule>>, error: i32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let refused = SeccompAction::Errno(error.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, std::env::consts::ARCH.try_into()?)?;
    seccompiler::apply_filter(&BpfProgram::try_from(filter)?)?;
    Ok(())
}

/// Refuses the calls of x32 (Linux, `arch/x86/include/uapi/asm/unistd.h`, `__X32_SYSCALL_BIT`), whatever they are.
#[cfg(target_arch = "x86_64")]
fn x32() -> BpfProgram {
    const X32: u32 = 0x4000_0000;
    let op = |code: u32, jt, jf, k| sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k };
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

    #[test]
    #[expect(unsafe_code, reason = "no library makes these calls, so that a filter of them can only be tried by hand")]
    fn calls_that_lead_to_more_rights_are_refused() {
        // Each would be refused otherwise without a filter, too: nothing begins whatever this finds.
        let error = |number: i64, first: i64, second: i64| {
            // SAFETY: the kernel refuses these arguments before it does anything.
            let outcome = unsafe { libc::syscall(number, first, second, 0, 0, 0) };
            (outcome, io::Error::last_os_error().raw_os_error())
        };
        let users = i64::from(libc::CLONE_NEWUSER | libc::CLONE_FS);
        // A filter is of the thread that takes it.
        let tried = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            let before = error(libc::SYS_clone, users, 0);
            filter().unwrap();
            let after = [error(libc::SYS_clone, users, 0), error(libc::SYS_clone3, 0, 0)];
            let other = error(0x4000_0000 | libc::SYS_getpid, 0, 0);
            // Threads are begun as ever.
            (before, after, other, std::thread::spawn(|| 7).join().unwrap())
        });
        let (before, after, other, thread) = tried.join().unwrap();
        assert_eq!((before, thread), ((-1, Some(libc::EINVAL)), 7));
        assert_eq!(after, [(-1, Some(libc::EPERM)), (-1, Some(libc::ENOSYS))]);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(other, (-1, Some(libc::EPERM)));
        }
    }
}
