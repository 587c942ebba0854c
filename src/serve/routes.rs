//! The routes of the server and their handlers.

use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::mpsc::{channel, unbounded_channel};
use tokio::task::JoinSet;

use super::answer::Answer;
use super::app;
use super::connections::Connection;
use super::document;
use super::embeddings::EmbeddingRequest;
use super::error::ApiError;
use super::fields::{Fields, wrong};
use super::guard;
use super::hosted::Hosted;
use super::inspect::InspectRequest;
use super::library::ListedModel;
use super::limits::{REQUEST_TIME, read_body};
use super::metrics;
use super::request::{TextRequest, check_text, rendered_chat, tokens};
use super::scheduler::SequenceRequest;
use super::slots;
use super::stream::{Chunks, Texts};
use super::view::ViewRequest;
use super::{Busy, Service, Shared, Work};

/// The variable part of an address. `Path` rejects one that is not UTF-8 in plain text, unlike every other error.
pub(super) struct Name(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Path::from_request_parts(parts, state).await;
        path.map(|Path(name)| Self(name)).map_err(|_| ApiError::bad_request("the address is not UTF-8"))
    }
}

/// All routes of the server.
pub(super) fn router(service: Shared) -> Router {
    Router::new()
        .route("/v1/models", get(models))
        .route("/v1/models/{*name}", get(model))
        .route("/v1/completions", post(completions))
        .route("/v1/chat/completions", post(chat))
        .route("/v1/responses", post(responses))
        .route("/v1/chat/completions/input_tokens", post(chat_tokens))
        .route("/v1/responses/input_tokens", post(response_tokens))
        .route("/v1/embeddings", post(embeddings))
        .route("/v1/inspect", post(inspect))
        .route("/tokenize", post(tokenize))
        .route("/detokenize", post(detokenize))
        .route("/apply-template", post(apply_template))
        .route("/props", get(async |State(service): State<Shared>, uri: Uri| about(service, uri, slots::props).await))
        .route("/slots", get(async |State(service): State<Shared>, uri: Uri| about(service, uri, slots::slots).await))
        .route("/health", get(async |State(service): State<Shared>| health(&service)))
        .route("/metrics", get(async |State(service): State<Shared>| metrics_page(&service)))
        // As llama.cpp's server has them, too; without `/v1` its completions and embeddings have another form.
        .route("/models", get(models))
        .route("/chat/completions", post(chat))
        .route("/chat/completions/input_tokens", post(chat_tokens))
        .route("/responses", post(responses))
        .route("/responses/input_tokens", post(response_tokens))
        .route("/openapi.json", get(async || json_text(document::json())))
        .route("/", get(app::index))
        .route("/compare", get(app::index))
        .route("/run/{*view}", get(app::index))
        .route("/assets/{name}", get(app::asset))
        .route("/app/runs", get(app::runs))
        .route("/app/run/{*name}", get(app::run))
        .route("/app/report/{*name}", get(app::report))
        .route("/app/comparison/{*names}", get(app::comparison))
        .route("/app/view", post(view))
        .fallback(async |method: Method, uri: Uri| ApiError::no_route(method.as_str(), uri.path()))
        .method_not_allowed_fallback(async |method: Method, uri: Uri| {
            ApiError::wrong_method(method.as_str(), uri.path())
        })
        .layer(middleware::from_fn_with_state(service.clone(), check))
        .with_state(service)
}

/// Rejects unauthorized requests, and counts the responses.
async fn check(State(service): State<Shared>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    let origin = guard::allowed_origin(headers, &service.origins);
    let is_open = request.uri().path() == "/health" || app::is_file(request.uri().path());
    let let_in = guard::check_site(headers, service.keys.is_some(), origin.is_some());
    let preflight = origin.as_ref().filter(|_| request.method() == Method::OPTIONS).map(|_| guard::preflight(headers));
    let let_in = let_in.and_then(|()| match &service.keys {
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
    service.count(response.status());
    response
}

/// A response with JSON.
pub(super) fn json_text(json: impl Into<Body>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], json.into()).into_response()
}

fn to_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain data")
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Model")]
pub(super) struct ModelBody<'a> {
    id: &'a str,
    #[schemars(extend("enum" = ["model"]))]
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Tokens that the context holds.
    max_model_len: usize,
}

impl<'a> ModelBody<'a> {
    fn new(model: &'a ListedModel) -> Self {
        let ListedModel { name, created_unix_s, context_length } = model;
        let (created, max_model_len) = (*created_unix_s, *context_length);
        Self { id: name, object: "model", created, owned_by: "tinderbox", max_model_len }
    }
}

