//! A test seam: the process ends, as by `kill -9`, at one instant that a test could not hit from outside.
//!
//! `QUORATE_TEST_CRASH=after-fsync:N` in the environment of `quorate serve` ends the process right after its
//! Nth transaction since the start became durable, before anybody hears of it: everything in it was done and
//! nothing of it was answered. Without the variable nothing happens here. It is no setting, since it only
//! harms.

use rustix::process::{Signal, getpid, kill_process};

/// The variable that arms it.
const VARIABLE: &str = "QUORATE_TEST_CRASH";

/// How many transactions are left until the end of the process; none if it is not armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CrashPoint(Option<u64>);

impl CrashPoint {
    /// What the environment says.
    pub(super) fn from_environment() -> Self {
        let Some(text) = std::env::var_os(VARIABLE) else { return Self(None) };
        let text = text.to_string_lossy();
        let point = Self::parse(&text);
        match point {
            Self(Some(left)) => tracing::warn!("{VARIABLE}: this process ends after {left} transactions"),
            Self(None) => tracing::warn!("{VARIABLE} = {text:?} is not after-fsync:N and does nothing"),
        }
        point
    }

    fn parse(text: &str) -> Self {
        let count = text.strip_prefix("after-fsync:").and_then(|count| count.parse().ok());
        Self(count.filter(|count| *count > 0))
    }

    /// A transaction is durable, and nobody has been told.
    pub(super) fn durable(&mut self) {
        let Some(left) = &mut self.0 else { return };
        *left -= 1;
        if *left == 0 {
            eprintln!("{VARIABLE}: durable and not answered; ending the process");
            let ended = kill_process(getpid(), Signal::KILL);
            unreachable!("a process can kill itself: {ended:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_word_and_a_count_arm_it() {
        assert_eq!(CrashPoint::parse("after-fsync:7"), CrashPoint(Some(7)));
        for text in ["", "after-fsync", "after-fsync:", "after-fsync:0", "after-fsync:x", "before-fsync:7"] {
            assert_eq!(CrashPoint::parse(text), CrashPoint(None), "{text}");
        }
        let mut off = CrashPoint(None);
        (0..10).for_each(|_| off.durable());
        assert_eq!(off, CrashPoint(None));
    }
}
