//! The bill of a request: what it took, noted whatever becomes of it. Dropped in the middle, it is that of a client
//! that left. The request's span ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use berth_domain::gateway::chunk::Chunk;
use berth_domain::gateway::money::estimate;
use berth_domain::gateway::{Nano, Price, Usage};

use super::allowance::Reservation;
use super::meter::Meter;
use super::record::Record;
use super::totals::Counts;
use super::trace::Trace;

/// The status of a client that left, as nginx calls it.
pub const CLIENT_LEFT: u16 = 499;

/// What one request takes, from its reservation to its record.
pub struct Bill {
    meter: Meter,
    record: Record,
    price: Price,
    reservation: Reservation,
    trace: Trace,
    most: Usage,
    /// What attempts took that gave no answer, and what they cost: booked already.
    attempts: (u64, Nano),
    told: Option<Usage>,
    text_bytes: usize,
    pieces: u64,
    /// Whether an upstream was asked: from there on the request costs something.
    asked: bool,
    /// Whether an upstream that gives its answer whole has the whole request and works, as long as it is waited for.
    works: Arc<AtomicBool>,
    /// Whether the answer comes in pieces.
    streams: bool,
    closed: bool,
}

impl Bill {
    /// Opens the bill of a request. `most` is what it may take, where nobody counts.
    pub fn open(meter: &Meter, record: Record, price: Price, reservation: Reservation, most: Usage) -> Self {
        Self {
            meter: meter.clone(),
            record,
            price,
            reservation,
            trace: Trace::default(),
            most,
            attempts: (0, Nano(0)),
            told: None,
            text_bytes: 0,
            pieces: 0,
            asked: false,
            works: Arc::default(),
            streams: false,
            closed: false,
        }
    }

    /// Begins to tell of the request by its span, which ends with the bill.
    pub fn trace(&mut self, trace: Trace) {
        self.trace = trace;
    }

    /// The `traceparent` that upstreams are told, where the request has a span.
    pub fn traceparent(&self) -> Option<String> {
        self.trace.traceparent()
    }

    /// An upstream of this model is asked. What is returned is to become true once the upstream has the whole request.
    /// Unless it `streams`, it then works on an answer of which nothing is seen before its end, and is paid for it as
    /// one that was not waited for, should the client leave.
    pub fn asks(&mut self, model: &Arc<str>, price: Price, streams: bool) -> Arc<AtomicBool> {
        if !Arc::ptr_eq(&self.record.model, model) {
            self.record.model = model.clone();
        }
        self.price = price;
        (self.asked, self.streams) = (true, streams);
        let sent = Arc::<AtomicBool>::default();
        self.works = if streams { Arc::default() } else { sent.clone() };
        sent
    }

    /// The upstream that was asked gave no answer. `late` is that it had the whole request and was not waited for: it
    /// worked, and whoever runs it wants to be paid.
    pub fn failed(&mut self, late: bool) {
        self.works = Arc::default();
        if late {
            self.charge_attempt();
        }
    }

    /// Books an attempt by the estimate, as a part of this request, whoever answers it in the end. Of a stream of which
    /// nothing came it is the prompt: whoever streams tells its first token once it has read that.
    fn charge_attempt(&mut self) {
        let usage = if self.streams { Usage { completion: 0, ..self.most } } else { self.most };
        let cost = self.price.of(usage);
        let mut attempt = Record { usage, cost, estimated: true, ..self.record.clone() };
        attempt.written = Counts { requests: 1, ..Counts::default() };
        self.meter.write(&mut attempt);
        self.attempts = (self.attempts.0.saturating_add(usage.total()), self.attempts.1 + cost);
    }

    /// What is known beforehand: characters of a text to be spoken.
    pub fn know(&mut self, usage: Usage) {
        self.trace.first();
        self.told = Some(usage);
    }

    /// Notes what a piece of the answer says.
    pub fn note(&mut self, chunk: &Chunk) {
        self.trace.first();
        self.works = Arc::default();
        self.told = chunk.usage.or(self.told);
        self.text_bytes += chunk.text_bytes;
        self.pieces += u64::from(chunk.text_bytes > 0);
    }

    /// The first piece of a stream goes out: should this service die, the request stands in the books.
    pub fn begin(&mut self) {
        self.trace.first();
        self.write();
    }

    /// Tokens as the upstream said; else by what came, at least one for each piece. Of an answer on which an upstream
    /// works unseen, what it may take.
    fn usage(&self) -> (Usage, bool) {
        match self.told {
            Some(usage) => (usage, false),
            None if self.works.load(Ordering::Relaxed) => (self.most, true),
            None if self.asked => {
                let completion = estimate(self.text_bytes).max(self.pieces);
                (Usage { prompt: self.most.prompt, completion }, true)
            }
            None => (Usage::default(), false),
        }
    }

    fn write(&mut self) {
        (self.record.usage, self.record.estimated) = self.usage();
        self.record.cost = self.price.of(self.record.usage);
        self.meter.write(&mut self.record);
    }

    /// Tokens of the answer so far.
    pub fn completion(&self) -> u64 {
        self.usage().0.completion
    }

    /// Nothing was made of it: the upstreams failed or refused it, and it costs nothing.
    pub fn refuse(&mut self, status: u16) {
        self.asked = false;
        self.works = Arc::default();
        self.told = None;
        self.close(status);
    }

    /// The request has ended with this status.
    pub fn close(&mut self, status: u16) {
        if !std::mem::replace(&mut self.closed, true) {
            self.write();
            self.trace.end(status, &self.record);
            let (tokens, cost) = self.attempts;
            let tokens = self.record.usage.total().saturating_add(tokens);
            self.reservation.settle(tokens, self.record.cost + cost);
        }
    }
}

impl Drop for Bill {
    fn drop(&mut self) {
        self.close(CLIENT_LEFT);
    }
}
