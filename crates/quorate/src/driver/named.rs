//! The protocols by name, so that a child process can be told which one it is, and a recording be run again.
//!
//! | protocol | settings |
//! |---|---|
//! | `central` | `lease_ms`, `durable`; n1 is the coordinator |
//! | `ricart-agrawala` | `retry_ms` |
//! | `maekawa` | `retry_ms`, `durable`; the form without deadlock |
//! | `token-ring` | `silence_ms` (repair after so long), `retry_ms`; the token rests where it was used last |
//! | `bully` | `answer_ms`, `coordinator_ms`, `again_ms`, `quorum`, `elect_at_start` |
//! | `ring`, `chang-roberts` | `retry_ms`, `quorum` (ring), `elect_at_start` |
//! | `term` | `election_ms`, `heartbeat_ms`; with pre-vote |

use super::Portable;
use super::record::{Recording, Replayed, replay};
use quorate_core::election::{
    AtStart, Bully, BullyTiming, ChangRoberts, Elects, Ids, LogPosition, Ring, TermElection, TermOptions,
};
use quorate_core::mutex::{
    Central, IdleToken, Maekawa, MaekawaForm, Mutex, Repair, RicartAgrawala, TokenRing,
};
use quorate_core::protocol::{Cause, Goal, Members, ProcessId, Request, Wait, Within};
use quorate_core::time::Span;
use serde::{Deserialize, Serialize};

/// The names of mutual exclusion.
pub const MUTEXES: &[&str] = &["central", "ricart-agrawala", "maekawa", "token-ring"];

/// The names of elections.
pub const ELECTIONS: &[&str] = &["bully", "ring", "chang-roberts", "term"];

/// How a protocol is set up. What it does not know, it ignores: see the table of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// A grant is a lease of this length.
    pub lease_ms: Option<u64>,
    /// Votes and grants are on disk before they are told, so that a process may restart.
    pub durable: bool,
    /// What was not answered is asked again after so long, up to twice that; for links that lose.
    pub retry_ms: Option<u64>,
    /// The token is made anew after so long a silence, up to twice that.
    pub silence_ms: Option<u64>,
    /// How long an answer may take. Longer than the slowest round trip of the machine, or two may lead.
    pub answer_ms: u64,
    /// How long an announcement may take: longer than that for each process.
    pub coordinator_ms: u64,
    /// An election that was refused is held again after so long.
    pub again_ms: Option<u64>,
    /// Only more than half of all elect.
    pub quorum: bool,
    /// Each process holds an election when it starts.
    pub elect_at_start: bool,
    /// A follower that hears nothing for so long, up to twice that, stands for election.
    pub election_ms: u64,
    /// How often a leader of a term says that it leads.
    pub heartbeat_ms: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease_ms: None,
            durable: false,
            retry_ms: None,
            silence_ms: None,
            answer_ms: 500,
            coordinator_ms: 5_000,
            again_ms: None,
            quorum: false,
            elect_at_start: false,
            election_ms: 300,
            heartbeat_ms: 60,
        }
    }
}

/// Where a process stands, whatever its protocol.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stand {
    /// In a word: `idle`, `waiting`, `inside`, `electing`, `following`, `leading`.
    pub standing: String,
    /// Whom it takes for the leader.
    pub leader: Option<ProcessId>,
    /// In which term.
    pub term: Option<u64>,
    /// Why nothing happens.
    pub waits: Vec<Missing>,
}

/// A [`Wait`] in its written form.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// In words.
    pub words: String,
    /// What does not happen: `enter`, `answer` or `leader`.
    pub goal: String,
    /// The request that it is about.
    pub request: Option<Request>,
    /// For an answer: the sort of message that is owed.
    pub owed: Option<String>,
    /// What is missing: `message`, `held`, `voted`, `earlier`, `token`, `majority`, `disk` or `timer`.
    pub cause: String,
    /// The sort of message that has not come, or the timer that has not ended.
    pub kind: Option<String>,
    /// The process that it depends on.
    pub from: Option<ProcessId>,
    /// The request that it depends on.
    pub by: Option<Request>,
}

impl Missing {
    fn of(wait: &Wait) -> Self {
        let (goal, request, owed) = match &wait.goal {
            Goal::Enter(request) => ("enter", Some(*request), None),
            Goal::Answer { kind, request } => ("answer", Some(*request), Some((*kind).to_string())),
            Goal::Leader => ("leader", None, None),
        };
        let (cause, kind, from, by) = match &wait.cause {
            Cause::Message { kind, from, .. } => ("message", Some((*kind).to_string()), Some(*from), None),
            Cause::Held { by } => ("held", None, None, Some(*by)),
            Cause::Voted { by, to } => ("voted", None, Some(*by), Some(*to)),
            Cause::Earlier { request } => ("earlier", None, None, Some(*request)),
            Cause::Token { from } => ("token", None, Some(*from), None),
            Cause::Majority { .. } => ("majority", None, None, None),
            Cause::Disk => ("disk", None, None, None),
            Cause::Timer { name } => ("timer", Some((*name).to_string()), None, None),
        };
        let (words, goal, cause) = (wait.to_string(), goal.to_string(), cause.to_string());
        Self { words, goal, request, owed, cause, kind, from, by }
    }
}

