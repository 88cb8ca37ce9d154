//! HTTP and JSON on the one port: health, metrics, and what the CLI shows, for `curl`.
//!
//! | path | what |
//! |---|---|
//! | `/healthz` | 200 while calls are served, 503 with the reason else |
//! | `/metrics` | counts for Prometheus |
//! | `/v1/status` | the object of `quorate status --json` |
//! | `/v1/groups`, `/v1/sessions` | lists; `?after=` continues one |
//! | `/v1/explain/{group,lock,leader,session,deadlock}/NAME` | the answer of `quorate explain --json` |
//! | `/v1/explain/deadlock` | the same, of all deadlocks |
//!
//! Everything here only reads. An error is a JSON object with the sentence that the CLI shows.

use crate::json;
use crate::metrics::{self, Metrics};
use crate::operator::Operator;
use crate::sessions;
use axum::Router;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use quorate::proto;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;
use tonic::{Code, Status};

/// What exists, for those who ask for something else.
const PATHS: [&str; 8] = [
    "/healthz",
    "/metrics",
    "/v1/status",
    "/v1/groups",
    "/v1/sessions",
    "/v1/explain/{group|lock|leader|session|deadlock}/{name}",
    "/v1/explain/deadlock",
    "gRPC: quorate.v1.Sessions, quorate.v1.Operator, with reflection and health",
];

#[derive(Clone)]
struct Desk {
    operator: Operator,
    metrics: Metrics,
    stopping: Arc<AtomicBool>,
}

/// Everything that the port serves: the gRPC routes and ours.
pub fn router(
    grpc: tonic::service::Routes,
    operator: Operator,
    metrics: Metrics,
    stopping: Arc<AtomicBool>,
) -> Router {
    let desk = Desk { operator, metrics, stopping };
    let own = Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics_text))
        .route("/v1/status", get(status))
        .route("/v1/groups", get(groups))
        .route("/v1/sessions", get(list_sessions))
        .route("/v1/explain/deadlock", get(explain_deadlocks))
        .route("/v1/explain/{kind}/{name}", get(explain))
        .method_not_allowed_fallback(|| async {
            failure(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here")
        })
        .with_state(desk);
    // Without the reset an unknown path would be answered by gRPC, with status 200.
    grpc.into_axum_router().reset_fallback().merge(own).fallback(unknown)
}

/// The same, with session streams that end when the service stops.
pub fn ending(router: Router, stopped: watch::Receiver<bool>) -> Router {
    router.layer(axum::middleware::map_request(move |request: Request| {
        let stopped = stopped.clone();
        async move { sessions::end_when_stopped(request, stopped) }
    }))
}

/// The answer to a connection that is one too many, in the words of either protocol.
pub fn too_many(headers: &HeaderMap, max: usize) -> Response {
    let why = format!(
        "this service serves {max} connections at once and has no room for one more; nothing was done; \
         try again later, or raise the setting `connections`"
    );
    let mut response = match is_grpc(headers) {
        true => Status::resource_exhausted(why).into_http(),
        false => failure(StatusCode::SERVICE_UNAVAILABLE, &why),
    };
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.is_some_and(|kind| kind.starts_with(b"application/grpc"))
}

async fn unknown(request: Request) -> Response {
    let path = request.uri().path();
    if is_grpc(request.headers()) {
        let why = format!("there is no call {path}; {}", PATHS[PATHS.len() - 1]);
        return Status::unimplemented(why).into_http();
    }
    let body = json!({ "error": format!("there is nothing at {path}"), "code": "not_found", "paths": PATHS });
    (StatusCode::NOT_FOUND, axum::Json(body)).into_response()
}

fn failure(status: StatusCode, why: &str) -> Response {
    let code = status.canonical_reason().unwrap_or("error").to_lowercase().replace(' ', "_");
    (status, axum::Json(json!({ "error": why, "code": code }))).into_response()
}

