//! HTTP, JSON, health and reflection on the one port.

use crate::harness::{Server, Stream};
use quorate::proto::{self, server_frame::Frame};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

const TTL: Duration = Duration::from_secs(30);

#[test]
fn an_unknown_path_lists_what_exists() {
    let server = Server::start();
    let (status, body) = server.get("/v1/nothing");
    assert_eq!(status, 404);
    assert_eq!(body["error"], "there is nothing at /v1/nothing");
    assert!(body["paths"].as_array().unwrap().contains(&"/healthz".into()));
    assert_eq!(server.http("POST", "/v1/status").0, 405);
    assert_eq!(server.get("/v1/explain/nothing/x").0, 404);
    assert_eq!(server.get("/v1/sessions?after=x").0, 400);
}

#[test]
fn an_address_that_does_not_read_is_refused_in_json_too() {
    let server = Server::start();
    for path in
        ["/v1/groups?max=abc", "/v1/groups?max=-1", "/v1/sessions?max=9999999999", "/v1/explain/lock/%ff%fe"]
    {
        let (status, body) = server.get(path);
        assert_eq!((status, &body["code"]), (400, &"bad_request".into()), "{path}: {body}");
        assert!(!body["error"].as_str().unwrap().is_empty(), "{path}");
    }
}

#[test]
fn status_is_the_same_object_for_curl_and_for_the_cli() {
    let server = Server::start();
    let (status, curl) = server.get("/v1/status");
    let cli = server.json(&["status"])[0].clone();
    assert_eq!(status, 200);
    let keys =
        |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&curl), keys(&cli));
    for same in ["cluster", "listen", "node", "ttl_floor_ms", "version"] {
        assert_eq!(curl[same], cli[same], "{same}");
    }
    assert_eq!((&curl["role"], &curl["leader"]), (&"leader".into(), &1.into()));
    assert_eq!(curl["last_token"], "0", "tokens are decimal strings");
    assert_eq!(curl["listen"], server.address.to_string());
    assert_eq!(server.get("/healthz"), (200, serde_json::json!({ "ok": true })));
}

