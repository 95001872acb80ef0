//! Accounts, read from `/etc/passwd` and `/etc/group`: a static binary cannot ask libc.
//!
//! Root in the sandbox may put anything in place of these files, and the agent reads them in the middle of other work.
//! So it reads only regular files, no more of them than a bound, and never waits.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::process::{Gid, Uid};

use crate::lock::lock;

/// The two files.
const FILES: [&str; 2] = ["/etc/passwd", "/etc/group"];
/// The most bytes of a file of accounts that the agent reads.
const MAX_BYTES: u64 = 1024 * 1024;
/// How to open a file of accounts: without waiting for the other end of a pipe, or for its content.
pub const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Cache of accounts, valid while the two files stay unchanged: every command needs one.
#[derive(Default)]
pub struct Accounts(Mutex<Known>);

#[derive(Default)]
struct Known {
    files: [Option<Stamp>; 2],
    by_name: BTreeMap<String, Account>,
}

/// Changes when a file does: its device, inode, size and the time of its last change.
type Stamp = (u64, u64, u64, i64, i64);

fn stamp(file: &str) -> Option<Stamp> {
    let meta = std::fs::metadata(file).ok()?;
    Some((meta.dev(), meta.ino(), meta.size(), meta.ctime(), meta.ctime_nsec()))
}

/// The text of a file of accounts; none if it is no regular file.
pub fn read(path: &Path) -> Option<String> {
    read_open(rustix::fs::open(path, FLAGS, Mode::empty()).ok()?)
}

/// The text of a file that was opened with [`FLAGS`]; none if it is no regular file, since that may never end.
pub fn read_open(file: OwnedFd) -> Option<String> {
    let stat = rustix::fs::fstat(&file).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut bytes = Vec::new();
    File::from(file).take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

impl Accounts {
    /// An account by its name, according to the present files.
    pub fn get(&self, name: &str) -> Option<Account> {
        let files = FILES.map(stamp);
        let mut known = lock(&self.0);
        if known.files != files {
            *known = Known { files, by_name: BTreeMap::new() };
        }
        if let Some(account) = known.by_name.get(name) {
            return Some(account.clone());
        }
        let account = Account::lookup(Path::new("/"), name)?;
        known.by_name.insert(name.to_owned(), account.clone());
        Some(account)
    }
}

/// An account that commands run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its user id.
    pub uid: u32,
    /// Its own group.
    pub gid: u32,
    /// Every group it belongs to.
    pub groups: Vec<u32>,
    /// Its home.
    pub home: String,
    /// Its login shell.
    pub shell: String,
}

impl Account {
    /// Finds an account in the texts of the two files.
    pub fn find(passwd: &str, group: &str, name: &str) -> Option<Self> {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let [_, _, uid, gid, _, home, shell] = fields(line)?;
        let gid = gid.parse().ok()?;
        let mut groups = vec![gid];
        groups.extend(group.lines().filter_map(|line| {
            let [_, _, gid, members] = fields(line)?;
            if members.split(',').any(|member| member == name) { gid.parse::<u32>().ok() } else { None }
        }));
        groups.sort_unstable();
        groups.dedup();
        let shell = if shell.is_empty() { "/bin/sh" } else { shell };
        Some(Self {
            name: name.to_owned(),
            uid: uid.parse().ok()?,
            gid,
            groups,
            home: home.into(),
            shell: shell.into(),
        })
    }

    /// Parses `name[:group]`, where both may be numbers. A number needs no account; a named group is the only one.
    pub fn resolve(passwd: &str, group: &str, text: &str) -> Result<Self, String> {
        let (name, wanted) = text.split_once(':').map_or((text, None), |(name, group)| (name, Some(group)));
        let number = name.parse::<u32>().ok();
        let known = match number {
            Some(uid) => names(passwd).find(|(_, id)| *id == uid).map(|(name, _)| name),
            None => Some(name),
        };
        let found = known.and_then(|name| Self::find(passwd, group, name));
        let mut account = match (found, number) {
            (Some(found), _) => found,
            (None, Some(uid)) => Self { uid, gid: 0, groups: vec![0], name: name.into(), ..Self::nobody() },
            (None, None) if name == "root" => Self::root(),
            (None, None) => {
                return Err(format!("there is no user {name:?} on the disk; make it first, as with useradd"));
            }
        };
        if let Some(wanted) = wanted {
            let known = names(group).find(|(known, _)| *known == wanted).map(|(_, id)| id);
            let gid = known.or_else(|| wanted.parse().ok());
            account.gid = gid.ok_or_else(|| format!("there is no group {wanted:?} on the disk; make it first"))?;
            account.groups = vec![account.gid];
        }
        Ok(account)
    }

    /// Defaults for an account that is in no file.
    fn nobody() -> Self {
        let (name, home, shell) = (String::new(), "/".to_owned(), "/bin/sh".to_owned());
        Self { name, uid: 0, gid: 0, groups: vec![0], home, shell }
    }

    /// Looks an account up below a root directory; `/` is the agent's own.
    pub fn lookup(root: &Path, name: &str) -> Option<Self> {
        let text = |file: &str| read(&root.join(file)).unwrap_or_default();
        Self::find(&text("etc/passwd"), &text("etc/group"), name)
    }

    /// The account with a user id.
    pub fn by_uid(uid: u32) -> Option<Self> {
        let passwd = read(Path::new("/etc/passwd"))?;
        let name = names(&passwd).find(|(_, number)| *number == uid)?.0.to_owned();
        Self::lookup(Path::new("/"), &name)
    }

    /// The superuser, where no file has one.
    pub fn root() -> Self {
        Self { name: "root".into(), home: "/root".into(), ..Self::nobody() }
    }

