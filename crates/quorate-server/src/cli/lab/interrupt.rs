//! A signal to a long computation: it ends soon, and says what it has found so far.

use super::super::block_on;
use super::super::exit::{Code, Failure};
use super::super::lock::signals::Asked;
use rustix::process::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// The signals that ask a command of the lab to end.
pub(super) const ENDING: [Signal; 3] = [Signal::HUP, Signal::INT, Signal::TERM];

/// Whether such a signal has come.
#[derive(Clone, Debug, Default)]
pub(super) struct Interrupt(Arc<AtomicI32>);

impl Interrupt {
    /// Listens, in a thread of its own, to the end of this process. Who asks twice is not made to wait: the second
    /// signal ends it at once.
    pub(super) fn listen() -> Self {
        let interrupt = Self::default();
        let came = interrupt.0.clone();
        std::thread::spawn(move || {
            block_on(async {
                let mut asked = Asked::listen(&ENDING)?;
                came.store(asked.next().await, Ordering::Relaxed);
                let again = asked.next().await;
                std::process::exit(i32::from(code(again).number()));
                #[expect(unreachable_code, reason = "it says what the block would give")]
                Ok(())
            })
        });
        interrupt
    }

    /// The signal, if one has come.
    pub(super) fn signal(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
    }
}

/// How a command ends that a signal has ended.
pub(super) fn ended(signal: i32, found: &str) -> Failure {
    Failure::new(code(signal), format!("ended by signal {signal}: {found}"))
}

fn code(signal: i32) -> Code {
    Code::Signal(u8::try_from(signal).unwrap_or_default())
}
