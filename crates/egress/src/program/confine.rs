//! What the program gives up before it hears of any guest.
//!
//! It has a session of its own, no way to more rights, few files and little memory. As root it becomes a user and a
//! group that nobody else has. Landlock leaves it the folders that say who the resolvers are, no port of TCP to listen
//! on, and no signal to others; a filter of system calls keeps it from starting programs, looking into others, and
//! sockets of other families. A kernel without Landlock confines it by the rest.

use std::io;
use std::path::{Path, PathBuf};

use berth_process::filter;
use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetCreatedAttr, Scope, path_beneath_rules};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use seccompiler::{SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompRule};

/// Files it may have: half of them are sockets of the guest's, the others ports, what it reads and waits by, and those
/// of a link that is just being replaced.
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
    confine_to(user, None)
}

/// The same for a program that reads files of one more folder.
///
/// # Errors
/// The kernel refuses something.
pub fn confine_to(user: Option<u32>, folder: Option<PathBuf>) -> io::Result<()> {
    give_up(user, || Ok(()))?;
    fence(resolvers().into_iter().chain(folder)).map_err(io::Error::other)?;
    filter().map_err(io::Error::other)
}

/// The same for a switch, which needs less: no file, no socket but those that it is given, and no other thread.
pub(super) fn confine_switch(user: Option<u32>) -> io::Result<()> {
    // It works in an empty folder, which becomes its root where it may choose that.
    let enclose = || if user.is_some() { Ok(rustix::process::chroot(".")?) } else { Ok(()) };
    give_up(user, enclose)?;
    fence([]).map_err(io::Error::other)?;
    // Before the other, after which none can be taken any more.
    filter::refuse_ways_around()?;
    filter::allow_only(OF_SWITCH)
}

/// Gives up its session, what it may take, its user, and the way to more rights.
fn give_up(user: Option<u32>, enclose: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // A process that leads a group already is in a session of its own, or of whoever tries it by hand.
    let _ = rustix::process::setsid();
    limit(Resource::Nofile, FILES)?;
    limit(Resource::Data, MEMORY)?;
    limit(Resource::Fsize, LOG)?;
    limit(Resource::Core, 0)?;
    enclose()?;
    if let Some(user) = user {
        limit(Resource::Nproc, THREADS)?;
        setgroups(&[])?;
        setresgid(Gid::from_raw(user), Gid::from_raw(user), Gid::from_raw(user))?;
        setresuid(Uid::from_raw(user), Uid::from_raw(user), Uid::from_raw(user))?;
    }
    Ok(rustix::thread::set_no_new_privs(true)?)
}

fn limit(resource: Resource, most: u64) -> io::Result<()> {
    let before = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let most = Some(most.min(before));
    Ok(setrlimit(resource, Rlimit { current: most, maximum: most })?)
}

/// The folders that say who the resolvers are.
fn resolvers() -> impl IntoIterator<Item = PathBuf> {
    let folder = |path: &Path| path.parent().map(Path::to_path_buf);
    let folders = [folder(Path::new(RESOLVERS)), std::fs::canonicalize(RESOLVERS).ok().and_then(|path| folder(&path))];
    folders.into_iter().flatten()
}

/// Landlock, as much of it as the kernel has; what may be read lies in these folders.
fn fence(folders: impl IntoIterator<Item = PathBuf>) -> Result<(), landlock::RulesetError> {
    let abi = ABI::V6;
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(abi))?.handle_access(AccessNet::BindTcp)?;
    let ruleset = ruleset.scope(Scope::from_all(abi))?.create()?;
    let rules = path_beneath_rules(folders, AccessFs::ReadFile);
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

/// The system calls that a switch has: those by which it waits, moves bytes between sockets that it was given, and has
/// memory. It opens nothing, makes no socket and begins nothing.
const OF_SWITCH: &[i64] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mprotect,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

/// Families of sockets it makes: those of the internet, and that over which the kernel tells the host's addresses.
const FAMILIES: [i32; 3] = [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

fn filter() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut rules: filter::Rules = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let others = FAMILIES.into_iter().map(|family| {
        SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, u64::from(family.unsigned_abs()))
    });
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(others.collect::<Result<_, _>>()?)?]);
    filter::refuse(rules, libc::EPERM)?;
    Ok(filter::refuse_ways_around()?)
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;
    use std::net::{Ipv4Addr, TcpListener, UdpSocket};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_switch_opens_nothing_and_makes_no_socket() {
        // A filter is of the thread that takes it.
        let tries = || {
            rustix::thread::set_no_new_privs(true).unwrap();
            filter::allow_only(OF_SWITCH).unwrap();
            [
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map(drop),
                UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map(drop),
                UnixStream::pair().map(drop),
                std::fs::File::open("/dev/null").map(drop),
                std::fs::create_dir("/tmp").map(drop),
                rustix::process::test_kill_process(rustix::process::getpid()).map_err(io::Error::from),
            ]
        };
        for (number, outcome) in std::thread::spawn(tries).join().unwrap().into_iter().enumerate() {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unsupported, "{number}");
        }
    }
}
