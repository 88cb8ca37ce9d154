//! One place of a session in one queue: what the service last said of it, and what its reader was told.
//!
//! **Problem.** Changes, totals and answers reach a client in an order that is not the log's; connections lose
//! some of them. **Rule.** What is older than what is known is ignored, by its version; a missing version is never
//! passed over: a total is asked for and the reader is told of the gap (RULES R23). **Safety.** Once the own
//! deadline has passed nothing that was queued for the reader survives: it hears that it is cut off, and next
//! a total (R25).

use crate::advisory::{self, Advisory, CUT_OFF, Event, Form, Reason, Step};
use crate::clock;
use crate::error::Error;
use futures::task::AtomicWaker;
use quorate_core::id::{EntryId, Token, Version, ViewId};
use quorate_core::state_machine::{
    Change, Changed, Face, Join, Member, MemberKind, Op, Place as Standing, Reason as Logged, Refusal, Role,
    Seat, Terms, Total,
};
use quorate_core::time::{Mono, Span};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// How many advisories wait for a reader. Beyond it they become one gap and a total.
pub(crate) const NEWS_MAX: usize = 1_024;

/// How many changes of its group a join keeps that arrived before its answer. Answers go before changes, so it
/// is a handful; beyond it a total is asked for.
const EARLY_MAX: usize = 256;

/// After how many keepalives in a row that do not name a waiting place it is asked after, and after how many it is
/// taken as gone: two more, so that the answer had half a lease.
const UNHEARD_ASK: u8 = 2;
const UNHEARD_GONE: u8 = 4;

/// Who waits for a place: tasks that await it, and the one reader of a group.
#[derive(Debug, Default)]
pub(crate) struct Wake {
    pub(crate) tasks: Notify,
    pub(crate) reader: AtomicWaker,
}

impl Wake {
    pub(crate) fn all(&self) {
        self.tasks.notify_waiters();
        self.reader.wake();
    }
}

/// How far a place has come.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The join was not answered yet, in this session.
    Asked,
    /// It is in the queue or holds a seat.
    In,
    /// Its leave is on its way.
    Leaving,
    /// It was left.
    Left,
    /// It is lost, and why.
    Ended(Error),
}

/// Whether its user has said that it has stopped. Until the service's answer and what follows from it are known, the
/// seat is not used, whatever is heard: it may be from before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// It has not, or has been seated anew since.
    No,
    /// It has, and that was not answered yet.
    Said,
    /// It was answered, and the place is not known yet.
    Heard,
}

/// One place.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) join: Join,
    terms: Terms,
    pub(crate) entry: Option<EntryId>,
    pub(crate) stage: Stage,
    /// Nobody wants it any more: it is given up as soon as it is known.
    pub(crate) unwanted: bool,
    /// Its user has a handle of it; before that a wait for it may be given up.
    pub(crate) handed: bool,
    /// It was described anew while it was asked for.
    pub(crate) described: bool,
    /// Its user knows that it has ended and has come to rest (RULES R11).
    pub(crate) stopped: bool,
    pub(crate) wake: Arc<Wake>,
    standing: Option<Standing>,
    standing_version: Version,
    /// Its holder was asked to stop, and why.
    asked: Option<String>,
    stop: Stop,
    /// A sign of progress is on its way, and the next may go from then on.
    signing: bool,
    sign_at: Mono,
    version: Version,
    view: ViewId,
    holder_token: Option<Token>,
    members: BTreeMap<EntryId, Member>,
    early: Vec<Arc<Change>>,
    early_lost: bool,
    missed: Option<u64>,
    /// How many keepalives in a row did not name it, although it waits.
    unheard: u8,
    /// The next total is for a reader that was told of an absence, or was never told anything.
    awaited: Option<Awaited>,
    news: VecDeque<News>,
    told: Told,
}

/// Why the reader awaits a total.
#[derive(Clone, Debug)]
struct Awaited {
    event: Event,
    reason: Reason,
    evidence: String,
}

