//! Rate limits as callers see them: `RateLimit-Policy` and `RateLimit` on every answer that was counted, and
//! `Retry-After` on the one that came too early (draft-ietf-httpapi-ratelimit-headers).

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

/// Where the request's path leaves what the answer and the log have to tell.
#[derive(Clone, Debug, Default)]
pub struct Slot(Arc<Noted>);

#[derive(Debug, Default)]
struct Noted {
    window: Mutex<Option<Window>>,
    asker: OnceLock<Who>,
}

impl Slot {
    /// Notes a limit; of two the one with less left is told.
    pub fn put(&self, window: Window) {
        let mut slot = self.0.window.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none_or(|known| window.left < known.left) {
            *slot = Some(window);
        }
    }

    /// Notes whose credential the request bears.
    pub fn asked_by(&self, who: Who) {
        // Every extractor of a request finds the same.
        let _ = self.0.asker.set(who);
    }

    /// Whose credential it was, where it holds: kind and id.
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
        // Every answer has them: put together from their pieces, they cost less than half of what format! takes.
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
