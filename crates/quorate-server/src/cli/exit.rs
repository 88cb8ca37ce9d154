//! How a command ends: an exit code from one table, and a last line on standard error that says why.
//!
//! `quorate lock` and `quorate lead` end with the code of the command that they ran, which may be any number.
//! So the last line on standard error is `quorate: REASON` exactly when the code is Quorate's own.

use super::output::plain;
use std::fmt;
use std::io::Write;
use std::process::ExitCode;

/// The table that `--help` shows.
pub const TABLE: &str = "\
Exit codes:
  0      done
  1      failed; the last line on standard error says why
  2      the command line, a setting or a file of settings is wrong
  3      refused by a guard: a newer holder has been there
  69     no service can be reached
  73     the lock or seat was not granted
  75     the lock or seat was lost while the command ran
  128+n  ended by signal n
  other  the code of the command that `quorate` ran

When the code is Quorate's own, the last line on standard error is `quorate: REASON`.";

/// The codes of the table that are Quorate's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// It failed, and no other code fits.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// A guard refused.
    Refused,
    /// No service can be reached.
    Unreachable,
    /// What was asked for was not granted.
    NotGranted,
    /// The authority was lost on the way.
    AuthorityLost,
    /// A signal ended it.
    Signal(u8),
}

impl Code {
    /// The number that the process ends with.
    pub fn number(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Refused => 3,
            Self::Unreachable => 69,
            Self::NotGranted => 73,
            Self::AuthorityLost => 75,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}

/// Why a command did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The exit code.
    pub code: Code,
    /// One sentence: what happened, what is still held, what to do. Empty where there is nobody to read it.
    pub reason: String,
}

/// The end of a command: an exit code to pass on (0, or that of a command which was run), or a failure.
pub type Outcome = Result<ExitCode, Failure>;

impl Failure {
    /// A failure with a code and a sentence.
    pub fn new(code: Code, reason: impl Into<String>) -> Self {
        Self { code, reason: reason.into() }
    }

    /// A failure for which no special code is kept.
    pub fn failed(reason: impl Into<String>) -> Self {
        Self::new(Code::Failed, reason)
    }

    /// The command line or the configuration is wrong.
    pub fn usage(reason: impl Into<String>) -> Self {
        Self::new(Code::Usage, reason)
    }

    /// The reader of standard output has gone, as `head` does: there is nobody left to tell.
    pub fn unread() -> Self {
        Self::new(Code::Signal(13), "")
    }

    /// Prints the last line and gives the exit code.
    pub fn report(&self) -> ExitCode {
        if !self.reason.is_empty() {
            // That nobody reads it changes nothing about the code.
            let _ = writeln!(std::io::stderr(), "quorate: {}", plain(&self.reason));
        }
        ExitCode::from(self.code.number())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl From<anyhow::Error> for Failure {
    /// The chain of causes in one line.
    fn from(error: anyhow::Error) -> Self {
        Self::failed(format!("{error:#}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_shows_the_numbers_that_are_used() {
        let own = [Code::Failed, Code::Usage, Code::Refused, Code::Unreachable, Code::NotGranted];
        for code in own.into_iter().chain([Code::AuthorityLost]) {
            let shown = format!("\n  {:<7}", code.number());
            assert!(TABLE.contains(&shown), "{code:?} is missing");
        }
        assert_eq!(Code::Signal(15).number(), 143);
    }
}