/// Something the reader was not told yet.
#[derive(Debug)]
enum News {
    Total(Arc<Total>, Awaited),
    Change(Arc<Change>),
    Unavailable(String),
    Disconnected(Reason, String),
    Left,
    Closed(Reason, String),
}

/// What the reader was told last.
#[derive(Debug, Default)]
struct Told {
    ordinal: Option<i64>,
    role: Option<Role>,
    token: Option<Token>,
    view: ViewId,
    holder_token: Option<Token>,
    last: bool,
}

/// What a place needs after something was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    /// A total, since something is missing.
    Total,
}

impl Place {
    pub(crate) fn new(join: Join, terms: Terms) -> Self {
        let awaited = Awaited {
            event: Event::Joined,
            reason: Reason::Join,
            evidence: "it joined by its own call".into(),
        };
        Self {
            join,
            terms,
            entry: None,
            stage: Stage::Asked,
            unwanted: false,
            handed: false,
            described: false,
            stopped: false,
            wake: Arc::default(),
            standing: None,
            standing_version: Version(0),
            asked: None,
            stop: Stop::No,
            signing: false,
            sign_at: Mono(0),
            version: Version(0),
            view: ViewId(0),
            holder_token: None,
            members: BTreeMap::new(),
            early: Vec::new(),
            early_lost: false,
            missed: None,
            unheard: 0,
            awaited: Some(awaited),
            news: VecDeque::new(),
            told: Told::default(),
        }
    }

    /// The call that asks for it.
    pub(crate) fn op(&self) -> Op {
        let Terms { max_hold, progress, break_deadlock, .. } = self.terms;
        match max_hold.is_some() || progress.is_some() || break_deadlock {
            true => Op::JoinOn(self.join.clone(), Terms { blocking: self.join.wait, ..self.terms.clone() }),
            false => Op::Join(self.join.clone()),
        }
    }

    /// What happens is told to a reader: a group's member, or one that looks on.
    pub(crate) fn has_reader(&self) -> bool {
        self.join.face == Face::Group || self.join.kind == MemberKind::Observer
    }

    fn sees_all(&self) -> bool {
        self.has_reader() && self.join.kind != MemberKind::OrdinalOnly
    }

    /// Its user has stopped and uses the seat no more; false if it has none.
    pub(crate) fn stop(&mut self) -> bool {
        let seated = self.seat().is_some();
        if seated {
            self.stop = Stop::Said;
            self.asked = None;
            self.wake.all();
        }
        seated
    }

    /// The service has heard that it has stopped. Whether a seat that was heard of meanwhile may be from before or
    /// after that, so that the place is to be asked for.
    pub(crate) fn stop_heard(&mut self, before: Option<Seat>) -> Need {
        if self.stop == Stop::No {
            return Need::Nothing;
        }
        self.stop = Stop::Heard;
        let now = self.standing.and_then(|standing| standing.seat);
        if now == before { Need::Nothing } else { Need::Total }
    }

    /// Whether a sign that its work goes on is to be sent now: at most four within the time that was stated.
    pub(crate) fn signs(&mut self, now: Mono) -> bool {
        let Some(every) = self.terms.progress else { return false };
        let due = !self.signing && now >= self.sign_at && self.seat().is_some();
        if due {
            self.signing = true;
            self.sign_at = now + Span::from_millis(every.as_millis() / 4);
        }
        due
    }

    /// The sign has arrived.
    pub(crate) fn signed(&mut self) {
        self.signing = false;
    }

    /// The seat that the service last said it has. Whether it may be used is the session's to say.
    pub(crate) fn seat(&self) -> Option<Seat> {
        match self.stage {
            Stage::In | Stage::Leaving if self.stop == Stop::No => {
                self.standing.as_ref().and_then(|standing| standing.seat)
            }
            _ => None,
        }
    }