async fn models(State(service): State<Shared>) -> Result<Response, ApiError> {
    service
        .off_thread(Work::Long, |service| {
            let models = service.library.models();
            let data: Vec<_> = models.iter().map(ModelBody::new).collect();
            Ok(json_text(json!({"object": "list", "data": data}).to_string()))
        })
        .await
}

async fn model(State(service): State<Shared>, Name(name): Name) -> Result<Response, ApiError> {
    service
        .off_thread(Work::Long, move |service| {
            let models = service.library.models();
            let known: Vec<&str> = models.iter().map(|model| &*model.name).collect();
            let model = models.iter().find(|model| model.name == name);
            Ok(json_text(to_json(&ModelBody::new(model.ok_or_else(|| ApiError::no_model(&name, &known))?))))
        })
        .await
}

/// What there is to say about the model that a query names.
async fn about(service: Shared, uri: Uri, say: fn(&Hosted) -> Value) -> Result<Response, ApiError> {
    let name = slots::model_of(&uri)?;
    let said = service.off_thread(Work::Long, move |service| {
        let model = service.library.model(name.as_deref())?;
        Ok(say(&model).to_string())
    });
    Ok(json_text(said.await?))
}

fn health(service: &Service) -> Result<Response, ApiError> {
    service.begin()?;
    match service.library.loaded().iter().find(|model| !model.queue.is_open()) {
        None => Ok(json_text(json!({"status": "ok"}).to_string())),
        Some(model) => Err(ApiError::unavailable(format!("the thread of `{}` has ended", model.name))),
    }
}

fn metrics_page(service: &Service) -> Response {
    let models = service.library.loaded();
    let models: Vec<_> = models.iter().map(|model| model.shown()).collect();
    let page = metrics::page(&models, &service.responses());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], page).into_response()
}

/// Parses a request for a model.
type Parse<T> = fn(Fields, &Hosted) -> Result<T, ApiError>;

/// Bodies up to this size are parsed soon.
const SHORT_BODY: usize = 1 << 16;

/// A request for a model that was read.
struct Read<T> {
    model: Arc<Hosted>,
    request: T,
    busy: Busy,
}

/// Reads the body of a request for a model, and parses it on another thread: opening the model, rendering a chat template
/// and splitting a long text would block all connections.
async fn read<T: Send + 'static>(service: &Shared, request: Request, parse: Parse<T>) -> Result<Read<T>, ApiError> {
    let (parts, body) = request.into_parts();
    let connection = parts.extensions.get::<Arc<Connection>>();
    let mut stopping = service.stopping.clone();
    connection.inspect(|connection| connection.wait());
    let body = tokio::select! {
        body = read_body(&parts.headers, body) => body?,
        _ = stopping.wait_for(|stopping| *stopping) => return Err(ApiError::stopping()),
    };
    connection.inspect(|connection| connection.work());
    let busy = service.begin()?;
    let work = if body.len() <= SHORT_BODY { Work::Short } else { Work::Long };
    service
        .off_thread(work, move |service| {
            let mut fields = Fields::read(&body)?;
            let model = service.library.model(fields.text("model")?.as_deref())?;
            let request = parse(fields, &model)?;
            Ok(Read { model, request, busy })
        })
        .await
}

async fn completions(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    texts(&service, request, TextRequest::completion).await
}

async fn chat(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    texts(&service, request, TextRequest::chat).await
}

async fn responses(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    texts(&service, request, TextRequest::response).await
}

async fn texts(service: &Shared, request: Request, parse: Parse<TextRequest>) -> Result<Response, ApiError> {
    let Read { model, request, busy } = read(service, request, parse).await?;
    let since = Instant::now();
    let (sender, events) = unbounded_channel();
    let sequence = |idx: usize| SequenceRequest {
        idx,
        adapters: model.adapters,
        metrics: model.metrics.clone(),
        prompt: request.prompt(idx).tokens.clone(),
        config: request.config.clone(),
        choice_idx: (idx % request.n) as u64,
        bias: request.bias.clone(),
        guide: request.guide.clone(),
        scores_prompt: request.echo && request.n_top.is_some(),
        n_top: request.n_top,
        deadline: since + REQUEST_TIME,
        events: sender.clone(),
    };
    model.queue.submit((0..request.n_choices()).map(sequence).collect())?;
    drop(sender);
    let stream = request.stream;
    let texts = Texts::new(Answer::new(model, request), events, since, busy);
    if !stream {
        let mut collected = JoinSet::new(); // aborts it if the client leaves
        collected.spawn_on(texts.collect(), &service.answers);
        let collected = collected.join_next().await.expect("it was spawned");
        return Ok(json_text(collected.unwrap_or_else(|_| Err(ApiError::bug()))?));
    }
    let (sender, chunks) = channel(1);
    service.answers.spawn(texts.send(sender, service.keep_alive));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((StatusCode::OK, headers, Body::from_stream(Chunks(chunks))).into_response())
}

