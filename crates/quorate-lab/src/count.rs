//! Messages and delays by entry, read from a recording, beside the formula of the literature.
//!
//! The counts come from what was sent, never from the formula. Delays are in message times: the time of a
//! message is taken to be the mean of those that arrived.

use crate::trace::Trace;
use quorate_core::protocol::{Kind, Members, Request};
use quorate_core::quorum::grid;
use quorate_core::trace::{MessageNo, What};
use std::collections::BTreeMap;

/// What a run of mutual exclusion cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cost {
    /// How many requests entered.
    pub entries: u64,
    /// How many messages were sent, by the number of their sort.
    pub messages: BTreeMap<u8, u64>,
    /// From each request to its entry, in microseconds.
    pub client_us: Vec<u64>,
    /// From each leaving to the next entry, where somebody was waiting, in microseconds.
    pub handover_us: Vec<u64>,
    /// The mean time of a message in microseconds.
    pub message_us: u64,
    /// The order of entries.
    pub order: Vec<Request>,
}

impl Cost {
    /// Reads it from a recording of mutual exclusion.
    pub fn of(trace: &Trace) -> Self {
        let mut cost = Self::default();
        let mut asked: BTreeMap<Request, u64> = BTreeMap::new();
        let mut sent: BTreeMap<MessageNo, u64> = BTreeMap::new();
        let (mut flown, mut arrived, mut left) = (0_u64, 0, None);
        for step in trace.steps() {
            let at = step.at.0;
            match (step.what, step.about) {
                (What::Sent { message, kind, .. }, _) => {
                    *cost.messages.entry(kind).or_default() += 1;
                    sent.insert(message, at);
                }
                (What::Received { message, .. }, _) => {
                    if let Some(since) = sent.remove(&message) {
                        flown += at - since;
                        arrived += 1;
                    }
                }
                (What::Emitted { kind: 0 }, Some(request)) => {
                    asked.insert(request, at);
                }
                (What::Emitted { kind: 1 }, Some(request)) => {
                    let since = asked.remove(&request).unwrap_or(at);
                    cost.entries += 1;
                    cost.order.push(request);
                    cost.client_us.push(at - since);
                    if let Some(left) = left.filter(|left| since <= *left) {
                        cost.handover_us.push(at - left);
                    }
                    left = None;
                }
                (What::Emitted { kind: 2 | 3 }, Some(_)) => left = Some(at),
                _ => {}
            }
        }
        cost.message_us = flown.checked_div(arrived).unwrap_or(0);
        cost
    }

    /// All messages.
    pub fn total(&self) -> u64 {
        self.messages.values().sum()
    }

    /// A mean, in message times.
    fn times(&self, of: &[u64]) -> Option<f64> {
        let (sum, count) = (of.iter().sum::<u64>() as f64, of.len() as f64);
        (!of.is_empty() && self.message_us > 0).then(|| sum / count / self.message_us as f64)
    }

    /// Lines for people, beside the formula.
    pub fn lines(&self, kinds: &[&str], formula: &str) -> Vec<String> {
        let by_kind =
            self.messages.iter().map(|(kind, count)| format!("{count} {}", kinds[usize::from(*kind)]));
        let by_kind: Vec<_> = by_kind.collect();
        let order: Vec<_> = self.order.iter().map(ToString::to_string).collect();
        let mut lines = vec![
            format!("{} entries: {}", self.entries, order.join(", ")),
            format!("{} messages: {}", self.total(), by_kind.join(", ")),
        ];
        if self.entries > 0 {
            let each = self.total() as f64 / self.entries as f64;
            lines.push(format!("{each:.2} messages an entry; the formula: {formula}"));
        }
        if let Some(times) = self.times(&self.client_us) {
            lines.push(format!("{times:.2} message times from request to entry, in the mean"));
        }
        if let Some(times) = self.times(&self.handover_us) {
            lines.push(format!("{times:.2} message times from one to the next who waits, in the mean"));
        }
        lines
    }
}

/// The cost of the central protocol.
pub fn central(trace: &Trace, _n: usize) -> Vec<String> {
    let kinds = quorate_core::mutex::CentralMessage::KINDS;
    Cost::of(trace).lines(kinds, "3, none for the coordinator's own")
}

/// The cost of Ricart-Agrawala.
pub fn ricart_agrawala(trace: &Trace, n: usize) -> Vec<String> {
    let kinds = quorate_core::mutex::RicartAgrawalaMessage::KINDS;
    Cost::of(trace).lines(kinds, &format!("2(N-1) = {}", 2 * (n - 1)))
}

/// The cost of Maekawa.
pub fn maekawa(trace: &Trace, n: usize) -> Vec<String> {
    let members = Members::first(n);
    let sizes: Vec<_> = members.iter().map(|process| grid(&members, process).count()).collect();
    let size = match (sizes.iter().min(), sizes.iter().max()) {
        (Some(least), Some(most)) if least == most => format!("K = {most}: {}", 3 * (most - 1)),
        (Some(least), Some(most)) => format!("K = {least} to {most} in a grid"),
        _ => String::new(),
    };
    let formula = format!("3(K-1) if nobody else asks, {size}");
    Cost::of(trace).lines(quorate_core::mutex::MaekawaMessage::KINDS, &formula)
}

/// The cost of the token ring.
pub fn token_ring(trace: &Trace, n: usize) -> Vec<String> {
    let kinds = quorate_core::mutex::TokenRingMessage::KINDS;
    Cost::of(trace).lines(
        kinds,
        &format!("1 to N-1 = {} TOKEN, 1 if everybody wants it; as many REQUEST if it parks", n - 1),
    )
}
