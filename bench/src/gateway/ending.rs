//! How the clients of a simulated day end their requests: decided by the number of a stream, so that all days are
//! alike.

use std::time::Duration;

use super::upstream::Shape;

/// Number of ways; all refusals together are one.
const WAYS: u32 = 6;
/// How long a client waits that leaves before the first byte: not at all, once this, or twice.
const PATIENCE: Duration = Duration::from_millis(20);
/// One of so many slow readers gets a flood.
const FLOODED: u32 = 25;

/// How a client ends its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// It reads a stream to its end.
    Whole,
    /// It leaves before the first byte, after so long.
    Early(Duration),
    /// It leaves in the middle.
    Middle,
    /// It reads slowly, and leaves with the rest unread.
    Slow {
        /// Whether the answer exceeds all buffers on the way, so that the gateway has to wait for this client.
        flooded: bool,
    },
    /// Its key is unknown.
    UnknownKey,
    /// Its model is unknown.
    UnknownModel,
    /// It reads an answer in one piece.
    Plain,
}

impl Ending {
    /// The ending of a stream.
    pub fn of(stream: u32) -> Self {
        let turn = stream / WAYS;
        match stream % WAYS {
            0 => Self::Whole,
            1 => Self::Early(PATIENCE * (turn % 3)),
            2 => Self::Middle,
            3 => Self::Slow { flooded: turn.is_multiple_of(FLOODED) },
            4 if turn.is_multiple_of(2) => Self::UnknownKey,
            4 => Self::UnknownModel,
            _ => Self::Plain,
        }
    }

    /// The requested shape.
    pub const fn shape(self) -> Shape {
        match self {
            Self::Whole => Shape::Short,
            Self::Early(_) => Shape::Quiet,
            Self::Middle | Self::Slow { flooded: false } => Shape::Stuck,
            Self::Slow { flooded: true } => Shape::Flood,
            Self::UnknownKey | Self::UnknownModel | Self::Plain => Shape::Plain,
        }
    }

    /// Whether the gateway refuses it before it asks an upstream.
    pub const fn is_refused(self) -> bool {
        matches!(self, Self::UnknownKey | Self::UnknownModel)
    }

    /// Whether the client may leave before the gateway has read its request.
    pub const fn is_early(self) -> bool {
        matches!(self, Self::Early(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_hour_has_as_many_of_each() {
        for hour in 0..24 {
            let number = |is: fn(&Ending) -> bool| (hour * 3600..(hour + 1) * 3600).map(Ending::of).filter(is).count();
            assert_eq!(number(|ending| *ending == Ending::Whole), 600);
            assert_eq!(number(|ending| ending.is_early()), 600);
            assert_eq!(number(|ending| *ending == Ending::Early(PATIENCE * 2)), 200);
            assert_eq!(number(|ending| *ending == Ending::Middle), 600);
            assert_eq!(number(|ending| matches!(ending, Ending::Slow { .. })), 600);
            assert_eq!(number(|ending| *ending == Ending::Slow { flooded: true }), 24);
            assert_eq!(number(|ending| *ending == Ending::UnknownKey), 300);
            assert_eq!(number(|ending| ending.is_refused()), 600);
            assert_eq!(number(|ending| *ending == Ending::Plain), 600);
        }
    }
}