/// The number of tokens of the prompt of a request for a text, which is not written.
async fn input_tokens(service: &Shared, request: Request, parse: Parse<TextRequest>) -> Result<Response, ApiError> {
    let read = read(service, request, parse).await?;
    let n = read.request.prompt(0).tokens.len();
    Ok(json_text(json!({"object": "response.input_tokens", "input_tokens": n}).to_string()))
}

async fn chat_tokens(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    input_tokens(&service, request, TextRequest::chat).await
}

async fn response_tokens(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    input_tokens(&service, request, TextRequest::response).await
}

async fn apply_template(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    let read = read(&service, request, rendered_chat).await?;
    Ok(json_text(json!({"prompt": read.request}).to_string()))
}

async fn embeddings(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    let Read { model, request, busy: _busy } = read(&service, request, EmbeddingRequest::read).await?;
    let inspectable = model.inspectable.clone();
    Ok(json_text(inspectable.inspect(move |tensors| request.answer(&model.name, tensors)).await?))
}

async fn inspect(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    let Read { model, request, busy: _busy } = read(&service, request, InspectRequest::read).await?;
    let inspectable = model.inspectable.clone();
    Ok(json_text(inspectable.inspect(move |tensors| request.answer(&model, tensors)).await?))
}

async fn view(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    let Read { model, request, busy: _busy } = read(&service, request, ViewRequest::read).await?;
    let inspectable = model.inspectable.clone();
    Ok(json_text(inspectable.inspect(move |tensors| request.answer(&model, tensors)).await?))
}

#[derive(Deserialize, JsonSchema)]
pub(super) struct TokenizeRequest {
    #[schemars(required)]
    content: Option<String>,
    /// Whether the token that the model expects before a text is put there.
    #[serde(default)]
    add_special: bool,
    /// Whether each of `tokens` comes with its piece, as from llama.cpp's server.
    #[serde(default)]
    with_pieces: bool,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Tokenized {
    tokens: Tokens,
    pieces: Vec<String>,
    count: usize,
    max_model_len: usize,
}

#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum Tokens {
    Ids(Vec<u32>),
    WithPieces(Vec<TokenWithPiece>),
}

#[derive(Serialize, JsonSchema)]
struct TokenWithPiece {
    id: u32,
    piece: String,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(extend("required" = ["tokens"]))]
pub(super) struct DetokenizeRequest {
    #[serde(default)]
    #[schemars(extend("type" = "array", "items" = {"type": "integer", "minimum": 0}))]
    tokens: Value,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct Detokenized {
    content: String,
}

async fn tokenize(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    let read = read(&service, request, |fields, model| {
        let TokenizeRequest { content, add_special, with_pieces } = fields.parse(&[])?;
        let content =
            content.ok_or_else(|| ApiError::field("content", "there is no `content`: it must be a string"))?;
        check_text("content", &content)?;
        let tokenizer = &model.tokenizer;
        let tokens = if add_special { tokenizer.encode_prompt(content) } else { tokenizer.encode(&content) };
        let tokens = tokens.map_err(|error| ApiError::field("content", error.to_string()))?;
        let pieces: Vec<String> = tokens.iter().map(|token| tokenizer.piece(*token)).collect();
        let count = tokens.len();
        let with_piece = |(id, piece): (u32, &String)| TokenWithPiece { id, piece: piece.clone() };
        let tokens = match with_pieces {
            true => Tokens::WithPieces(tokens.into_iter().zip(&pieces).map(with_piece).collect()),
            false => Tokens::Ids(tokens),
        };
        Ok(to_json(&Tokenized { tokens, pieces, count, max_model_len: model.context_length() }))
    });
    Ok(json_text(read.await?.request))
}

async fn detokenize(State(service): State<Shared>, request: Request) -> Result<Response, ApiError> {
    let read = read(&service, request, |fields, model| {
        let DetokenizeRequest { tokens: list } = fields.parse(&[])?;
        let ids = list.as_array().ok_or_else(|| wrong("tokens", &list, "a list of token ids"))?;
        let content = model.tokenizer.decode(&tokens("tokens", ids, &model.tokenizer)?);
        Ok(to_json(&Detokenized { content }))
    });
    Ok(json_text(read.await?.request))
}