/// Does something with a protocol whose type is known by its name only.
pub(super) trait Visitor {
    /// What comes of it.
    type Output;
    /// Takes the protocol before its start, and what tells where it stands.
    fn visit<P: Portable>(self, machine: P, stand: fn(&P) -> Stand) -> Self::Output;
}

/// Where a process of mutual exclusion stands.
pub fn mutex<P: Mutex>(machine: &P) -> Stand {
    let waits = machine.waits().iter().map(Missing::of).collect();
    Stand { standing: machine.standing().to_string(), waits, ..Stand::default() }
}

/// Where a process of an election stands.
pub fn elects<P: Elects>(machine: &P) -> Stand {
    Stand {
        standing: machine.standing().to_string(),
        leader: machine.leader(),
        term: machine.term().map(|term| term.0),
        waits: machine.waits().iter().map(Missing::of).collect(),
    }
}

/// Makes the protocol of this name for process `me` of `n`.
pub(super) fn open<V: Visitor>(
    name: &str,
    me: ProcessId,
    n: usize,
    settings: &Settings,
    visitor: V,
) -> Result<V::Output, String> {
    let members = Members::first(n);
    let about = |ms: u64| Within::millis(ms, 2 * ms);
    let retry = settings.retry_ms.map(about);
    let lease = settings.lease_ms.map(Span::from_millis);
    let start = if settings.elect_at_start { AtStart::Elect } else { AtStart::Wait };
    Ok(match name {
        "central" => visitor.visit(Central::new(me, ProcessId(1), lease, settings.durable), mutex),
        "ricart-agrawala" => visitor.visit(RicartAgrawala::new(me, members, retry), mutex),
        "maekawa" => {
            let form = MaekawaForm::DeadlockFree;
            visitor.visit(Maekawa::new(me, members, form, settings.durable, retry), mutex)
        }
        "token-ring" => {
            let repair = settings.silence_ms.map(|ms| Repair { silence: about(ms), retry });
            visitor.visit(TokenRing::new(me, members, IdleToken::Park, repair), mutex)
        }
        "bully" => visitor.visit(bully(me, members, settings, start), elects),
        "ring" => visitor.visit(Ring::new(me, members, settings.quorum, retry, start), elects),
        "chang-roberts" => {
            let id = u64::from(me.0);
            visitor.visit(ChangRoberts::new(me, members, id, Ids::ByProcess, retry, start), elects)
        }
        "term" => visitor.visit(term(me, members, settings), elects),
        _ => {
            let known = [MUTEXES, ELECTIONS].concat().join(", ");
            return Err(format!("there is no protocol {name}; there are {known}"));
        }
    })
}

fn bully(me: ProcessId, members: Members, settings: &Settings, start: AtStart) -> Bully {
    let exactly = |ms| Within::exactly(Span::from_millis(ms));
    let timing = BullyTiming {
        answer: exactly(settings.answer_ms),
        coordinator: exactly(settings.coordinator_ms),
        again: settings.again_ms.map(exactly),
    };
    Bully::new(me, members, timing, settings.quorum, start)
}

fn term(me: ProcessId, members: Members, settings: &Settings) -> TermElection {
    let options = TermOptions {
        election: Within::millis(settings.election_ms, 2 * settings.election_ms),
        heartbeat: Span::from_millis(settings.heartbeat_ms),
        pre_vote: true,
        lease: None,
    };
    TermElection::new(me, members, options, LogPosition::default())
}

/// The settings that a protocol of this name understands; none if it is not known.
pub fn settings_of(name: &str) -> &'static [&'static str] {
    match name {
        "central" => &["lease_ms", "durable"],
        "ricart-agrawala" => &["retry_ms"],
        "maekawa" => &["retry_ms", "durable"],
        "token-ring" => &["silence_ms", "retry_ms"],
        "bully" => &["answer_ms", "coordinator_ms", "again_ms", "quorum", "elect_at_start"],
        "ring" => &["retry_ms", "quorum", "elect_at_start"],
        "chang-roberts" => &["retry_ms", "elect_at_start"],
        "term" => &["election_ms", "heartbeat_ms"],
        _ => &[],
    }
}

/// Whether a protocol of this name is known.
///
/// # Errors
/// Names those that are.
pub fn check(name: &str) -> Result<(), String> {
    struct Known;
    impl Visitor for Known {
        type Output = ();
        fn visit<P: Portable>(self, _: P, _: fn(&P) -> Stand) {}
    }
    open(name, ProcessId(1), 1, &Settings::default(), Known)
}

/// Runs a recorded life of a named protocol again: see [`replay`].
///
/// # Errors
/// There is no such protocol, or the life takes another turn.
pub fn replay_named(
    name: &str,
    n: usize,
    settings: &Settings,
    recording: &Recording,
) -> Result<Replayed, String> {
    struct Again<'a>(&'a Recording);
    impl Visitor for Again<'_> {
        type Output = Result<Replayed, String>;
        fn visit<P: Portable>(self, machine: P, _: fn(&P) -> Stand) -> Self::Output {
            replay(machine, self.0)
        }
    }
    open(name, recording.header.peer.process, n, settings, Again(recording))?
}