    /// Where the service last said it stands, while it is in.
    pub(crate) fn standing(&self) -> Option<&Standing> {
        matches!(self.stage, Stage::In).then_some(self.standing.as_ref()).flatten()
    }

    /// Why its holder was asked to stop, if it was.
    pub(crate) fn asked_to_stop(&self) -> Option<&str> {
        self.asked.as_deref()
    }

    /// The token of the holder of the lowest held seat, as last heard.
    pub(crate) fn holder_token(&self) -> Option<Token> {
        self.holder_token
    }

    /// The view, as last heard.
    pub(crate) fn view(&self) -> ViewId {
        self.view
    }

    /// Everybody in the group as last heard, in queue order.
    pub(crate) fn members(&self) -> Vec<Member> {
        let mut members: Vec<Member> = self.members.values().cloned().collect();
        members.sort_by_key(|member| (member.place.ordinal, member.entry));
        members
    }

    /// The join was answered: it is in, at `total`.
    pub(crate) fn joined(&mut self, total: Total) -> Need {
        self.entry = Some(total.entry);
        self.stage = Stage::In;
        let mut need = self.total(total);
        for change in std::mem::take(&mut self.early) {
            need = self.change(&change).max(need);
        }
        if std::mem::take(&mut self.early_lost) {
            need = Need::Total;
        }
        self.wake.all();
        need
    }

    /// The connection was away and is back; the next total says so.
    pub(crate) fn await_reconnected(&mut self, reason: Reason, evidence: &str) {
        let evidence = evidence.to_string();
        self.awaited.get_or_insert(Awaited { event: Event::Reconnected, reason, evidence });
    }

    /// Takes in the place as it is now.
    pub(crate) fn total(&mut self, total: Total) -> Need {
        if total.version < self.version {
            // It was read before what is already known: there must be a newer one.
            let needed = self.missed.is_some() || self.awaited.is_some();
            return if needed { Need::Total } else { Need::Nothing };
        }
        let newer = total.version > self.version;
        self.unheard = 0;
        if total.version >= self.standing_version {
            self.standing = Some(total.place);
            self.standing_version = total.version;
            if self.stop == Stop::Heard || total.place.seat.is_none() {
                self.stop = Stop::No;
            }
            let asked = total.place.role == Role::Draining && self.stop == Stop::No;
            self.asked = asked.then(|| self.asked.take().unwrap_or_else(|| "it was asked to stop".into()));
        }
        self.version = total.version;
        self.view = total.view;
        self.holder_token = total.holder_token;
        self.members = total.members.iter().map(|m| (m.entry, m.clone())).collect();
        let awaited = match (self.awaited.take(), self.missed.take()) {
            (Some(awaited), _) => Some(awaited),
            (None, Some(missed)) => Some(gap(missed)),
            (None, None) => newer.then(|| gap(0)),
        };
        if let (true, Some(awaited)) = (self.has_reader(), awaited) {
            self.news.push_back(News::Total(Arc::new(total), awaited));
        }
        self.wake.all();
        Need::Nothing
    }

    /// Takes in which places the service names as waiting (RULES R24). One that waits and is not named is asked
    /// after: the first time its grant may be on its way. If nothing comes for it, it is not there any more.
    pub(crate) fn named(&mut self, waiting: &BTreeSet<EntryId>) -> Need {
        let waits = self.standing().is_some_and(|standing| standing.role == Role::Standby);
        if !waits || self.entry.is_some_and(|entry| waiting.contains(&entry)) {
            self.unheard = 0;
            return Need::Nothing;
        }
        self.unheard += 1;
        if self.unheard >= UNHEARD_GONE {
            self.removed(Reason::Refused, "the service knows it no longer");
            return Need::Nothing;
        }
        if self.unheard == UNHEARD_ASK { Need::Total } else { Need::Nothing }
    }

