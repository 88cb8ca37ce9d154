//! Takes each rule out of a copy of the core, and expects the rule's own test to fail: a test that cannot
//! fail holds nothing.
//!
//! `QUORATE_MUTANTS=all` runs all of them (some minutes), each against the random histories too, and says
//! after how many histories they miss it; of each rule from R10 to R20 they must miss one at least. By default the
//! first few are run. A text that is no longer found once, or a test that is no longer there, is an error.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The test that random histories are.
const PROPERTY: &str = "property::random_histories_keep_every_promise";

/// The rules of which the random histories must miss one taken out.
const AUTHORITY: [&str; 12] =
    ["R10", "R11", "R12", "R13", "R14", "R15", "R16", "R17", "R17a", "R18", "R19", "R20"];

/// How many run by default: enough to see that the harness works, in seconds.
const BY_DEFAULT: usize = 2;

struct Mutant {
    /// What is taken out.
    rule: &'static str,
    file: &'static str,
    from: &'static str,
    to: &'static str,
    /// The test that must fail.
    test: &'static str,
}

impl Mutant {
    /// The file without the mutant, in which the text that it changes stands once.
    fn sound(&self, core: &Path) -> String {
        let sound = fs::read_to_string(core.join("src").join(self.file)).unwrap();
        let found = sound.matches(self.from).count();
        assert_eq!(found, 1, "{}: its text is {found} times in {}", self.rule, self.file);
        sound
    }

    /// Whether the random histories are about it: they know nothing of how the lease keeper counts.
    fn is_about_seats(&self) -> bool {
        let rule = self.rule.split(' ').next().unwrap_or_default();
        let numbered = rule.starts_with('R') && rule[1..].starts_with(|c: char| c.is_ascii_digit());
        self.file.starts_with("state_machine") && (!numbered || AUTHORITY.contains(&rule))
    }
}

/// Who missed it.
struct Caught {
    /// Its own test.
    own: bool,
    /// The random histories, after so many.
    random: Option<u64>,
}

