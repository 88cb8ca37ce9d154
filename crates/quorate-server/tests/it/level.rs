//! A cluster that was founded at an older feature level, on real processes: what it refuses, how it is
//! raised, and that nothing takes that back (RULES R27).

use crate::harness::{Ran, Server, Stream, quorate, run, serve};
use quorate::proto::operator_client::OperatorClient;
use quorate::proto::{self, Face, Mode, answer::Reply as Answer, call::Op, refusal::Code};
use quorate_core::id::ClusterId;
use quorate_core::state_machine::{Command, LEVEL_HIGHEST, Limits, Proposal, Reply};
use quorate_core::time::Wall;
use quorate_server::log::{Engine, Options, TokioRuntime};
use rustix::process::Signal;
use std::path::Path;
use std::time::Duration;

const TTL: Duration = Duration::from_secs(60);

/// Longer than a lone node takes to lead its log.
const PATIENCE: Duration = Duration::from_secs(20);

/// A data directory whose log begins with a founding at this level, as the release of that time wrote it.
async fn founded_at(level: u32, data: &Path) {
    let (engine, _feed) = Engine::<TokioRuntime>::open(data, Options::lone()).await.unwrap();
    engine.ready(PATIENCE).await.unwrap();
    let command = Command::Found { cluster: ClusterId(7), limits: Limits { level, ..Limits::default() } };
    let founded = engine.propose(Proposal { at: Wall(1_000), command }).await.unwrap();
    assert_eq!(founded, Reply::Done);
    engine.shutdown().await;
}

fn weighed(server: &Server, name: &str) -> Ran {
    server.run(&["group", "create", name, "--order", "weight", "--numbering", "stable"])
}

fn level(server: &Server) -> (u64, u64) {
    let status = &server.json(&["status"])[0];
    let number = |key: &str| status[key].as_u64().unwrap();
    (number("feature_level"), number("feature_level_highest"))
}

fn refused(ran: &Ran, code: i32, why: &str) {
    assert!(ran.code == Some(code) && ran.last_line().contains(why), "{why}: {ran:?}");
}

/// The answer to a shared entry, which needs level 2.
async fn shared(stream: &mut Stream, name: &str) -> Answer {
    let (face, mode) = (Face::Lock.into(), Mode::Shared.into());
    stream
        .call(Op::Join(proto::Join { group: name.into(), face, mode, wait: true, ..Default::default() }))
        .await
}

#[tokio::test(flavor = "multi_thread")]
async fn r27_a_cluster_of_an_older_level_is_raised_and_stays_so() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    founded_at(1, &data).await;
    let mut server = Server::on(&data, &["--snapshot-every", "100"]);
    assert_eq!(level(&server), (1, u64::from(LEVEL_HIGHEST)));
    let shown = server.run(&["status"]).ok().stdout;
    assert!(shown.contains("1; this server runs up to 2: `quorate level raise` raises it"), "{shown}");

    let why = "this value of numbering is not supported at feature level 1 of this cluster, it needs level \
               2; nothing was changed; once every server can run that level, `quorate level raise` raises it";
    refused(&weighed(&server, "db"), 1, why);
    let (mut stream, _) = Stream::open(server.channel().await, TTL, proto::OnDisconnect::Hold).await;
    let Answer::Refused(refusal) = shared(&mut stream, "prices").await else { panic!("it needs level 2") };
    assert_eq!(refusal.code(), Code::Unsupported);
    assert!(refusal.message.contains("`quorate level raise`"), "{}", refusal.message);

    let raised = &server.json(&["level", "raise"])[0];
    assert_eq!(*raised, serde_json::json!({ "outcome": "raised", "from": 1, "level": 2 }));
    assert_eq!(level(&server), (2, 2));
    weighed(&server, "db").ok();
    assert!(
        matches!(shared(&mut stream, "prices").await, Answer::Joined(_)),
        "no session has to be opened anew"
    );
    let already = server.run(&["--json", "level", "raise"]);
    refused(&already, 1, "the cluster is at feature level 2 already; nothing was changed");
    assert_eq!(already.json()[0]["outcome"], "refused");

    // From the log, after a loss of power; then from a snapshot of its own, with the entry gone from the log.
    server.signal(Signal::KILL);
    server.ended();
    let mut server = server.again();
    assert_eq!(level(&server), (2, 2));
    weighed(&server, "db").ok();
    let mut nth = 0;
    server.until("a snapshot is taken", |server| {
        nth += 1;
        weighed(server, &format!("name {nth}")).ok();
        server.json(&["status"])[0]["snapshot"].as_u64() > Some(0)
    });
    let file = root.path().join("saved");
    let saved = server.json(&["snapshot", "save", file.to_str().unwrap()]);
    assert_eq!(saved[0]["feature_level"], 2);
    server.stop();
    let server = server.again();
    assert_eq!(level(&server), (2, 2));
    weighed(&server, "later").ok();

    let restored = root.path().join("restored");
    let arguments = ["snapshot", "restore", file.to_str().unwrap(), "--no-guards", "--longest-ttl", "60s"];
    run(quorate().args(arguments).arg("--data-dir").arg(&restored)).ok();
    assert_eq!(level(&Server::on(&restored, &[])), (2, 2), "what is made of a snapshot is at its level");
}

