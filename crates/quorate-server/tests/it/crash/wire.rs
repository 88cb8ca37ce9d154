//! A client that speaks the contract itself, with request numbers of its own, so that it can do what the
//! library never would: send a call twice, repeat one that was answered, and see what the service knows of a
//! call whose answer it never got.
//!
//! Each call is done once (RULES R21): whatever is repeated gets the answer it had, by the same entry.

use super::history::{Asked, Outcome, Place, now_us};
use super::load::{Desk, TTL, a_while};
use quorate::proto::{
    self, Answer, Call, ClientFrame, Join, Opened, Refusal, Release, answer::Reply, call::Op,
    client_frame::Frame, refusal::Code, server_frame::Frame as Told, sessions_client::SessionsClient,
};
use quorate_core::lease;
use quorate_core::time::Span;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Streaming;
use tonic::transport::Channel;

/// The group that these clients join.
const GROUP: &str = "wires";

/// How many of these clients there are.
pub(crate) const CLIENTS: u32 = 6;

/// How many answered calls stay unacknowledged at most, to be repeated.
const KEPT_MAX: usize = 6;

/// How long an answer may take before the connection is given up.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// A connection that speaks for the session.
struct Line {
    frames: mpsc::UnboundedSender<ClientFrame>,
    told: Streaming<proto::ServerFrame>,
    next_beat: Instant,
}

/// The connection broke.
struct Broken;

struct Wire {
    desk: Arc<Desk>,
    address: String,
    name: String,
    secret: u128,
    session: Option<u64>,
    /// The last number that was given to a call.
    last: u64,
    acknowledged: u64,
    /// Answered, and not acknowledged yet.
    answered: BTreeMap<u64, (Op, Reply)>,
    /// The place that it has.
    entry: Option<(u64, Option<u64>)>,
    /// It has asked for the end of its session.
    ending: bool,
}

/// Joins and leaves, with repetitions, until it is told to end.
pub(crate) async fn client(desk: Arc<Desk>, address: String, name: String) {
    let (secret, answered) = (rand::random(), BTreeMap::new());
    let (session, entry, last, acknowledged, ending) = (None, None, 0, 0, false);
    let mut wire = Wire { desk, address, name, secret, session, last, acknowledged, answered, entry, ending };
    let mut line = None;
    while wire.turn().await {
        let op = match wire.entry {
            None => Op::Join(join(&wire.name)),
            Some((entry, _)) => Op::Release(Release { entry }),
        };
        wire.ask(&mut line, op).await;
        wire.repeat_one(&mut line).await;
        a_while(1_000).await;
    }
    wire.ending = true;
    let end = Op::End(proto::End {});
    wire.ask(&mut line, end).await;
}

/// There is a seat for each, so that a place has its token from the start.
fn join(name: &str) -> Join {
    let (group, name, face) = (GROUP.into(), name.into(), proto::Face::Group.into());
    let policy = Some(proto::Policy { seats: Some(CLIENTS), ..proto::Policy::default() });
    Join { group, name, wait: true, face, policy, ..Join::default() }
}

impl Wire {
    async fn turn(&self) -> bool {
        let desk = Arc::clone(&self.desk);
        let place = || {
            let (entry, token) = self.entry?;
            let (session, name) = (self.session?, GROUP.into());
            Some(Place { entry, session, name, token })
        };
        desk.turn(|| place().into_iter().collect()).await
    }

    /// Makes a call, through as many connections as it takes.
    async fn ask(&mut self, line: &mut Option<Line>, op: Op) {
        let (request, invoked) = (self.last + 1, now_us());
        self.last = request;
        let reply = loop {
            if line.is_none() {
                *line = Some(self.connect(Some((request, &op))).await);
            }
            let Some(speaking) = line.as_mut() else { continue };
            match self.try_ask(speaking, request, &op).await {
                Ok(reply) => break reply,
                Err(Broken) => *line = None,
            }
        };
        let (asked, name) = match op {
            Op::Join(_) => (Asked::Join, GROUP),
            Op::End(_) => (Asked::End, ""),
            _ => (Asked::Leave, GROUP),
        };
        self.desk.history.call(&self.name, asked, name, invoked, Outcome::Done);
        self.took(request, op, reply);
    }