    /// The service took it out of its queue.
    fn removed(&mut self, reason: Reason, evidence: &str) {
        let name = self.join.group.clone();
        let error = match reason {
            Reason::Deadlock => {
                let message = Refusal::Deadlock { cycle: evidence.into() }.to_string();
                Error::Deadlock { name, message }
            }
            _ => Error::Removed { name, reason, evidence: evidence.into() },
        };
        self.end(error, reason);
    }

    /// It was in a group that is being deleted, and has stopped.
    pub(crate) fn deleted(&mut self) {
        self.removed(Reason::Deleted, "the group is being deleted");
    }

    /// The service dropped changes of this group, and a total follows by itself.
    pub(crate) fn gap(&mut self, missed: u64) {
        *self.missed.get_or_insert(0) += missed;
    }

    /// Takes in a change of its group.
    pub(crate) fn change(&mut self, change: &Arc<Change>) -> Need {
        let Some(entry) = self.entry else {
            match self.early.len() {
                EARLY_MAX => self.early_lost = true,
                _ => self.early.push(Arc::clone(change)),
            }
            return Need::Nothing;
        };
        let own = change.changed.iter().find(|changed| changed.entry == entry);
        self.take_standing(change, own);
        if matches!(self.stage, Stage::Ended(_)) {
            return Need::Nothing;
        }
        if !self.has_reader() || self.missed.is_some() || change.version <= self.version {
            return Need::Nothing;
        }
        if self.sees_all() {
            let expected = self.version.0 + 1;
            if change.version.0 > expected {
                self.missed = Some(change.version.0 - self.version.0);
                return Need::Total;
            }
            self.take_members(change);
        } else if own.is_none() {
            return Need::Nothing;
        }
        self.version = change.version;
        self.view = change.view;
        self.push(News::Change(Arc::clone(change)))
    }

    fn take_standing(&mut self, change: &Change, own: Option<&Changed>) {
        // A place that is gone never comes back. Its own leave is told by the answer to it.
        if own.is_some_and(|own| own.after.is_none()) && matches!(self.stage, Stage::In) {
            return self.removed(change.reason.into(), &change.evidence);
        }
        if change.version <= self.standing_version {
            return;
        }
        self.holder_token = change.holder_token;
        let Some((own, after)) = own.and_then(|own| Some((own, own.after?))) else { return };
        if self.stop != Stop::No && self.is_after_stop(change, own, after) {
            self.stop = Stop::No;
        }
        self.standing = Some(after);
        self.standing_version = change.version;
        let asked = after.role == Role::Draining && self.stop == Stop::No;
        self.asked = asked.then(|| change.evidence.clone());
        self.wake.all();
    }

    /// Whether a change happened after its user had stopped: it has no seat, or one that it did not have.
    fn is_after_stop(&self, change: &Change, own: &Changed, after: Standing) -> bool {
        let seat = self.standing.and_then(|standing| standing.seat);
        let granted = own.before.is_some_and(|before| before.seat.is_none());
        let granted = granted && change.reason != Logged::Renewed;
        after.seat.is_none() || granted || (change.reason == Logged::Transferred && after.seat != seat)
    }

    fn take_members(&mut self, change: &Change) {
        for changed in &change.changed {
            let Some(place) = changed.after else {
                self.members.remove(&changed.entry);
                continue;
            };
            let member = self.members.entry(changed.entry).or_insert_with(|| Member {
                entry: changed.entry,
                session: changed.session,
                name: changed.name.clone(),
                kind: changed.kind,
                place,
                metadata: BTreeMap::new(),
            });
            member.place = place;
            if let Some(metadata) = &changed.metadata {
                member.metadata.clone_from(metadata);
            }
        }
    }

    fn push(&mut self, news: News) -> Need {
        if self.news.len() >= NEWS_MAX {
            let unread = self.news.len() as u64 + 1;
            self.news.clear();
            self.missed = Some(unread);
            return Need::Total;
        }
        self.news.push_back(news);
        self.wake.all();
        Need::Nothing
    }

