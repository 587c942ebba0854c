//! The routes of the server and their handlers.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use serde_json::{Value, json};
use tokio::sync::mpsc::{channel, unbounded_channel};
use tokio::task::JoinSet;

use super::app;
use super::connections::Connection;
use super::document::{Described, json_content, json_or_events, reference};
use super::embeddings::{EmbeddingFields, EmbeddingRequest, Embeddings};
use super::error::{ApiError, echoed};
use super::fields::{self, Fields, response_schema};
use super::forms::{ChatRequest, CompletionRequest, ResponseRequest};
use super::guard;
use super::http::{json_response, name, to_json};
use super::inspect::{InspectFields, InspectRequest};
use super::limits::{INSPECTION, PER_BYTE, REQUEST_TIME, read_body};
use super::llama::{self, DetokenizeRequest, Detokenized, TokenizeRequest, Tokenized, detokenize, tokenize};
use super::loaded_model::LoadedModel;
use super::metrics;
use super::request::{GenerateRequest, apply_template};
use super::scheduler::SequenceRequest;
use super::service::{InFlight, Service, Shared, Work};
use super::stream::{Chunks, ResponseStream};
use super::unsent::{Outbox, Reserved, hold};
use super::view::ViewRequest;
use super::writer::ResponseWriter;
use crate::config::ModelConfig;
use crate::model::Gpt;

pub(super) fn router(service: Shared) -> Router {
    api()
        .finish()
        // Other names of llama.cpp's server. Its completions and embeddings without `/v1` have another form.
        .route("/models", get(models))
        .route("/chat/completions", generating(GenerateRequest::chat))
        .route("/chat/completions/input_tokens", counting(GenerateRequest::chat))
        .route("/responses", generating(GenerateRequest::response))
        .route("/responses/input_tokens", counting(GenerateRequest::response))
        .route("/", get(app::index))
        .route("/compare", get(app::index))
        .route("/sweep", get(app::index))
        .route("/run/{*view}", get(app::index))
        .route("/assets/{name}", get(app::asset))
        .route("/app/runs", get(app::runs))
        .route("/app/run/{*name}", named(app::run))
        .route("/app/report/{*name}", named(app::report))
        .route("/app/comparison/{*names}", named(app::comparison))
        .route("/app/sweep", get(sweep))
        .route("/app/view", inspecting(ViewRequest::read, ViewRequest::n_bytes, ViewRequest::answer))
        .fallback(async |method: Method, uri: Uri| ApiError::no_route(method.as_str(), uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            let message = format!("{} does not take {method}", echoed(uri.path()));
            ApiError::new(StatusCode::METHOD_NOT_ALLOWED, message)
        })
        .layer(middleware::from_fn_with_state(service.clone(), check))
        .with_state(service)
}

