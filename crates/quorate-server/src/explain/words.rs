//! Times and numbers as people say them.

use quorate_core::time::{Span, Wall};

/// A length of time with two figures that matter: `0.4 s`, `8.2 s`, `3 min 5 s`, `2 h 10 min`, `3 d 4 h`.
pub fn span(span: Span) -> String {
    let ms = span.as_millis();
    let (s, min, h, d) = (ms / 1_000, ms / 60_000, ms / 3_600_000, ms / 86_400_000);
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{s}.{} s", ms % 1_000 / 100),
        60_000..3_600_000 => two(min, "min", s % 60, "s"),
        3_600_000..86_400_000 => two(h, "h", min % 60, "min"),
        _ => two(d, "d", h % 24, "h"),
    }
}

fn two(large: u64, unit: &str, small: u64, below: &str) -> String {
    if small == 0 { format!("{large} {unit}") } else { format!("{large} {unit} {small} {below}") }
}

/// How long before `now` it was.
pub fn ago(then: Wall, now: Wall) -> String {
    match now.0.saturating_sub(then.0) {
        0..1_000 => "just now".into(),
        ms => format!("{} ago", span(Span::from_millis(ms))),
    }
}

/// The time of day in UTC, with the date if it is not today's.
pub fn clock(then: Wall, now: Wall) -> String {
    let (time, today) = (crate::json::time(then.0), crate::json::time(now.0));
    let (Some((date, rest)), Some((now_date, _))) = (time.split_once('T'), today.split_once('T')) else {
        return time;
    };
    let second = rest.split('.').next().unwrap_or(rest);
    if date == now_date { format!("{second} UTC") } else { format!("{date} {second} UTC") }
}

/// Both: `14:02:11 UTC (3 min ago)`.
pub fn at(then: Wall, now: Wall) -> String {
    format!("{} ({})", clock(then, now), ago(then, now))
}

/// `1 seat`, `2 seats`, `no seats`.
pub fn count(number: u64, thing: &str) -> String {
    match number {
        0 => format!("no {thing}s"),
        1 => format!("1 {thing}"),
        n => format!("{n} {thing}s"),
    }
}

/// A name as a shell takes it, in quotes where it needs them.
pub fn shell(name: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_./:@%+,=".contains(c);
    match name.chars().all(plain) && !name.starts_with('-') {
        true => name.to_owned(),
        false => format!("'{}'", name.replace('\'', "'\\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_can_be_pasted_into_a_shell() {
        assert_eq!(shell("orders/eu-1"), "orders/eu-1");
        assert_eq!(shell("two words"), "'two words'");
        assert_eq!(shell("it's; rm"), "'it'\\''s; rm'");
    }

    #[test]
    fn spans_have_two_figures() {
        let text = |ms| span(Span::from_millis(ms));
        assert_eq!(text(400), "400 ms");
        assert_eq!(text(8_260), "8.2 s");
        assert_eq!(text(185_000), "3 min 5 s");
        assert_eq!(text(120_000), "2 min");
        assert_eq!(text(7_800_000), "2 h 10 min");
        assert_eq!(text(4 * 86_400_000), "4 d");
    }

    #[test]
    fn a_time_of_another_day_has_its_date() {
        let now = Wall(1_764_509_400_000);
        assert_eq!(at(Wall(now.0 - 185_000), now), "13:26:55 UTC (3 min 5 s ago)");
        assert_eq!(at(now, now), "13:30:00 UTC (just now)");
        assert_eq!(clock(Wall(now.0 - 86_400_000), now), "2025-11-29 13:30:00 UTC");
    }
}
