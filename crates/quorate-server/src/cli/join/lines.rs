//! An advisory as a line for people: `14:02:11.532  active        ordinal 1 (was 2)  token 184467  view 7  P2 left: ...`

use crate::cli::output::plain;
use owo_colors::OwoColorize;
use quorate::advisory::{Advisory, CUT_OFF, Event, Form, Reason, Step};
use quorate_core::state_machine::{Member, Role};
use quorate_core::time::Span;
use std::time::Duration;

/// How many members of a list are named; the rest are counted.
const NAMED_MAX: usize = 8;

/// The line. It is cut to the width, if there is one.
pub(super) fn line(advisory: &Advisory, coloured: bool, width: Option<usize>) -> String {
    let event = format!("{:<12}", advisory.event.as_str());
    let facts = format!("{:<18}  {:<14}  view {}", place(advisory), token(advisory), advisory.view);
    let rest = format!("  {facts}  {}", plain(&words(advisory)));
    let time = time(advisory.time_ms);
    let taken = time.chars().count() + 2 + event.chars().count();
    let rest = match width {
        Some(width) => cut(&rest, width.saturating_sub(taken)),
        None => rest,
    };
    match coloured {
        true => format!("{}  {}{rest}", time.dimmed(), painted(advisory.event, &event)),
        false => format!("{time}  {event}{rest}"),
    }
}

fn painted(event: Event, text: &str) -> String {
    match event {
        Event::Active | Event::Renewed => text.green().to_string(),
        Event::Disconnected | Event::Closed => text.red().to_string(),
        Event::Unavailable | Event::Gap | Event::Standby => text.yellow().to_string(),
        _ => text.to_owned(),
    }
}

/// The time of day in UTC.
fn time(ms: i64) -> String {
    let ms = ms.rem_euclid(86_400_000);
    let (h, min, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
    format!("{h:02}:{min:02}:{s:02}.{:03}", ms % 1_000)
}

fn place(advisory: &Advisory) -> String {
    let place = match (advisory.ordinal, advisory.previous) {
        (None, _) if advisory.event == Event::Left => "-".into(),
        (None, _) => "observer".into(),
        (Some(now), Some(before)) if now != before => format!("ordinal {now} (was {before})"),
        (Some(now), _) => format!("ordinal {now}"),
    };
    match advisory.role {
        Some(role @ (Role::Pending | Role::Draining | Role::Reserved)) => format!("{place}, {role}"),
        _ => place,
    }
}

/// The right to act, or whose it is.
fn token(advisory: &Advisory) -> String {
    match (advisory.token, advisory.holder_token) {
        (Some(token), _) => format!("token {token}"),
        (None, _) if advisory.ordinal == Some(CUT_OFF) => "may not act".into(),
        (None, Some(holder)) => format!("holder {holder}"),
        (None, None) => "no holder".into(),
    }
}

fn words(advisory: &Advisory) -> String {
    let said = happened(advisory);
    match hint(advisory) {
        None => said,
        Some(hint) => format!("{hint}: {said}"),
    }
}

/// What this member is to do.
fn hint(advisory: &Advisory) -> Option<&'static str> {
    match advisory.role? {
        Role::Pending => Some("it is next, prepare to act"),
        Role::Draining => Some("stop, then say so (SIGUSR1) or leave"),
        _ => None,
    }
}

fn happened(advisory: &Advisory) -> String {
    let evidence = &advisory.evidence;
    match (advisory.form, advisory.event) {
        (Form::Total, Event::Joined) => members(&advisory.members),
        (Form::Total, _) => format!("{evidence}; {}", members(&advisory.members)),
        (_, Event::Unavailable) => format!("{}{evidence}", remaining(advisory)),
        (Form::Change, _) => match subjects(advisory) {
            subjects if subjects.is_empty() => evidence.clone(),
            subjects => format!("{subjects}: {evidence}"),
        },
        _ => evidence.clone(),
    }
}

/// How long the member may still act, or keeps its place.
fn remaining(advisory: &Advisory) -> String {
    let left = advisory.remaining.filter(|left| *left > Duration::ZERO);
    match (left, advisory.token) {
        (None, _) => String::new(),
        (Some(left), Some(_)) => format!("it acts for {} more; ", span(left)),
        (Some(left), None) => format!("ordinal -1 in {}; ", span(left)),
    }
}

fn span(time: Duration) -> Span {
    Span::from_millis(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}

fn members(members: &[Member]) -> String {
    let one = |member: &Member| {
        let role = match member.place.role {
            Role::Standby => String::new(),
            role => format!(" {role}"),
        };
        match member.place.ordinal {
            Some(ordinal) => format!("{ordinal} {}{role}", member.name),
            None => format!("{} ({})", member.name, member.place.role),
        }
    };
    let named: Vec<String> = members.iter().take(NAMED_MAX).map(one).collect();
    match members.len().saturating_sub(NAMED_MAX) {
        0 if named.is_empty() => "members are not told".into(),
        0 => format!("members: {}", named.join(", ")),
        more => format!("members: {} and {more} more", named.join(", ")),
    }
}

/// Who came, who went, and who is described or has a new token; the others only moved.
fn subjects(advisory: &Advisory) -> String {
    let did = |step: &Step| match (&step.before, &step.after) {
        (_, None) if step.cut_off => Some("was cut off"),
        (_, None) => Some("left"),
        (None, Some(_)) => Some("joined"),
        (Some(before), Some(after)) if before.role != after.role && after.role == Role::Reserved => {
            Some("was cut off, and its place is kept")
        }
        (Some(before), Some(after)) if before.role != after.role && after.role == Role::Draining => {
            Some("is asked to stop")
        }
        (Some(before), Some(after)) if before.role != after.role && after.role == Role::Pending => {
            Some("is next")
        }
        (Some(_), Some(_)) if step.metadata.is_some() => Some("changed its metadata"),
        (Some(before), Some(after)) if advisory.reason == Reason::Renewed && before.seat != after.seat => {
            Some("has a new token")
        }
        _ => None,
    };
    let steps = advisory.changed.iter();
    let said: Vec<String> = steps.filter_map(|step| Some(format!("{} {}", step.name, did(step)?))).collect();
    match said.len().saturating_sub(NAMED_MAX) {
        0 => said.join(", "),
        more => format!("{} and {more} more", said[..NAMED_MAX].join(", ")),
    }
}

/// The text in so many columns.
fn cut(text: &str, columns: usize) -> String {
    match text.char_indices().nth(columns) {
        None => text.to_owned(),
        Some(_) => text.chars().take(columns.saturating_sub(1)).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_is_that_of_utc() {
        assert_eq!(time(1_764_509_400_532), "13:30:00.532");
        assert_eq!(time(-1), "23:59:59.999");
    }

    #[test]
    fn a_line_is_cut_at_the_width_and_says_so() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdef", 5), "abcd…");
        assert_eq!(cut("äöüßé", 3), "äö…");
    }
}
