//! The bill of a request: it counts what the request took, however the request ends. A bill dropped in the middle is
//! that of a client that left. The request's span ends with its bill.

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
    /// Tokens and cost of attempts that gave no answer; they are booked already.
    attempts: (u64, Nano),
    told: Option<Usage>,
    text_bytes: usize,
    pieces: u64,
    /// Whether an upstream was asked. From then on the request costs something.
    asked: bool,
    /// True while an upstream that sends its answer whole has the whole request and works on it.
    works: Arc<AtomicBool>,
    /// Whether the answer comes in pieces.
    streams: bool,
    closed: bool,
}

impl Bill {
    /// Opens the bill of a request. `most` is what the request may take; the bill books it where the upstream counts no
    /// tokens.
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

    /// Starts the span of the request, which ends with the bill.
    pub fn trace(&mut self, trace: Trace) {
        self.trace = trace;
    }

    /// The `traceparent` for upstreams, where the request has a span.
    pub fn traceparent(&self) -> Option<String> {
        self.trace.traceparent()
    }

    /// Notes that an upstream of this model is asked. The caller sets the returned flag once the upstream has the whole
    /// request. From then on, unless it `streams`, the upstream works on an answer that the gateway sees only when it
    /// is whole; should the client leave meanwhile, the bill pays for it as for a late answer.
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

    /// The upstream gave no answer. `late`: it had the whole request and was still working when the gateway stopped
    /// waiting, so it has to be paid.
    pub fn failed(&mut self, late: bool) {
        self.works = Arc::default();
        if late {
            self.charge_attempt();
        }
    }

    /// Books an attempt by the estimate as part of this request, whichever upstream answers in the end. Of a stream
    /// without a first token it books only the prompt: a server sends its first token once it has read the prompt.
    fn charge_attempt(&mut self) {
        let usage = if self.streams { Usage { completion: 0, ..self.most } } else { self.most };
        let cost = self.price.of(usage);
        let mut attempt = Record { usage, cost, estimated: true, ..self.record.clone() };
        attempt.written = Counts { requests: 1, ..Counts::default() };
        self.meter.write(&mut attempt);
        self.attempts = (self.attempts.0.saturating_add(usage.total()), self.attempts.1 + cost);
    }

    /// Sets the usage that is known beforehand: the characters of a text to be spoken.
    pub fn know(&mut self, usage: Usage) {
        self.trace.first();
        self.told = Some(usage);
    }

    /// Adds what a piece of the answer says.
    pub fn note(&mut self, chunk: &Chunk) {
        self.trace.first();
        self.works = Arc::default();
        self.told = chunk.usage.or(self.told);
        self.text_bytes += chunk.text_bytes;
        self.pieces += u64::from(chunk.text_bytes > 0);
    }

    /// Writes the request to the books before the first piece of a stream goes out, in case this service dies.
    pub fn begin(&mut self) {
        self.trace.first();
        self.write();
    }

    /// The tokens that the upstream reported; else an estimate by what came, at least one for each piece. While an
    /// upstream still works on a whole answer: the most that it may take.
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

    /// Closes the bill at no cost: the upstreams failed or refused the request.
    pub fn refuse(&mut self, status: u16) {
        self.asked = false;
        self.works = Arc::default();
        self.told = None;
        self.close(status);
    }

    /// Closes the bill of a request that ended with this status.
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
