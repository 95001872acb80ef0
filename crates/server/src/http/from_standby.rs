//! The active replica's door for standbys: requests come as their clients sent them, and beside them how they came
//! ([`Passed`]). Whoever is let in by mutual TLS has the platform's own authority, so what it says is believed, whatever
//! network it is in.

use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use berth_domain::{Code, Error};

use super::edge::{Edge, Rooms, Secure};
use super::envelope::{ApiError, enveloped};
use super::passed::{Passed, Way};

/// Answers what standbys pass on.
#[derive(Clone)]
pub struct FromStandby {
    main: Edge,
    admin: Edge,
}

impl FromStandby {
    /// By the routes of this edge. Behind a standby's door are the rooms that this service has behind the same one:
    /// `administration` says whether that has a door of its own. Metrics are each replica's own.
    pub fn new(edge: &Edge, administration: bool) -> Self {
        let showing = |administration| edge.showing(Rooms::Without { metrics: true, administration });
        Self { main: showing(administration), admin: showing(false) }
    }

    /// Answers a request.
    pub async fn answer(&self, mut request: Request) -> Response {
        let Some(Passed { way, is_secure, client }) = Passed::take(request.headers_mut()) else {
            return enveloped(request, |_| async { not_passed_on().into_response() }).await;
        };
        if is_secure {
            request.extensions_mut().insert(Secure);
        }
        let edge = match way {
            Way::Main => &self.main,
            Way::Admin => &self.admin,
        };
        edge.answer_to(client, request).await
    }
}

fn not_passed_on() -> ApiError {
    let message = "This address is for replicas of this service, which say how a request came to them. Send yours to \
                   the service's own address.";
    ApiError(Error::new(Code::InvalidRequest, message))
}
