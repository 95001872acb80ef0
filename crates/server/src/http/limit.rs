//! Rate limits as callers see them: `RateLimit-Policy` and `RateLimit` on every counted answer, and `Retry-After` on a
//! refusal (draft-ietf-httpapi-ratelimit-headers).

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::who::Who;

/// What is left of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// What is counted: `credential`, `project` or `organization`.
    pub name: &'static str,
    /// Requests a minute.
    pub limit: u32,
    /// Requests left at this moment.
    pub left: u32,
    /// Seconds until the limit is whole again.
    pub reset: u64,
}

/// Where the layers behind the edge leave notes for the answer's headers and the log.
#[derive(Clone, Debug, Default)]
pub struct Slot(Arc<Noted>);

#[derive(Debug, Default)]
struct Noted {
    window: Mutex<Option<Window>>,
    asker: OnceLock<Who>,
}

impl Slot {
    /// Notes a limit; of two limits the headers show the one with less left.
    pub fn put(&self, window: Window) {
        let mut slot = self.0.window.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none_or(|known| window.left < known.left) {
            *slot = Some(window);
        }
    }

    /// Notes the caller of the request's credential.
    pub fn asked_by(&self, who: Who) {
        // Every extractor of a request notes the same caller.
        let _ = self.0.asker.set(who);
    }

    /// Kind and id of the caller, if the credential is valid.
    pub fn asker(&self) -> Option<String> {
        self.0.asker.get().map(|who| match who {
            Who::Person { user, .. } => format!("user {user}"),
            Who::Key { id, .. } => format!("key {id}"),
        })
    }

    /// Writes the headers, if a limit was counted.
    pub fn tell(&self, headers: &mut HeaderMap) {
        let noted = *self.0.window.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(window) = noted {
            window.tell(headers);
        }
    }
}

impl Window {
    fn tell(self, headers: &mut HeaderMap) {
        let Self { name, limit, left, reset } = self;
        let mut numbers = [itoa::Buffer::new(); 3];
        let [a, b, c] = &mut numbers;
        let (limit, left, reset) = (a.format(limit), b.format(left), c.format(reset));
        // Every answer has them: joining the pieces costs less than half of what format! does.
        let texts = [
            ("ratelimit-policy", ["\"", name, "\";q=", limit, ";w=60"].concat()),
            ("ratelimit", ["\"", name, "\";r=", left, ";t=", reset].concat()),
        ];
        for (header, text) in texts {
            if let Ok(value) = HeaderValue::try_from(text) {
                headers.insert(HeaderName::from_static(header), value);
            }
        }
    }
}