const MUTANTS: &[Mutant] = &[
    Mutant {
        rule: "R10 a token is one step of a counter, also within one entry",
        file: "state_machine/task.rs",
        from: "let next = Token(core::cmp::max(self.last_token.0 + 1, self.step.index.0));\n        \
               assert!(next > *self.last_token, \"tokens strictly grow\");",
        to: "let next = Token(self.step.index.0);",
        test: "rules::r10_two_grants_in_one_entry_differ",
    },
    Mutant {
        rule: "R2 apply compares the lease's generation",
        file: "state_machine/session.rs",
        from: "if reign != current || generation != session.lease.generation {",
        to: "if reign != current {",
        test: "rules::r2_an_expiry_compares_replicated_fields_only",
    },
    Mutant {
        rule: "R1 the client stops early",
        file: "lease.rs",
        from: "ttl.saturating_sub(margin(ttl))",
        to: "ttl",
        test: "lease::r1_the_client_stops_before_the_service_gives_away",
    },
    Mutant {
        rule: "R1 wall time is a label",
        file: "state_machine/session.rs",
        from: "if reign != current || generation != session.lease.generation {",
        to: "if step.at.0 > 5_000 || reign != current || generation != session.lease.generation {",
        test: "rules::r1_wall_time_is_a_label",
    },
    Mutant {
        rule: "R3 a renewal waits for the outcome of a proposed end",
        file: "lease.rs",
        from: "kept.phase = Phase::Ending;\n            let timer",
        to: "let timer",
        test: "lease::r3_a_renewal_is_not_confirmed_once_its_end_was_proposed",
    },
    Mutant {
        rule: "R3 an attach renews the generation",
        file: "state_machine/session.rs",
        from: "self.lease.generation = Generation(self.lease.generation.0 + 1);",
        to: "",
        test: "lease::r3_an_attach_that_came_first_saves_the_session",
    },
    Mutant {
        rule: "R4 an expiry of an older reign is refused",
        file: "state_machine/session.rs",
        from: "if reign != current || generation != session.lease.generation {",
        to: "if generation != session.lease.generation {",
        test: "rules::r4_an_expiry_of_an_older_reign_is_refused",
    },
    Mutant {
        rule: "R4 each start of lease keeping is an entry of its own",
        file: "state_machine/mod.rs",
        from: "self.reign = Reign(self.reign.0 + 1);",
        to: "self.reign = Reign(core::cmp::max(self.reign.0, 1));",
        test: "rules::r4_an_expiry_of_an_older_reign_is_refused",
    },
    Mutant {
        rule: "R5 a new reign waits the whole lease of what an older one renewed",
        file: "state_machine/session.rs",
        from: "self.lease.remaining = lease::kept_for(self.ttl);",
        to: "self.lease.remaining = lease::kept_for(self.ttl).saturating_sub(self.ttl);",
        test: "lease::r5_a_new_reign_waits_out_what_the_old_one_may_have_confirmed",
    },
    Mutant {
        rule: "R5 the first renewal in a reign is logged",
        file: "lease.rs",
        from: "(Some(reign), Some(Phase::Unmarked)) => Renewal::Mark { reign },",
        to: "(Some(_), Some(Phase::Unmarked)) => Renewal::Round,",
        test: "lease::r5_the_first_renewal_in_a_reign_is_logged_before_it_is_confirmed",
    },
    Mutant {
        rule: "R5 remainders are counted, so that leases end under endless elections",
        file: "state_machine/session.rs",
        from: "session.lease.remaining = session.lease.remaining.min(*left);",
        to: "let _ = left;",
        test: "lease::r5_leases_end_although_no_reign_lasts_as_long_as_one",
    },
    Mutant {
        rule: "R5 a checkpoint does not shorten what this reign renewed",
        file: "state_machine/session.rs",
        from: "&& session.lease.marked != reign\n",
        to: "&& session.lease.marked != Reign(0)\n",
        test: "rules::r5_a_checkpoint_shortens_only_what_this_reign_has_not_renewed",
    },
    Mutant {
        rule: "R6 a confirmation counts only in its reign",
        file: "lease.rs",
        from: "if self.reign != Some(reign) {\n            return false;\n        }\n        let Some(kept)",
        to: "let Some(kept)",
        test: "lease::r6_a_confirmation_counts_from_the_arrival_and_only_in_its_reign",
    },
    Mutant {
        rule: "R7 a lease above the ceiling is an error",
        file: "state_machine/session.rs",
        from: "if ttl > self.limits.ttl_max {",
        to: "if ttl > self.limits.ttl_max && label.len() > 100 {",
        test: "rules::r7_a_lease_above_the_ceiling_is_an_error_that_says_so",
    },
    Mutant {
        rule: "R7 a lease below the floor is an error",
        file: "edge.rs",
        from: "ClientFrame::Open { ttl, .. } if ttl < self.ttl_floor => {",
        to: "ClientFrame::Open { ttl, .. } if ttl < Span::ZERO => {",
        test: "edge::r7_a_lease_below_the_floor_is_an_error_that_says_so",
    },
    Mutant {
        rule: "R11 an operator's close moves no seat",
        file: "state_machine/session.rs",
        from: "step.events.push(Event::Closing { session: id, why: why.to_string() });\n        }",
        to: "step.events.push(Event::Closing { session: id, why: why.to_string() });\n        }\n        \
             self.end_session(step, id, Reason::Closed, why);",
        test: "rules::r11_an_operators_close_moves_no_seat_before_the_holder_stopped",
    },
    Mutant {
        rule: "R11 a closed session is renewed no more",
        file: "state_machine/session.rs",
        from: "Some(session) if session.closing.is_none() => {",
        to: "Some(session) => {",
        test: "rules::r11_a_closed_session_is_renewed_no_more_and_its_lease_ends_it",
    },
    Mutant {
        rule: "R11 a group with a holder is not deleted",
        file: "state_machine/mod.rs",
        from: "if !group.is_empty() {",
        to: "if false {",
        test: "rules::r11_a_group_is_deleted_only_when_it_is_empty",
    },
    Mutant {
        rule: "R12 a seat is kept by who has it",
        file: "state_machine/seats.rs",
        from: "self.seats[seat.no.0 as usize] = None;\n            self.rest",
        to: "self.seats.remove(seat.no.0 as usize);\n            self.seats.push(None);\n            self.rest",
        test: "rules::r12_a_grant_names_its_seat_and_keeps_it",
    },
    Mutant {
        rule: "R14 a standby has no token",
        file: "state_machine/entry.rs",
        from: "(None, _, None) if next => Role::Pending,",
        to: "(None, _, None) if next => Role::Pending,\n            (None, _, None) if ordinal == Some(2) => Role::Active,",
        test: "rules::r14_active_means_has_a_token",
    },
    Mutant {
        rule: "R15 waiters on a lock are not renumbered",
        file: "state_machine/notice.rs",
        from: "(looking, granted.iter().chain(asked.as_ref()).filter_map(session).collect())",
        to: "(looking, granted.iter().chain(asked.as_ref()).chain(self.queue.keys()).filter_map(session).collect())",
        test: "rules::r15_waiters_on_a_lock_are_told_of_their_own_grant_only",
    },
    Mutant {
        rule: "R16 a release frees only its own session's place",
        file: "state_machine/session.rs",
        from: "if self.session(id)?.entries.contains(&entry) {",
        to: "if self.places.contains_key(&entry) || self.session(id)?.entries.contains(&entry) {",
        test: "rules::r16_a_release_frees_what_it_names_and_nothing_else",
    },
    Mutant {
        rule: "R16 a cancel that came too late says so",
        file: "state_machine/session.rs",
        from: "return Ok(Reply::Granted { seat });",
        to: "let _ = seat;",
        test: "rules::r16_a_cancel_that_races_its_grant_says_which_came_first",
    },
    Mutant {
        rule: "R17 a different statement is refused",
        file: "state_machine/policy.rs",
        from: "(Some(stated), Some(asked)) if stated != asked => {",
        to: "(Some(stated), Some(asked)) if stated != asked && stringify!($field).is_empty() => {",
        test: "rules::r17_the_first_to_state_a_policy_field_sets_it",
    },
    Mutant {
        rule: "R17a a name has one face",
        file: "state_machine/group.rs",
        from: "if self.face != face {",
        to: "if false {",
        test: "rules::r17a_a_name_has_one_face",
    },
    Mutant {
        rule: "R18 only the newest connection's end counts",
        file: "state_machine/session.rs",
        from: "if session.generation != generation || session.on_disconnect != OnDisconnect::Release {",
        to: "if session.on_disconnect != OnDisconnect::Release {",
        test: "rules::r18_only_the_newest_connection_of_a_session_that_asked_for_it_releases",
    },
    Mutant {
        rule: "R18 only a session that asked for it releases",
        file: "edge.rs",
        from: "(Phase::Speaking { session, generation }, OnDisconnect::Release) => {",
        to: "(Phase::Speaking { session, generation }, _) => {",
        test: "edge::r18_only_a_hangup_of_a_session_that_asked_for_it_is_a_leave",
    },
    Mutant {
        rule: "R21 a call is applied once",
        file: "state_machine/session.rs",
        from: "if let Some(answer) = session.answers.get(&request).cloned() {",
        to: "if let Some(answer) = session.answers.get(&RequestId(0)).cloned() {",
        test: "rules::r21_a_call_is_applied_once_and_answered_alike",
    },
    Mutant {
        rule: "R21 below the window the answer is *unknown*",
        file: "state_machine/session.rs",
        from: "if request <= session.acknowledged {",
        to: "if request < RequestId(1) {",
        test: "rules::r21_a_call_is_applied_once_and_answered_alike",
    },
    Mutant {
        rule: "R21 a retried opening finds its session",
        file: "state_machine/session.rs",
        from: "if let Some(session) = self.by_secret.get(&secret).copied() {",
        to: "if let Some(session) = self.by_secret.get(&Secret(0)).copied() {",
        test: "rules::r21_a_retried_opening_finds_its_session",
    },
    Mutant {
        rule: "R22 an older connection speaks no more",
        file: "state_machine/session.rs",
        from: "if generation != session.generation {",
        to: "if generation > session.generation {",
        test: "rules::r22_the_newest_connection_wins_and_the_secret_proves_it",
    },
    Mutant {
        rule: "R22 the secret proves a session",
        file: "state_machine/session.rs",
        from: "if session.secret != secret {",
        to: "if session.secret == Secret(0) {",
        test: "rules::r22_the_newest_connection_wins_and_the_secret_proves_it",
    },
    Mutant {
        rule: "R23 what a slow reader misses is counted and followed by a total",
        file: "edge.rs",
        from: "self.gaps.insert(group, missed);",
        to: "let _ = missed;",
        test: "edge::r23_a_client_that_does_not_read_gets_one_gap_and_then_a_total",
    },
    Mutant {
        rule: "R25 a lapsed holder gets a new token",
        file: "state_machine/session.rs",
        from: "if lapsed {",
        to: "if lapsed && reign == Reign(0) {",
        test: "rules::r25_a_lapsed_holder_acts_again_only_under_a_new_token",
    },
    Mutant {
        rule: "R27 limits come from the log",
        file: "state_machine/mod.rs",
        from: "match group.join(&mut hand, &comer, self.limits.queue) {",
        to: "match group.join(&mut hand, &comer, Limits::default().queue) {",
        test: "rules::r27_limits_come_from_the_log",
    },
    Mutant {
        rule: "R30 a cluster is founded once",
        file: "state_machine/mod.rs",
        from: "if self.cluster.is_some() {\n            return Err(Refusal::Founding);\n        }",
        to: "",
        test: "rules::r30_a_cluster_is_founded_once_and_a_session_is_told_which",
    },
    Mutant {
        rule: "a refused request leaves no statement behind",
        file: "state_machine/group.rs",
        from: "self.policy = stated.0;",
        to: "let _ = stated.0;",
        test: "rules::a_refused_try_leaves_no_statement_behind",
    },
    Mutant {
        rule: "the grant loop gives every free seat",
        file: "state_machine/seats.rs",
        from: "self.grant(hand, next, no);\n                granted.push(next);",
        to: "self.grant(hand, next, no);\n                granted.push(next);\n                break;",
        test: "rules::seats_that_are_stated_later_are_filled_at_once",
    },
    Mutant {
        rule: "R11 a drain without the holder's word moves no seat",
        file: "state_machine/drain.rs",
        from: "let evidence = format!(\"{}: it did not say that it has stopped, so it holds on\", drain.why);",
        to: "let evidence = format!(\"{}: taken\", drain.why);\n        self.unseat(hand, id);\n        self.fill_seats(hand);",
        test: "queue::r11_a_transfer_without_the_holders_word_fails",
    },
    Mutant {
        rule: "R11 a heavier member takes nothing by itself",
        file: "state_machine/drain.rs",
        from: "self.ask(hand, from, &Ask { to, why: &why, within: Some(within), force: false });",
        to: "let _ = (within, to, why);\n        self.unseat(hand, from);\n        self.fill_seats(hand);",
        test: "queue::r11_a_heavier_member_asks_and_takes_only_what_is_given",
    },
    Mutant {
        rule: "R11 force waits the lease out",
        file: "state_machine/drain.rs",
        from: "return Due::Close(session, why);",
        to: "let _ = (session, why);\n            self.unseat(hand, id);\n            self.fill_seats(hand);\n            \
             return Due::Done;",
        test: "queue::r11_force_stops_the_renewals_and_waits_the_lease_out",
    },
    Mutant {
        rule: "R11 a deleted group waits for those that act",
        file: "state_machine/mod.rs",
        from: ".filter(|entry| entry.seat.is_none())\n            .map(|entry| entry.id)\n            .chain",
        to: ".map(|entry| entry.id)\n            .chain",
        test: "queue::r11_a_deleted_group_waits_for_those_that_act",
    },
    Mutant {
        rule: "R11 fewer seats ask",
        file: "state_machine/drain.rs",
        from: "\"more seats were stated\");\n        self.ask_standing(hand);",
        to: "\"more seats were stated\");\n        \
             let gone: Vec<EntryId> = self.seats.iter().skip(seats as usize).flatten().copied().collect();\n        \
             for id in gone {\n            self.unseat(hand, id);\n        }",
        test: "queue::fewer_seats_ask_and_more_are_filled_at_once",
    },
    Mutant {
        rule: "R11 a standing reason outlasts a drain",
        file: "state_machine/drain.rs",
        from: "&evidence, id), &before, &[]);\n        self.ask_standing(hand);",
        to: "&evidence, id), &before, &[]);",
        test: "corners::r11_fewer_seats_outlast_a_drain_that_came_to_nothing",
    },
    Mutant {
        rule: "R19 a seat that has rested may close a cycle",
        file: "state_machine/drain.rs",
        from: "hand.step.tightened |= self.resting.remove(&no).is_some();",
        to: "self.resting.remove(&no);",
        test: "corners::r19_a_seat_that_has_rested_and_goes_to_nobody_ends_a_wait_that_asked_for_it",
    },
    Mutant {
        rule: "R7 a drain is a third of the lease at most",
        file: "state_machine/drain.rs",
        from: "if drain > max {",
        to: "if drain > max && max > Span::from_secs(100) {",
        test: "queue::a_transfer_that_cannot_be_says_why",
    },
    Mutant {
        rule: "R13 a phase has one token",
        file: "state_machine/seats.rs",
        from: "Mode::Shared => self.join_phase(hand, id),",
        to: "Mode::Shared => {\n                self.join_phase(hand, id);\n                hand.token()\n            }",
        test: "queue::r13_shared_holders_of_one_phase_carry_its_token",
    },
    Mutant {
        rule: "R13 shared and exclusive are never together",
        file: "state_machine/seats.rs",
        from: "if let Some(phase) = &self.phase {\n            let holders",
        to: "if let Some(phase) = self.phase.as_ref().filter(|_| self.queue.is_empty()) {\n            let holders",
        test: "property::random_histories_keep_every_promise",
    },
    Mutant {
        rule: "R13 no reader passes a writer that waits",
        file: "state_machine/seats.rs",
        from: "self.first_in_line(entry)?;",
        to: "if entry.mode == Mode::Exclusive {\n            self.first_in_line(entry)?;\n        }",
        test: "queue::r13_shared_holders_of_one_phase_carry_its_token",
    },
    Mutant {
        rule: "R14 one that is away gets no seat",
        file: "state_machine/group.rs",
        from: "self.waiting.remove(&entry.key(by_weight));\n        entry.away = Some",
        to: "entry.away = Some",
        test: "queue::sticky_gives_no_seat_to_one_that_is_away",
    },
    Mutant {
        rule: "R14 preempt never freezes the seated",
        file: "state_machine/drain.rs",
        from: "if self.policy.preempt != Some(Preempt::OnWeight) || !self.by_weight() {",
        to: "if !self.by_weight() {",
        test: "queue::the_heavier_is_ahead_and_among_equals_the_earlier",
    },
    Mutant {
        rule: "R2 a task comes once",
        file: "state_machine/task.rs",
        from: "self.due.remove(&id)",
        to: "self.due.get(&id).cloned()",
        test: "queue::a_seat_rests_between_two_holders_and_the_next_is_told_to_prepare",
    },
    Mutant {
        rule: "a seat rests between two holders",
        file: "state_machine/seats.rs",
        from: "free.iter().find(|no| !self.resting.contains_key(no))",
        to: "free.first()",
        test: "queue::a_seat_rests_between_two_holders_and_the_next_is_told_to_prepare",
    },
    Mutant {
        rule: "R19 only blocking acquires count",
        file: "state_machine/deadlock.rs",
        from: "if !matches!(group.face, Face::Lock | Face::Semaphore) || group.waiting.is_empty() {",
        to: "if group.waiting.is_empty() {",
        test: "queue::r19_standing_by_in_a_group_is_no_wait",
    },
    Mutant {
        rule: "R19 alternatives make it a knot",
        file: "state_machine/deadlock.rs",
        from: "holders.iter().any(|h| !stuck.contains(h)))\n            };",
        to: "holders.iter().all(|h| !stuck.contains(h)))\n            };",
        test: "queue::r19_with_several_seats_it_is_a_knot",
    },
    Mutant {
        rule: "R19 breaking is only for those that asked",
        file: "state_machine/deadlock.rs",
        from: "entry.is_some_and(|entry| entry.terms.break_deadlock)",
        to: "entry.is_some()",
        test: "queue::r19_a_wait_that_asked_is_given_up_when_a_later_one_closes_the_cycle",
    },
    Mutant {
        rule: "R19 the wait of a session is that of the one it acts for",
        file: "state_machine/deadlock.rs",
        from: "level = inner.copied().filter(|inner| all.insert(*inner)).collect();",
        to: "level = inner.copied().filter(|_| false).collect();",
        test: "nested::r19_two_nested_locks_in_opposite_order_are_a_deadlock",
    },
    Mutant {
        rule: "R20 stalled work is shown and keeps its seat",
        file: "state_machine/drain.rs",
        from: "entry.stalled = Some(at);",
        to: "let _ = at;",
        test: "queue::r20_a_hold_too_long_and_work_without_a_sign_are_shown",
    },
    Mutant {
        rule: "numbers are kept for life where the policy says so",
        file: "state_machine/group.rs",
        from: "Some(Numbering::Stable) => {",
        to: "Some(Numbering::Stable) if self.queue.is_empty() => {",
        test: "queue::stable_numbers_are_kept_for_life_and_a_joiner_fills_the_lowest_hole",
    },
    Mutant {
        rule: "a pause that has begun outlives its policy",
        file: "state_machine/seats.rs",
        from: "Some(rest) => Err(Blocker::Resting",
        to: "Some(_) if self.policy.handover.is_none() => Ok(()),\n            \
             Some(rest) => Err(Blocker::Resting",
        test: "corners::a_pause_that_has_begun_outlives_the_policy_that_stated_it",
    },
    Mutant {
        rule: "a pause follows those that shared",
        file: "state_machine/seats.rs",
        from: "self.phase = None;\n                self.rest(hand, SeatNo(0));",
        to: "self.phase = None;",
        test: "corners::a_pause_follows_those_that_shared_and_a_reader_waits_for_it_too",
    },
    Mutant {
        rule: "a try never waits",
        file: "state_machine/seats.rs",
        from: "(Face::Barrier, ..) => self.parties(self.waiting.len() as u64 + 1),",
        to: "(Face::Barrier, ..) => Ok(SeatNo(0)),",
        test: "corners::a_try_at_a_barrier_never_waits",
    },
    Mutant {
        rule: "numbers that are stated late begin with those that are there",
        file: "state_machine/group.rs",
        from: "if unnumbered {",
        to: "if unnumbered && self.queue.is_empty() {",
        test: "corners::numbers_that_are_stated_late_begin_with_those_that_are_there",
    },
    Mutant {
        rule: "R14 a transfer counts more than the weights",
        file: "state_machine/entry.rs",
        from: "(self.turn, if by_weight { u32::MAX - self.weight } else { 0 }, senior)",
        to: "((if by_weight { u32::MAX - self.weight } else { 0 }).into(), self.turn as u32, senior)",
        test: "corners::a_transfer_goes_to_whom_it_names_whatever_the_weights",
    },
    Mutant {
        rule: "R27 a feature level is never lowered",
        file: "state_machine/mod.rs",
        from: "if !is_retry && (from != level || to <= level) {",
        to: "if !is_retry && (from != level || to == level) {",
        test: "rules::r27_an_older_cluster_is_raised_once_and_then_does_what_it_refused",
    },
    Mutant {
        rule: "a transfer that the weights would undo is refused",
        file: "state_machine/drain.rs",
        from: "(heavier.len() >= self.policy.seats() as usize).then(|| {",
        to: "(heavier.len() > self.queue.len()).then(|| {",
        test: "corners::a_transfer_that_the_weights_would_undo_is_refused_with_the_policy",
    },
    Mutant {
        rule: "the next seat is the one's that it was promised to",
        file: "state_machine/explain.rs",
        from: "turns[acting..=place].rotate_right(1);",
        to: "turns[acting..=place].rotate_right(0);",
        test: "turns::whom_a_seat_was_promised_is_listed_first",
    },
    Mutant {
        rule: "a transfer is forgotten when its target acts",
        file: "state_machine/seats.rs",
        from: "self.forget_target(hand, next, \"acts on another seat\");",
        to: "",
        test: "corners::a_transfer_is_forgotten_when_its_target_acts",
    },
    Mutant {
        rule: "every heavier member asks in its turn",
        file: "state_machine/drain.rs",
        from: "About::of(Reason::Transferred, &evidence, id), &before, &granted);\n        self.preempt(hand);",
        to: "About::of(Reason::Transferred, &evidence, id), &before, &granted);",
        test: "corners::every_heavier_member_asks_in_its_turn",
    },
    Mutant {
        rule: "a holder that stops gives way",
        file: "state_machine/drain.rs",
        from: "first.into_iter().for_each(|first| self.put_first(first));",
        to: "let _ = (first, self.queue.get_mut(&id).map(|entry| entry.senior = id));",
        test: "corners::a_holder_that_stops_gives_way",
    },
    Mutant {
        rule: "R11 who stops in a group that is deleted acts no more",
        file: "state_machine/session.rs",
        from: "if self.group_of(entry)?.ending {",
        to: "if self.group_of(entry)?.ending && self.reign == Reign(0) {",
        test: "corners::who_stops_in_a_group_that_is_deleted_is_out_and_the_group_is_gone",
    },
    Mutant {
        rule: "R19 a cycle that a release closes is broken",
        file: "state_machine/mod.rs",
        from: "if self.may_close_a_cycle(&step) {",
        to: "if false {",
        test: "corners::r19_a_cycle_that_a_release_closes_is_broken_too",
    },
    Mutant {
        rule: "R19 a wait that another holder may end is no part of a deadlock",
        file: "state_machine/deadlock.rs",
        from: "filter(|(_, _, holders)| holders.is_subset(stuck))",
        to: "filter(|(_, _, holders)| !holders.is_disjoint(stuck))",
        test: "queue::r19_a_wait_that_another_holder_may_end_is_no_part_of_a_deadlock",
    },
    Mutant {
        rule: "R20 a stalled holder keeps its seat",
        file: "state_machine/drain.rs",
        from: "let span = entry.terms.progress.unwrap_or_default();\n        let evidence",
        to: "let span = entry.terms.progress.unwrap_or_default();\n        self.unseat(hand, id);\n        let evidence",
        test: "queue::r20_a_hold_too_long_and_work_without_a_sign_are_shown",
    },
];