#[tokio::test(flavor = "multi_thread")]
async fn r27_a_level_is_raised_only_where_every_named_server_can_run_it() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    founded_at(1, &data).await;
    let (server, other) = (Server::on(&data, &[]), Server::start());
    let address = server.address.to_string();
    refused(&server.run(&["level", "raise", "--to", "0"]), 1, "a feature level is never lowered");
    refused(&server.run(&["level", "raise", "--to", "1"]), 1, "at feature level 1 already");
    let newer = server.run(&["level", "raise", "--to", "3"]);
    refused(&newer, 1, &format!("feature level 3 is not known to {address} (node 1, release "));
    refused(&newer, 1, "which runs levels up to 2; nothing was changed; start a release there");
    let named =
        |servers: &[&str], rest: &[&str]| run(quorate().args(["--server", &servers.join(",")]).args(rest));
    let dead = named(&[&address, "127.0.0.1:1"], &["level", "raise"]);
    refused(&dead, 69, "127.0.0.1:1 does not answer, so it is not known which feature level it can run");
    let strange = named(&[&address, &other.address.to_string()], &["level", "raise"]);
    refused(&strange, 2, "raise the level of one cluster at a time");
    assert_eq!(level(&server), (1, 2), "nothing was changed by any of these");

    let shown = named(&[&address, "127.0.0.1:1"], &["level", "show"]).ok().stdout;
    assert!(
        shown.contains("`quorate level raise` raises it") && shown.contains("does not answer"),
        "{shown}"
    );
    let told = named(&[&address, &other.address.to_string()], &["--json", "level", "show"]).ok().json();
    let levels: Vec<_> =
        told.iter().map(|one| (&one["feature_level"], &one["feature_level_highest"])).collect();
    assert_eq!(levels, [(&1.into(), &2.into()), (&2.into(), &2.into())]);

    let mut operator = OperatorClient::new(server.channel().await);
    let request = |from, to| proto::RaiseLevelRequest { client: vec![7; 16].into(), from, to };
    let unknown = operator.raise_level(request(None, Some(3))).await.unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::FailedPrecondition);
    assert_eq!(unknown.metadata().get("quorate-refusal").unwrap(), "LEVEL_UNKNOWN");
    for _ in 0..2 {
        let raised = operator.raise_level(request(Some(1), None)).await.expect("a retry is answered alike");
        assert_eq!(raised.into_inner(), proto::RaiseLevelReply { from: 1, level: 2 });
    }
    let again = operator.raise_level(request(None, Some(2))).await.unwrap_err();
    assert_eq!(again.metadata().get("quorate-refusal").unwrap(), "NOT_RAISED");
}

#[tokio::test(flavor = "multi_thread")]
async fn r27_an_older_release_does_not_start_on_a_level_that_it_does_not_know() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("data");
    founded_at(LEVEL_HIGHEST + 1, &data).await;
    let ran = run(&mut serve(&data, &[]));
    refused(
        &ran,
        1,
        "the cluster is at feature level 3, and this release runs levels up to 2: a level is never lowered",
    );
}
