//! The contract's replies as JSON, one form for `--json` and for HTTP.
//!
//! Keys are snake_case and end in their unit; tokens are decimal strings, since they may pass 2^53; times are
//! RFC 3339 in UTC with milliseconds.

use quorate::proto;
use serde_json::{Map, Value, json};

/// A wall time, in milliseconds since 1970.
pub fn time(ms: u64) -> String {
    let stamp = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    stamp.map(|stamp| format!("{stamp:.3}")).unwrap_or_default()
}

fn token(token: u64) -> Value {
    Value::String(token.to_string())
}

/// The word of an enum of the contract, such as `join` for `REASON_JOIN`.
pub fn word(name: &str) -> String {
    let short = ["REASON_", "ROLE_"].iter().find_map(|prefix| name.strip_prefix(prefix));
    short.unwrap_or(name).to_lowercase()
}

/// The cluster's id as 32 hexadecimal digits.
pub fn cluster(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// How a node is.
pub fn status(status: &proto::StatusReply) -> Value {
    json!({
        "node": status.node,
        "cluster": cluster(&status.cluster),
        "version": status.version,
        "listen": status.listen,
        "role": status.role,
        "leader": status.leader,
        "term": status.term,
        "reign": status.reign,
        "applied": status.applied,
        "last_log": status.last_log,
        "snapshot": status.snapshot,
        "last_token": token(status.last_token),
        "sessions": status.sessions,
        "groups": status.groups,
        "connections": status.connections,
        "uptime_ms": status.uptime_ms,
        "ttl_floor_ms": status.ttl_floor_ms,
        "ttl_floor_why": status.ttl_floor_why,
        "ttl_max_ms": status.ttl_max_ms,
        "feature_level": status.feature_level,
        "feature_level_highest": status.feature_level_highest,
        "disk_free_bytes": status.disk_free_bytes,
        "disk_low": status.disk_low,
        "commits": status.commits,
        "commit_p50_us": status.commit_p50_us,
        "commit_p99_us": status.commit_p99_us,
        "data_format": status.formats_data,
        "record_format": status.formats_record,
    })
}

fn seat(seat: Option<&proto::Seat>) -> Value {
    match seat {
        Some(seat) => json!({ "no": seat.no, "token": token(seat.token), "since": time(seat.since_ms) }),
        None => Value::Null,
    }
}

/// One that acts.
pub fn holder(holder: &proto::Holder) -> Value {
    json!({
        "name": holder.name,
        "session": holder.session,
        "label": holder.label,
        "entry": holder.entry,
        "seat": seat(holder.seat.as_ref()),
        "lease_remaining_ms": holder.remaining_ms,
        "draining": holder.draining,
        "stalled_since": holder.stalled_since_ms.map(time),
    })
}

fn evidence(evidence: &proto::Evidence) -> Value {
    json!({
        "what": evidence.what,
        "sentence": evidence.sentence,
        "at": evidence.at_ms.map(time),
        "session": evidence.session,
    })
}

fn advice(advice: &proto::Advice) -> Value {
    json!({ "what": advice.what, "command": advice.command })
}

fn each<T>(all: &[T], one: impl Fn(&T) -> Value) -> Vec<Value> {
    all.iter().map(one).collect()
}

fn word_or_null(word: &str) -> Option<&str> {
    (!word.is_empty()).then_some(word)
}

/// A name in a list.
pub fn group(group: &proto::GroupSummary) -> Value {
    json!({
        "name": group.name,
        "face": word(group.face().as_str_name()),
        "view": group.view,
        "seats": group.seats,
        "members": group.members,
        "waiting": group.waiting,
        "observers": group.observers,
        "holder": group.holder.as_ref().map(holder),
        "kept": group.kept,
    })
}

/// What was stated about a policy; what was not stated is left out.
pub fn policy(policy: &proto::Policy) -> Value {
    let words = [
        ("numbering", policy.numbering.map(|_| word(policy.numbering().as_str_name()))),
        ("order", policy.order.map(|_| word(policy.order().as_str_name()))),
        ("preempt", policy.preempt.map(|_| word(policy.preempt().as_str_name()))),
    ];
    let numbers = [
        ("seats", policy.seats.map(u64::from)),
        ("rejoin_sticky_ms", policy.rejoin_sticky_ms),
        ("handover_delay_ms", policy.handover_delay_ms),
    ];
    let mut stated = Map::new();
    stated.extend(numbers.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into()))));
    stated.extend(words.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?.into()))));
    if policy.handover_seal() {
        stated.insert("handover_seal".into(), true.into());
    }
    Value::Object(stated)
}