/// The routes that `/openapi.json` describes.
fn api() -> Described {
    let object = |properties: Value| json_content(json!({"type": "object", "properties": properties}));
    let events = "With stream: events `data: {...}` as OpenAI sends them, the last of them `data: [DONE]`.";
    let completions = |name: &str| json_or_events(reference(name), events);
    let response_events = "With stream: events from response.created to response.completed, as OpenAI sends them.";
    let response_body = json!({"type": "object", "properties": {
        "id": {"type": "string"},
        "object": {"type": "string", "enum": ["response"]},
        "status": {"type": "string", "enum": ["completed", "incomplete"]},
        "output": {"type": "array", "items": {"type": "object"}},
        "usage": {"type": "object"},
    }});
    let n_tokens = object(json!({
        "object": {"type": "string", "enum": ["response.input_tokens"]},
        "input_tokens": {"type": "integer"},
    }));
    let mut api = Described::default();
    api.get("/v1/models", get(models)).summary("The models").returns(object(json!({
        "object": {"type": "string", "enum": ["list"]},
        "data": {"type": "array", "items": reference("Model")},
    })));
    api.get("/v1/models/{*name}", named(model)).summary("A model").returns(json_content(reference("Model")));
    api.post::<CompletionRequest>("/v1/completions", generating(GenerateRequest::completion))
        .summary("Continue prompts")
        .returns(completions("Completion"));
    api.post::<ChatRequest>("/v1/chat/completions", generating(GenerateRequest::chat))
        .summary("Answer a conversation, with a model that has a chat template")
        .returns(completions("ChatCompletion"));
    api.post::<ResponseRequest>("/v1/responses", generating(GenerateRequest::response))
        .summary("Answer a conversation, in OpenAI's newer form")
        .returns(json_or_events(response_body, response_events));
    api.post::<ChatRequest>("/v1/chat/completions/input_tokens", counting(GenerateRequest::chat))
        .summary("Count the tokens of a conversation")
        .returns(n_tokens.clone());
    api.post::<ResponseRequest>("/v1/responses/input_tokens", counting(GenerateRequest::response))
        .summary("Count the tokens of a conversation")
        .returns(n_tokens);
    let embeddings = inspecting(EmbeddingRequest::read, |_, _| INSPECTION, EmbeddingRequest::answer);
    api.post::<EmbeddingFields>("/v1/embeddings", embeddings)
        .summary("The vectors of texts: the mean of the last residual stream")
        .returns(json_content(response_schema::<Embeddings>()));
    let inspection = inspecting(InspectRequest::read, InspectRequest::n_bytes, InspectRequest::answer);
    api.post::<InspectFields>("/v1/inspect", inspection)
        .summary("Inspect the model on a text: attention, lens, patterns of heads, and the text without some heads")
        .returns(json_content(reference("Inspection")));
    api.post::<TokenizeRequest>("/tokenize", answering(tokenize))
        .summary("The tokens of a text")
        .returns(json_content(response_schema::<Tokenized<(), ()>>()));
    api.post::<DetokenizeRequest>("/detokenize", answering(detokenize))
        .summary("The text of tokens")
        .returns(json_content(response_schema::<Detokenized>()));
    api.post::<ChatRequest>("/apply-template", answering(apply_template))
        .summary("Render a conversation with the chat template")
        .returns(object(json!({"prompt": {"type": "string"}})));
    api.get("/health", get(async |State(service): State<Shared>| health(&service)))
        .summary("Whether the server responds; needs no key")
        .returns(object(json!({
            "status": {"type": "string", "enum": ["ok"]},
            "models": {"type": "array", "items": {"type": "object"}},
        })));
    api.get("/metrics", get(async |State(service): State<Shared>| metrics_page(&service)))
        .summary("Counters, for Prometheus")
        .returns(json!({"text/plain": {"schema": {"type": "string"}}}));
    api.get("/props", describing(llama::props))
        .summary("A model, as llama.cpp's server describes it; ?model=NAME")
        .returns(json_content(json!({"type": "object"})));
    api.get("/slots", describing(llama::slots))
        .summary("The slots of a model, as llama.cpp's server lists them; ?model=NAME")
        .returns(json_content(json!({"type": "array", "items": {"type": "object"}})));
    api
}

/// Rejects unauthorized requests, and counts the responses.
async fn check(State(service): State<Shared>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let origin = guard::allowed_origin(headers, &service.options.origins);
    let is_open = request.uri().path() == "/health" || app::is_file(request.uri().path());
    let let_in = guard::check_site(headers, service.options.keys.is_some(), origin.is_some());
    let preflight = origin.as_ref().filter(|_| request.method() == Method::OPTIONS).map(|_| guard::preflight(headers));
    let let_in = let_in.and_then(|()| match &service.options.keys {
        Some(keys) if !is_open && preflight.is_none() => guard::check_key(headers, keys),
        _ => Ok(()),
    });
    let mut response = match (let_in, preflight) {
        (Err(error), _) => error.into_response(),
        (Ok(()), Some(preflight)) => preflight.into_response(),
        (Ok(()), None) => next.run(request).await,
    };
    if let Some(origin) = origin {
        response.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        response.headers_mut().insert(header::VARY, HeaderValue::from_static("Origin"));
    }
    *service.responses().entry(response.status().as_u16()).or_default() += 1;
    response
}