    fn took(&mut self, request: u64, op: Op, reply: Reply) {
        match (&op, &reply) {
            (Op::Join(_), Reply::Joined(total)) => {
                self.desk.history.entered(total.entry);
                let place = total.place.unwrap_or_default();
                self.entry = Some((total.entry, place.seat.map(|seat| seat.token)));
            }
            (Op::Release(_), Reply::Released(_)) => self.entry = None,
            (Op::End(_), Reply::Done(_)) => {}
            (op, reply) => self.fault(&format!("{op:?} was answered {reply:?}")),
        }
        self.answered.insert(request, (op, reply));
        while self.answered.len() > rand::random_range(1..=KEPT_MAX) {
            if let Some((acknowledged, _)) = self.answered.pop_first() {
                self.acknowledged = acknowledged;
            }
        }
    }

    fn fault(&self, what: &str) {
        self.desk.history.fault(format!("{}: {what}", self.name));
    }

    /// Sends a call, sometimes twice, and waits for its answers.
    async fn try_ask(&mut self, line: &mut Line, request: u64, op: &Op) -> Result<Reply, Broken> {
        let times = if !self.ending && rand::random_ratio(1, 8) { 2 } else { 1 };
        for _ in 0..times {
            line.call(request, self.acknowledged, op)?;
        }
        let first = self.answer(line, request).await?;
        for _ in 1..times {
            let again = self.answer(line, request).await?;
            self.compare(request, op, &first, &again);
        }
        Ok(first)
    }

    /// Waits for an answer, and renews the lease meanwhile.
    async fn answer(&mut self, line: &mut Line, request: u64) -> Result<Reply, Broken> {
        let give_up = Instant::now() + SILENCE_MAX;
        loop {
            line.beat()?;
            let left = give_up.min(line.next_beat).saturating_duration_since(Instant::now());
            let told = match timeout(left, line.told.message()).await {
                Ok(Ok(Some(told))) => told.frame,
                Ok(_) => return Err(Broken),
                Err(_) if Instant::now() >= give_up => return Err(Broken),
                Err(_) => continue,
            };
            match told {
                Some(Told::Answer(Answer { request: n, reply: Some(reply) })) if n == request => {
                    return Ok(reply);
                }
                // While it rests it does not read, and may have missed changes.
                Some(Told::Change(_) | Told::Alive(_) | Told::Gap(_) | Told::Total(_)) => {}
                // The end of a session may be told before, and instead of, the answer to the call that asked
                // for it.
                Some(Told::Ended(_)) if self.ending => return Ok(Reply::Done(proto::Done {})),
                other => {
                    self.fault(&format!("{other:?} instead of an answer to {request}"));
                    return Err(Broken);
                }
            }
        }
    }

    /// Repeats a call that was answered, or one that was acknowledged and is forgotten.
    async fn repeat_one(&mut self, line: &mut Option<Line>) {
        let Some(speaking) = line.as_mut() else { return };
        let repeated = match rand::random_range(0..8) {
            0 => self.repeat_answered(speaking).await,
            1 => self.repeat_forgotten(speaking).await,
            _ => Ok(()),
        };
        if repeated.is_err() {
            *line = None;
        }
    }

    async fn repeat_answered(&mut self, line: &mut Line) -> Result<(), Broken> {
        for (request, (op, reply)) in self.answered.clone() {
            line.call(request, self.acknowledged, &op)?;
            let again = self.answer(line, request).await?;
            self.compare(request, &op, &reply, &again);
        }
        Ok(())
    }

    async fn repeat_forgotten(&mut self, line: &mut Line) -> Result<(), Broken> {
        // The service learns what is acknowledged with the call itself.
        let Some(request) = Some(self.acknowledged).filter(|last| *last > 0) else { return Ok(()) };
        line.call(request, self.acknowledged, &Op::Join(join("a repetition that is never done")))?;
        match self.answer(line, request).await? {
            Reply::Refused(Refusal { code, .. }) if code == i32::from(Code::Forgotten) => Ok(()),
            other => {
                self.fault(&format!("{request} was acknowledged, and repeated it was answered {other:?}"));
                Ok(())
            }
        }
    }

