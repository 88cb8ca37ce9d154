//! Lines that a test leaves out, one at a time, to see that the search finds what each of them is for.
//!
//! A protocol is sound unless it was built by its `with_flaw`. Each time a run comes to the place where the
//! sound rule and the flawed one part, the flaw is counted, so that a search that finds nothing can be told
//! from one that never came there.

/// The flaws of one family of protocols: `Name = "name"` each, with its words.
macro_rules! flaws {
    ($($(#[$doc:meta])* $flaw:ident = $name:literal,)*) => {
        use core::sync::atomic::{AtomicU64, Ordering};

        /// What is left out.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Flaw {
            $($(#[$doc])* $flaw,)*
        }

        static REACHED: [AtomicU64; Flaw::ALL.len()] = [const { AtomicU64::new(0) }; Flaw::ALL.len()];

        impl Flaw {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$flaw,)*];

            /// Its name, as a script says it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$flaw => $name,)*
                }
            }

            /// How often any run of this program came to the place.
            pub fn reached(self) -> u64 {
                REACHED[self as usize].load(Ordering::Relaxed)
            }

            /// Whether it is the one that is planted. Asked only where it makes a difference, and counted.
            pub(super) fn is(self, planted: Option<Self>) -> bool {
                let here = planted == Some(self);
                if here {
                    REACHED[self as usize].fetch_add(1, Ordering::Relaxed);
                }
                here
            }
        }

        impl core::fmt::Display for Flaw {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use flaws;