    /// Its user id as the kernel takes it.
    pub fn uid(&self) -> Uid {
        Uid::from_raw(self.uid)
    }

    /// Its group as the kernel takes it.
    pub fn gid(&self) -> Gid {
        Gid::from_raw(self.gid)
    }

    /// Its groups as the kernel takes them.
    pub fn all_groups(&self) -> Vec<Gid> {
        self.groups.iter().map(|gid| Gid::from_raw(*gid)).collect()
    }
}

/// Names and numbers of all accounts in the text of `/etc/passwd`.
pub fn names(passwd: &str) -> impl Iterator<Item = (&str, u32)> {
    passwd.lines().filter_map(|line| {
        let mut fields = line.split(':');
        Some((fields.next()?, fields.nth(1)?.parse().ok()?))
    })
}

/// The lines to append for a new account.
pub struct NewAccount {
    /// Its line of `passwd`.
    pub passwd: String,
    /// Its line of `group`.
    pub group: String,
    /// Its line of `shadow`: no password fits.
    pub shadow: String,
}

impl NewAccount {
    /// Takes the first number from 1000 on that no account and no group has.
    pub fn plan(passwd: &str, group: &str, name: &str, shell: &str) -> Self {
        let taken = names(passwd).chain(names(group)).map(|(_, id)| id).collect::<std::collections::HashSet<_>>();
        let id = (1000..u32::MAX).find(|id| !taken.contains(id)).unwrap_or(1000);
        Self {
            passwd: format!("{name}:x:{id}:{id}::/home/{name}:{shell}\n"),
            group: format!("{name}:x:{id}:\n"),
            shadow: format!("{name}:!:19000:0:99999:7:::\n"),
        }
    }
}

fn fields<const N: usize>(line: &str) -> Option<[&str; N]> {
    let mut parts = line.splitn(N, ':');
    let mut out = [""; N];
    for slot in &mut out {
        *slot = parts.next()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, mkfifoat};

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nbroken\nuser:x:1000:1001::/home/user:\n";
    const GROUP: &str = "root:x:0:\nsudo:x:27:other,user\nuser:x:1001:\nx:y\nbad:x:nan:user\n";

    #[test]
    fn an_account_has_all_its_groups() {
        let user = Account::find(PASSWD, GROUP, "user").unwrap();
        assert_eq!((user.uid, user.gid, user.groups.as_slice()), (1000, 1001, &[27, 1001][..]));
        assert_eq!((user.home.as_str(), user.shell.as_str()), ("/home/user", "/bin/sh"));
        assert_eq!(Account::find(PASSWD, GROUP, "broken"), None);
        assert_eq!(Account::find(PASSWD, GROUP, "nobody"), None);
    }

    #[test]
    fn what_never_ends_is_no_file_of_accounts() {
        let root = tempfile::tempdir().unwrap();
        let etc = root.path().join("etc");
        std::fs::create_dir(&etc).unwrap();
        assert_eq!(Account::lookup(root.path(), "user"), None, "there is none");
        mkfifoat(CWD, etc.join("passwd"), Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(Account::lookup(root.path(), "user"), None);
        std::fs::remove_file(etc.join("passwd")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", etc.join("passwd")).unwrap();
        assert_eq!(Account::lookup(root.path(), "user"), None);
        std::fs::remove_file(etc.join("passwd")).unwrap();
        std::fs::write(etc.join("passwd"), PASSWD).unwrap();
        mkfifoat(CWD, etc.join("group"), Mode::from_raw_mode(0o600)).unwrap();
        assert_eq!(Account::lookup(root.path(), "user").unwrap().groups, [1001]);
    }

    #[test]
    fn only_so_much_of_a_file_is_read() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        let line = "late:x:7:7::/:/bin/sh\n";
        let most = usize::try_from(MAX_BYTES).unwrap();
        for (before, found) in [(most - line.len(), true), (most, false)] {
            let text = format!("{}\n{line}", "#".repeat(before - 1));
            std::fs::write(root.path().join("etc/passwd"), text).unwrap();
            assert_eq!(Account::lookup(root.path(), "late").is_some(), found, "{before}");
        }
    }

    #[test]
    fn users_and_groups_have_names_and_numbers() {
        let resolved = |text: &str| {
            Account::resolve(PASSWD, GROUP, text).map(|a| (a.uid, a.gid, a.groups, a.home)).map_err(|error| {
                assert!(error.contains("make it first"));
            })
        };
        assert_eq!(resolved("user"), Ok((1000, 1001, vec![27, 1001], "/home/user".into())));
        assert_eq!(resolved("1000"), resolved("user"));
        assert_eq!(resolved("user:sudo"), Ok((1000, 27, vec![27], "/home/user".into())));
        assert_eq!(resolved("user:5"), Ok((1000, 5, vec![5], "/home/user".into())));
        assert_eq!(resolved("7"), Ok((7, 0, vec![0], "/".into())));
        assert_eq!(resolved("7:user"), Ok((7, 1001, vec![1001], "/".into())));
        assert_eq!((resolved("none"), resolved("user:none"), resolved("")), (Err(()), Err(()), Err(())));
        let root = Account::resolve("", "", "root").unwrap();
        assert_eq!((root.uid, root.home.as_str()), (0, "/root"));
    }

    #[test]
    fn a_new_account_takes_a_number_that_is_free_as_both() {
        let new = NewAccount::plan(PASSWD, GROUP, "agent", "/bin/sh");
        let passwd = format!("{PASSWD}{}", new.passwd);
        let group = format!("{GROUP}{}", new.group);
        let account = Account::find(&passwd, &group, "agent").unwrap();
        assert_eq!((account.uid, account.groups.as_slice()), (1002, &[1002][..]));
    }
}