    /// What is repeated has the answer that it had. A place is told as it is now; one that was left is gone.
    fn compare(&self, request: u64, op: &Op, first: &Reply, again: &Reply) {
        let same = match (first, again) {
            (Reply::Joined(first), Reply::Joined(again)) => first.entry == again.entry,
            (Reply::Joined(first), Reply::Refused(refusal)) => {
                refusal.code() == Code::NoEntry && self.entry.is_none_or(|(entry, _)| entry != first.entry)
            }
            (first, again) => first == again,
        };
        if !same {
            self.fault(&format!("{op:?} ({request}) was answered {first:?}, and then {again:?}"));
        }
    }

    /// Connects and takes the session over, until it succeeds. A call may be waiting for its answer.
    async fn connect(&mut self, waiting: Option<(u64, &Op)>) -> Line {
        loop {
            if let Ok((line, opened)) = self.try_connect().await {
                self.attached(&opened, waiting);
                return line;
            }
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn try_connect(&mut self) -> Result<(Line, Opened), Broken> {
        let endpoint = Channel::from_shared(format!("http://{}", self.address)).map_err(|_| Broken)?;
        let channel = endpoint.connect().await.map_err(|_| Broken)?;
        let (frames, rest) = mpsc::unbounded_channel();
        let first = self.greeting();
        frames.send(ClientFrame { frame: Some(first) }).map_err(|_| Broken)?;
        let mut sessions = SessionsClient::new(channel);
        let begun = sessions.stream(UnboundedReceiverStream::new(rest));
        let told = timeout(SILENCE_MAX, begun).await.map_err(|_| Broken)?.map_err(|_| Broken)?.into_inner();
        let beat = lease::beat(Span::from_millis(TTL.as_millis() as u64)).to_std();
        let mut line = Line { frames, told, next_beat: Instant::now() + beat };
        match timeout(SILENCE_MAX, line.told.message()).await {
            Ok(Ok(Some(proto::ServerFrame { frame: Some(Told::Opened(opened)) }))) => Ok((line, opened)),
            Ok(Ok(Some(proto::ServerFrame { frame: Some(Told::Bye(bye)) }))) => {
                self.fault(&format!("{bye:?}"));
                Err(Broken)
            }
            _ => Err(Broken),
        }
    }

    fn greeting(&self) -> Frame {
        let secret = self.secret.to_be_bytes().to_vec().into();
        match self.session {
            Some(session) => Frame::Attach(proto::Attach { session, secret, lapsed: false }),
            None => {
                let (ttl_ms, label) = (TTL.as_millis() as u64, self.name.clone());
                Frame::Open(proto::Open { secret, ttl_ms, label, ..proto::Open::default() })
            }
        }
    }

    /// Holds what the service says of the session against what is known: nothing is missing, and what is new
    /// is the one call that waits for its answer.
    fn attached(&mut self, opened: &Opened, waiting: Option<(u64, &Op)>) {
        match self.session {
            None => {
                self.desk.history.opened(opened.session);
                self.session = Some(opened.session);
            }
            Some(session) if session == opened.session => {}
            Some(session) => self.fault(&format!("session {session} became {}", opened.session)),
        }
        let there: Vec<u64> = opened.totals.iter().map(|total| total.entry).collect();
        let known = self.entry.map(|(entry, _)| entry);
        let unheard = match (waiting.map(|(_, op)| op), known, there.as_slice()) {
            (_, None, []) => false,
            (Some(Op::Join(_)), None, [_]) => true,
            (Some(Op::Release(_)), Some(_), []) => true,
            (_, Some(known), [there]) if known == *there => false,
            (op, known, there) => {
                return self.fault(&format!("it has {there:?} and knows of {known:?}, waiting for {op:?}"));
            }
        };
        if unheard {
            self.desk.unheard.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Line {
    fn send(&self, frame: Frame) -> Result<(), Broken> {
        self.frames.send(ClientFrame { frame: Some(frame) }).map_err(|_| Broken)
    }

    fn call(&self, request: u64, acknowledged: u64, op: &Op) -> Result<(), Broken> {
        self.send(Frame::Call(Call { request, acknowledged, op: Some(op.clone()) }))
    }

    /// Sends a keepalive if it is due.
    fn beat(&mut self) -> Result<(), Broken> {
        if Instant::now() < self.next_beat {
            return Ok(());
        }
        self.next_beat += lease::beat(Span::from_millis(TTL.as_millis() as u64)).to_std();
        self.send(Frame::KeepAlive(proto::KeepAlive { seq: 1 }))
    }
}
