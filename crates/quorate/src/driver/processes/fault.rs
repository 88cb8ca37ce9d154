//! What goes wrong in a run, in the words of the lab's scripts.

use quorate_core::protocol::ProcessId;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::fmt;
use std::str::FromStr;

/// One thing that goes wrong, or ends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `kill n2`: as `kill -9` does. Nothing happens if it does not run.
    Kill(ProcessId),
    /// `restart n2`: it starts again with its disk. Nothing happens if it runs.
    Restart(ProcessId),
    /// `pause n2`: it stops without noticing.
    Pause(ProcessId),
    /// `resume n2`: it goes on.
    Resume(ProcessId),
    /// `cut n1->n2`: nothing gets through in this direction, and nobody is told.
    Cut(ProcessId, ProcessId),
    /// `mend n1->n2`: it does again. What was held meanwhile is lost.
    Mend(ProcessId, ProcessId),
    /// `break n1->n2`: the connection is lost; a new one can be made.
    Break(ProcessId, ProcessId),
    /// `delay n1->n2 5`: what goes through takes so many milliseconds.
    Delay(ProcessId, ProcessId, u64),
    /// `pass 30`: so many milliseconds pass.
    Pass(u64),
}

impl Fault {
    /// Who is named.
    pub fn processes(&self) -> Vec<ProcessId> {
        match self {
            Self::Kill(one) | Self::Restart(one) | Self::Pause(one) | Self::Resume(one) => vec![*one],
            Self::Cut(from, to) | Self::Mend(from, to) | Self::Break(from, to) | Self::Delay(from, to, _) => {
                vec![*from, *to]
            }
            Self::Pass(_) => Vec::new(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill(one) => write!(f, "kill {one}"),
            Self::Restart(one) => write!(f, "restart {one}"),
            Self::Pause(one) => write!(f, "pause {one}"),
            Self::Resume(one) => write!(f, "resume {one}"),
            Self::Cut(from, to) => write!(f, "cut {from}->{to}"),
            Self::Mend(from, to) => write!(f, "mend {from}->{to}"),
            Self::Break(from, to) => write!(f, "break {from}->{to}"),
            Self::Delay(from, to, ms) => write!(f, "delay {from}->{to} {ms}"),
            Self::Pass(ms) => write!(f, "pass {ms}"),
        }
    }
}

impl FromStr for Fault {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text} is no fault; there are kill, restart, pause, resume, cut, mend, break, delay, pass"
            )
        };
        let mut words = text.split_whitespace();
        let (verb, what) = (words.next().ok_or_else(wrong)?, words.next().ok_or_else(wrong)?);
        let one = || what.parse::<ProcessId>().map_err(|_| wrong());
        let link = || {
            let (from, to) = what.split_once("->").ok_or_else(wrong)?;
            let (from, to) = (from.parse().map_err(|_| wrong())?, to.parse().map_err(|_| wrong())?);
            if from == to { Err(wrong()) } else { Ok::<(ProcessId, ProcessId), String>((from, to)) }
        };
        let fault = match verb {
            "kill" => Self::Kill(one()?),
            "restart" => Self::Restart(one()?),
            "pause" => Self::Pause(one()?),
            "resume" => Self::Resume(one()?),
            "cut" => link().map(|(from, to)| Self::Cut(from, to))?,
            "mend" => link().map(|(from, to)| Self::Mend(from, to))?,
            "break" => link().map(|(from, to)| Self::Break(from, to))?,
            "delay" => {
                let ms = words.next().and_then(|ms| ms.parse().ok()).ok_or_else(wrong)?;
                link().map(|(from, to)| Self::Delay(from, to, ms))?
            }
            "pass" => Self::Pass(what.parse().map_err(|_| wrong())?),
            _ => return Err(wrong()),
        };
        if words.next().is_some() { Err(wrong()) } else { Ok(fault) }
    }
}

/// So many faults in a row, from a seed, with time between them. Fewer than half of all are killed or paused
/// at a time, so that whatever needs a majority can go on.
pub fn plan(seed: u64, n: usize, count: usize) -> Vec<Fault> {
    let mut draw = StdRng::seed_from_u64(seed);
    let all: Vec<_> = (0..n).map(ProcessId::at).collect();
    let (mut down, mut paused, mut cut) = (Vec::new(), Vec::new(), Vec::new());
    let mut faults = Vec::new();
    for _ in 0..count {
        let up: Vec<_> =
            all.iter().copied().filter(|one| !down.contains(one) && !paused.contains(one)).collect();
        let spare = up.len() > n / 2 + 1;
        let link: Vec<_> = all.sample(&mut draw, 2).copied().collect();
        let fault = match draw.random_range(0..8) {
            0 | 1 if spare => up.choose(&mut draw).map(|one| Fault::Kill(*one)),
            2 | 3 if spare => up.choose(&mut draw).map(|one| Fault::Pause(*one)),
            4 => down.choose(&mut draw).map(|one| Fault::Restart(*one)),
            5 => paused.choose(&mut draw).map(|one| Fault::Resume(*one)),
            6 if n > 1 && cut.is_empty() => Some(Fault::Cut(link[0], link[1])),
            7 if n > 1 => Some(match draw.random_range(0..2) {
                0 => Fault::Break(link[0], link[1]),
                _ => Fault::Delay(link[0], link[1], draw.random_range(0..8)),
            }),
            _ => cut.first().map(|(from, to)| Fault::Mend(*from, *to)),
        };
        match fault {
            Some(Fault::Kill(one)) => down.push(one),
            Some(Fault::Pause(one)) => paused.push(one),
            Some(Fault::Restart(one)) => down.retain(|other| *other != one),
            Some(Fault::Resume(one)) => paused.retain(|other| *other != one),
            Some(Fault::Cut(from, to)) => cut.push((from, to)),
            Some(Fault::Mend(..)) => cut.clear(),
            _ => {}
        }
        faults.extend(fault);
        faults.push(Fault::Pass(draw.random_range(5..120)));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_one_of_its_seed_and_says_itself() {
        let faults = plan(7, 5, 40);
        assert_eq!(faults, plan(7, 5, 40));
        assert_ne!(faults, plan(8, 5, 40));
        for fault in &faults {
            assert_eq!(fault.to_string().parse(), Ok(*fault));
        }
        assert!("cut n1->n1".parse::<Fault>().is_err() && "hit n1".parse::<Fault>().is_err());
        assert!("kill n1 n2".parse::<Fault>().is_err() && "delay n1->n2 5 6".parse::<Fault>().is_err());
        assert!(
            plan(7, 1, 40).iter().all(|fault| matches!(fault, Fault::Pass(_))),
            "one alone is left alone"
        );
    }
}