/// A session.
pub fn session(session: &proto::SessionInfo) -> Value {
    let place = |place: &proto::SessionPlace| {
        json!({
            "group": place.group,
            "entry": place.entry,
            "seat": seat(place.seat.as_ref()),
            "waits": (!place.waits.is_empty()).then_some(&place.waits),
        })
    };
    json!({
        "session": session.session,
        "label": session.label,
        "generation": session.generation,
        "ttl_ms": session.ttl_ms,
        "on_disconnect": word(session.on_disconnect().as_str_name()),
        "opened": time(session.opened_ms),
        "lease_remaining_ms": session.remaining_ms,
        "silent_ms": session.silent_ms,
        "connected": session.connected,
        "peer": (!session.peer.is_empty()).then_some(&session.peer),
        "closing": session.closing,
        "places": session.places.iter().map(place).collect::<Vec<_>>(),
    })
}

fn member(member: &proto::Member) -> Value {
    let place = member.place.unwrap_or_default();
    json!({
        "entry": member.entry,
        "session": member.session,
        "name": member.name,
        "kind": word(member.kind().as_str_name()),
        "ordinal": place.ordinal,
        "role": word(place.role().as_str_name()),
        "seat": seat(place.seat.as_ref()),
        "metadata": member.metadata,
    })
}

fn waiter(waiter: &proto::Waiter) -> Value {
    json!({
        "name": waiter.name,
        "session": waiter.session,
        "label": waiter.label,
        "entry": waiter.entry,
        "position": waiter.position,
        "since": time(waiter.since_ms),
        "cause": waiter.cause,
        "sentence": waiter.sentence,
        "until": waiter.until_ms.map(time),
        "until_what": word_or_null(&waiter.until_what),
        "waits_for": each(&waiter.waits_for, holder),
        "evidence": each(&waiter.evidence, evidence),
        "advice": each(&waiter.advice, advice),
    })
}

fn deadlock(deadlock: &proto::Deadlock) -> Value {
    let wait = |wait: &proto::DeadlockWait| {
        json!({
            "session": wait.session,
            "through": wait.through,
            "name": wait.name,
            "label": wait.label,
            "entry": wait.entry,
            "group": wait.group,
            "held_by": wait.held_by,
            "since": time(wait.since_ms),
        })
    };
    json!({
        "tie": deadlock.tie,
        "sentence": deadlock.sentence,
        "waits": each(&deadlock.waits, wait),
        "advice": each(&deadlock.advice, advice),
    })
}

fn past(past: &proto::Past) -> Value {
    let granted = |holder: &proto::Holder| {
        json!({
            "name": holder.name,
            "session": holder.session,
            "entry": holder.entry,
            "seat": seat(holder.seat.as_ref()),
        })
    };
    json!({
        "at": time(past.at_ms),
        "index": past.index,
        "reason": word(past.reason().as_str_name()),
        "evidence": past.evidence,
        "name": past.name,
        "session": past.session,
        "released_token": past.released.map(token),
        "granted": past.granted.iter().map(granted).collect::<Vec<_>>(),
    })
}

/// A whole explanation.
pub fn explain(reply: &proto::ExplainReply, stale: Option<&str>) -> Value {
    json!({
        "sentence": reply.sentence,
        "cause": reply.cause,
        "until": reply.until_ms.map(time),
        "until_what": word_or_null(&reply.until_what),
        "waits_for": each(&reply.waits_for, holder),
        "evidence": each(&reply.evidence, evidence),
        "remedies": each(&reply.remedies, advice),
        "group": reply.group.as_ref().map(group),
        "policy": reply.policy.as_ref().map(policy),
        "created": reply.group.as_ref().map(|_| reply.created),
        "version": reply.group.as_ref().map(|_| reply.version),
        "holders": each(&reply.holders, holder),
        "waiters": each(&reply.waiters, waiter),
        "reserved": each(&reply.reserved, waiter),
        "deadlocks": each(&reply.deadlocks, deadlock),
        "members": each(&reply.members, member),
        "observers": reply.observers,
        "history": each(&reply.history, past),
        "history_max": reply.history_max,
        "session": reply.session.as_ref().map(session),
        "advice": reply.advice,
        "applied": reply.applied,
        "reign": reply.reign,
        "took_us": reply.took_us,
        "stale": stale,
        "no_quorum_since": reply.no_quorum_since_ms.map(time),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_tokens_and_words_have_one_form() {
        assert_eq!(time(1_764_509_400_007), "2025-11-30T13:30:00.007Z");
        assert_eq!(time(0), "1970-01-01T00:00:00.000Z");
        let held = seat(Some(&proto::Seat { no: 0, token: u64::MAX, since_ms: 0 }));
        assert_eq!(held["token"], "18446744073709551615");
        assert_eq!(word(proto::Reason::Join.as_str_name()), "join");
        assert_eq!(word(proto::Role::Observer.as_str_name()), "observer");
        assert_eq!(cluster(&[1, 0xab]), "01ab");
    }

    #[test]
    fn only_what_was_stated_of_a_policy_is_shown() {
        let stated = proto::Policy { seats: Some(2), handover_seal: Some(true), ..Default::default() };
        assert_eq!(policy(&stated), json!({ "seats": 2, "handover_seal": true }));
    }
}