/// A refusal of the operator's desk as HTTP has it.
fn refused(status: &Status) -> Response {
    let code = match status.code() {
        Code::InvalidArgument | Code::OutOfRange => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::FailedPrecondition | Code::Aborted => StatusCode::CONFLICT,
        Code::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
        Code::Unimplemented => StatusCode::NOT_IMPLEMENTED,
        Code::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    failure(code, status.message())
}

fn answer(result: Result<Value, Status>) -> Response {
    match result {
        Ok(body) => axum::Json(body).into_response(),
        Err(status) => refused(&status),
    }
}

async fn healthz(State(desk): State<Desk>) -> Response {
    let why = match desk.stopping.load(Ordering::Acquire) {
        true => Some("the service is stopping".to_owned()),
        false => desk.operator.stale().await,
    };
    match why {
        None => axum::Json(json!({ "ok": true })).into_response(),
        Some(why) => {
            let body = json!({ "ok": false, "error": why });
            (StatusCode::SERVICE_UNAVAILABLE, axum::Json(body)).into_response()
        }
    }
}

async fn metrics_text(State(desk): State<Desk>) -> Response {
    match desk.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::MEDIA_TYPE)], text).into_response(),
        Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

async fn status(State(desk): State<Desk>) -> Response {
    axum::Json(json::status(&desk.operator.status())).into_response()
}

#[derive(Default, Deserialize)]
struct Page {
    #[serde(default)]
    after: String,
    #[serde(default)]
    max: u32,
}

async fn groups(State(desk): State<Desk>, page: Result<Query<Page>, QueryRejection>) -> Response {
    let Query(page) = match page {
        Ok(page) => page,
        Err(rejection) => return failure(StatusCode::BAD_REQUEST, &rejection.body_text()),
    };
    let request = proto::ListGroupsRequest { after: page.after, max: page.max };
    let listed = desk.operator.list_groups(request).await;
    answer(listed.map(|(reply, stale)| {
        let groups: Vec<Value> = reply.groups.iter().map(json::group).collect();
        json!({ "groups": groups, "more": reply.more, "stale": stale })
    }))
}

async fn list_sessions(State(desk): State<Desk>, page: Result<Query<Page>, QueryRejection>) -> Response {
    let Query(page) = match page {
        Ok(page) => page,
        Err(rejection) => return failure(StatusCode::BAD_REQUEST, &rejection.body_text()),
    };
    let Ok(after) = (if page.after.is_empty() { Ok(0) } else { page.after.parse() }) else {
        return failure(StatusCode::BAD_REQUEST, "after is the number of a session");
    };
    let request = proto::ListSessionsRequest { after, max: page.max, only: None };
    let listed = desk.operator.list_sessions(request).await;
    answer(listed.map(|(reply, stale)| {
        let sessions: Vec<Value> = reply.sessions.iter().map(json::session).collect();
        json!({ "sessions": sessions, "more": reply.more, "stale": stale })
    }))
}

async fn explain(State(desk): State<Desk>, asked: Result<Path<(String, String)>, PathRejection>) -> Response {
    use proto::explain_request::Kind;
    let Path((kind, name)) = match asked {
        Ok(asked) => asked,
        Err(rejection) => return failure(StatusCode::BAD_REQUEST, &rejection.body_text()),
    };
    let kind = match kind.as_str() {
        "group" => Kind::Group,
        "lock" => Kind::Lock,
        "leader" => Kind::Leader,
        "session" => Kind::Session,
        "deadlock" => Kind::Deadlock,
        _ => {
            let why = "there is an explanation of a group, a lock, a leader, a session or a deadlock";
            return failure(StatusCode::NOT_FOUND, why);
        }
    };
    explained(&desk, kind, name).await
}

async fn explain_deadlocks(State(desk): State<Desk>) -> Response {
    explained(&desk, proto::explain_request::Kind::Deadlock, String::new()).await
}

async fn explained(desk: &Desk, kind: proto::explain_request::Kind, name: String) -> Response {
    let request = proto::ExplainRequest { kind: kind.into(), name, max: 0 };
    let explained = desk.operator.explain(request).await;
    answer(explained.map(|(reply, stale)| json::explain(&reply, stale.as_deref())))
}
