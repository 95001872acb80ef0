//! What every question has: the answer that belongs to it, and its place among all that may be asked.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// A question to a host, with the one type of its answer: a wrong pair does not compile.
pub trait Question: Into<Self::Noun> + Clone + Send + Sync + 'static {
    /// What a host says that did it.
    type Answer: Serialize + DeserializeOwned + Send + 'static;
    /// All that may be asked about the same noun.
    type Noun;
    /// What it is called: its noun, a dot, its verb.
    const VERB: &'static str;
}

/// The questions about a noun: a type for each, and the enum of them all.
macro_rules! questions {
    ($(#[$doc:meta])* $noun:literal { $(
        $(#[$vdoc:meta])*
        $verb:ident $word:literal { $($(#[$fdoc:meta])* $field:ident: $type:ty),* $(,)? } -> $answer:ty
    ),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
        pub enum Ask { $(
            $(#[$vdoc])*
            #[serde(rename = $word)]
            $verb($verb)
        ),* }

        impl Ask {
            /// What they are called.
            pub const VERBS: &'static [&'static str] = &[$(concat!($noun, ".", $word)),*];

            /// What it is called.
            pub const fn verb(&self) -> &'static str {
                match self { $(Self::$verb(_) => concat!($noun, ".", $word)),* }
            }

            /// An answer to it, read and written again.
            ///
            /// # Errors
            /// It is no answer to this question.
            pub fn read_again(&self, answer: serde_json::Value) -> serde_json::Result<serde_json::Value> {
                match self { $(Self::$verb(_) => serde_json::to_value(serde_json::from_value::<$answer>(answer)?)),* }
            }
        }

        $(
            $(#[$vdoc])*
            #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $verb { $($(#[$fdoc])* pub $field: $type),* }

            impl From<$verb> for Ask {
                fn from(question: $verb) -> Self {
                    Self::$verb(question)
                }
            }

            impl $crate::host::ask::question::Question for $verb {
                type Answer = $answer;
                type Noun = Ask;
                const VERB: &'static str = concat!($noun, ".", $word);
            }
        )*
    };
}
pub(super) use questions;
