//! Accounts, read from `/etc/passwd` and `/etc/group`: a static binary cannot ask libc.

use std::path::Path;

use rustix::process::{Gid, Uid};

/// An account that commands run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its number.
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

    /// Looks an account up below a root, `/` for the own one.
    pub fn lookup(root: &Path, name: &str) -> Option<Self> {
        let read = |file: &str| std::fs::read(root.join(file)).unwrap_or_default();
        let (passwd, group) = (read("etc/passwd"), read("etc/group"));
        Self::find(&String::from_utf8_lossy(&passwd), &String::from_utf8_lossy(&group), name)
    }

    /// The account with a number.
    pub fn by_uid(uid: u32) -> Option<Self> {
        let passwd = std::fs::read_to_string("/etc/passwd").ok()?;
        let name = names(&passwd).find(|(_, number)| *number == uid)?.0.to_owned();
        Self::lookup(Path::new("/"), &name)
    }

    /// The superuser, also where no file tells of it.
    pub fn root() -> Self {
        Self::lookup(Path::new("/"), "root").unwrap_or_else(|| Self {
            name: "root".into(),
            uid: 0,
            gid: 0,
            groups: vec![0],
            home: "/root".into(),
            shell: "/bin/sh".into(),
        })
    }

    /// Its number as the kernel takes it.
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

/// The lines that are appended to make an account.
pub struct NewAccount {
    /// Its line of `passwd`.
    pub passwd: String,
    /// Its line of `group`.
    pub group: String,
    /// Its line of `shadow`: no password opens it.
    pub shadow: String,
}

impl NewAccount {
    /// Takes the first number from 1000 on that neither an account nor a group has.
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
    fn a_new_account_takes_a_number_that_is_free_as_both() {
        let new = NewAccount::plan(PASSWD, GROUP, "agent", "/bin/sh");
        let passwd = format!("{PASSWD}{}", new.passwd);
        let group = format!("{GROUP}{}", new.group);
        let account = Account::find(&passwd, &group, "agent").unwrap();
        assert_eq!((account.uid, account.groups.as_slice()), (1002, &[1002][..]));
    }
}
