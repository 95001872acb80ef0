//! Rules that a test leaves out, to show that the checker sees it.

/// A rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A host refuses who asks in an earlier term.
    HostsKeepTerms,
    /// A host refuses what was decided for an earlier generation, and calls off what is under way for one.
    HostsKeepGenerations,
    /// The database refuses who writes in an earlier term.
    DatabaseKeepsTerms,
    /// A lease is over before anybody else may take the database.
    LeasesEnd,
    /// A creation keeps its key beside what it created.
    KeysAreKept,
    /// A commit waits for another member.
    CommitsAreSynchronous,
    /// A step is recorded only onto the row that it was decided for.
    RowsAreCompared,
    /// A start that is still under way is called off before its VM is said to be off.
    StopsCallOff,
    /// The same, before what a VM has on its host is removed.
    DeletionsEnd,
    /// The same, before a VM is said to have failed.
    FailuresEnd,
    /// A machine that no row owns is ended.
    UnownedMachinesEnd,
}