/// A copy of the core, with a build folder of its own that outlives each mutant.
struct Copy {
    root: PathBuf,
}

impl Copy {
    fn new() -> Self {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let root = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("mutants");
        let _ = fs::remove_dir_all(root.join("crates"));
        fs::create_dir_all(root.join("crates")).unwrap();
        fs::copy(workspace.join("Cargo.lock"), root.join("Cargo.lock")).unwrap();
        let manifest = fs::read_to_string(workspace.join("Cargo.toml")).unwrap();
        // Everything from the profiles on is about speed, which a mutant does not need.
        let manifest = manifest.split("[profile.").next().unwrap();
        let manifest: String = manifest
            .lines()
            .filter(|line| !line.starts_with("default-members") && !line.contains("path = \"crates/"))
            .map(|line| format!("{line}\n"))
            .collect();
        fs::write(root.join("Cargo.toml"), manifest).unwrap();
        copy_folder(&workspace.join("crates/quorate-core"), &root.join("crates/quorate-core"));
        Self { root }
    }

    /// Runs one test; true if it passes, and what it said.
    fn run(&self, test: &str) -> (bool, String) {
        let output = Command::new(env!("CARGO"))
            .args(["test", "--offline", "--quiet", "-p", "quorate-core", "--test", "it", "--"])
            .args(["--exact", test])
            .current_dir(&self.root)
            .env("CARGO_TARGET_DIR", self.root.join("target"))
            .env("QUORATE_ROUNDS", "1500")
            .env("PROPTEST_MAX_SHRINK_ITERS", "0")
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        let ran = text.contains("1 passed") || text.contains("1 failed");
        assert!(ran, "the test {test} did not run:\n{text}");
        (output.status.success(), text.into_owned())
    }

