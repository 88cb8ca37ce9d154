//! Why a group elects again and again, from what each process knows of itself.
//!
//! **Problem.** An election storm looks the same from everywhere: no leader, and terms that grow. Its causes
//! are few, and each shows in the figures of some process.
//!
//! **Rule.** Compare what the processes know with what an election needs: one membership, answers sooner than
//! the election timer, and a candidate whose log is new enough; name every one that is not so.
//!
//! Source: the causes are those of Ongaro 2014, chapters 6 and 9, and of operators' reports of slow disks,
//! paused machines and half-connected networks.

use super::{LogPosition, Term};
use crate::protocol::{Members, ProcessId};
use crate::time::Span;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// What is known of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Which.
    pub process: ProcessId,
    /// Whether it runs, as far as the observer knows.
    pub runs: bool,
    /// Its term.
    pub term: Term,
    /// Whom it voted for in that term.
    pub voted: Option<ProcessId>,
    /// The leader that it knows.
    pub leader: Option<ProcessId>,
    /// Whom it counts.
    pub members: Members,
    /// The slowest heartbeat that reached it lately, from sending to arrival. None: none came.
    pub heartbeat: Option<Span>,
    /// The longest time lately for which it did nothing at all though something was due.
    pub pause: Span,
    /// The end of its log.
    pub log: LogPosition,
    /// The shortest time after which it stands for election.
    pub patience: Span,
}

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// No more than half of the members run.
    NoMajority {
        /// How many run.
        runs: usize,
        /// How many it takes.
        need: usize,
    },
    /// Two processes count different members.
    Memberships {
        /// The one that counts others than most do, or than the first one does.
        odd: ProcessId,
        /// How many it counts.
        counts: usize,
        /// How many the others count.
        others: usize,
    },
    /// A process stood still for longer than others wait for it.
    Paused {
        /// Which.
        process: ProcessId,
        /// For how long.
        pause: Span,
        /// How long the most impatient one waits.
        patience: Span,
    },
    /// Heartbeats come later than their receiver waits.
    SlowHeartbeats {
        /// The receiver.
        process: ProcessId,
        /// How late.
        heartbeat: Span,
        /// How long it waits.
        patience: Span,
    },
    /// A process that hears no leader, while a majority does, raises the term.
    Disrupts {
        /// Which.
        process: ProcessId,
        /// Its term.
        term: Term,
        /// The leader that the majority hears.
        leader: ProcessId,
    },
    /// A candidate's log is older than those of a majority: it cannot win, but it raises the term.
    OldLog {
        /// The candidate.
        process: ProcessId,
        /// The end of its log.
        log: LogPosition,
        /// The oldest end that a winner may have.
        needs: LogPosition,
    },
    /// The votes of the greatest term are split: nobody can have a majority of them.
    SplitVote {
        /// The term.
        term: Term,
        /// How many processes have votes in it.
        candidates: usize,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoMajority { runs, need } => {
                write!(f, "{runs} run and it takes {need}: nobody can be elected before more are started")
            }
            Self::Memberships { odd, counts, others } => write!(
                f,
                "{odd} counts {counts} members and others count {others}: their majorities need not meet"
            ),
            Self::Paused { process, pause, patience } => write!(
                f,
                "{process} stood still for {pause}, others wait {patience}: they elect while it is away, and \
                 again when it is back; find what stops it, or wait longer"
            ),
            Self::SlowHeartbeats { process, heartbeat, patience } => write!(
                f,
                "heartbeats reach {process} after {heartbeat}, it waits {patience}: it stands against a \
                 leader that runs; wait longer, or mend the link"
            ),
            Self::Disrupts { process, term, leader } => write!(
                f,
                "{process} does not hear {leader}, which a majority follows, and is in term {term}: each of \
                 its elections ends a reign; mend its link, and turn pre-vote on"
            ),
            Self::OldLog { process, log, needs } => write!(
                f,
                "{process} stands with a log that ends at {log}, and a majority is at {needs} or beyond: it \
                 cannot win; pre-vote keeps it from trying"
            ),
            Self::SplitVote { term, candidates } => write!(
                f,
                "the votes of term {term} are split among {candidates}: nobody has a majority; a wider range \
                 of election timers makes it rare"
            ),
        }
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// What was looked at.
    pub sights: Vec<Sight>,
    /// The leader of the greatest term, if a majority follows it.
    pub leader: Option<ProcessId>,
    /// What is wrong, the most fundamental first. Empty in a healthy group, and where a vote is under way.
    pub findings: Vec<Finding>,
}

/// Looks at all processes of a group at one moment.
pub fn diagnose(sights: Vec<Sight>) -> Diagnosis {
    let leader = followed(&sights);
    let mut findings: Vec<Finding> = Vec::new();
    findings.extend(no_majority(&sights));
    findings.extend(memberships(&sights));
    findings.extend(late(&sights));
    findings.extend(leader.into_iter().flat_map(|leader| disrupts(&sights, leader)));
    findings.extend(old_logs(&sights));
    if leader.is_none() {
        findings.extend(split_vote(&sights));
    }
    Diagnosis { sights, leader, findings }
}

