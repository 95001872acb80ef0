//! All upstreams at this moment, and the client that reaches them.

use std::sync::Arc;
use std::time::Instant;

use super::address::Address;
use super::client::Client;
use super::table::{Moment, Speaks, Table, Voices};

/// All upstreams at this moment.
pub struct Fleet {
    /// The client that speaks to them.
    pub client: Client,
    table: Moment<Table>,
    voices: Moment<Voices>,
    began: Instant,
}

impl Fleet {
    /// Nothing on offer yet.
    pub fn new() -> anyhow::Result<Self> {
        let (table, voices) = (Moment::default(), Moment::default());
        Ok(Self { client: Client::new()?, table, voices, began: Instant::now() })
    }

    /// The models on offer.
    pub fn table(&self) -> Arc<Table> {
        self.table.now()
    }

    /// Offers other models. The server of a model file ends when its last user lets go of it.
    pub fn offer(&self, table: Table) {
        self.table.replace(table);
    }

    /// The voices on offer.
    pub fn voices(&self) -> Arc<Voices> {
        self.voices.now()
    }

    /// Offers other voices.
    pub fn offer_voices(&self, voices: Voices) {
        self.voices.replace(voices);
    }

    /// A voice by its id.
    pub fn voice(&self, id: &str) -> Option<Arc<Speaks>> {
        self.voices().get(id).cloned()
    }

    /// The addresses of all upstreams, voices' servers among them.
    pub fn addresses(&self) -> impl Iterator<Item = Arc<Address>> {
        let (table, voices) = (self.table(), self.voices());
        let servers: Vec<_> = voices.values().filter_map(|voice| voice.address.clone()).collect();
        let upstreams: Vec<_> = table.models.iter().flat_map(|entry| &entry.upstreams).cloned().collect();
        upstreams.into_iter().filter_map(|upstream| upstream.address()).chain(servers)
    }

    /// Milliseconds since the fleet started: the clock of retry budgets.
    pub fn millis(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