async fn models(State(service): State<Shared>) -> Result<Response, ApiError> {
    let models = |service: &Service| Ok(json!({"object": "list", "data": service.library.models()}));
    Ok(json_response(service.off_thread(Work::Long, models).await?.to_string()))
}

fn model(service: &Service, name: &str) -> Result<Response, ApiError> {
    let model = service.library.models().into_iter().find(|model| model.id == name);
    Ok(json_response(to_json(&model.ok_or_else(|| service.library.no_model(name))?)))
}

/// A handler that answers with what an address names.
fn named(answer: fn(&Service, &str) -> Result<Response, ApiError>) -> MethodRouter<Shared> {
    get(move |State(service): State<Shared>, path: Result<Path<String>, PathRejection>| async move {
        let name = name(path)?;
        let reserved = service.unsent.reserve(PAGE).await?;
        let answer = service.off_thread(Work::Long, move |service| answer(service, &name)).await?;
        Ok::<_, ApiError>(hold(reserved, answer))
    })
}

async fn sweep(State(service): State<Shared>) -> Result<Response, ApiError> {
    service.off_thread(Work::Long, app::sweep).await
}

/// A handler that describes the model that a query names.
fn describing(describe: fn(&LoadedModel) -> Value) -> MethodRouter<Shared> {
    get(move |State(service): State<Shared>, uri: Uri| async move {
        let describe = move |service: &Service| {
            let model = service.library.model(llama::model_of(&uri).as_deref())?;
            Ok(json_response(describe(&model).to_string()))
        };
        service.off_thread(Work::Long, describe).await
    })
}

/// Whether all threads run, and the memory of the slots of each model in memory. The models have no names here, since
/// nobody needs a key.
fn health(service: &Service) -> Result<Response, ApiError> {
    service.begin()?;
    let loaded = service.library.loaded();
    if let Some(model) = loaded.iter().find(|model| !model.queue.is_open()) {
        return Err(ApiError::unavailable(format!("the thread of `{}` has ended", model.name)));
    }
    let memory = |model: &Arc<LoadedModel>| {
        json!({
            "slots": model.slots.n,
            "slot_bytes_per_token": model.config.cache_bytes(1),
            "slot_bytes_per_context": model.config.cache_bytes(u64::MAX),
            "cache_bytes": model.queue.cache_bytes(),
        })
    };
    let bases = loaded.iter().filter(|model| model.adapters.is_none());
    Ok(json_response(json!({"status": "ok", "models": bases.map(memory).collect::<Vec<_>>()}).to_string()))
}

fn metrics_page(service: &Service) -> Response {
    let page = metrics::page(&service.library.loaded(), &service.responses());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// Parses a request for a model.
type Parse<T> = fn(Fields, &LoadedModel) -> Result<T, ApiError>;

/// Bodies up to this size are parsed at once.
const SHORT_BODY: usize = 1 << 16;

/// The memory for a page; few take more.
const PAGE: usize = 4 << 20;

/// Reads the body of a request for a model, and parses it on another thread, since opening the model, rendering a chat
/// template or tokenizing a long text would block all connections. Before that, reserves memory for `per_byte` times the
/// body.
async fn read<T: Send + 'static>(
    service: &Shared,
    request: Request,
    parse: Parse<T>,
    per_byte: usize,
) -> Result<(Arc<LoadedModel>, T, InFlight, Option<Reserved>), ApiError> {
    let (parts, body) = request.into_parts();
    let connection = parts.extensions.get::<Arc<Connection>>();
    let mut stopping = service.stopping.clone();
    connection.inspect(|connection| connection.wait());
    let body = tokio::select! {
        body = read_body(&parts.headers, body) => body?,
        _ = stopping.wait_for(|stopping| *stopping) => return Err(ApiError::stopping()),
    };
    connection.inspect(|connection| connection.work());
    let in_flight = service.begin()?;
    let reserved = service.unsent.reserve(per_byte * body.len()).await?;
    let work = if body.len() <= SHORT_BODY { Work::Short } else { Work::Long };
    service
        .off_thread(work, move |service| {
            let mut fields = fields::read(&body)?;
            let model = service.library.model(fields::take_model(&mut fields)?.as_deref())?;
            let request = parse(fields, &model)?;
            Ok((model, request, in_flight, reserved))
        })
        .await
}