fn running(sights: &[Sight]) -> impl Iterator<Item = &Sight> + Clone {
    sights.iter().filter(|sight| sight.runs)
}

/// The membership that is counted most.
fn common(sights: &[Sight]) -> Option<&Members> {
    let times = |members: &Members| sights.iter().filter(|sight| sight.members == *members).count();
    sights.iter().map(|sight| &sight.members).rev().max_by_key(|members| times(members))
}

fn followed(sights: &[Sight]) -> Option<ProcessId> {
    let need = common(sights)?.majority();
    let follows = |leader| running(sights).filter(|sight| sight.leader == Some(leader)).count();
    running(sights).filter_map(|sight| sight.leader).find(|leader| follows(*leader) >= need)
}

fn no_majority(sights: &[Sight]) -> Option<Finding> {
    let need = common(sights)?.majority();
    let runs = running(sights).count();
    (runs < need).then_some(Finding::NoMajority { runs, need })
}

fn memberships(sights: &[Sight]) -> Vec<Finding> {
    let Some(common) = common(sights) else { return Vec::new() };
    let odd = running(sights).filter(|sight| sight.members != *common);
    odd.map(|sight| Finding::Memberships {
        odd: sight.process,
        counts: sight.members.count(),
        others: common.count(),
    })
    .collect()
}

fn late(sights: &[Sight]) -> Vec<Finding> {
    let patience = running(sights).map(|sight| sight.patience).min().unwrap_or_default();
    let paused = sights.iter().filter(|sight| sight.pause > patience);
    let paused = paused.map(|s| Finding::Paused { process: s.process, pause: s.pause, patience });
    let slow = running(sights).filter_map(|s| {
        let heartbeat = s.heartbeat.filter(|heartbeat| *heartbeat >= s.patience)?;
        Some(Finding::SlowHeartbeats { process: s.process, heartbeat, patience: s.patience })
    });
    paused.chain(slow).collect()
}

fn disrupts(sights: &[Sight], leader: ProcessId) -> Vec<Finding> {
    let reign = running(sights).filter(|sight| sight.leader == Some(leader)).map(|sight| sight.term).max();
    let apart = running(sights).filter(|sight| sight.leader.is_none() && Some(sight.term) > reign);
    apart.map(|s| Finding::Disrupts { process: s.process, term: s.term, leader }).collect()
}

fn old_logs(sights: &[Sight]) -> Vec<Finding> {
    let Some(need) = common(sights).map(Members::majority) else { return Vec::new() };
    let mut ends: Vec<_> = sights.iter().map(|sight| sight.log).collect();
    ends.sort_unstable();
    // Whoever is at this end or beyond is not older than a majority.
    let Some(needs) = ends.get(need - 1).copied() else { return Vec::new() };
    let stands =
        running(sights).filter(|s| s.voted == Some(s.process) && s.leader.is_none() && s.log < needs);
    stands.map(|s| Finding::OldLog { process: s.process, log: s.log, needs }).collect()
}

fn split_vote(sights: &[Sight]) -> Option<Finding> {
    let members = common(sights)?;
    let term = running(sights).map(|sight| sight.term).max()?;
    let votes = || sights.iter().filter(|sight| sight.term == term).filter_map(|sight| sight.voted);
    let mut candidates: Vec<_> = votes().collect();
    candidates.sort_unstable();
    candidates.dedup();
    let best = candidates.iter().map(|one| votes().filter(|voted| voted == one).count()).max()?;
    let open = members.count() - votes().count();
    (best + open < members.majority()).then_some(Finding::SplitVote { term, candidates: candidates.len() })
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dash = |value: Option<String>| value.unwrap_or_else(|| "-".to_string());
        writeln!(
            f,
            "{:<8} {:>5} {:>6} {:>6} {:>8} {:>10} {:>8} {:>8}",
            "process", "term", "voted", "leader", "members", "heartbeat", "paused", "log"
        )?;
        for sight in &self.sights {
            writeln!(
                f,
                "{:<8} {:>5} {:>6} {:>6} {:>8} {:>10} {:>8} {:>8}",
                sight.process.to_string() + if sight.runs { "" } else { " down" },
                sight.term.to_string(),
                dash(sight.voted.map(|voted| voted.to_string())),
                dash(sight.leader.map(|leader| leader.to_string())),
                sight.members.count(),
                dash(sight.heartbeat.map(|heartbeat| heartbeat.to_string())),
                sight.pause.to_string(),
                sight.log.to_string(),
            )?;
        }
        match (self.leader, self.findings.is_empty()) {
            (Some(leader), true) => writeln!(f, "{leader} leads, and nothing stands against it"),
            (None, true) => writeln!(f, "no leader yet, and nothing that keeps one from being elected"),
            _ => self.findings.iter().try_for_each(|cause| writeln!(f, "{cause}")),
        }
    }
}