/// The metrics by name and labels. Every line must have the form that Prometheus reads.
fn metrics(server: &Server) -> BTreeMap<String, f64> {
    let (status, text) = server.http("GET", "/metrics");
    assert_eq!(status, 200);
    assert!(text.ends_with("# EOF\n"), "{text}");
    let mut types = BTreeSet::new();
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            assert!(types.insert(rest.split(' ').next().unwrap().to_owned()), "{line} comes twice");
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            assert!(name.starts_with("quorate_"), "{line}");
            assert!(found.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{line} comes twice");
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_count_what_happened() {
    let server = Server::start();
    let channel = server.channel().await;
    let (mut a, _) = Stream::open(channel.clone(), TTL, proto::OnDisconnect::Hold).await;
    let (mut b, _) = Stream::open(channel, TTL, proto::OnDisconnect::Hold).await;
    let held = a.join("orders", proto::Face::Lock, "a").await;
    b.join("orders", proto::Face::Lock, "b").await;
    a.call(proto::call::Op::Release(proto::Release { entry: held.entry })).await;
    assert!(matches!(b.next().await, Some(Frame::Change(_))), "the waiter is told of its grant");
    assert_ne!(server.run(&["session", "close", "99"]).code, Some(0));
    let found = metrics(&server);
    let expected = [
        ("quorate_requests_total{kind=\"open\",outcome=\"done\"}", 2.0),
        ("quorate_requests_total{kind=\"join\",outcome=\"done\"}", 2.0),
        ("quorate_requests_total{kind=\"release\",outcome=\"done\"}", 1.0),
        ("quorate_requests_total{kind=\"close_session\",outcome=\"refused\"}", 1.0),
        ("quorate_request_duration_seconds_count", 6.0),
        ("quorate_frames_sent_total{kind=\"opened\"}", 2.0),
        ("quorate_frames_sent_total{kind=\"answer\"}", 3.0),
        ("quorate_frames_sent_total{kind=\"bye\"}", 0.0),
        ("quorate_grants_total", 2.0),
        ("quorate_sessions", 2.0),
        ("quorate_session_streams", 2.0),
        ("quorate_groups", 1.0),
        ("quorate_leader", 1.0),
        ("quorate_sessions_expired_total", 0.0),
        ("quorate_proposals_failed_total", 0.0),
        ("quorate_changes_missed_total", 0.0),
    ];
    for (name, value) in expected {
        assert_eq!(found.get(name), Some(&value), "{name} in {found:#?}");
    }
    assert!(found["quorate_frames_sent_total{kind=\"change\"}"] >= 1.0);
    assert!(found["quorate_commits_total"] >= 5.0 && found["quorate_connections"] >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_and_explanations_are_the_same_for_curl_and_for_the_cli() {
    let server = Server::start();
    let (mut a, opened) = Stream::open(server.channel().await, TTL, proto::OnDisconnect::Hold).await;
    a.join("two words/and a slash", proto::Face::Lock, "a").await;
    let (_, curl) = server.get("/v1/explain/lock/two%20words%2Fand%20a%20slash");
    let cli = &server.json(&["explain", "lock", "two words/and a slash"])[0];
    assert_eq!(curl["holders"][0]["seat"], cli["holders"][0]["seat"]);
    assert_eq!((&curl["stale"], &curl["group"]["face"]), (&serde_json::Value::Null, &"lock".into()));
    let (_, groups) = server.get("/v1/groups");
    assert_eq!(groups["groups"][0]["name"], "two words/and a slash");
    let (_, sessions) = server.get("/v1/sessions");
    assert_eq!(sessions["sessions"][0]["session"], opened.session);
    assert!(sessions["sessions"][0]["peer"].as_str().unwrap().starts_with("127.0.0.1:"));
    assert_eq!(server.get("/v1/explain/session/x").0, 400);
    let (status, leader) = server.get("/v1/explain/leader/two%20words%2Fand%20a%20slash");
    assert_eq!((status, &leader["cause"]), (200, &"other_face".into()));
    assert_eq!(leader["remedies"][0]["command"], "quorate explain lock 'two words/and a slash'");
    let (status, deadlocks) = server.get("/v1/explain/deadlock");
    assert_eq!((status, &deadlocks["cause"]), (200, &"no_deadlock".into()));
    assert_eq!(deadlocks["reign"], 1, "it says as of when");
}

async fn reflect(server: &Server, message: MessageRequest) -> MessageResponse {
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let mut client = ServerReflectionClient::new(server.channel().await);
    let response = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
    let reply: ServerReflectionResponse = response.into_inner().message().await.unwrap().unwrap();
    reply.message_response.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_the_services_and_their_messages() {
    let server = Server::start();
    let MessageResponse::ListServicesResponse(listed) =
        reflect(&server, MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list")
    };
    let names: BTreeSet<String> = listed.service.into_iter().map(|service| service.name).collect();
    for name in ["quorate.v1.Sessions", "quorate.v1.Operator", "grpc.health.v1.Health"] {
        assert!(names.contains(name), "{name} in {names:?}");
    }
    let symbol = MessageRequest::FileContainingSymbol("quorate.v1.ClientFrame".into());
    assert!(matches!(reflect(&server, symbol).await, MessageResponse::FileDescriptorResponse(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_told_to_grpc_too_and_an_unknown_call_is_unimplemented() {
    let server = Server::start();
    let channel = server.channel().await;
    let mut health = HealthClient::new(channel.clone());
    for service in ["", "quorate.v1.Sessions", "quorate.v1.Operator"] {
        let reply = health.check(HealthCheckRequest { service: service.into() }).await.unwrap();
        assert_eq!(reply.into_inner().status(), ServingStatus::Serving, "{service}");
    }
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let path = axum::http::uri::PathAndQuery::from_static("/quorate.v1.Operator/Nothing");
    let codec = tonic_prost::ProstCodec::<proto::StatusRequest, proto::StatusReply>::default();
    let status = client.unary(tonic::Request::new(proto::StatusRequest {}), path, codec).await.unwrap_err();
    assert_eq!(status.code(), Code::Unimplemented);
}
