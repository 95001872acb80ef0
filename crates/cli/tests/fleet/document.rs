//! The configuration of `docs/postgresql.md`, read from its text: what is documented is what is tested.

use std::sync::LazyLock;

static TEXT: LazyLock<String> = LazyLock::new(|| {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/postgresql.md");
    std::fs::read_to_string(file).expect("the document")
});

/// What a member has in the place of what the document says.
pub struct Own<'a> {
    pub name: &'a str,
    pub address: &'a str,
    pub folder: &'a str,
    /// Of PostgreSQL's programs.
    pub programs: &'a str,
}

impl Own<'_> {
    fn put_into(&self, text: &str) -> String {
        let (config, etcd) = (format!("{}/config.yml", self.folder), format!("{}/etcd", self.folder));
        let places = [
            ("dbN", self.name),
            ("10.77.0.N", self.address),
            ("/etc/patroni/config.yml", &config),
            ("/usr/lib/postgresql/15/bin", self.programs),
            ("/var/lib/etcd", &etcd),
            ("/var/lib/postgresql", self.folder),
            ("/var/run/postgresql", self.folder),
        ];
        places.iter().fold(text.to_owned(), |text, (word, own)| text.replace(word, own))
    }

    /// etcd's variables.
    pub fn etcd(&self) -> Vec<(String, String)> {
        let pair = |line: &str| line.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        self.put_into(block("ETCD_NAME=")).lines().filter_map(pair).collect()
    }

    /// Patroni's file.
    pub fn patroni(&self) -> String {
        self.put_into(block("scope: berth"))
    }

    /// The words of the command that starts Patroni, and with `ExecStop` of the one that ends it.
    pub fn command(&self, key: &str) -> Vec<String> {
        let unit = self.put_into(block("[Unit]\nStartLimitIntervalSec=0"));
        let is_set = |line: &&str| line.strip_prefix(key).is_some_and(|rest| rest.len() > 1 && rest.starts_with('='));
        let line = unit.lines().find(is_set).unwrap_or_else(|| panic!("no {key} in the document"));
        line[key.len() + 1..].split(' ').map(str::to_owned).collect()
    }
}

/// What makes the database, as psql reads it.
pub fn roles() -> &'static str {
    let block = block("psql 'host=");
    let (_, rest) = block.split_once("<<'END'\n").expect("the statements");
    rest.split_once("END").expect("their end").0
}

/// The service's address of the database.
pub fn database_url() -> &'static str {
    block("# berth.toml").split('"').nth(1).expect("an address")
}

/// The block of the document that begins so.
fn block(begin: &str) -> &'static str {
    let mut blocks = TEXT.split("\n```").skip(1).step_by(2).filter_map(|block| Some(block.split_once('\n')?.1));
    blocks.find(|block| block.starts_with(begin)).unwrap_or_else(|| panic!("the document has no block {begin}"))
}