    /// The service is silent, but the lease goes on.
    pub(crate) fn unavailable(&mut self, evidence: &str) {
        if self.has_reader() && matches!(self.stage, Stage::In) {
            self.await_reconnected(Reason::ConnectionLost, "the service is heard again");
            self.news.push_back(News::Unavailable(evidence.into()));
            self.wake.all();
        }
    }

    /// It is cut off: what the reader was not told yet is void, and it waits for a total.
    pub(crate) fn cut_off(&mut self, reason: Reason, evidence: &str) {
        if self.has_reader() && matches!(self.stage, Stage::In) {
            self.news.clear();
            self.missed = None;
            self.awaited = None;
            self.await_reconnected(reason, "it is back after it was cut off");
            if self.told.role != Some(Role::Disconnected) {
                self.news.push_back(News::Disconnected(reason, evidence.into()));
            }
        }
        self.wake.all();
    }

    /// Its session is gone; it asks for a place in the next one.
    pub(crate) fn start_anew(&mut self, evidence: &str) {
        self.cut_off(Reason::SessionLost, evidence);
        self.awaited = Some(match self.awaited.take() {
            Some(first @ Awaited { event: Event::Joined, .. }) => first,
            _ => Awaited {
                event: Event::Reconnected,
                reason: Reason::SessionLost,
                evidence: format!("it joined again at the tail, since {evidence}"),
            },
        });
        self.entry = None;
        self.stage = Stage::Asked;
        self.standing = None;
        (self.standing_version, self.version) = (Version(0), Version(0));
        (self.asked, self.stop, self.signing) = (None, Stop::No, false);
        self.early.clear();
        self.members.clear();
    }

    /// It ends here, for this reason.
    pub(crate) fn end(&mut self, error: Error, reason: Reason) {
        if matches!(self.stage, Stage::Left | Stage::Ended(_)) {
            return;
        }
        if self.has_reader() {
            self.news.clear();
            self.news.push_back(News::Closed(reason, error.to_string()));
        }
        self.stage = Stage::Ended(error);
        self.wake.all();
    }

    /// It was left by its own call.
    pub(crate) fn left(&mut self) {
        if matches!(self.stage, Stage::Left | Stage::Ended(_)) {
            return;
        }
        self.stage = Stage::Left;
        if self.has_reader() {
            self.news.clear();
            self.news.push_back(News::Left);
        }
        self.wake.all();
    }

    /// Whether the reader has been told the last there is.
    pub(crate) fn told_last(&self) -> bool {
        self.told.last
    }

    /// The next thing for the reader, made now. `acts` is whether the session may act, `remaining` how long yet.
    pub(crate) fn advisory(&mut self, acts: bool, remaining: Duration) -> Option<Advisory> {
        let news = self.news.pop_front()?;
        let mut advisory = self.blank(remaining);
        match news {
            News::Total(total, awaited) => self.say_total(&mut advisory, &total, awaited),
            News::Change(change) => self.say_change(&mut advisory, &change),
            News::Unavailable(evidence) => {
                advisory.reason = Reason::ServiceSilent;
                advisory.evidence = evidence;
            }
            News::Disconnected(reason, evidence) => {
                self.say_cut_off(&mut advisory, Event::Disconnected, reason, evidence);
            }
            News::Left => {
                advisory.event = Event::Left;
                advisory.form = Form::Change;
                advisory.reason = Reason::Leave;
                advisory.evidence = "it left by its own call".into();
                (advisory.ordinal, advisory.role) = (None, None);
                (advisory.token, advisory.remaining) = (None, None);
                self.told.last = true;
            }
            News::Closed(reason, evidence) => {
                self.say_cut_off(&mut advisory, Event::Closed, reason, evidence);
                self.told.last = true;
            }
        }
        if !acts {
            advisory.token = None;
        }
        self.told.ordinal = advisory.ordinal;
        self.told.role = advisory.role;
        self.told.token = advisory.token;
        self.told.view = advisory.view;
        self.told.holder_token = advisory.holder_token;
        Some(advisory)
    }

