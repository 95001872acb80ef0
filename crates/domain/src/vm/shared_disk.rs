//! What cannot be done with disks that lie in a store of several hosts, and what to do instead.
//!
//! Such a disk is no file of a host, and its machine begins from it alone. What needs a file beside the disk is refused before
//! anything is wished. A snapshot of it lies in the store, and so does what is made of that; what is made of a backup, or of a file,
//! lies on a host, in every region.

use super::state::Verb;
use crate::{Code, Error, Result};

/// What somebody wants of a disk, or of a VM, that a store does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The memory of a VM on the disk.
    Suspend,
    /// A root disk made anew.
    Reinstall,
    /// Another system beside the VM's own.
    Rescue,
    /// A file of a disk.
    Export,
    /// A file of a snapshot.
    ExportSnapshot,
    /// A larger disk while its machine runs.
    Grow,
}

impl Refused {
    /// What a verb on a VM wants that a store does not have, if it does.
    pub const fn of(verb: Verb) -> Option<Self> {
        match verb {
            Verb::Suspend => Some(Self::Suspend),
            Verb::Reinstall => Some(Self::Reinstall),
            Verb::Rescue => Some(Self::Rescue),
            Verb::Start | Verb::Stop | Verb::Restart | Verb::Resume => None,
        }
    }

    /// Refuses it where there is a store.
    ///
    /// # Errors
    /// 409 that says what to do instead.
    pub fn check(self, store: Option<&str>) -> Result<()> {
        store.map_or(Ok(()), |store| Err(Error::new(Code::NotSupported, self.sentences(store))))
    }

    fn sentences(self, store: &str) -> String {
        let of_vm = format!("The disks of the VM lie in the store {store}, which several hosts reach");
        let of_disk = format!("The disk lies in the store {store}, which several hosts reach");
        let restored = "restore that, and export the disk that this makes, which lies on a host";
        match self {
            Self::Suspend => {
                format!("{of_vm}: its memory has no place there. Stop it instead; its disks stay as they are.")
            }
            Self::Reinstall => format!(
                "{of_vm}: its root disk cannot be made anew. Create another VM, and give it this one's data disks: detach \
                 them, and attach them there."
            ),
            Self::Rescue => format!(
                "{of_vm}: it cannot boot another system. Look at its console and its screen, or give its data disks to \
                 another VM: detach them, and attach them there."
            ),
            Self::Export => format!(
                "{of_disk}, and no file is made of it there. Make a backup of it, {restored}; or make an image of a root \
                 disk, and export that."
            ),
            Self::ExportSnapshot => format!(
                "The snapshot lies in the store {store}, which several hosts reach, and no file is made of it there. Make a \
                 disk or a VM of it, and a backup of that; {restored}."
            ),
            Self::Grow => {
                format!("{of_disk}, and does not grow while a VM that has it is on. Stop the VM first, then try again.")
            }
        }
    }
}

/// Refuses a disk for a VM whose disks lie elsewhere: in a store, or on its host.
///
/// # Errors
/// 409 that says what to do instead.
pub fn on_attach(disk: Option<&str>, vm: Option<&str>) -> Result<()> {
    if disk == vm {
        return Ok(());
    }
    let place =
        |store: Option<&str>| store.map_or_else(|| "on a host".to_owned(), |store| format!("in the store {store}"));
    let instead = match vm {
        Some(_) => {
            "Attach one that lies there: one that is created without on_host, where new disks of the region lie there, or is \
             made of a snapshot that lies there. Copy to it from inside a guest what you need"
        }
        None => {
            "Attach one that lies on a host: one that is created with on_host, or is made of a backup, a file or a snapshot \
             of a disk that lies on one"
        }
    };
    let message = format!(
        "The disk lies {}, and those of the VM lie {}; a VM has all its disks in one place. {instead}.",
        place(disk),
        place(vm)
    );
    Err(Error::new(Code::NotSupported, message))
}

/// Refuses a disk that is to lie on a host and to be made of a snapshot that lies in a store.
///
/// # Errors
/// 400 that says what to do instead.
pub fn on_host(is_wanted: bool, snapshot: Option<&str>) -> Result<()> {
    match snapshot {
        Some(store) if is_wanted => Err(Error::field(
            "on_host",
            format!("the snapshot lies in the store {store}, and so does what is made of it; leave on_host out"),
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Refused; 6] = [
        Refused::Suspend,
        Refused::Reinstall,
        Refused::Rescue,
        Refused::Export,
        Refused::ExportSnapshot,
        Refused::Grow,
    ];

    #[test]
    fn what_a_store_does_not_have_is_refused_with_what_to_do_instead() {
        for wanted in ALL {
            assert_eq!(wanted.check(None), Ok(()));
            let error = wanted.check(Some("pool-a")).unwrap_err();
            assert_eq!(error.code, Code::NotSupported);
            let sentences = error.message.matches(". ").count();
            assert!(error.message.contains("the store pool-a") && sentences >= 1, "{}", error.message);
        }
    }

    #[test]
    fn a_vm_has_all_its_disks_in_one_place() {
        let (a, b) = (Some("pool-a"), Some("pool-b"));
        for same in [None, a] {
            assert_eq!(on_attach(same, same), Ok(()));
        }
        for (disk, vm, words) in [
            (None, a, "lies on a host, and those of the VM lie in the store pool-a"),
            (a, None, "lies in the store pool-a, and those of the VM lie on a host"),
            (a, b, "lies in the store pool-a, and those of the VM lie in the store pool-b"),
        ] {
            let error = on_attach(disk, vm).unwrap_err();
            assert!(error.code == Code::NotSupported && error.message.contains(words), "{}", error.message);
            let instead = if vm.is_some() { "created without on_host" } else { "created with on_host" };
            assert!(error.message.contains(instead), "{}", error.message);
        }
    }

    #[test]
    fn what_is_made_of_a_snapshot_in_a_store_is_not_wanted_on_a_host() {
        for (is_wanted, snapshot) in [(false, None), (false, Some("pool-a")), (true, None)] {
            assert_eq!(on_host(is_wanted, snapshot), Ok(()));
        }
        let error = on_host(true, Some("pool-a")).unwrap_err();
        assert!(error.details[0].field == "on_host" && error.details[0].message.contains("pool-a"), "{error:?}");
    }

    #[test]
    fn verbs_that_need_a_place_beside_the_disks_are_refused() {
        let refused = [Verb::Suspend, Verb::Reinstall, Verb::Rescue].map(Refused::of);
        assert_eq!(refused, [Some(Refused::Suspend), Some(Refused::Reinstall), Some(Refused::Rescue)]);
        for verb in [Verb::Start, Verb::Stop, Verb::Restart, Verb::Resume] {
            assert_eq!(Refused::of(verb), None);
        }
    }
}
