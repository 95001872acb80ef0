//! What a request took, noted whatever becomes of it: dropped in the middle, it is a client that left. The request's
//! span ends with it.

use std::sync::Arc;

use berth_domain::gateway::body::Operation;
use berth_domain::gateway::chunk::Chunk;
use berth_domain::gateway::money::estimate;
use berth_domain::gateway::{Price, Usage};

use super::Gateway;
use super::allowance::Reservation;
use super::meter::Record;
use super::table::Entry;
use super::trace::{Origin, Trace};

/// The status of a client that left, as nginx calls it.
pub const CLIENT_LEFT: u16 = 499;

/// The account of one request.
pub struct Account {
    gateway: Gateway,
    record: Record,
    price: Price,
    reservation: Reservation,
    trace: Trace,
    prompt: u64,
    told: Option<Usage>,
    text_bytes: usize,
    pieces: u64,
    sent: bool,
    closed: bool,
}

impl Account {
    /// Opens the account of a request. `prompt` is what its prompt may take, in tokens.
    pub fn open(gateway: &Gateway, record: Record, price: Price, reservation: Reservation, prompt: u64) -> Self {
        Self {
            gateway: gateway.clone(),
            record,
            price,
            reservation,
            trace: Trace::default(),
            prompt,
            told: None,
            text_bytes: 0,
            pieces: 0,
            sent: false,
            closed: false,
        }
    }

    /// Begins the span of the request, which asks for a model by this name. `streams` is whether its answer comes in
    /// pieces.
    pub fn trace(
        &mut self,
        operation: Operation,
        origin: &Origin,
        model: &str,
        max_tokens: Option<u64>,
        streams: bool,
    ) {
        self.trace = self.gateway.traces().begin(operation, origin, model, max_tokens, streams);
    }

    /// The `traceparent` that upstreams are told, where the request has a span.
    pub fn traceparent(&self) -> Option<String> {
        self.trace.traceparent()
    }

    /// An upstream of this model is asked: from here on the request costs something.
    pub fn asks(&mut self, entry: &Entry) {
        if !Arc::ptr_eq(&self.record.model, &entry.name) {
            self.record.model = entry.name.clone();
        }
        self.price = entry.model.price;
        self.sent = true;
    }

    /// What is known beforehand: characters of a text to be spoken.
    pub fn know(&mut self, usage: Usage) {
        self.trace.first();
        self.told = Some(usage);
        self.sent = true;
    }

    /// Notes what a piece of the answer says.
    pub fn note(&mut self, chunk: &Chunk) {
        self.trace.first();
        self.told = chunk.usage.or(self.told);
        self.text_bytes += chunk.text_bytes;
        self.pieces += u64::from(chunk.text_bytes > 0);
    }

    /// The first piece of a stream goes out: should this service die, the request stands in the books.
    pub fn begin(&mut self) {
        self.trace.first();
        self.write();
    }

    /// Tokens as the upstream said; else by what came, at least one for each piece.
    fn usage(&self) -> (Usage, bool) {
        match self.told {
            Some(usage) => (usage, false),
            None if self.sent => {
                let completion = estimate(self.text_bytes).max(self.pieces);
                (Usage { prompt: self.prompt, completion }, true)
            }
            None => (Usage::default(), false),
        }
    }

    fn write(&mut self) {
        (self.record.usage, self.record.estimated) = self.usage();
        self.record.cost = self.price.of(self.record.usage);
        self.gateway.meter().write(&mut self.record);
    }

    /// Tokens of the answer so far.
    pub fn completion(&self) -> u64 {
        self.usage().0.completion
    }

    /// Nothing was made of it: the upstreams failed or refused it, and it costs nothing.
    pub fn refuse(&mut self, status: u16) {
        self.sent = false;
        self.told = None;
        self.close(status);
    }

    /// The request has ended with this status.
    pub fn close(&mut self, status: u16) {
        if !std::mem::replace(&mut self.closed, true) {
            self.write();
            self.trace.end(status, &self.record);
            self.reservation.settle(self.record.usage.total(), self.record.cost);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.close(CLIENT_LEFT);
    }
}