    /// After how many random histories they miss a promise; none if they do not.
    fn histories(&self) -> Option<u64> {
        let (passed, text) = self.run(PROPERTY);
        let count = text.split("history ").skip(1).find_map(|rest| rest.split_once(" broke a promise"));
        let count = count.and_then(|(count, _)| count.parse().ok());
        if passed { None } else { Some(count.unwrap_or(0)) }
    }

    fn with(&self, mutant: &Mutant, all: bool) -> Caught {
        let path = self.root.join("crates/quorate-core/src").join(mutant.file);
        let sound = mutant.sound(&self.root.join("crates/quorate-core"));
        fs::write(&path, sound.replace(mutant.from, mutant.to)).unwrap();
        let own = !self.run(mutant.test).0;
        let random = if all && mutant.is_about_seats() { self.histories() } else { None };
        fs::write(&path, sound).unwrap();
        Caught { own, random }
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else if !path.ends_with("mutants.rs") {
            fs::copy(&path, &target).unwrap();
        }
    }
}

#[test]
fn a_rule_taken_out_is_missed_by_its_test() {
    let copy = Copy::new();
    let main = copy.root.join("crates/quorate-core/tests/it/main.rs");
    let listed = fs::read_to_string(&main).unwrap().replace("mod mutants;\n", "");
    fs::write(&main, listed).unwrap();
    let all = std::env::var("QUORATE_MUTANTS").is_ok_and(|wish| wish == "all");
    let chosen = if all { MUTANTS.len() } else { BY_DEFAULT };
    let mut survivors = Vec::new();
    let mut missed = BTreeSet::new();
    for mutant in &MUTANTS[..chosen] {
        let caught = copy.with(mutant, all);
        let random = caught.random.map_or("-".into(), |count| count.to_string());
        println!("{} {random:>5}  {}", if caught.own { "caught  " } else { "SURVIVED" }, mutant.rule);
        if !caught.own {
            survivors.push(mutant.rule);
        }
        if caught.random.is_some() {
            missed.extend(mutant.rule.split(' ').next());
        }
    }
    for mutant in &MUTANTS[..chosen] {
        assert!(copy.run(mutant.test).0, "{} fails on the sound core", mutant.test);
    }
    println!("{} of {} mutants caught", chosen - survivors.len(), MUTANTS.len());
    assert!(survivors.is_empty(), "not missed by any test: {survivors:?}");
    let unseen: Vec<&&str> = AUTHORITY.iter().filter(|rule| !missed.contains(**rule)).collect();
    assert!(!all || unseen.is_empty(), "random histories miss nothing of {unseen:?}");
}

#[test]
fn every_mutant_is_of_the_source_and_the_tests_as_they_are() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    for mutant in MUTANTS {
        mutant.sound(core);
        let (page, test) = mutant.test.rsplit_once("::").unwrap();
        let tests = fs::read_to_string(core.join("tests/it").join(format!("{}.rs", page.replace("::", "/"))));
        let named = format!("fn {test}(");
        assert!(tests.unwrap().contains(&named), "{}: there is no test {}", mutant.rule, mutant.test);
    }
}