/// A handler that responds with what `answer` makes of a request.
fn answering(answer: Parse<String>) -> MethodRouter<Shared> {
    post(move |State(service): State<Shared>, request: Request| async move {
        let (_, json, _in_flight, reserved) = read(&service, request, answer, PER_BYTE).await?;
        Ok::<_, ApiError>(hold(reserved, json_response(json)))
    })
}

/// A handler that counts the tokens of the prompt and generates nothing.
fn counting(parse: Parse<GenerateRequest>) -> MethodRouter<Shared> {
    post(move |State(service): State<Shared>, request: Request| async move {
        let (_, request, _in_flight, _) = read(&service, request, parse, 0).await?;
        let n = request.prompt(0).tokens.len();
        let json = json!({"object": "response.input_tokens", "input_tokens": n});
        Ok::<_, ApiError>(json_response(json.to_string()))
    })
}

/// A handler that computes the response with the model's tensors, for which it needs `n_bytes`.
fn inspecting<T: Send + 'static>(
    parse: Parse<T>,
    n_bytes: fn(&T, &ModelConfig) -> usize,
    answer: fn(&T, &LoadedModel, &Gpt) -> Result<String, ApiError>,
) -> MethodRouter<Shared> {
    post(move |State(service): State<Shared>, request: Request| async move {
        let (model, request, _in_flight, _) = read(&service, request, parse, 0).await?;
        let inspectable = model.inspectable.clone();
        let permit = inspectable.permit()?;
        let reserved = service.unsent.reserve(n_bytes(&request, &model.config)).await?;
        let json = inspectable.inspect(permit, move |tensors| answer(&request, &model, tensors)).await?;
        Ok::<_, ApiError>(hold(reserved, json_response(json)))
    })
}

/// A handler that responds with completions.
fn generating(parse: Parse<GenerateRequest>) -> MethodRouter<Shared> {
    post(move |State(service): State<Shared>, request: Request| async move { generate(&service, request, parse).await })
}

async fn generate(service: &Shared, request: Request, parse: Parse<GenerateRequest>) -> Result<Response, ApiError> {
    let (model, request, in_flight, _) = read(service, request, parse, 0).await?;
    let since = Instant::now();
    let n_bytes = if request.stream { 0 } else { request.n_bytes() };
    let reserved = service.unsent.reserve(n_bytes).await?;
    let (sender, events) = unbounded_channel();
    let outbox = Outbox::new(&service.unsent);
    let settings = Arc::new(request.settings.clone());
    let sequence = |idx: usize| SequenceRequest {
        idx,
        adapters: model.adapters,
        metrics: model.metrics.clone(),
        prompt: request.prompt(idx).tokens.clone(),
        settings: settings.clone(),
        sample_idx: (idx % request.n) as u64,
        deadline: since + REQUEST_TIME,
        events: sender.clone(),
        outbox: outbox.clone(),
    };
    model.queue.submit((0..request.n_sequences()).map(sequence).collect())?;
    drop(sender);
    let stream = request.stream;
    let completions =
        ResponseStream::new(ResponseWriter::new(model, request), events, outbox.clone(), since, in_flight);
    if !stream {
        let mut collected = JoinSet::new(); // aborts it if the client leaves
        collected.spawn_on(completions.collect(), &service.responder);
        let collected = collected.join_next().await.expect("a task was spawned");
        return Ok(hold(reserved, json_response(collected.unwrap_or_else(|_| Err(ApiError::bug()))?)));
    }
    let (sender, chunks) = channel(1);
    service.responder.spawn(completions.send(sender, service.options.keep_alive));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((StatusCode::OK, headers, Body::new(Chunks(chunks))).into_response())
}
