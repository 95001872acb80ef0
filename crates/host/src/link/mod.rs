//! What carries bytes between a service and a host that is elsewhere: HTTP/2 over mutual TLS.
//!
//! ```text
//!   Remote ── Line ── TLS 1.3, HTTP/2 ── Door ── serve ── engines
//! ```
//!
//! The service asks, the host answers: a host opens no connection. Each question is a stream of its own (`CONNECT`), so
//! that none waits for another. Both have certificates of the platform's own [`Authority`], and of nobody else: a host
//! lets in whoever has the role of a service, and a service takes for a host only who has a certificate for its id and
//! for the last time that it joined. What a certificate may be used for tells the roles apart: a host's is refused by
//! other hosts, since it is for servers alone. Each request says in which term of its service it is made ([`Terms`]).
//! [`replica`] has what replicas of one service say to each other by the same certificates.

mod authority;
mod certificate;
mod dial;
mod door;
mod line;
mod papers;
pub mod replica;
mod term;
mod tls;

pub use authority::{Authority, HostName};
pub use door::{About, Door};
pub use line::{Line, Patience};
pub use papers::{Papers, Pem, request};
pub use term::Terms;

/// In which term a service asks; in a refusal, which term was the latest.
const TERM: &str = "berth-term";
/// Which version a host speaks ([`crate::wire::VERSION`]); in each of its answers.
const SPOKEN: &str = "berth-spoken";
/// The version that hosts speak which do not say it: they came before those that do.
const UNSAID: u32 = 10;
/// Where a host says how it is.
const PRESENCE: &str = "/presence";
/// Where a host says which certificate it would have, and takes it.
const CERTIFICATE: &str = "/certificate";
/// Bytes of a stream that its reader need not have read yet.
const STREAM_WINDOW: u32 = 1 << 20;
/// The same of a connection: so many that no stream is held up by others that nobody reads.
const CONNECTION_WINDOW: u32 = 1 << 30;
/// Most bytes of what is said beside questions.
const MOST: usize = 64 << 10;

/// Why papers cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// A certificate cannot be made, or a request for one is none.
    #[error("the certificate cannot be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// What is there does not fit together.
    #[error("the certificates do not fit together: {0}")]
    Tls(String),
    /// What should be a certificate or a key is none.
    #[error("{0}")]
    Unreadable(&'static str),
    /// The file of the papers.
    #[error("the papers of this host cannot be written: {0}")]
    File(#[from] std::io::Error),
}

impl From<rustls::Error> for LinkError {
    fn from(error: rustls::Error) -> Self {
        Self::Tls(error.to_string())
    }
}

/// The version that a host speaks which answers with these headers.
fn spoken(headers: &http::HeaderMap) -> u32 {
    let said = headers.get(SPOKEN).and_then(|said| said.to_str().ok()?.parse().ok());
    said.unwrap_or(UNSAID)
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderName, HeaderValue};

    use super::*;

    #[test]
    fn a_host_that_does_not_say_what_it_speaks_is_of_the_time_before() {
        let of = |said: Option<&'static str>| {
            let mut headers = HeaderMap::new();
            headers.extend(said.map(|said| (HeaderName::from_static(SPOKEN), HeaderValue::from_static(said))));
            spoken(&headers)
        };
        assert_eq!((of(Some("11")), of(Some("12")), of(None), of(Some("of late"))), (11, 12, UNSAID, UNSAID));
    }
}