    /// An advisory in which nothing has changed yet.
    fn blank(&self, remaining: Duration) -> Advisory {
        Advisory {
            time_ms: clock::wall_ms(),
            group: self.join.group.clone(),
            event: Event::Unavailable,
            form: Form::Unavailable,
            name: self.join.name.clone(),
            view: self.told.view,
            ordinal: self.told.ordinal,
            previous: self.told.ordinal,
            role: self.told.role,
            token: self.told.token,
            holder_token: self.told.holder_token,
            reason: Reason::Join,
            evidence: String::new(),
            remaining: Some(remaining),
            members: Vec::new(),
            changed: Vec::new(),
        }
    }

    fn say_total(&self, advisory: &mut Advisory, total: &Total, awaited: Awaited) {
        advisory.event = awaited.event;
        advisory.form = Form::Total;
        advisory.reason = awaited.reason;
        advisory.evidence = awaited.evidence;
        advisory.view = total.view;
        advisory.holder_token = total.holder_token;
        advisory.members.clone_from(&total.members);
        stand(advisory, &total.place);
    }

    fn say_change(&self, advisory: &mut Advisory, change: &Change) {
        let own = change.changed.iter().find(|changed| Some(changed.entry) == self.entry);
        advisory.event = self.event_of(change, own);
        advisory.form = Form::Change;
        advisory.reason = change.reason.into();
        advisory.evidence.clone_from(&change.evidence);
        advisory.view = change.view;
        advisory.holder_token = change.holder_token;
        if let Some(place) = own.and_then(|changed| changed.after) {
            stand(advisory, &place);
        }
        let sees_all = self.sees_all();
        let seen = change.changed.iter().filter(|c| sees_all || Some(c.entry) == self.entry);
        advisory.changed = seen.map(|changed| step(changed, change.reason)).collect();
    }

    fn event_of(&self, change: &Change, own: Option<&Changed>) -> Event {
        let Some(after) = own.and_then(|changed| changed.after) else { return Event::Changed };
        match (self.told.role.is_some_and(acts), acts(after.role)) {
            (false, true) => Event::Active,
            (true, false) => Event::Standby,
            (true, true) if change.reason == Logged::Renewed => Event::Renewed,
            _ => Event::Changed,
        }
    }

    fn say_cut_off(&self, advisory: &mut Advisory, event: Event, reason: Reason, evidence: String) {
        advisory.event = event;
        advisory.reason = reason;
        advisory.evidence = evidence;
        advisory.ordinal = match self.join.kind {
            MemberKind::Observer => None,
            _ => Some(CUT_OFF),
        };
        advisory.role = Some(Role::Disconnected);
        advisory.token = None;
        advisory.remaining = Some(Duration::ZERO);
    }
}

impl PartialOrd for Need {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Need {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (*self == Self::Total).cmp(&(*other == Self::Total))
    }
}

fn stand(advisory: &mut Advisory, place: &Standing) {
    advisory.ordinal = advisory::number(place);
    advisory.role = Some(place.role);
    advisory.token = place.seat.map(|seat| seat.token);
}

/// Whether a member of this role has a token (RULES R14): one that was asked to stop has it until it says so.
fn acts(role: Role) -> bool {
    matches!(role, Role::Active | Role::Draining)
}

fn step(changed: &Changed, reason: Logged) -> Step {
    Step {
        entry: changed.entry,
        session: changed.session,
        name: changed.name.clone(),
        kind: changed.kind,
        before: changed.before,
        after: changed.after,
        cut_off: changed.after.is_none() && matches!(reason, Logged::Expired | Logged::Disconnect),
        metadata: changed.metadata.clone(),
    }
}

fn gap(missed: u64) -> Awaited {
    let evidence = match missed {
        0 => "changes of the group were missed".into(),
        1 => "one change of the group was missed".into(),
        n => format!("{n} changes of the group were missed"),
    };
    Awaited { event: Event::Gap, reason: Reason::ChangesMissed, evidence }
}
