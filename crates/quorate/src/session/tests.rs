//! What needs the inside of a session.

use super::*;
use crate::clock::Clock;

#[test]
fn a_forked_child_cannot_use_its_parents_session() {
    let state = Mutex::new(State::new(Clock::new(), SessionOptions::default()));
    let parent = std::process::id() + 1;
    let shared = Arc::new(Shared { state, kick: Notify::new(), owner: parent });
    let session = Session { handle: Arc::new(Handle { shared }) };
    let here = std::process::id();
    assert!(matches!(session.over(), Some(Error::Forked { owner, here: h }) if owner == parent && h == here));
    assert_eq!((session.id(), session.remaining(), session.acts()), (None, Duration::ZERO, false));
    let _parents = session.shared().lock();
    drop(session.clone());
    assert!(!session.acts(), "the child never takes the parent's lock, which may be held for ever");
}
